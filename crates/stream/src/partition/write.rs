//! The writer's side: `begin` returns a job, the caller executes it, and `finish` takes the result. Neither blocks, so
//! a thread can execute the job, or an event loop that waits for completions.

use std::io;
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use sinews_file::AppendFile;

use super::queue::{self, Piece, Queued, WRITE_MOST};
use super::read::Known;
use super::state::{Entry, State};
use super::unsynced::Unsynced;
use super::{Core, Fsync};
use crate::disk::{Disk, File, append_all, is_shortage};
use crate::index::{Index, Summary};
use crate::seal::{HEAD, Head, Seal};
use crate::segment::Segment;
use crate::{AppendError, Durability};

/// The next job.
pub(super) enum Job {
    Write(Write),
    Roll(Roll),
    Remove(Arc<Segment>),
    Index(Arc<Segment>, Known),
}

/// Bytes to write at the end of a file, and whether to sync them.
pub(crate) struct Write {
    segment: Arc<Segment>,
    file: Arc<dyn File>,
    /// Length of the file before the write.
    start: u64,
    batches: Vec<Queued>,
    /// Pieces without sealed headers.
    waiting: Vec<Piece>,
    seal: Option<Seal>,
    pub(crate) pieces: Vec<Bytes>,
    sync: bool,
    unsynced: Unsynced,
    /// The batches are invisible to readers before they are synced.
    takes_back: bool,
    /// All earlier writes have been synced.
    is_first: bool,
    /// Start time by the log's clock.
    begun: u64,
}

/// Result of a write.
pub(super) struct Written {
    /// Number of batches that are completely in the file, and synced if requested.
    whole: usize,
    end: End,
}

enum End {
    Done,
    NoSpace,
    /// The sync found no space. The written bytes are cut off, and nothing more is appended to the file.
    Unsynced,
    /// The sync found no space, and readers may have seen the records. They are rewritten before the next sync.
    SyncRefused,
    Failed(String),
}

/// The last segment is full: creates the next one.
pub(super) struct Roll {
    old: Arc<Segment>,
    file: Arc<dyn File>,
    summary: Summary,
    index: Index,
    is_right: bool,
    dirty: bool,
    unsynced: Unsynced,
    new: Arc<Segment>,
    /// Readers see only synced records.
    synced: bool,
    replaces: bool,
    now: u64,
}

impl Core {
    /// The next job. None: the partition is no longer busy.
    pub(super) fn begin(&self) -> Option<Job> {
        let now = (self.clock)();
        let mut state = self.state();
        if let Some(job) = state.left.take() {
            return Some(job);
        }
        if let Some(wanted) = state.unindexed.front() {
            return Some(Job::Index(wanted.segment.clone(), wanted.known));
        }
        if state.failed.is_none() {
            if state.should_remove(now)
                && let Some(segment) = state.take_first()
            {
                return Some(Job::Remove(segment));
            }
            if state.should_roll(now) {
                return Some(Job::Roll(self.begin_roll(&mut state, now)));
            }
            let sync_due = state.should_sync(now);
            if state.queue.first().is_some() || sync_due {
                let mut write = begin_write(&mut state, sync_due, now);
                drop(state);
                write.seal();
                return Some(Job::Write(write));
            }
        }
        state.busy = false;
        None
    }

    fn begin_roll(&self, state: &mut State, now: u64) -> Roll {
        let index = std::mem::take(&mut state.index);
        let last = state.last();
        Roll {
            old: last.segment.clone(),
            file: state.file.clone(),
            summary: last.summary,
            index,
            is_right: last.is_right(),
            dirty: state.dirty_since.is_some(),
            unsynced: state.unsynced,
            new: Arc::new(Segment::new(&self.dir, last.summary.end)),
            synced: state.config.fsync == Fsync::Batch,
            replaces: state.replaces(),
            now,
        }
    }

