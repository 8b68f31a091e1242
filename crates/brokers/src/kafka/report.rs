//! Log messages and errors of librdkafka.

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use crate::status::Status;

/// Forwards librdkafka's log messages.
pub(super) fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    use RDKafkaLogLevel::{Alert, Critical, Debug, Emerg, Error, Info, Notice, Warning};
    match level {
        // Usually a lost connection, which librdkafka restores by itself.
        Emerg | Alert | Critical | Error | Warning => tracing::warn!("kafka: {facility}: {message}"),
        Notice | Info | Debug => tracing::debug!("kafka: {facility}: {message}"),
    }
}

/// Describes an error. That of a missing right has the remedy.
pub(super) fn described(error: &KafkaError) -> String {
    use RDKafkaErrorCode::{ClusterAuthorizationFailed, GroupAuthorizationFailed, TopicAuthorizationFailed};
    let remedy = match error.rdkafka_error_code() {
        Some(ClusterAuthorizationFailed | GroupAuthorizationFailed | TopicAuthorizationFailed) => {
            ". Grant the operations that the documentation of brokers lists"
        }
        _ => "",
    };
    format!("{error}{remedy}")
}

/// Records an error that concerns no single record.
pub(super) fn record_client_error(status: &Status, error: &KafkaError, reason: &str) {
    use RDKafkaErrorCode::{AllBrokersDown, Authentication, Fatal, SSL};
    match error.rdkafka_error_code() {
        Some(AllBrokersDown | Authentication | Fatal | SSL) => status.mark_unreachable(reason),
        // One of several brokers, or one topic.
        _ => status.record_error(reason),
    }
}
