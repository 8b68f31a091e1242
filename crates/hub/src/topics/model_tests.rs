//! Random publications from every origin, through a handover, compared with a reference.
//!
//! The servers of both processes retain what each encoding of topics receives, so it can be read back. Topics without a
//! history are read in the encodings without positions.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use sinews_server::{BoundServer, HistoryPolicy, Position, Publisher, Router, Server, TopicRule};
use sinews_testkit::Rng;

use super::HubTopics;
use crate::access::namespaces::order::PatternSet;
use crate::apps::app::{PusherApp, PusherApps};
use crate::apps::encoding::EVENTS;
use crate::apps::live::LiveApps;
use crate::hub::encodings;
use crate::model::MessageContent;
use crate::model::connection_id::ConnectionId;
use crate::model::encoding::MESSAGES;
use crate::model::nodes::{NodePublicationId, PublicationSink};
use crate::model::publication::{Publication, PublicationOrigin, PublicationSender, PublishedContent};
use crate::protocol::raw::encoding::PAYLOADS;
use crate::wire::{FrameReceiver, HandoverFrame, HandoverHead, frame_queue};

/// A topic, whether it has a history, and whether it is a channel of an app.
const TOPICS: [(&str, bool, bool); 5] = [
    ("kept.a", true, true),
    ("kept.cache-a", true, true),
    ("room.a", false, true),
    ("room.cache-a", false, true),
    ("live.a", false, false),
];
/// A durable topic, which is a channel too.
const DURABLE: &str = "stored.a";
const EPOCH: u64 = 7;

/// What topics have received in each encoding, in order, by prefixed name.
type Received = BTreeMap<String, Vec<u32>>;

/// A process without workers.
struct Process {
    hub: HubTopics,
    publisher: Publisher,
    /// The publications that the process passes to the other nodes, and whether to all of them.
    to_nodes: Arc<Mutex<Vec<(u32, bool)>>>,
    _server: BoundServer,
}

/// The number of a publication in any encoding.
fn number(payload: &[u8]) -> u32 {
    let value = serde_json::from_slice(payload).unwrap_or(serde_json::Value::Null);
    let data = value.get("data").unwrap_or(&value);
    // The data of a message of the protocol may be an event.
    let data = data.get("data").unwrap_or(data);
    data.as_u64().map_or_else(|| data.as_str().unwrap().parse().unwrap(), |number| number as u32)
}

impl Process {
    fn new() -> Self {
        let patterns = ["j.kept.>", "q.kept.>", "j.stored.>", "q.stored.>", "r.>", "p.>"];
        let rule = |pattern| TopicRule::new(pattern).with_history(HistoryPolicy::new(10_000));
        let server = patterns.into_iter().map(rule).fold(Server::new(Router::new()), Server::topic_rule);
        let server = server.threads(1).listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
        let apps = LiveApps::default();
        let app = |id: &str, topics: &str| PusherApp::new(id, topics, "secret").with_topics(topics);
        apps.replace(&PusherApps::new([app("1", "kept"), app("2", "room"), app("3", "stored")]).unwrap());
        let switch = |pattern: &str| PatternSet::new([(pattern.to_owned(), true)]);
        let hub = HubTopics::new(switch("kept.>")).with_durable(switch("stored.>"));
        let hub = hub.with_encodings(encodings(&apps.into()));
        for encoded in [PAYLOADS, MESSAGES, EVENTS] {
            hub.count_subscriber(encoded);
        }
        let to_nodes = Arc::default();
        let passed: Arc<Mutex<Vec<(u32, bool)>>> = Arc::clone(&to_nodes);
        hub.set_other_nodes(Arc::new(PublicationSink(move |_: &str, content: &MessageContent, to_all| {
            passed.lock().push((number(content.bytes()), to_all));
        })));
        Self { hub, publisher: server.publisher(), to_nodes, _server: server }
    }

    fn received(&self) -> Received {
        let read = |message: &sinews_server::RetainedMessage| number(message.message.payload());
        let topics = self.publisher.histories();
        let topics = topics.iter().filter(|topic| !topic.messages.is_empty());
        topics.map(|topic| (topic.name.to_string(), topic.messages.iter().map(read).collect())).collect()
    }

