//! The log: its filter, its format, and changing the filter while the server runs.

use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};

use clap::ValueEnum;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, reload};

use crate::output::{self, LogWriter};

/// Format of log events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Human-readable lines.
    Text,
    /// One JSON object per line.
    Json,
}

/// Replaces the log filter.
pub(crate) type SetFilter = Box<dyn Fn(Targets) -> Result<(), String> + Send>;

/// Levels in a filter directive, as `tracing` defines them.
const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// Prefix of this program's targets, which a directive may name without a level.
const OWN_TARGETS: &str = "sinews";

/// Parses a filter such as `info` or `sinews_engine=debug`. Targets that it does not name are logged from `info` on.
///
/// # Errors
/// Returns an error for a directive that is neither a level nor a target with a level, with the most similar level.
pub(crate) fn filter(text: &str) -> Result<Targets, String> {
    let mut filter = Targets::new().with_default(LevelFilter::INFO);
    for directive in text.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
        filter = match directive.split_once('=') {
            Some((target, text)) if is_target(target) => {
                let level = level(text).ok_or_else(|| format!("{directive:?}: {}", no_level(text, "")))?;
                filter.with_target(target, level)
            }
            Some((target, _)) => {
                return Err(format!("{directive:?}: {target:?} is not the path of a module"));
            }
            None => match level(directive) {
                Some(level) => filter.with_default(level),
                None if directive.starts_with(OWN_TARGETS) && is_target(directive) => {
                    filter.with_target(directive, LevelFilter::TRACE)
                }
                None => return Err(no_level(directive, " or a filter such as sinews_engine=debug")),
            },
        };
    }
    Ok(filter)
}

fn level(text: &str) -> Option<LevelFilter> {
    LEVELS.iter().any(|level| text.eq_ignore_ascii_case(level)).then(|| text.parse().ok())?
}

/// Whether events can have this target: spans and fields cannot be filtered.
fn is_target(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':'))
}

fn no_level(text: &str, otherwise: &str) -> String {
    let alike = |level: &&str| strsim::jaro(&text.to_ascii_lowercase(), level);
    let near = LEVELS.into_iter().max_by(|a, b| alike(a).total_cmp(&alike(b)));
    let near = near.filter(|level| alike(level) > 0.6);
    let hint = near.map_or_else(String::new, |level| format!("; did you mean {level}?"));
    format!("{text:?} is not a level ({}){otherwise}{hint}", LEVELS.join(", "))
}

/// Starts logging to standard error, through its [queue](crate::output).
pub(crate) fn start(filter: Targets, format: LogFormat) -> SetFilter {
    // Files and journals get no colors.
    let colors = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty());
    let (filter, handle) = reload::Layer::new(filter);
    let registry = tracing_subscriber::registry().with(filter);
    // An event that cannot be formatted is not reported: the report would be written by this thread.
    let layer = fmt::layer().with_writer(|| LogWriter).log_internal_errors(false);
    match format {
        LogFormat::Text => registry.with(layer.with_ansi(colors).with_target(false)).init(),
        LogFormat::Json => {
            let layer = layer.with_ansi(false).json().flatten_event(true);
            registry.with(layer.with_current_span(false).with_span_list(false)).init();
        }
    }
    Box::new(move |filter| handle.reload(filter).map_err(|error| error.to_string()))
}

/// Starts logging in a program that embeds servers. The process has one log: a further server's filter replaces the
/// earlier one.
///
/// # Errors
/// The log has another format already, or the queue's thread cannot be started.
pub(crate) fn start_shared(filter: Targets, format: LogFormat) -> Result<(), String> {
    static LOG: Mutex<Option<(LogFormat, SetFilter)>> = Mutex::new(None);
    let mut log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    match &*log {
        Some((known, _)) if *known != format => {
            Err(format!("{format:?}, but this process logs as {known:?}").to_lowercase())
        }
        Some((_, set_filter)) => set_filter(filter),
        None => {
            output::start().map_err(|error| format!("cannot start the threads of the log: {error}"))?;
            *log = Some((format, start(filter, format)));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn misspelled_levels_are_rejected_with_a_suggestion() {
        for (text, near) in [("inof", "info"), ("wran", "warn"), ("debg", "debug"), ("INOF", "info")] {
            let error = filter(text).unwrap_err();
            assert!(error.ends_with(&format!("; did you mean {near}?")), "{error}");
        }
        let error = filter("warn,sinews_engine=inof").unwrap_err();
        assert!(error.starts_with("\"sinews_engine=inof\": \"inof\" is not a level"), "{error}");
        assert!(error.ends_with("did you mean info?"), "{error}");
        assert!(!filter("zzzzzz").unwrap_err().contains("did you mean"));
    }

    #[test]
    fn directives_that_match_no_event_are_rejected() {
        for (text, named) in [
            ("sinews[request]=trace", "sinews[request]"),
            ("sinews[{id}]=trace", "sinews[{id}]"),
            ("=debug", "\"\" is not"),
            ("sinews=", "\"sinews=\""),
            ("sinews=debug=info", "debug=info"),
            ("my_app", "my_app"),
            ("3", "\"3\" is not a level"),
        ] {
            let error = filter(text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn unnamed_targets_are_logged_from_info_on() {
        let enabled = |text: &str, target, level| filter(text).unwrap().would_enable(target, &level);
        let engine = "sinews_engine::poll";
        for text in ["sinews_engine=debug", " SINEWS=off, sinews_engine=DEBUG,"] {
            assert!(enabled(text, engine, Level::DEBUG) && !enabled(text, engine, Level::TRACE), "{text}");
            assert!(enabled(text, "rustls", Level::INFO) && !enabled(text, "rustls", Level::DEBUG), "{text}");
        }
        assert!(!enabled("warn,sinews_engine=debug", "sinews_hub", Level::INFO));
        assert!(enabled("warn,sinews_engine=debug", engine, Level::DEBUG));
        assert!(enabled("sinews_server", "sinews_server", Level::TRACE));
        assert!(enabled("sinews_server", "sinews_hub", Level::INFO));
        assert!(!enabled("off", "sinews_hub", Level::ERROR));
        assert!(enabled("", "sinews_hub", Level::INFO) && enabled("INFO", "sinews_hub", Level::INFO));
    }

    #[test]
    fn the_more_specific_target_decides() {
        let filter = filter("sinews_hub=warn,sinews_hub::cluster=trace").unwrap();
        assert!(filter.would_enable("sinews_hub::cluster::nodes", &Level::TRACE));
        assert!(!filter.would_enable("sinews_hub::streams", &Level::INFO));
    }
}
