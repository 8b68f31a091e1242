//! Retained messages of a topic, for late subscribers.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sinews_engine::ConnId;
use sinews_session::Prepared;

/// History policy of a topic: beyond any of its limits, the oldest messages expire.
///
/// A message of a topic with history has a [`Position`]. Every subscriber gets the messages of a topic in the topic's
/// order. That includes the publisher, whose own messages arrive in that order and not before its later sends.
#[derive(Clone, Copy, Debug)]
pub struct History {
    pub(super) messages: usize,
    pub(super) bytes: usize,
    pub(super) age: Option<Duration>,
}

impl History {
    /// Retains this number of messages of each topic, at least 1: with 1, the last value.
    #[must_use]
    pub fn new(messages: usize) -> Self {
        Self { messages, bytes: 1 << 20, age: None }
    }

    /// Limit of the retained payload of one topic in bytes; the last message is retained regardless of its size.
    /// Default 1 MiB.
    #[must_use]
    pub fn with_max_bytes(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
        self
    }

    /// Approximate maximum age of a retained message. Late subscribers do not get an expired message, and its memory
    /// is freed by later publications. Default: no limit.
    #[must_use]
    pub fn with_max_age(mut self, age: Duration) -> Self {
        self.age = Some(age);
        self
    }
}

/// Position of a message in its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "a pair of numbers, which a client sends back")]
pub struct Position {
    /// Run of the topic: changes after a restart, or after all of the topic was removed. Below 2^53, so that JSON
    /// represents it exactly.
    pub epoch: u64,
    /// Sequence of the message; starts at 1, without gaps.
    pub sequence: u64,
}

/// Start of a subscription in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// The last messages, this many; 1 is the last value.
    Last(usize),
    /// Messages after this one: to resume after a reconnect.
    After(Position),
}

/// Result of a subscription with a [`Start`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Joined {
    /// The topic's last message so far; its sequence is 0 if there is none.
    pub position: Position,
    /// Number of earlier messages that are being delivered.
    pub replayed: u64,
    /// No message after the requested position has expired: no gap.
    pub complete: bool,
}

/// Retained state of one topic, for a successor server: [`Publisher::histories`].
///
/// [`Publisher::histories`]: crate::Publisher::histories
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "to be taken apart, sent, and put together again")]
pub struct KeptTopic {
    /// Name of the topic.
    pub name: String,
    /// Position of the last message, retained or not.
    pub position: Position,
    /// The last messages in order, without gaps.
    pub messages: Vec<KeptMessage>,
}

/// Message of a [`KeptTopic`].
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "as its topic")]
pub struct KeptMessage {
    /// The message.
    pub message: Prepared,
    /// Time since its publication.
    pub age: Duration,
}

/// Retained messages of one topic.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) epoch: u64,
    /// The sequence of the next message.
    pub(super) next: u64,
    messages: VecDeque<Kept>,
    bytes: usize,
    /// Without messages, its position is kept until then for subscribers that resume.
    awaited: Option<Instant>,
    /// The directory has removed it; another one with its name may exist.
    pub(super) gone: bool,
}

#[derive(Debug)]
struct Kept {
    at: Instant,
    message: Prepared,
    except: Option<(usize, ConnId)>,
}

impl Log {
    pub(super) fn new(epoch: u64) -> Self {
        Self { epoch, next: 1, messages: VecDeque::new(), bytes: 0, awaited: None, gone: false }
    }

    /// Returns the sequence of the oldest retained message; of the next message if none is retained.
    pub(super) fn first(&self) -> u64 {
        self.next - self.messages.len() as u64
    }

