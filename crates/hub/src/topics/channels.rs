//! Publications to the channel of an app that a topic is.
//!
//! A cache channel retains its last event. Publications and new subscriptions of a cache channel exclude each other: a new
//! subscriber receives the last event as such, and all later events as they are published. An event on its way to the
//! worker of the subscriber has a version: the subscriber does not receive it again.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use sinews_server::{Prepared, PublishOptions, Publisher, SubscriberId};

use super::{HubTopics, TopicForm, TopicPublisher};
use crate::apps::channel::USER_CHANNEL;
use crate::apps::encode::{encode, subscription_error, user_channel};
use crate::apps::live::EventTarget;
use crate::model::events::{EventDetail, WebhookEventKind};
use crate::model::nodes::NodePublicationId;
use crate::model::publication::{Publication, PublicationOrigin};

/// Locks of topics. A topic takes one during a publication.
#[derive(Debug, Default)]
pub(super) struct TopicLocks([Mutex<()>; TOPIC_LOCKS]);

/// HTTP status of a subscription that gets no publications of other nodes.
const STATUS_UNAVAILABLE: u16 = 503;

/// Number of locks for all topics.
const TOPIC_LOCKS: usize = 16;

impl TopicLocks {
    pub(super) fn lock(&self, topic: &str) -> MutexGuard<'_, ()> {
        self.lock_for(topic).lock()
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

