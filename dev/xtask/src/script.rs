//! Tasks that are scripts of `dev/tasks`. They get the arguments, and print their counts in the last line.

use std::env;
use std::ffi::OsString;
use std::process::Command;

use clap::Args;

use crate::Outcome;
use crate::count::Count;
use crate::features;
use crate::process;
use crate::soak::show;

#[derive(Args)]
pub(crate) struct Options {
    /// Options of the task; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Runs a script with the arguments of the task.
pub(crate) fn run(name: &str, options: &Options) -> Outcome {
    call(name, &options.arguments)
}

/// The library in each choice of the features that can be built here.
pub(crate) fn features(options: &Options) -> Outcome {
    let without = features::lacking().map(|_| format!("--without={}", features::NATIVE_TLS).into());
    let arguments: Vec<_> = options.arguments.iter().cloned().chain(without).collect();
    Ok(call("features", &arguments)? + skipped_features())
}

/// The oldest versions of the library's dependencies, with the features that can be built here.
pub(crate) fn floors() -> Outcome {
    let arguments: Vec<_> = features::all()?.into_iter().map(OsString::from).collect();
    Ok(call("floors", &arguments)? + skipped_features())
}

fn skipped_features() -> Count {
    features::lacking().map_or_else(Count::default, Count::skip)
}

fn call(name: &str, arguments: &[OsString]) -> Outcome {
    if process::find_program("python3").is_none() {
        return Ok(Count::skip(format!("{name}: no python3 (apt-get install python3)")));
    }
    let mut command = Command::new("python3");
    process::remove_package_variables(&mut command);
    let own = env::current_exe().map_err(|error| format!("path of this program: {error}"))?;
    command.current_dir(process::root()).env("XTASK", own);
    show(command.arg("-B").arg(format!("dev/tasks/{name}.py")).args(arguments))
}
