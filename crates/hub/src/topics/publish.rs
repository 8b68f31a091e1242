//! The publication pipeline.
//!
//! ```text
//!   publish        from clients, backends, streams, other nodes and the predecessor process
//!      admit       a node's publication may be another process's; the successor process assigns positions
//!   deliver        encodings with positions, under the locks that order them; then the encodings without positions
//!   other nodes
//! ```
//!
//! The history in one encoding assigns a message's position. The message has the same position in the encodings that
//! follow, so that it stays valid after a hot restart. The position in a durable topic comes from its stream.

use std::borrow::Cow;

use parking_lot::RwLockReadGuard;
use sinews_server::{Position, PublishOptions, Publisher, SubscriberId};

use super::encodings::RegisteredEncoding;
use super::handover_role::HandoverRole;
use super::{HubTopics, TopicPublisher};
use crate::model::connection_id::ConnectionId;
use crate::model::is_reserved;
use crate::model::publication::{Publication, PublicationOrigin};
use crate::model::stamp::now_ms;

/// An encoding that has the position of a publication from another one, and the topic's name there.
struct Follower<'a> {
    registered: &'a RegisteredEncoding,
    name: Cow<'a, str>,
}

/// The sequence before a position.
fn prev_of(position: Position, origin: PublicationOrigin) -> u64 {
    match origin {
        PublicationOrigin::Store { prev } => prev,
        _ => position.sequence.saturating_sub(1),
    }
}

impl HubTopics {
    /// Publishes in all encodings, and to the other processes that need the publication. Returns how many of this
    /// process's subscriptions it reaches.
    pub(crate) fn publish(&self, out: &mut impl TopicPublisher, publication: &Publication<'_, '_>) -> usize {
        let Publication { topic, origin, .. } = *publication;
        let publication = &publication.with_time(self.time_of(publication));
        if let (PublicationOrigin::Local, Some(stored)) = (origin, self.stored(topic)) {
            // Without an answer to wait for.
            stored.publish(publication);
            return 0;
        }
        let last_event = self.lock_last_event(topic);
        let role = self.read_role();
        if let PublicationOrigin::Node(id) = origin
            && self.has_history(topic)
            && self.stored(topic).is_none()
            && !self.node_publications.admit(id, role.successor.is_some(), || publication.into())
        {
            return 0;
        }
        let reached = if self.awaits_successor(&role, publication) {
            drop(role);
            self.count(topic);
            self.deliver_unpositioned(out, publication, last_event.is_some())
        } else {
            self.deliver(role, out, publication, last_event.is_some())
        };
        // The other nodes receive a topic's events in the order in which this node retains them.
        if let (PublicationOrigin::Local, Some(nodes)) = (origin, self.other_nodes()) {
            // A node that has its first subscriber later answers with the last event.
            nodes.publish(publication, last_event.is_some());
        }
        reached
    }

    /// Delivers a publication that the topic store does not have, also to the other nodes. It has no position.
    pub(crate) fn publish_unstored(&self, out: &mut impl TopicPublisher, publication: &Publication<'_, '_>) {
        let topic = publication.topic;
        let publication = &publication.with_time(self.time_of(publication));
        let last_event = self.lock_last_event(topic);
        self.deliver(self.read_role(), out, publication, last_event.is_some());
        if let Some(nodes) = self.other_nodes() {
            nodes.publish(publication, last_event.is_some());
        }
    }

    /// The time in a publication's message: now, unless it is known.
    fn time_of(&self, publication: &Publication<'_, '_>) -> Option<u64> {
        let Publication { topic, origin, time, .. } = *publication;
        let time = || time.or_else(|| (origin == PublicationOrigin::Local).then(now_ms));
        if self.has_timestamps(topic) { time() } else { None }
    }

    /// Forwards this process's or its predecessor's publication to the successor. Returns whether it waits there for
    /// its position.
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

    /// Delivers a publication to this process's subscribers in all encodings. The caller has locked the last event of a
    /// topic that retains it.
    pub(super) fn deliver(
        &self,
        role: RwLockReadGuard<'_, HandoverRole>,
        out: &mut impl TopicPublisher,
        publication: &Publication<'_, '_>,
        has_last_event: bool,
    ) -> usize {
        self.count(publication.topic);
        let reached = self.deliver_positioned(&role, out, publication);
        drop(role);
        reached + self.deliver_unpositioned(out, publication, has_last_event)
    }

