//! A partition: one sequence of records.

mod queue;
mod read;
mod recover;
mod scan;
mod state;
mod unsynced;
mod write;

pub(crate) use write::Write;

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;

use crate::catalog::{Extent, INDEX_ENTRIES_MAX, Tail};
use crate::disk::Disk;
use crate::record::{BatchHeader, Records};
use crate::writer::{Clock, Pool, Work};
use crate::{AppendError, Fsync, Loss, OpenError, Pending, ReadError, StreamConfig, StreamsConfig, Task};
use read::Window;
use state::{Counters, Recent, State};

/// Position at which to begin reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// At the first available record.
    Earliest,
    /// Behind the last visible record: only new records.
    Latest,
    /// At this offset, or the nearest available one.
    Offset(u64),
    /// At the first batch appended at or after this time, in microseconds since 1970.
    Time(u64),
}

/// Event that a waker waits for: see [`Partition::watch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Past {
    /// The record of this offset is visible to readers.
    Readable(u64),
    /// The record of this offset has been synced.
    Durable(u64),
    /// The write queue has space: less than half of its limit is used.
    Room,
}

/// Offsets that bound a partition's records. Each except `earliest` is the offset behind the last such record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ends {
    /// Offset of the first available record.
    pub earliest: u64,
    /// End of the records visible to readers.
    pub readable: u64,
    /// End of the synced records.
    pub durable: u64,
    /// End of the appended records: the offset of the next append.
    pub next: u64,
}

/// Result of a read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Read {
    /// Whole batches, shared and not copied; empty at the end of the partition. The first batch contains the requested
    /// offset, so the caller may have to skip records before it.
    pub batches: Bytes,
    /// Offset of the next read.
    pub next: u64,
}

/// Counters since the log was opened, and sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Bytes on disk.
    pub bytes: u64,
    /// Segments on disk.
    pub segments: u64,
    /// Bytes waiting to be written.
    pub pending: u64,
    /// Records appended.
    pub records: u64,
    /// Batches appended.
    pub batches: u64,
    /// Bytes written.
    pub written: u64,
    /// Number of write calls.
    pub writes: u64,
    /// Number of syncs, each of a group of batches or of earlier writes.
    pub syncs: u64,
    /// Total time of these syncs, from the first byte written to the end of the sync.
    pub sync_time: Duration,
    /// Records read, by all readers.
    pub read_records: u64,
    /// Bytes read, by all readers.
    pub read_bytes: u64,
    /// Number of registered wakers.
    pub waiters: u64,
    /// Whether the partition has failed.
    pub failed: bool,
}

/// Handle of a partition, a sequence of records. Cheap to clone.
#[derive(Clone)]
pub struct Partition {
    core: Arc<Core>,
}

