//! What a partition knows, under its lock.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::Past;
use super::queue::{Queue, Queued};
use super::read::Unindexed;
use super::scan::Damage;
use super::unsynced::Unsynced;
use super::write::Job;
use crate::disk::{Disk, File};
use crate::index::{Index, Summary};
use crate::seal::Head;
use crate::segment::Segment;
use crate::{AppendError, Ends, Fsync, StreamConfig};

/// A segment, and how far it goes.
pub(super) struct Entry {
    pub(super) segment: Arc<Segment>,
    /// Of what readers may see; of the last segment that is what has been written, too, but while a write is under way.
    pub(super) summary: Summary,
    /// What of that is damaged, as far as it is known.
    pub(super) damaged: Arc<[Hole]>,
    /// What is wrong behind that, if something is.
    pub(super) damage: Option<Arc<str>>,
}

impl Entry {
    pub(super) fn new(segment: Arc<Segment>, summary: Summary) -> Self {
        Self { segment, summary, damaged: [].into(), damage: None }
    }

    /// Whether all of it is right, as far as is known: only then it need not be read when the log is opened.
    pub(super) fn is_right(&self) -> bool {
        self.damaged.is_empty() && self.damage.is_none()
    }
}

/// A damaged part of a segment, and the offset of the first batch behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hole {
    pub(super) damage: Damage,
    pub(super) resume: u64,
}

pub(super) struct State {
    pub(super) config: StreamConfig,
    /// Never empty; batches are appended to the last.
    pub(super) entries: VecDeque<Entry>,
    /// Bytes of all of them but the last.
    pub(super) sealed_bytes: u64,
    /// The last one's file.
    pub(super) file: Arc<dyn File>,
    /// The last one's index.
    pub(super) index: Index,
    /// It has a file, which is right.
    pub(super) is_index_stored: bool,
    /// The last one's head. None: it has no key, and is not appended to.
    pub(super) head: Option<Head>,
    /// Another process has begun it.
    pub(super) is_reopened: bool,
    /// This process has begun it and has not synced it.
    pub(super) has_unsynced_head: bool,
    /// There was no room to sync what was written to it last.
    pub(super) has_unsynced_end: bool,
    pub(super) recent: Recent,
    /// The offset that comes next, and the time of the batch before it.
    pub(super) next: u64,
    pub(super) time: u64,
    pub(super) durable: u64,
    /// Since when something is written and not synced.
    pub(super) dirty_since: Option<u64>,
    pub(super) unsynced: Unsynced,
    pub(super) queue: Queue,
    /// Bytes in the queue and under way.
    pub(super) pending: usize,
    /// A writer has the partition, or will. Whoever sets it puts the partition in line.
    pub(super) busy: bool,
    /// Begun by somebody who could not carry it out.
    pub(super) left: Option<Job>,
    /// How often it is with somebody who writes in place of the threads: once, but while it changes hands.
    pub(super) carried: u32,
    pub(super) closed: bool,
    pub(super) failed: Option<Arc<str>>,
    /// When there was no room the last time.
    pub(super) full_since: Option<u64>,
    pub(super) waiters: VecDeque<(Past, Waker)>,
    /// Segments whose index is to be made.
    pub(super) unindexed: VecDeque<Unindexed>,
    pub(super) counters: Counters,
}

/// Where the last batches of the last segment begin. Whoever waits for what comes next is there, and may be many.
#[derive(Default)]
pub(super) struct Recent(VecDeque<(u64, u64)>);

/// So many of them.
const RECENT: usize = 64;

impl Recent {
    pub(super) fn note(&mut self, offset: u64, position: u64) {
        if self.0.len() == RECENT {
            self.0.pop_front();
        }
        self.0.push_back((offset, position));
    }

    /// Where to begin looking for an offset, if it is not before all of them.
    pub(super) fn position(&self, offset: u64) -> Option<u64> {
        let behind = self.0.partition_point(|(base, _)| *base <= offset);
        behind.checked_sub(1).map(|place| self.0[place].1)
    }

    /// The last segment is another one.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Since the log was opened.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) records: u64,
    pub(super) batches: u64,
    pub(super) written: u64,
    pub(super) writes: u64,
    pub(super) syncs: u64,
    pub(super) sync_time: Duration,
}

