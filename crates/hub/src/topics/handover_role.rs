//! The process that assigns positions to messages of topics with a history, during a handover.
//!
//! ```text
//!   predecessor ── Publish ──▶ this process ── Publish ──▶ successor
//!               ◀─ Published ─              ◀─ Published ─
//! ```
//!
//! A process with a successor forwards publications to topics with a history, and delivers them when they return with
//! their position. It delivers other publications at once and forwards them. A process with a predecessor forwards its
//! publications to it, except for messages that the predecessor has delivered itself.

use std::collections::VecDeque;

use parking_lot::{Mutex, MutexGuard, RwLockReadGuard, RwLockWriteGuard};
use sinews_server::{Position, Publisher, TopicSnapshot};

use super::HubTopics;
use crate::access::auth::Revocation;
use crate::model::MessageContent;
use crate::model::connection_id::ConnectionId;
use crate::model::event::Event;
use crate::model::publication::{Publication, PublicationOrigin, PublicationSender, WaitingPublication};
use crate::model::socket_id::{parse_socket_id, socket_id_text};
use crate::wire::{ContentKind, FrameSender, HandoverDelivered, HandoverFrame, HandoverHead, HandoverSender};

/// This process's predecessor and successor, if there are any.
#[derive(Debug, Default)]
pub(super) struct HandoverRole {
    pub(super) successor: Option<Successor>,
    predecessor: Option<FrameSender>,
}

/// The successor process.
#[derive(Debug)]
pub(super) struct Successor {
    sender: FrameSender,
    /// Publications that the successor has not confirmed. `None` after it has stopped confirming.
    awaited: Mutex<Option<VecDeque<WaitingPublication>>>,
}

impl HandoverRole {
    /// Passes a publication to the predecessor, if there is one that has not delivered it.
    pub(super) fn pass_to_predecessor(&self, publication: &Publication<'_, '_>, position: Option<Position>) {
        let Publication { topic, content, origin, sender, .. } = *publication;
        let Some(predecessor) = &self.predecessor else { return };
        if origin == (PublicationOrigin::Predecessor { awaits: false }) {
            return;
        }
        let (kind, body) = content.message().parts();
        let head = HandoverHead::Published {
            topic: topic.to_owned(),
            kind,
            position: position.map(Into::into),
            answers: origin == PublicationOrigin::Predecessor { awaits: true },
            sender: sender.into(),
        };
        predecessor.send_or_cut(HandoverFrame { head, body });
    }
}

impl Successor {
    /// Queues a publication for the successor; returns whether the queue had capacity.
    pub(super) fn forward(&self, publication: &Publication<'_, '_>, kept: bool) -> bool {
        let Publication { topic, content, sender, .. } = *publication;
        let (kind, body) = content.message().parts();
        let head = HandoverHead::Publish { topic: topic.to_owned(), kind, kept, sender: sender.into() };
        let frame = HandoverFrame { head, body };
        // One order for both queues.
        let mut awaited = self.lock();
        if !self.sender.try_send(frame) {
            tracing::error!(topic, "queue to the successor process is full: a message is lost there");
            return false;
        }
        if kept && let Some(awaited) = &mut *awaited {
            awaited.push_back(publication.into());
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, Option<VecDeque<WaitingPublication>>> {
        self.awaited.lock()
    }
}

/// The sender as a frame has it.
impl From<PublicationSender> for HandoverSender {
    fn from(PublicationSender { socket, exclude, .. }: PublicationSender) -> Self {
        Self { socket: socket.map(socket_id_text), exclude: exclude.map(|id| id.to_string()) }
    }
}

/// The sender of another process's publication.
impl From<&HandoverSender> for PublicationSender {
    fn from(sender: &HandoverSender) -> Self {
        let socket = sender.socket.as_deref().and_then(parse_socket_id);
        let exclude = sender.exclude.as_deref().and_then(ConnectionId::parse);
        Self { socket, exclude, excludes_publisher: false }
    }
}

impl MessageContent {
    pub(crate) fn parts(&self) -> (ContentKind, bytes::Bytes) {
        match self {
            Self::Text(bytes) => (ContentKind::Text, bytes.clone()),
            Self::Json(bytes) => (ContentKind::Json, bytes.clone()),
            Self::Binary(bytes) => (ContentKind::Binary, bytes.clone()),
            Self::Event(bytes) => (ContentKind::Event, bytes.clone()),
        }
    }

    pub(crate) fn from_wire(kind: ContentKind, body: bytes::Bytes) -> Self {
        match kind {
            ContentKind::Text => Self::Text(body),
            ContentKind::Json => Self::Json(body),
            ContentKind::Binary => Self::Binary(body),
            ContentKind::Event => Self::Event(body),
        }
    }
}

impl HubTopics {
    pub(super) fn read_role(&self) -> RwLockReadGuard<'_, HandoverRole> {
        self.role.read()
    }

    fn write_role(&self) -> RwLockWriteGuard<'_, HandoverRole> {
        self.role.write()
    }

    /// Lets the successor assign positions. Returns all histories at this point, and the topics' epochs.
    pub(crate) fn begin_handover(
        &self,
        sender: FrameSender,
        publisher: &Publisher,
    ) -> (Vec<TopicSnapshot>, Vec<u8>) {
        let mut role = self.write_role();
        role.successor = Some(Successor { sender, awaited: Mutex::new(Some(VecDeque::new())) });
        self.node_publications.start_queue();
        let histories = publisher.histories();
        // Read epochs after the histories: a topic that is evicted in between has another epoch.
        (histories, publisher.epochs())
    }

