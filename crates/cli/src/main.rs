//! The `sinews` program.
#![forbid(unsafe_code)]

mod args;
mod routes;
mod serve;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let Command::Serve(serve) = cli.command.unwrap_or(Command::Serve(cli.serve));
    match serve::run(&serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The one line for a person; everything else goes through the log.
            #[allow(clippy::print_stderr, reason = "a program's last words")]
            {
                eprintln!("sinews: {error}");
            }
            ExitCode::FAILURE
        }
    }
}
