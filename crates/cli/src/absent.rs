//! Commands that this program is built without.

use clap::Args;

/// Any arguments of such a command.
#[derive(Debug, Args)]
pub(crate) struct AbsentArgs {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    _arguments: Vec<String>,
}

/// Returns the error for such a command, whose Cargo feature has its name.
pub(crate) fn error(command: &str) -> String {
    format!("this program is built without `sinews {command}` (the Cargo feature {command})")
}