    /// Queues other nodes' publications to topics with a history, until the predecessor's histories are here.
    pub(crate) fn await_histories(&self) {
        self.node_publications.start_queue();
    }

    /// How many publications from other nodes wait for histories.
    pub(crate) fn queued_publications(&self) -> usize {
        self.node_publications.queued()
    }

    /// Leaves out the other nodes' publications that the predecessor has delivered. An earlier version does not report
    /// them: it has delivered this many publications of the queue.
    pub(crate) fn inherit_delivered(
        &self,
        delivered: Option<&[HandoverDelivered]>,
        of_earlier_version: usize,
    ) {
        self.node_publications.inherit(delivered, of_earlier_version);
    }

    /// The last publication from each other process in the cluster that this one has delivered to a topic with a
    /// history. After [`begin_handover`](Self::begin_handover), the histories have all of these.
    pub(crate) fn last_publications(&self) -> Option<Vec<HandoverDelivered>> {
        self.other_nodes().map(|_| self.node_publications.delivered())
    }

    /// Delivers the queue.
    pub(crate) fn deliver_queued(&self, out: &mut Publisher) {
        while let Some(waiting) = self.node_publications.next_queued() {
            let content = (&waiting.content).into();
            let publication = waiting.publication(&content);
            let last_event = self.lock_last_event(publication.topic);
            let role = self.read_role();
            // A further successor has its own.
            if role.successor.is_none() {
                self.deliver(role, out, &publication, last_event.is_some());
            }
        }
    }

    /// The successor serves, and publishes its queue.
    pub(crate) fn discard_queued(&self) {
        self.node_publications.discard_queue();
    }

    /// Forwards this process's publications to its predecessor.
    pub(crate) fn set_predecessor(&self, predecessor: FrameSender) {
        self.write_role().predecessor = Some(predecessor);
    }

    /// The predecessor has exited.
    pub(crate) fn clear_predecessor(&self) {
        self.write_role().predecessor = None;
    }

    /// Ends publishing in this process: queued publications are sent to the successor, followed by the end mark.
    pub(crate) fn finish_handover(&self) {
        self.write_role().successor = None;
    }

    /// Passes this process's revocations to the other processes in a handover.
    pub(crate) fn share_revocations(&self, all: &[Revocation]) {
        let role = self.read_role();
        for frame in HandoverFrame::from_revocations(all) {
            if let Some(predecessor) = &role.predecessor {
                predecessor.send_or_cut(frame.clone());
            }
            if let Some(successor) = &role.successor
                && !successor.sender.try_send(frame)
            {
                tracing::error!("queue to the successor process is full: a revocation is lost there");
            }
        }
    }

    /// Publishes a message that the predecessor has forwarded, perhaps of a topic that retains it.
    pub(crate) fn publish_from_predecessor(
        &self,
        out: &mut Publisher,
        topic: &str,
        content: &MessageContent,
        kept: bool,
        sender: &HandoverSender,
    ) {
        let (content, origin) = (content.into(), PublicationOrigin::Predecessor { awaits: kept });
        let publication = Publication::new(topic, &content).with_sender(sender.into());
        self.publish(out, &publication.with_origin(origin));
    }

    /// Delivers a message that the successor has published, perhaps as an answer to this process's publication.
    pub(crate) fn deliver_from_successor(
        &self,
        out: &mut Publisher,
        topic: &str,
        content: &MessageContent,
        position: Option<Position>,
        answers: bool,
        sender: &HandoverSender,
    ) {
        let content = content.into();
        let publication = Publication::new(topic, &content).with_sender(sender.into()).at(position);
        let publication = publication.with_origin(PublicationOrigin::Successor);
        let last_event = self.lock_last_event(topic);
        let role = self.read_role();
        let Some(successor) = &role.successor else { return };
        let awaited = answers.then(|| successor.lock().as_mut().and_then(VecDeque::pop_front)).flatten();
        match awaited {
            // The encodings without positions have received it.
            Some(WaitingPublication { origin, sender, .. }) => {
                let publication = publication.with_origin(origin).with_sender(sender);
                self.deliver_positioned(&role, out, &publication);
            }
            None => {
                self.deliver(role, out, &publication, last_event.is_some());
            }
        }
    }

    /// Whether a server's event waits for its position in the topic, which the successor process assigns.
    pub(crate) fn awaits_position(&self, topic: &str) -> bool {
        let role = self.read_role();
        let Some(successor) = &role.successor else { return false };
        let awaited = successor.lock();
        let mut waiting = awaited.iter().flatten().filter(|waiting| waiting.topic == topic);
        waiting.any(|waiting| !Event::from_content(&waiting.content).is_from_client())
    }

    /// The successor sends no more publications.
    pub(crate) fn stop_awaiting_successor(&self) {
        if let Some(successor) = &self.read_role().successor {
            *successor.lock() = None;
        }
    }

    /// Assigns positions again after the successor has exited. Returns whether there was one.
    pub(crate) fn end_handover(&self, out: &mut Publisher) -> bool {
        let mut role = self.write_role();
        let Some(successor) = role.successor.take() else { return false };
        // Publish the unconfirmed messages in order, before any other.
        for waiting in successor.lock().take().unwrap_or_default() {
            let content = (&waiting.content).into();
            self.deliver_positioned(&role, out, &waiting.publication(&content));
        }
        drop(role);
        self.deliver_queued(out);
        true
    }
}

#[cfg(all(test, feature = "pusher"))]
mod tests {
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
            self.hub
                .publish(&mut self.publisher(), &publication.with_origin(PublicationOrigin::Node(origin)));
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
}
