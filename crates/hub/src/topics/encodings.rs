//! The registered encodings. Each client protocol registers its own when the hub is assembled. Publications are not
//! encoded for encodings without subscribers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::model::encoding::{EncodedTopics, Encoding, LastEvents, Positioning};

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
            assert!(self.find(topics).is_none(), "two encodings have the prefix {:?}", topics.prefix());
            let has_last_events = encoding.last_events().is_some();
            let subscriptions = Arc::clone(&subscriptions);
            self.list.push(RegisteredEncoding { encoding, topics, has_last_events, subscriptions });
        }
        assert!(self.list.len() <= Self::MAX, "{} encodings, at most {}", self.list.len(), Self::MAX);
        let positioning = |registered: &RegisteredEncoding| registered.topics.positioning();
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
        self.list.iter().map(|registered| registered.topics).filter(|topics| topics.is_shared())
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
        self.list.iter().find(|registered| registered.topics.prefix() == topics.prefix())
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
