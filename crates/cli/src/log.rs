//! The log: its filter, its format, and changing the filter while the server runs.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

use crate::output::LogWriter;

/// Format of log events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Human-readable lines.
    Text,
    /// One JSON object per line.
    Json,
}

/// Replaces the filter of the log.
pub(crate) type SetFilter = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send>;

/// Levels of a filter directive without a target, as `tracing` defines them.
const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// Parses a filter such as `info` or `sinews_engine=debug`. Targets that it does not name are logged from `info` on.
///
/// # Errors
/// Returns an error for a directive that is neither a level nor a target of this program with a level, with the most
/// similar level.
pub(crate) fn filter(text: &str) -> Result<EnvFilter, String> {
    let mut has_level = false;
    for directive in text.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
        if LEVELS.iter().any(|level| directive.eq_ignore_ascii_case(level)) {
            has_level = true;
        } else if !directive.contains(['=', '[', ']', '{', '}']) && !directive.starts_with("sinews") {
            let alike = |level: &&str| strsim::jaro(&directive.to_ascii_lowercase(), level);
            let near = LEVELS.into_iter().max_by(|a, b| alike(a).total_cmp(&alike(b)));
            let near = near.filter(|level| alike(level) > 0.6);
            let hint = near.map_or_else(String::new, |level| format!("; did you mean {level}?"));
            return Err(format!(
                "{directive:?} is not a level (error, warn, info, debug, trace, off) or a filter such as \
                 sinews_engine=debug{hint}"
            ));
        }
    }
    let whole = if has_level { text.to_owned() } else { format!("info,{text}") };
    whole.parse().map_err(|error| format!("{error}"))
}

/// Starts logging to standard error, through its [queue](crate::output).
pub(crate) fn start(filter: EnvFilter, format: LogFormat) -> SetFilter {
    // Files and journals get no colors.
    let colors = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty());
    let log = tracing_subscriber::fmt()
        .with_ansi(colors && format == LogFormat::Text)
        .with_env_filter(filter)
        .with_writer(|| LogWriter);
    // An event that cannot be formatted is not reported: the report would be written by this thread.
    match format {
        LogFormat::Text => {
            let log = log.with_target(false).with_filter_reloading();
            let handle = log.reload_handle();
            log.log_internal_errors(false).init();
            Box::new(move |filter| handle.reload(filter).map_err(|error| error.to_string()))
        }
        LogFormat::Json => {
            let log = log.json().flatten_event(true).with_current_span(false).with_span_list(false);
            let log = log.with_filter_reloading();
            let handle = log.reload_handle();
            log.log_internal_errors(false).init();
            Box::new(move |filter| handle.reload(filter).map_err(|error| error.to_string()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelled_levels_are_rejected_with_a_suggestion() {
        for (text, near) in [("inof", "info"), ("wran", "warn"), ("debg", "debug"), ("INOF", "info")] {
            let error = filter(text).unwrap_err();
            assert!(error.ends_with(&format!("; did you mean {near}?")), "{error}");
        }
        assert!(filter("sinews_engine=inof").is_err());
        assert!(!filter("zzzzzz").unwrap_err().contains("did you mean"));
    }

    #[test]
    fn unnamed_targets_are_logged_from_info_on() {
        assert_eq!(filter("sinews_engine=debug").unwrap().to_string(), "sinews_engine=debug,info");
        assert_eq!(filter("warn,sinews_engine=debug").unwrap().to_string(), "sinews_engine=debug,warn");
        for good in ["", "INFO", "off", "sinews_server", "sinews[request]=trace"] {
            assert!(filter(good).is_ok(), "{good}");
        }
    }
}