    /// Executes a job and applies its result. Blocks.
    pub(super) fn carry_out(&self, job: Job) {
        match job {
            Job::Write(write) => {
                let written = write.carry_out(&*self.disk);
                self.finish_write(write, written);
            }
            Job::Roll(mut roll) => {
                let file = roll.carry_out(&*self.disk);
                self.finish_roll(roll, file);
            }
            Job::Index(segment, known) => {
                if let Err(error) = self.make_index(&segment, &known) {
                    tracing::warn!(path = %segment.path().display(), %error, "an index could not be rebuilt");
                    // Readers of the segment get the error.
                    segment.set_index(Arc::default());
                }
                let made = self.state().unindexed.pop_front();
                made.into_iter().flat_map(|made| made.wakers).for_each(Waker::wake);
            }
            Job::Remove(segment) => {
                if let Err(error) = segment.remove(&*self.disk) {
                    // The next opening of the log finds the segment again.
                    tracing::warn!(path = %segment.path().display(), %error, "a segment could not be removed");
                }
            }
        }
    }

    /// Writes records that were appended while the writers ended. Nothing more is appended.
    pub(super) fn finish(&self) {
        // Unless a carrier has the partition: it cannot be waited for here.
        while self.state().carried == 0
            && let Some(job) = self.begin()
        {
            self.carry_out(job);
        }
        let refused = self.state().give_up_queue();
        tell(Vec::new(), refused, Some(AppendError::Closed), Vec::new());
    }

    /// Begins a write for a carrier. Blocking operations, syncs in particular, are left to the threads.
    pub(crate) fn begin_carried(self: &Arc<Self>) -> Option<(Write, Arc<AppendFile>)> {
        let Some(job) = self.begin() else {
            self.returned();
            return None;
        };
        match job {
            Job::Write(write) if !write.sync => match write.file.clone().real() {
                Some(file) => return Some((write, file)),
                None => self.state().left = Some(Job::Write(write)),
            },
            other => self.state().left = Some(other),
        }
        self.give_back();
        None
    }

    /// Returns the partition to the log's threads.
    pub(crate) fn give_back(self: &Arc<Self>) {
        self.push();
        self.returned();
    }

    fn returned(&self) {
        self.state().carried -= 1;
        self.carriers.notify_all();
    }

