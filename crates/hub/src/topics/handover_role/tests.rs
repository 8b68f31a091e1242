use sinews_server::{BoundServer, HistoryPolicy, Router, Server, TopicRule};

use super::*;
use crate::access::namespaces::order::PatternSet;
use crate::apps::app::{PusherApp, PusherApps};
use crate::apps::live::LiveApps;
use crate::hub::encodings;
use crate::model::nodes::NodePublicationId;
use crate::wire::{FrameReceiver, frame_queue};

/// A process without workers; the test reads its histories.
struct TestProcess {
    hub: HubTopics,
    publisher: Publisher,
    _server: BoundServer,
}

impl TestProcess {
    fn new() -> Self {
        let rule = |pattern| TopicRule::new(pattern).with_history(HistoryPolicy::new(100));
        let server = Server::new(Router::new()).threads(1);
        let server = server.topic_rule(rule("j.kept.>")).topic_rule(rule("q.kept.>"));
        let apps = LiveApps::default();
        let app = PusherApp::new("1", "key", "secret").with_topics("kept");
        apps.replace(&PusherApps::new([app]).unwrap());
        let server = server.listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
        Self {
            hub: HubTopics::new(PatternSet::new([("kept.>".to_owned(), true)]))
                .with_encodings(encodings(&apps.into())),
            publisher: server.publisher(),
            _server: server,
        }
    }

    fn publish(&self, text: &str) {
        let content = MessageContent::Text(text.to_owned().into());
        self.publish_from("kept.a", &content, PublicationSender::default());
    }

    fn publish_from(&self, topic: &str, content: &MessageContent, sender: PublicationSender) {
        let content = content.into();
        let publication = Publication::new(topic, &content).with_sender(sender);
        self.hub.publish(&mut self.publisher(), &publication);
    }

    fn publisher(&self) -> Publisher {
        self.publisher.clone()
    }

    /// The retained texts, each with its sequence.
    fn history_texts(&self) -> Vec<(u64, String)> {
        let histories = self.publisher.histories();
        let topics = histories.iter().filter(|topic| topic.name.starts_with("j."));
        let messages = topics.flat_map(|topic| &topic.messages);
        let read = |message: &sinews_server::RetainedMessage| {
            let value: serde_json::Value = serde_json::from_slice(message.message.payload()).unwrap();
            (value["seq"].as_u64().unwrap(), value["data"].as_str().unwrap().to_owned())
        };
        messages.map(read).collect()
    }

    /// The channel's retained texts, each with its position's sequence.
    fn channel_texts(&self) -> Vec<(u64, String)> {
        let histories = self.publisher.histories();
        let topics = histories.iter().filter(|topic| topic.name.starts_with("q."));
        let read = |message: &sinews_server::RetainedMessage| {
            let value: serde_json::Value = serde_json::from_slice(message.message.payload()).unwrap();
            let (_, sequence) = value["position"].as_str().unwrap().split_once('-').unwrap();
            (sequence.parse().unwrap(), value["data"].as_str().unwrap().to_owned())
        };
        topics.flat_map(|topic| &topic.messages).map(read).collect()
    }

    /// Takes over; returns the queue to the predecessor.
    fn take_over(&self, handed_over: (Vec<TopicSnapshot>, Vec<u8>)) -> FrameReceiver {
        let (histories, epochs) = handed_over;
        assert!(self.publisher.restore_epochs(&epochs));
        histories.into_iter().for_each(|topic| assert!(self.publisher.restore(topic).unwrap()));
        let (predecessor, receiver) = frame_queue();
        self.hub.set_predecessor(predecessor);
        receiver
    }

    /// Executes the predecessor's frames.
    fn publish_forwarded(&self, receiver: &FrameReceiver) {
        while let Some(HandoverFrame { head, body }) = receiver.take() {
            let HandoverHead::Publish { topic, kind, kept, sender } = head else { panic!("{head:?}") };
            let content = MessageContent::from_wire(kind, body);
            self.hub.publish_from_predecessor(&mut self.publisher(), &topic, &content, kept, &sender);
        }
    }

    /// Executes the successor's frames.
    fn deliver_published(&self, receiver: &FrameReceiver) {
        while let Some(HandoverFrame { head, body }) = receiver.take() {
            let HandoverHead::Published { topic, kind, position, answers, sender } = head else {
                panic!("{head:?}")
            };
            let (content, position) = (MessageContent::from_wire(kind, body), position.map(Into::into));
            let out = &mut self.publisher();
            self.hub.deliver_from_successor(out, &topic, &content, position, answers, &sender);
        }
    }
}

