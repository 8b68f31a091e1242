//! A copy of a topic's messages.

use std::collections::VecDeque;

use super::WAITING_MAX;
use crate::chain::{ChainLink, TopicChain};
use crate::log::{LogEntry, LogPage, LogStart};
use crate::position::Position;

/// A node's copy of a topic's messages.
///
/// ```
/// use sinews_store::{LogCopy, LogPage, LogStart, LogStep};
///
/// let (mut copy, mut steps) = (LogCopy::new(100), Vec::new());
/// copy.following(&mut steps);
/// assert_eq!(steps, [LogStep::Read(LogStart::Last(100))]);
/// copy.page(LogPage::default(), &mut steps);
/// assert!(copy.is_live());
/// ```
#[derive(Debug)]
pub struct LogCopy {
    /// The last message; `None` before the first page.
    last: Option<Position>,
    state: LogCopyState,
    /// Notifications that came during a read, with their epochs; its answer includes earlier messages.
    waiting: VecDeque<(u64, LogEntry)>,
    /// Notifications may be missing since the read began.
    reads_again: bool,
    messages_max: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogCopyState {
    /// The store does not notify yet.
    New,
    Reading(LogStart),
    /// The read has failed.
    Failed(LogStart),
    Live,
}

/// What the holder of a [`LogCopy`] does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the holder executes all of them")]
pub enum LogStep {
    /// Read messages, and pass them to [`LogCopy::page`].
    Read(LogStart),
    /// Replace the retained messages by these, without delivery.
    Install {
        /// The last message.
        position: Position,
        /// The sequence before the first entry; that of the last message without entries.
        floor: u64,
        /// In order.
        entries: Vec<LogEntry>,
    },
    /// Notify the subscribers: they have missed messages that do not exist any more, or have received messages that the
    /// store has lost.
    Lost,
    /// Retain a message, and deliver it to the subscribers.
    Deliver {
        /// Its epoch.
        epoch: u64,
        /// The message.
        entry: LogEntry,
    },
}

impl LogCopy {
    /// A copy without messages, which retains at most this many.
    #[must_use]
    pub fn new(messages_max: u32) -> Self {
        Self {
            last: None,
            state: LogCopyState::New,
            waiting: VecDeque::new(),
            reads_again: false,
            messages_max,
        }
    }

    /// A live copy without messages, whose last message has this position.
    #[must_use]
    pub fn behind(position: Position, messages_max: u32) -> Self {
        Self { last: Some(position), state: LogCopyState::Live, ..Self::new(messages_max) }
    }

    /// The last message; `None` if the copy was not read yet.
    #[must_use]
    pub fn last(&self) -> Option<Position> {
        self.last
    }

    /// Whether the copy has all messages of which it knows.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.state == LogCopyState::Live
    }

    /// The store has confirmed that it notifies. For a copy that is live, the caller asks for the
    /// [top](Self::top) besides.
    pub fn following(&mut self, steps: &mut Vec<LogStep>) {
        match self.state {
            LogCopyState::New => self.read(LogStart::Last(self.messages_max), steps),
            LogCopyState::Failed(start) => self.read(start, steps),
            LogCopyState::Reading(_) => self.reads_again = true,
            LogCopyState::Live => {}
        }
    }

    /// Reads all messages, for a live copy that began [behind](Self::behind) some.
    pub fn reload(&mut self, steps: &mut Vec<LogStep>) {
        if self.state == LogCopyState::Live {
            self.read(LogStart::Last(self.messages_max), steps);
        }
    }

    /// Reads again after a failure.
    pub fn retry(&mut self, steps: &mut Vec<LogStep>) {
        if let LogCopyState::Failed(start) = self.state {
            self.read(start, steps);
        }
    }

    /// The store has appended a message.
    pub fn notified(&mut self, epoch: u64, entry: LogEntry, steps: &mut Vec<LogStep>) {
        match self.state {
            LogCopyState::New => {}
            LogCopyState::Reading(_) | LogCopyState::Failed(_) => {
                self.waiting.push_back((epoch, entry));
                if self.waiting.len() > WAITING_MAX {
                    self.waiting.clear();
                    self.reads_again = true;
                }
            }
            LogCopyState::Live => self.follow(epoch, entry, steps),
        }
    }