    /// The channel that a publication's topic is, if it is one. Call it before any form is published.
    pub(super) fn channel<'a>(&'a self, publication: &Publication<'a, '_>) -> Option<PublishedChannel<'a>> {
        Some(self.channel_at(self.apps.target(publication.topic)?, publication))
    }

    /// A known channel of a publication. Call it before any form is published.
    pub(super) fn channel_at<'a>(
        &'a self,
        target: EventTarget<'a>,
        publication: &Publication<'_, '_>,
    ) -> PublishedChannel<'a> {
        let origin = match publication.origin {
            PublicationOrigin::Node(id) => Some(id),
            _ => None,
        };
        self.lock_target(target, publication.topic, origin)
    }

    /// The channel that a topic is, if it is one.
    fn lock_channel<'a>(&'a self, topic: &'a str) -> Option<PublishedChannel<'a>> {
        Some(self.lock_target(self.apps.target(topic)?, topic, None))
    }

    fn lock_target<'a>(
        &'a self,
        target: EventTarget<'a>,
        topic: &str,
        origin: Option<NodePublicationId>,
    ) -> PublishedChannel<'a> {
        let order = target.is_cache.then(|| self.cache_channels.lock(topic));
        PublishedChannel { target, origin, _order: order }
    }

    /// Delivers to the subscribers of a channel, and retains the event of a cache channel.
    pub(super) fn deliver_event(
        &self,
        out: &mut impl TopicPublisher,
        publication: &Publication<'_, '_>,
        channel: &PublishedChannel<'_>,
        except: Option<SubscriberId>,
    ) -> usize {
        let PublishedChannel { target, origin, .. } = channel;
        let has_subscribers = self.channel_events.load(Ordering::Acquire) > 0;
        if !has_subscribers && !target.is_cache {
            return 0;
        }
        let content = publication.content.event();
        let event = encode(content, &target.channel);
        let sender = event.socket_id.and_then(|id| self.apps.socket(id));
        let mut options = PublishOptions::new().except(sender.or(except));
        if target.is_cache {
            // Events of clients have no version, and the same way to all workers: they keep their order.
            let version = match content.is_from_client() {
                true => Some(0),
                false => self.apps.retain(target, &event.message, *origin),
            };
            let Some(version) = version else { return 0 };
            options = options.version(version);
        }
        if !has_subscribers {
            return 0;
        }
        out.publish(&TopicForm::Event.topic(publication.topic), |_| event.message, options)
    }

    /// The last event of a cache channel with its origin, and its age. The other nodes were sent the event before; one of another
    /// node may arrive there later than from here.
    pub(crate) fn cached_event(
        &self,
        topic: &str,
    ) -> Option<((Prepared, Option<NodePublicationId>), Duration)> {
        self.lock_channel(topic)?.target.retained()
    }

    /// The cache channels whose last event this node has published, not longer ago than this: the youngest event first.
    pub(crate) fn own_cached_events(&self, age_max: Duration) -> Vec<String> {
        self.apps.own_events(age_max)
    }

    /// Sends the last event of a cache channel with its age, if this node has published it. Publications to the channel precede
    /// or follow, so that the other nodes receive its events in the order in which this node retains them.
    pub(crate) fn send_own_cached_event(&self, topic: &str, send: impl FnOnce(&Prepared, Duration)) {
        let channel = self.lock_channel(topic);
        if let Some((message, age)) = channel.as_ref().and_then(|channel| channel.target.own()) {
            send(&message, age);
        }
    }

    /// Notifies the subscribers of the channel that a topic is, if it is one, of the reason why publications of other nodes do
    /// not arrive. Their subscriptions stay.
    pub(crate) fn report_rejected_channel(&self, out: &Publisher, topic: &str, reason: &str) {
        let Some(target) = self.apps.target(topic) else { return };
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
            let options = PublishOptions::new().unretained();
            TopicPublisher::publish(&mut out.clone(), &form.topic(topic), |_| message.clone(), options);
        }
    }

    /// Reports a cache channel without an event to the application, if a webhook wants it: once for clients that come at the
    /// same time. The node of the client may have requested the event from the other nodes.
    pub(crate) fn report_cache_miss(&self, topic: &str, is_of_other_node: bool, is_requested: bool) {
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
        message: &Prepared,
        origin: Option<NodePublicationId>,
        age: Duration,
    ) {
        let channel = self.lock_channel(topic).filter(|channel| channel.target.is_cache);
        let Some(PublishedChannel { target, _order, .. }) = channel else { return };
        if let Some(version) = self.apps.restore(&target, message, origin, age) {
            let options = PublishOptions::new().version(version);
            TopicPublisher::publish(
                &mut out.clone(),
                &TopicForm::Event.topic(topic),
                |_| message.clone(),
                options,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::sync_channel;
    use std::thread;

    use sinews_server::{Position, Router, Server};

    use super::*;
    use crate::apps::app::{PusherApp, PusherApps};
    use crate::apps::live::LiveApps;
    use crate::model::MessageContent;
    use crate::model::nodes::PublicationSink;
    use crate::model::publication::PublicationSender;

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
    struct VersionRecorder(Vec<(String, PublishOptions)>);

    impl VersionRecorder {
        fn own() -> SubscriberId {
            SubscriberId::from_bits(1 << 64 | 5)
        }
    }

    impl TopicPublisher for VersionRecorder {
        fn publish(
            &mut self,
            _: &str,
            make: impl FnOnce(Option<Position>) -> Prepared,
            options: PublishOptions,
        ) -> usize {
            let event: serde_json::Value = serde_json::from_slice(make(None).payload()).unwrap();
            self.0.push((event["event"].as_str().unwrap().to_owned(), options));
            1
        }

        fn subscriber_id(&self) -> Option<SubscriberId> {
            Some(Self::own())
        }

        fn advance_to(&self, topic: &str, _: Position) {
            panic!("{topic} with a position")
        }
    }

    #[test]
    fn events_of_clients_keep_their_order_among_the_versions_of_a_cache_channel() {
        let (hub, mut out) = (hub(), VersionRecorder(Vec::new()));
        for (name, excludes_publisher) in
            [("e", false), ("client-e", true), ("client-e", false), ("e", false)]
        {
            let (content, sender) = (event(name), PublicationSender::default());
            let content = (&content).into();
            let sender = PublicationSender { excludes_publisher, ..sender };
            assert_eq!(hub.publish(&mut out, &Publication::new(TOPIC, &content).with_sender(sender)), 1);
        }
        let options = PublishOptions::new();
        let expected = [
            ("e", options.version(1)),
            ("client-e", options.version(0).except(VersionRecorder::own())),
            ("client-e", options.version(0)),
            ("e", options.version(2)),
        ];
        assert_eq!(out.0, expected.map(|(name, options)| (name.to_owned(), options)));
    }

    /// Without the lock, the order of the sent events could differ from the order of the retained ones.
    #[test]
    fn cache_channel_is_locked_until_the_other_nodes_are_sent_its_event() {
        let hub = hub();
        let received = Arc::new(Mutex::new(Vec::new()));
        let (passed, weak) = (Arc::clone(&received), Arc::downgrade(&hub));
        hub.set_other_nodes(Arc::new(PublicationSink(move |topic: &str, _: &MessageContent, _| {
            let is_locked = weak.upgrade().unwrap().cache_channels.lock_for(topic).try_lock().is_none();
            passed.lock().push((topic.to_owned(), is_locked));
        })));
        let server = Server::new(Router::new()).threads(1).listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
        let out = &mut server.publisher();
        for topic in [TOPIC, "kept.a"] {
            hub.publish(out, &Publication::new(topic, &(&event("e")).into()));
        }
        let received = received.lock();
        assert_eq!(*received, [(TOPIC.to_owned(), true), ("kept.a".to_owned(), false)]);
        assert!(hub.cache_channels.lock_for(TOPIC).try_lock().is_some());
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
