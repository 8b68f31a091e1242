//! `sinews streams check` and `repair`: directories with damaged streams.

use std::path::Path;

use sinews_stream::{Streams, StreamsConfig};

use super::print_line;

pub(super) fn check(directory: &Path, chosen: &[String]) -> Result<(), String> {
    let streams = open(directory)?;
    let all = || streams.describe_all().iter().map(|info| info.name.to_string()).collect();
    let names: Vec<String> = if chosen.is_empty() { all() } else { chosen.to_vec() };
    let mut damaged = 0;
    for name in &names {
        let lines = match streams.check(name) {
            Ok(Some(check)) if check.damage.is_empty() => {
                print_line(&format!("{name}: {} records", check.records))?;
                continue;
            }
            Ok(Some(check)) => check.damage,
            Ok(None) => vec!["no such stream".to_owned()],
            Err(error) => vec![error.to_string()],
        };
        damaged += 1;
        lines.iter().try_for_each(|line| print_line(&format!("{name}: {line}")))?;
    }
    match damaged {
        0 => Ok(()),
        damaged => Err(format!("{}: {damaged} of {} streams are damaged", directory.display(), names.len())),
    }
}

pub(super) fn repair(directory: &Path, name: &str) -> Result<(), String> {
    let streams = open(directory)?;
    if streams.describe(name).is_none() {
        return Err(format!("{}: no stream {name}", directory.display()));
    }
    let done = streams.repair(name).map_err(|error| format!("{name}: {error}"))?;
    if done.is_empty() {
        print_line(&format!("{name}: it is not damaged; no changes made"))?;
    }
    done.iter().try_for_each(|line| print_line(&format!("{name}: {line}")))
}

/// Opens an existing directory; a missing directory is an error.
fn open(directory: &Path) -> Result<Streams, String> {
    let failed = |error: &dyn std::fmt::Display| format!("--from {}: {error}", directory.display());
    if !directory.join("streams").is_dir() {
        return Err(failed(&"is not a directory of streams"));
    }
    // The check reports losses again.
    let (streams, _) = Streams::open(directory, StreamsConfig::default()).map_err(|error| failed(&error))?;
    Ok(streams)
}
