//! The messages of one connection: which are sent, which are answered, and what they count.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::super::plan::Plan;
use super::super::tally::{Failure, Live, Tally};

/// What all connections of a thread share, but for the memory of its sessions.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) plan: Arc<Plan>,
    pub(crate) tally: Tally,
    pub(crate) live: Arc<Live>,
    /// Of this chunk or turn, as [`at`](Self::at) was told.
    pub(crate) now: Instant,
    pub(crate) epoch: Instant,
    /// The same, since the epoch.
    since: Nanos,
    /// Before it is known, nothing is sent.
    window: Option<Window>,
    /// What of it is measured; empty before it is known.
    measured: Range<Nanos>,
    /// Messages that may still be sent, with --count.
    pub(crate) budget: Option<u64>,
    /// Nothing more is sent.
    pub(crate) stopped: bool,
    /// Messages that were sent and are not answered, or due and not sent.
    pub(crate) outstanding: u64,
}

/// Nanoseconds since the epoch of the run: what is done for each message compares and subtracts these, which is a
/// fraction of the work that an `Instant` makes.
pub(crate) type Nanos = u64;

/// A part of time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) begin: Instant,
    /// Measured from here,
    pub(crate) from: Instant,
    /// up to here; `None`: as long as it takes.
    pub(crate) until: Option<Instant>,
}

impl Desk {
    pub(crate) fn new(plan: Arc<Plan>, live: Arc<Live>, epoch: Instant, budget: Option<u64>) -> Self {
        Self {
            plan,
            tally: Tally::new(),
            live,
            now: epoch,
            epoch,
            since: 0,
            window: None,
            measured: 0..0,
            budget,
            stopped: false,
            outstanding: 0,
        }
    }

    /// What happens next happens at this time.
    #[inline]
    pub(crate) fn at(&mut self, now: Instant) {
        self.now = now;
        self.since = self.nanos(now);
        self.stopped |= self.window.is_some() && self.since >= self.measured.end;
    }

    /// From now on messages are sent.
    pub(crate) fn begin(&mut self, window: Window, now: Instant) {
        self.set_window(window);
        self.at(now);
    }

    /// The window is over by then, if it has begun.
    pub(crate) fn end_window(&mut self, at: Instant) {
        if let Some(window) = self.window {
            let until = Some(window.until.map_or(at, |until| until.min(at)));
            self.set_window(Window { until, ..window });
        }
    }

    fn set_window(&mut self, window: Window) {
        self.window = Some(window);
        self.measured = self.nanos(window.from)..window.until.map_or(Nanos::MAX, |until| self.nanos(until));
    }

    pub(crate) fn window(&self) -> Option<Window> {
        self.window
    }

    /// Whether what happens now is measured.
    #[inline]
    pub(crate) fn measures_now(&self) -> bool {
        self.measured.contains(&self.since)
    }

    /// Whether what was due then is.
    pub(crate) fn measures(&self, due: Instant) -> bool {
        self.measured.contains(&self.nanos(due))
    }

    #[inline]
    fn nanos(&self, at: Instant) -> Nanos {
        at.saturating_duration_since(self.epoch).as_nanos() as Nanos
    }

    /// Something that was due then is done, or given up.
    #[inline]
    fn waited(&mut self, due: Nanos) {
        if self.measured.contains(&due) {
            self.tally.latency.saturating_record(self.since.saturating_sub(due).max(1));
        }
    }

    /// Whether another message may be sent without being due: in a closed loop.
    pub(crate) fn takes_next(&mut self) -> bool {
        if self.stopped || self.window.is_none() || self.plan.rate.is_some() {
            return false;
        }
        match &mut self.budget {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }

    pub(crate) fn fail(&mut self, failure: Failure, count: u64, example: impl FnOnce() -> String) {
        self.live.errors.add(count);
        self.tally.fail(failure, count, example);
    }

    #[inline]
    fn counted(&mut self, due: Nanos, bytes: usize) {
        self.live.messages.add(1);
        if self.measures_now() {
            self.tally.messages += 1;
            self.tally.last = Some(self.now);
            self.tally.bytes_received += bytes as u64;
        }
        self.waited(due);
    }
}

/// What is sent is numbered; so is what is expected.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) ordinal: usize,
    /// Number of the next message, and of the next answer.
    next: u64,
    expected: u64,
    /// When those in between were due, or sent.
    sent: VecDeque<Nanos>,
    /// Due, and too many are unanswered.
    waiting: VecDeque<Nanos>,
}

