//! Drives the pages and the client of `sinews serve` in real browser windows, and opens the page that `sinews bench`
//! writes.
//!
//! ```text
//! cargo run -p sinews-browser -- [--screenshot DIR] [--axe FILE] [--smoke] <path to the sinews binary>
//! ```
//!
//! Starts the server on a free port of 127.0.0.1, and opens headless Chromium windows with separate profiles through
//! chromedriver. Types and clicks like a user, and reads the text in the other window. Prints one line per check and a
//! sum at the end; the exit code is 1 if a check failed. With `--screenshot` it writes pictures of a staged
//! conversation instead of checking. With `--axe` it also checks the pages with this script of axe-core. With `--smoke`
//! it drives only the chat. Without Chromium on the machine it prints a notice and exits 0.
#![forbid(unsafe_code)]

mod accessibility;
mod checks;
mod client;
mod guests;
mod host;
mod notes;
mod page;
mod pictures;
mod report;
mod streams;
mod webdriver;

use std::{env, path::PathBuf, process::ExitCode};

use host::{Failure, Tools};

const USAGE: &str =
    "usage: sinews-browser [--screenshot DIR] [--axe FILE] [--smoke] <path to the sinews binary>";

fn main() -> ExitCode {
    let Some(arguments) = Arguments::parse(env::args().skip(1)) else {
        println!("{USAGE}");
        return ExitCode::from(2);
    };
    let Some(tools) = Tools::find() else {
        println!(
            "SKIPPED browser test: no chromium/chromedriver found; install with: \
             apt-get install chromium chromium-driver"
        );
        return ExitCode::SUCCESS;
    };
    match run(&arguments, &tools) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(failure) => {
            println!("FAILED {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the number of failed checks.
fn run(arguments: &Arguments, tools: &Tools) -> Result<usize, Failure> {
    match &arguments.pictures {
        Some(directory) => pictures::take(&arguments.server, tools, directory).map(|()| 0),
        None => {
            let server = &arguments.server;
            if arguments.is_smoke {
                let [passed, failed] = checks::run(server, tools)?;
                println!("{passed} passed, {failed} failed");
                return Ok(failed);
            }
            let axe = match &arguments.axe {
                Some(axe) => accessibility::run(server, tools, axe)?,
                None => [0, 0],
            };
            let all = [
                axe,
                report::run(server, tools)?,
                client::run(server, tools)?,
                streams::run(server, tools)?,
                guests::run(server, tools)?,
                checks::run(server, tools)?,
            ];
            let [passed, failed] = [0, 1].map(|at| all.iter().map(|counts| counts[at]).sum::<usize>());
            println!("{passed} passed, {failed} failed");
            Ok(failed)
        }
    }
}

struct Arguments {
    server: PathBuf,
    pictures: Option<PathBuf>,
    axe: Option<PathBuf>,
    is_smoke: bool,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Option<Self> {
        let mut server = None;
        let (mut pictures, mut axe, mut is_smoke) = (None, None, false);
        while let Some(word) = words.next() {
            if word == "--screenshot" {
                pictures = Some(PathBuf::from(words.next()?));
            } else if word == "--axe" {
                axe = Some(PathBuf::from(words.next()?));
            } else if word == "--smoke" {
                is_smoke = true;
            } else if word.starts_with('-') || server.is_some() {
                return None;
            } else {
                server = Some(PathBuf::from(word));
            }
        }
        Some(Self { server: server?, pictures, axe, is_smoke })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Option<(PathBuf, Option<PathBuf>)> {
        Arguments::parse(words.iter().map(|word| (*word).to_owned())).map(|a| (a.server, a.pictures))
    }

    #[test]
    fn arguments_are_one_binary_and_at_most_one_directory() {
        assert_eq!(parse(&["a"]), Some(("a".into(), None)));
        assert_eq!(parse(&["--screenshot", "d", "a"]), Some(("a".into(), Some("d".into()))));
        assert_eq!(parse(&[]), None);
        assert_eq!(parse(&["a", "b"]), None);
        assert_eq!(parse(&["--screenshot"]), None);
        assert_eq!(parse(&["--picture", "a"]), None);
    }
}
