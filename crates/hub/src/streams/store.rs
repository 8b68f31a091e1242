//! Where streams are stored: in this node's log, or at a broker that this log follows.

use std::task::{self, Poll, Waker};

use sinews_stream::broker::BrokerHealth;
use sinews_stream::record::Records;
use sinews_stream::{
    AppendError, Appended, Durability, Partition, Pending, ReadError, ReadResult, StartPosition, Stream,
    StreamConfig, Streams,
};

use crate::model::opening::{SharedOpening, StoreFuture};
use crate::model::problem::{Problem, code, problem};

/// Action when a stream does not exist. Only a client with the right to publish creates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfMissing {
    Create,
    Reject,
}

/// How repeated publications with an idempotency key are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deduplication {
    /// Only this process appends: it reads a stream's last records once, and then remembers its own.
    ReadOnce,
    /// Other nodes append, too: the last records are read before each publication.
    ReadAlways,
    /// The store itself appends a record once.
    Store,
}

/// Storage for streams. Readers always read this node's log; the store decides where records come from.
pub(crate) trait StreamStore: Send + Sync {
    /// Opens a stream in the background; `None` if it is open or cannot be opened.
    fn open(&self, streams: &Streams, name: &str, missing: IfMissing) -> Option<SharedOpening>;

    /// Returns whether a stream in this node's log can be used now.
    fn is_open(&self, streams: &Streams, name: &str) -> bool;

    /// Whether clients without the right to publish may open streams that this node does not have.
    fn opens_for_readers(&self) -> bool;

    /// Whether streams exist that this node does not have.
    fn lists_streams(&self) -> bool {
        false
    }

    /// Returns all stream names, if [`lists_streams`](Self::lists_streams).
    fn list_streams(&self) -> StoreFuture<Vec<String>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// The problem for a stream that is not open.
    fn missing(&self, name: &str, missing: IfMissing) -> Problem;

    /// Appends records to a partition.
    fn append(&self, stream: &Stream, partition: u32, records: Records) -> Result<Pending, AppendError>;

    /// Appends one record with an idempotency key. A store that [deduplicates](Deduplication::Store) appends it once.
    fn append_once(&self, stream: &Stream, partition: u32, records: Records) -> Result<Pending, AppendError> {
        self.append(stream, partition, records)
    }

    /// How repeated publications with an idempotency key are found.
    fn deduplication(&self) -> Deduplication;

    /// Returns whether all these records, appended to the first partitions, fit now.
    fn fits(&self, appends: &[(&Stream, &Records)]) -> bool;

    /// Whether a rejected append fits now, unless another one takes the space. Otherwise the waker is called when it
    /// does.
    fn has_capacity(&self, stream: &Stream, partition: u32, waker: &Waker) -> bool;

    /// Commits a group's offset.
    fn commit(
        &self,
        stream: &Stream,
        partition: u32,
        group: &str,
        offset: u64,
    ) -> Result<PendingWrite, Problem>;

    /// Returns the committed offset of a group in a partition, or the request for it.
    fn committed(&self, stream: &Stream, partition: u32, group: &str) -> OffsetLookup;

    /// Returns whether a group's commit may be lost.
    fn is_doubtful(&self, stream: &Stream, partition: u32, group: &str) -> bool;

    /// The offset at which reading starts.
    fn seek(
        &self,
        stream: &Stream,
        number: u32,
        partition: &Partition,
        start: StartPosition,
    ) -> Result<u64, Problem>;

    /// Returns the source of batches for a reader.
    fn source(&self, stream: &Stream, number: u32, partition: Partition) -> PartitionSource;

    /// Returns the first offset that may exist in a partition.
    fn first(&self, stream: &Stream, number: u32, partition: &Partition) -> u64;

    /// Returns the offset of the first record in a new stream.
    fn first_offset(&self) -> u64;

    /// Returns the end of a partition that readers on this node can expect, beyond the known end.
    fn end(&self, stream: &Stream, number: u32, known: u64) -> StoreFuture<u64>;

    /// The end of all records, including records that this node has not read yet; at least the known end.
    fn last_end(&self, stream: &Stream, number: u32, known: u64) -> StoreFuture<u64>;

    /// Checks whether a stream may be deleted here.
    fn check_delete(&self, name: &str) -> Result<(), Problem>;

    /// Returns the configuration of a stream that is created on request.
    ///
    /// # Errors
    /// Streams are not created and configured here.
    fn config_of_new(&self, name: &str) -> Result<StreamConfig, Problem>;

    /// Whether unused streams are deleted here.
    fn expires_unused(&self) -> bool;

    /// Returns the broker's health and the number of rejected requests, if a broker stores the streams.
    fn health(&self) -> Option<(BrokerHealth, u64)>;

    /// Waits for outstanding acknowledgements up to a limit.
    fn close(&self);
}

/// An append or commit in flight.
pub(crate) enum PendingWrite {
    Log(Pending),
    Requested(StoreFuture<()>),
}

