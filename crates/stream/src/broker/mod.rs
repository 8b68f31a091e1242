//! The seam between the streams and a broker that stores them: the trait of a broker client, and the types with which a
//! client completes appends and feeds the log. `sinews-brokers` has the Kafka, Redis and NATS clients.
//!
//! With a broker, a node's embedded log is a cache of the broker's partitions, with the broker's offsets:
//! [`Broker::follow`] appends the broker's records to a [`Partition`], and all subscribers read from there. Records are
//! published to the broker alone and return with their offsets, so every node sees them in the same order. Nodes share
//! nothing but the broker.
//!
//! ```text
//!   publish ──▶ Broker::publish ──▶ the broker ──▶ Broker::follow ──▶ Partition ──▶ readers, live and from disk
//!                     ▲                  │
//!                  Pending ◀── its acknowledgement, with the offset
//! ```
//!
//! A client uses these types:
//!
//! | task | type |
//! |---|---|
//! | complete a published append | [`Completer`](crate::Completer), the other end of a [`Pending`] |
//! | append followed records to the log | [`LogSink`] |
//! | answer a request | [`BrokerResponder`], the other end of a [`BrokerResponse`] |
//! | return old records | [`BatchEncoder`] |

mod batches;
mod error;
mod response;
mod sink;

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::record::Records;
use crate::{AppendError, Partition, Pending, ReadResult, StartPosition};

pub use crate::copy_observer::CopyObserver;
pub use batches::BatchEncoder;
pub use error::BrokerError;
pub use response::{BrokerResponder, BrokerResponse};
pub use sink::{FlushOutcome, LastRecord, LogSink};

/// Maximum streams that [`Broker::streams`] lists: about 10 MB of names.
pub const STREAMS_MAX: usize = 100_000;

/// A connection to a broker. It runs its own threads, reconnects indefinitely, and never blocks its caller.
///
/// Offsets are the broker's; `docs/book/src/server/brokers.md` describes their form for each engine. They grow, and may have gaps.
pub trait Broker: Send + Sync {
    /// Publishes records to the broker. The pending append completes with the broker's acknowledgement, for any
    /// requested durability: a record's offset is known only then. Records in one call keep their order; records from
    /// concurrent calls may be interleaved.
    ///
    /// # Errors
    ///
    /// [`AppendError::Busy`] if the queue to the broker is full: see [`watch_queue_space`](Self::watch_queue_space). [`AppendError::TooLarge`] if
    /// a record exceeds the broker's limit, and [`AppendError::TooManyRecords`] if the append does. [`AppendError::Broker`] if the broker does not permit the stream's name;
    /// the pending append fails with it if the broker rejected the records, or did not confirm them.
    fn publish(&self, stream: &str, partition: u32, records: Records) -> Result<Pending, AppendError>;

    /// Publishes one record with an [idempotency key](crate::record::IDEMPOTENCY_PREFIX). If the broker
    /// [deduplicates](Self::deduplicates), and had a record with this key in the partition a short time ago, it does
    /// not store the record, and the append completes with the first record's offset.
    ///
    /// # Errors
    ///
    /// As [`publish`](Self::publish).
    fn publish_once(&self, stream: &str, partition: u32, records: Records) -> Result<Pending, AppendError> {
        self.publish(stream, partition, records)
    }

    /// Whether [`publish_once`](Self::publish_once) stores simultaneous publications from several nodes once. Otherwise
    /// the caller reads the last records first.
    fn deduplicates(&self) -> bool {
        false
    }

    /// Whether the queue to the broker has space for all these records now, as far as that is known. Another publication may
    /// take it.
    fn has_queue_space(&self, batches: &[&Records]) -> bool;

    /// Whether records can be published again after [`AppendError::Busy`]; otherwise the waker is called once when they
    /// can.
    fn watch_queue_space(&self, waker: &Waker) -> bool;

    /// Appends the broker's records from `from` on to `sink`, in order, while both are open, at most as fast as `sink`
    /// accepts them. Errors are reported by [`health`](Self::health). Following a partition a second time does nothing.
    fn follow(&self, stream: &str, partition: u32, from: StartPosition, sink: Partition);

    /// Fetches records from the broker itself, for records older than a node's copy. Returns at least the requested
    /// record, if it exists, and about `max_bytes` at most.
    fn fetch(&self, stream: &str, partition: u32, from: u64, max_bytes: usize) -> BrokerResponse<ReadResult>;

    /// The offset of the first available record, and the next offset.
    fn offset_range(&self, stream: &str, partition: u32) -> BrokerResponse<(u64, u64)>;

    /// Number of partitions in a stream. If the broker permits it, a missing stream is created.
    fn partitions(&self, stream: &str) -> BrokerResponse<u32>;

    /// The names of all streams at the broker that a stream of this server may have, in any order; each with its first
    /// partition. Fails if there are more than [`STREAMS_MAX`].
    fn streams(&self) -> BrokerResponse<Vec<String>>;

    /// The offset of the first record that any stream ever had: the same for all streams of this engine.
    fn first_offset(&self) -> u64;

    /// Whether publishing to a partition creates it. Then the caller decides on the number of partitions, and
    /// [`partitions`](Self::partitions) returns the setting; otherwise the broker decides.
    fn creates_partitions(&self) -> bool;

    /// Commits a group's offset: the next record that the group wants.
    fn commit(&self, stream: &str, partition: u32, group: &str, offset: u64) -> BrokerResponse<()>;

    /// Committed offset of a group, if it has one.
    fn committed(&self, stream: &str, partition: u32, group: &str) -> BrokerResponse<Option<u64>>;

    /// Whether the broker answers, and the last error.
    fn health(&self) -> BrokerHealth;

    /// Rejects further records, waits up to `within` for pending acknowledgements, and ends the threads. Records not
    /// acknowledged by then fail. Dropping the broker does the same without waiting.
    fn close(&self, within: Duration);
}

/// Broker health.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BrokerHealth {
    /// Whether the broker has answered recently, every followed partition is followed, and appends do not fail. Appends
    /// fail if, for the setting `failure.timeout.ms` (10,000), all appends failed, and the last failure is less than 10
    /// seconds old.
    pub ready: bool,
    /// The last error, or one that persists.
    pub error: Option<Arc<str>>,
    /// Records waiting for the broker's acknowledgement.
    pub waiting: u64,
}

impl BrokerHealth {
    /// Creates a health report with these values.
    #[must_use]
    pub fn new(ready: bool, error: Option<Arc<str>>, waiting: u64) -> Self {
        Self { ready, error, waiting }
    }
}
