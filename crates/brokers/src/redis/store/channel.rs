//! What a node follows.

use sinews_store::TopicPart;

/// What a node follows.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum FollowedChannel {
    Part(TopicPart),
    /// The logs in all topics that match a pattern.
    Pattern(Box<str>),
}

impl FollowedChannel {
    /// The part that notifications name; that of a pattern is its log.
    pub(super) fn part(&self) -> TopicPart {
        match self {
            Self::Part(part) => part.clone(),
            Self::Pattern(pattern) => TopicPart::log(pattern),
        }
    }
}
