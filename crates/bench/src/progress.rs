//! Progress output: an updated line in a terminal, a periodic line elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::load::{RunPhase, RunProgress};
use crate::output::print_status;
use crate::report::units::{bytes, count};

pub(crate) struct ProgressDisplay {
    shown: ProgressOutput,
}

enum ProgressOutput {
    Nothing,
    Bar(ProgressBar),
    Lines { last: Option<Instant> },
}

impl ProgressDisplay {
    pub(crate) fn new(quiet: bool) -> Self {
        let shown = if quiet {
            ProgressOutput::Nothing
        } else if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(PARTS);
            // The template is constant and valid; an error would select the default template. In a narrow terminal
            // the message is truncated to one line.
            if let Ok(style) = ProgressStyle::with_template("{bar:12.cyan} {wide_msg}") {
                bar.set_style(style);
            }
            ProgressOutput::Bar(bar)
        } else {
            ProgressOutput::Lines { last: None }
        };
        Self { shown }
    }

    pub(crate) fn show(&mut self, now: &RunProgress) {
        match &mut self.shown {
            ProgressOutput::Nothing => {}
            ProgressOutput::Bar(bar) => {
                bar.set_position((now.fraction * PARTS as f64) as u64);
                bar.set_message(line(now));
            }
            ProgressOutput::Lines { last } => {
                if last.is_none_or(|last| last.elapsed() >= BETWEEN_LINES) {
                    *last = Some(Instant::now());
                    print_status(&line(now));
                }
            }
        }
    }

    pub(crate) fn end(self) {
        if let ProgressOutput::Bar(bar) = self.shown {
            bar.finish_and_clear();
        }
    }
}

fn line(now: &RunProgress) -> String {
    let phase = match now.phase {
        RunPhase::Connecting => "connecting",
        RunPhase::WarmUp => "warming up",
        RunPhase::Measuring => "measuring",
        RunPhase::Draining => "waiting for the last answers",
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