/// Prior knowledge of a partition that is opened.
#[derive(Clone, Copy)]
pub(crate) enum Origin<'a> {
    /// None: the partition may have been open when a process ended.
    Unknown,
    /// The partition was cleanly closed with this last segment.
    Closed(&'a Tail),
    /// This process has just created the partition.
    New(&'a Tail),
}

/// Result of opening a partition.
pub(crate) struct Opened {
    pub(crate) partition: Partition,
    pub(crate) losses: Vec<Loss>,
    /// Whether the files match the origin.
    pub(crate) is_clean: bool,
}

/// [`Partition::failure`] of a partition whose stream was deleted.
const DELETED: &str = "the stream was deleted";

/// Offset and time of an append.
enum Place {
    /// At the end, with the current time.
    Next,
    /// At an offset and time given by the caller, if the log ends at `behind`.
    At { base: u64, appended: u64, behind: Option<u64> },
}

/// State shared by all clones.
pub(crate) struct Core {
    stream: Arc<str>,
    number: u32,
    dir: PathBuf,
    disk: Arc<dyn Disk>,
    pool: Arc<Pool>,
    limits: StreamsConfig,
    clock: Clock,
    state: Mutex<State>,
    /// Last shared window at the end of the log, since many readers want the same bytes.
    window: Mutex<Option<Window>>,
    read_records: AtomicU64,
    read_bytes: AtomicU64,
    /// Time of the last read, in microseconds since 1970; 0 before the first.
    last_read: AtomicU64,
    /// Whether the stream was deleted: reads and appends fail.
    deleted: AtomicBool,
    /// Reason why appends are rejected until the log is opened again, even after a disk failure is repaired.
    lost: OnceLock<Arc<str>>,
    /// Notified when a carrier has returned the partition.
    carriers: Condvar,
}

impl Partition {
    /// Opens an existing directory, or creates the partition in it.
    pub(crate) fn open(
        (stream, number): (Arc<str>, u32),
        dir: PathBuf,
        pool: &Arc<Pool>,
        config: &StreamConfig,
        origin: Origin<'_>,
    ) -> Result<Opened, OpenError> {
        let (tail, is_new) = match origin {
            Origin::Unknown => (None, false),
            Origin::Closed(tail) => (Some(tail), false),
            Origin::New(tail) => (Some(tail), true),
        };
        let rule = (config.fsync, (pool.clock)());
        let recovered = recover::open(&*pool.disk, &dir, (&stream, number), tail, rule)?;
        let is_clean = recovered.is_clean;
        let entries = VecDeque::from(recovered.entries);
        let state = State {
            config: config.clone(),
            sealed_bytes: entries.iter().rev().skip(1).map(|entry| entry.summary.bytes).sum(),
            entries,
            file: recovered.file,
            head: recovered.head,
            is_index_stored: is_clean && recovered.index.count() > INDEX_ENTRIES_MAX,
            index: recovered.index,
            is_reopened: !(recovered.is_begun || is_new && is_clean),
            has_unsynced_head: recovered.is_begun || is_new && is_clean,
            has_unsynced_end: false,
            recent: Recent::default(),
            next: 0,
            time: 0,
            durable: 0,
            dirty_since: None,
            unsynced: unsynced::Unsynced::default(),
            queue: queue::Queue::default(),
            pending: 0,
            busy: false,
            left: None,
            carried: 0,
            closed: false,
            failed: None,
            full_since: None,
            waiters: VecDeque::new(),
            unindexed: VecDeque::new(),
            counters: Counters::default(),
        };
        let core = Arc::new(Core {
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
            lost: OnceLock::new(),
            carriers: Condvar::new(),
        });
        let mut state = core.state();
        let last = state.last().summary;
        (state.next, state.time, state.durable) = (last.end, last.last_time, last.end);
        drop(state);
        Ok(Opened { partition: Self { core }, losses: recovered.losses, is_clean })
    }

    /// The partition as a unit of the pool.
    pub(crate) fn work(&self) -> Arc<dyn Work> {
        self.core.clone()
    }

    /// Appends records as one batch. Never blocks. The returned [`Pending`] reports the outcome and may be dropped.
    ///
    /// # Errors
    ///
    /// [`AppendError`]; then nothing is appended.
    pub fn append(&self, records: Records) -> Result<Pending, AppendError> {
        self.core.append(Place::Next, &records)
    }

    /// Appends records at an offset and a time that the caller has, from a broker. The offset is at least
    /// [`Ends::next`]. A time before that of the previous batch, in microseconds since 1970, is raised to it.
    ///
    /// # Errors
    ///
    /// [`AppendError`]; then nothing is appended.
    pub fn append_at(&self, base: u64, appended: u64, records: Records) -> Result<Pending, AppendError> {
        self.core.append(Place::At { base, appended, behind: None }, &records)
    }

    /// As [`append_at`](Self::append_at), if the log ends at `behind`: the log may have dropped earlier appends, so its
    /// end may be lower.
    #[cfg(any(feature = "kafka", feature = "redis", feature = "nats"))]
    pub(crate) fn append_behind(
        &self,
        behind: u64,
        (base, appended): (u64, u64),
        records: Records,
    ) -> Result<Pending, AppendError> {
        self.core.append(Place::At { base, appended, behind: Some(behind) }, &records)
    }

    /// Current end offsets.
    pub fn ends(&self) -> Ends {
        self.core.state().ends()
    }

    /// Offset at which reading begins, clamped to the available records: an offset removed by retention becomes the
    /// earliest one, and an offset beyond the end becomes the end.
    pub fn seek(&self, start: Start) -> u64 {
        self.core.seek(start)
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
    pub fn read(&self, from: u64, max_bytes: usize) -> Result<Read, ReadError> {
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
    /// second for a segment of 1 GiB, the log's threads rebuild it and call the waker.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn poll_read(&self, from: u64, max_bytes: usize, waker: &Waker) -> Poll<Result<Read, ReadError>> {
        if self.core.awaits_index(from, waker) {
            Poll::Pending
        } else {
            Poll::Ready(self.read(from, max_bytes))
        }
    }

    /// Returns whether the event has happened. If not, the waker is called once when it has, or when the partition
    /// fails or is closed. After a failure or close it returns false for events that will never happen, and true for
    /// [`Past::Room`], so that the caller's next append reports the error.
    ///
    /// Wakeups may be spurious when the limit of waiters is exceeded: the task checks again.
    pub fn watch(&self, past: Past, waker: &Waker) -> bool {
        let mut state = self.core.state();
        let Some(happened) = state.has_happened(past, self.core.limits.max_pending) else { return false };
        if happened {
            return true;
        }
        let is_full = state.waiters.len() >= self.core.limits.max_waiters;
        let longest = if is_full { state.waiters.pop_front() } else { None };
        state.waiters.push_back((past, waker.clone()));
        drop(state);
        if let Some((_, waker)) = longest {
            waker.wake();
        }
        false
    }

    /// Counters and sizes.
    pub fn statistics(&self) -> Statistics {
        let state = self.core.state();
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
            failed: state.failed.is_some(),
        }
    }

    /// Reason of the failure, if the partition has failed and rejects appends. Readable records remain readable.
    pub fn failure(&self) -> Option<Arc<str>> {
        self.core.state().failed.clone()
    }

    /// Times of the last append and the last read since the partition was opened, in microseconds since 1970.
    pub(crate) fn last_used(&self) -> (Option<u64>, Option<u64>) {
        let last = self.core.state().last().summary;
        let read = self.core.last_read.load(Ordering::Relaxed);
        ((last.end > 0).then_some(last.last_time), (read > 0).then_some(read))
    }

    /// Extent of the partition, recorded for the time that it is closed.
    pub(crate) fn extent(&self) -> Extent {
        let state = self.core.state();
        let (ends, last) = (state.ends(), state.last());
        Extent {
            earliest: ends.earliest,
            readable: ends.readable,
            bytes: state.bytes(),
            segments: state.entries.len() as u64,
            first_time: state.entries.front().map_or(0, |first| first.summary.last_time),
            last_base: last.segment.base,
            last_bytes: last.summary.bytes,
        }
    }

    /// The last segment of a closed partition. None if the next process must read it.
    pub(crate) fn tail(&self) -> Option<Tail> {
        let state = self.core.state();
        let is_durable = !state.has_unsynced_head && !state.has_unsynced_end;
        if state.failed.is_some() || !state.closed || !is_durable {
            return None;
        }
        let index = (state.index.count() <= INDEX_ENTRIES_MAX).then(|| state.index.clone());
        Some(Tail { head: state.head?.checksum(), summary: state.last().summary, index })
    }

    /// Whether the partition has no known damage.
    pub(crate) fn is_right(&self) -> bool {
        self.core.state().entries.iter().all(state::Entry::is_right)
    }

    /// Whether only the stream and the clock have handles, and the partition was not used for `idle`.
    pub(crate) fn is_unused(&self, now: u64, idle: u64) -> bool {
        let (append, read) = self.last_used();
        let last = append.max(read).unwrap_or(0);
        // Handles of the stream, the clock and the caller.
        let is_held = Arc::strong_count(&self.core) > 3;
        let state = self.core.state();
        !is_held
            && now.saturating_sub(last) > idle
            && !state.busy
            && state.carried == 0
            && state.waiters.is_empty()
    }

    /// Rejects further appends and reads with `Deleted`, fails pending appends, and wakes all waiters.
    pub(crate) fn discard(&self) {
        self.core.deleted.store(true, Ordering::Release);
        let mut state = self.core.state();
        state.failed.get_or_insert_with(|| DELETED.into());
        let refused = state.give_up_queue();
        let woken = state.take_woken(self.core.limits.max_pending);
        drop(state);
        refused.into_iter().for_each(|batch| batch.completer.fail(AppendError::Deleted));
        woken.into_iter().for_each(Waker::wake);
    }

    /// Rejects further appends for good, and fails pending appends. Reads continue.
    pub(crate) fn fail_for_good(&self, why: &Arc<str>) {
        // The first reason is kept.
        let _ = self.core.lost.set(why.clone());
        let mut state = self.core.state();
        state.failed = Some(why.clone());
        let refused = state.give_up_queue();
        let woken = state.take_woken(self.core.limits.max_pending);
        drop(state);
        let error = AppendError::Failed(why.clone());
        refused.into_iter().for_each(|batch| batch.completer.fail(error.clone()));
        woken.into_iter().for_each(Waker::wake);
    }

    /// Whether a thread or a carrier has an operation on the partition's files in flight.
    pub(crate) fn is_busy(&self) -> bool {
        let state = self.core.state();
        state.busy || state.carried > 0
    }

    /// Applies a new configuration.
    pub(crate) fn set_config(&self, config: &StreamConfig) {
        self.core.state().config = config.clone();
    }

    /// Rejects further appends. Pending records are still written.
    pub(crate) fn stop(&self) {
        self.core.state().closed = true;
    }

    /// Waits for the carrier to return the partition.
    pub(crate) fn wait_for_carrier(&self) {
        self.core.wait_for_carrier();
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
                    if is_large && !state.is_index_stored && last.is_right() {
                        let _ = last.segment.store(&*self.core.disk, &last.summary, &state.index);
                    }
                }
                Err(error) => {
                    let why = format!("syncing: {error}");
                    tracing::error!(stream = %self.core.stream, partition = self.core.number, why, "a partition has failed");
                    state.failed = Some(why.into());
                }
            }
        }
        let woken = state.take_woken(self.core.limits.max_pending);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partition")
            .field("stream", &self.core.stream)
            .field("number", &self.core.number)
            .field("ends", &self.ends())
            .finish_non_exhaustive()
    }
}

