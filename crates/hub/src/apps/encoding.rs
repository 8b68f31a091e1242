//! Channel encodings: events with their positions in the history, for clients that recover, and events without.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use sinews_server::{Position, Prepared, Publisher, SubscriberId};

use crate::apps::channel::USER_CHANNEL;
use crate::apps::encode::{encode, subscription_error, user_channel};
use crate::apps::live::LiveApps;
use crate::model::encoding::{EncodedTopics, Encoding, LastEvents, Positioning, RetainedEvent};
use crate::model::nodes::NodePublicationId;
use crate::model::publication::{Publication, PublicationOrigin};

/// Events without positions. Subscribers cannot notice a dropped event.
pub(crate) const EVENTS: EncodedTopics = EncodedTopics::new("p.").with_reserved().unshared();

/// Events with their positions in the history.
pub(crate) const RECOVERABLE_EVENTS: EncodedTopics =
    EncodedTopics::new("q.").with_positioning(Positioning::Follows).unshared();

/// HTTP status of a subscription that gets no publications from other nodes.
const STATUS_UNAVAILABLE: u16 = 503;

/// Encodes events without positions.
#[derive(Debug)]
struct ChannelEvents(Arc<LiveApps>);

/// Encodes events with positions.
#[derive(Debug)]
struct RecoverableEvents(Arc<LiveApps>);

/// Returns the encodings for the apps' channels.
pub(crate) fn encodings(apps: &Arc<LiveApps>) -> [Arc<dyn Encoding>; 2] {
    [Arc::new(ChannelEvents(Arc::clone(apps))), Arc::new(RecoverableEvents(Arc::clone(apps)))]
}

impl Encoding for ChannelEvents {
    fn topics(&self) -> EncodedTopics {
        EVENTS
    }

    fn name<'a>(&self, topic: &'a str) -> Option<Cow<'a, str>> {
        self.0.channel(topic)
    }

    fn encode(&self, publication: &Publication<'_, '_>, channel: &str, _: Option<Position>) -> Prepared {
        encode(publication.content.event(), channel).message
    }

    fn excluded(&self, publication: &Publication<'_, '_>) -> Option<SubscriberId> {
        self.0.socket(publication.content.excluded_socket()?)
    }

    fn last_events(&self) -> Option<&dyn LastEvents> {
        Some(self)
    }

    fn rejection(&self, topic: &str, reason: &str, out: &Publisher) -> Option<Prepared> {
        rejection(&self.0, topic, reason, out)
    }

    fn has_sealed(&self, topic: &str, event: &[u8], seal: &str) -> bool {
        self.0.has_sealed(topic, event, seal)
    }
}

impl Encoding for RecoverableEvents {
    fn topics(&self) -> EncodedTopics {
        RECOVERABLE_EVENTS
    }

    fn name<'a>(&self, topic: &'a str) -> Option<Cow<'a, str>> {
        self.0.channel(topic)
    }

    fn encode(
        &self,
        publication: &Publication<'_, '_>,
        channel: &str,
        position: Option<Position>,
    ) -> Prepared {
        let event = encode(publication.content.event(), channel);
        match position {
            Some(position) => event.with_position(position, publication.sender.socket).message,
            None => event.message,
        }
    }

    /// Of a client's event, the client, which may have sent it to another process.
    fn excluded(&self, publication: &Publication<'_, '_>) -> Option<SubscriberId> {
        self.0.socket(publication.content.excluded_socket().or(publication.sender.socket)?)
    }

    fn rejection(&self, topic: &str, reason: &str, out: &Publisher) -> Option<Prepared> {
        rejection(&self.0, topic, reason, out)
    }
}

/// Encodes the reason why a channel gets no publications from other nodes.
fn rejection(apps: &LiveApps, topic: &str, reason: &str, out: &Publisher) -> Option<Prepared> {
    let mut channel = apps.channel(topic)?;
    if channel == USER_CHANNEL {
        // The topic does not show the user, who is its only member.
        let (user, _) = out.members(topic, None, 1).pop()?;
        channel = user_channel(user.id()).into();
    }
    Some(Prepared::text(subscription_error(&channel, "Unavailable", reason, STATUS_UNAVAILABLE)))
}

/// The cache channels' last events.
impl LastEvents for ChannelEvents {
    fn has_topic(&self, topic: &str) -> bool {
        self.0.may_be_cache(topic) && self.0.target(topic).is_some_and(|target| target.is_cache)
    }

    /// Client events have no version, and the same way to all workers: they keep their order.
    fn retain(&self, publication: &Publication<'_, '_>, message: &Prepared) -> Option<u64> {
        if publication.content.event().is_from_client() {
            return Some(0);
        }
        let origin = match publication.origin {
            PublicationOrigin::Node(id) => Some(id),
            _ => None,
        };
        self.0.retain(&self.0.target(publication.topic)?, message, origin)
    }

    fn restore(
        &self,
        topic: &str,
        message: &Prepared,
        origin: Option<NodePublicationId>,
        age: Duration,
    ) -> Option<u64> {
        self.0.restore(&self.0.target(topic)?, message, origin, age)
    }

    fn last_event(&self, topic: &str) -> Option<RetainedEvent> {
        self.0.target(topic)?.retained()
    }

    fn own_topics(&self, age_max: Duration) -> Vec<String> {
        self.0.own_events(age_max)
    }

    fn note_miss(&self, topic: &str) -> bool {
        self.0.target(topic).is_some_and(|target| target.note_miss())
    }
}

#[cfg(test)]
mod tests;
