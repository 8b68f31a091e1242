//! Events of channels with a history: published with their positions, for clients that recover.
//!
//! The protocol's form of a topic assigns the position of a message. The event has the same position, so that it stays valid
//! after a hot restart.

use std::borrow::Cow;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sinews_server::{Position, Publisher};

use super::{HubTopics, TopicForm, reached};
use crate::protocol::pusher::encode::ChannelPublication;

/// Locks that keep the order of two forms equal. A topic takes one during a publication.
#[derive(Debug, Default)]
pub(super) struct OrderLocks([Mutex<()>; ORDER_LOCKS]);

/// Number of locks for all topics.
const ORDER_LOCKS: usize = 16;

/// A channel with a history, locked for one publication.
pub(super) struct RecoverableChannel<'a> {
    channel: Cow<'a, str>,
    _order: MutexGuard<'a, ()>,
}

impl HubTopics {
    /// Locks the channel that a topic is, if it is one and has a history. Call it before the position is assigned.
    pub(super) fn recoverable_channel<'a>(&'a self, topic: &'a str) -> Option<RecoverableChannel<'a>> {
        if !self.has_history(topic) {
            return None;
        }
        let channel = self.apps.target(topic)?.channel;
        let mut hasher = DefaultHasher::new();
        topic.hash(&mut hasher);
        let lock = &self.orders.0[hasher.finish() as usize % ORDER_LOCKS];
        Some(RecoverableChannel { channel, _order: lock.lock().unwrap_or_else(PoisonError::into_inner) })
    }

    /// Publishes an event at its position. Returns the number of subscriptions that it reaches.
    pub(super) fn publish_recoverable(
        &self,
        out: &Publisher,
        channel: Option<RecoverableChannel<'_>>,
        (topic, publication): (&str, &ChannelPublication<'_>),
        position: Option<Position>,
        socket: Option<u128>,
    ) -> usize {
        let (Some(channel), Some(position)) = (channel, position) else { return 0 };
        let event = publication.encode(&channel.channel).with_position(position, socket);
        let except = event.socket_id.and_then(|id| self.apps.socket(id));
        let topic = TopicForm::RecoverableEvent.topic(topic);
        // Earlier events may be missing, or of another epoch. The name was checked.
        let before = Position { sequence: position.sequence.saturating_sub(1), ..position };
        let _ = out.advance_to(&topic, before);
        reached(out.publish_at_except(&topic, position, &event.message, except))
    }
}