    /// Publishes as a client or a backend of this process. The origin is random.
    fn publish(&self, rng: &mut Rng, topic: &str, number: u32) {
        let out = &mut self.publisher.clone();
        let text = MessageContent::Text(number.to_string().into());
        let event =
            |name: &str| MessageContent::Event(format!(r#"{{"event":"{name}","data":{number}}}"#).into());
        if topic != "live.a" && rng.below(5) == 0 {
            let data = format!("\"{number}\"");
            let content = PublishedContent::from_server("e", &data, None, None);
            self.hub.publish(out, &Publication::new(topic, &content));
            return;
        }
        let sender = PublicationSender::default();
        let (content, sender) = match rng.below(4) {
            0 => (text, sender),
            1 => (event("e"), PublicationSender { excludes_publisher: true, ..sender }),
            2 => {
                let exclude = Some(ConnectionId { process: 7, number: 9 });
                (text, PublicationSender { exclude, ..sender })
            }
            _ => (event("client-e"), PublicationSender { socket: Some(7 << 64 | 5), ..sender }),
        };
        let content = (&content).into();
        self.hub.publish(out, &Publication::new(topic, &content).with_sender(sender));
    }

    fn receive_from_node(&self, publication: &ReceivedFromNode) {
        let content = MessageContent::Text(publication.number.to_string().into());
        let origin = NodePublicationId { node: 9, start: 1, number: u64::from(publication.number), index: 0 };
        let out = &mut self.publisher.clone();
        let content = (&content).into();
        let publication = Publication::new(publication.topic, &content);
        self.hub.publish(out, &publication.with_origin(PublicationOrigin::Node(origin)));
    }

    fn relay(&self, number: u32, sequence: u64) {
        let content = MessageContent::Text(number.to_string().into());
        let position = Position { epoch: EPOCH, sequence };
        let content = (&content).into();
        let publication = Publication::new(DURABLE, &content).at(Some(position));
        self.hub.publish(&mut self.publisher.clone(), &publication.with_origin(PublicationOrigin::Stream));
    }
}

#[derive(Clone, Copy)]
struct ReceivedFromNode {
    topic: &'static str,
    number: u32,
}

/// A publication on its way between the processes, as the reference knows it.
#[derive(Clone, Copy)]
struct Passed {
    topic: &'static str,
    number: u32,
    /// The successor answers it, or it is an answer.
    is_awaited: bool,
}

/// The reference of a process.
#[derive(Default)]
struct Expected {
    received: Received,
    to_nodes: Vec<(u32, bool)>,
}

fn has_history(topic: &str) -> bool {
    topic.starts_with("kept.")
}

impl Expected {
    fn push(&mut self, prefix: &str, topic: &str, number: u32) {
        self.received.entry(format!("{prefix}{topic}")).or_default().push(number);
    }

    /// The encodings with positions.
    fn deliver_positioned(&mut self, topic: &str, number: u32) {
        self.push("j.", topic, number);
        self.push("q.", topic, number);
    }

    /// The encodings without positions.
    fn deliver_plain(&mut self, topic: &str, number: u32) {
        self.push("r.", topic, number);
        if topic != "live.a" {
            self.push("p.", topic, number);
        }
    }
}

/// Two processes, their reference, and what is on its way.
struct World {
    rng: Rng,
    old: Process,
    new: Process,
    expected_old: Expected,
    expected_new: Expected,
    /// The frames and their reference, while the processes are connected.
    links: Option<FrameLinks>,
    is_serving: bool,
    from_nodes: Vec<ReceivedFromNode>,
    /// Publications of nodes that each process has received.
    received_by_old: usize,
    received_by_new: usize,
    /// Publications of nodes to topics with a history that the old process holds back.
    held: Vec<ReceivedFromNode>,
    awaited: VecDeque<Passed>,
    last: u32,
    relayed: u64,
}

struct FrameLinks {
    to_new: FrameReceiver,
    from_new: FrameReceiver,
    expected_to_new: VecDeque<Passed>,
    expected_from_new: VecDeque<Passed>,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            old: Process::new(),
            new: Process::new(),
            expected_old: Expected::default(),
            expected_new: Expected::default(),
            links: None,
            is_serving: false,
            from_nodes: Vec::new(),
            received_by_old: 0,
            received_by_new: 0,
            held: Vec::new(),
            awaited: VecDeque::new(),
            last: 0,
            relayed: 0,
        }
    }

    fn choose(&mut self) -> (&'static str, u32) {
        self.last += 1;
        (TOPICS[self.rng.below(TOPICS.len())].0, self.last)
    }

    fn step(&mut self) {
        match self.rng.below(8) {
            0 | 1 => self.publish_in_old(),
            2 | 3 if self.is_serving => self.publish_in_new(),
            4 => {
                let (topic, number) = self.choose();
                self.from_nodes.push(ReceivedFromNode { topic, number });
            }
            5 => self.receive_in_old(),
            6 => self.receive_in_new(),
            7 => self.relay(),
            _ => {
                self.pass_to_new();
                self.pass_to_old();
            }
        }
    }

