//! A partition: one sequence of records.

mod compact;
mod entry;
pub(crate) mod job;
mod queue;
mod read;
mod recover;
mod scan;
mod shared;
mod state;
mod types;
mod unsynced;
mod watcher;
mod work;
mod write;

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::task::{Poll, Waker};

use crate::catalog::{INDEX_ENTRIES_MAX, LastSegment, PartitionExtent};
use crate::copy_observer::CopyObserver;
use crate::record::{BatchHeader, Records};
use crate::writer::{WorkUnit, WriterPool};
use crate::{AppendError, Loss, OpenError, Pending, ReadError, StreamConfig};
use entry::SegmentEntry;
use shared::PartitionCore;
use state::{PartitionCounters, RecentBatches, State};
use watcher::Waiters;

pub(crate) use state::micros;

pub use types::{PartitionEvent, PartitionOffsets, ReadResult, StartPosition, Statistics};
pub use watcher::Watcher;

/// Handle to a partition, a sequence of records. Cheap to clone.
#[derive(Clone)]
pub struct Partition {
    core: Arc<PartitionCore>,
}

/// Prior knowledge of a partition that is opened.
#[derive(Clone, Copy)]
pub(crate) enum PriorState<'a> {
    /// None: the partition may have been open when a process ended.
    Unknown,
    /// The partition was cleanly closed with this last segment.
    Closed(&'a LastSegment),
    /// This process has just created the partition.
    New(&'a LastSegment),
}

/// Result of opening a partition.
pub(crate) struct OpenedPartition {
    pub(crate) partition: Partition,
    pub(crate) losses: Vec<Loss>,
    /// Whether the files match the origin.
    pub(crate) is_clean: bool,
}

/// [`Partition::failure`] of a partition whose stream was deleted.
const DELETED: &str = "the stream was deleted";

/// Bytes of records whose write is deferred.
const DEFERRED_MAX: usize = 256 << 10;

/// An append's offset and time.
enum AppendPosition {
    /// At the end, with the current time.
    End,
    /// At an offset and time given by the caller, if the log ends at `expected_end`.
    At { base: u64, appended: u64, expected_end: u64 },
}

impl Partition {
    /// Opens an existing directory, or creates the partition in it.
    pub(crate) fn open(
        stream: Arc<str>,
        number: u32,
        dir: PathBuf,
        pool: &Arc<WriterPool>,
        config: &StreamConfig,
        prior: PriorState<'_>,
    ) -> Result<OpenedPartition, OpenError> {
        let (tail, is_new) = match prior {
            PriorState::Unknown => (None, false),
            PriorState::Closed(tail) => (Some(tail), false),
            PriorState::New(tail) => (Some(tail), true),
        };
        let now = (pool.clock)();
        let recovered = recover::open(&*pool.disk, &dir, &stream, number, tail, config.fsync, now)?;
        let is_clean = recovered.is_clean;
        let entries = VecDeque::from(recovered.entries);
        let state = State {
            config: config.clone(),
            sealed_bytes: entries.iter().rev().skip(1).map(|entry| entry.summary.bytes).sum(),
            entries,
            file: recovered.file,
            head: recovered.head,
            is_index_stored: is_clean && recovered.index.count() > INDEX_ENTRIES_MAX,
            index: Arc::new(recovered.index),
            is_reopened: !(recovered.is_created || is_new && is_clean),
            has_unsynced_head: recovered.is_created || is_new && is_clean,
            has_failed_sync: false,
            recent: RecentBatches::default(),
            next: 0,
            time: 0,
            durable: 0,
            dirty_since: None,
            unsynced: unsynced::Unsynced::default(),
            queue: queue::WriteQueue::default(),
            pending: 0,
            busy: false,
            is_deferred: false,
            deferred_job: None,
            executors: 0,
            compaction: compact::CompactionState::default(),
            closed: false,
            failed: None,
            full_since: None,
            waiters: Waiters::default(),
            index_requests: VecDeque::new(),
            is_rebuilding: false,
            counters: PartitionCounters::default(),
        };
        let core = Arc::new(PartitionCore {
            stream,
            number,
            dir,
            disk: pool.disk.clone(),
            pool: pool.clone(),
            limits: pool.limits.clone(),
            clock: pool.clock.clone(),
            state: Mutex::new(state),
            window: Mutex::default(),
            read_records: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            last_read: AtomicU64::new(0),
            deleted: AtomicBool::new(false),
            permanent_failure: OnceLock::new(),
            executor_changed: Condvar::new(),
            copy_observer: OnceLock::new(),
        });
        core.state().continue_behind_last();
        Ok(OpenedPartition { partition: Self { core }, losses: recovered.losses, is_clean })
    }

    /// The partition as a unit of the pool.
    pub(crate) fn work(&self) -> Arc<dyn WorkUnit> {
        self.core.clone()
    }

    /// Appends records as one batch. Never blocks. The returned [`Pending`] reports the outcome and may be dropped.
    ///
    /// # Errors
    ///
    /// [`AppendError`]; then nothing is appended.
    pub fn append(&self, records: Records) -> Result<Pending, AppendError> {
        self.core.append(AppendPosition::End, &records)
    }

    /// Appends a broker's records at their offset and time, if the log ends at `expected_end`: the log may have dropped
    /// earlier appends, so its end may be lower. The offset is at least [`PartitionOffsets::next`]. The time, in
    /// microseconds since 1970, is at most the current one. The broker has the records, so they may be written later:
    /// with the next records, when a reader waits for them, or after [`DEFERRAL`](crate::writer::DEFERRAL).
    pub(crate) fn append_if_end(
        &self,
        expected_end: u64,
        base: u64,
        appended: u64,
        records: Records,
    ) -> Result<Pending, AppendError> {
        // The log searches by this time; the broker searches by the records' times. A producer whose clock is ahead must
        // not hide later records.
        let appended = appended.min((self.core.clock)());
        self.core.append(AppendPosition::At { base, appended, expected_end }, &records)
    }

    /// Sets the observer of the records that a [`LogSink`](crate::broker::LogSink) appends. A partition has one observer:
    /// further ones are ignored.
    pub fn observe_copy(&self, observer: Arc<dyn CopyObserver>) {
        let _ = self.core.copy_observer.set(observer);
    }

    pub(crate) fn copy_observer(&self) -> Option<&dyn CopyObserver> {
        self.core.copy_observer.get().map(|observer| &**observer)
    }

    /// Current end offsets.
    pub fn offsets(&self) -> PartitionOffsets {
        self.core.state().offsets()
    }

    /// Offset at which reading begins, clamped to the available records: an offset removed by retention becomes the
    /// earliest one, and an offset beyond the end becomes the end.
    pub fn seek(&self, start: StartPosition) -> u64 {
        self.core.seek(start)
    }

    /// Offset at which reading begins, as [`seek`](Self::seek), for an event loop. It is pending while a start by time needs an
    /// index that the log's threads rebuild; they call `waker` then.
    pub fn poll_seek(&self, start: StartPosition, waker: &Waker) -> Poll<u64> {
        match start {
            StartPosition::Time(time) if self.core.waits_for_index_of_time(time, waker) => Poll::Pending,
            start => Poll::Ready(self.seek(start)),
        }
    }

    /// Reads whole batches from the batch that contains `from`, up to `max_bytes` and at least one. At the end the
    /// result is empty: [`watch`](Self::watch) waits for more.
    ///
    /// The bytes are pages of the file in the system's page cache. Reading may wait for the disk if they are not in
    /// memory. Headers have verified checksums; iterating over records verifies theirs.
    ///
    /// # Errors
    ///
    /// [`ReadError`]
    pub fn read(&self, from: u64, max_bytes: usize) -> Result<ReadResult, ReadError> {
        if self.core.is_deleted() {
            return Err(ReadError::Deleted);
        }
        self.core.last_read.store((self.core.clock)(), Ordering::Relaxed);
        let read = self.core.read(from, max_bytes)?;
        self.core.read_records.fetch_add(read.next.saturating_sub(from), Ordering::Relaxed);
        self.core.read_bytes.fetch_add(read.batches.len() as u64, Ordering::Relaxed);
        Ok(read)
    }

    /// As [`read`](Self::read), for a thread that must not block long. If an index must be rebuilt first, which takes a
    /// second for a 1 GiB segment, the log's threads rebuild it and call the waker.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn poll_read(
        &self,
        from: u64,
        max_bytes: usize,
        waker: &Waker,
    ) -> Poll<Result<ReadResult, ReadError>> {
        if self.core.waits_for_index(from, waker) {
            Poll::Pending
        } else {
            Poll::Ready(self.read(from, max_bytes))
        }
    }

    /// Whether the write queue has space for all these batches now. Another append may take it. A partition that has failed or is
    /// closed has space, so that the append reports the error.
    pub fn has_queue_space<'a>(&self, batches: impl IntoIterator<Item = &'a Records>) -> bool {
        let state = self.core.state();
        let mut pending = state.pending;
        state.rejection().is_some()
            || batches.into_iter().all(|records| {
                let before = pending;
                pending += BatchHeader::new(records, 0, 0).length as usize;
                self.core.limits.admits(before, pending)
            })
    }

    /// Returns whether the event has happened. If not, the waker is called once when it has, or when the partition
    /// fails or is closed. After a failure or close it returns false for events that will never happen, and true for
    /// [`PartitionEvent::QueueSpace`], so that the caller's next append reports the error.
    ///
    /// Wakeups may be spurious when the waiter limit is exceeded: the task checks again. The waker stays registered
    /// until then: see [`watcher`](Self::watcher) for a task that may end before.
    pub fn watch(&self, event: PartitionEvent, waker: &Waker) -> bool {
        self.core.watch(event, waker, 0).0
    }

    /// A registration for events that ends when it is dropped.
    pub fn watcher(&self) -> Watcher {
        Watcher::new(self.core.clone())
    }

    /// Counters and sizes.
    pub fn statistics(&self) -> Statistics {
        let state = self.core.state();
        let compaction = state.compaction.counters();
        Statistics {
            bytes: state.bytes(),
            segments: state.entries.len() as u64,
            pending: state.pending as u64,
            records: state.counters.records,
            batches: state.counters.batches,
            written: state.counters.written,
            writes: state.counters.writes,
            syncs: state.counters.syncs,
            sync_time: state.counters.sync_time,
            read_records: self.core.read_records.load(Ordering::Relaxed),
            read_bytes: self.core.read_bytes.load(Ordering::Relaxed),
            waiters: state.waiters.len() as u64,
            compactions: compaction.passes,
            compacted_records: compaction.removed_records,
            failed: state.failed.is_some(),
        }
    }

    /// Reason of the failure, if the partition has failed and rejects appends. Readable records remain readable.
    pub fn failure(&self) -> Option<Arc<str>> {
        self.core.state().failed.clone()
    }

    /// Times of the last append, queued ones included, and of the last read since the partition was opened, in microseconds
    /// since 1970.
    pub(crate) fn last_used(&self) -> (Option<u64>, Option<u64>) {
        self.core.last_used(&self.core.state())
    }

    /// Rejects further appends and reads of these partitions of a stream, if the last append and read are before this time
    /// and at most `max_waiters` wakers are registered. All are checked and marked under their locks, so that no append
    /// is accepted in between. No other code locks two partitions. Returns whether they are marked.
    pub(crate) fn mark_deleted_if_unused(all: &[Self], limit: u64, max_waiters: u64) -> bool {
        let states: Vec<_> = all.iter().map(|partition| (&partition.core, partition.core.state())).collect();
        let is_unused = states.iter().all(|(core, state)| {
            let (append, read) = core.last_used(state);
            append.max(read).is_none_or(|used| used < limit)
        });
        let waiters: usize = states.iter().map(|(_, state)| state.waiters.len()).sum();
        let is_unused = is_unused && waiters as u64 <= max_waiters;
        if is_unused {
            states.iter().for_each(|(core, _)| core.deleted.store(true, Ordering::Release));
        }
        is_unused
    }

    /// Extent of the partition, recorded for the time that it is closed.
    pub(crate) fn extent(&self) -> PartitionExtent {
        let state = self.core.state();
        let (offsets, last) = (state.offsets(), state.last());
        PartitionExtent {
            earliest: offsets.earliest,
            readable: offsets.readable,
            bytes: state.bytes(),
            segments: state.entries.len() as u64,
            first_time: state.entries.front().map_or(0, |first| first.summary.last_time),
            last_base: last.segment.base,
            last_bytes: last.summary.bytes,
        }
    }

    /// A closed partition's last segment. None if the next process must read it.
    pub(crate) fn tail(&self) -> Option<LastSegment> {
        let state = self.core.state();
        let is_durable = !state.has_unsynced_head && !state.has_failed_sync;
        if state.failed.is_some() || !state.closed || !is_durable {
            return None;
        }
        let index = (state.index.count() <= INDEX_ENTRIES_MAX).then(|| (*state.index).clone());
        Some(LastSegment { head: state.head?.checksum(), summary: state.last().summary, index })
    }

    /// Whether the partition has no known damage.
    pub(crate) fn is_intact(&self) -> bool {
        self.core.state().entries.iter().all(SegmentEntry::is_intact)
    }

    /// Whether only the stream and the clock have handles, and the partition was not used for `idle`.
    pub(crate) fn is_idle(&self, now: u64, idle: u64) -> bool {
        let (append, read) = self.last_used();
        let last = append.max(read).unwrap_or(0);
        // Handles to the stream, the clock and the caller.
        let has_other_handles = Arc::strong_count(&self.core) > 3;
        let state = self.core.state();
        !has_other_handles
            && now.saturating_sub(last) > idle
            && !state.busy
            && state.queue.first().is_none()
            && state.executors == 0
            && !state.is_rebuilding
            && !state.compaction.is_running()
            && state.waiters.is_empty()
    }

    /// Rejects further appends and reads with `Deleted`, fails pending appends, and wakes all waiters.
    pub(crate) fn discard(&self) {
        self.core.deleted.store(true, Ordering::Release);
        let mut state = self.core.state();
        state.failed.get_or_insert_with(|| DELETED.into());
        let rejected = state.take_queue();
        let wakers = state.take_ready_wakers(self.core.limits.max_pending);
        drop(state);
        rejected.into_iter().for_each(|batch| batch.completer.fail(AppendError::Deleted));
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Rejects further appends for good, and fails pending appends. Reads continue.
    pub(crate) fn fail_permanently(&self, reason: &Arc<str>) {
        // The first reason is kept.
        let _ = self.core.permanent_failure.set(reason.clone());
        let mut state = self.core.state();
        state.failed = Some(reason.clone());
        let rejected = state.take_queue();
        let wakers = state.take_ready_wakers(self.core.limits.max_pending);
        drop(state);
        let error = AppendError::Failed(reason.clone());
        rejected.into_iter().for_each(|batch| batch.completer.fail(error.clone()));
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Whether a thread or an executor has an operation on the partition's files in flight.
    pub(crate) fn is_busy(&self) -> bool {
        let state = self.core.state();
        state.busy || state.executors > 0 || state.is_rebuilding || state.compaction.is_running()
    }

    /// Whether [`compact`](Self::compact) would find enough to remove.
    pub(crate) fn compaction_is_due(&self, now: u64) -> bool {
        self.core.state().compaction_is_due(now)
    }

    /// Removes outdated records from closed segments. Blocks for the disk; `is_cancelled` ends it early.
    pub(crate) fn compact(&self, is_cancelled: &dyn Fn() -> bool) {
        self.core.compact(is_cancelled);
    }

    /// Applies a new configuration.
    pub(crate) fn set_config(&self, config: &StreamConfig) {
        self.core.state().config = config.clone();
    }

    /// Rejects further appends. Pending records are still written.
    pub(crate) fn stop(&self) {
        self.core.state().closed = true;
    }

    /// Waits for the executor to return the partition.
    pub(crate) fn wait_for_executor(&self) {
        self.core.wait_for_executor();
    }

    /// Syncs written records, and stores an index that is too large for the catalog. The writers have ended.
    pub(crate) fn close(&self) {
        self.core.finish();
        let mut state = self.core.state();
        if state.failed.is_none() {
            let is_dirty = state.dirty_since.is_some();
            let synced = if is_dirty { state.sync(&*self.core.disk) } else { Ok(()) };
            match synced {
                Ok(()) => {
                    state.has_unsynced_head &= !is_dirty;
                    state.durable = state.last().summary.end;
                    let last = state.last();
                    let is_large = state.index.count() > INDEX_ENTRIES_MAX;
                    // Without the index file, opening reads the segment.
                    if is_large && !state.is_index_stored && last.is_intact() {
                        let _ = last.segment.store(&*self.core.disk, &last.summary, &state.index);
                    }
                }
                Err(error) => {
                    let reason = format!("syncing: {error}");
                    tracing::error!(stream = %self.core.stream, partition = self.core.number, reason, "a partition has failed");
                    state.failed = Some(reason.into());
                }
            }
        }
        let mut wakers = state.take_ready_wakers(self.core.limits.max_pending);
        wakers.extend(state.take_index_wakers());
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partition")
            .field("stream", &self.core.stream)
            .field("number", &self.core.number)
            .field("ends", &self.offsets())
            .finish_non_exhaustive()
    }
}

impl PartitionCore {
    fn last_used(&self, state: &State) -> (Option<u64>, Option<u64>) {
        let read = self.last_read.load(Ordering::Relaxed);
        ((state.next > 0).then_some(state.time), (read > 0).then_some(read))
    }

    fn append(self: &Arc<Self>, position: AppendPosition, records: &Records) -> Result<Pending, AppendError> {
        let now = (self.clock)();
        let mut state = self.state();
        if self.is_deleted() {
            return Err(AppendError::Deleted);
        }
        if let Some(reason) = self.permanent_failure.get() {
            return Err(AppendError::Failed(reason.clone()));
        }
        if let Some(rejected) = state.rejection() {
            return Err(rejected);
        }
        let (base, appended, expected_end) = match position {
            AppendPosition::End => (state.next, state.time_of(now), None),
            // A broker's times are set by its producers and need not be in order.
            AppendPosition::At { base, appended, expected_end } => {
                (base, state.time_at(now, appended), Some(expected_end))
            }
        };
        if base < state.next || expected_end.is_some_and(|expected_end| expected_end != state.next) {
            return Err(AppendError::OutOfOrder { next: state.next });
        }
        if state.config.compact.is_some() && !records.have_keys() {
            return Err(AppendError::NoKey);
        }
        let most = state.config.segment_bytes.min(self.limits.max_batch as u64);
        let header = BatchHeader::new(records, base, appended);
        if u64::from(header.length) > most || base.checked_add(header.count.into()).is_none() {
            return Err(AppendError::TooLarge { most });
        }
        if state.is_full(now) {
            return Err(AppendError::NoSpace);
        }
        let pending = state.pending + header.length as usize;
        if !self.limits.admits(state.pending, pending) {
            return Err(AppendError::Busy);
        }
        let (completer, answer) = Pending::with_offset(base, header.count);
        state.queue.push(header, records, completer);
        state.pending = pending;
        (state.next, state.time) = (header.end(), header.appended);
        let may_wait = expected_end.is_some() && state.waiters.is_empty() && state.pending <= DEFERRED_MAX;
        if !may_wait {
            self.start_writing(state);
        } else if !state.busy && !std::mem::replace(&mut state.is_deferred, true) {
            drop(state);
            self.pool.push_later(self.clone());
        }
        Ok(answer)
    }
}
