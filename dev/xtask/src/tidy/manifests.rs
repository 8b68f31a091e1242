//! Dependency rules: one place for versions and features, a reason for each, and few packages.

use std::collections::BTreeSet;

use crate::process;
use crate::tidy::Violation;
use crate::tidy::leftovers::has_word;
use crate::tidy::tree::Tree;

/// The workspaces: the product with its checks, and the bindings.
const ROOTS: [&str; 2] = ["Cargo.toml", "bindings/Cargo.toml"];
const REASONS: &str = "docs/book/src/internals/dependencies.md";

/// Requires dependencies from the workspace in each manifest, so that no crate has two versions. Packages
/// outside the workspace may refer to our own crates by their path.
pub(super) fn inherited(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    let members = |path: &str| path.ends_with("/Cargo.toml") && !ROOTS.contains(&path);
    for (path, text) in tree.files.iter().filter(|(path, _)| members(path)) {
        for (name, line, value) in dependencies(text) {
            if !value.contains("workspace") && !value.contains("path =") {
                found.push(Violation::new(path, line, format!("{name} is not taken from the workspace")));
            }
        }
    }
    found
}

/// Requires a name and a reason for each third-party dependency in the book (`REASONS`).
pub(super) fn justified(tree: &Tree) -> Vec<Violation> {
    let reasons = tree.file(REASONS).unwrap_or_default();
    let mut found = Vec::new();
    for root in ROOTS {
        for (name, line, value) in dependencies(tree.file(root).unwrap_or_default()) {
            if !value.contains("path =") && !reasons.lines().any(|line| has_word(line, name)) {
                found.push(Violation::new(root, line, format!("{name} has no reason in {REASONS}")));
            }
        }
    }
    found
}

/// The program's packages, our own included, with default features and on Linux.
///
/// # Errors
/// `cargo tree` fails, or `Cargo.lock` is out of date.
pub(super) fn program_packages() -> Result<BTreeSet<String>, String> {
    let mut command = process::cargo();
    command.args(["tree", "--locked", "--package", "sinews-cli", "--edges", "normal", "--prefix", "none"]);
    command.args(["--target", "x86_64-unknown-linux-gnu"]);
    let listed = process::output_of(&mut command).ok_or("cargo tree --locked --package sinews-cli fails")?;
    Ok(names_and_versions(&listed))
}

/// Name and version are a line's first two words. A package appears once for each package that needs it.
fn names_and_versions(listed: &str) -> BTreeSet<String> {
    let words = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
    listed.lines().filter(|line| !line.is_empty()).map(words).collect()
}

/// Limits the program's packages, which determine how long a user's first build takes.
pub(super) fn few(packages: &BTreeSet<String>) -> Vec<Violation> {
    let count = packages.len();
    let what = || format!("the program has {count} packages, more than {PACKAGES_MAX}: cargo tree -e normal");
    (count > PACKAGES_MAX).then(|| Violation::new(PROGRAM, 1, what())).into_iter().collect()
}

const PROGRAM: &str = "crates/cli/Cargo.toml";

/// A new dependency replaces another one, or a reason for more packages is given in the book (`REASONS`).
const PACKAGES_MAX: usize = 142;

/// Returns each dependency's name, line and declaration in a manifest with one line per dependency.
fn dependencies(manifest: &str) -> Vec<(&str, usize, &str)> {
    let mut inside = false;
    let mut found = Vec::new();
    for (index, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            inside = line.trim().ends_with("dependencies]");
        } else if let Some((key, value)) = line.split_once('=').filter(|_| inside && !line.starts_with('#')) {
            // `name.workspace = true` is `name = { workspace = true }`.
            let (name, dotted) = key.trim().split_once('.').unwrap_or_else(|| (key.trim(), ""));
            found.push((name, index + 1, if dotted.is_empty() { value } else { dotted }));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::tests::tree;

    #[test]
    fn a_dependency_needs_a_reason() {
        let manifest = "[package]\nname = \"a\"\n[workspace.dependencies]\nours = { path = \"a\" }\n\
            mio = { version = \"1\" }\nsha1 = \"1\"\n\n[profile.release]\nlto = true\n";
        let found =
            justified(&tree(&[(ROOTS[0], manifest), (REASONS, "`sha1` is there for keys; mioglobin")]));
        assert_eq!(found, [Violation::new(ROOTS[0], 5, format!("mio has no reason in {REASONS}"))]);
        assert_eq!(justified(&tree(&[(ROOTS[0], manifest)])).len(), 2);
    }

    #[test]
    fn program_has_few_packages() {
        let listed = "a v1.0.0 (/path/a)\nb v1.0.0\nb v2.0.0 (proc-macro)\n\nb v1.0.0 (*)\n";
        let packages = names_and_versions(listed);
        assert_eq!(
            packages.iter().map(String::as_str).collect::<Vec<_>>(),
            ["a v1.0.0", "b v1.0.0", "b v2.0.0"]
        );
        let set = |count: usize| (0..count).map(|number| number.to_string()).collect();
        assert_eq!(few(&set(PACKAGES_MAX)), []);
        let found = few(&set(PACKAGES_MAX + 1));
        assert!(found.len() == 1 && found[0].what.contains("143 packages, more than 142"), "{found:?}");
    }

    #[test]
    fn a_member_takes_its_dependencies_from_the_workspace() {
        let member = "[package]\nname = \"a\"\n[dependencies]\nmio.workspace = true\n\
            bytes = { workspace = true, features = [\"x\"] }\nslab = \"1\"\nours = { path = \"../a\" }\n[dev-dependencies]\nrand = \"1\"\n";
        let found = inherited(&tree(&[("crates/a/Cargo.toml", member)]));
        let lines: Vec<usize> = found.iter().map(|violation| violation.line).collect();
        assert_eq!(lines, [6, 9]);
    }
}
