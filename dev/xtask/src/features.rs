//! Compiles the library with every sensible choice of features, and the program with some: each must compile without a warning. Programs
//! that must not compile are rejected with a hint.
//!
//! A feature enables other features, so that many choices are the same build; each build runs once.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::process::Command;

use clap::Args;

use crate::Outcome;
use crate::count::Count;
use crate::hints;
use crate::process;

/// The crate of the features.
pub(crate) const LIBRARY: &str = "sinews";

#[derive(Args)]
pub(crate) struct Options {
    /// Build every possible choice, instead of none, each alone, each pair and all: five times as many builds
    #[arg(long)]
    every: bool,
}

/// Each feature with the features of the same crate that it turns on.
type Features = BTreeMap<String, Vec<String>>;

/// Features that are enabled together.
type Choice = BTreeSet<String>;

/// Features of the program: each that can be left out is left out once. Other checks build it with all, except for brokers.
const PROGRAM_CHOICES: [&str; 3] = ["", "bench", "bench,http3"];

/// The only feature with a system dependency.
const NATIVE_TLS: &str = "native-tls";

/// How to install it.
const NO_OPENSSL: &str = "native-tls: no headers of OpenSSL (apt-get install libssl-dev pkg-config)";

pub(crate) fn run(options: &Options) -> Outcome {
    let mut features = features()?;
    let together = if options.every { features.len() } else { 2 };
    let mut count = Count::default();
    if let Some(why) = lacking() {
        println!("skipped: {why}");
        features.remove(NATIVE_TLS);
        count = count + Count::SKIPPED;
    }
    for choice in choices(&features, together) {
        let names = choice.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        count = count + check(&[LIBRARY, "--lib"], &names)?;
    }
    for names in PROGRAM_CHOICES {
        count = count + check(&["sinews-cli", "--bin", "sinews"], names)?;
    }
    Ok(count + hints::check()?)
}

/// Returns the reason if not all features of the library can be built here.
pub(crate) fn lacking() -> Option<&'static str> {
    let has_own = !cfg!(target_os = "linux") || env::var_os("OPENSSL_DIR").is_some();
    let is_found =
        || process::output_of(Command::new("pkg-config").args(["--modversion", "openssl"])).is_some();
    (!has_own && !is_found()).then_some(NO_OPENSSL)
}

/// Returns arguments for all of the library's features that can be built here.
pub(crate) fn all() -> Result<Vec<String>, String> {
    if lacking().is_none() {
        return Ok(vec!["--all-features".to_owned()]);
    }
    let names = buildable()?.join(",");
    Ok(vec!["--no-default-features".to_owned(), "--features".to_owned(), names])
}

/// Returns the same features in the form of `--features` for the whole workspace.
pub(crate) fn of_workspace() -> Result<String, String> {
    let names = buildable()?.into_iter().map(|name| format!("{LIBRARY}/{name}"));
    Ok(names.collect::<Vec<_>>().join(","))
}

fn buildable() -> Result<Vec<String>, String> {
    let lacks = lacking().is_some();
    Ok(features()?.into_keys().filter(|name| !lacks || name != NATIVE_TLS).collect())
}

/// Builds the targets of a package with these features.
fn check(targets: &[&str], names: &str) -> Outcome {
    let log = process::target().join("xtask/features-one.log");
    let mut command = process::cargo();
    // Excludes dev-dependencies: their features would hide missing features.
    command.args(["clippy", "--package"]).args(targets);
    command.args(["--no-deps", "--no-default-features", "--features"]);
    command.arg(names).args(["--", "-D", "warnings"]).env("CARGO_TERM_COLOR", "never");
    let end = process::run(&mut command, &log, process::COMMAND_LIMIT)?;
    let shown = format!("{}: {}", targets[0], if names.is_empty() { "no feature" } else { names });
    match end.check(&shown, &log) {
        Ok(()) => println!("ok      {shown}"),
        Err(why) => {
            println!("FAILED  {why}");
            return Ok(Count::FAILED);
        }
    }
    Ok(Count::PASSED)
}

/// Returns the features of the manifest except `default`, which is only a choice.
fn features() -> Result<Features, String> {
    let mut command = process::cargo();
    command.args(["metadata", "--no-deps", "--format-version", "1"]);
    let text = process::output_of(&mut command).ok_or("cargo metadata failed")?;
    parse(&text).ok_or_else(|| format!("cargo metadata has no features of {LIBRARY}"))
}

fn parse(metadata: &str) -> Option<Features> {
    let metadata: serde_json::Value = serde_json::from_str(metadata).ok()?;
    let package = metadata["packages"].as_array()?.iter().find(|package| package["name"] == LIBRARY)?;
    let all = package["features"].as_object()?;
    let own = |brought: &serde_json::Value| {
        let brought = brought.as_array().into_iter().flatten().filter_map(|name| name.as_str());
        brought.filter(|name| all.contains_key(*name)).map(str::to_owned).collect()
    };
    let named = all.iter().filter(|(name, _)| *name != "default");
    Some(named.map(|(name, brought)| (name.clone(), own(brought))).collect())
}

/// Returns all builds of at most `together` features, and the build of all features; small builds first.
fn choices(features: &Features, together: usize) -> Vec<Choice> {
    let mut found = BTreeSet::from([Choice::new()]);
    for _ in 0..together {
        let larger = found.iter().flat_map(|choice| {
            features.keys().map(|name| {
                let mut larger = choice.clone();
                turn_on(features, name, &mut larger);
                larger
            })
        });
        found = larger.chain(found.iter().cloned()).collect();
    }
    found.insert(features.keys().cloned().collect());
    let mut found: Vec<Choice> = found.into_iter().collect();
    found.sort_by_key(Choice::len);
    found
}

/// Enables a feature and all features that it enables.
fn turn_on(features: &Features, name: &str, choice: &mut Choice) {
    if choice.insert(name.to_owned()) {
        for brought in features.get(name).into_iter().flatten() {
            turn_on(features, brought, choice);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: &str = r#"{"packages": [{"name": "other", "features": {}}, {"name": "sinews", "features": {
        "default": ["tokio"], "tokio": ["dep:tokio"], "deflate": [], "axum": ["hyper", "tokio/rt"],
        "hyper": ["tokio", "dep:hyper"]}}]}"#;

    fn names(choices: &[Choice]) -> Vec<String> {
        choices.iter().map(|choice| choice.iter().cloned().collect::<Vec<_>>().join(",")).collect()
    }

    #[test]
    fn choices_that_are_the_same_build_are_made_once() {
        let features = parse(METADATA).expect("the text is metadata of the crate");
        let builds = ["", "deflate", "tokio", "deflate,tokio", "hyper,tokio", "axum,hyper,tokio"];
        let larger = ["deflate,hyper,tokio", "axum,deflate,hyper,tokio"];
        assert_eq!(names(&choices(&features, 2)), [&builds[..], &larger].concat());
    }

    #[test]
    fn all_features_are_one_of_the_choices() {
        let features = parse(METADATA).expect("the text is metadata of the crate");
        assert_eq!(names(&choices(&features, 0)), ["", "axum,deflate,hyper,tokio"]);
    }

    #[test]
    fn invalid_metadata_is_rejected() {
        assert!(parse(r#"{"packages": []}"#).is_none());
        assert!(parse("").is_none());
    }
}
