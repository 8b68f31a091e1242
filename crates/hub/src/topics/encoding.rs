//! Publication encodings. Each client protocol registers its own when the hub is assembled.
//!
//! For the server below, a topic is a topic of its own in each encoding: a message is encoded and framed once for all
//! subscribers. Publications are not encoded for encodings without subscribers.

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sinews_server::{Position, Prepared, Publisher, SubscriberId};

use crate::model::is_reserved;
use crate::model::nodes::NodePublicationId;
use crate::model::publication::Publication;

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

/// All protocols' encodings, each with its subscription count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Encodings {
    /// In the order of their positioning.
    list: Vec<RegisteredEncoding>,
    /// Number of encodings whose histories assign positions.
    assigning: usize,
    /// Number of encodings whose positions are not those of another one.
    not_following: usize,
}

/// A protocol's encoding.
#[derive(Clone, Debug)]
pub(crate) struct RegisteredEncoding {
    pub(super) encoding: Arc<dyn Encoding>,
    pub(crate) topics: EncodedTopics,
    /// Whether the encoding has topics that retain their last event.
    pub(super) has_last_events: bool,
    /// Subscriptions on all workers, in all the protocol's encodings.
    subscriptions: Arc<AtomicUsize>,
}

impl RegisteredEncoding {
    /// Whether the protocol has subscribers on this node.
    pub(super) fn has_subscribers(&self) -> bool {
        self.subscriptions.load(Ordering::Acquire) > 0
    }

    /// Returns the retained events, if a topic retains its last event in this encoding.
    pub(super) fn last_events(&self, topic: &str) -> Option<&dyn LastEvents> {
        let events = if self.has_last_events { self.encoding.last_events() } else { None };
        events.filter(|events| events.has_topic(topic))
    }
}

impl Encodings {
    /// Maximum encodings: subscription observers have a bit for each, and one more.
    pub(crate) const MAX: usize = 7;

    /// Registers a protocol's encodings, whose subscriptions are counted together.
    ///
    /// # Panics
    /// If there are more than [`MAX`](Self::MAX), or two have the same prefix: both are errors of the hub's assembly.
    pub(crate) fn register(&mut self, protocol: impl IntoIterator<Item = Arc<dyn Encoding>>) {
        let subscriptions = Arc::default();
        for encoding in protocol {
            let topics = encoding.topics();
            assert!(self.find(topics).is_none(), "two encodings have the prefix {:?}", topics.prefix);
            let has_last_events = encoding.last_events().is_some();
            let subscriptions = Arc::clone(&subscriptions);
            self.list.push(RegisteredEncoding { encoding, topics, has_last_events, subscriptions });
        }
        assert!(self.list.len() <= Self::MAX, "{} encodings, at most {}", self.list.len(), Self::MAX);
        let positioning = |registered: &RegisteredEncoding| registered.topics.positioning;
        self.list.sort_by_key(positioning);
        self.assigning = self.list.partition_point(|all| positioning(all) < Positioning::None);
        self.not_following = self.list.partition_point(|all| positioning(all) < Positioning::Follows);
    }

    /// Returns all encodings.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &RegisteredEncoding> {
        self.list.iter()
    }

    /// Returns the topics of the encodings whose subscribers lists of topics count.
    pub(crate) fn shared(&self) -> impl Iterator<Item = EncodedTopics> {
        self.list.iter().map(|registered| registered.topics).filter(|topics| topics.is_shared)
    }

    /// Returns the encoding whose histories assign positions.
    pub(super) fn assigning(&self) -> Option<&RegisteredEncoding> {
        self.list.first().filter(|_| self.assigning > 0)
    }

    /// Returns the encodings without positions.
    pub(super) fn unpositioned(&self) -> &[RegisteredEncoding] {
        &self.list[self.assigning..self.not_following]
    }

    /// Returns the encodings that have the positions of another one.
    pub(super) fn following(&self) -> &[RegisteredEncoding] {
        &self.list[self.not_following..]
    }

    fn find(&self, topics: EncodedTopics) -> Option<&RegisteredEncoding> {
        self.list.iter().find(|registered| registered.topics.prefix == topics.prefix)
    }

    /// Returns the subscription count for an encoding's protocol.
    pub(super) fn subscriptions(&self, topics: EncodedTopics) -> Option<&AtomicUsize> {
        self.find(topics).map(|registered| &*registered.subscriptions)
    }

    /// Returns the public name of a topic or pattern of the server below, and a bit for its encoding; `None` for topics
    /// that are no client topics.
    pub(super) fn split<'a>(&self, topic: &'a str) -> Option<(&'a str, u8)> {
        let mut numbered = self.list.iter().enumerate();
        numbered.find_map(|(number, registered)| Some((registered.topics.name(topic)?, 1 << number)))
    }
}

#[cfg(all(test, feature = "pusher"))]
mod tests;