    fn publish_in_old(&mut self) {
        let (topic, number) = self.choose();
        self.old.publish(&mut self.rng, topic, number);
        let expected = &mut self.expected_old;
        expected.to_nodes.push((number, topic.contains("cache-")));
        expected.deliver_plain(topic, number);
        let passed = Passed { topic, number, is_awaited: has_history(topic) };
        match &mut self.links {
            Some(links) => {
                links.expected_to_new.push_back(passed);
                self.awaited.extend(passed.is_awaited.then_some(passed));
            }
            None if passed.is_awaited => expected.deliver_positioned(topic, number),
            None => {}
        }
    }

    fn publish_in_new(&mut self) {
        let (topic, number) = self.choose();
        self.new.publish(&mut self.rng, topic, number);
        self.expected_new.to_nodes.push((number, topic.contains("cache-")));
        self.deliver_in_new(Passed { topic, number, is_awaited: false }, true);
    }

    fn deliver_in_new(&mut self, passed: Passed, returns: bool) {
        let Passed { topic, number, .. } = passed;
        self.expected_new.deliver_plain(topic, number);
        if has_history(topic) {
            self.expected_new.deliver_positioned(topic, number);
        }
        if let Some(links) = self.links.as_mut().filter(|_| returns) {
            links.expected_from_new.push_back(passed);
        }
    }

    /// A frame arrives at the new process.
    fn pass_to_new(&mut self) {
        let Some(links) = self.links.as_mut() else { return };
        let (frame, passed) = (links.to_new.take(), links.expected_to_new.pop_front());
        assert_eq!(frame.is_some(), passed.is_some());
        let (Some(HandoverFrame { head, body }), Some(passed)) = (frame, passed) else { return };
        let HandoverHead::Publish { topic, kind, kept, sender } = head else { panic!("{head:?}") };
        let content = MessageContent::from_wire(kind, body);
        let out = &mut self.new.publisher.clone();
        self.new.hub.publish_from_predecessor(out, &topic, &content, kept, &sender);
        self.deliver_in_new(passed, passed.is_awaited);
    }

    /// A frame arrives at the old process, once the new one serves.
    fn pass_to_old(&mut self) {
        let Some(links) = self.links.as_mut().filter(|_| self.is_serving) else { return };
        let (frame, passed) = (links.from_new.take(), links.expected_from_new.pop_front());
        assert_eq!(frame.is_some(), passed.is_some());
        let (Some(HandoverFrame { head, body }), Some(passed)) = (frame, passed) else { return };
        let HandoverHead::Published { topic, kind, position, answers, sender } = head else {
            panic!("{head:?}")
        };
        let (content, position) = (MessageContent::from_wire(kind, body), position.map(Into::into));
        let out = &mut self.old.publisher.clone();
        self.old.hub.deliver_from_successor(out, &topic, &content, position, answers, &sender);
        let Passed { topic, number, is_awaited } = passed;
        if is_awaited {
            assert_eq!(self.awaited.pop_front().unwrap().number, number);
        } else {
            self.expected_old.deliver_plain(topic, number);
        }
        if has_history(topic) || topic == DURABLE {
            self.expected_old.deliver_positioned(topic, number);
        }
    }

    fn receive_in_old(&mut self) {
        let Some(publication) = self.from_nodes.get(self.received_by_old).copied() else { return };
        self.received_by_old += 1;
        self.old.receive_from_node(&publication);
        let ReceivedFromNode { topic, number } = publication;
        match has_history(topic) {
            true if self.links.is_none() => {
                self.expected_old.deliver_positioned(topic, number);
                self.expected_old.deliver_plain(topic, number);
            }
            // The new process delivers it.
            true if self.is_serving => {}
            true => self.held.push(publication),
            false => self.expected_old.deliver_plain(topic, number),
        }
    }

    /// The new process is connected to the other nodes from the begin of the handover on.
    fn receive_in_new(&mut self) {
        let next = self.from_nodes.get(self.received_by_new).copied();
        let Some(publication) = next.filter(|_| self.links.is_some()) else { return };
        self.received_by_new += 1;
        self.new.receive_from_node(&publication);
        let ReceivedFromNode { topic, number } = publication;
        if !has_history(topic) {
            self.deliver_in_new(Passed { topic, number, is_awaited: false }, false);
        } else if !self
            .expected_new
            .received
            .get(&format!("j.{topic}"))
            .is_some_and(|all| all.contains(&number))
        {
            self.deliver_in_new(Passed { topic, number, is_awaited: false }, true);
        }
    }

