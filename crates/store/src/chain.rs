//! A topic's notifications as a chain.

use crate::position::Position;

/// A node's place in a topic: the last message or change that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "one position")]
pub struct TopicChain {
    /// The last message or change.
    pub last: Position,
}

/// How a notification follows a [`TopicChain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "all cases for two numbers")]
pub enum ChainLink {
    /// It is the next one.
    Next,
    /// The node has it.
    Duplicate,
    /// Earlier ones are missing: read them.
    Gap,
    /// The node has messages or changes that the store has lost, or the topic has another epoch: read it again, and
    /// notify its subscribers.
    Lost,
}

impl TopicChain {
    /// How a notification with this position, behind `prev`, follows.
    #[must_use]
    pub fn link(&self, position: Position, prev: u64) -> ChainLink {
        let last = self.last.sequence;
        match () {
            () if position.epoch != self.last.epoch && self.last != Position::default() => ChainLink::Lost,
            () if position.sequence <= last => ChainLink::Duplicate,
            () if prev == last => ChainLink::Next,
            () if prev > last => ChainLink::Gap,
            () => ChainLink::Lost,
        }
    }

    /// How the store's last position follows, as an audit reads it; `None`: the topic does not exist.
    #[must_use]
    pub fn top(&self, top: Option<Position>) -> ChainLink {
        match top {
            None if self.last.sequence == 0 => ChainLink::Duplicate,
            None => ChainLink::Lost,
            Some(top) if top.epoch != self.last.epoch && self.last != Position::default() => ChainLink::Lost,
            Some(top) if top.sequence == self.last.sequence => ChainLink::Duplicate,
            Some(top) if top.sequence > self.last.sequence => ChainLink::Gap,
            // The audit's answer may be older than a notification. The caller asks again.
            Some(_) => ChainLink::Lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notification_follows_by_its_predecessor() {
        let chain = TopicChain { last: Position { epoch: 7, sequence: 10 } };
        let link = |epoch, prev, sequence| chain.link(Position { epoch, sequence }, prev);
        assert_eq!([link(7, 10, 11), link(7, 10, 5_000)], [ChainLink::Next; 2]);
        assert_eq!([link(7, 9, 10), link(7, 0, 3)], [ChainLink::Duplicate; 2]);
        assert_eq!(link(7, 11, 12), ChainLink::Gap);
        // The store has lost message 10, and then skipped sequences.
        assert_eq!([link(7, 9, 5_000), link(8, 10, 11), link(8, 0, 1)], [ChainLink::Lost; 3]);
        let new = TopicChain { last: Position::default() };
        assert_eq!(new.link(Position { epoch: 7, sequence: 1 }, 0), ChainLink::Next);
        assert_eq!(new.link(Position { epoch: 7, sequence: 3 }, 2), ChainLink::Gap);
    }

    #[test]
    fn audit_finds_what_no_notification_has_shown() {
        let chain = TopicChain { last: Position { epoch: 7, sequence: 10 } };
        let top = |epoch, sequence| chain.top(Some(Position { epoch, sequence }));
        assert_eq!(
            [top(7, 10), top(7, 11), top(7, 9), top(8, 10)],
            [ChainLink::Duplicate, ChainLink::Gap, ChainLink::Lost, ChainLink::Lost]
        );
        let new = TopicChain { last: Position::default() };
        assert_eq!([chain.top(None), new.top(None)], [ChainLink::Lost, ChainLink::Duplicate]);
        assert_eq!(new.top(Some(Position { epoch: 1, sequence: 4 })), ChainLink::Gap);
    }
}
