//! Leftovers that must not be committed.

use crate::tidy::Violation;
use crate::tidy::tree::Tree;

const MACROS: [&str; 3] = ["todo", "unimplemented", "dbg"];
const MARKERS: [&str; 3] = ["FIXME", "TODO", "XXX"];
/// Split in halves so that this file does not contain the path itself.
const MACHINE_PATHS: [&str; 2] = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];

/// Finds macros and comments that mark unfinished code.
pub(super) fn markers(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for source in &tree.sources {
        for window in source.tokens.windows(3) {
            let is_macro = window[1].is_mark('!') && !window[2].is_mark('=');
            if let Some(name) = window[0].name().filter(|name| is_macro && MACROS.contains(name)) {
                found.push(Violation::new(&source.path, window[0].line, format!("{name}!")));
            }
        }
        for (index, line) in source.text_without_literals().lines().enumerate() {
            if let Some(marker) = MARKERS.iter().find(|marker| has_word(line, marker)) {
                found.push(Violation::new(&source.path, index + 1, format!("a comment with {marker}")));
            }
        }
    }
    found
}

/// Finds documentation examples that no test runs.
pub(super) fn ignored_examples(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    let documented = |path: &str| path.ends_with(".rs") || path.ends_with(".md");
    for (path, text) in tree.files.iter().filter(|(path, _)| documented(path)) {
        for (index, line) in text.lines().enumerate() {
            let line = line.trim_start().trim_start_matches(['/', '!', '*']).trim_start();
            if line.strip_prefix("```").is_some_and(|info| has_word(info, "ignore")) {
                found.push(Violation::new(path, index + 1, "an example that is not run"));
            }
        }
    }
    found
}

/// Finds absolute paths of a development machine.
pub(super) fn machine_paths(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in &tree.files {
        for (index, line) in text.lines().enumerate() {
            if let Some(place) = MACHINE_PATHS.iter().find(|place| line.contains(**place)) {
                found.push(Violation::new(path, index + 1, format!("holds {place}")));
            }
        }
    }
    found
}

/// Whether the word occurs between non-word characters.
pub(super) fn has_word(line: &str, word: &str) -> bool {
    let belongs = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(start, _)| {
        !line[..start].ends_with(belongs) && !line[start + word.len()..].starts_with(belongs)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::tests::tree;

    #[test]
    fn unfinished_code_is_found() {
        let found = |text: &str| markers(&tree(&[("a.rs", text)])).len();
        for name in MACROS {
            assert_eq!(found(&format!("fn a() {{ {name}!(); }}")), 1, "{name}");
            assert_eq!(found(&format!("fn a() {{ {name} != 1; }}")), 0, "{name}");
        }
        for marker in MARKERS {
            assert_eq!(found(&format!("// {marker}: later\n")), 1, "{marker}");
            assert_eq!(found(&format!("/// {marker} later\nfn a() {{}}")), 1, "{marker}");
            assert_eq!(found(&format!("fn a() {{ \"{marker}\"; }} // {marker}{marker}")), 0, "{marker}");
        }
    }

    #[test]
    fn ignored_examples_are_found() {
        for (path, text, count) in [
            ("a.rs", "/// ```ignore\n/// a();\n/// ```\nfn a() {}", 1),
            ("a.rs", "//! ```rust,ignore\n//! ```\n", 1),
            ("a.md", "```ignore\n```\n", 1),
            ("a.rs", "/// ```no_run\n/// ignore\n/// ```\nfn a() {}", 0),
        ] {
            assert_eq!(ignored_examples(&tree(&[(path, text)])).len(), count, "{text}");
        }
    }

    #[test]
    fn machine_paths_are_found_in_any_file() {
        for place in MACHINE_PATHS {
            assert_eq!(machine_paths(&tree(&[("a.sh", &format!("cd {place}x\n"))])).len(), 1);
        }
        assert_eq!(machine_paths(&tree(&[("a.sh", "cd /tmp/x\n")])), []);
    }
}
