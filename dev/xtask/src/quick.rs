//! `cargo xtask quick`: the inner loop. Format and rules for the repository; lints and unit tests for the packages
//! whose files changed. Clippy, not rustc, compiles the unit tests, so that a package is compiled once for both.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::Instant;

use clap::Args;
use serde_json::Value;

use crate::Outcome;
use crate::count::Count;
use crate::process::{self, git};
use crate::tidy;

#[derive(Args)]
pub(crate) struct Options {
    /// Commit that the work tree is compared with. Files that git does not know count as changed
    #[arg(long, value_name = "COMMIT", default_value = "HEAD")]
    since: String,
    /// Packages to check, in place of the changed packages
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    package: Vec<String>,
}

/// A workspace package.
#[derive(Debug, PartialEq)]
struct Package {
    name: String,
    has_library: bool,
    has_program: bool,
}

/// Packages by their folders, as the repository names these.
type Packages = BTreeMap<String, Package>;

pub(crate) fn run(options: &Options) -> Outcome {
    let packages: Packages = process::packages()?.iter().filter_map(package).collect();
    let known = git(&["diff", "--name-only", &options.since])
        .ok_or_else(|| format!("git diff --name-only {} failed", options.since))?;
    let unknown = git(&["ls-files", "--others", "--exclude-standard"]).ok_or("git ls-files failed")?;
    let files = || known.lines().chain(unknown.lines());
    let changed = if options.package.is_empty() {
        owners(&packages, files())
    } else {
        packages.values().filter(|package| options.package.contains(&package.name)).collect()
    };
    let all = names(&changed, |_| true);
    println!("packages: {}", if all.is_empty() { "none changed".to_owned() } else { all.join(", ") });
    let outside = owners(&packages, files().filter(|file| is_outside_of_unit_tests(file)));
    let outside = names(&outside, |package| all.contains(&package.name.as_str()));
    thread::scope(|scope| {
        // One thread, as the compiler needs the other core.
        let rules = scope.spawn(|| -> Outcome {
            let format = timed("fmt", || cargo("fmt", &["fmt", "--all", "--check"], &[]))?;
            Ok(format + timed("tidy", tidy::run)?)
        });
        let mut count = Count::default();
        let libraries = names(&changed, |package| package.has_library);
        if !libraries.is_empty() {
            count = count + timed("library", || cargo("lib", &["test", "--lib"], &libraries))?;
        }
        let programs = names(&changed, |package| package.has_program);
        if !programs.is_empty() {
            count = count + timed("programs", || cargo("bins", &["test", "--bins"], &programs))?;
        }
        if !outside.is_empty() {
            count = count + timed("tests, examples and benches", || cargo("clippy", CLIPPY, &outside))?;
        }
        Ok(count + rules.join().map_err(|_panic| "the check of the format failed")??)
    })
}

/// Lints for targets other than libraries and programs. These tests run in `cargo xtask test`.
const CLIPPY: &[&str] = &["clippy", "--tests", "--examples", "--benches"];

/// Returns the names of the packages that fulfill a condition.
fn names<'a>(packages: &[&'a Package], condition: impl Fn(&Package) -> bool) -> Vec<&'a str> {
    packages.iter().filter(|package| condition(package)).map(|package| package.name.as_str()).collect()
}

fn is_outside_of_unit_tests(file: &str) -> bool {
    ["/tests/", "/examples/", "/benches/"].iter().any(|folder| file.contains(folder))
        && !file.contains("/src/")
}

fn timed(name: &str, step: impl FnOnce() -> Outcome) -> Outcome {
    let started = Instant::now();
    let outcome = step();
    println!("{name}: {:.1} s", started.elapsed().as_secs_f64());
    outcome
}