fn texts(texts: &[&str]) -> Vec<(u64, String)> {
    (1..).zip(texts.iter().map(|&text| text.to_owned())).collect()
}

/// The process in the middle hands over before the first one has exited.
#[test]
fn three_chained_processes_assign_one_order() {
    let [first, second, third] = [(); 3].map(|()| TestProcess::new());
    first.publish("a");
    let (successor, to_second) = frame_queue();
    let from_second = second.take_over(first.hub.begin_handover(successor, &first.publisher));
    first.publish("b");
    assert_eq!(first.history_texts(), texts(&["a"]), "not before the successor says where it stands");
    second.publish("c");
    second.publish_forwarded(&to_second);
    first.deliver_published(&from_second);
    assert_eq!(first.history_texts(), texts(&["a", "c", "b"]));
    assert_eq!(second.history_texts(), first.history_texts());

    let (successor, to_third) = frame_queue();
    let from_third = third.take_over(second.hub.begin_handover(successor, &second.publisher));
    first.publish("d");
    second.publish("e");
    third.publish("f");
    second.publish_forwarded(&to_second);
    third.publish_forwarded(&to_third);
    second.deliver_published(&from_third);
    first.deliver_published(&from_second);
    let all = texts(&["a", "c", "b", "f", "e", "d"]);
    assert_eq!(
        (first.history_texts(), second.history_texts(), third.history_texts()),
        (all.clone(), all.clone(), all)
    );
    for process in [&first, &second, &third] {
        assert_eq!(process.channel_texts(), process.history_texts(), "one order in both encodings");
    }
    assert!(from_second.take().is_none() && from_third.take().is_none(), "no echo");
    for process in [&first, &second] {
        let left = process.hub.read_role();
        let awaited = left.successor.as_ref().unwrap().lock();
        assert!(awaited.as_ref().unwrap().is_empty());
    }
}