    /// Delivers in the encodings with positions, and passes the publication to the predecessor, which receives all in
    /// order.
    pub(super) fn deliver_positioned(
        &self,
        role: &HandoverRole,
        out: &mut impl TopicPublisher,
        publication: &Publication<'_, '_>,
    ) -> usize {
        let Publication { topic, mut position, origin, .. } = *publication;
        let pass = |position| match origin {
            // The predecessor receives these itself.
            PublicationOrigin::Store { .. } => {}
            PublicationOrigin::Node(_) if !self.has_history(topic) || self.stored(topic).is_some() => {}
            _ => role.pass_to_predecessor(publication, position),
        };
        if is_reserved(topic) {
            pass(position);
            return 0;
        }
        let is_durable = self.is_durable(topic);
        // Its stream does not store a client's event, and a topic store assigns the positions of its topics.
        let is_unretained = position.is_none() && (is_durable || self.stored(topic).is_some());
        // A later subscriber to a durable topic starts in the stream.
        let is_retained = || !is_durable && self.has_history(topic);
        let assigning = self.encodings.assigning();
        let assigning = assigning.filter(|assigning| assigning.has_subscribers() || is_retained());
        if assigning.is_none() && !is_durable {
            pass(position);
            return 0;
        }
        let followers = self.followers(topic, is_durable);
        // One order in all encodings. The relay of a durable topic has its own lock.
        let _order = (!is_durable && !followers.is_empty()).then(|| self.histories_order.lock(topic));
        let except = self.excluded(out, publication);
        let options = PublishOptions::new().except(except);
        let options = match position {
            Some(position) => options.at_behind(position, prev_of(position, origin)),
            None if is_unretained => options.unretained(),
            None => options,
        };
        let (mut reached, mut is_passed) = (0, false);
        if let Some(RegisteredEncoding { encoding, topics, .. }) = assigning {
            let make = |assigned| {
                // The topic is locked, so the predecessor receives messages in order.
                position = assigned;
                pass(position);
                is_passed = true;
                encoding.encode(publication, topic, position)
            };
            reached = out.publish(&topics.topic(topic), make, options);
        }
        if !is_passed {
            pass(position);
        }
        if is_unretained || position.is_some() {
            for follower in &followers {
                reached += self.deliver_to_follower(out, publication, follower, position, except);
            }
        }
        reached
    }

    /// The encodings that follow the position of a publication to a topic with a history, or, if they have subscribers,
    /// to a durable one.
    fn followers<'a>(&'a self, topic: &'a str, is_durable: bool) -> Vec<Follower<'a>> {
        if !is_durable && !self.has_history(topic) {
            return Vec::new();
        }
        let following = self.encodings.following().iter();
        let following = following.filter(|registered| !is_durable || registered.has_subscribers());
        let named = |registered: &'a RegisteredEncoding| {
            Some(Follower { registered, name: registered.encoding.name(topic)? })
        };
        following.filter_map(named).collect()
    }

    /// Delivers a message with the position that another encoding's history has assigned, or without one if it is not
    /// stored.
    fn deliver_to_follower(
        &self,
        out: &mut impl TopicPublisher,
        publication: &Publication<'_, '_>,
        follower: &Follower<'_>,
        position: Option<Position>,
        except: Option<SubscriberId>,
    ) -> usize {
        let Follower { registered: RegisteredEncoding { encoding, topics, .. }, name } = follower;
        let encoded = topics.topic(publication.topic);
        let options = PublishOptions::new().except(encoding.excluded(publication).or(except));
        let options = match position {
            Some(position) => {
                // Earlier messages may be missing, or of another epoch, such as that of a deleted stream.
                let prev = prev_of(position, publication.origin);
                out.advance_to(&encoded, Position { sequence: prev, ..position });
                options.at_behind(position, prev)
            }
            None => options.unretained(),
        };
        out.publish(&encoded, |_| encoding.encode(publication, name, position), options)
    }

    /// Delivers in the encodings without positions, and retains the last event of a topic that has one.
    fn deliver_unpositioned(
        &self,
        out: &mut impl TopicPublisher,
        publication: &Publication<'_, '_>,
        has_last_event: bool,
    ) -> usize {
        let topic = publication.topic;
        let mut reached = 0;
        for registered in self.encodings.unpositioned() {
            let RegisteredEncoding { encoding, topics, .. } = registered;
            let last_events = if has_last_event { registered.last_events(topic) } else { None };
            let has_subscribers = registered.has_subscribers();
            if !has_subscribers && last_events.is_none() {
                continue;
            }
            let Some(name) = encoding.name(topic) else { continue };
            let except = encoding.excluded(publication).or_else(|| self.excluded(out, publication));
            let options = PublishOptions::new().except(except);
            let Some(last_events) = last_events else {
                let make = |_| encoding.encode(publication, &name, None);
                reached += out.publish(&topics.topic(topic), make, options);
                continue;
            };
            let message = encoding.encode(publication, &name, None);
            let version = last_events.retain(publication, &message);
            if let Some(version) = version.filter(|_| has_subscribers) {
                reached += out.publish(&topics.topic(topic), |_| message, options.version(version));
            }
        }
        reached
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

    /// Notifies subscribers that a topic's stream was deleted: the topic starts again with a new epoch.
    pub(crate) fn notify_reset(&self, out: &mut Publisher, topic: &str) {
        for RegisteredEncoding { encoding, topics, .. } in
            self.encodings.iter().filter(|all| all.has_subscribers())
        {
            if let Some(message) = encoding.reset(topic) {
                // A history has publications only.
                let options = PublishOptions::new().unretained();
                TopicPublisher::publish(out, &topics.topic(topic), |_| message, options);
            }
        }
    }
}