    /// One process reads the stream of the durable topic.
    fn relay(&mut self) {
        if self.links.is_some() && !self.is_serving {
            return;
        }
        self.last += 1;
        self.relayed += 1;
        let (process, expected) = match self.is_serving {
            true => (&self.new, &mut self.expected_new),
            false => (&self.old, &mut self.expected_old),
        };
        process.relay(self.last, self.relayed);
        expected.deliver_positioned(DURABLE, self.last);
        expected.deliver_plain(DURABLE, self.last);
        if let Some(links) = &mut self.links {
            let passed = Passed { topic: DURABLE, number: self.last, is_awaited: false };
            links.expected_from_new.push_back(passed);
        }
    }

    /// The new process has the histories and the name of the last publication of each node in them.
    fn begin(&mut self) {
        self.new.hub.await_histories();
        // What it received so far is in the histories, or waits.
        let first = self.rng.below(self.received_by_old + 1);
        let (successor, to_new) = frame_queue();
        let (histories, epochs) = self.old.hub.begin_handover(successor, &self.old.publisher);
        let delivered = self.old.hub.last_publications();
        assert!(self.new.publisher.restore_epochs(&epochs));
        for topic in histories {
            // Of encodings without positions, a real server retains nothing.
            if topic.name.starts_with("j.") || topic.name.starts_with("q.") {
                assert!(self.new.publisher.restore(topic).unwrap());
            }
        }
        let old = self.expected_old.received.iter();
        let positioned = old.filter(|(topic, _)| topic.starts_with("j.") || topic.starts_with("q."));
        self.expected_new.received = positioned.map(|(topic, all)| (topic.clone(), all.clone())).collect();
        let (predecessor, from_new) = frame_queue();
        self.new.hub.set_predecessor(predecessor);
        let (expected_to_new, expected_from_new) = (VecDeque::new(), VecDeque::new());
        self.links = Some(FrameLinks { to_new, from_new, expected_to_new, expected_from_new });
        self.received_by_new = first;
        for _ in first..self.received_by_old {
            if self.rng.below(2) == 0 {
                self.receive_in_new();
            }
        }
        self.new.hub.inherit_delivered(delivered.as_deref(), 0);
        self.new.hub.deliver_queued(&mut self.new.publisher.clone());
    }

    fn serve(&mut self) {
        self.old.hub.discard_queued();
        self.held.clear();
        self.is_serving = true;
    }

    /// The new process exits: the frames on their way are lost.
    fn fail(&mut self) {
        self.links = None;
        assert!(self.old.hub.end_handover(&mut self.old.publisher.clone()));
        for Passed { topic, number, .. } in std::mem::take(&mut self.awaited) {
            self.expected_old.deliver_positioned(topic, number);
        }
        for ReceivedFromNode { topic, number } in std::mem::take(&mut self.held) {
            self.expected_old.deliver_positioned(topic, number);
            self.expected_old.deliver_plain(topic, number);
        }
    }

    /// All frames arrive, and both processes have received the same.
    fn finish(&mut self) {
        while self
            .links
            .as_ref()
            .is_some_and(|links| !links.expected_to_new.is_empty() || !links.expected_from_new.is_empty())
        {
            self.pass_to_new();
            self.pass_to_old();
        }
        self.old.hub.finish_handover();
        self.new.hub.clear_predecessor();
        self.links = None;
        assert!(self.awaited.is_empty());
        for topic in ["j.kept.a", "q.kept.a", "j.kept.cache-a", "j.stored.a"] {
            let [old, new] = [&self.old, &self.new].map(|process| process.received().remove(topic));
            assert_eq!(old, new, "{topic}: one order in both processes");
        }
    }

    fn check(&self, seed: u64) {
        for (name, process, expected) in
            [("old", &self.old, &self.expected_old), ("new", &self.new, &self.expected_new)]
        {
            assert_eq!(process.received(), expected.received, "{name} process, seed {seed}");
            assert_eq!(*process.to_nodes.lock(), expected.to_nodes, "{name} process, seed {seed}");
        }
    }

    fn steps(&mut self) {
        (0..self.rng.below(40)).for_each(|_| self.step());
    }
}

/// Nothing is lost, doubled or reordered: not by the origin of a publication, nor by a handover that succeeds, or fails
/// before or after the new process serves.
#[test]
fn each_encoding_receives_every_publication_once_in_order_through_a_handover() {
    for seed in 0..100 {
        let mut world = World::new(seed);
        world.steps();
        world.check(seed);
        world.begin();
        world.steps();
        world.check(seed);
        if seed % 3 == 0 {
            world.fail();
        } else {
            world.serve();
            world.steps();
            world.check(seed);
            match seed % 3 {
                1 => world.fail(),
                _ => world.finish(),
            }
        }
        world.check(seed);
    }
}
