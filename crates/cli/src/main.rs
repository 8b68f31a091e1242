//! The `sinews` program.
#![forbid(unsafe_code)]

mod admission;
mod args;
mod auth;
mod bench;
mod config;
mod connect;
mod copy;
mod echo;
mod feed;
mod handover;
mod health;
mod hosts;
mod hub;
mod live;
mod pages;
mod protocol;
mod routes;
mod serve;
mod settings;
mod streams;
mod token;
mod trust;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command.unwrap_or_else(|| Command::Serve(Box::new(cli.serve))) {
        Command::Serve(args) => serve::run(*args),
        Command::Config(command) => serve::config(&command).map_err(Into::into),
        Command::Bench(args) => match bench::run(*args) {
            Ok(code) => return code,
            Err(error) => Err(error.into()),
        },
        Command::Connect(args) => return connect::run(&args),
        Command::Streams(command) => copy::run(&command).map_err(Into::into),
        Command::Token(args) => token::run(&args).map_err(Into::into),
    };
    match result {
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