/// A client that sends an event to the first process and recovers at another one does not receive its own event.
#[test]
fn forwarded_event_of_a_client_is_marked_in_all_processes() {
    let [first, second, third] = [(); 3].map(|()| TestProcess::new());
    let (successor, to_second) = frame_queue();
    let from_second = second.take_over(first.hub.begin_handover(successor, &first.publisher));
    let (successor, to_third) = frame_queue();
    let from_third = third.take_over(second.hub.begin_handover(successor, &second.publisher));
    let event = MessageContent::Event(r#"{"event":"client-e"}"#.into());
    let sender = PublicationSender { socket: Some(7 << 64 | 5), ..PublicationSender::default() };
    first.publish_from("kept.a", &event, sender);
    first.publish("of a server");
    // The client is at the second process, and recovers at the first process after the others exit.
    second.publish_from("kept.a", &event, sender);
    second.publish_forwarded(&to_second);
    third.publish_forwarded(&to_third);
    second.deliver_published(&from_third);
    first.deliver_published(&from_second);
    for process in [&first, &second, &third] {
        let histories = process.publisher.histories();
        let channel = histories.iter().find(|topic| topic.name == "q.kept.a").unwrap();
        let Position { epoch, sequence } = channel.position;
        let marks: Vec<bool> = (sequence - 2..=sequence)
            .zip(&channel.messages)
            .map(|(sequence, event)| {
                let own = crate::apps::position::end_of(Position { epoch, sequence }, 7 << 64 | 5);
                event.message.payload().ends_with(own.as_bytes())
            })
            .collect();
        // The third process receives the second process's event first.
        assert_eq!(marks, [true, true, false]);
    }
}

#[test]
fn excluded_connection_is_known_in_all_processes() {
    let [first, second] = [(); 2].map(|()| TestProcess::new());
    let (successor, to_second) = frame_queue();
    let from_second = second.take_over(first.hub.begin_handover(successor, &first.publisher));
    let (exclude, content) = (ConnectionId { process: 7, number: 9 }, MessageContent::Text("a".into()));
    for process in [&first, &second] {
        for topic in ["kept.a", "live.a"] {
            let sender = PublicationSender { exclude: Some(exclude), ..PublicationSender::default() };
            process.publish_from(topic, &content, sender);
        }
    }
    let mut excluded = Vec::new();
    while let Some(frame) = to_second.take() {
        let HandoverHead::Publish { topic, kind, kept, sender } = frame.head else { panic!() };
        let content = MessageContent::from_wire(kind, frame.body);
        second.hub.publish_from_predecessor(&mut second.publisher(), &topic, &content, kept, &sender);
        excluded.push(sender.exclude);
    }
    while let Some(frame) = from_second.take() {
        let HandoverHead::Published { sender, .. } = frame.head else { panic!() };
        excluded.push(sender.exclude);
    }
    // Two to the successor, and from there its own two and the one whose position it has assigned.
    assert_eq!(excluded, vec![Some(exclude.to_string()); 5]);
}

impl TestProcess {
    /// Receives another node's publication.
    fn receive(&self, number: u64) {
        let content = MessageContent::Text(number.to_string().into());
        let origin = NodePublicationId { node: 9, start: 1, number, index: 0 };
        let content = (&content).into();
        let publication = Publication::new("kept.a", &content);
        self.hub.publish(&mut self.publisher(), &publication.with_origin(PublicationOrigin::Node(origin)));
    }

    /// Takes over, as the successor with connections to the cluster and to the predecessor.
    fn take_over_queued(&self, predecessor: &Self, successor: FrameSender) -> FrameReceiver {
        let histories = predecessor.hub.begin_handover(successor, &predecessor.publisher);
        let delivered = predecessor.hub.node_publications.delivered();
        let receiver = self.take_over(histories);
        self.hub.inherit_delivered(Some(&delivered), 0);
        self.hub.deliver_queued(&mut self.publisher.clone());
        receiver
    }
}

#[test]
fn publications_of_other_nodes_are_in_the_histories_of_both_processes_once() {
    let [old, new] = [(); 2].map(|()| TestProcess::new());
    new.hub.await_histories();
    old.receive(1);
    // From here on, the successor receives them as well; its connection is faster.
    (2..=3).for_each(|number| new.receive(number));
    old.receive(2);
    let (successor, _to_new) = frame_queue();
    let from_new = new.take_over_queued(&old, successor);
    (3..=4).for_each(|number| old.receive(number));
    // Or it is slower.
    new.receive(4);
    assert_eq!(new.history_texts(), texts(&["1", "2", "3", "4"]));
    old.deliver_published(&from_new);
    assert_eq!(old.history_texts(), new.history_texts());
    assert_eq!(new.channel_texts(), new.history_texts());
    old.hub.discard_queued();
    assert!(old.hub.end_handover(&mut old.publisher.clone()));
    assert_eq!(old.history_texts(), new.history_texts(), "the successor had served");
}

#[test]
fn publications_of_other_nodes_are_published_when_the_handover_fails() {
    let old = TestProcess::new();
    old.receive(1);
    let (successor, _to_new) = frame_queue();
    drop(old.hub.begin_handover(successor, &old.publisher));
    (2..=3).for_each(|number| old.receive(number));
    assert_eq!(old.history_texts(), texts(&["1"]));
    assert!(old.hub.end_handover(&mut old.publisher.clone()));
    old.receive(4);
    assert_eq!(old.history_texts(), texts(&["1", "2", "3", "4"]));
}

#[test]
fn unconfirmed_publications_are_published_when_the_successor_exits() {
    let [old, new] = [(); 2].map(|()| TestProcess::new());
    let (successor, to_new) = frame_queue();
    let from_new = new.take_over(old.hub.begin_handover(successor, &old.publisher));
    old.publish("a");
    new.publish_forwarded(&to_new);
    old.deliver_published(&from_new);
    old.publish("b");
    old.publish("c");
    assert_eq!(old.history_texts(), texts(&["a"]));
    assert!(old.hub.end_handover(&mut old.publisher.clone()));
    old.publish("d");
    assert_eq!(old.history_texts(), texts(&["a", "b", "c", "d"]));
    assert!(!old.hub.end_handover(&mut old.publisher.clone()));
}

#[test]
fn sender_and_time_pass_between_processes() {
    let content = MessageContent::Text("x".into());
    let published = (&content).into();
    let sender = Arc::new(VerifiedSender { user: "a\"b".into(), info: Some("{\"n\":1}".into()) });
    let publication = Publication::new("t", &published).by(Some(&sender)).with_time(Some(7));
    let head = HandoverHead::Publish {
        topic: "t".to_owned(),
        kind: ContentKind::Text,
        kept: true,
        sender: (&publication).into(),
    };
    let text = serde_json::to_string(&head).unwrap();
    let HandoverHead::Publish { sender: read, .. } = serde_json::from_str(&text).unwrap() else {
        panic!("{text}")
    };
    assert_eq!((read.verified(), read.at), (Some(sender), Some(7)));
    let earlier = r#"{"is":"publish","topic":"t","kind":"text","kept":true}"#;
    let HandoverHead::Publish { sender: read, .. } = serde_json::from_str(earlier).unwrap() else { panic!() };
    assert_eq!((read.verified(), read.at), (None, None));
}
