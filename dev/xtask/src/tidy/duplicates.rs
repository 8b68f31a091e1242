//! Code that occurs twice in the product crates.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::tidy::Violation;
use crate::tidy::ratchets;
use crate::tidy::source::{Source, Token};
use crate::tidy::tree::Tree;

/// Tokens in a row that are equal: some eight lines.
const WINDOW: usize = 80;
/// Duplicated lines per 10,000, where the ratchet list names no other bound.
const LINES_MAX: u64 = 0;
/// A few lines more or less need no new bound.
const SLACK: u64 = 5;

/// A place in the code: file and token.
type Place = (usize, usize);

/// Counts the duplicated lines per 10,000 code lines in the product crates, tests excluded.
pub(super) fn duplicates(tree: &Tree) -> Vec<Violation> {
    let sources: Vec<&Source> = tree.product().collect();
    let lines: usize = sources.iter().map(|source| source.lines_of_code()).sum();
    let duplicated: usize = lines_by_file(&sources).values().map(BTreeSet::len).sum();
    let share = (duplicated * 10_000).checked_div(lines).unwrap_or_default() as u64;
    let measures = BTreeMap::from([("duplicated lines of 10000 in product crates".to_owned(), share)]);
    ratchets::compare(tree, "duplicated lines", &measures, LINES_MAX, SLACK)
}

/// Lists runs of duplicated lines in the product crates, by file.
pub(super) fn report(tree: &Tree) -> String {
    let sources: Vec<&Source> = tree.product().collect();
    let mut text = String::new();
    for (file, lines) in lines_by_file(&sources) {
        let mut lines = lines.into_iter().peekable();
        while let Some(first) = lines.next() {
            let mut last = first;
            while let Some(next) = lines.next_if(|next| *next <= last + 1) {
                last = next;
            }
            text += &format!("{}:{first}-{last}\n", sources[file].path);
        }
    }
    text
}

/// Returns the lines of each file, by its place in the list, whose tokens also occur elsewhere.
fn lines_by_file(sources: &[&Source]) -> BTreeMap<usize, BTreeSet<usize>> {
    let code: Vec<Vec<&Token>> = sources.iter().map(|source| tokens(source)).collect();
    let mut numbers = HashMap::new();
    let mut seen = HashMap::<u64, Place>::new();
    let mut lines = BTreeMap::<usize, BTreeSet<usize>>::new();
    for (file, tokens) in code.iter().enumerate() {
        let kinds: Vec<u64> = tokens
            .iter()
            .map(|token| {
                let next = numbers.len() as u64 + 1;
                *numbers.entry(&token.kind).or_insert(next)
            })
            .collect();
        for (start, hash) in hashes(&kinds).into_iter().enumerate() {
            let place = seen.entry(hash).or_insert((file, start));
            let (other, at) = *place;
            // A row of equal items, such as a table, overlaps itself.
            if other == file && start - at < WINDOW {
                *place = (file, start);
                continue;
            }
            for (file, start) in [(file, start), (other, at)] {
                let window = &code[file][start..start + WINDOW];
                lines.entry(file).or_default().extend(window.iter().map(|token| token.line));
            }
        }
    }
    lines
}

/// Hashes each window, by a polynomial whose value follows from the previous window's. With some 10⁵ windows, two
/// different ones with equal hashes are too unlikely to look for.
fn hashes(kinds: &[u64]) -> Vec<u64> {
    /// Odd, and large, so that it spreads small numbers over all bits.
    const BASE: u64 = 0x9e37_79b9_7f4a_7c15;
    let highest = BASE.wrapping_pow(WINDOW as u32);
    let mut hash = 0_u64;
    let mut hashes = Vec::new();
    for (place, kind) in kinds.iter().enumerate() {
        hash = hash.wrapping_mul(BASE).wrapping_add(*kind);
        if let Some(left) = place.checked_sub(WINDOW) {
            hash = hash.wrapping_sub(kinds[left].wrapping_mul(highest));
        }
        if place + 1 >= WINDOW {
            hashes.push(hash);
        }
    }
    hashes
}

/// Returns the tokens outside tests, comments and imports.
fn tokens(source: &Source) -> Vec<&Token> {
    let all = &source.tokens;
    let mut kept = Vec::new();
    let mut skipped_to = 0;
    for place in source.code() {
        if place < skipped_to {
            continue;
        }
        let behind = &all[place + 1..];
        let is_comment = all[place].is_mark('#')
            && behind.iter().find(|token| !token.is_mark('!')).is_some_and(|token| token.is_open('['))
            && behind.iter().take(3).any(|token| token.is_name("doc"));
        if is_comment {
            let open = (place..all.len()).find(|at| all[*at].is_open('['));
            skipped_to = open.map_or(place, |open| all[open].mate) + 1;
        } else if all[place].is_name("use") {
            let end = (place..all.len()).find(|at| all[*at].is_mark(';'));
            skipped_to = end.unwrap_or(place) + 1;
        } else {
            kept.push(&all[place]);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::tests::tree;

    /// A function of ten lines with eight tokens each.
    fn function(name: &str, argument: &str) -> String {
        let lines = (0..10).map(|line| format!("    call{line}({argument}, 1).one;\n"));
        format!("fn {name}() {{\n{}}}\n", lines.collect::<String>())
    }

    fn share(files: &[(&str, String)]) -> String {
        let files: Vec<_> = files.iter().map(|(path, text)| (*path, &**text)).collect();
        duplicates(&tree(&files)).into_iter().map(|violation| violation.what).collect()
    }

    #[test]
    fn code_that_occurs_twice_is_counted() {
        let one = ("crates/a/src/a.rs", function("f", "x"));
        let same = ("crates/b/src/b.rs", format!("use a::b;\n{}", function("g", "x")));
        assert_eq!(share(std::slice::from_ref(&one)), "");
        let found = share(&[one.clone(), same]);
        assert!(found.starts_with("duplicated lines of 10000 in product crates is 9600,"), "{found}");
        assert_eq!(share(&[one.clone(), ("crates/b/src/b.rs", function("g", "y"))]), "");
        assert_eq!(share(&[one.clone(), ("crates/b/tests/b.rs", function("g", "x"))]), "");
        assert_eq!(share(&[one, ("dev/b/src/b.rs", function("g", "x"))]), "");
    }

    #[test]
    fn comments_and_tables_are_no_duplicates() {
        let comments =
            "/// The same words.\nfn a();\n".repeat(2) + &"/// One line.\n".repeat(60) + "fn b();\n";
        let files = [("crates/a/src/a.rs", comments.clone()), ("crates/a/src/b.rs", comments)];
        assert_eq!(share(&files), "");
        let table = format!("const A: [u8; 200] = [{}];", "0, ".repeat(200));
        assert_eq!(share(&[("crates/a/src/a.rs", table)]), "");
    }

    #[test]
    fn report_lists_runs_of_lines() {
        let text = function("f", "x") + "fn h() {}\n" + &function("g", "x");
        let tree = tree(&[("crates/a/src/a.rs", &text)]);
        let report = report(&tree);
        assert_eq!(report.lines().count(), 2, "{report}");
    }
}
