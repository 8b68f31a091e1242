//! Publication encodings: how the subscribers of a client protocol receive a publication.
//!
//! For the server below, a topic is a topic of its own in each encoding: a message is encoded and framed once for all
//! subscribers.

use std::borrow::Cow;
use std::fmt::Debug;
use std::time::Duration;

use sinews_server::{Position, Prepared, Publisher, SubscriberId};

use super::is_reserved;
use super::nodes::NodePublicationId;
use super::publication::Publication;

/// An encoding's topics in the server below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EncodedTopics {
    prefix: &'static str,
    positioning: Positioning,
    has_reserved: bool,
    is_shared: bool,
}

/// The positions of an encoding's messages in a topic's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Positioning {
    /// The history in this encoding assigns the positions.
    Assigns,
    /// Messages have no positions.
    None,
    /// Messages have the positions that another encoding's history has assigned.
    Follows,
}

/// JSON protocol messages, whose histories assign positions. Durable topics and recoveries read them, too.
pub(crate) const MESSAGES: EncodedTopics = EncodedTopics::new("j.").with_positioning(Positioning::Assigns);

impl EncodedTopics {
    /// Creates the topics with names that begin with a prefix: a letter and a dot.
    pub(crate) const fn new(prefix: &'static str) -> Self {
        Self { prefix, positioning: Positioning::None, has_reserved: false, is_shared: true }
    }

    /// Sets the message positions. Default: [`Positioning::None`].
    pub(crate) const fn with_positioning(self, positioning: Positioning) -> Self {
        Self { positioning, ..self }
    }

    /// Adds the topics that only the hub names. In the server below, each has its own name, which is that of its
    /// presence: the server stores it once.
    pub(crate) const fn with_reserved(self) -> Self {
        Self { has_reserved: true, ..self }
    }

    /// Sets that topic lists do not count the subscribers, and that no namespace decides what happens to slow ones:
    /// they are disconnected.
    pub(crate) const fn unshared(self) -> Self {
        Self { is_shared: false, ..self }
    }

    /// Whether topic lists count the subscribers, and namespaces decide what happens to slow ones.
    pub(crate) fn is_shared(self) -> bool {
        self.is_shared
    }

    /// Returns what the names in the server below begin with.
    pub(crate) fn prefix(self) -> &'static str {
        self.prefix
    }

    pub(crate) fn positioning(self) -> Positioning {
        self.positioning
    }

    /// Returns a topic's or pattern's name in the server below.
    pub(crate) fn topic(self, name: &str) -> Cow<'_, str> {
        if self.has_reserved && is_reserved(name) {
            return name.into();
        }
        [self.prefix, name].concat().into()
    }

    /// Returns the public name of a topic of the server below, if it has this encoding.
    pub(crate) fn name(self, topic: &str) -> Option<&str> {
        topic.strip_prefix(self.prefix).or_else(|| (self.has_reserved && is_reserved(topic)).then_some(topic))
    }
}

/// Encodes publications for the subscribers of a client protocol.
pub(crate) trait Encoding: Debug + Send + Sync {
    /// Returns the topics in the server below.
    fn topics(&self) -> EncodedTopics;

    /// Returns the name by which subscribers know a topic; `None` if nobody can subscribe to it in this encoding. Of an
    /// encoding without subscribers, this is called for topics that retain messages in it only.
    fn name<'a>(&self, topic: &'a str) -> Option<Cow<'a, str>> {
        (!is_reserved(topic)).then_some(topic.into())
    }

    /// Encodes a publication, once for all subscribers. They know the topic by this name.
    fn encode(&self, publication: &Publication<'_, '_>, name: &str, position: Option<Position>) -> Prepared;

    /// Returns the subscriber that the publisher excludes by means of this protocol.
    fn excluded(&self, _publication: &Publication<'_, '_>) -> Option<SubscriberId> {
        None
    }

    /// Returns the retained events, if the protocol has topics that retain their last event.
    fn last_events(&self) -> Option<&dyn LastEvents> {
        None
    }

    /// Returns the message for subscribers to a topic whose stream was deleted, if they get one.
    fn reset(&self, _topic: &str) -> Option<Prepared> {
        None
    }

    /// Returns the message for subscribers to a topic that gets no publications from other nodes, if they get one.
    fn rejection(&self, _topic: &str, _reason: &str, _out: &Publisher) -> Option<Prepared> {
        None
    }

    /// Whether a publisher of this protocol has sealed an event that a topic's stream has stored.
    fn has_sealed(&self, _topic: &str, _event: &[u8], _seal: &str) -> bool {
        false
    }
}

/// A retained event.
#[derive(Clone, Debug)]
pub(crate) struct RetainedEvent {
    pub(crate) message: Prepared,
    pub(crate) origin: EventOrigin,
    pub(crate) age: Duration,
}

/// The node that has published a retained event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EventOrigin {
    ThisNode,
    /// Another node, with the message in which it was published, if the message is known.
    OtherNode(Option<NodePublicationId>),
}

impl EventOrigin {
    /// Returns the message with which another node has published the event.
    pub(crate) fn publication(self) -> Option<NodePublicationId> {
        match self {
            Self::ThisNode => None,
            Self::OtherNode(publication) => publication,
        }
    }
}

/// The last events of an encoding's topics, on this node. New subscribers receive them.
pub(crate) trait LastEvents {
    /// Whether a topic retains its last event. This is called for each publication.
    fn has_topic(&self, topic: &str) -> bool;

    /// Retains a publication's message. Returns its version, which rises from event to event; 0 for a message that is
    /// not retained; `None` for one that no subscriber must receive, since a later one from the same node is retained.
    fn retain(&self, publication: &Publication<'_, '_>, message: &Prepared) -> Option<u64>;

    /// Retains a message of this age from another node, unless it is known or there is a later one. Returns its version
    /// if it is retained.
    fn restore(
        &self,
        topic: &str,
        message: &Prepared,
        origin: Option<NodePublicationId>,
        age: Duration,
    ) -> Option<u64>;

    /// Returns a topic's last event.
    fn last_event(&self, topic: &str) -> Option<RetainedEvent>;

    /// Returns the topics whose last event this node has published, not longer ago than this: the youngest event first.
    fn own_topics(&self, age_max: Duration) -> Vec<String>;

    /// Notes that a topic has no event. Returns whether to report it.
    fn note_miss(&self, topic: &str) -> bool;
}
