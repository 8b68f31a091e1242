//! Pronouns and clauses in place of nouns, in comments and documents.

use std::collections::BTreeMap;

use crate::tidy::Violation;
use crate::tidy::ratchets;
use crate::tidy::tree::Tree;

/// Pronouns per 1,000 words, where the ratchet list names no other bound.
const PRONOUNS_MAX: u64 = 6;
/// A share that falls by a word or two needs no new bound.
const SLACK: u64 = 2;
/// A text shorter than this says nothing by its share.
const WORDS_MIN: u64 = 500;

/// Words that stand in place of a thing's name, or begin a clause that does.
const PRONOUNS: &str = "who whom whose whoever what whatever those nobody somebody everybody anybody someone everyone \
                        anyone ones others";

/// Counts pronouns per 1,000 words: comments by crate, each document.
pub(super) fn pronouns(tree: &Tree) -> Vec<Violation> {
    let mut texts = BTreeMap::<String, [u64; 2]>::new();
    let mut add = |name: String, counts: [u64; 2]| {
        let sum = texts.entry(name).or_default();
        *sum = [sum[0] + counts[0], sum[1] + counts[1]];
    };
    for source in &tree.sources {
        let package = source.path.split('/').take(2).collect::<Vec<_>>().join("/");
        for line in source.text_without_literals().lines() {
            let comment =
                line.trim_start().strip_prefix("//").or_else(|| line.split_once(" // ").map(|at| at.1));
            add(
                format!("pronouns of 1000 words in comments of {package}"),
                count(comment.unwrap_or_default()),
            );
        }
    }
    for (path, text) in tree.files.iter().filter(|(path, _)| path.ends_with(".md")) {
        add(format!("pronouns of 1000 words in {path}"), count(&prose(text)));
    }
    let long = texts.into_iter().filter(|(_, [words, _])| *words >= WORDS_MIN);
    let measures = long.map(|(name, [words, pronouns])| (name, pronouns * 1000 / words)).collect();
    ratchets::compare(tree, "pronouns", &measures, PRONOUNS_MAX, SLACK)
}

/// Returns a document without its code blocks.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let mut kept = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            kept.push(line);
        }
    }
    kept.join("\n")
}

/// Words, and pronouns among them. Code between backticks is one word each.
fn count(text: &str) -> [u64; 2] {
    let parts = text.split('`').step_by(2);
    let words = parts.flat_map(|part| part.split(|c: char| !c.is_alphabetic() && c != '\''));
    words.filter(|word| !word.is_empty()).fold([0, 0], |[all, found], word| {
        let word = word.to_lowercase();
        let is_pronoun = PRONOUNS.split(' ').any(|pronoun| pronoun == word);
        [all + 1, found + u64::from(is_pronoun)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::tests::tree;

    #[test]
    fn pronouns_are_counted_outside_of_code() {
        assert_eq!(count("Who asks `what` is told; those wait."), [6, 2]);
        assert_eq!(prose("a\n```sh\nwho\n```\nb"), "a\nb");
    }

    #[test]
    fn more_than_six_in_a_thousand_words_are_found() {
        let text =
            |pronouns: usize| format!("{}{}", "word ".repeat(1000 - pronouns), "who ".repeat(pronouns));
        assert_eq!(pronouns(&tree(&[("a.md", &text(6))])), []);
        assert_eq!(pronouns(&tree(&[("a.md", &text(7))])).len(), 1);
        let comment = format!("//! {}\nfn a() {{}}", text(7));
        let found = pronouns(&tree(&[("crates/a/src/lib.rs", &comment)]));
        assert_eq!(found[0].what, "pronouns of 1000 words in comments of crates/a is 7, 6 at most");
        let literal = format!("const A: &str = \"// {}\";", text(7));
        assert_eq!(pronouns(&tree(&[("crates/a/src/lib.rs", &literal)])), []);
    }
}
