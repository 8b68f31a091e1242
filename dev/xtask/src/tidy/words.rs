//! Words in comments and documents: pronouns in the place of nouns, and genitives in the place of compounds.

use std::collections::BTreeMap;

use crate::tidy::Violation;
use crate::tidy::ratchets;
use crate::tidy::tree::Tree;

/// Words whose share is bounded.
struct Kind {
    name: &'static str,
    words: &'static str,
    /// Of 1,000 words, where the list of ratchets names no other bound.
    max: u64,
}

/// Words that stand in the place of a thing's name, or begin a clause that does.
const PRONOUNS: Kind = Kind {
    name: "pronouns",
    words: "who whom whose whoever what whatever those nobody somebody everybody anybody someone everyone anyone ones others",
    max: 6,
};
/// "The key of a client" is a client's key.
const GENITIVES: Kind = Kind { name: "\"of\"", words: "of", max: 30 };
/// A share that falls by a word or two needs no new bound.
const SLACK: u64 = 2;
/// A text shorter than this says nothing by its share.
const WORDS_MIN: u64 = 500;

/// All words of a text, and those of a kind.
type Counts = [u64; 2];

/// Pronouns of 1,000 words: comments by crate, each document.
pub(super) fn pronouns(tree: &Tree) -> Vec<Violation> {
    let documents = tree.files.iter().filter(|(path, _)| path.ends_with(".md"));
    let documents = documents.map(|(path, text)| (path.clone(), PRONOUNS.count(&prose(text))));
    PRONOUNS.compare(tree, PRONOUNS.comments(tree, "").chain(documents))
}

/// "of" in 1,000 words: comments by crate, without tests.
pub(super) fn genitives(tree: &Tree) -> Vec<Violation> {
    GENITIVES.compare(tree, GENITIVES.comments(tree, "/src/"))
}

impl Kind {
    /// Counts the comments of each crate, in files whose path has a part.
    fn comments(&self, tree: &Tree, part: &str) -> impl Iterator<Item = (String, Counts)> {
        let mut packages = BTreeMap::<String, Counts>::new();
        for source in tree.sources.iter().filter(|source| source.path.contains(part)) {
            let package = source.path.split('/').take(2).collect::<Vec<_>>().join("/");
            let sum = packages.entry(format!("comments of {package}")).or_default();
            for line in source.text_without_literals().lines() {
                let comment =
                    line.trim_start().strip_prefix("//").or_else(|| line.split_once(" // ").map(|at| at.1));
                let [words, found] = self.count(comment.unwrap_or_default());
                *sum = [sum[0] + words, sum[1] + found];
            }
        }
        packages.into_iter()
    }

    /// Code between backticks is one word each.
    fn count(&self, text: &str) -> Counts {
        let parts = text.split('`').step_by(2);
        let words = parts.flat_map(|part| part.split(|c: char| !c.is_alphabetic() && c != '\''));
        words.filter(|word| !word.is_empty()).fold([0, 0], |[all, found], word| {
            let word = word.to_lowercase();
            [all + 1, found + u64::from(self.words.split(' ').any(|other| other == word))]
        })
    }

    fn compare(&self, tree: &Tree, texts: impl Iterator<Item = (String, Counts)>) -> Vec<Violation> {
        let long = texts.filter(|(_, [words, _])| *words >= WORDS_MIN);
        let name = |text: &str| format!("{} of 1000 words in {text}", self.name);
        let measures = long.map(|(text, [words, found])| (name(&text), found * 1000 / words)).collect();
        ratchets::compare(tree, self.name, &measures, self.max, SLACK)
    }
}

/// A document without its blocks of code.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::tests::tree;

    #[test]
    fn pronouns_are_counted_outside_of_code() {
        assert_eq!(PRONOUNS.count("Who asks `what` is told; those wait."), [6, 2]);
        assert_eq!(prose("a\n```sh\nwho\n```\nb"), "a\nb");
    }

    #[test]
    fn pronouns_and_genitives_beyond_their_share_are_found() {
        let text =
            |pronouns: usize| format!("{}{}", "word ".repeat(1000 - pronouns), "who ".repeat(pronouns));
        assert_eq!(pronouns(&tree(&[("a.md", &text(6))])), []);
        assert_eq!(pronouns(&tree(&[("a.md", &text(7))])).len(), 1);
        let comment = format!("//! {}\nfn a() {{}}", text(7));
        let found = pronouns(&tree(&[("crates/a/src/lib.rs", &comment)]));
        assert_eq!(found[0].what, "pronouns of 1000 words in comments of crates/a is 7, 6 at most");
        let genitives = |count: usize| {
            let comment = format!("//! {}{}\n", "word ".repeat(1000 - count), "of ".repeat(count));
            genitives(&tree(&[("crates/a/src/lib.rs", &comment), ("crates/a/tests/b.rs", &comment)])).len()
        };
        assert_eq!((genitives(30), genitives(31)), (0, 1));
        let literal = format!("const A: &str = \"// {}\";", text(7));
        assert_eq!(pronouns(&tree(&[("crates/a/src/lib.rs", &literal)])), []);
    }
}
