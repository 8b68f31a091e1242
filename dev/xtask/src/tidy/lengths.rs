//! Maximum lengths of functions and files.

use std::collections::BTreeMap;

use crate::tidy::ratchets;
use crate::tidy::source::Source;
use crate::tidy::tree::Tree;
use crate::tidy::{Fix, Violation};

/// Lines that fit on a screen, signature and closing bracket included.
const FUNCTION_LINES_MAX: usize = 70;
/// Lines without tests, where the list of ratchets names no other bound. Typical are 300.
const FILE_LINES_MAX: u64 = 600;
/// Lines of a file of tests, which is read test by test.
const TEST_FILE_LINES_MAX: u64 = 900;
/// The longer functions, with their exact lengths, which may only shrink. A ratchet: a long function may
/// stay, a short function cannot silently become long.
pub(super) const LONG_FUNCTIONS: &str = "dev/xtask/tidy-functions.txt";

/// Compares the functions over the limit with the list of exceptions.
pub(super) fn functions(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut long = BTreeMap::<String, (usize, &str, usize)>::new();
    for source in &tree.sources {
        for (name, line, length) in lengths(source) {
            if length > FUNCTION_LINES_MAX {
                let entry = long.entry(format!("{}::{name}", source.path)).or_insert((0, &source.path, line));
                if length > entry.0 {
                    *entry = (length, &source.path, line);
                }
            }
        }
    }
    let list = tree.file(LONG_FUNCTIONS).unwrap_or_default();
    for (index, entry) in list.lines().enumerate() {
        let at = |what: String| Violation::new(LONG_FUNCTIONS, index + 1, what);
        if entry.is_empty() || entry.starts_with('#') {
            continue;
        }
        let Some((name, length)) = parse_entry(entry) else {
            found.push(at("an entry is `path::function lines`".to_owned()));
            continue;
        };
        match long.remove(name) {
            None => {
                let what = format!("{name} is short or gone: remove the entry");
                found.push(Violation::outdated(LONG_FUNCTIONS, index + 1, what, Fix::Remove));
            }
            Some((now, ..)) if now < length => {
                let what = format!("{name} shrank: lower the entry to {now}");
                found.push(Violation::outdated(LONG_FUNCTIONS, index + 1, what, Fix::Lower(now as u64)));
            }
            Some((now, path, line)) if now > length => {
                found.push(Violation::new(path, line, format!("grew from {length} to {now} lines")));
            }
            Some(_) => {}
        }
    }
    for (length, path, line) in long.into_values() {
        found.push(Violation::new(path, line, format!("{length} lines, {FUNCTION_LINES_MAX} at most")));
    }
    found
}

/// Compares the lines of each file, tests excluded, with its bound.
pub(super) fn files(tree: &Tree) -> Vec<Violation> {
    let code = tree.sources.iter().filter(|source| !source.is_test);
    compare_lengths(tree, "lines without tests of", FILE_LINES_MAX, code)
}

/// The same for files that hold nothing but tests.
pub(super) fn test_files(tree: &Tree) -> Vec<Violation> {
    let tests = tree.sources.iter().filter(|source| source.is_test);
    compare_lengths(tree, "lines of tests in", TEST_FILE_LINES_MAX, tests)
}

fn compare_lengths<'a>(
    tree: &Tree,
    prefix: &str,
    lines_max: u64,
    sources: impl Iterator<Item = &'a Source>,
) -> Vec<Violation> {
    let lengths = sources.map(|source| {
        let lines = if source.is_test { source.text.lines().count() } else { source.lines_of_code() };
        (format!("{prefix} {}", source.path), lines as u64)
    });
    let long = lengths.filter(|(_, lines)| *lines > lines_max).collect();
    ratchets::compare(tree, prefix, &long, lines_max, 0)
}

fn parse_entry(entry: &str) -> Option<(&str, usize)> {
    let (name, length) = entry.rsplit_once(' ')?;
    Some((name.trim_end(), length.parse().ok()?))
}