impl PendingWrite {
    /// The offset once the requested durability is reached; `None` for an empty batch.
    pub(crate) fn poll(
        &mut self,
        durability: Durability,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<Option<Appended>, Problem>> {
        match self {
            Self::Log(pending) => pending.poll(durability, cx).map(|done| Ok(Some(done?))),
            Self::Requested(answer) => answer.as_mut().poll(cx).map(|done| done.map(|()| None)),
        }
    }

    /// Polls as [`poll`](Self::poll); an append's waker is called only if the append fails.
    pub(crate) fn poll_failure(
        &mut self,
        durability: Durability,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<Option<Appended>, Problem>> {
        match self {
            Self::Log(pending) => pending.poll_failure(durability, cx).map(|done| Ok(Some(done?))),
            Self::Requested(_) => self.poll(durability, cx),
        }
    }
}

/// A group's committed offset: known, or requested from the broker.
pub(crate) enum OffsetLookup {
    Known(Option<GroupPosition>),
    Requested(StoreFuture<Option<GroupPosition>>),
}

/// A group's committed offset, and where its members start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupPosition {
    pub(crate) offset: u64,
    /// Where reading starts: the end, if the offset is beyond it.
    pub(crate) start: u64,
}

impl OffsetLookup {
    pub(crate) fn poll(
        &mut self,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<Option<GroupPosition>, Problem>> {
        match self {
            Self::Known(position) => Poll::Ready(Ok(*position)),
            Self::Requested(answer) => answer.as_mut().poll(cx),
        }
    }
}

/// A partition as its readers see it: this node's log, preceded by older records elsewhere.
pub(crate) struct PartitionSource {
    partition: Partition,
    older: Option<Box<dyn OlderRecords>>,
}

/// Records that are older than this node's log.
pub(crate) trait OlderRecords: Send + Sync {
    /// Returns the start of the log while it is empty.
    fn log_start(&self) -> u64;

    /// Reads at an offset before the end.
    fn poll_read(
        &mut self,
        from: u64,
        end: u64,
        most: usize,
        waker: &Waker,
    ) -> Poll<Result<Option<ReadResult>, ReadFailure>>;
}

/// Why a read returned no records.
pub(crate) enum ReadFailure {
    /// The records do not exist any more. The next offset follows.
    Gap(u64),
    /// The offset is beyond the end of the remaining log.
    Ahead(u64),
    Failed(Problem),
}

impl PartitionSource {
    pub(super) fn new(partition: Partition, older: Option<Box<dyn OlderRecords>>) -> Self {
        Self { partition, older }
    }

    pub(crate) fn partition(&self) -> &Partition {
        &self.partition
    }

    /// Batches from an offset on; none at the end. Without older records the result is ready at once.
    pub(crate) fn poll_read(
        &mut self,
        from: u64,
        most: usize,
        waker: &Waker,
    ) -> Poll<Result<Option<ReadResult>, ReadFailure>> {
        let Poll::Ready(found) = self.partition.poll_read(from, most, waker) else { return Poll::Pending };
        let Some(older) = &mut self.older else { return Poll::Ready(from_log(found, from)) };
        let ends = self.partition.offsets();
        // An empty log stands at 0, although it will start elsewhere.
        let log_start = if ends.readable == 0 { older.log_start() } else { ends.earliest };
        match found {
            Ok(read) if !read.batches.is_empty() => Poll::Ready(Ok(Some(read))),
            Ok(_) | Err(ReadError::Gone { .. } | ReadError::Ahead { .. }) if from < log_start => {
                older.poll_read(from, log_start, most, waker)
            }
            // This node has not read that far yet.
            Ok(_) | Err(ReadError::Ahead { .. }) => Poll::Ready(Ok(None)),
            Err(error) => Poll::Ready(from_log(Err(error), from)),
        }
    }

    /// Reads at the store, even records that are newer than the log.
    pub(crate) fn poll_store(
        &mut self,
        from: u64,
        end: u64,
        most: usize,
        waker: &Waker,
    ) -> Poll<Result<Option<ReadResult>, ReadFailure>> {
        match &mut self.older {
            Some(older) => older.poll_read(from, end, most, waker),
            None => Poll::Ready(Ok(None)),
        }
    }
}

/// Converts a log result for a reader.
fn from_log(found: Result<ReadResult, ReadError>, from: u64) -> Result<Option<ReadResult>, ReadFailure> {
    match found {
        Ok(read) => Ok((!read.batches.is_empty()).then_some(read)),
        Err(ReadError::Gone { earliest: to } | ReadError::Damaged { resume: to, .. }) if to > from => {
            Err(ReadFailure::Gap(to))
        }
        Err(ReadError::Ahead { readable }) if readable < from => Err(ReadFailure::Ahead(readable)),
        Err(error @ ReadError::Deleted) => Err(ReadFailure::Failed(problem(code::GONE, error.to_string()))),
        Err(error) => Err(ReadFailure::Failed(problem(code::STORE, error.to_string()))),
    }
}
