use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;

use parking_lot::Mutex;
use sinews_server::{HistoryPolicy, Position, PublishOptions, Router, Server, TopicRule};

use super::*;
use crate::access::namespaces::order::PatternSet;
use crate::apps::app::{PusherApp, PusherApps};
use crate::hub::encodings;
use crate::model::MessageContent;
use crate::model::encoding::MESSAGES;
use crate::model::nodes::PublicationSink;
use crate::model::publication::PublicationSender;
use crate::topics::{HubTopics, TopicPublisher};

const TOPIC: &str = "kept.cache-a";

fn hub(apps: &Arc<LiveApps>) -> Arc<HubTopics> {
    apps.replace(&PusherApps::new([PusherApp::new("1", "key", "secret").with_topics("kept")]).unwrap());
    let hub = HubTopics::default().with_encodings(encodings(apps));
    hub.count_subscriber(EVENTS);
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
    let (hub, mut out) = (hub(&Arc::default()), VersionRecorder(Vec::new()));
    for (name, excludes_publisher) in [("e", false), ("client-e", true), ("client-e", false), ("e", false)] {
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
    let hub = hub(&Arc::default());
    let received = Arc::new(Mutex::new(Vec::new()));
    let (passed, weak) = (Arc::clone(&received), Arc::downgrade(&hub));
    hub.set_other_nodes(Arc::new(PublicationSink(move |topic: &str, _: &MessageContent, _| {
        let is_locked = weak.upgrade().unwrap().is_last_event_locked(topic);
        passed.lock().push((topic.to_owned(), is_locked));
    })));
    let server = Server::new(Router::new()).threads(1).listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
    let out = &mut server.publisher();
    for topic in [TOPIC, "kept.a"] {
        hub.publish(out, &Publication::new(topic, &(&event("e")).into()));
    }
    let received = received.lock();
    assert_eq!(*received, [(TOPIC.to_owned(), true), ("kept.a".to_owned(), false)]);
    assert!(!hub.is_last_event_locked(TOPIC));
}

/// The answer to a node follows the event.
#[test]
fn request_of_another_node_waits_for_a_publication() {
    let apps = Arc::default();
    let hub = hub(&apps);
    let target = apps.target(TOPIC).unwrap();
    for number in 0..100 {
        let publication = hub.lock_last_event(TOPIC);
        let (started, has_started) = sync_channel(0);
        let event = thread::scope(|scope| {
            let request = scope.spawn(|| {
                started.send(()).unwrap();
                hub.last_event(TOPIC)
            });
            has_started.recv().unwrap();
            thread::yield_now();
            apps.retain(&target, &Prepared::text(number.to_string()), None);
            drop(publication);
            request.join().unwrap()
        });
        assert_eq!(event.unwrap().message.payload(), number.to_string().as_bytes());
    }
}

#[test]
fn events_of_a_new_stream_replace_those_of_a_deleted_one_in_memory() {
    let rule = TopicRule::new("q.stored.>").with_history(HistoryPolicy::new(10));
    let server = Server::new(Router::new()).threads(1).topic_rule(rule);
    let server = server.listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
    let apps = LiveApps::default();
    let app = PusherApp::new("1", "key", "secret").with_topics("stored");
    apps.replace(&PusherApps::new([app]).unwrap());
    let durable = PatternSet::new([("stored.>".to_owned(), true)]);
    let hub = HubTopics::default().with_durable(durable).with_encodings(encodings(&apps.into()));
    hub.count_subscriber(RECOVERABLE_EVENTS);
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

#[test]
fn publication_without_subscribers_of_channels_asks_no_table_of_apps() {
    let apps = Arc::<LiveApps>::default();
    apps.replace(&PusherApps::new([PusherApp::new("1", "key", "secret").with_topics("kept")]).unwrap());
    let hub = HubTopics::default().with_encodings(encodings(&apps));
    hub.count_subscriber(MESSAGES);
    let server = Server::new(Router::new()).threads(1).listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
    let publisher = server.publisher();
    let (done, is_done) = sync_channel(1);
    let table = apps.lock_table();
    thread::scope(|scope| {
        scope.spawn(|| {
            for topic in ["kept.a", "live.cache.a", "$pusher.1.c.a"] {
                hub.publish(&mut publisher.clone(), &Publication::new(topic, &(&event("e")).into()));
            }
            done.send(()).unwrap();
        });
        let is_done = is_done.recv_timeout(Duration::from_secs(60));
        drop(table);
        is_done.expect("a publication waits for the table");
    });
}