impl Lane {
    /// `waiting`: when messages were due that a connection before this has left.
    pub(crate) fn new(ordinal: usize, waiting: VecDeque<Nanos>) -> Self {
        let first = (ordinal as u64) << 36;
        Self { ordinal, next: first, expected: first, sent: VecDeque::new(), waiting }
    }

    /// What is not answered, for the connection that takes this one's place.
    pub(crate) fn leave(&mut self) -> VecDeque<Nanos> {
        self.sent.drain(..).chain(self.waiting.drain(..)).collect()
    }

    /// Number of a message that leaves now, if one may: due earlier, or the next of a closed loop.
    pub(crate) fn take(&mut self, desk: &mut Desk) -> Option<u64> {
        if self.sent.len() >= desk.plan.in_flight {
            return None;
        }
        let due = match self.waiting.pop_front() {
            Some(due) => due,
            None if desk.takes_next() => {
                desk.outstanding += 1;
                desk.since
            }
            None => return None,
        };
        self.sent.push_back(due);
        self.next += 1;
        Some(self.next - 1)
    }

    pub(crate) fn sent_bytes(&self, desk: &mut Desk, bytes: usize) {
        if desk.measures_now() {
            desk.tally.bytes_sent += bytes as u64;
        }
    }

    /// A message is due that did not wait for an answer.
    pub(crate) fn due(&mut self, at: Instant, desk: &mut Desk) {
        desk.outstanding += 1;
        self.waiting.push_back(desk.nanos(at));
    }

    /// Number of the message that the next answer belongs to; `None`: nothing was asked.
    pub(crate) fn expects(&self) -> Option<u64> {
        (!self.sent.is_empty()).then_some(self.expected)
    }

    /// The next answer is whole, and right.
    pub(crate) fn answered(&mut self, desk: &mut Desk, bytes: usize) {
        let Some(due) = self.sent.pop_front() else { return };
        self.expected += 1;
        desk.outstanding -= 1;
        desk.counted(due, bytes);
    }

    /// The next answer is wrong, which is told as such: the message is not sent again, nor told as unanswered.
    pub(crate) fn answered_wrongly(&mut self, desk: &mut Desk) {
        if self.sent.pop_front().is_some() {
            desk.outstanding -= 1;
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.sent.is_empty() && self.waiting.is_empty()
    }

    /// The connection has gone, or time is up: what is not answered has waited until now, at least.
    pub(crate) fn give_up(&mut self, desk: &mut Desk) {
        let lost = self.sent.len() + self.waiting.len();
        for due in self.sent.drain(..).chain(self.waiting.drain(..)) {
            desk.waited(due);
        }
        desk.outstanding -= lost as u64;
        if lost > 0 {
            desk.fail(Failure::NoAnswer, lost as u64, || "messages were not answered in time".to_owned());
        }
    }

    /// What goes to subscribers: a mark, the time and a number, and what fills it up.
    pub(crate) fn publication(&mut self, topic: usize, desk: &mut Desk) -> Option<String> {
        let due = self.waiting.pop_front()?;
        desk.outstanding -= 1;
        let number = self.next & u64::from(u32::MAX);
        self.next += 1;
        let fill = String::from_utf8_lossy(desk.plan.corpus.message(number)).into_owned();
        let fill = &fill[..fill.len().saturating_sub(STAMP)];
        if desk.measured.contains(&due) {
            desk.tally.published += 1;
        }
        desk.live.expected.add(desk.plan.subscribers(topic));
        Some(format!("{MARK}{due:016x}{number:08x}{fill}."))
    }
}

/// Reads what a publisher wrote out of whatever its server made of it.
pub(crate) fn delivered(message: &[u8], desk: &mut Desk) -> Result<(), String> {
    // What the server says for itself is no delivery.
    let Some(at) = memchr::memmem::find(message, MARK.as_bytes()) else { return Ok(()) };
    let rest = &message[at + MARK.len()..];
    let hex = |range: Range<usize>| {
        let text = rest.get(range).and_then(|bytes| std::str::from_utf8(bytes).ok());
        text.and_then(|text| u64::from_str_radix(text, 16).ok()).ok_or("a delivery's time cannot be read")
    };
    let (due, number) = (hex(0..16)?, hex(16..24)?);
    let fill = desk.plan.corpus.message(number);
    let fill = &fill[..fill.len().saturating_sub(STAMP)];
    let body = &rest[24..];
    if !body.starts_with(fill) || body.get(fill.len()) != Some(&b'.') {
        return Err("a delivery differs from what was published".to_owned());
    }
    desk.counted(due, message.len());
    Ok(())
}

/// Begins what a publisher sends.
const MARK: &str = "~sb~";

/// Bytes of a publication beside what fills it up.
const STAMP: usize = MARK.len() + 16 + 8 + 1;
