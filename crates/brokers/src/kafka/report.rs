//! Log messages and errors of librdkafka.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use crate::lock::lock;
use crate::status::Status;

/// Most warnings in [`LOG_INTERVAL`]: a broker can cause one with each answer, at each client of a group.
const LINES_MAX: u32 = 10;
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Warnings from all clients in this process.
static WARNINGS: Mutex<LogWindow> = Mutex::new(LogWindow { begin: None, lines: 0, omitted: 0 });

/// Counts log lines in an interval.
struct LogWindow {
    begin: Option<Instant>,
    lines: u32,
    omitted: u64,
}

impl LogWindow {
    /// Returns how many lines were omitted since the last permitted line; `None` if this line is omitted, too.
    fn permit(&mut self, now: Instant) -> Option<u64> {
        if self.begin.is_none_or(|begin| now.saturating_duration_since(begin) >= LOG_INTERVAL) {
            (self.begin, self.lines) = (Some(now), 0);
        }
        self.lines = self.lines.saturating_add(1);
        if self.lines > LINES_MAX {
            self.omitted += 1;
            return None;
        }
        Some(std::mem::take(&mut self.omitted))
    }
}

/// Forwards librdkafka's log messages.
pub(super) fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    use RDKafkaLogLevel::{Alert, Critical, Debug, Emerg, Error, Info, Notice, Warning};
    match level {
        // Usually a lost connection, which librdkafka restores by itself.
        Emerg | Alert | Critical | Error | Warning => {
            if let Some(omitted) = lock(&WARNINGS).permit(Instant::now()) {
                tracing::warn!(omitted, "kafka: {facility}: {message}");
            }
        }
        Notice | Info | Debug => tracing::debug!("kafka: {facility}: {message}"),
    }
}

/// Describes an error. That of a missing right has the remedy.
pub(super) fn described(error: &KafkaError) -> String {
    with_remedy(error, &error.to_string())
}

/// Appends the operator's remedy to an error description.
pub(super) fn with_remedy(error: &KafkaError, description: &str) -> String {
    use RDKafkaErrorCode::{ClusterAuthorizationFailed, GroupAuthorizationFailed, TopicAuthorizationFailed};
    let remedy = match error.rdkafka_error_code() {
        Some(ClusterAuthorizationFailed | GroupAuthorizationFailed | TopicAuthorizationFailed) => {
            ". Grant the operations that the documentation of brokers lists"
        }
        _ => "",
    };
    format!("{description}{remedy}")
}

/// Whether the error denies the client's group, whose coordinator librdkafka looks up even for reads without a group.
/// Group operations return their errors.
pub(super) fn is_denied_group(error: &KafkaError) -> bool {
    error.rdkafka_error_code() == Some(RDKafkaErrorCode::GroupAuthorizationFailed)
}

/// Records an error that concerns no single record.
pub(super) fn record_client_error(status: &Status, error: &KafkaError, reason: &str) {
    use RDKafkaErrorCode::{AllBrokersDown, Authentication, Fatal, PartitionEOF, SSL};
    match error.rdkafka_error_code() {
        // A read has reached the last record.
        Some(PartitionEOF) => {}
        _ if is_denied_group(error) => {}
        Some(AllBrokersDown | Authentication | Fatal | SSL) => status.mark_unreachable(reason),
        // One of several brokers, or one topic.
        _ => status.record_error(&with_remedy(error, reason)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_of_an_interval_are_bounded_and_counted() {
        let (mut window, now) = (LogWindow { begin: None, lines: 0, omitted: 0 }, Instant::now());
        assert_eq!((0..1_000).filter(|_| window.permit(now).is_some()).count(), 10);
        assert_eq!(window.permit(now + LOG_INTERVAL), Some(990));
    }
}