/// How long nothing is tried after there was no room.
const FULL: u64 = 1_000_000;

/// How far the time of a batch may lead the clock, in microseconds. A clock that is set back by less stands still; one that
/// is set back further begins a segment, within which times only grow.
const LEAD_MOST: u64 = 60_000_000;

/// A segment is ended for its age when that is this part of how long it is kept: what is to go goes at most so much
/// later.
const AGE_PARTS: u32 = 4;

impl State {
    /// The segment that is appended to.
    pub(super) fn last(&self) -> &Entry {
        // The last entry is only ever followed by another one.
        self.entries.back().expect("a partition has a segment")
    }

    pub(super) fn last_mut(&mut self) -> &mut Entry {
        self.entries.back_mut().expect("a partition has a segment")
    }

    pub(super) fn ends(&self) -> Ends {
        let earliest = self.entries.front().map_or(self.next, |entry| entry.summary.first);
        Ends { earliest, readable: self.last().summary.end, durable: self.durable, next: self.next }
    }

    /// Whether nothing is appended any more.
    pub(super) fn refuses(&self) -> Option<AppendError> {
        let failed = || self.failed.clone().map(AppendError::Failed);
        if self.closed { Some(AppendError::Closed) } else { failed() }
    }

    pub(super) fn is_full(&self, now: u64) -> bool {
        self.full_since.is_some_and(|since| now.checked_sub(since).is_some_and(|passed| passed < FULL))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.sealed_bytes + self.last().summary.bytes
    }

    /// Takes the first segment, unless it is the only one.
    pub(super) fn take_first(&mut self) -> Option<Arc<Segment>> {
        let entry = if self.entries.len() > 1 { self.entries.pop_front() } else { None };
        self.sealed_bytes -= entry.as_ref().map_or(0, |entry| entry.summary.bytes);
        entry.map(|entry| entry.segment)
    }

    /// The segment is what is appended to from now on.
    pub(super) fn push(&mut self, entry: Entry) {
        self.sealed_bytes += self.last().summary.bytes;
        self.recent.clear();
        self.entries.push_back(entry);
    }

    /// Whether the first batch that waits needs a new segment, or the last one has been there for long.
    pub(super) fn should_roll(&self, now: u64) -> bool {
        let last = &self.last().summary;
        let is_too_small = self.queue.first().is_some_and(|first| self.room() < u64::from(first.length));
        let is_old = self.config.retain_age.is_some_and(|age| {
            let most = micros(age / AGE_PARTS);
            now.saturating_sub(last.first_time) > most && !self.is_full(now)
        });
        let first = self.queue.first();
        let goes_back = first.is_some_and(|first| first.appended < last.last_time);
        let is_ahead = self.config.retain_age.is_some() && last.first_time > now.saturating_add(LEAD_MOST);
        let is_old = is_old || is_ahead && !self.is_full(now) || goes_back;
        let is_ended = first.is_some() && self.is_ended();
        is_ended || !last.is_empty() && (is_too_small || is_old)
    }

    /// The time of a batch that is appended now.
    pub(super) fn time_of(&self, now: u64) -> u64 {
        if self.time > now.saturating_add(LEAD_MOST) { now } else { now.max(self.time) }
    }

    /// Whether nothing is appended to the last segment any more. No place of a file is written to a second time once its
    /// batch may have been seen: where that is not certain, the next process begins a segment, with a key of its own.
    fn is_ended(&self) -> bool {
        let is_synced = self.config.fsync == Fsync::Batch;
        // The head of an empty segment may be one that could not be synced: it is written anew.
        let is_unsure = self.is_reopened && self.last().summary.is_empty();
        let is_continued =
            |head: &Head| if head.synced { is_synced && !is_unsure } else { !self.is_reopened };
        self.has_unsynced_end || !self.head.as_ref().is_some_and(is_continued)
    }

    /// Whether the segment that is begun next replaces what the file before it has from there on.
    pub(super) fn replaces(&self) -> bool {
        let is_begun_anew = self.last().summary.is_empty();
        self.has_unsynced_end || is_begun_anew && self.head.is_some_and(|head| head.replaces)
    }