    pub(super) fn position(&self) -> Position {
        Position { epoch: self.epoch, sequence: self.next - 1 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Returns whether messages were published in this epoch.
    pub(super) fn has_begun(&self) -> bool {
        self.next > 1
    }

    /// Marks it as subscribed, so that it is not removed.
    pub(super) fn subscribed(&mut self) {
        self.awaited = None;
    }

    /// Keeps its position for this time, without messages or subscribers.
    pub(super) fn await_return(&mut self, return_time: Duration) -> Instant {
        let now = Instant::now();
        *self.awaited.get_or_insert_with(|| now.checked_add(return_time).unwrap_or(now))
    }

    /// Ends it after its last subscriber has left. Without messages it is removed at once if a new topic would have
    /// the same position, with `epoch` and no publication; otherwise after `return_time` for its subscribers to
    /// return. Returns whether it is removed.
    pub(super) fn end(&mut self, epoch: u64, return_time: Duration) -> bool {
        if !self.is_empty() {
            return false;
        }
        let begins_again = !self.has_begun() && self.epoch == epoch;
        self.gone = begins_again || self.await_return(return_time) <= Instant::now();
        self.gone
    }

    /// Evicts all messages. Without subscribers, it is removed. Returns the number of evicted messages.
    pub(super) fn evict(&mut self, is_deserted: bool) -> u64 {
        let messages = self.messages.len() as u64;
        self.clear();
        self.gone = is_deserted;
        messages
    }

    /// Restores the state of another server.
    pub(super) fn go_on(&mut self, topic: KeptTopic, limits: &History) {
        let Position { epoch, sequence } = topic.position;
        (self.epoch, self.next) = (epoch, sequence.saturating_add(1));
        let now = Instant::now();
        // No more messages than the sequence allows.
        let beyond = topic.messages.len().saturating_sub(usize::try_from(sequence).unwrap_or(usize::MAX));
        for KeptMessage { message, age } in topic.messages.into_iter().skip(beyond) {
            self.bytes += message.payload().len();
            self.messages.push_back(Kept { at: now.checked_sub(age).unwrap_or(now), message, except: None });
        }
        self.trim(limits);
    }

    /// Exports the state for [`go_on`](Self::go_on) of another server.
    pub(super) fn export(&self, name: &str) -> KeptTopic {
        let kept = |kept: &Kept| KeptMessage { message: kept.message.clone(), age: kept.at.elapsed() };
        let messages = self.messages.iter().map(kept).collect();
        KeptTopic { name: name.to_owned(), position: self.position(), messages }
    }

    /// Sets the position of the last message, unless it is already later in the same epoch.
    pub(super) fn go_on_behind(&mut self, position: Position) {
        let is_same = position.epoch == self.epoch;
        if is_same && position.sequence < self.next {
            return;
        }
        if !is_same {
            self.clear();
            self.epoch = position.epoch;
        }
        self.skip_to(position.sequence.saturating_add(1));
    }

    /// Sets the sequence of the next message; a gap clears earlier messages.
    pub(super) fn skip_to(&mut self, sequence: u64) {
        if sequence != self.next {
            self.clear();
            self.next = sequence;
        }
    }

    /// Returns its approximate memory in bytes.
    pub(super) fn cost(&self) -> usize {
        self.bytes + self.messages.len() * MESSAGE_COST
    }

    pub(super) fn append(&mut self, message: Prepared, except: Option<(usize, ConnId)>, limits: &History) {
        self.bytes += message.payload().len();
        self.messages.push_back(Kept { at: Instant::now(), message, except });
        self.next += 1;
        self.awaited = None;
        self.trim(limits);
    }

    /// Removes messages beyond the limits.
    pub(super) fn trim(&mut self, limits: &History) {
        let old = |kept: &Kept| limits.age.is_some_and(|age| kept.at.elapsed() > age);
        while let Some(first) = self.messages.front() {
            let exceeds = self.messages.len() > limits.messages
                || self.bytes > limits.bytes && self.messages.len() > 1
                || old(first);
            if !exceeds {
                return;
            }
            self.bytes -= first.message.payload().len();
            self.messages.pop_front();
        }
        self.messages = VecDeque::new();
    }

    /// Removes all messages and keeps the position.
    pub(super) fn clear(&mut self) {
        self.messages = VecDeque::new();
        self.bytes = 0;
    }

    /// Returns the first sequence of a start, and whether no earlier message is missing.
    pub(super) fn start(&self, start: Start) -> (u64, bool) {
        match start {
            Start::Last(count) => (self.next.saturating_sub(count as u64).max(self.first()), true),
            Start::After(position) => {
                let follows = position.epoch == self.epoch && position.sequence < self.next;
                let wanted = if follows { position.sequence + 1 } else { 0 };
                (wanted.max(self.first()), wanted >= self.first())
            }
        }
    }

    /// Returns retained messages from a sequence on, each with its sequence and the connection excluded by its
    /// publisher.
    pub(super) fn from(
        &self,
        sequence: u64,
    ) -> impl Iterator<Item = (u64, &Prepared, Option<(usize, ConnId)>)> {
        let skip = sequence.saturating_sub(self.first());
        let kept = self.messages.iter().skip(usize::try_from(skip).unwrap_or(usize::MAX));
        (sequence.max(self.first())..).zip(kept).map(|(at, kept)| (at, &kept.message, kept.except))
    }
}

/// How long a topic without messages and subscribers keeps its position, so that a subscriber that resumes learns
/// that it has missed no message.
pub(super) const RETURN_TIME: Duration = Duration::from_secs(60);

/// Overhead of a message beside its payload, in bytes.
const MESSAGE_COST: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn log(limits: &History, count: u64) -> Log {
        let mut log = Log::new(7);
        (1..=count).for_each(|number| log.append(Prepared::text(format!("{number:02}")), None, limits));
        log
    }

    fn kept(log: &Log, from: u64) -> Vec<u64> {
        for (sequence, message, _) in log.from(from) {
            assert_eq!(message.payload(), format!("{sequence:02}").as_bytes());
        }
        log.from(from).map(|(sequence, ..)| sequence).collect()
    }

    #[test]
    fn oldest_messages_are_removed_at_every_limit() {
        for limits in [History::new(3), History::new(100).with_max_bytes(7)] {
            let log = log(&limits, 10);
            assert_eq!((log.first(), log.position().sequence, kept(&log, 0)), (8, 10, vec![8, 9, 10]));
            assert_eq!((kept(&log, 10), kept(&log, 11), kept(&log, 50)), (vec![10], vec![], vec![]));
        }
        let large = log(&History::new(3).with_max_bytes(1), 2);
        assert_eq!(kept(&large, 0), [2], "the last is kept however large it is");
        let mut old = log(&History::new(3), 2);
        old.trim(&History::new(3).with_max_age(Duration::ZERO));
        assert_eq!((kept(&old, 0), old.first(), old.cost()), (vec![], 3, 0));
    }

    #[test]
    fn position_can_be_set_from_outside() {
        let mut log = log(&History::new(3), 10);
        let position = log.position();
        let behind = |sequence| Position { sequence, ..position };
        log.go_on_behind(behind(9));
        log.go_on_behind(position);
        assert_eq!((log.position(), kept(&log, 0)), (position, vec![8, 9, 10]));
        log.go_on_behind(behind(20));
        assert_eq!((log.position(), kept(&log, 0)), (behind(20), vec![]));
        log.append(Prepared::text("21"), None, &History::new(3));
        let other = Position { epoch: position.epoch ^ 1, sequence: 5 };
        log.go_on_behind(other);
        assert_eq!((log.position(), kept(&log, 0), log.cost()), (other, vec![], 0));
    }

    #[test]
    fn start_reports_missing_messages() {
        let log = log(&History::new(3), 10);
        let after = |sequence| log.start(Start::After(Position { epoch: log.epoch, sequence }));
        assert_eq!((after(10), after(9), after(7)), ((11, true), (10, true), (8, true)));
        assert_eq!((after(6), after(0)), ((8, false), (8, false)));
        assert_eq!(after(11), (8, false), "of a run that was longer");
        assert_eq!(log.start(Start::After(Position { epoch: log.epoch ^ 1, sequence: 9 })), (8, false));
        assert_eq!(log.start(Start::Last(1)), (10, true));
        assert_eq!((log.start(Start::Last(0)), log.start(Start::Last(usize::MAX))), ((11, true), (8, true)));
        let empty = Log::new(7);
        assert_eq!((empty.start(Start::Last(5)), empty.position().sequence), ((1, true), 0));
    }
}