    /// Waits until no carrier has the partition. The partition rejects further appends.
    pub(super) fn wait_for_carrier(&self) {
        let mut state = self.state();
        while state.carried > 0 {
            state = self.carriers.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Applies the result of a carried write. Returns whether the carrier may have more to do.
    pub(crate) fn finish_carried(
        self: &Arc<Self>,
        write: Write,
        written: u64,
        result: io::Result<()>,
    ) -> bool {
        let written = match result {
            Ok(()) => Written { whole: write.batches.len(), end: End::Done },
            Err(error) if is_shortage(&error) => write.cut_back(written),
            Err(error) => Written::failed("writing", &error),
        };
        self.finish_write(write, written);
        let is_closed = self.state().closed;
        if is_closed {
            self.give_back();
        }
        !is_closed
    }

    fn finish_write(&self, write: Write, written: Written) {
        let now = (self.clock)();
        let mut state = self.state();
        let mut position = write.start;
        state.is_index_stored &= write.batches.is_empty();
        for batch in &write.batches[..written.whole] {
            state.index.note(position, &batch.header);
            state.recent.note(batch.header.base, position);
            state.last_mut().summary.add(&batch.header);
            position += u64::from(batch.header.length);
            state.counters.records += u64::from(batch.header.count);
        }
        state.counters.batches += written.whole as u64;
        state.counters.written += position - write.start;
        state.counters.writes += u64::from(!write.batches.is_empty());
        let bytes: usize = write.batches.iter().map(|batch| batch.header.length as usize).sum();
        state.pending = state.pending.saturating_sub(bytes);
        let is_synced =
            write.sync && !matches!(written.end, End::Failed(_) | End::Unsynced | End::SyncRefused);
        if is_synced {
            state.has_unsynced_head = false;
            state.counters.syncs += 1;
            state.counters.sync_time += Duration::from_micros(now.saturating_sub(write.begun));
            state.dirty_since = None;
            state.unsynced = Unsynced { from: position, is_refused: false };
            state.durable = state.last().summary.end;
        } else if written.whole > 0 {
            state.dirty_since.get_or_insert(now);
        }
        let mut batches = write.batches;
        let mut refused = batches.split_off(written.whole);
        let error = match written.end {
            End::Done => None,
            End::NoSpace => Some(self.refuse(&mut state, now, &mut refused)),
            End::Unsynced => {
                state.has_unsynced_end = true;
                Some(self.refuse(&mut state, now, &mut refused))
            }
            End::SyncRefused => {
                state.unsynced.is_refused = true;
                Some(self.refuse(&mut state, now, &mut refused))
            }
            End::Failed(why) => Some(self.fail(&mut state, &why, &mut refused)),
        };
        let woken = state.take_woken(self.limits.max_pending);
        drop(state);
        tell(batches, refused, error, woken);
    }

    fn finish_roll(&self, roll: Roll, begun: io::Result<(Arc<dyn File>, Head)>) {
        let now = (self.clock)();
        let mut state = self.state();
        let mut refused = Vec::new();
        let error = match begun {
            Ok((file, head)) => {
                let summary =
                    Summary::empty(roll.new.base, HEAD as u64, roll.summary.last_time.min(roll.now));
                if roll.summary.is_empty() {
                    // The empty segment had the same name.
                    *state.last_mut() = Entry::new(roll.new, summary);
                } else {
                    roll.old.set_index(Arc::new(roll.index));
                    state.push(Entry::new(roll.new, summary));
                }
                state.file = file;
                (state.is_index_stored, state.has_unsynced_head) = (false, true);
                (state.head, state.is_reopened, state.has_unsynced_end) = (Some(head), false, false);
                (state.dirty_since, state.unsynced) = (None, Unsynced::default());
                state.durable = roll.summary.end;
                None
            }
            Err(error) => {
                (state.index, state.unsynced) = (roll.index, roll.unsynced);
                Some(if is_shortage(&error) {
                    self.refuse(&mut state, now, &mut refused)
                } else {
                    let why = format!("{}: {error}", roll.new.path().display());
                    self.fail(&mut state, &why, &mut refused)
                })
            }
        };
        let woken = state.take_woken(self.limits.max_pending);
        drop(state);
        tell(Vec::new(), refused, error, woken);
    }

    /// The disk is full: fails all waiting batches, whose offsets are assigned again.
    fn refuse(&self, state: &mut State, now: u64, refused: &mut Vec<Queued>) -> AppendError {
        if !state.is_full(now) {
            tracing::warn!(stream = %self.stream, partition = self.number, "no space is left for a stream");
        }
        state.full_since = Some(now);
        refused.append(&mut state.give_up_queue());
        AppendError::NoSpace
    }

    /// Fails the partition. Readable records remain readable.
    fn fail(&self, state: &mut State, why: &str, refused: &mut Vec<Queued>) -> AppendError {
        refused.append(&mut state.give_up_queue());
        if self.is_deleted() {
            return AppendError::Deleted;
        }
        tracing::error!(stream = %self.stream, partition = self.number, why, "a partition has failed");
        let why: Arc<str> = why.into();
        state.failed = Some(why.clone());
        AppendError::Failed(why)
    }
}

/// Notifies producers and readers without holding the lock, since they may call back immediately.
fn tell(done: Vec<Queued>, refused: Vec<Queued>, error: Option<AppendError>, woken: Vec<Waker>) {
    for batch in done {
        // Without a broker, no durability is higher than the disk.
        batch.completer.reached(Durability::Broker, batch.header.base);
    }
    if let Some(error) = error {
        for batch in refused {
            batch.completer.fail(error.clone());
        }
    }
    for waker in woken {
        waker.wake();
    }
}

fn begin_write(state: &mut State, sync_due: bool, begun: u64) -> Write {
    let first = state.queue.first().map_or(0, |first| u64::from(first.length));
    let unsynced = state.unsynced;
    let (batches, waiting) = if unsynced.is_refused {
        (Vec::new(), Vec::new())
    } else {
        state.queue.take(first.max(state.room().min(WRITE_MOST)))
    };
    let takes_back = state.config.fsync == Fsync::Batch;
    let last = state.last();
    let (segment, file, start) = (last.segment.clone(), state.file.clone(), last.summary.bytes);
    let sync = sync_due || takes_back || unsynced.is_refused;
    let seal = state.head.map(|head| head.seal);
    let is_first = state.dirty_since.is_none();
    let pieces = Vec::new();
    Write {
        segment,
        file,
        start,
        batches,
        waiting,
        seal,
        pieces,
        sync,
        unsynced,
        takes_back,
        is_first,
        begun,
    }
}

impl Write {
    /// Writes the headers, which takes some time, without the lock. A segment without a seal is not written to.
    fn seal(&mut self) {
        if let Some(seal) = &self.seal {
            let waiting = std::mem::take(&mut self.waiting);
            self.pieces = queue::seal(&mut self.batches, waiting, seal, self.start);
        }
    }

    fn carry_out(&self, disk: &dyn Disk) -> Written {
        let (count, result) = append_all(&*self.file, &self.pieces);
        let written = match result {
            Ok(()) => Written { whole: self.batches.len(), end: End::Done },
            Err(error) if is_shortage(&error) => self.cut_back(count),
            Err(error) => Written::failed("writing", &error),
        };
        if !self.sync || matches!(written.end, End::Failed(_)) {
            return written;
        }
        // A second sync may succeed although bytes of the failed sync are lost: it is never retried, unless the bytes
        // are rewritten first.
        let end = self.start
            + self.batches[..written.whole].iter().map(|batch| u64::from(batch.header.length)).sum::<u64>();
        match self.unsynced.sync(disk, &self.segment, &*self.file, end) {
            Ok(()) => written,
            Err(error) if is_shortage(&error) && (!self.takes_back || self.unsynced.is_refused) => {
                Written { end: End::SyncRefused, ..written }
            }
            Err(error) if self.takes_back && self.is_first && is_shortage(&error) => self.take_back(),
            Err(error) => {
                if self.takes_back {
                    // The system may keep the unsynced bytes in memory and show them to the next process as if they
                    // were durable. No reader has seen them yet, so they are cut off; if that fails, the disk has a
                    // worse problem.
                    let _ = self.file.truncate(self.start);
                }
                Written::failed("syncing", &error)
            }
        }
    }

    /// Handles a full disk for records that no reader has seen. They are cut off and that is synced: the pages of the
    /// failed sync no longer belong to the file, and the next segment takes the next batches.
    fn take_back(&self) -> Written {
        match self.file.truncate(self.start).and_then(|()| self.file.sync()) {
            Ok(()) => Written { whole: 0, end: End::Unsynced },
            Err(error) => Written::failed("cutting off batches that could not be synced", &error),
        }
    }

    /// Cuts off an incomplete batch.
    fn cut_back(&self, count: u64) -> Written {
        let mut bytes = 0;
        let whole = self.batches.iter().take_while(|batch| {
            let is_whole = bytes + u64::from(batch.header.length) <= count;
            bytes += if is_whole { u64::from(batch.header.length) } else { 0 };
            is_whole
        });
        let whole = whole.count();
        match self.file.truncate(self.start + bytes) {
            Ok(()) => Written { whole, end: End::NoSpace },
            Err(error) => Written::failed("cutting back", &error),
        }
    }
}

impl Written {
    fn failed(what: &str, error: &io::Error) -> Self {
        Self { whole: 0, end: End::Failed(format!("{what}: {error}")) }
    }
}

impl Roll {
    fn carry_out(&mut self, disk: &dyn Disk) -> io::Result<(Arc<dyn File>, Head)> {
        // Independent of the stream's `Fsync`: so only the last segment can end within a batch.
        if self.dirty {
            let synced = self.unsynced.sync(disk, &self.old, &*self.file, self.summary.bytes);
            let is_refused = synced.as_ref().is_err_and(is_shortage);
            match synced {
                Err(error) if !is_refused => return Err(io::Error::other(format!("syncing: {error}"))),
                Err(error) => {
                    self.unsynced.is_refused = true;
                    return Err(error);
                }
                Ok(()) => self.unsynced = Unsynced { from: self.summary.bytes, is_refused: false },
            }
        }
        // If the index cannot be written, the next opening of the log rebuilds it.
        if self.is_right && !self.summary.is_empty() {
            let _ = self.old.store(disk, &self.summary, &self.index);
        }
        let seal = Seal::random(self.new.base)?;
        let head = Head { seal, created: self.now, synced: self.synced, replaces: self.replaces };
        Ok((self.new.create(disk, &head)?, head))
    }
}