    /// Bytes for which the last segment has room.
    pub(super) fn room(&self) -> u64 {
        self.config.segment_bytes.saturating_sub(self.last().summary.bytes)
    }

    /// Whether it is time to sync what is written.
    pub(super) fn should_sync(&self, now: u64) -> bool {
        // The clock looks every half interval, so that the whole is kept.
        if self.unsynced.is_refused && self.is_full(now) {
            return false;
        }
        let is_due = |since: u64, interval| now < since || now - since >= micros(interval) / 2;
        match (self.config.fsync, self.dirty_since) {
            (_, None) | (Fsync::Never, _) => false,
            (Fsync::Batch, Some(_)) => true,
            (Fsync::Interval(interval), Some(since)) => is_due(since, interval),
        }
    }

    /// Syncs what is written to the last segment.
    pub(super) fn sync(&self, disk: &dyn Disk) -> io::Result<()> {
        let last = self.last();
        self.unsynced.sync(disk, &last.segment, &*self.file, last.summary.bytes)
    }

    /// Whether retention wants the first segment gone.
    pub(super) fn should_remove(&self, now: u64) -> bool {
        let (Some(first), true) = (self.entries.front(), self.entries.len() > 1) else { return false };
        let is_much = self.config.retain_bytes.is_some_and(|most| self.bytes() - first.summary.bytes >= most);
        let is_old = self
            .config
            .retain_age
            .is_some_and(|age| now.saturating_sub(self.last_time_of_first(now)) > micros(age));
        is_much || is_old
    }

    /// When the newest batch of the first segment was appended. If the clock was ahead then, not later than the first
    /// batch of a later segment.
    fn last_time_of_first(&self, now: u64) -> u64 {
        let mut times = self.entries.iter();
        let last_time = times.next().map_or(now, |first| first.summary.last_time);
        if last_time <= now {
            return last_time;
        }
        times.map(|entry| entry.summary.first_time).fold(last_time, u64::min)
    }

    /// The segment that holds the first batch of this time or later, or what comes before.
    pub(super) fn segment_of_time(&self, time: u64) -> Option<usize> {
        let mut filled =
            self.entries.iter().enumerate().filter(|(_, entry)| !entry.summary.is_empty()).peekable();
        while let Some((at, entry)) = filled.next() {
            let summary = &entry.summary;
            // A clock that was set back within the time of a segment was ahead at its end.
            let behind = filled.peek().map(|(_, behind)| behind.summary.first_time);
            let ahead = behind.filter(|behind| (summary.first_time..summary.last_time).contains(behind));
            if ahead.unwrap_or(summary.last_time) >= time {
                return Some(at);
            }
        }
        None
    }

    /// Takes everything that waits, since it will not be written; the offsets will be given again.
    pub(super) fn give_up_queue(&mut self) -> Vec<Queued> {
        let batches = self.queue.clear();
        let bytes: usize = batches.iter().map(|batch| batch.header.length as usize).sum();
        self.pending = self.pending.saturating_sub(bytes);
        let last = &self.last().summary;
        (self.next, self.time) = (last.end, last.last_time);
        batches
    }

    /// Whether what a waiter waits for has happened. None: it never will.
    pub(super) fn has_happened(&self, past: Past, max_pending: usize) -> Option<bool> {
        let is_over = self.closed || self.failed.is_some();
        let happened = match past {
            Past::Readable(offset) => self.last().summary.end > offset,
            Past::Durable(offset) => self.durable > offset,
            Past::Room => is_over || self.pending <= max_pending / 2,
        };
        (happened || !is_over).then_some(happened)
    }

    /// Takes the wakers whose time has come, or all, if nothing more will happen.
    pub(super) fn take_woken(&mut self, max_pending: usize) -> Vec<Waker> {
        let mut woken = Vec::new();
        let mut waiters = std::mem::take(&mut self.waiters);
        // Most have waited for the same, so this keeps few.
        waiters.retain(|(past, waker)| {
            let stays = self.has_happened(*past, max_pending) == Some(false);
            if !stays {
                woken.push(waker.clone());
            }
            stays
        });
        self.waiters = waiters;
        woken
    }
}

pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
