//! The observer for a log that follows a broker.

use crate::record::Records;

/// Receives the records that a [`LogSink`](crate::broker::LogSink) appends to a log, set by [`Partition::observe_copy`](crate::Partition::observe_copy).
pub trait CopyObserver: Send + Sync {
    /// The log has accepted records from this offset on, and will write them: readers do not see them yet. Called on
    /// the broker client's thread, in offset order. Records that found no space on the disk are passed again.
    fn accepted(&self, base: u64, records: &Records);
}
