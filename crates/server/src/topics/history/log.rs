//! Retained messages of one topic: a ring with sequences.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use sinews_session::Prepared;

use super::policy::{
    HistoryPage, HistoryPolicy, HistoryQuery, Position, QuerySide, ReplayFrom, RetainedMessage,
    StoredHistory, StoredMessage, TopicSnapshot,
};
use crate::topics::subscriber_id::SubscriberId;

/// Retained messages of a topic, and its history policy.
#[derive(Debug)]
pub(crate) struct TopicHistory {
    pub(crate) policy: HistoryPolicy,
    ring: Mutex<MessageRing>,
    /// Index in the eviction order.
    pub(crate) slot: EvictionSlot,
}

impl TopicHistory {
    pub(crate) fn new(policy: HistoryPolicy, epoch: u64) -> Self {
        Self { policy, ring: Mutex::new(MessageRing::new(epoch)), slot: EvictionSlot::default() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, MessageRing> {
        self.ring.lock()
    }
}

/// Index of a topic in the queue: written under the queue's lock only.
#[derive(Debug)]
pub(crate) struct EvictionSlot(pub(crate) AtomicUsize);

impl Default for EvictionSlot {
    fn default() -> Self {
        Self(AtomicUsize::new(Self::NONE))
    }
}

impl EvictionSlot {
    /// Not in the queue.
    pub(crate) const NONE: usize = usize::MAX;
}

/// Retained messages of one topic. The sequences that this server assigns have no gaps; another assigner may skip some.
#[derive(Debug)]
pub(crate) struct MessageRing {
    pub(crate) epoch: u64,
    /// The sequence of the next message, or the lowest one that it can have.
    pub(crate) next: u64,
    messages: VecDeque<Retained>,
    /// The sequence before the first retained message; the last one if none is retained.
    floor: u64,
    /// The last message that is not retained, and perhaps reached no subscriber: resumes from before it miss messages.
    passed: u64,
    /// Messages that were removed so far.
    removed_messages: u64,
    /// Messages up to this sequence were read from elsewhere, and not published to this server's subscribers.
    pub(crate) unpublished: u64,
    bytes: usize,
    /// Without messages, its position is retained until then for subscribers that resume.
    position_kept_until: Option<Instant>,
    /// The directory has removed it; another one with its name may exist.
    pub(crate) removed: bool,
}

#[derive(Debug)]
struct Retained {
    sequence: u64,
    at: Instant,
    message: Prepared,
    except: Option<SubscriberId>,
}

impl MessageRing {
    pub(crate) fn new(epoch: u64) -> Self {
        Self {
            epoch,
            next: 1,
            messages: VecDeque::new(),
            floor: 0,
            passed: 0,
            removed_messages: 0,
            unpublished: 0,
            bytes: 0,
            position_kept_until: None,
            removed: false,
        }
    }

    /// Returns the lowest sequence that the oldest retained message can have, or the next message if none is retained.
    pub(crate) fn first(&self) -> u64 {
        self.floor + 1
    }

    /// Returns about how many messages from this sequence on, and before another, were removed: exactly, unless
    /// sequences were skipped.
    pub(crate) fn removed_between(&self, from: u64, end: u64) -> u64 {
        self.first().min(end).saturating_sub(from).min(self.removed_messages)
    }

    /// Returns how many messages are retained from this sequence on.
    pub(crate) fn count_from(&self, sequence: u64) -> u64 {
        (self.messages.len() - self.index_from(sequence)) as u64
    }

    /// The index of the first retained message with this sequence or a later one.
    fn index_from(&self, sequence: u64) -> usize {
        let dense = usize::try_from(sequence.saturating_sub(self.first())).unwrap_or(usize::MAX);
        match self.messages.get(dense) {
            Some(retained) if retained.sequence == sequence => dense,
            _ => self.messages.partition_point(|retained| retained.sequence < sequence),
        }
    }

    pub(crate) fn position(&self) -> Position {
        Position { epoch: self.epoch, sequence: self.next - 1 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Returns whether messages were published in this epoch.
    pub(crate) fn had_messages(&self) -> bool {
        self.next > 1
    }

    /// Marks it as subscribed, so that it is not removed.
    pub(crate) fn subscribed(&mut self) {
        self.position_kept_until = None;
    }

    /// Keeps its position for this time, without messages or subscribers.
    pub(crate) fn retain_position(&mut self, position_ttl: Duration) -> Instant {
        let now = Instant::now();
        *self.position_kept_until.get_or_insert_with(|| now.checked_add(position_ttl).unwrap_or(now))
    }

    /// Ends it after its last subscriber has left. Without messages it is removed at once if a new topic would have
    /// the same position, with `epoch` and no publication; otherwise after `position_ttl` for its subscribers to
    /// return. Returns whether it is removed.
    pub(crate) fn end(&mut self, epoch: u64, position_ttl: Duration) -> bool {
        if !self.is_empty() {
            return false;
        }
        let begins_again = !self.had_messages() && self.epoch == epoch;
        self.removed = begins_again || self.retain_position(position_ttl) <= Instant::now();
        self.removed
    }

    /// Evicts all messages. Without subscribers, it is removed. Returns the number of evicted messages.
    pub(crate) fn evict(&mut self, has_no_subscribers: bool) -> u64 {
        let messages = self.messages.len() as u64;
        self.clear();
        self.removed = has_no_subscribers;
        messages
    }

    /// Restores the state of another server.
    pub(crate) fn restore_snapshot(&mut self, topic: TopicSnapshot, policy: &HistoryPolicy) {
        let Position { epoch, sequence } = topic.position;
        (self.epoch, self.next) = (epoch, sequence.saturating_add(1));
        let now = Instant::now();
        // No more messages than the sequence allows.
        let beyond = topic.messages.len().saturating_sub(usize::try_from(sequence).unwrap_or(usize::MAX));
        let messages = topic.messages.into_iter().skip(beyond);
        self.floor = sequence - messages.len() as u64;
        for (sequence, RetainedMessage { message, age }) in (self.first()..).zip(messages) {
            self.push(sequence, now.checked_sub(age).unwrap_or(now), message, None);
        }
        self.trim(policy);
    }

    /// Replaces it by a store's messages, which are not published to subscribers.
    pub(crate) fn install(&mut self, stored: StoredHistory, policy: &HistoryPolicy) {
        self.clear();
        self.epoch = stored.position.epoch;
        (self.floor, self.passed) = (stored.floor, stored.passed);
        let now = Instant::now();
        for StoredMessage { sequence, message, age } in stored.messages {
            self.push(sequence, now.checked_sub(age).unwrap_or(now), message, None);
        }
        self.next = stored.position.sequence + 1;
        if self.messages.is_empty() {
            self.floor = stored.position.sequence;
        }
        self.unpublished = stored.position.sequence;
        self.trim(policy);
    }

    fn push(&mut self, sequence: u64, at: Instant, message: Prepared, except: Option<SubscriberId>) {
        self.bytes += message.payload().len();
        self.messages.push_back(Retained { sequence, at, message, except });
    }

    /// Exports the state for [`restore_snapshot`](Self::restore_snapshot) of another server: the messages behind the
    /// last gap in the sequences.
    pub(crate) fn export(&self, name: &str) -> TopicSnapshot {
        let kept =
            |kept: &Retained| RetainedMessage { message: kept.message.clone(), age: kept.at.elapsed() };
        let last = self.next - 1;
        let places = (0..last.saturating_add(1)).rev();
        let dense = self.messages.iter().rev().zip(places);
        let dense = dense.take_while(|(kept, sequence)| kept.sequence == *sequence).count();
        let messages = self.messages.iter().skip(self.messages.len() - dense).map(kept).collect();
        TopicSnapshot { name: name.to_owned(), position: self.position(), messages }
    }

    /// Sets the position of the last message, unless it is already later in the same epoch.
    pub(crate) fn advance_to(&mut self, position: Position) {
        let is_same = position.epoch == self.epoch;
        if is_same && position.sequence < self.next {
            return;
        }
        if !is_same {
            self.clear();
            (self.epoch, self.passed) = (position.epoch, 0);
        }
        self.skip_to(position.sequence);
    }

    /// Sets the position of the last message, which is not retained. Retained messages stay.
    pub(crate) fn pass(&mut self, position: Position) {
        if position.epoch != self.epoch || self.is_empty() {
            self.advance_to(position);
        }
        self.next = self.next.max(position.sequence + 1);
        self.passed = self.passed.max(position.sequence);
    }

    /// Sets the sequence of the last message; a gap clears earlier messages.
    pub(crate) fn skip_to(&mut self, sequence: u64) {
        if sequence.saturating_add(1) != self.next {
            self.clear();
            (self.next, self.floor) = (sequence.saturating_add(1), sequence);
        }
    }

    /// Returns its approximate memory in bytes.
    pub(crate) fn cost(&self) -> usize {
        self.bytes + self.messages.len() * MESSAGE_COST
    }

    pub(crate) fn append(
        &mut self,
        sequence: u64,
        message: Prepared,
        except: Option<SubscriberId>,
        policy: &HistoryPolicy,
    ) {
        self.push(sequence, Instant::now(), message, except);
        self.next = sequence + 1;
        self.position_kept_until = None;
        self.trim(policy);
    }

    /// Removes messages beyond the limits.
    pub(crate) fn trim(&mut self, policy: &HistoryPolicy) {
        let old = |kept: &Retained| policy.age.is_some_and(|age| kept.at.elapsed() > age);
        while let Some(first) = self.messages.front() {
            let exceeds = self.messages.len() > policy.messages
                || self.bytes > policy.bytes && self.messages.len() > 1
                || old(first);
            if !exceeds {
                return;
            }
            self.bytes -= first.message.payload().len();
            self.floor = first.sequence;
            self.removed_messages += 1;
            self.messages.pop_front();
        }
        self.messages = VecDeque::new();
    }

    /// Removes all messages and keeps the position.
    pub(crate) fn clear(&mut self) {
        self.removed_messages += self.messages.len() as u64;
        self.messages = VecDeque::new();
        self.floor = self.next - 1;
        self.bytes = 0;
    }

    /// Returns the first sequence of a start, and whether no earlier message is missing: a position that no message
    /// has, or that lies ahead, was lost.
    pub(crate) fn start(&self, start: ReplayFrom) -> (u64, bool) {
        match start {
            ReplayFrom::Last(0) => (self.next, true),
            ReplayFrom::Last(count) => {
                let index = self.messages.len().saturating_sub(count);
                (self.messages.get(index).map_or(self.next, |retained| retained.sequence), true)
            }
            ReplayFrom::After(position) => {
                let after = position.sequence;
                // A topic without messages, whose epoch a store had not assigned yet, is at the default position.
                let is_same = position.epoch == self.epoch || position == Position::default();
                if !is_same || after >= self.next || after < self.floor {
                    return (self.first(), false);
                }
                let index = self.index_from(after + 1);
                let before = index.checked_sub(1).and_then(|index| self.messages.get(index));
                let is_known = before.map_or(self.floor, |retained| retained.sequence) == after;
                (after + 1, after >= self.passed && (is_known || after == self.passed))
            }
        }
    }

    /// Returns a part of the retained messages.
    pub(crate) fn page(&self, query: &HistoryQuery) -> HistoryPage {
        let mut left = query.bytes;
        let mut fits = |count: usize, message: &Prepared| {
            let len = message.payload().len();
            let fits = count < query.messages && (count == 0 || len <= left);
            left = left.saturating_sub(len);
            fits
        };
        let (range, has_more, complete) = match query.side {
            QuerySide::After(position) => {
                let (first, complete) = self.start(ReplayFrom::After(position));
                let begin = self.index_from(first);
                let mut end = begin;
                while self.messages.get(end).is_some_and(|next| fits(end - begin, &next.message)) {
                    end += 1;
                }
                (begin..end, end < self.messages.len(), complete)
            }
            QuerySide::Before(position) => {
                let (end, complete) =
                    position.map_or((self.messages.len(), true), |position| self.end_before(position));
                let mut begin = end;
                while begin > 0 && fits(end - begin, &self.messages[begin - 1].message) {
                    begin -= 1;
                }
                (begin..end, begin > 0, complete)
            }
        };
        let messages = self.messages.range(range);
        let messages = messages.map(|retained| (retained.sequence, retained.message.clone())).collect();
        HistoryPage { messages, has_more, complete }
    }

    /// The index behind the last message before a position, and whether the position is known: messages of another
    /// epoch are lost, and an expired message has none before it.
    fn end_before(&self, Position { epoch, sequence }: Position) -> (usize, bool) {
        if epoch != self.epoch {
            return (0, false);
        }
        (self.index_from(sequence), sequence > self.floor && sequence <= self.next || sequence == 0)
    }

    /// Returns retained messages from a sequence on, each with its sequence and the connection excluded by its
    /// publisher.
    pub(crate) fn from(&self, sequence: u64) -> impl Iterator<Item = (u64, &Prepared, Option<SubscriberId>)> {
        let retained = self.messages.iter().skip(self.index_from(sequence));
        retained.map(|retained| (retained.sequence, &retained.message, retained.except))
    }
}

/// How long a topic without messages and subscribers keeps its position, so that a subscriber that resumes learns
/// that it has missed no message.
pub(crate) const POSITION_TTL: Duration = Duration::from_secs(60);

/// Overhead of a message beside its payload, in bytes.
const MESSAGE_COST: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(policy: &HistoryPolicy, count: u64) -> MessageRing {
        let mut ring = MessageRing::new(7);
        (1..=count).for_each(|number| append(&mut ring, number, policy));
        ring
    }

    fn append(ring: &mut MessageRing, number: u64, policy: &HistoryPolicy) {
        ring.append(number, Prepared::text(format!("{number:02}")), None, policy);
    }

    fn kept(ring: &MessageRing, from: u64) -> Vec<u64> {
        for (sequence, message, _) in ring.from(from) {
            assert_eq!(message.payload(), format!("{sequence:02}").as_bytes());
        }
        ring.from(from).map(|(sequence, ..)| sequence).collect()
    }

    #[test]
    fn oldest_messages_are_removed_at_every_limit() {
        for policy in [HistoryPolicy::new(3), HistoryPolicy::new(100).with_max_bytes(7)] {
            let ring = ring(&policy, 10);
            assert_eq!((ring.first(), ring.position().sequence, kept(&ring, 0)), (8, 10, vec![8, 9, 10]));
            assert_eq!((kept(&ring, 10), kept(&ring, 11), kept(&ring, 50)), (vec![10], vec![], vec![]));
        }
        let large = ring(&HistoryPolicy::new(3).with_max_bytes(1), 2);
        assert_eq!(kept(&large, 0), [2], "the last is kept however large it is");
        let mut old = ring(&HistoryPolicy::new(3), 2);
        old.trim(&HistoryPolicy::new(3).with_max_age(Duration::ZERO));
        assert_eq!((kept(&old, 0), old.first(), old.cost()), (vec![], 3, 0));
    }

    #[test]
    fn position_can_be_set_from_outside() {
        let mut ring = ring(&HistoryPolicy::new(3), 10);
        let position = ring.position();
        let later = |sequence| Position { sequence, ..position };
        ring.advance_to(later(9));
        ring.advance_to(position);
        assert_eq!((ring.position(), kept(&ring, 0)), (position, vec![8, 9, 10]));
        ring.advance_to(later(20));
        assert_eq!((ring.position(), kept(&ring, 0)), (later(20), vec![]));
        append(&mut ring, 21, &HistoryPolicy::new(3));
        let other = Position { epoch: position.epoch ^ 1, sequence: 5 };
        ring.advance_to(other);
        assert_eq!((ring.position(), kept(&ring, 0), ring.cost()), (other, vec![], 0));
    }

    #[test]
    fn skipped_sequences_hide_no_loss() {
        let policy = HistoryPolicy::new(4);
        let mut ring = ring(&policy, 2);
        for number in [40, 50, 51] {
            append(&mut ring, number, &policy);
        }
        assert_eq!((kept(&ring, 0), ring.first(), ring.count_from(41)), (vec![2, 40, 50, 51], 2, 2));
        let after = |sequence| ring.start(ReplayFrom::After(Position { epoch: 7, sequence }));
        for sequence in 0..60 {
            let complete = [1, 2, 40, 50, 51].contains(&sequence);
            assert_eq!(after(sequence).1, complete, "{sequence}");
        }
        assert_eq!((after(0).0, after(2).0, after(41).0, after(55).0), (2, 3, 42, 2));
        assert_eq!((kept(&ring, 3), kept(&ring, 41)), (vec![40, 50, 51], vec![50, 51]));
        assert_eq!(ring.start(ReplayFrom::Last(2)), (50, true));
        assert_eq!((ring.removed_between(1, 9), ring.removed_between(0, 9)), (1, 1));
        let exported = ring.export("t");
        assert_eq!((exported.messages.len(), exported.position.sequence), (2, 51), "without gaps");
    }

    #[test]
    fn message_that_is_not_retained_is_missing_for_positions_before_it() {
        let policy = HistoryPolicy::new(10);
        let mut ring = ring(&policy, 2);
        let at = |sequence| Position { epoch: 7, sequence };
        let complete = |ring: &MessageRing| -> Vec<u64> {
            (0..12).filter(|sequence| ring.start(ReplayFrom::After(at(*sequence))).1).collect()
        };
        ring.pass(at(5));
        assert_eq!((ring.position(), kept(&ring, 0), complete(&ring)), (at(5), vec![1, 2], vec![5]));
        ring.pass(at(4));
        append(&mut ring, 6, &policy);
        assert_eq!((kept(&ring, 0), complete(&ring)), (vec![1, 2, 6], vec![5, 6]));
        assert_eq!(ring.start(ReplayFrom::After(at(2))), (3, false));
        let message = |sequence| StoredMessage {
            sequence,
            message: Prepared::text(format!("{sequence:02}")),
            age: Duration::ZERO,
        };
        let messages = vec![message(1), message(6), message(9)];
        ring.install(StoredHistory { position: at(9), floor: 0, passed: 7, messages }, &policy);
        assert_eq!((kept(&ring, 0), complete(&ring)), (vec![1, 6, 9], vec![7, 9]));
        let mut empty = MessageRing::new(7);
        empty.pass(at(3));
        assert_eq!((empty.first(), complete(&empty)), (4, vec![3]));
        empty.pass(Position { epoch: 8, sequence: 1 });
        assert_eq!((empty.position(), complete(&empty)), (Position { epoch: 8, sequence: 1 }, vec![]));
    }

    #[test]
    fn messages_of_a_store_replace_a_ring() {
        let policy = HistoryPolicy::new(10);
        let mut ring = ring(&policy, 2);
        let message = |sequence: u64| StoredMessage {
            sequence,
            message: Prepared::text(format!("{sequence:02}")),
            age: Duration::ZERO,
        };
        let position = Position { epoch: 9, sequence: 30 };
        let stored = |floor, messages| StoredHistory { position, floor, passed: 0, messages };
        ring.install(stored(10, vec![message(20), message(30)]), &policy);
        assert_eq!((ring.position(), kept(&ring, 0), ring.unpublished), (position, vec![20, 30], 30));
        let after = |sequence| ring.start(ReplayFrom::After(Position { epoch: 9, sequence })).1;
        assert!(!ring.start(ReplayFrom::After(Position::default())).1);
        assert_eq!([after(9), after(10), after(11), after(20), after(30)], [false, true, false, true, true]);
        ring.install(stored(10, Vec::new()), &policy);
        assert_eq!((ring.position(), ring.first(), ring.is_empty()), (position, 31, true));
        ring.install(stored(0, vec![message(20), message(30)]), &policy);
        assert_eq!(ring.start(ReplayFrom::After(Position::default())), (1, true));
    }

    #[test]
    fn pages_lead_through_the_whole_history_in_both_directions() {
        let ring = ring(&HistoryPolicy::new(8), 10);
        let at = |sequence| Position { epoch: ring.epoch, sequence };
        let page = |query: HistoryQuery| {
            let page = ring.page(&query);
            let sequences: Vec<u64> = page.messages.iter().map(|(sequence, _)| *sequence).collect();
            (sequences, page.has_more, page.complete)
        };
        assert_eq!(page(HistoryQuery::last(3)), (vec![8, 9, 10], true, true));
        assert_eq!(page(HistoryQuery::before(at(8), 3)), (vec![5, 6, 7], true, true));
        assert_eq!(page(HistoryQuery::before(at(5), 3)), (vec![3, 4], false, true));
        assert_eq!(page(HistoryQuery::before(at(3), 3)), (vec![], false, true));
        assert_eq!(page(HistoryQuery::before(at(2), 3)), (vec![], false, false), "it has expired");
        assert_eq!(page(HistoryQuery::before(at(11), 1)), (vec![10], true, true));
        assert_eq!(page(HistoryQuery::before(at(12), 1)), (vec![10], true, false), "of a longer run");
        assert_eq!(page(HistoryQuery::after(at(2), 5)), (vec![3, 4, 5, 6, 7], true, true));
        assert_eq!(page(HistoryQuery::after(at(7), 5)), (vec![8, 9, 10], false, true));
        assert_eq!(page(HistoryQuery::after(at(10), 5)), (vec![], false, true));
        assert_eq!(page(HistoryQuery::after(at(1), 2)), (vec![3, 4], true, false), "2 has expired");
        let other = Position { epoch: ring.epoch ^ 1, sequence: 9 };
        assert_eq!(page(HistoryQuery::before(other, 9)), (vec![], false, false));
        assert_eq!(page(HistoryQuery::after(other, 1)), (vec![3], true, false));
        // Each message has 2 bytes.
        assert_eq!(page(HistoryQuery::last(9).with_max_bytes(5)), (vec![9, 10], true, true));
        assert_eq!(page(HistoryQuery::after(at(2), 9).with_max_bytes(1)), (vec![3], true, true));
        assert_eq!(page(HistoryQuery::last(0)), (vec![], true, true));
    }

    #[test]
    fn start_reports_missing_messages() {
        let ring = ring(&HistoryPolicy::new(3), 10);
        let after = |sequence| ring.start(ReplayFrom::After(Position { epoch: ring.epoch, sequence }));
        assert_eq!((after(10), after(9), after(7)), ((11, true), (10, true), (8, true)));
        assert_eq!((after(6), after(0)), ((8, false), (8, false)));
        assert_eq!(after(11), (8, false), "of a run that was longer");
        assert_eq!(
            ring.start(ReplayFrom::After(Position { epoch: ring.epoch ^ 1, sequence: 9 })),
            (8, false)
        );
        assert_eq!(ring.start(ReplayFrom::Last(1)), (10, true));
        assert_eq!(
            (ring.start(ReplayFrom::Last(0)), ring.start(ReplayFrom::Last(usize::MAX))),
            ((11, true), (8, true))
        );
        let empty = MessageRing::new(7);
        assert_eq!((empty.start(ReplayFrom::Last(5)), empty.position().sequence), ((1, true), 0));
    }
}
