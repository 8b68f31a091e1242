//! Tasks that are scripts in `dev/tasks`. They get the arguments, and print their counts in the last line.

use std::env;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use clap::Args;

use crate::Outcome;
use crate::count::Count;
use crate::features;
use crate::process::{self, at};

#[derive(Args)]
pub(crate) struct Options {
    /// Options of the task; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Runs the script with this name, with further arguments before the task's arguments.
pub(crate) fn run(name: &str, further: &[&str]) -> Outcome {
    // Clap would remove a `--` before the first argument.
    let own = env::args_os().skip(2);
    call(name, &further.iter().map(OsString::from).chain(own).collect::<Vec<_>>())
}

/// Builds the library in each choice of features that can be built here.
pub(crate) fn features() -> Outcome {
    let without = features::lacking().map(|_| format!("--without={}", features::NATIVE_TLS));
    Ok(run("features", &without.iter().map(String::as_str).collect::<Vec<_>>())? + skipped_features())
}

/// Checks the oldest versions of the library's dependencies, with the features that can be built here.
pub(crate) fn floors() -> Outcome {
    let arguments = features::all()?;
    Ok(run("floors", &arguments.iter().map(String::as_str).collect::<Vec<_>>())? + skipped_features())
}

fn skipped_features() -> Count {
    features::lacking().map_or_else(Count::default, Count::skip)
}

/// Runs a script, and prints its output meanwhile.
fn call(name: &str, arguments: &[OsString]) -> Outcome {
    if process::find_program("python3").is_none() {
        return Ok(Count::skip(format!("{name}: no python3 (apt-get install python3)")));
    }
    let mut command = Command::new("python3");
    process::remove_package_variables(&mut command);
    let own = env::current_exe().map_err(|error| format!("path of this program: {error}"))?;
    command.current_dir(process::root()).env("XTASK", own);
    let script = format!("dev/tasks/{name}.py");
    command.arg("-B").arg(&script).args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    let fault = at(Path::new(&script));
    let mut child = command.spawn().map_err(&fault)?;
    let stdout = child.stdout.take().expect("it was asked for");
    let mut count = Count::default();
    for line in BufReader::new(stdout).lines() {
        let line = line.map_err(&fault)?;
        println!("{line}");
        count = Count::parse(&line).unwrap_or(count);
    }
    let status = child.wait().map_err(&fault)?;
    if status.success() || count.failed > 0 { Ok(count) } else { Err(format!("{script}: {status}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each script begins with made-up faults, which its checks must find. Other scripts run as steps.
    #[test]
    fn scripts_without_a_step_pass_their_own_checks() {
        for name in ["compare", "figures", "syscalls"] {
            let outcome = call(name, &["--help".into()]);
            assert!(outcome.is_ok(), "{name}: {outcome:?}");
        }
    }
}
