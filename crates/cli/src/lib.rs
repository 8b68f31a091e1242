//! The `sinews` program, and its server for a program with an event loop of its own: [`ServerConfig`] reads the settings
//! of `sinews serve`, and binds a server that runs inside of that loop.
#![forbid(unsafe_code)]

#[cfg(not(all(feature = "bench", feature = "connect")))]
mod absent;
mod app;
mod args;
mod config;
#[cfg(feature = "connect")]
mod connect;
mod copy;
mod environment;
mod health;
mod init;
mod log;
mod manual;
mod nodes;
mod output;
mod serve;
mod settings;
mod token;
#[cfg(feature = "connect")]
mod topic;
mod version;

use std::process::ExitCode;

use clap::FromArgMatches;
use sinews_server::escape::escape_controls;
use sinews_server::redact_urls;

use crate::args::{Cli, Command};
use crate::config::flags::explain;
pub use crate::serve::embed::{ServeError, ServerConfig, WholeServer};

/// Runs the program with the process's arguments.
#[must_use]
pub fn main() -> ExitCode {
    let cli = parse();
    let result = match cli.command.unwrap_or_else(|| Command::Serve(Box::new(cli.serve))) {
        Command::Serve(args) => serve::run(*args),
        Command::App(command) => app::run(&command).map_err(Into::into),
        Command::Completions(args) => manual::completions(&args).map_err(Into::into),
        Command::Config(command) => serve::config(&command).map_err(Into::into),
        #[cfg(not(feature = "bench"))]
        Command::Bench(_) => Err(absent::error("bench").into()),
        #[cfg(feature = "bench")]
        Command::Bench(args) => match sinews_bench::run(*args) {
            Ok(code) => return code,
            Err(error) => Err(error.into()),
        },
        #[cfg(not(feature = "connect"))]
        Command::Connect(_) => Err(absent::error("connect").into()),
        #[cfg(feature = "connect")]
        Command::Connect(args) => return connect::run(&args),
        Command::Health(args) => health::run(&args).map_err(Into::into),
        Command::Init(args) => init::run(&args).map_err(Into::into),
        Command::Man(args) => manual::man(&args).map_err(Into::into),
        Command::Nodes(args) => nodes::run(&args).map_err(Into::into),
        #[cfg(not(feature = "connect"))]
        Command::Pub(_) => Err(absent::error("connect").into()),
        #[cfg(feature = "connect")]
        Command::Pub(args) => topic::publish(&args).map_err(Into::into),
        Command::Streams(command) => copy::run(&command).map_err(Into::into),
        #[cfg(not(feature = "connect"))]
        Command::Sub(_) => Err(absent::error("connect").into()),
        #[cfg(feature = "connect")]
        Command::Sub(args) => topic::subscribe(&args).map_err(Into::into),
        Command::Token(args) => token::run(&args).map_err(Into::into),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::print_error(&escape_controls(&redact_urls(&format!("sinews: {error}"))));
            output::flush();
            ExitCode::FAILURE
        }
    }
}

/// Parses the arguments; exits with a message if they are invalid.
fn parse() -> Cli {
    let mut command = args::command();
    // This probes the kernel for io_uring, which only `--version` needs here.
    if std::env::args_os().any(|argument| argument == "--version") {
        command = command.long_version(version::long());
    }
    let matches = command.try_get_matches_from_mut(std::env::args_os());
    let matches = matches.unwrap_or_else(|error| explain(error, &mut command, std::env::args_os()).exit());
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
}
