//! Options of a publication.

use super::history::policy::Position;
use super::subscriber_id::SubscriberId;

/// Options of a publication: the subscriber that does not receive it, and its place in the topic. By default every
/// subscriber receives the message, and the topic's history, if it has one, assigns the position and retains the
/// message.
///
/// ```
/// use sinews_server::{Position, Prepared, PublishOptions, Router, Server};
///
/// let server = Server::new(Router::new()).listen("127.0.0.1:0".parse()?).threads(1).bind()?;
/// let options = PublishOptions::new().at(Position { epoch: 1, sequence: 7 });
/// server.publisher().publish("news", &Prepared::text("of another server"), options)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct PublishOptions {
    pub(crate) except: Option<SubscriberId>,
    pub(crate) placement: Placement,
}

/// The place of a publication in its topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Placement {
    /// After the last message of the history, if the topic has one.
    #[default]
    Append,
    /// At a position that another server has assigned, behind a sequence.
    At(Position, u64),
    /// A version of a topic without history.
    Version(u64),
    /// Not in the history.
    Unretained,
}

impl PublishOptions {
    /// Returns the default options.
    pub const fn new() -> Self {
        Self { except: None, placement: Placement::Append }
    }

    /// Excludes a subscriber: for example the connection whose request led to the message. A replay of the history
    /// includes the message for every subscriber.
    pub fn except(self, subscriber: impl Into<Option<SubscriberId>>) -> Self {
        Self { except: subscriber.into(), ..self }
    }

    /// Publishes a message of another server at its position in a topic that both servers retain
    /// ([`Publisher::restore`](crate::Publisher::restore)). A message that is already retained is not published again;
    /// if earlier messages are missing, the history restarts with this message. If the topic has no history here, or
    /// has messages of another epoch, the position does not apply: subscribers get the message, and it is not retained.
    pub const fn at(self, position: Position) -> Self {
        self.at_behind(position, position.sequence.saturating_sub(1))
    }

    /// Publishes as [`at`](Self::at) does, behind the message at this sequence, 0 if it is the first one. A store that
    /// assigns positions may skip sequences.
    pub const fn at_behind(self, position: Position, prev: u64) -> Self {
        Self { placement: Placement::At(position, prev), ..self }
    }

    /// Publishes a version of a topic without history: subscribers from this version or a later one
    /// ([`Context::subscribe_after`](crate::Context::subscribe_after)) do not receive it. The versions of a topic must
    /// rise from one publication to the next: a caller with several threads locks the topic. Version 0 is a message
    /// between two versions: it keeps its order among them, and all subscribers receive it. In a topic with history,
    /// the version does not apply.
    pub const fn version(self, version: u64) -> Self {
        Self { placement: Placement::Version(version), ..self }
    }

    /// Publishes past the history: the message has no position, and later subscribers do not receive it.
    pub const fn unretained(self) -> Self {
        Self { placement: Placement::Unretained, ..self }
    }
}
