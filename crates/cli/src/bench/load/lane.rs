//! The messages of one connection: which are sent, which are answered, and what they count.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::plan::Plan;
use super::super::tally::{Failure, Live, Tally, record};

/// What all connections of a thread share, but for the memory of its sessions.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) plan: Arc<Plan>,
    pub(crate) tally: Tally,
    pub(crate) live: Arc<Live>,
    /// Of this chunk or turn.
    pub(crate) now: Instant,
    pub(crate) epoch: Instant,
    /// What is measured; before it is known, nothing is sent.
    pub(crate) window: Option<Window>,
    /// Messages that may still be sent, with --count.
    pub(crate) budget: Option<u64>,
    /// Nothing more is sent.
    pub(crate) stopped: bool,
    /// Messages that were sent and are not answered, or due and not sent.
    pub(crate) outstanding: u64,
}

/// A part of time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) begin: Instant,
    /// Measured from here,
    pub(crate) from: Instant,
    /// up to here; `None`: as long as it takes.
    pub(crate) until: Option<Instant>,
}

impl Window {
    pub(crate) fn holds(&self, at: Instant) -> bool {
        at >= self.from && self.until.is_none_or(|until| at < until)
    }
}

impl Desk {
    /// Whether another message may be sent without being due: in a closed loop.
    pub(crate) fn takes_next(&mut self) -> bool {
        if self.stopped || self.window.is_none() || self.plan.rate.is_some() {
            return false;
        }
        if self.window.and_then(|window| window.until).is_some_and(|until| self.now >= until) {
            self.stopped = true;
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

    pub(crate) fn measures(&self, at: Instant) -> bool {
        self.window.is_some_and(|window| window.holds(at))
    }

    pub(crate) fn fail(&mut self, failure: Failure, count: u64, example: impl FnOnce() -> String) {
        self.live.errors.add(count);
        self.tally.fail(failure, count, example);
    }

    fn counted(&mut self, due: Instant, bytes: usize) {
        self.live.messages.add(1);
        if self.measures(self.now) {
            self.tally.messages += 1;
            self.tally.last = Some(self.now);
            self.tally.bytes_received += bytes as u64;
        }
        if self.measures(due) {
            record(&mut self.tally.latency, self.now.saturating_duration_since(due));
        }
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
    sent: VecDeque<Instant>,
    /// Due, and too many are unanswered.
    waiting: VecDeque<Instant>,
}

impl Lane {
    /// `waiting`: when messages were due that a connection before this has left.
    pub(crate) fn new(ordinal: usize, waiting: VecDeque<Instant>) -> Self {
        let first = (ordinal as u64) << 36;
        Self { ordinal, next: first, expected: first, sent: VecDeque::new(), waiting }
    }

    /// What is not answered, for the connection that takes this one's place.
    pub(crate) fn leave(&mut self) -> VecDeque<Instant> {
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
                desk.now
            }
            None => return None,
        };
        self.sent.push_back(due);
        self.next += 1;
        Some(self.next - 1)
    }

    pub(crate) fn sent_bytes(&self, desk: &mut Desk, bytes: usize) {
        if desk.measures(desk.now) {
            desk.tally.bytes_sent += bytes as u64;
        }
    }

    /// A message is due that did not wait for an answer.
    pub(crate) fn due(&mut self, at: Instant, desk: &mut Desk) {
        desk.outstanding += 1;
        self.waiting.push_back(at);
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

    pub(crate) fn is_idle(&self) -> bool {
        self.sent.is_empty() && self.waiting.is_empty()
    }

    /// The connection has gone, or time is up: what is not answered has waited until now, at least.
    pub(crate) fn give_up(&mut self, desk: &mut Desk) {
        let lost = self.sent.len() + self.waiting.len();
        for due in self.sent.drain(..).chain(self.waiting.drain(..)) {
            if desk.measures(due) {
                record(&mut desk.tally.latency, desk.now.saturating_duration_since(due));
            }
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
        let nanos = due.saturating_duration_since(desk.epoch).as_nanos() as u64;
        let fill = String::from_utf8_lossy(desk.plan.corpus.message(number)).into_owned();
        let fill = &fill[..fill.len().saturating_sub(STAMP)];
        if desk.measures(due) {
            desk.tally.published += 1;
        }
        desk.live.expected.add(desk.plan.subscribers(topic));
        Some(format!("{MARK}{nanos:016x}{number:08x}{fill}."))
    }
}

/// Reads what a publisher wrote out of whatever its server made of it.
pub(crate) fn delivered(message: &[u8], desk: &mut Desk) -> Result<(), String> {
    // What the server says for itself is no delivery.
    let Some(at) = memchr::memmem::find(message, MARK.as_bytes()) else { return Ok(()) };
    let rest = &message[at + MARK.len()..];
    let hex = |range: std::ops::Range<usize>| {
        let text = rest.get(range).and_then(|bytes| std::str::from_utf8(bytes).ok());
        text.and_then(|text| u64::from_str_radix(text, 16).ok()).ok_or("a delivery's time cannot be read")
    };
    let (nanos, number) = (hex(0..16)?, hex(16..24)?);
    let fill = desk.plan.corpus.message(number);
    let fill = &fill[..fill.len().saturating_sub(STAMP)];
    let body = &rest[24..];
    if !body.starts_with(fill) || body.get(fill.len()) != Some(&b'.') {
        return Err("a delivery differs from what was published".to_owned());
    }
    let due = desk.epoch + Duration::from_nanos(nanos);
    desk.counted(due, message.len());
    Ok(())
}

/// Begins what a publisher sends.
const MARK: &str = "~sb~";

/// Bytes of a publication beside what fills it up.
const STAMP: usize = MARK.len() + 16 + 8 + 1;