    /// The answer to an audit: the store's last message, and the copy's [`last`](Self::last) when it was asked.
    pub fn top(&mut self, asked: Position, top: Option<Position>, steps: &mut Vec<LogStep>) {
        let (LogCopyState::Live, Some(last)) = (self.state, self.last) else { return };
        match (TopicChain { last: asked }.top(top), top) {
            (ChainLink::Lost, _) => self.read(LogStart::Last(self.messages_max), steps),
            (_, Some(top)) if top.sequence > last.sequence => {
                self.read(LogStart::After(last.sequence), steps)
            }
            _ => {}
        }
    }

    /// A read has failed. [`retry`](Self::retry) repeats it.
    pub fn read_failed(&mut self) {
        if let LogCopyState::Reading(start) = self.state {
            self.state = LogCopyState::Failed(start);
        }
    }

    /// The answer to a read.
    pub fn page(&mut self, page: LogPage, steps: &mut Vec<LogStep>) {
        let LogCopyState::Reading(start) = self.state else { return };
        self.state = LogCopyState::Live;
        let more = page.more;
        match start {
            LogStart::Last(_) => self.replace(page, steps),
            LogStart::After(_) => self.extend(page, steps),
        }
        if self.state == LogCopyState::Live
            && let Some(last) = self.last
            && (more || std::mem::take(&mut self.reads_again))
        {
            self.read(LogStart::After(last.sequence), steps);
        }
        while self.state == LogCopyState::Live
            && let Some((epoch, entry)) = self.waiting.pop_front()
        {
            self.follow(epoch, entry, steps);
        }
    }

    fn read(&mut self, start: LogStart, steps: &mut Vec<LogStep>) {
        self.waiting.clear();
        self.state = LogCopyState::Reading(start);
        steps.push(LogStep::Read(start));
    }

    /// Takes a notification in the live state.
    fn follow(&mut self, epoch: u64, entry: LogEntry, steps: &mut Vec<LogStep>) {
        let last = self.last.unwrap_or_default();
        let position = Position { epoch, sequence: entry.sequence };
        match (TopicChain { last }.link(position, entry.prev)) {
            ChainLink::Next => self.deliver(epoch, entry, steps),
            ChainLink::Duplicate => {}
            // The answer has this message, too.
            ChainLink::Gap => self.read(LogStart::After(last.sequence), steps),
            ChainLink::Lost => self.read(LogStart::Last(self.messages_max), steps),
        }
    }

    fn deliver(&mut self, epoch: u64, entry: LogEntry, steps: &mut Vec<LogStep>) {
        self.last = Some(Position { epoch, sequence: entry.sequence });
        steps.push(LogStep::Deliver { epoch, entry });
    }

    /// The first page, or the page after a loss.
    fn replace(&mut self, page: LogPage, steps: &mut Vec<LogStep>) {
        let top = page.top.unwrap_or_default();
        let Some(last) = self.last else {
            self.install(top, page.entries, steps);
            return;
        };
        let is_same = last.epoch == top.epoch;
        let is_complete = page.follows(last);
        // The subscribers have received the old ones.
        let (old, new): (Vec<LogEntry>, Vec<LogEntry>) =
            page.entries.into_iter().partition(|entry| is_same && entry.sequence <= last.sequence);
        if !is_complete {
            steps.push(LogStep::Lost);
        }
        let sequence = match (old.last(), new.first()) {
            (_, Some(first)) => first.prev,
            (Some(last), None) => last.sequence,
            (None, None) => top.sequence,
        };
        self.install(Position { epoch: top.epoch, sequence }, old, steps);
        new.into_iter().for_each(|entry| self.deliver(top.epoch, entry, steps));
    }