impl Core {
    fn append(self: &Arc<Self>, place: Place, records: &Records) -> Result<Pending, AppendError> {
        let now = (self.clock)();
        let mut state = self.state();
        if self.is_deleted() {
            return Err(AppendError::Deleted);
        }
        if let Some(why) = self.lost.get() {
            return Err(AppendError::Failed(why.clone()));
        }
        if let Some(refused) = state.refuses() {
            return Err(refused);
        }
        let (base, appended, behind) = match place {
            Place::Next => (state.next, state.time_of(now), None),
            // A broker's times are set by its producers and need not be in order.
            Place::At { base, appended, behind } => (base, appended.max(state.time), behind),
        };
        if base < state.next || behind.is_some_and(|behind| behind != state.next) {
            return Err(AppendError::OutOfOrder { next: state.next });
        }
        let most = state.config.segment_bytes.min(self.limits.max_batch as u64);
        let header = BatchHeader::of(records, base, appended);
        if u64::from(header.length) > most || base.checked_add(header.count.into()).is_none() {
            return Err(AppendError::TooLarge { most });
        }
        if state.is_full(now) {
            return Err(AppendError::NoSpace);
        }
        let pending = state.pending + header.length as usize;
        if pending > self.limits.max_pending && state.pending > 0 {
            return Err(AppendError::Busy);
        }
        let (completer, answer) = Pending::placed(base, header.count);
        state.queue.push(header, records, completer);
        state.pending = pending;
        (state.next, state.time) = (header.end(), header.appended);
        if !std::mem::replace(&mut state.busy, true) && !self.carry(state) {
            self.push();
        }
        Ok(answer)
    }

