//! The `sinews` program.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    sinews_cli::main()
}
