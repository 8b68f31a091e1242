//! `cargo xtask quick`: the inner loop. Format and rules of the repository; lints and unit tests of the packages whose files
//! changed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use clap::Args;
use serde_json::Value;

use crate::Outcome;
use crate::count::Count;
use crate::process;
use crate::tidy;

#[derive(Args)]
pub(crate) struct Options {
    /// Commit that the work tree is compared with. Files that git does not know count as changed
    #[arg(long, value_name = "COMMIT", default_value = "HEAD")]
    since: String,
    /// Packages to check, in place of those that changed
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    package: Vec<String>,
}

/// A package of the workspace.
#[derive(Debug, PartialEq)]
struct Package {
    name: String,
    has_library: bool,
}

/// Packages by their folders, as the repository names these.
type Packages = BTreeMap<String, Package>;

pub(crate) fn run(options: &Options) -> Outcome {
    let packages = packages()?;
    let changed = if options.package.is_empty() {
        owners(&packages, &changed_files(&options.since)?)
    } else {
        let is_named = |package: &&Package| options.package.contains(&package.name);
        packages.values().filter(is_named).collect()
    };
    let names: Vec<&str> = changed.iter().map(|package| package.name.as_str()).collect();
    println!("packages: {}", if names.is_empty() { "none changed".to_owned() } else { names.join(", ") });
    let mut count = timed("fmt", || cargo("fmt", &["fmt", "--all", "--check"], &[]))?;
    count = count + timed("tidy", tidy::run)?;
    if names.is_empty() {
        return Ok(count);
    }
    count = count + timed("clippy", || cargo("clippy", &["clippy", "--all-targets"], &names))?;
    let with_library: Vec<&str> =
        changed.iter().filter(|package| package.has_library).map(|package| package.name.as_str()).collect();
    if !with_library.is_empty() {
        count = count + timed("unit tests", || cargo("lib", &["test", "--lib"], &with_library))?;
    }
    Ok(count + timed("unit tests of programs", || cargo("bins", &["test", "--bins"], &names))?)
}

fn timed(name: &str, step: impl FnOnce() -> Outcome) -> Outcome {
    let started = Instant::now();
    let outcome = step();
    println!("{name}: {:.1} s", started.elapsed().as_secs_f64());
    outcome
}

/// A command of cargo for these packages: its tests count, or the command itself where it has none.
fn cargo(name: &str, arguments: &[&str], packages: &[&str]) -> Outcome {
    let log = process::target().join(format!("xtask/quick-{name}.log"));
    let mut command = process::cargo();
    command.args(arguments).args(packages.iter().flat_map(|package| ["--package", package]));
    if name == "clippy" {
        command.args(["--", "-D", "warnings"]);
    }
    let end = process::run(&mut command, &log, process::COMMAND_LIMIT)?.check(name, &log);
    let count = Count::parse_cargo_test(&std::fs::read_to_string(&log).unwrap_or_default());
    match end {
        Ok(()) if count == Count::default() => Ok(Count::PASSED),
        Ok(()) => Ok(count),
        Err(why) => {
            println!("FAIL {why}");
            Ok(if count.failed == 0 { count + Count::FAILED } else { count })
        }
    }
}

fn changed_files(since: &str) -> Result<Vec<String>, String> {
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.current_dir(process::root()).args(arguments);
        process::output_of(&mut command).ok_or_else(|| format!("git {} failed", arguments.join(" ")))
    };
    let known = git(&["diff", "--name-only", since])?;
    let unknown = git(&["ls-files", "--others", "--exclude-standard"])?;
    Ok(known.lines().chain(unknown.lines()).map(str::to_owned).collect())
}

/// The packages that the files belong to: for each file the one with the longest folder.
fn owners<'a>(packages: &'a Packages, files: &[String]) -> Vec<&'a Package> {
    let owner = |file: &String| {
        let holds = |folder: &&String| file.strip_prefix(*folder).is_some_and(|rest| rest.starts_with('/'));
        packages.keys().filter(holds).max_by_key(|folder| folder.len())
    };
    let mut folders: Vec<_> = files.iter().filter_map(owner).collect();
    folders.sort();
    folders.dedup();
    folders.into_iter().map(|folder| &packages[folder]).collect()
}

fn packages() -> Result<Packages, String> {
    let mut command = process::cargo();
    command.args(["metadata", "--no-deps", "--format-version", "1"]);
    let text = process::output_of(&mut command).ok_or("cargo metadata failed")?;
    let metadata: Value = serde_json::from_str(&text).map_err(|error| format!("cargo metadata: {error}"))?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    Ok(packages.filter_map(package).collect())
}

fn package(metadata: &Value) -> Option<(String, Package)> {
    let manifest = PathBuf::from(metadata["manifest_path"].as_str()?);
    let folder = manifest.parent()?.strip_prefix(process::root()).ok()?.to_str()?.to_owned();
    let is_library =
        |target: &Value| target["kind"].as_array().is_some_and(|kinds| kinds.contains(&"lib".into()));
    let has_library = metadata["targets"].as_array()?.iter().any(is_library);
    Some((folder, Package { name: metadata["name"].as_str()?.to_owned(), has_library }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_files_belong_to_the_package_with_the_longest_folder() {
        let package = |name: &str| Package { name: name.to_owned(), has_library: false };
        let packages =
            ["dev/bench", "dev/bench/peers", "crates/cli"].map(|name| (name.to_owned(), package(name)));
        let files = [
            "dev/bench/peers/src/main.rs",
            "README.md",
            "crates/cli/src/a.rs",
            "crates/cli/b",
            "dev/benches/x",
        ];
        let packages = Packages::from(packages);
        let found = owners(&packages, &files.map(str::to_owned));
        assert_eq!(found, [&package("crates/cli"), &package("dev/bench/peers")]);
    }

    #[test]
    fn packages_of_the_workspace_are_known_by_their_folders() {
        let packages = packages().expect("cargo metadata works here");
        let library = Package { name: "sinews-proto".to_owned(), has_library: true };
        assert_eq!(packages.get("crates/proto"), Some(&library));
        assert_eq!(packages.get("dev/xtask").map(|package| package.has_library), Some(false));
    }
}
