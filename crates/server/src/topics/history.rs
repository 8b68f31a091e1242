//! What was published to a topic, kept for those who come later.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sinews_engine::ConnId;
use sinews_session::Prepared;

/// How much of a topic is kept: what exceeds any of the limits is forgotten, the oldest first.
///
/// A message of such a topic has a [`Position`]. Everybody gets the messages of a topic in its order, a publisher too,
/// who for that gets its own when their turn comes, and not before what it sends afterwards.
#[derive(Clone, Copy, Debug)]
pub struct History {
    pub(super) messages: usize,
    pub(super) bytes: usize,
    pub(super) age: Option<Duration>,
}

impl History {
    /// Keeps so many messages of each topic, at least 1: with 1, the last value.
    #[must_use]
    pub fn new(messages: usize) -> Self {
        Self { messages, bytes: 1 << 20, age: None }
    }

    /// Bytes of payload that are kept of one topic; the last message is, however large. Default 1 MiB.
    #[must_use]
    pub fn with_max_bytes(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
        self
    }

    /// How long a message is kept, about: it is gone for those who come later, and its memory is given back when
    /// others are published. Default: as long as the other limits let it.
    #[must_use]
    pub fn with_max_age(mut self, age: Duration) -> Self {
        self.age = Some(age);
        self
    }
}

/// Where a message stands in its topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "a pair of numbers, which a client sends back")]
pub struct Position {
    /// Which run of the topic: another one after a restart, or when all of it had been forgotten. Below 2^53, so that
    /// it survives JSON.
    pub epoch: u64,
    /// The number of the message; the first is 1, and none is left out.
    pub sequence: u64,
}

/// From where on a subscriber wants what was published before it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// The last so many messages; 1 is the last value.
    Last(usize),
    /// What came behind this message: for one that comes back.
    After(Position),
}

/// What a subscriber with a [`Start`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Joined {
    /// The topic's last message so far; its sequence is 0 if there was none.
    pub position: Position,
    /// Messages that are on their way of those before.
    pub replayed: u64,
    /// Nothing was forgotten behind the position that was asked for: no gap.
    pub complete: bool,
}

/// What a server keeps of one topic, for another server that goes on with it: [`Publisher::histories`].
///
/// [`Publisher::histories`]: crate::Publisher::histories
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "to be taken apart, sent, and put together again")]
pub struct KeptTopic {
    /// Its name.
    pub name: String,
    /// That of its last message, whether it is kept or not.
    pub position: Position,
    /// The last messages in their order, none left out.
    pub messages: Vec<KeptMessage>,
}

/// A message of a [`KeptTopic`].
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "as its topic")]
pub struct KeptMessage {
    /// The message itself.
    pub message: Prepared,
    /// For how long it has been kept.
    pub age: Duration,
}

/// What is kept of one topic.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) epoch: u64,
    /// The sequence of the next message.
    pub(super) next: u64,
    messages: VecDeque<Kept>,
    bytes: usize,
    /// Without messages, it is remembered until then for subscribers that resume.
    awaited: Option<Instant>,
    /// The directory has forgotten it; another one may have begun.
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

    /// The sequence of the oldest message that is kept; the next one if none is.
    pub(super) fn first(&self) -> u64 {
        self.next - self.messages.len() as u64
    }

    pub(super) fn position(&self) -> Position {
        Position { epoch: self.epoch, sequence: self.next - 1 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Whether messages were published in this epoch.
    pub(super) fn has_begun(&self) -> bool {
        self.next > 1
    }

    /// It has a subscriber, so that it is remembered anyway.
    pub(super) fn subscribed(&mut self) {
        self.awaited = None;
    }

    /// It is remembered for so long, although nothing is kept and no client has subscribed.
    pub(super) fn await_return(&mut self, return_time: Duration) -> Instant {
        let now = Instant::now();
        *self.awaited.get_or_insert_with(|| now.checked_add(return_time).unwrap_or(now))
    }

    /// It has no subscribers. Without messages it is forgotten at once if it would begin again where it stands, with
    /// `epoch` and nothing published; otherwise when its subscribers had that much time to return. Answers whether it
    /// is forgotten.
    pub(super) fn end(&mut self, epoch: u64, return_time: Duration) -> bool {
        if !self.is_empty() {
            return false;
        }
        let begins_again = !self.has_begun() && self.epoch == epoch;
        self.gone = begins_again || self.await_return(return_time) <= Instant::now();
        self.gone
    }

    /// Forgets everything, to make room. Without subscribers it is gone. Answers how many messages that were.
    pub(super) fn evict(&mut self, is_deserted: bool) -> u64 {
        let messages = self.messages.len() as u64;
        self.clear();
        self.gone = is_deserted;
        messages
    }

    /// Goes on where another server has stood.
    pub(super) fn go_on(&mut self, topic: KeptTopic, limits: &History) {
        let Position { epoch, sequence } = topic.position;
        (self.epoch, self.next) = (epoch, sequence.saturating_add(1));
        let now = Instant::now();
        // No more than there can have been.
        let beyond = topic.messages.len().saturating_sub(usize::try_from(sequence).unwrap_or(usize::MAX));
        for KeptMessage { message, age } in topic.messages.into_iter().skip(beyond) {
            self.bytes += message.payload().len();
            self.messages.push_back(Kept { at: now.checked_sub(age).unwrap_or(now), message, except: None });
        }
        self.trim(limits);
    }

    /// For [`go_on`](Self::go_on) elsewhere.
    pub(super) fn export(&self, name: &str) -> KeptTopic {
        let kept = |kept: &Kept| KeptMessage { message: kept.message.clone(), age: kept.at.elapsed() };
        let messages = self.messages.iter().map(kept).collect();
        KeptTopic { name: name.to_owned(), position: self.position(), messages }
    }

    /// The next message comes behind this position, unless it comes behind a later one of the same epoch.
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

    /// The next message is this one; if that leaves a gap, nothing before it is kept.
    pub(super) fn skip_to(&mut self, sequence: u64) {
        if sequence != self.next {
            self.clear();
            self.next = sequence;
        }
    }

    /// What it takes, about.
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

    /// Forgets what exceeds the limits.
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

    /// Forgets everything but where it stands.
    pub(super) fn clear(&mut self) {
        self.messages = VecDeque::new();
        self.bytes = 0;
    }

    /// The first sequence from a start on, and whether nothing is missing before it.
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

    /// Messages from a sequence on that is kept, each with its own, and whom its publisher left out.
    pub(super) fn from(
        &self,
        sequence: u64,
    ) -> impl Iterator<Item = (u64, &Prepared, Option<(usize, ConnId)>)> {
        let skip = sequence.saturating_sub(self.first());
        let kept = self.messages.iter().skip(usize::try_from(skip).unwrap_or(usize::MAX));
        (sequence.max(self.first())..).zip(kept).map(|(at, kept)| (at, &kept.message, kept.except))
    }
}

/// How long a topic without messages and subscribers remembers where it stands, so that a subscriber that resumes is told
/// that it has missed nothing.
pub(super) const RETURN_TIME: Duration = Duration::from_secs(60);

/// What a message costs beside its payload.
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
    fn the_oldest_are_forgotten_whatever_limit_they_exceed() {
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
    fn who_knows_better_says_where_it_goes_on() {
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
    fn a_start_says_whether_something_is_missing() {
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
