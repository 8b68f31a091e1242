//! Drives the pages and the client of `sinews serve` in real browser windows, and opens the page that `sinews bench`
//! writes.
//!
//! ```text
//! cargo run -p sinews-browser -- [--screenshot DIR] [--axe FILE] [--smoke] [--only PART] <path to the sinews binary>
//! ```
//!
//! Starts the server on a free port of 127.0.0.1, and opens headless Chromium windows with separate profiles through
//! chromedriver. Types and clicks like a user, and reads the text in the other window. Prints one line per check and a
//! sum at the end; the exit code is 1 if a check failed. With `--screenshot` it writes pictures of a staged
//! conversation instead of checking. With `--axe` it also checks the pages with this script of axe-core. With `--smoke`
//! it drives only the chat, with `--only` one part of the checks by its name. Without Chromium on the machine it prints a notice and exits 0.
#![forbid(unsafe_code)]

mod accessibility;
mod broker;
mod checks;
mod client;
mod console;
mod dashboard;
mod events;
mod guests;
mod host;
mod http2;
mod notes;
mod operations;
mod page;
mod pictures;
mod prices;
mod report;
mod rooms;
mod streams;
mod webdriver;

use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
};

use host::{Failure, Tools};

const USAGE: &str = "usage: sinews-browser [--screenshot DIR] [--axe FILE] [--smoke] [--only PART] <path to the sinews binary>";

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

/// The checks of one part; returns the numbers of passed and failed ones.
type Part = fn(&Path, &Tools) -> Result<[usize; 2], Failure>;

const PARTS: &[(&str, Part)] = &[
    ("report", report::run),
    ("client", client::run),
    ("console", console::run),
    ("dashboard", dashboard::run),
    ("operations", operations::run),
    ("streams", streams::run),
    ("events", events::run),
    ("guests", guests::run),
    ("rooms", rooms::run),
    ("http2", http2::run),
    ("prices", prices::run),
    ("chat", checks::run),
];

/// Returns the number of failed checks.
fn run(arguments: &Arguments, tools: &Tools) -> Result<usize, Failure> {
    match &arguments.pictures {
        Some(directory) => pictures::take(&arguments.server, tools, directory).map(|()| 0),
        None => {
            let server = &arguments.server;
            let only = if arguments.is_smoke { Some("chat") } else { arguments.only.as_deref() };
            let mut all = Vec::new();
            if let Some(axe) = arguments.axe.as_ref().filter(|_| only.is_none_or(|only| only == "axe")) {
                all.push(accessibility::run(server, tools, axe)?);
            }
            for (_, run) in PARTS.iter().filter(|(name, _)| only.is_none_or(|only| only == *name)) {
                all.push(run(server, tools)?);
            }
            if all.is_empty() {
                let known: Vec<_> = PARTS.iter().map(|(name, _)| *name).collect();
                return Err(Failure::new(format!(
                    "no such part; parts are {}, and axe with --axe",
                    known.join(", ")
                )));
            }
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
    /// The only part to check.
    only: Option<String>,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Option<Self> {
        let mut server = None;
        let (mut pictures, mut axe, mut is_smoke, mut only) = (None, None, false, None);
        while let Some(word) = words.next() {
            if word == "--screenshot" {
                pictures = Some(PathBuf::from(words.next()?));
            } else if word == "--axe" {
                axe = Some(PathBuf::from(words.next()?));
            } else if word == "--only" {
                only = Some(words.next()?);
            } else if word == "--smoke" {
                is_smoke = true;
            } else if word.starts_with('-') || server.is_some() {
                return None;
            } else {
                server = Some(PathBuf::from(word));
            }
        }
        Some(Self { server: server?, pictures, axe, is_smoke, only })
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
