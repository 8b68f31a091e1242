//! The repository's files as input for the rules.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::tidy::Violation;
use crate::tidy::source::Source;

/// Folders without source files: builds, installations, findings of fuzzing.
const SKIPPED: [&str; 7] = [".git", ".cache", "target", "node_modules", "corpus", "artifacts", "__pycache__"];

pub(super) struct Tree {
    /// Each text file's path, relative to the root, and content.
    pub(super) files: Vec<(String, String)>,
    /// The Rust files that could be parsed.
    pub(super) sources: Vec<Source>,
    /// Paths to non-text files, such as pictures.
    binaries: Vec<String>,
    /// Rust files that do not parse: they would otherwise pass every rule.
    unreadable: Vec<Violation>,
}

impl Tree {
    /// Reads every file below `root`, committed or not, so that uncommitted files count.
    pub(super) fn read(root: &Path) -> Result<Self, String> {
        let (mut files, mut binaries) = (Vec::new(), Vec::new());
        collect(root, "", &mut files, &mut binaries)?;
        files.sort();
        Ok(Self { binaries, ..Self::new(files) })
    }

    pub(super) fn new(files: Vec<(String, String)>) -> Self {
        let mut sources = Vec::new();
        let mut unreadable = Vec::new();
        for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".rs")) {
            match Source::parse(path, text) {
                Ok(source) => sources.push(source),
                Err(violation) => unreadable.push(violation),
            }
        }
        let test_modules: BTreeSet<String> = sources.iter().flat_map(Source::test_modules).collect();
        for source in &mut sources {
            source.is_test |= test_modules.iter().any(|module| {
                source.path == format!("{module}.rs") || source.path.starts_with(&format!("{module}/"))
            });
        }
        Self { files, sources, binaries: Vec::new(), unreadable }
    }

    /// Returns the product crates' Rust files, tests excluded.
    pub(super) fn product(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().filter(|source| source.path.starts_with("crates/") && !source.is_test)
    }

    /// Whether a file has this path, or a folder with files.
    pub(super) fn has(&self, path: &str) -> bool {
        let is_at = |file: &String| {
            file.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        path.is_empty() || self.files.iter().map(|(file, _)| file).chain(&self.binaries).any(is_at)
    }

    /// Returns a file's content.
    pub(super) fn file(&self, path: &str) -> Option<&str> {
        self.files.iter().find(|(name, _)| name == path).map(|(_, text)| &**text)
    }
}

pub(super) fn unreadable(tree: &Tree) -> Vec<Violation> {
    tree.unreadable.clone()
}

fn collect(
    dir: &Path,
    prefix: &str,
    files: &mut Vec<(String, String)>,
    binaries: &mut Vec<String>,
) -> Result<(), String> {
    let fault = |error| format!("{}: {error}", dir.display());
    for entry in fs::read_dir(dir).map_err(fault)? {
        let entry = entry.map_err(fault)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().map_err(fault)?;
        if SKIPPED.contains(&&*name) {
            continue;
        }
        let path = format!("{prefix}{name}");
        if kind.is_dir() {
            collect(&entry.path(), &format!("{path}/"), files, binaries)?;
        } else if kind.is_file() {
            let bytes = fs::read(entry.path()).map_err(fault)?;
            match String::from_utf8(bytes) {
                Ok(text) => files.push((path, text)),
                // Pictures and other binary files have no lines to check.
                Err(_) => binaries.push(path),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::process;

    /// Creates a tree from the given paths and texts.
    pub(in crate::tidy) fn tree(files: &[(&str, &str)]) -> Tree {
        Tree::new(files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect())
    }

    #[test]
    fn unparsable_rust_file_is_found() {
        let found = unreadable(&tree(&[("a.rs", "fn a() {\n    (\n}\n"), ("b.rs", "fn b() {}")]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "a.rs");
    }

    #[test]
    fn test_modules_in_files_of_their_own_are_tests() {
        let tree = tree(&[
            ("crates/a/src/lib.rs", "#[cfg(test)]\nmod tests;\nmod code;\n"),
            ("crates/a/src/tests.rs", "mod more;"),
            ("crates/a/src/tests/more.rs", ""),
            ("crates/a/src/code.rs", "#[cfg(test)] mod checks;"),
            ("crates/a/src/code/checks.rs", ""),
            ("crates/a/tests/outside.rs", ""),
        ]);
        let code: Vec<&str> =
            tree.sources.iter().filter(|source| !source.is_test).map(|source| &*source.path).collect();
        assert_eq!(code, ["crates/a/src/lib.rs", "crates/a/src/code.rs"]);
    }

    #[test]
    fn the_repository_itself_is_read() {
        let tree = Tree::read(&process::root()).expect("the repository can be read");
        assert!(tree.file("dev/xtask/src/tidy/tree.rs").is_some());
        assert!(tree.file("Cargo.toml").is_some());
    }
}
