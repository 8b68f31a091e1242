//! Events of channels with a history: published with their positions, for clients that recover.
//!
//! The protocol's form of a topic assigns the position of a message. The event has the same position, so that it stays valid
//! after a hot restart.

use std::sync::MutexGuard;

use sinews_server::{Position, Publisher};

use super::{HubTopics, MessageContent, TopicForm, reached};
use crate::protocol::pusher::encode::encode;

/// A channel with a history, locked for one publication.
pub(super) struct RecoverableChannel<'a> {
    channel: String,
    _order: MutexGuard<'a, ()>,
}

impl HubTopics {
    /// Locks the channel that a topic is, if it is one and has a history. Call it before the position is assigned.
    pub(super) fn recoverable_channel(&self, topic: &str) -> Option<RecoverableChannel<'_>> {
        if !self.has_history(topic) {
            return None;
        }
        let channel = self.apps.target(topic)?.channel;
        Some(RecoverableChannel { channel, _order: self.recoverable_channels.lock(topic) })
    }

    /// Publishes an event at its position. Returns the number of subscriptions that it reaches.
    pub(super) fn publish_recoverable(
        &self,
        out: &Publisher,
        channel: Option<RecoverableChannel<'_>>,
        (topic, content): (&str, &MessageContent),
        position: Option<Position>,
        socket: Option<u128>,
    ) -> usize {
        let (Some(channel), Some(position)) = (channel, position) else { return 0 };
        let event = encode(&channel.channel, content).with_position(position, socket);
        let except = event.socket_id.and_then(|id| self.apps.socket(id));
        let topic = TopicForm::RecoverableEvent.topic(topic);
        // Earlier events may be missing, or of another epoch. The name was checked.
        let before = Position { sequence: position.sequence.saturating_sub(1), ..position };
        let _ = out.advance_to(&topic, before);
        reached(out.publish_at_except(&topic, position, &event.message, except))
    }
}
