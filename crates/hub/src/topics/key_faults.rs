//! Durable keys that a node cannot store: the causes, and their metrics.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use sinews_stream::record::RecordError;
use sinews_stream::{AppendError, CreateError, StreamError};

use crate::model::brief::brief;
use crate::model::problem::{Problem, code, problem};

/// Why a node does not store durable keys: a metrics label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultCause {
    /// The disk is full.
    NoSpace,
    /// A limit of streams, of a client, of memory or of a record.
    Limit,
    /// Too many writes wait for the disk.
    QueueFull,
    /// The disk, or a cluster's broker, has not answered in time.
    TimedOut,
    /// The stream cannot be read.
    Unreadable,
    /// Another disk error.
    Failed,
}

const CAUSES: [(FaultCause, &str); 6] = [
    (FaultCause::NoSpace, "no_space"),
    (FaultCause::Limit, "limit"),
    (FaultCause::QueueFull, "queue_full"),
    (FaultCause::TimedOut, "timed_out"),
    (FaultCause::Unreadable, "unreadable"),
    (FaultCause::Failed, "failed"),
];

/// A number for each cause.
pub(crate) type FaultCounts = [u64; CAUSES.len()];

/// Why keys could not be stored or read.
#[derive(Debug)]
pub(crate) struct StorageError {
    pub(crate) cause: FaultCause,
    pub(crate) text: String,
}

/// Writes that were rejected since this node could not store them.
#[derive(Default)]
pub(crate) struct RejectedWrites([AtomicU64; CAUSES.len()]);

/// Metrics at one point in time.
#[derive(Debug)]
pub(crate) struct KeyStorageMetrics {
    /// Topics that this node cannot store now.
    pub(crate) topics: FaultCounts,
    pub(crate) rejected: FaultCounts,
}

impl FaultCause {
    pub(crate) fn from_append(error: &AppendError) -> Self {
        match error {
            AppendError::NoSpace => Self::NoSpace,
            AppendError::TooLarge { .. } => Self::Limit,
            AppendError::Busy => Self::QueueFull,
            _ => Self::Failed,
        }
    }

    pub(crate) fn from_stream(error: &StreamError) -> Self {
        match error {
            StreamError::TooMany { .. } | StreamError::Name => Self::Limit,
            StreamError::Damaged(_) | StreamError::Partitions { .. } => Self::Unreadable,
            StreamError::Io(error) => Self::from_io(error),
            _ => Self::Failed,
        }
    }

    fn from_io(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            _ => Self::Failed,
        }
    }
}

impl RejectedWrites {
    pub(crate) fn count(&self, cause: FaultCause) {
        self.0[cause as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> FaultCounts {
        self.0.each_ref().map(|count| count.load(Ordering::Relaxed))
    }
}

impl From<AppendError> for StorageError {
    fn from(error: AppendError) -> Self {
        Self { cause: FaultCause::from_append(&error), text: error.to_string() }
    }
}

impl From<StreamError> for StorageError {
    fn from(error: StreamError) -> Self {
        Self { cause: FaultCause::from_stream(&error), text: error.to_string() }
    }
}

impl From<CreateError> for StorageError {
    fn from(error: CreateError) -> Self {
        let cause = match &error {
            CreateError::TooMany | CreateError::Name => FaultCause::Limit,
            CreateError::Damaged(_) | CreateError::Partitions { .. } => FaultCause::Unreadable,
            CreateError::Io(error) => FaultCause::from_io(error),
            _ => FaultCause::Failed,
        };
        Self { cause, text: error.to_string() }
    }
}

impl From<RecordError> for StorageError {
    fn from(error: RecordError) -> Self {
        Self { cause: FaultCause::Limit, text: error.to_string() }
    }
}

impl StorageError {
    pub(crate) fn problem(&self, topic: &str) -> Problem {
        problem(code::STORE, format!("the keys of {} cannot be stored: {}", brief(topic), self.text))
    }
}

impl From<Problem> for StorageError {
    fn from(problem: Problem) -> Self {
        let cause = if problem.code == code::TOO_MANY { FaultCause::Limit } else { FaultCause::Unreadable };
        Self { cause, text: problem.text }
    }
}

impl From<&str> for StorageError {
    fn from(text: &str) -> Self {
        Self { cause: FaultCause::Failed, text: text.to_owned() }
    }
}

impl Collector for KeyStorageMetrics {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Topics whose durable keys this node cannot store or read now, by cause";
        let mut topics =
            out.encode_descriptor("sinews_durable_keys_unstored", help, None, MetricType::Gauge)?;
        for ((_, label), count) in CAUSES.iter().zip(self.topics) {
            ConstGauge::new(count).encode(topics.encode_family(&[("cause", *label)])?)?;
        }
        let help = "Writes of durable keys that were rejected since this node could not store them, by cause";
        let name = "sinews_durable_key_writes_rejected";
        let mut rejected = out.encode_descriptor(name, help, None, MetricType::Counter)?;
        for ((_, label), count) in CAUSES.iter().zip(self.rejected) {
            ConstCounter::new(count).encode(rejected.encode_family(&[("cause", *label)])?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_have_the_order_of_their_counts() {
        let rejected = RejectedWrites::default();
        for (at, (cause, _)) in CAUSES.iter().enumerate() {
            assert_eq!(*cause as usize, at);
            (0..=at).for_each(|_| rejected.count(*cause));
        }
        assert_eq!(rejected.counts(), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn full_disks_are_told_from_limits_and_damage() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let cause = |error: StorageError| error.cause;
        assert_eq!(cause(AppendError::NoSpace.into()), FaultCause::NoSpace);
        assert_eq!(cause(CreateError::Io(full()).into()), FaultCause::NoSpace);
        assert_eq!(cause(StreamError::from(full()).into()), FaultCause::NoSpace);
        assert_eq!(cause(CreateError::TooMany.into()), FaultCause::Limit);
        assert_eq!(cause(AppendError::Busy.into()), FaultCause::QueueFull);
        assert_eq!(cause(StreamError::Damaged("x".into()).into()), FaultCause::Unreadable);
        assert_eq!(cause(AppendError::Closed.into()), FaultCause::Failed);
    }
}
