//! Requests for parts of topic histories.

use sinews_server::{HistoryQuery, Position, ReplayFrom};

/// A part of a topic's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HistoryRange {
    /// The newest messages, perhaps of those before a position.
    Last { count: usize, before: Option<Position> },
    /// The first messages after a position.
    After { position: Position, limit: usize },
}

impl HistoryRange {
    /// The messages that a subscription from this start replays.
    pub(crate) fn from_start(start: ReplayFrom) -> Self {
        match start {
            ReplayFrom::After(position) => Self::After { position, limit: usize::MAX },
            ReplayFrom::Last(count) => Self::Last { count, before: None },
            // Starts that a later version may add.
            _ => Self::Last { count: 0, before: None },
        }
    }

    /// The position that has to be known before the answer.
    pub(crate) fn start(self) -> ReplayFrom {
        match self {
            Self::Last { before: None, count } => ReplayFrom::Last(count),
            // The message itself may be the next one.
            Self::Last { before: Some(Position { epoch, sequence }), .. } => {
                ReplayFrom::After(Position { epoch, sequence: sequence.saturating_sub(1) })
            }
            Self::After { position, .. } => ReplayFrom::After(position),
        }
    }

    /// The query to the server below, for at most so many messages.
    pub(crate) fn query(self, most: usize) -> HistoryQuery {
        match self {
            Self::Last { count, before: None } => HistoryQuery::last(count.min(most)),
            Self::Last { count, before: Some(position) } => HistoryQuery::before(position, count.min(most)),
            Self::After { position, limit } => HistoryQuery::after(position, limit.min(most)),
        }
    }
}