    /// Passes the partition to the carrier, if there is one and the work suits it.
    fn carry(self: &Arc<Self>, mut state: MutexGuard<'_, State>) -> bool {
        if state.closed || state.config.fsync == Fsync::Batch {
            return false;
        }
        let Some(carrier) = self.pool.carrier() else { return false };
        state.carried += 1;
        drop(state);
        carrier.carry(Task::new(self.clone()));
        true
    }

    /// Queues the partition for the log's threads.
    pub(crate) fn push(self: &Arc<Self>) {
        self.pool.push(self.clone());
    }

    fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Acquire)
    }

    /// No code panics while holding the lock, except where a comment gives the reason why it cannot.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Work for Core {
    fn work(self: Arc<Self>) -> bool {
        let Some(job) = self.begin() else { return false };
        self.carry_out(job);
        !self.carry(self.state())
    }

    fn tick(&self, now: u64) -> bool {
        let mut state = self.state();
        let is_due = state.should_remove(now) || state.should_roll(now) || state.should_sync(now);
        is_due && state.failed.is_none() && !std::mem::replace(&mut state.busy, true)
    }

    fn rest(&self) {
        self.forget_window();
        let state = self.state();
        let sealed = state.entries.len() - 1;
        state.entries.iter().take(sealed).for_each(|entry| entry.segment.rest());
    }
}
