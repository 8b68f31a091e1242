//! Durable keys that a node cannot store: the causes, and their metrics.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use sinews_stream::{AppendError, StreamError};

/// Why a node does not store durable keys: a metrics label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultCause {
    /// The disk is full.
    NoSpace,
    /// A limit of streams, of a client, of memory or of a record.
    Limit,
    /// Too many writes wait for the disk.
    QueueFull,
    /// The stream cannot be read.
    Unreadable,
    /// Another disk error.
    Failed,
}

const CAUSES: [(FaultCause, &str); 5] = [
    (FaultCause::NoSpace, "no_space"),
    (FaultCause::Limit, "limit"),
    (FaultCause::QueueFull, "queue_full"),
    (FaultCause::Unreadable, "unreadable"),
    (FaultCause::Failed, "failed"),
];

/// A number for each cause.
pub(crate) type FaultCounts = [u64; CAUSES.len()];

/// Writes that were rejected since this node could not store them.
#[derive(Default)]
pub(crate) struct RejectedWrites([AtomicU64; CAUSES.len()]);

/// Metrics at one point in time.
#[derive(Debug)]
pub(crate) struct KeyStorageMetrics {
    /// Topics whose keys cannot be read.
    pub(crate) unreadable: u64,
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

impl Collector for KeyStorageMetrics {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Topics whose durable keys this server cannot read, by cause";
        let mut topics =
            out.encode_descriptor("sinews_durable_keys_unstored", help, None, MetricType::Gauge)?;
        ConstGauge::new(self.unreadable).encode(topics.encode_family(&[("cause", "unreadable")])?)?;
        let help =
            "Writes of durable keys that were rejected since this server could not store them, by cause";
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
        assert_eq!(rejected.counts(), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn full_disks_are_told_from_limits_and_damage() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert_eq!(FaultCause::from_append(&AppendError::NoSpace), FaultCause::NoSpace);
        assert_eq!(FaultCause::from_stream(&full.into()), FaultCause::NoSpace);
        assert_eq!(FaultCause::from_stream(&StreamError::TooMany { max: 1 }), FaultCause::Limit);
        assert_eq!(FaultCause::from_append(&AppendError::Busy), FaultCause::QueueFull);
        assert_eq!(FaultCause::from_stream(&StreamError::Damaged("x".into())), FaultCause::Unreadable);
        assert_eq!(FaultCause::from_append(&AppendError::Closed), FaultCause::Failed);
    }
}
