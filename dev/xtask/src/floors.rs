//! The library with the oldest version of each dependency that its manifest allows: it must compile.
//!
//! The library's crates are copied without their dev-dependencies, which would raise the versions, into a workspace of
//! their own. Cargo resolves it with `-Z direct-minimal-versions`, which `RUSTC_BOOTSTRAP` allows on a stable toolchain;
//! the crates themselves are compiled as usual.

use std::fs;
use std::path::Path;

use crate::Outcome;
use crate::count::Count;
use crate::{features, process};

/// The library and the crates below it.
const CRATES: [&str; 5] = ["simd", "http", "proto", "session", "sinews"];

/// Crates of the workspace that the copy lacks.
const ABSENT: &[&str] = &[
    "sinews-engine",
    "sinews-stream",
    "sinews-brokers",
    "sinews-server",
    "sinews-testkit",
    "sinews-conformance",
    "sinews-strace",
];

pub(crate) fn run() -> Outcome {
    let dir = process::target().join("xtask/floors");
    copy(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let log = process::target().join("xtask/floors.log");

    let mut resolve = process::cargo();
    resolve.current_dir(&dir).env("RUSTC_BOOTSTRAP", "1");
    resolve.args(["-Zdirect-minimal-versions", "generate-lockfile"]);
    process::run(&mut resolve, &log, process::COMMAND_LIMIT)?.check("resolve the oldest versions", &log)?;

    let mut check = process::cargo();
    check.current_dir(&dir).env("CARGO_TARGET_DIR", dir.join("target"));
    check.args(["check", "--locked", "--package", features::LIBRARY]).args(features::all()?);
    process::run(&mut check, &log, process::COMMAND_LIMIT)?.check("the oldest versions", &log)?;
    println!("ok      the oldest versions that the manifest allows");
    Ok(features::lacking().map_or(Count::PASSED, |why| {
        println!("skipped: {why}");
        Count::PASSED + Count::SKIPPED
    }))
}

/// Creates the workspace; compiled files of an earlier run stay.
fn copy(dir: &Path) -> std::io::Result<()> {
    let root = process::root();
    for name in CRATES {
        let (from, to) = (root.join("crates").join(name), dir.join("crates").join(name));
        if to.exists() {
            fs::remove_dir_all(&to)?;
        }
        copy_all(&from.join("src"), &to.join("src"))?;
        let manifest = fs::read_to_string(from.join("Cargo.toml"))?;
        fs::write(to.join("Cargo.toml"), without_tests(&manifest))?;
        if from.join("README.md").exists() {
            fs::copy(from.join("README.md"), to.join("README.md"))?;
        }
    }
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    fs::write(dir.join("Cargo.toml"), workspace(&manifest))
}

fn copy_all(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

/// Removes the sections of a manifest that only tests, benches and examples need.
fn without_tests(manifest: &str) -> String {
    sections(manifest, |head| {
        !["[dev-dependencies", "[[bench", "[[test", "[[example"].iter().any(|test| head.starts_with(test))
    })
}

/// The workspace's manifest for the copied crates: its package, dependencies and lints.
fn workspace(manifest: &str) -> String {
    let kept = sections(manifest, |head| head.starts_with("[workspace."));
    let is_absent = |line: &&str| !ABSENT.iter().any(|name| line.starts_with(&format!("{name} =")));
    let kept: Vec<&str> = kept.lines().filter(is_absent).collect();
    let members: Vec<String> = CRATES.iter().map(|name| format!("\"crates/{name}\"")).collect();
    format!("[workspace]\nresolver = \"3\"\nmembers = [{}]\n\n{}\n", members.join(", "), kept.join("\n"))
}

/// Returns the sections of a manifest with matching headings.
fn sections(manifest: &str, wanted: impl Fn(&str) -> bool) -> String {
    let (mut kept, mut is_wanted) = (String::new(), false);
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_wanted = wanted(line);
        }
        if is_wanted {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dev_dependencies_and_other_crates_are_left_out() {
        let manifest = "[package]\nname = \"a\"\n[dev-dependencies]\nb = \"1\"\n[features]\nc = []\n";
        assert_eq!(without_tests(manifest), "[package]\nname = \"a\"\n[features]\nc = []\n");
        let manifest = "[workspace]\nmembers = [\n]\n[workspace.dependencies]\nsinews-engine = {}\nd = \"1\"\n\
                        [profile.dev]\ndebug = 1\n";
        let made = workspace(manifest);
        assert!(made.ends_with("[workspace.dependencies]\nd = \"1\"\n"), "{made}");
    }
}
