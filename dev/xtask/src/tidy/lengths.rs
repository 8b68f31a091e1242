//! Maximum function and file lengths.

use crate::tidy::Violation;
use crate::tidy::ratchets;
use crate::tidy::source::Source;
use crate::tidy::tree::Tree;

/// Lines that fit on a screen, signature and closing bracket included.
const FUNCTION_LINES_MAX: usize = 70;
/// Lines without tests, where the ratchet list names no other bound. Typical are 300.
const FILE_LINES_MAX: u64 = 600;
/// Lines in a test file, which is read test by test.
const TEST_FILE_LINES_MAX: u64 = 900;
/// Lines in a script from [`SCRIPTS`].
const SCRIPT_LINES_MAX: usize = 300;
const SCRIPTS: &str = "dev/tasks/";

/// Finds functions over the limit.
pub(super) fn functions(tree: &Tree) -> Vec<Violation> {
    let all =
        tree.sources.iter().flat_map(|source| lengths(source).into_iter().map(move |found| (source, found)));
    let long = all.filter(|(_, (_, length))| *length > FUNCTION_LINES_MAX);
    long.map(|(source, (line, length))| {
        Violation::new(&source.path, line, format!("{length} lines, {FUNCTION_LINES_MAX} at most"))
    })
    .collect()
}

/// Compares each file's lines, tests excluded, with its bound.
pub(super) fn files(tree: &Tree) -> Vec<Violation> {
    let code = tree.sources.iter().filter(|source| !source.is_test);
    compare_lengths(tree, "lines without tests of", FILE_LINES_MAX, code)
}

/// The same for files that hold nothing but tests.
pub(super) fn test_files(tree: &Tree) -> Vec<Violation> {
    let tests = tree.sources.iter().filter(|source| source.is_test);
    compare_lengths(tree, "lines of tests in", TEST_FILE_LINES_MAX, tests)
}

/// Finds scripts over the limit.
pub(super) fn scripts(tree: &Tree) -> Vec<Violation> {
    let scripts = tree.files.iter().filter(|(path, _)| path.starts_with(SCRIPTS));
    let lengths = scripts.map(|(path, text)| (path, text.lines().count()));
    let long = lengths.filter(|(_, length)| *length > SCRIPT_LINES_MAX);
    long.map(|(path, length)| Violation::new(path, 1, format!("{length} lines, {SCRIPT_LINES_MAX} at most")))
        .collect()
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

/// Returns the line and length of each function with a body, tests and macros included.
fn lengths(source: &Source) -> Vec<(usize, usize)> {
    let tokens = &source.tokens;
    let mut lengths = Vec::new();
    for place in (0..tokens.len()).filter(|place| tokens[*place].is_name("fn")) {
        // In a macro the name may be a variable, `$name`. A function type has none.
        let is_variable = tokens.get(place + 1).is_some_and(|token| token.is_mark('$'));
        let name = tokens.get(place + if is_variable { 2 } else { 1 });
        if name.is_none_or(|token| token.name().is_none()) {
            continue;
        }
        let mut end = place + 1;
        while end < tokens.len() && !tokens[end].is_mark(';') && !tokens[end].is_open('{') {
            end = tokens[end].mate + 1;
        }
        if let Some(body) = tokens.get(end).filter(|token| token.is_open('{')) {
            let line = tokens[place].line;
            lengths.push((line, tokens[body.mate].line - line + 1));
        }
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::Fix;
    use crate::tidy::tree::tests::tree;

    /// Returns a function with this many lines.
    fn function(lines: usize) -> String {
        format!("fn long() -> [u8; 2] {{\n{}}}\n", "    a();\n".repeat(lines - 2))
    }

    #[test]
    fn seventy_lines_pass_and_seventy_one_do_not() {
        let found = |text: &str| {
            functions(&tree(&[("a.rs", text)])).iter().map(ToString::to_string).collect::<String>()
        };
        assert_eq!(found(&function(70)), "");
        assert_eq!(found(&function(71)), "a.rs:1: 71 lines, 70 at most");
        let in_impl = format!("impl A {{\n{}}}", function(80));
        assert_eq!(found(&in_impl), "a.rs:2: 80 lines, 70 at most");
        let in_macro = format!("macro_rules! a {{\n() => {{\n{}}} }}", function(80).replace("long", "$name"));
        assert_eq!(found(&in_macro), "a.rs:3: 80 lines, 70 at most");
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
    fn scripts_have_300_lines_at_most() {
        let text = "a()\n".repeat(301);
        let tree = tree(&[("dev/tasks/a.py", &text), ("dev/tasks/b.py", &text[4..]), ("dev/c.py", &text)]);
        assert_eq!(scripts(&tree), [Violation::new("dev/tasks/a.py", 1, "301 lines, 300 at most")]);
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