/// Returns name, line and length of each function with a body, tests and macros included.
fn lengths(source: &Source) -> Vec<(String, usize, usize)> {
    let tokens = &source.tokens;
    let mut lengths = Vec::new();
    for place in (0..tokens.len()).filter(|place| tokens[*place].is_name("fn")) {
        // In a macro the name may be a variable, `$name`. A function type has none.
        let is_variable = tokens.get(place + 1).is_some_and(|token| token.is_mark('$'));
        let name = tokens.get(place + if is_variable { 2 } else { 1 }).and_then(|token| token.name());
        let Some(name) = name else { continue };
        let mut end = place + 1;
        while end < tokens.len() && !tokens[end].is_mark(';') && !tokens[end].is_open('{') {
            end = tokens[end].mate + 1;
        }
        if let Some(body) = tokens.get(end).filter(|token| token.is_open('{')) {
            let line = tokens[place].line;
            lengths.push((name.to_owned(), line, tokens[body.mate].line - line + 1));
        }
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::tests::tree;

    /// Returns a function with this many lines.
    fn function(lines: usize) -> String {
        format!("fn long() -> [u8; 2] {{\n{}}}\n", "    a();\n".repeat(lines - 2))
    }

    fn found(text: &str, list: &str) -> Vec<String> {
        let found = functions(&tree(&[("a.rs", text), (LONG_FUNCTIONS, list)]));
        found.into_iter().map(|violation| violation.to_string()).collect()
    }

    #[test]
    fn seventy_lines_pass_and_seventy_one_do_not() {
        assert_eq!(found(&function(70), ""), [""; 0]);
        assert_eq!(found(&function(71), ""), ["a.rs:1: 71 lines, 70 at most"]);
        let in_impl = format!("impl A {{\n{}}}", function(80));
        assert_eq!(found(&in_impl, ""), ["a.rs:2: 80 lines, 70 at most"]);
        let in_macro = format!("macro_rules! a {{\n() => {{\n{}}} }}", function(80).replace("long", "$name"));
        assert_eq!(found(&in_macro, ""), ["a.rs:3: 80 lines, 70 at most"]);
    }

    #[test]
    fn a_listed_function_may_only_shrink() {
        assert_eq!(found(&function(90), "# why\na.rs::long 90\n"), [""; 0]);
        assert_eq!(found(&function(91), "a.rs::long 90\n"), ["a.rs:1: grew from 90 to 91 lines"]);
        let shrank = format!("{LONG_FUNCTIONS}:1: a.rs::long shrank: lower the entry to 89");
        assert_eq!(found(&function(89), "a.rs::long 90\n"), [shrank]);
        let gone = format!("{LONG_FUNCTIONS}:1: a.rs::long is short or gone: remove the entry");
        assert_eq!(found(&function(70), "a.rs::long 90\n"), [gone]);
        assert_eq!(found("", "a.rs::long\n").len(), 1);
    }

    #[test]
    fn tests_do_not_lengthen_a_file() {
        let code = "fn a() {}\n".repeat(600);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "fn b() {}\n".repeat(50));
        assert_eq!(files(&tree(&[("a.rs", &format!("{code}{tests}"))])), []);
        let long = format!("{code}fn c() {{}}\n{tests}");
        let found = files(&tree(&[("a.rs", &long)]));
        assert_eq!(found[0].what, "lines without tests of a.rs is 601, 600 at most");
        let bound = (ratchets::RATCHETS, "lines without tests of a.rs 601\n");
        assert_eq!(files(&tree(&[("a.rs", &long), bound])), []);
        assert_eq!(files(&tree(&[("a.rs", &code), bound]))[0].fix, Some(Fix::Remove));
    }

    #[test]
    fn a_file_of_tests_has_a_limit_of_its_own() {
        let tests = "fn a() {}\n".repeat(900);
        assert_eq!(test_files(&tree(&[("tests/a.rs", &tests)])), []);
        assert_eq!(files(&tree(&[("tests/a.rs", &tests)])), []);
        let found = test_files(&tree(&[("tests/a.rs", &format!("{tests}fn b() {{}}\n"))]));
        assert_eq!(found[0].what, "lines of tests in tests/a.rs is 901, 900 at most");
    }
}
