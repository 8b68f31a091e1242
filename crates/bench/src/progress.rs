//! Progress output: an updated line in a terminal, a periodic line elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::load::{Now, Phase};
use super::report::units::{bytes, count};

pub(crate) struct Progress {
    shown: Shown,
}

enum Shown {
    Nothing,
    Bar(ProgressBar),
    Lines { last: Option<Instant> },
}

impl Progress {
    pub(crate) fn new(quiet: bool) -> Self {
        let shown = if quiet {
            Shown::Nothing
        } else if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(PARTS);
            // The template is constant and valid; an error would select the default template. In a narrow terminal
            // the message is truncated to one line.
            if let Ok(style) = ProgressStyle::with_template("{bar:12.cyan} {wide_msg}") {
                bar.set_style(style);
            }
            Shown::Bar(bar)
        } else {
            Shown::Lines { last: None }
        };
        Self { shown }
    }

    pub(crate) fn show(&mut self, now: &Now) {
        match &mut self.shown {
            Shown::Nothing => {}
            Shown::Bar(bar) => {
                bar.set_position((now.part * PARTS as f64) as u64);
                bar.set_message(line(now));
            }
            Shown::Lines { last } => {
                if last.is_none_or(|last| last.elapsed() >= BETWEEN_LINES) {
                    *last = Some(Instant::now());
                    super::say(&line(now));
                }
            }
        }
    }

    pub(crate) fn end(self) {
        if let Shown::Bar(bar) = self.shown {
            bar.finish_and_clear();
        }
    }
}

fn line(now: &Now) -> String {
    let phase = match now.phase {
        Phase::Connecting => "connecting",
        Phase::WarmUp => "warming up",
        Phase::Measuring => "measuring",
        Phase::Draining => "waiting for the last answers",
    };
    let mut line = format!("{phase}: {} open, {}/s", now.open, count(now.rate));
    if let Some(memory) = now.memory {
        line.push_str(&format!(", {}", bytes(memory as f64)));
    }
    if now.errors > 0 {
        line.push_str(&format!(", {} errors", now.errors));
    }
    line
}

const PARTS: u64 = 1000;

const BETWEEN_LINES: Duration = Duration::from_secs(2);
