//! Compares the library's public API with the lists in the repository, so that every change is reviewed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use public_api::Builder;

use crate::Outcome;
use crate::count::Count;
use crate::features;
use crate::process::{self, at};

/// The library and the crates below it: re-exports make their API public too.
const CRATES: [&str; 5] = ["sinews", "sinews-http", "sinews-proto", "sinews-session", "sinews-simd"];

/// Where the lists are.
const LISTS: &str = "crates/sinews/api";

#[derive(Args)]
pub(crate) struct Options {
    /// Write the lists anew, after an intended change
    #[arg(long)]
    bless: bool,
}

/// Rustdoc's output for a crate.
struct Api {
    /// Format version of rustdoc's output; another version may name the same item differently.
    format: u64,
    items: String,
}

pub(crate) fn run(options: &Options) -> Outcome {
    let mut count = Count::default();
    for name in CRATES {
        if let Some(why) = features::lacking().filter(|_| name == CRATES[0]) {
            count = count + Count::skip(format!("{name}: {why}"));
            continue;
        }
        match read(&document(name)?) {
            Ok(api) => count = count + settle(name, &api, options.bless)?,
            Err(why) => {
                let what = "this compiler's rustdoc writes an unsupported format";
                return Ok(count + Count::skip(format!("{name}: {what} ({why}); {HOW}")));
            }
        }
    }
    Ok(count)
}

/// How to install a suitable compiler.
const HOW: &str = "rustup toolchain install 1.95 && cargo +1.95 xtask api";

/// Runs rustdoc with JSON output for a crate. The output format is not stable yet; the compiler is.
fn document(name: &str) -> Result<PathBuf, String> {
    // Uses a separate directory: cargo reruns build scripts when this variable changes.
    let target = process::target().join("api");
    let mut command = process::cargo();
    command.args(["rustdoc", "--package", name, "--lib", "--all-features", "--target-dir"]).arg(&target);
    command.args(["--", "-Z", "unstable-options", "--output-format", "json", "--cap-lints", "allow"]);
    command.env("RUSTC_BOOTSTRAP", "1").env("CARGO_TERM_COLOR", "never");
    process::succeed(&mut command, &format!("rustdoc of {name}"), &process::log(&format!("api-{name}")))?;
    Ok(target.join("doc").join(name.replace('-', "_")).with_extension("json"))
}

fn read(json: &Path) -> Result<Api, String> {
    let text = fs::read_to_string(json).map_err(at(json))?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let format = value["format_version"].as_u64().ok_or("it has no version")?;
    let built = Builder::from_rustdoc_json(json).omit_blanket_impls(true).build();
    let items = built.map_err(|error| error.to_string())?;
    let lines = items.items().map(ToString::to_string).filter(|line| !is_noise(line));
    Ok(Api { format, items: lines.map(|line| line + "\n").collect() })
}

/// Whether a line is a derived implementation that callers do not depend on. `Send`, `Sync` and `Unpin` stay:
/// their loss breaks callers.
fn is_noise(line: &str) -> bool {
    let noise = ["Freeze", "UnsafeUnpin", "RefUnwindSafe", "UnwindSafe", "StructuralPartialEq"];
    line.starts_with("impl") && noise.iter().any(|noise| line.contains(&format!("{noise} for ")))
}

/// Compares a crate with its list, or writes the list.
fn settle(name: &str, api: &Api, bless: bool) -> Outcome {
    let path = process::root().join(LISTS).join(name).with_extension("txt");
    let listed = process::read(&path);
    let head =
        format!("# {name} with all features, format {}; `cargo xtask api --bless` writes it\n", api.format);
    if bless {
        process::write(&path, head + &api.items)?;
        println!("written {LISTS}/{name}.txt: {} items", api.items.lines().count());
        return Ok(Count::PASSED);
    }
    match listed.strip_prefix(&head) {
        Some(items) => Ok(compare(name, items, &api.items)),
        None if listed.starts_with('#') => {
            let what = format!("the list is of another format than this compiler's, {}", api.format);
            Ok(Count::skip(format!("{name}: {what}; {HOW}")))
        }
        None => Err(format!("{} is not a list; run cargo xtask api --bless", path.display())),
    }
}

fn compare(name: &str, listed: &str, found: &str) -> Count {
    let changes = changes(listed, found);
    if changes.is_empty() {
        println!("ok      {name}");
        return Count::PASSED;
    }
    println!("FAILED  {name}: {} changes; if they are meant: cargo xtask api --bless", changes.len());
    changes.iter().for_each(|line| println!("  {line}"));
    Count::FAILED
}

/// Returns the removed and the added lines.
fn changes(listed: &str, found: &str) -> Vec<String> {
    let (listed, found): (BTreeSet<&str>, BTreeSet<&str>) =
        (listed.lines().collect(), found.lines().collect());
    let gone = listed.difference(&found).map(|line| format!("- {line}"));
    let come = found.difference(&listed).map(|line| format!("+ {line}"));
    gone.chain(come).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_fails_and_names_the_lines() {
        let listed = "pub fn a()\npub fn b()\n";
        assert_eq!(changes(listed, "pub fn b()\npub fn c()\n"), ["- pub fn a()", "+ pub fn c()"]);
        assert_eq!(compare("x", listed, listed), Count::PASSED);
        assert_eq!(compare("x", listed, "pub fn a(u8)\npub fn b()\n"), Count::FAILED);
    }

    #[test]
    fn derived_auto_traits_stay_in_the_list() {
        assert!(is_noise("impl core::marker::Freeze for a::B"));
        assert!(is_noise("impl<S> core::panic::unwind_safe::UnwindSafe for a::B<S> where S: UnwindSafe"));
        assert!(!is_noise("impl !core::marker::Send for a::B"));
        assert!(!is_noise("pub fn a::UnwindSafe for "));
    }
}