    fn install(&mut self, position: Position, entries: Vec<LogEntry>, steps: &mut Vec<LogStep>) {
        let floor = entries.first().map_or(position.sequence, |first| first.prev);
        self.last = Some(position);
        steps.push(LogStep::Install { position, floor, entries });
    }

    /// The messages behind the last one.
    fn extend(&mut self, page: LogPage, steps: &mut Vec<LogStep>) {
        let last = self.last.unwrap_or_default();
        let Some(top) = page.top else {
            if last.sequence > 0 {
                self.read(LogStart::Last(self.messages_max), steps);
            }
            return;
        };
        let is_same = top.epoch == last.epoch || last == Position::default();
        if !page.follows(last) {
            let next = page.entries.iter().find(|entry| entry.sequence > last.sequence);
            // Retention has removed messages that this copy has not seen.
            let is_trimmed = match next {
                Some(next) => next.prev > last.sequence,
                None => top.sequence > last.sequence,
            };
            if !is_same || !is_trimmed {
                self.read(LogStart::Last(self.messages_max), steps);
                return;
            }
            steps.push(LogStep::Lost);
            let sequence = next.map_or(top.sequence, |next| next.prev);
            self.install(Position { epoch: top.epoch, sequence }, Vec::new(), steps);
        }
        for entry in page.entries {
            let last = self.last.unwrap_or_default();
            match (TopicChain { last }
                .link(Position { epoch: top.epoch, sequence: entry.sequence }, entry.prev))
            {
                ChainLink::Next => self.deliver(top.epoch, entry, steps),
                ChainLink::Duplicate => {}
                ChainLink::Gap | ChainLink::Lost => {
                    self.read(LogStart::Last(self.messages_max), steps);
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn entry(prev: u64, sequence: u64) -> LogEntry {
        LogEntry { sequence, prev, time: 0, payload: Bytes::new() }
    }

    fn page(top: u64, links: &[(u64, u64)]) -> LogPage {
        let entries = links.iter().map(|&(prev, sequence)| entry(prev, sequence)).collect();
        LogPage { top: Some(Position { epoch: 1, sequence: top }), entries, more: false }
    }

    /// The steps as text.
    fn text(steps: &mut Vec<LogStep>) -> String {
        let one = |step: LogStep| match step {
            LogStep::Read(LogStart::Last(_)) => "all".to_owned(),
            LogStep::Read(LogStart::After(after)) => format!("after {after}"),
            LogStep::Install { position, floor, entries } => {
                let kept: Vec<u64> = entries.iter().map(|entry| entry.sequence).collect();
                format!("install {floor}{kept:?}{}", position.sequence)
            }
            LogStep::Lost => "lost".to_owned(),
            LogStep::Deliver { entry, .. } => entry.sequence.to_string(),
        };
        std::mem::take(steps).into_iter().map(one).collect::<Vec<_>>().join(", ")
    }

    fn live(top: u64, links: &[(u64, u64)]) -> (LogCopy, Vec<LogStep>) {
        let (mut copy, mut steps) = (LogCopy::new(10), Vec::new());
        copy.following(&mut steps);
        copy.page(page(top, links), &mut steps);
        steps.clear();
        (copy, steps)
    }

    #[test]
    fn notifications_during_the_first_read_are_delivered_behind_it() {
        let (mut copy, mut steps) = (LogCopy::new(10), Vec::new());
        copy.notified(1, entry(0, 1), &mut steps);
        assert!(steps.is_empty());
        copy.following(&mut steps);
        for (prev, sequence) in [(1, 2), (2, 3)] {
            copy.notified(1, entry(prev, sequence), &mut steps);
        }
        copy.page(page(2, &[(0, 1), (1, 2)]), &mut steps);
        assert_eq!(text(&mut steps), "all, install 0[1, 2]2, 3");
    }

    #[test]
    fn gap_is_read_and_duplicates_are_dropped() {
        let (mut copy, mut steps) = live(2, &[(0, 1), (1, 2)]);
        copy.notified(1, entry(1, 2), &mut steps);
        copy.notified(1, entry(3, 4), &mut steps);
        copy.notified(1, entry(4, 5), &mut steps);
        assert_eq!(text(&mut steps), "after 2");
        copy.page(page(4, &[(2, 3), (3, 4)]), &mut steps);
        assert_eq!(text(&mut steps), "3, 4, 5");
    }

    #[test]
    fn lost_suffix_is_reported_and_survivors_stay() {
        let (mut copy, mut steps) = live(3, &[(0, 1), (1, 2), (2, 3)]);
        // Message 3 was lost.
        copy.notified(1, entry(2, 5_000), &mut steps);
        assert_eq!(text(&mut steps), "all");
        copy.page(page(5_000, &[(0, 1), (1, 2), (2, 5_000)]), &mut steps);
        assert_eq!(text(&mut steps), "lost, install 0[1, 2]2, 5000");
        // An audit finds a loss without a successor.
        let last = copy.last().unwrap();
        copy.top(last, Some(Position { epoch: 1, sequence: 2 }), &mut steps);
        copy.page(page(2, &[(0, 1), (1, 2)]), &mut steps);
        assert_eq!(text(&mut steps), "all, lost, install 0[1, 2]2");
        copy.top(copy.last().unwrap(), None, &mut steps);
        copy.page(LogPage::default(), &mut steps);
        assert_eq!(text(&mut steps), "all, lost, install 0[]0");
        copy.notified(9, entry(0, 1), &mut steps);
        assert_eq!(text(&mut steps), "1");
    }

    #[test]
    fn trimmed_messages_are_reported() {
        let (mut copy, mut steps) = live(1, &[(0, 1)]);
        copy.top(copy.last().unwrap(), Some(Position { epoch: 1, sequence: 9 }), &mut steps);
        copy.page(page(9, &[(7, 8), (8, 9)]), &mut steps);
        assert_eq!(text(&mut steps), "after 1, lost, install 7[]7, 8, 9");
        copy.top(copy.last().unwrap(), Some(Position { epoch: 1, sequence: 12 }), &mut steps);
        copy.page(page(12, &[]), &mut steps);
        assert_eq!(text(&mut steps), "after 9, lost, install 12[]12");
    }

    #[test]
    fn copy_that_began_behind_messages_reads_them_without_delivery() {
        let (mut copy, mut steps) = (LogCopy::behind(Position { epoch: 1, sequence: 3 }, 10), Vec::new());
        copy.notified(1, entry(3, 4), &mut steps);
        copy.following(&mut steps);
        copy.reload(&mut steps);
        copy.page(page(5, &[(2, 3), (3, 4), (4, 5)]), &mut steps);
        assert_eq!(text(&mut steps), "4, all, install 2[3, 4]4, 5");
        copy.reload(&mut steps);
        copy.page(page(5, &[]), &mut steps);
        assert_eq!(text(&mut steps), "all, install 5[]5", "all have expired");
    }

    #[test]
    fn failed_read_is_repeated() {
        let (mut copy, mut steps) = live(1, &[(0, 1)]);
        copy.notified(1, entry(2, 3), &mut steps);
        copy.read_failed();
        copy.notified(1, entry(3, 4), &mut steps);
        copy.retry(&mut steps);
        copy.following(&mut steps);
        copy.page(page(3, &[(1, 2), (2, 3)]), &mut steps);
        // Notifications may be missing since it reconnected.
        copy.page(page(4, &[(3, 4)]), &mut steps);
        assert_eq!(text(&mut steps), "after 1, after 1, 2, 3, after 3, 4");
    }

    #[test]
    fn notifications_from_before_a_read_are_part_of_its_answer() {
        let (mut copy, mut steps) = (LogCopy::new(10), Vec::new());
        copy.following(&mut steps);
        copy.notified(1, entry(0, 1), &mut steps);
        copy.read_failed();
        copy.retry(&mut steps);
        // The store has lost the topic meanwhile.
        copy.page(LogPage::default(), &mut steps);
        assert_eq!(text(&mut steps), "all, all, install 0[]0");
    }
}
