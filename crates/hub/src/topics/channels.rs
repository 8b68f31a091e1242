//! Publications to the channel of an app that a topic is.
//!
//! A cache channel retains its last event. Publications and new subscriptions of a cache channel exclude each other: a new
//! subscriber receives the last event as such, and all later events as they are published. An event on its way to the
//! worker of the subscriber has a version: the subscriber does not receive it again.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sinews_server::{Prepared, Publisher};

use super::{Exclusion, HubTopics, TopicForm, TopicPublisher, reached};
use crate::apps::channel::USER_CHANNEL;
use crate::apps::encode::{ChannelPublication, subscription_error, user_channel};
use crate::apps::live::EventTarget;
use crate::model::events::{EventDetail, WebhookEventKind};
use crate::model::nodes::NodePublicationId;

/// Locks of topics. A topic takes one during a publication.
#[derive(Debug, Default)]
pub(super) struct TopicLocks([Mutex<()>; TOPIC_LOCKS]);

/// HTTP status of a subscription that gets no publications of other nodes.
const STATUS_UNAVAILABLE: u16 = 503;

/// Number of locks for all topics.
const TOPIC_LOCKS: usize = 16;

impl TopicLocks {
    pub(super) fn lock(&self, topic: &str) -> MutexGuard<'_, ()> {
        self.lock_for(topic).lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_for(&self, topic: &str) -> &Mutex<()> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(topic);
        &self.0[hash as usize % TOPIC_LOCKS]
    }
}

/// A channel during a publication.
pub(super) struct PublishedChannel<'a> {
    target: EventTarget<'a>,
    /// The message of another node that has the publication.
    origin: Option<NodePublicationId>,
    /// Of a cache channel.
    _order: Option<MutexGuard<'a, ()>>,
}

impl PublishedChannel<'_> {
    pub(super) fn is_cache(&self) -> bool {
        self.target.is_cache
    }
}

