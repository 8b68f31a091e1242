//! Positions in one response's topics: its events' ids, with which a client resumes.

use std::fmt;

use sinews_server::{Position, ReplayFrom};

/// The positions, in the order of the topics in the request. As text they are separated by commas, each an epoch and a
/// sequence: `8100236-44,,77-1`. A topic without a position has an empty text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cursor(Vec<Option<Position>>);

impl Cursor {
    /// No topic has a position yet.
    pub(super) fn new(topics: usize) -> Self {
        Self(vec![None; topics])
    }

    /// Reads a cursor of this number of topics.
    pub(super) fn parse(text: &str, topics: usize) -> Option<Self> {
        let entry = |entry: &str| match entry {
            "" => Some(None),
            _ => parse_position(entry).map(Some),
        };
        let entries: Option<Vec<_>> = text.split(',').take(topics + 1).map(entry).collect();
        entries.filter(|entries| entries.len() == topics).map(Self)
    }

    /// Where a topic resumes; `None` if it had no position.
    pub(super) fn start(&self, topic: usize) -> Option<ReplayFrom> {
        self.0.get(topic).copied().flatten().map(ReplayFrom::After)
    }

    pub(super) fn set(&mut self, topic: usize, position: Position) {
        if let Some(entry) = self.0.get_mut(topic) {
            *entry = Some(position);
        }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, entry) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str(",")?;
            }
            if let Some(Position { epoch, sequence }) = entry {
                write!(f, "{epoch}-{sequence}")?;
            }
        }
        Ok(())
    }
}

/// Reads one position.
pub(super) fn parse_position(text: &str) -> Option<Position> {
    let number = |digits: &str| {
        let is_plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse().ok().filter(|_| is_plain)
    };
    let (epoch, sequence) = text.split_once('-')?;
    Some(Position { epoch: number(epoch)?, sequence: number(sequence)? })
}

/// The start of a client whose position is unknown: it gets the retained messages, and is told of the gap.
pub(super) const UNKNOWN: ReplayFrom = ReplayFrom::After(Position { epoch: u64::MAX, sequence: 1 });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_is_read_back() {
        let mut cursor = Cursor::new(3);
        assert_eq!(cursor.to_string(), ",,");
        cursor.set(0, Position { epoch: 8_100_236, sequence: 44 });
        cursor.set(2, Position { epoch: u64::MAX, sequence: 0 });
        cursor.set(3, Position { epoch: 1, sequence: 1 });
        assert_eq!(cursor.to_string(), "8100236-44,,18446744073709551615-0");
        assert_eq!(Cursor::parse(&cursor.to_string(), 3), Some(cursor.clone()));
        assert_eq!(cursor.start(0), Some(ReplayFrom::After(Position { epoch: 8_100_236, sequence: 44 })));
        assert_eq!((cursor.start(1), cursor.start(9)), (None, None));
    }

    #[test]
    fn malformed_cursors_are_rejected() {
        for (text, topics) in
            [("1", 1), ("1-", 1), ("-1", 1), ("+1-1", 1), ("1-1-1", 1), ("1-1,", 1), ("1-1", 2), ("a-b", 1)]
        {
            assert_eq!(Cursor::parse(text, topics), None, "{text:?}");
        }
        assert_eq!(Cursor::parse("99999999999999999999-1", 1), None, "beyond 64 bits");
        assert_eq!(Cursor::parse("", 1), Some(Cursor::new(1)));
    }
}
