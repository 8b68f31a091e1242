//! Names that need their file to be understood, and help texts that need another option's.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::Violation;
use crate::tidy::ratchets;
use crate::tidy::tree::Tree;

/// Names that every module may define: their module says the rest.
const CONVENTIONAL: [&str; 12] = [
    "Args", "Builder", "Config", "Error", "Event", "Inner", "Iter", "Kind", "Options", "Shared", "State",
    "Stats",
];

/// Words by which a help text refers to another one.
const LEANING: [&str; 6] = ["as above", "likewise", "option above", "those", "the other", "the others"];

/// Counts the product crates' types that share their name with another type.
pub(super) fn types(tree: &Tree) -> Vec<Violation> {
    let mut places = BTreeMap::<&str, BTreeSet<&str>>::new();
    for source in tree.sources.iter().filter(|source| source.path.starts_with("crates/")) {
        for place in source.code() {
            let keyword = &source.tokens[place];
            let is_type = ["struct", "enum", "trait", "union"].iter().any(|name| keyword.is_name(name));
            let name = source.tokens.get(place + 1).and_then(|token| token.name());
            if let Some(name) = name.filter(|name| is_type && !CONVENTIONAL.contains(name)) {
                places.entry(name).or_default().insert(&source.path);
            }
        }
    }
    let shared = places.values().filter(|files| files.len() > 1).count() as u64;
    let measures = BTreeMap::from([("type names defined more than once".to_owned(), shared)]);
    ratchets::compare(tree, "type names", &measures, 0, 0)
}

/// Counts the product crates' functions that are named after the preposition and not after their result.
pub(super) fn functions(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for source in tree.product() {
        for pair in source.tokens.windows(2).filter(|pair| pair[0].is_name("fn")) {
            if pair[1].name().is_some_and(|name| name == "of" || name.starts_with("of_")) {
                let what =
                    "a function named of… says neither what it returns nor from what: from_, for_, or a noun";
                found.push(Violation::new(&source.path, pair[1].line, what));
            }
        }
    }
    found
}

/// Help texts of options that only make sense beside another one.
pub(super) fn help(tree: &Tree) -> Vec<Violation> {
    let leaning =
        tree.product().flat_map(|source| helps(&source.text)).filter(|text| leans(text)).count() as u64;
    let measures = BTreeMap::from([("help texts that lean on another option".to_owned(), leaning)]);
    ratchets::compare(tree, "help texts", &measures, 0, 0)
}

/// The documentation comments before `#[arg(…)]`.
fn helps(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut comment = String::new();
    for line in text.lines().map(str::trim) {
        if let Some(part) = line.strip_prefix("///") {
            comment.push_str(part);
        } else {
            if line.starts_with("#[arg(") && !comment.is_empty() {
                found.push(comment.to_lowercase());
            }
            comment.clear();
        }
    }
    found
}

fn leans(text: &str) -> bool {
    let words = format!(" {} ", text.replace(|c: char| !c.is_alphanumeric(), " "));
    LEANING.iter().any(|word| words.contains(&format!(" {word} ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::tests::tree;

    #[test]
    fn types_of_one_name_are_counted_once_and_conventional_names_are_not() {
        let one = "struct Place; enum Error {} fn f() {}";
        let files = [("crates/a/src/a.rs", one), ("crates/b/src/b.rs", one), ("dev/c/src/c.rs", one)];
        let found = types(&tree(&files));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].what, "type names defined more than once is 1, 0 at most");
        assert_eq!(types(&tree(&files[1..])), []);
    }

    #[test]
    fn functions_named_of_are_found() {
        let text = "fn of() {} fn of_text() {} fn offer() {} fn office_of() {}";
        let found = functions(&tree(&[("crates/a/src/a.rs", text), ("dev/b/src/b.rs", text)]));
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn help_that_refers_to_another_option_is_counted() {
        let text = "struct A {\n/// Ports.\n#[arg(long)]\na: u8,\n/// Time for those\n#[arg(long)]\nb: u8,\n/// those\nc: u8 }\n";
        assert_eq!(helps(text).len(), 2);
        let found = help(&tree(&[("crates/a/src/a.rs", text)]));
        assert_eq!(found[0].what, "help texts that lean on another option is 1, 0 at most");
    }
}
