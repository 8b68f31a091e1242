//! Progress output: an updated line in a terminal, a periodic line elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use rustix::termios::tcgetwinsize;

use crate::load::{RunPhase, RunProgress};
use crate::output::print_status;
use crate::report::units::{bytes, count};

pub(crate) struct ProgressDisplay {
    shown: ProgressOutput,
}

enum ProgressOutput {
    Nothing,
    /// One line with a bar, rewritten for each sample.
    Bar,
    Lines {
        last: Option<Instant>,
    },
}

impl ProgressDisplay {
    pub(crate) fn new(quiet: bool) -> Self {
        let is_dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
        let shown = if quiet {
            ProgressOutput::Nothing
        } else if std::io::stderr().is_terminal() && !is_dumb {
            ProgressOutput::Bar
        } else {
            ProgressOutput::Lines { last: None }
        };
        Self { shown }
    }

    pub(crate) fn show(&mut self, now: &RunProgress) {
        match &mut self.shown {
            ProgressOutput::Nothing => {}
            ProgressOutput::Bar => {
                let columns = tcgetwinsize(std::io::stderr()).map_or(0, |size| usize::from(size.ws_col));
                let columns = if columns == 0 { COLUMNS } else { columns };
                let color = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
                replace_line(&bar_line(now.fraction, &line(now), columns, color));
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
        if let ProgressOutput::Bar = self.shown {
            replace_line("");
        }
    }
}

/// Erases the terminal's line first: erasing after a full-width line would remove its last character.
fn replace_line(text: &str) {
    let _ = std::io::stderr().write_all(format!("\r\x1b[K{text}").as_bytes());
}

/// Draws the bar and the text, truncated to one terminal line.
fn bar_line(fraction: f64, text: &str, columns: usize, color: bool) -> String {
    let filled = (fraction * BAR as f64) as usize;
    let bar: String = (0..BAR.min(columns)).map(|cell| if cell < filled { '█' } else { '░' }).collect();
    let text: String = text.chars().take(columns.saturating_sub(BAR + 1)).collect();
    let (start, end) = if color { ("\x1b[36m", "\x1b[0m") } else { ("", "") };
    format!("{start}{bar}{end} {text}").trim_end().to_owned()
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

/// The bar's width.
const BAR: usize = 12;

/// Width for a terminal that does not report its own.
const COLUMNS: usize = 80;

const BETWEEN_LINES: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_line_fits_the_terminal() {
        assert_eq!(bar_line(0.0, "measuring: 2 open", 80, false), "░░░░░░░░░░░░ measuring: 2 open");
        assert_eq!(bar_line(0.5, "measuring: 2 open", 20, false), "██████░░░░░░ measuri");
        assert_eq!(bar_line(1.0, "measuring: 2 open", 5, false), "█████");
        let colored = bar_line(1.0, "measuring: 2 open", 30, true);
        assert_eq!(colored, "\x1b[36m████████████\x1b[0m measuring: 2 open");
    }
}
