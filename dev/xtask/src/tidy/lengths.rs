//! Maximum lengths of functions and files.

use std::collections::BTreeMap;

use crate::tidy::Violation;
use crate::tidy::source::Source;
use crate::tidy::tree::Tree;

/// Lines that fit on a screen, signature and closing bracket included.
const FUNCTION_LINES_MAX: usize = 70;
/// Lines without tests. Typical are 300.
const FILE_LINES_MAX: usize = 1000;
/// The longer functions, with their exact lengths, which may only shrink. A ratchet: a long function may
/// stay, a short function cannot silently become long.
const LONG_FUNCTIONS: &str = "dev/xtask/tidy-functions.txt";

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
            None => found.push(at(format!("{name} is short or gone: remove the entry"))),
            Some((now, ..)) if now < length => {
                found.push(at(format!("{name} shrank: lower the entry to {now}")))
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

pub(super) fn files(tree: &Tree) -> Vec<Violation> {
    let code = tree.sources.iter().filter(|source| !source.is_test);
    code.filter(|source| source.lines_of_code() > FILE_LINES_MAX)
        .map(|source| {
            let what = format!("{} lines without tests, {FILE_LINES_MAX} at most", source.lines_of_code());
            Violation::new(&source.path, 1, what)
        })
        .collect()
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
        let code = "fn a() {}\n".repeat(1000);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "fn b() {}\n".repeat(50));
        assert_eq!(files(&tree(&[("a.rs", &format!("{code}{tests}"))])), []);
        assert_eq!(files(&tree(&[("a.rs", &format!("{code}fn c() {{}}\n{tests}"))])).len(), 1);
    }
}
