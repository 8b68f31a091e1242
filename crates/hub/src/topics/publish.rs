//! The pipeline of a publication.
//!
//! ```text
//!   publish        from clients, backends, streams, other nodes and the predecessor process
//!      admit       a node's publication may be another process's; the successor process assigns positions
//!   deliver        positioned forms, under the locks that order them; then the forms without positions
//!   other nodes
//! ```
//!
//! The protocol's form of a topic with a history assigns the position of a message. The event of a channel has the same
//! position, so that it stays valid after a hot restart. The position in a durable topic is that of its stream.

use std::borrow::Cow;
use std::sync::atomic::Ordering;

use parking_lot::{MutexGuard, RwLockReadGuard};
use sinews_server::{Position, Prepared, PublishOptions, Publisher, SubscriberId};

use super::channels::PublishedChannel;
use super::handover_role::HandoverRole;
use super::{HubTopics, TopicForm, TopicPublisher};
use crate::apps::encode::encode;
use crate::apps::live::EventTarget;
use crate::model::connection_id::ConnectionId;
use crate::model::is_reserved;
use crate::model::publication::{Publication, PublicationOrigin};

/// A channel whose clients recover, during one publication.
struct RecoverableChannel<'a> {
    channel: Cow<'a, str>,
    /// Orders the events of a channel with a history. The relay of a durable topic has a lock of its own.
    _order: Option<MutexGuard<'a, ()>>,
}

impl HubTopics {
    /// Publishes in all forms, and to the other processes that need the publication. Returns the number of subscriptions of
    /// this process that it reaches.
    pub(crate) fn publish(&self, out: &mut impl TopicPublisher, publication: &Publication<'_, '_>) -> usize {
        self.publish_in(out, publication, self.channel(publication))
    }

    /// Publishes as [`publish`](Self::publish) does, to the topic of a known channel.
    pub(crate) fn publish_to_channel(
        &self,
        out: &mut impl TopicPublisher,
        publication: &Publication<'_, '_>,
        target: EventTarget<'_>,
    ) -> usize {
        let channel = self.channel_at(target, publication);
        self.publish_in(out, publication, Some(channel))
    }

    fn publish_in(
        &self,
        out: &mut impl TopicPublisher,
        publication: &Publication<'_, '_>,
        channel: Option<PublishedChannel<'_>>,
    ) -> usize {
        let Publication { topic, content, origin, sender, .. } = *publication;
        let role = self.read_role();
        if let PublicationOrigin::Node(id) = origin
            && self.has_history(topic)
            && !self.node_publications.admit(id, role.successor.is_some(), || publication.into())
        {
            return 0;
        }
        let reached = if self.awaits_successor(&role, publication) {
            drop(role);
            self.count(topic);
            self.deliver_plain(out, publication, channel.as_ref())
        } else {
            self.deliver(role, out, publication, channel.as_ref())
        };
        // The other nodes receive the events of a cache channel in the order in which this node retains them.
        if let (PublicationOrigin::Local, Some(nodes)) = (origin, self.other_nodes()) {
            // A node that has its first subscriber of a cache channel later answers with the last event.
            let is_cache = channel.as_ref().is_some_and(PublishedChannel::is_cache);
            nodes.publish(topic, content.message(), sender.exclude, is_cache);
        }
        reached
    }

    /// Forwards a publication of this process or of its predecessor to the successor. Returns whether it waits there for its
    /// position.
    fn awaits_successor(&self, role: &HandoverRole, publication: &Publication<'_, '_>) -> bool {
        let is_forwarded =
            matches!(publication.origin, PublicationOrigin::Local | PublicationOrigin::Predecessor { .. });
        let Some(successor) = role.successor.as_ref().filter(|_| is_forwarded) else { return false };
        let has_history = self.has_history(publication.topic);
        if !successor.forward(publication, has_history) && has_history {
            role.pass_to_predecessor(publication, None);
        }
        has_history
    }

    /// Delivers a publication to subscribers of this process in all forms.
    pub(super) fn deliver(
        &self,
        role: RwLockReadGuard<'_, HandoverRole>,
        out: &mut impl TopicPublisher,
        publication: &Publication<'_, '_>,
        channel: Option<&PublishedChannel<'_>>,
    ) -> usize {
        self.count(publication.topic);
        let reached = self.deliver_positioned(&role, out, publication);
        drop(role);
        reached + self.deliver_plain(out, publication, channel)
    }

    /// Delivers in the forms with positions, and passes the publication to the predecessor, which receives all in order.
    pub(super) fn deliver_positioned(
        &self,
        role: &HandoverRole,
        out: &mut impl TopicPublisher,
        publication: &Publication<'_, '_>,
    ) -> usize {
        let Publication { topic, content, mut position, origin, .. } = *publication;
        let pass = |position| {
            // The predecessor receives the other publications of nodes itself.
            if !matches!(origin, PublicationOrigin::Node(_)) || self.has_history(topic) {
                role.pass_to_predecessor(publication, position);
            }
        };
        if is_reserved(topic) || !self.is_framed(topic) {
            pass(position);
            return 0;
        }
        let is_durable = self.is_durable(topic);
        let channel = if is_durable { self.durable_channel(topic) } else { self.recoverable_channel(topic) };
        let options = PublishOptions::new().except(self.excluded(out, publication));
        let options = match position {
            Some(position) => options.at(position),
            // Its stream does not store a client's event.
            None if is_durable => options.unretained(),
            None => options,
        };
        let (mut reached, mut is_passed) = (0, false);
        // A later subscriber of a durable topic starts in the stream.
        if !is_durable || self.framed.load(Ordering::Acquire) > 0 {
            let make = |assigned| {
                // The topic is locked, so the predecessor receives messages in order.
                position = assigned;
                pass(position);
                is_passed = true;
                content.message().framed(topic, position)
            };
            reached = out.publish(&TopicForm::Framed.topic(topic), make, options);
        }
        if !is_passed {
            pass(position);
        }
        match channel.filter(|_| is_durable || position.is_some()) {
            Some(channel) => reached + self.deliver_recoverable(out, publication, &channel.channel, position),
            None => reached,
        }
    }