impl HubTopics {
    /// Locks a cache channel for a new subscription.
    pub(crate) fn lock_cache_channel(&self, topic: &str) -> MutexGuard<'_, ()> {
        self.cache_channels.lock(topic)
    }

    /// The channel that a topic is, if it is one. Call it before any form is published.
    pub(super) fn channel<'a>(&'a self, topic: &'a str) -> Option<PublishedChannel<'a>> {
        Some(self.channel_at(self.apps.target(topic)?, topic))
    }

    /// A channel with its topic. Call it before any form is published.
    pub(super) fn channel_at<'a>(&'a self, target: EventTarget<'a>, topic: &str) -> PublishedChannel<'a> {
        let order = target.is_cache.then(|| self.cache_channels.lock(topic));
        PublishedChannel { target, origin: None, _order: order }
    }

    /// The channel that a topic is, for a publication of another node.
    pub(super) fn channel_from<'a>(
        &'a self,
        topic: &'a str,
        origin: NodePublicationId,
    ) -> Option<PublishedChannel<'a>> {
        Some(PublishedChannel { origin: Some(origin), ..self.channel(topic)? })
    }

    /// Publishes to the subscribers of the channel that the topic is, if it is one, and retains the event of a cache
    /// channel.
    pub(super) fn publish_event(
        &self,
        out: &mut impl TopicPublisher,
        (topic, channel): (&str, Option<&PublishedChannel<'_>>),
        publication: &ChannelPublication<'_>,
        exclusion: Exclusion,
    ) -> usize {
        let Some(PublishedChannel { target, origin, .. }) = channel else { return 0 };
        let has_subscribers = self.channel_events.load(Ordering::Acquire) > 0;
        if !has_subscribers && !target.is_cache {
            return 0;
        }
        let event = publication.encode(&target.channel);
        let is_retained = target.is_cache && !event.is_of_client;
        let version = match is_retained {
            true => self.apps.retain(target, &event.message, *origin),
            false => Some(0),
        };
        let Some(version) = version.filter(|_| has_subscribers) else { return 0 };
        let topic = TopicForm::Event.topic(topic);
        let sender = event.socket_id.and_then(|id| self.apps.socket(id));
        let exclusion = sender.map_or(exclusion, Exclusion::Subscriber);
        if !target.is_cache {
            return out.publish(&topic, &event.message, exclusion);
        }
        // Events of clients have no version, and the same way to all workers: they keep their order.
        let except = match exclusion {
            Exclusion::None => None,
            Exclusion::Publisher => out.subscriber_id(),
            Exclusion::Subscriber(except) => Some(except),
        };
        out.publish_version(&topic, &event.message, version, except)
    }

    /// The last event of a cache channel with its origin, and its age. The other nodes were sent the event before; one of another
    /// node may arrive there later than from here.
    pub(crate) fn cached_event(
        &self,
        topic: &str,
    ) -> Option<((Prepared, Option<NodePublicationId>), Duration)> {
        self.channel(topic)?.target.retained()
    }

    /// The cache channels whose last event this node has published, not longer ago than this: the youngest event first.
    pub(crate) fn own_cached_events(&self, age_max: Duration) -> Vec<String> {
        self.apps.own_events(age_max)
    }

    /// Sends the last event of a cache channel with its age, if this node has published it. Publications to the channel precede
    /// or follow, so that the other nodes receive its events in the order in which this node retains them.
    pub(crate) fn send_own_cached_event(&self, topic: &str, send: impl FnOnce(&Prepared, Duration)) {
        let channel = self.channel(topic);
        if let Some((message, age)) = channel.as_ref().and_then(|channel| channel.target.own()) {
            send(&message, age);
        }
    }

    /// Notifies the subscribers of the channel that a topic is, if it is one, of the reason why publications of other nodes do
    /// not arrive. Their subscriptions stay.
    pub(crate) fn report_rejected_channel(&self, out: &Publisher, topic: &str, reason: &str) {
        let Some(PublishedChannel { target, .. }) = self.channel(topic) else { return };
        if self.channel_events.load(Ordering::Acquire) == 0 {
            return;
        }
        let channel = if target.channel == USER_CHANNEL {
            // The topic does not show the user, who is its only member.
            let Some((user, _)) = out.members(topic, None, 1).pop() else { return };
            user_channel(user.id()).into()
        } else {
            target.channel
        };
        let error = subscription_error(&channel, "Unavailable", reason, STATUS_UNAVAILABLE);
        let message = Prepared::text(error);
        for form in [TopicForm::Event, TopicForm::RecoverableEvent] {
            reached(out.publish_unretained(&form.topic(topic), &message, None));
        }
    }

    /// Reports a cache channel without an event to the application, if a webhook wants it: once for clients that come at the
    /// same time. The node of the client may have requested the event from the other nodes.
    pub(crate) fn report_cache_miss(&self, topic: &str, (is_of_other_node, is_requested): (bool, bool)) {
        let kind = WebhookEventKind::CacheMiss;
        let Some(events) = self.events().filter(|events| events.wants(kind)) else { return };
        let Some(target) = self.apps.target(topic).filter(|target| target.is_cache) else { return };
        // The other node receives the event of this node now, or this node has received the requested event meanwhile.
        let is_known = is_requested && target.retained().is_some();
        if is_known || !target.note_miss() {
            return;
        }
        let is_passed = !is_of_other_node
            && self.other_nodes().is_some_and(|nodes| nodes.pass_cache_miss(topic, is_requested));
        if !is_passed {
            events.emit(EventDetail::CacheMiss { topic: topic.into() });
        }
    }

    /// Retains the last event of a cache channel that another node has retained, unless there is a later one, and delivers
    /// it.
    pub(crate) fn restore_cached_event(
        &self,
        out: &Publisher,
        topic: &str,
        (message, origin): (&Prepared, Option<NodePublicationId>),
        age: Duration,
    ) {
        let channel = self.channel(topic).filter(|channel| channel.target.is_cache);
        let Some(PublishedChannel { target, _order, .. }) = channel else { return };
        if let Some(version) = self.apps.restore(&target, (message, origin), age) {
            reached(out.publish_version(&TopicForm::Event.topic(topic), message, version, None));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::sync::{Arc, Weak};
    use std::thread;
    use std::time::Instant;

    use sinews_server::{Position, Router, Server, SubscriberId};

    use super::*;
    use crate::apps::app::{PusherApp, PusherApps};
    use crate::apps::live::LiveApps;
    use crate::model::MessageContent;
    use crate::model::connection_id::ConnectionId;
    use crate::model::nodes::{OtherNodes, ReportRole, ReportingNodes};

    const TOPIC: &str = "kept.cache-a";

    fn hub() -> Arc<HubTopics> {
        let apps = LiveApps::default();
        apps.replace(&PusherApps::new([PusherApp::new("1", "key", "secret").with_topics("kept")]).unwrap());
        let hub = HubTopics::default().with_apps(apps.into());
        hub.count_subscriber(TopicForm::Event);
        hub.into()
    }

    fn event(name: &str) -> MessageContent {
        MessageContent::Event(format!("{{\"event\":\"{name}\"}}").into())
    }

    /// A connection that records its versions.
    struct VersionRecorder(Vec<(String, u64, Option<SubscriberId>)>);

    impl VersionRecorder {
        fn own() -> SubscriberId {
            SubscriberId::from_bits(1 << 64 | 5)
        }
    }

    impl TopicPublisher for VersionRecorder {
        fn publish(&mut self, topic: &str, _: &Prepared, _: Exclusion) -> usize {
            panic!("{topic} without a version")
        }

        fn publish_with(
            &mut self,
            topic: &str,
            _: impl FnOnce(Option<Position>) -> Prepared,
            _: Option<SubscriberId>,
        ) -> usize {
            panic!("{topic} with a position")
        }

        fn publish_version(
            &mut self,
            _: &str,
            message: &Prepared,
            version: u64,
            except: Option<SubscriberId>,
        ) -> usize {
            let event: serde_json::Value = serde_json::from_slice(message.payload()).unwrap();
            self.0.push((event["event"].as_str().unwrap().to_owned(), version, except));
            1
        }

        fn subscriber_id(&self) -> Option<SubscriberId> {
            Some(Self::own())
        }

        fn publisher(&self) -> Publisher {
            panic!("its messages are not counted for the connection")
        }
    }

    #[test]
    fn events_of_clients_keep_their_order_among_the_versions_of_a_cache_channel() {
        let (hub, mut out) = (hub(), VersionRecorder(Vec::new()));
        for (name, include_self) in [("e", true), ("client-e", false), ("client-e", true), ("e", true)] {
            assert_eq!(hub.publish(&mut out, TOPIC, &event(name), include_self), 1);
        }
        let [first, to_others, to_all, last] = &out.0[..] else { panic!("{:?}", out.0) };
        assert_eq!((&*first.0, first.2, &*last.0, last.2), ("e", None, "e", None));
        assert!(0 < first.1 && first.1 < last.1);
        assert_eq!(*to_others, ("client-e".to_owned(), 0, Some(VersionRecorder::own())));
        assert_eq!(*to_all, ("client-e".to_owned(), 0, None));
    }

    /// Another node, with the received topics and the state of the lock of each channel.
    #[derive(Debug, Default)]
    struct OtherNode {
        hub: Weak<HubTopics>,
        received: Mutex<Vec<(String, bool)>>,
    }

    impl OtherNode {
        fn receive(&self, topic: &str) {
            let is_locked = self.hub.upgrade().unwrap().cache_channels.lock_for(topic).try_lock().is_err();
            self.received.lock().unwrap().push((topic.to_owned(), is_locked));
        }
    }

    impl OtherNodes for OtherNode {
        fn publish(&self, topic: &str, _: &MessageContent, _: Option<ConnectionId>) {
            self.receive(topic);
        }

        fn publish_to_all(&self, topic: &str, _: &MessageContent, _: Option<ConnectionId>) {
            self.receive(topic);
        }

        fn request_cached_event(&self, _: &str, _: Option<Instant>, _: Duration) -> bool {
            false
        }

        fn pass_cache_miss(&self, _: &str, _: bool) -> bool {
            false
        }

        fn catch_up(&self, _: Duration) -> bool {
            true
        }

        fn retry_rejected(&self, _: &str) {}

        fn is_connected(&self) -> bool {
            true
        }

        fn id(&self) -> String {
            "1".to_owned()
        }

        fn reporting(&self) -> ReportingNodes {
            ReportingNodes::default()
        }

        fn set_report_role(&self, _: ReportRole) {}
    }

    /// Without the lock, the order of the sent events could differ from the order of the retained ones.
    #[test]
    fn cache_channel_is_locked_until_the_other_nodes_are_sent_its_event() {
        let hub = hub();
        let node = Arc::new(OtherNode { hub: Arc::downgrade(&hub), ..OtherNode::default() });
        hub.set_other_nodes(Arc::clone(&node) as _);
        let server = Server::new(Router::new()).threads(1).listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
        let out = &mut server.publisher();
        for topic in [TOPIC, "kept.a"] {
            hub.publish(out, topic, &event("e"), true);
        }
        let received = node.received.lock().unwrap();
        assert_eq!(*received, [(TOPIC.to_owned(), true), ("kept.a".to_owned(), false)]);
        assert!(hub.cache_channels.lock_for(TOPIC).try_lock().is_ok());
    }

    /// The answer to a node follows the event.
    #[test]
    fn request_of_another_node_waits_for_a_publication() {
        let hub = hub();
        let target = hub.apps.target(TOPIC).unwrap();
        for number in 0..100 {
            let publication = hub.lock_cache_channel(TOPIC);
            let (started, has_started) = sync_channel(0);
            let event = thread::scope(|scope| {
                let request = scope.spawn(|| {
                    started.send(()).unwrap();
                    hub.cached_event(TOPIC)
                });
                has_started.recv().unwrap();
                thread::yield_now();
                hub.apps.retain(&target, &Prepared::text(number.to_string()), None);
                drop(publication);
                request.join().unwrap()
            });
            assert_eq!(event.unwrap().0.0.payload(), number.to_string().as_bytes());
        }
    }
}
