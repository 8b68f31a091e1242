//! Events of channels with a history, and of channels that are durable topics: published with their positions, for clients
//! that recover.
//!
//! The protocol's form of a topic with a history assigns the position of a message. The event has the same position, so that
//! it stays valid after a hot restart. The position in a durable topic is that of its stream.

use std::borrow::Cow;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use sinews_server::{Position, Prepared, Publisher, SubscriberId};

use super::authority::PublicationSource;
use super::{HubTopics, TopicForm, reached};
use crate::apps::encode::ChannelPublication;

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
        Some(RecoverableChannel { channel, _order: self.recoverable_channels.lock(topic) })
    }

    /// Publishes an event at its position. Returns the number of subscriptions that it reaches.
    pub(super) fn publish_recoverable(
        &self,
        out: &Publisher,
        channel: Option<RecoverableChannel<'_>>,
        (topic, publication): (&str, &ChannelPublication<'_>),
        position: Option<Position>,
        source: PublicationSource,
    ) -> usize {
        let (Some(channel), Some(position)) = (channel, position) else { return 0 };
        let (event, sender) = self.positioned(publication, &channel.channel, (position, source.socket));
        publish_at(out, topic, position, (&event, sender.or_else(|| self.subscriber(source.exclude))))
    }

    /// Publishes an event of a durable topic at its position in the stream, while the relay of the topic is locked. Later
    /// subscribers start in the stream.
    pub(super) fn relay_recoverable(
        &self,
        out: &Publisher,
        topic: &str,
        publication: &ChannelPublication<'_>,
        position: Position,
    ) {
        let Some(channel) = self.subscribed_channel(topic) else { return };
        let (event, except) = self.positioned(publication, &channel, (position, None));
        publish_at(out, topic, position, (&event, except));
    }

    /// Publishes an event of a client in a durable topic, which does not store it, in the forms with positions: without a
    /// position. Returns the number of subscriptions that it reaches.
    pub(super) fn publish_unstored(
        &self,
        out: &Publisher,
        topic: &str,
        publication: &ChannelPublication<'_>,
        socket: Option<u128>,
    ) -> usize {
        let mut count = 0;
        if self.framed.load(Ordering::Acquire) > 0 {
            let message = publication.content().framed(topic, None);
            count += reached(out.publish_unretained(&TopicForm::Framed.topic(topic), &message, None));
        }
        if let Some(channel) = self.subscribed_channel(topic) {
            let event = publication.encode(&channel);
            let except = event.socket_id.or(socket).and_then(|id| self.apps.socket(id));
            let form = TopicForm::RecoverableEvent.topic(topic);
            count += reached(out.publish_unretained(&form, &event.message, except));
        }
        count
    }

    /// The channel that a topic is, if any channel has subscribers.
    fn subscribed_channel<'a>(&self, topic: &'a str) -> Option<Cow<'a, str>> {
        let has_subscribers = self.channel_events.load(Ordering::Acquire) > 0;
        Some(self.apps.target(topic).filter(|_| has_subscribers)?.channel)
    }

    /// An event with its position, and the connection that does not receive it.
    fn positioned(
        &self,
        publication: &ChannelPublication<'_>,
        channel: &str,
        (position, socket): (Position, Option<u128>),
    ) -> (Prepared, Option<SubscriberId>) {
        let event = publication.encode(channel).with_position(position, socket);
        let except = event.socket_id.and_then(|id| self.apps.socket(id));
        (event.message, except)
    }
}

/// Publishes an event at its position, except to a connection. Returns the number of subscriptions that it reaches.
fn publish_at(
    out: &Publisher,
    topic: &str,
    position: Position,
    (event, except): (&Prepared, Option<SubscriberId>),
) -> usize {
    let form = TopicForm::RecoverableEvent.topic(topic);
    // Earlier events may be missing, or of another epoch, such as that of a deleted stream. The name was checked.
    let before = Position { sequence: position.sequence.saturating_sub(1), ..position };
    let _ = out.advance_to(&form, before);
    reached(out.publish_at_except(&form, position, event, except))
}

#[cfg(test)]
mod tests {
    use sinews_server::{HistoryPolicy, Router, Server, TopicRule};

    use super::*;
    use crate::apps::app::{PusherApp, PusherApps};
    use crate::apps::live::LiveApps;
    use crate::model::MessageContent;

    #[test]
    fn events_of_a_new_stream_replace_those_of_a_deleted_one_in_memory() {
        let rule = TopicRule::new("q.stored.>").with_history(HistoryPolicy::new(10));
        let server = Server::new(Router::new()).threads(1).topic_rule(rule);
        let server = server.listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
        let apps = LiveApps::default();
        let app = PusherApp::new("1", "key", "secret").with_topics("stored");
        apps.replace(&PusherApps::new([app]).unwrap());
        let hub = HubTopics::default().with_apps(apps.into());
        hub.count_subscriber(TopicForm::RecoverableEvent);
        let content = MessageContent::Text("a".into());
        for (epoch, sequence) in [(1, 8), (1, 9), (2, 1), (2, 2)] {
            hub.relay(&mut server.publisher(), "stored.a", &content, Position { epoch, sequence });
        }
        let histories = server.publisher().histories();
        let [topic] = &*histories else { panic!("{} histories", histories.len()) };
        assert_eq!((&*topic.name, topic.position.epoch, topic.messages.len()), ("q.stored.a", 2, 2));
    }
}