/// Runs a cargo command for these packages: its tests count, or the command itself where it has none. Warnings fail in
/// tests, which Clippy compiles.
fn cargo(name: &str, arguments: &[&str], packages: &[&str]) -> Outcome {
    let log = process::log(&format!("quick-{name}"));
    let is_test = arguments[0] == "test";
    let mut command = if is_test { process::linting_cargo()? } else { process::cargo() };
    // The profile is for a build from nothing. Here a build differs from the last one by some lines.
    command.env("CARGO_INCREMENTAL", "1");
    command.args(arguments).args(packages.iter().flat_map(|package| ["--package", package]));
    if arguments[0] == "clippy" {
        command.args(["--", "-D", "warnings"]);
    }
    let end = process::run(&mut command, &log, process::COMMAND_LIMIT)?.check(name, &log);
    let text = process::read(&log);
    let count = Count::parse_cargo_test(&text);
    let warned = is_test && process::warnings(&text).next().is_some();
    let end = match end {
        Ok(()) if warned => Err(format!("{name}: warnings, see {}\n{text}", log.display())),
        end => end,
    };
    Ok(match end {
        Ok(()) if count == Count::default() => Count::PASSED,
        Ok(()) => count,
        Err(why) => Count { failed: count.failed.max(Count::fail(why).failed), ..count },
    })
}

/// The packages that the files belong to: for each file the one with the longest folder.
fn owners<'a, 'b>(packages: &'a Packages, files: impl Iterator<Item = &'b str>) -> Vec<&'a Package> {
    let owner = |file: &'b str| {
        let holds = |folder: &&String| file.strip_prefix(*folder).is_some_and(|rest| rest.starts_with('/'));
        packages.keys().filter(holds).max_by_key(|folder| folder.len())
    };
    let mut folders: Vec<_> = files.filter_map(owner).collect();
    folders.sort();
    folders.dedup();
    folders.into_iter().map(|folder| &packages[folder]).collect()
}

fn package(metadata: &Value) -> Option<(String, Package)> {
    let manifest = Path::new(metadata["manifest_path"].as_str()?);
    let folder = manifest.parent()?.strip_prefix(process::root()).ok()?.to_str()?.to_owned();
    let targets = metadata["targets"].as_array()?;
    let has = |wanted: &str| {
        let is_wanted =
            |target: &Value| target["kind"].as_array().is_some_and(|kinds| kinds.contains(&wanted.into()));
        targets.iter().any(is_wanted)
    };
    let name = metadata["name"].as_str()?.to_owned();
    Some((folder, Package { name, has_library: has("lib"), has_program: has("bin") }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_files_belong_to_the_package_with_the_longest_folder() {
        let package = |name: &str| Package { name: name.to_owned(), has_library: false, has_program: true };
        let folders = ["dev/bench", "dev/bench/peers", "crates/cli"];
        let packages = Packages::from(folders.map(|name| (name.to_owned(), package(name))));
        let files = [
            "dev/bench/peers/src/main.rs",
            "README.md",
            "crates/cli/src/a.rs",
            "crates/cli/b",
            "dev/benches/x",
        ];
        let found = owners(&packages, files.into_iter());
        assert_eq!(found, [&package("crates/cli"), &package("dev/bench/peers")]);
    }

    #[test]
    fn packages_of_the_workspace_are_known_by_their_folders() {
        let packages = process::packages().expect("cargo metadata works here");
        let packages: Packages = packages.iter().filter_map(package).collect();
        let library = Package { name: "sinews-proto".to_owned(), has_library: true, has_program: false };
        assert_eq!(packages.get("crates/proto"), Some(&library));
        assert_eq!(packages.get("dev/xtask").map(|package| package.has_library), Some(false));
    }

    #[test]
    fn files_of_integration_tests_are_outside_of_unit_tests() {
        for (file, is_outside) in [
            ("crates/hub/tests/loopback/embed.rs", true),
            ("crates/sinews/examples/a.rs", true),
            ("crates/proto/benches/b.rs", true),
            ("crates/hub/src/lib.rs", false),
            ("crates/stream/src/tests/many.rs", false),
            ("docs/tests.md", false),
        ] {
            assert_eq!(is_outside_of_unit_tests(file), is_outside, "{file}");
        }
    }
}