    /// Delivers to clients that recover: an event with its position, or a client's event that the stream of a durable topic
    /// does not store.
    fn deliver_recoverable(
        &self,
        out: &mut impl TopicPublisher,
        publication: &Publication<'_, '_>,
        channel: &str,
        position: Option<Position>,
    ) -> usize {
        let form = TopicForm::RecoverableEvent.topic(publication.topic);
        let mut event = encode(publication.content.event(), channel);
        let mut options = PublishOptions::new().unretained();
        if let Some(position) = position {
            event = event.with_position(position, publication.sender.socket);
            // Earlier events may be missing, or of another epoch, such as that of a deleted stream.
            out.advance_to(&form, Position { sequence: position.sequence.saturating_sub(1), ..position });
            options = options.at(position);
        }
        let sender = event.socket_id.or(publication.sender.socket).and_then(|id| self.apps.socket(id));
        let except = sender.or_else(|| self.subscriber(publication.sender.exclude));
        out.publish(&form, |_| event.message, options.except(except))
    }

    /// Delivers in the forms without positions: as an event of the channel that the topic is, if it is one, and as the payload
    /// itself.
    fn deliver_plain(
        &self,
        out: &mut impl TopicPublisher,
        publication: &Publication<'_, '_>,
        channel: Option<&PublishedChannel<'_>>,
    ) -> usize {
        let Publication { topic, content, .. } = *publication;
        let except = self.excluded(out, publication);
        let reached = channel.map_or(0, |channel| self.deliver_event(out, publication, channel, except));
        if self.plain.load(Ordering::Acquire) == 0 || is_reserved(topic) {
            return reached;
        }
        let options = PublishOptions::new().except(except);
        reached + out.publish(&TopicForm::Plain.topic(topic), |_| content.message().plain(), options)
    }

    /// The channel that a topic is, if it is one and has a history: locked, since its event follows the message.
    fn recoverable_channel<'a>(&'a self, topic: &'a str) -> Option<RecoverableChannel<'a>> {
        if !self.has_history(topic) {
            return None;
        }
        let channel = self.apps.target(topic)?.channel;
        Some(RecoverableChannel { channel, _order: Some(self.recoverable_channels.lock(topic)) })
    }

    /// The channel that a durable topic is, if any channel has subscribers.
    fn durable_channel<'a>(&self, topic: &'a str) -> Option<RecoverableChannel<'a>> {
        let has_subscribers = self.channel_events.load(Ordering::Acquire) > 0;
        let channel = self.apps.target(topic).filter(|_| has_subscribers)?.channel;
        Some(RecoverableChannel { channel, _order: None })
    }

    /// The subscriber of this process that does not receive a publication.
    fn excluded(&self, out: &impl TopicPublisher, publication: &Publication<'_, '_>) -> Option<SubscriberId> {
        let sender = publication.sender;
        let publisher = || out.subscriber_id().filter(|_| sender.excludes_publisher);
        self.subscriber(sender.exclude).or_else(publisher)
    }

    /// A connection as a subscriber, if this process has it.
    fn subscriber(&self, connection: Option<ConnectionId>) -> Option<SubscriberId> {
        connection.and_then(|id| self.connections.subscriber(id))
    }

    /// Notifies subscribers that the stream of a topic was deleted: the topic starts again with a new epoch.
    pub(crate) fn notify_reset(&self, out: &mut Publisher, topic: &str) {
        if self.framed.load(Ordering::Acquire) > 0 {
            let message = serde_json::json!({ "op": "reset", "topic": topic }).to_string();
            let make = |_| Prepared::text(message);
            TopicPublisher::publish(out, &TopicForm::Framed.topic(topic), make, PublishOptions::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use sinews_server::{HistoryPolicy, Router, Server, TopicRule};

    use super::*;
    use crate::access::namespaces::order::PatternSet;
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
        let durable = PatternSet::new([("stored.>".to_owned(), true)]);
        let hub = HubTopics::default().with_durable(durable).with_apps(apps.into());
        hub.count_subscriber(TopicForm::RecoverableEvent);
        let content = MessageContent::Text("a".into());
        for (epoch, sequence) in [(1, 8), (1, 9), (2, 1), (2, 2)] {
            let content = (&content).into();
            let publication = Publication::new("stored.a", &content).with_origin(PublicationOrigin::Stream);
            hub.publish(&mut server.publisher(), &publication.at(Some(Position { epoch, sequence })));
        }
        let histories = server.publisher().histories();
        let [topic] = &*histories else { panic!("{} histories", histories.len()) };
        assert_eq!((&*topic.name, topic.position.epoch, topic.messages.len()), ("q.stored.a", 2, 2));
    }
}
