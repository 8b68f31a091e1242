//! Dependency rules: one place for versions and features, and a reason for each.

use crate::tidy::Violation;
use crate::tidy::leftovers::has_word;
use crate::tidy::tree::Tree;

const ROOT: &str = "Cargo.toml";
const REASONS: &str = "docs/book/src/internals/dependencies.md";

/// Requires dependencies from the workspace in each manifest, so that no crate has two versions. Packages
/// outside of the workspace may refer to our own crates by their path.
pub(super) fn inherited(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (path, text) in tree.files.iter().filter(|(path, _)| path.ends_with("/Cargo.toml")) {
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
    let manifest = tree.file(ROOT).unwrap_or_default();
    let foreign = dependencies(manifest).into_iter().filter(|(.., value)| !value.contains("path ="));
    foreign
        .filter(|(name, ..)| !reasons.lines().any(|line| has_word(line, name)))
        .map(|(name, line, _)| Violation::new(ROOT, line, format!("{name} has no reason in {REASONS}")))
        .collect()
}

/// Name, line and declaration of each dependency in a manifest that keeps each on one line.
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
        let found = justified(&tree(&[(ROOT, manifest), (REASONS, "`sha1` is there for keys; mioglobin")]));
        assert_eq!(found, [Violation::new(ROOT, 5, format!("mio has no reason in {REASONS}"))]);
        assert_eq!(justified(&tree(&[(ROOT, manifest)])).len(), 2);
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
