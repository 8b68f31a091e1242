//! Clusters of several servers in this process, over a broker in this process.

mod api;
mod keys;
mod login;
mod rejections;
mod revocations;
mod senders;
mod stored;

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};
use sinews::blocking::WebSocket;
use sinews_hub::auth::{ApiKeys, Auth, AuthOptions};
use sinews_hub::{ClusterOptions, HostRules, Hub, HubBuilder, HubConfig, HubErrorKind, observe_nodes};
use sinews_server::StopHandle;
use sinews_testkit::{TIMEOUT, assert_fields, until};

use crate::support::fake_broker::{FakeBroker, WireProtocol};
use crate::support::{ask_on, bind, bounded, parse, request, websocket, without_timeouts};

pub(crate) fn options(url: &str) -> ClusterOptions {
    ClusterOptions::parse(url).unwrap()
}

/// A server of a cluster.
struct TestPeer {
    address: SocketAddr,
    stop: StopHandle,
    thread: Option<JoinHandle<()>>,
}

impl TestPeer {
    fn start(broker: &FakeBroker) -> Self {
        Self::start_with(broker, |builder| builder)
    }

    /// Starts a node, and waits until it is connected: the publications of a node without its broker reach no other node.
    fn start_with(broker: &FakeBroker, configure: impl FnOnce(HubBuilder) -> HubBuilder) -> Self {
        let node = Self::start_at(&broker.url(), configure);
        node.until("connected", |node| node.metric("sinews_cluster_connected") == 1);
        node
    }

    fn start_at(url: &str, configure: impl FnOnce(HubBuilder) -> HubBuilder) -> Self {
        let builder = Hub::builder().cluster(options(url)).websocket(without_timeouts());
        let hub = configure(builder).build().unwrap();
        let server = bind(&hub, |server| server);
        let (address, stop) = (server.addresses()[0], server.stop_handle());
        let hub = hub.start(&server).unwrap();
        let thread = thread::spawn(move || {
            server.run().unwrap();
            hub.shut_down();
        });
        Self { address, stop, thread: Some(thread) }
    }

    fn connect(&self) -> TcpStream {
        bounded(self.address)
    }

    fn websocket(&self, path: &str) -> WebSocket<TcpStream> {
        websocket(self.address, path)
    }

    fn request(&self, head: &str, body: &[u8]) -> (u16, String) {
        self.request_with(head, "", body)
    }

    /// The status and the body of an answer.
    fn request_with(&self, head: &str, lines: &str, body: &[u8]) -> (u16, String) {
        let mut answer = request(self.address, head, lines, body);
        (answer.status(), answer.rest())
    }

    fn publish(&self, topic: &str, text: &str) {
        let (status, answer) = self.request(&format!("POST /topics/{topic}"), text.as_bytes());
        assert_eq!(status, 200, "{answer}");
    }

    /// The value of a metric.
    fn metric(&self, name: &str) -> u64 {
        let (_, answer) = self.request("GET /metrics", b"");
        let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} in {answer}")).parse().unwrap()
    }

    /// Polls until a condition holds.
    fn until(&self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        until(what, || condition(self));
    }

    fn is_ready(&self) -> bool {
        self.request("GET /readyz", b"").0 == 200
    }

    fn client(&self) -> Client {
        let mut client = Client(self.websocket("/ws"));
        assert_eq!(client.receive()["op"], "welcome");
        client
    }

    fn client_of_outage(&self) -> Client {
        let mut client = Client(self.websocket("/ws"));
        assert_eq!(client.receive()["cluster"], false);
        client
    }

    fn subscriber(&self, topic: &str) -> Client {
        let mut client = self.client();
        client.request(&json!({ "op": "subscribe", "topic": topic, "id": 1 }));
        client
    }
}

impl Drop for TestPeer {
    fn drop(&mut self) {
        self.stop.stop_now();
        let joined = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || joined.is_none_or(|joined| joined.is_ok()));
    }
}

struct Client(WebSocket<TcpStream>);

impl Client {
    fn receive_any(&mut self) -> Value {
        let message = self.0.next().expect("the connection is open").expect("a message");
        serde_json::from_slice(message.as_bytes()).unwrap()
    }

    /// The next message besides reports of an outage.
    fn receive(&mut self) -> Value {
        loop {
            let message = self.receive_any();
            if message["op"] != "cluster" {
                return message;
            }
        }
    }

    /// Sends at once: without a flush, a message waits until messages that were received together are read.
    fn send(&mut self, request: &Value) {
        self.0.send_text(&request.to_string()).unwrap();
        self.0.flush().unwrap();
    }

    fn request(&mut self, request: &Value) -> Value {
        self.send(request);
        let ack = self.receive();
        assert_eq!(ack["op"], "ack", "{ack}");
        ack
    }

    /// The data of the next publications.
    fn data(&mut self, count: usize) -> Vec<Value> {
        let mut next = || {
            let message = self.receive();
            assert_eq!(message["op"], "message", "{message}");
            message["data"].clone()
        };
        (0..count).map(|_| next()).collect()
    }
}

/// Tests with both protocols, beside each other: nodes mostly wait.
pub(crate) fn for_both(test: impl Fn(FakeBroker) + Sync) {
    thread::scope(|scope| {
        for kind in [WireProtocol::Nats, WireProtocol::Redis] {
            let test = &test;
            scope.spawn(move || test(FakeBroker::start(kind)));
        }
    });
}

/// The same with this many nodes.
fn for_nodes<const N: usize>(test: impl Fn(FakeBroker, [TestPeer; N]) + Sync) {
    for_both(|broker| {
        let nodes = [(); N].map(|()| TestPeer::start(&broker));
        test(broker, nodes);
    });
}

#[test]
fn publications_reach_subscribers_of_all_nodes_once_and_in_order() {
    for_nodes(|broker, nodes: [TestPeer; 3]| {
        // Overlapping subscriptions of one node at the broker: duplicates arrive there.
        let mut subscribers = [
            nodes[0].subscriber("chat.1"),
            nodes[1].subscriber("chat.1"),
            nodes[1].subscriber("chat.*"),
            nodes[1].subscriber(">"),
        ];
        broker.wait_for("sinews.t.chat.1", 2);
        broker.wait_for("sinews.t.chat.*", 1);
        broker.wait_for(if broker.url().starts_with("nats") { "sinews.t.>" } else { "sinews.t.*" }, 1);
        let mut plain = nodes[1].websocket("/topics/chat.1");
        let mut publisher = nodes[0].client();
        for number in 0..100 {
            let ack = publisher
                .request(&json!({ "op": "publish", "topic": "chat.1", "data": number, "id": number }));
            assert_eq!(ack["reached"], 1, "of this node");
        }
        nodes[2].publish("chat.1", "last");
        nodes[2].publish("other", "not for all");
        let of_third: [&[&str]; 4] = [&["last"], &["last"], &["last"], &["last", "not for all"]];
        for (subscriber, of_third) in subscribers.iter_mut().zip(of_third) {
            // Publications of two nodes have no common order.
            let (texts, numbers): (Vec<_>, Vec<_>) =
                subscriber.data(100 + of_third.len()).into_iter().partition(Value::is_string);
            assert_eq!(numbers, (0..100).map(Value::from).collect::<Vec<_>>());
            assert_eq!(texts, of_third);
        }
        let plain = (0..101).map(|_| plain.next().unwrap().unwrap().as_bytes().to_vec());
        let plain: Vec<Vec<u8>> = plain.filter(|payload| payload != b"last").collect();
        assert_eq!(plain, (0..100).map(|number: u32| number.to_string().into_bytes()).collect::<Vec<_>>());
        assert_eq!(nodes[2].metric("sinews_cluster_received_total"), 0, "it has no subscriber");
        assert_eq!(nodes[1].metric("sinews_cluster_received_total"), 102, "no duplicate");
    });
}

#[test]
fn redis_is_asked_for_no_replies_to_publications_if_it_can_omit_them() {
    for (kind, replies) in [(WireProtocol::Redis, 0), (WireProtocol::RedisWithReplies, 3)] {
        let broker = FakeBroker::start(kind);
        let nodes = [(); 2].map(|()| TestPeer::start(&broker));
        let mut subscriber = nodes[1].subscriber("a");
        broker.wait_for("sinews.t.a", 1);
        for text in ["1", "2", "3"] {
            nodes[0].publish("a", text);
            assert_eq!(subscriber.data(1), [text]);
        }
        // The reply follows the delivery.
        nodes[0].until("replied", |_| broker.replies() == replies);
    }
}

/// Publishers of several workers write to the broker's socket themselves, in turns with the link.
#[test]
fn bursts_of_several_publishers_arrive_in_order_beside_commands_of_the_link() {
    const BURSTS: u32 = 200;
    const BURST: u32 = 7;
    for_nodes(|broker, nodes: [TestPeer; 2]| {
        let mut subscriber = nodes[1].subscriber("order.*");
        broker.wait_for("sinews.t.order.*", 1);
        let publishers: Vec<_> = (0..4)
            .map(|publisher| {
                let mut client = nodes[0].client();
                thread::spawn(move || {
                    for burst in 0..BURSTS {
                        for number in burst * BURST..(burst + 1) * BURST {
                            let topic = format!("order.{publisher}");
                            let publication = json!({ "op": "publish", "topic": topic, "data": number });
                            client.send(&publication);
                        }
                        // Subscriptions are commands of the link, between the publications.
                        let topic = format!("other.{publisher}.{burst}");
                        client.request(&json!({ "op": "subscribe", "topic": topic, "id": burst }));
                    }
                    client
                })
            })
            .collect();
        let mut next = [0; 4];
        for _ in 0..4 * BURSTS * BURST {
            let message = subscriber.receive();
            let publisher: usize = message["topic"].as_str().unwrap()[6..].parse().unwrap();
            assert_eq!(message["data"], next[publisher], "of publisher {publisher}");
            next[publisher] += 1;
        }
        drop(publishers.into_iter().map(|publisher| publisher.join().unwrap()).collect::<Vec<_>>());
    });
}

#[test]
fn payloads_are_no_messages_between_nodes() {
    for_nodes(|broker, nodes: [TestPeer; 2]| {
        let mut subscriber = nodes[1].subscriber("a b.ü*.=");
        broker.wait_for("sinews.t.a=20b.=C3=BC=2A.=3D", 1);
        let texts = ["\r\nMSG sinews.all 1 5\r\nhello\r\n", "*1\r\n$4\r\nQUIT\r\n", "\u{1}\u{2}", ""];
        for text in texts {
            nodes[0].publish("a%20b.%C3%BC*.=", text);
        }
        assert_eq!(subscriber.data(texts.len()), texts);
    });
}

#[test]
fn subscriptions_at_the_broker_end_with_the_last_subscriber() {
    for_both(|broker| {
        let node = TestPeer::start(&broker);
        let mut subscribers = ["a.*", "a.b", "a.b"].map(|topic| node.subscriber(topic));
        broker.wait_for("sinews.t.a.b", 1);
        for subscriber in &mut subscribers[..2] {
            for topic in ["a.*", "a.b"] {
                // One of them is subscribed.
                let unsubscribe = json!({ "op": "unsubscribe", "topic": topic, "id": 2 });
                subscriber.send(&unsubscribe);
                subscriber.receive();
            }
        }
        broker.wait_for("sinews.t.a.*", 0);
        broker.wait_for("sinews.t.a.b", 1);
        drop(subscribers);
        broker.wait_for("sinews.t.a.b", 0);
    });
}

#[test]
fn event_streams_are_notified_of_an_outage_and_long_polls_are_not() {
    for_both(|broker| {
        let node = TestPeer::start(&broker);
        node.until("ready", TestPeer::is_ready);
        let open = |accept: &str| {
            let query = if accept.ends_with("/json") { "?wait=55" } else { "" };
            ask_on(node.connect(), &format!("/topics/news{query}"), &format!("Accept: {accept}\r\n"))
        };
        let mut events = open("text/event-stream");
        let mut next = |kind: &str| {
            let event = events.event().unwrap();
            assert_eq!(event.kind, kind);
            serde_json::from_str::<Value>(&event.data).unwrap()
        };
        assert_eq!(next("welcome").get("cluster"), None);
        next("subscribed");
        let mut poll = open("application/json");
        poll.until("\"op\":\"ack\"").unwrap();
        broker.go_down();
        assert_eq!(next("cluster"), json!({ "op": "cluster", "connected": false }));
        let welcome: Value = serde_json::from_str(&open("application/x-ndjson").line().unwrap()).unwrap();
        assert_fields(&welcome, json!({"op": "welcome", "cluster": false}));
        broker.come_up();
        assert_eq!(next("cluster"), json!({ "op": "cluster", "connected": true }));
        node.publish("news", "x");
        let rest = poll.rest();
        assert!(rest.contains("\"data\":\"x\"") && !rest.contains("cluster"), "{rest}");
    });
}

/// More topics than one batch of subscriptions has.
#[test]
fn node_is_connected_again_when_the_broker_has_all_its_subscriptions() {
    const TOPICS: usize = 1_000;
    for_nodes(|broker, [node, other]: [TestPeer; 2]| {
        let mut subscriber = node.client();
        for at in 0..TOPICS {
            let ack = subscriber.request(&json!({ "op": "subscribe", "topic": format!("t{at}"), "id": 1 }));
            assert_eq!(ack["op"], "ack", "{ack}");
        }
        broker.go_down();
        [&node, &other]
            .into_iter()
            .for_each(|node| node.until("the outage is noticed", |node| !node.is_ready()));
        broker.come_up();
        [&other, &node]
            .into_iter()
            .for_each(|node| node.until("connected", |node| node.metric("sinews_cluster_connected") == 1));
        let mut publisher = other.client();
        for at in 0..TOPICS {
            publisher.send(&json!({ "op": "publish", "topic": format!("t{at}"), "data": at }));
        }
        for at in 0..TOPICS {
            assert_eq!(subscriber.receive()["data"], at);
        }
    });
}

#[test]
fn local_delivery_continues_while_the_broker_is_away() {
    for_nodes(|broker, nodes: [TestPeer; 2]| {
        // Earlier clients get a report of the first login.
        nodes.iter().for_each(|node| node.until("ready", TestPeer::is_ready));
        let mut subscribers = [nodes[0].subscriber("news"), nodes[1].subscriber("news")];
        broker.wait_for("sinews.t.news", 2);
        broker.go_down();
        nodes[0].until("the outage is noticed", |node| !node.is_ready());
        let (status, answer) = nodes[0].request("GET /readyz", b"");
        assert!(answer.contains("the broker of the cluster") && status == 503, "{status} {answer}");
        nodes[0].publish("news", "local");
        // The report of the outage comes a little later, and on a busy machine before the message.
        let mut received = [subscribers[0].receive_any(), subscribers[0].receive_any()];
        received.sort_by_key(|message| message["op"] == "cluster");
        assert_eq!(received[0]["data"], "local");
        assert_eq!(received[1], json!({ "op": "cluster", "connected": false }));
        assert_eq!(nodes[0].metric("sinews_cluster_dropped_total{reason=\"broker_away\"}"), 1);
        let ack = nodes[0]
            .client_of_outage()
            .request(&json!({ "op": "publish", "topic": "x", "data": 1, "id": 1 }));
        assert_fields(&ack, json!({"reached": 0, "cluster": false}));
        assert_eq!(subscribers[1].receive_any()["op"], "cluster");
        // Subscribed during the outage.
        let mut late = nodes[1].subscriber("news.late");
        broker.come_up();
        broker.wait_for("sinews.t.news", 2);
        broker.wait_for("sinews.t.news.late", 1);
        nodes.iter().for_each(|node| node.until("ready again", TestPeer::is_ready));
        let [first, second] = &mut subscribers;
        let mut reports = [first, second, &mut late].map(Client::receive_any);
        // The other worker of its node may report the outage only now.
        if reports[2]["connected"] == false {
            reports[2] = late.receive_any();
        }
        assert_eq!(reports, [(); 3].map(|()| json!({ "op": "cluster", "connected": true })));
        nodes[0].publish("news", "all");
        nodes[0].publish("news.late", "all");
        assert_eq!(
            (subscribers[0].data(1), subscribers[1].data(1)),
            (vec![json!("all")], vec![json!("all")])
        );
        assert_eq!(late.data(1), ["all"]);
    });
}

#[test]
fn topics_with_a_history_are_retained_on_all_nodes() {
    for_both(|broker| {
        let nodes = [(); 2].map(|()| TestPeer::start_with(&broker, |builder| builder.history("kept.>", 10)));
        broker.wait_for(
            if broker.url().starts_with("nats") { "sinews.t.kept.>" } else { "sinews.t.kept.*" },
            2,
        );
        nodes[0].publish("kept.a", "early");
        nodes[1].until("it is received", |node| node.metric("sinews_cluster_received_total") == 1);
        let mut late = nodes[1].client();
        late.send(&json!({ "op": "subscribe", "topic": "kept.a", "last": 5 }));
        assert_eq!(late.data(1), ["early"]);
    });
}

#[test]
fn nodes_know_each_other_until_one_leaves() {
    for_both(|broker| {
        let first = TestPeer::start(&broker);
        let second = TestPeer::start(&broker);
        for node in [&first, &second] {
            node.until("both are known", |node| node.metric("sinews_cluster_nodes") == 2);
        }
        drop(second);
        first.until("it has left", |node| node.metric("sinews_cluster_nodes") == 1);
    });
}

#[test]
fn dashboard_feed_lists_both_nodes_and_the_outage_of_the_broker() {
    for_nodes(|broker, nodes: [TestPeer; 2]| {
        let feed = nodes[0].websocket("/dashboard/feed");
        let mut feed = Client(feed);
        let mut until = |condition: &dyn Fn(&Value) -> bool| {
            // A report each second.
            for _ in 0..TIMEOUT.as_secs() {
                let cluster = feed.receive_any()["cluster"].clone();
                if condition(&cluster) {
                    return cluster;
                }
            }
            panic!("the feed never has it");
        };
        let _client = nodes[1].subscriber("room");
        let cluster = until(&|cluster| {
            let listed = cluster["nodes"].as_array().unwrap();
            listed.len() == 2 && listed.iter().any(|node| node["connections"] == 1 && node["topics"] == 1)
        });
        assert_eq!(cluster["connected"], true);
        for node in cluster["nodes"].as_array().unwrap() {
            assert!(
                node["name"].is_string() && node["id"].is_string() && node["version"].is_string(),
                "{node}"
            );
            assert!(node["uptime"].as_f64().unwrap() >= 0.0, "{node}");
        }
        broker.go_down();
        until(&|cluster| cluster["connected"] == false);
        broker.come_up();
        until(&|cluster| cluster["connected"] == true && cluster["nodes"].as_array().unwrap().len() == 2);
    });
}

/// A node whose messages have another version, which has started before the others.
#[test]
fn another_version_of_the_messages_is_named_by_a_node_and_by_the_list_of_nodes() {
    let broker = FakeBroker::start(WireProtocol::Nats);
    let mut other = TcpStream::connect(broker.url().trim_start_matches("nats://")).unwrap();
    let heartbeat = |other: &mut TcpStream| {
        let message = [&[1, 1], &[7; 16][..], &[0; 16]].concat();
        let head = format!("PUB sinews.all {}\r\n", message.len());
        other.write_all(&[head.as_bytes(), &message, b"\r\n"].concat()).unwrap();
    };
    let node = TestPeer::start(&broker);
    node.until("it is not ready", |node| {
        heartbeat(&mut other);
        let (status, answer) = node.request("GET /readyz", b"");
        status == 503 && answer.contains("has version 1") && answer.contains("has version 2:")
    });
    assert_eq!(node.metric("sinews_cluster_nodes"), 1);
    drop(node);
    let url = broker.url();
    let listing = thread::spawn(move || observe_nodes(&options(&url), TIMEOUT));
    while !listing.is_finished() {
        heartbeat(&mut other);
        thread::park_timeout(Duration::from_millis(20));
    }
    let error = listing.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), HubErrorKind::Broker);
    assert!(error.to_string().contains("version 2") && error.to_string().contains("version 1"), "{error}");
}

/// Subscribes with the presence of a topic, and waits until it has these numbers.
fn wait_for_presence(node: &TestPeer, topic: &str, connections: u64, members: usize) {
    let mut client = node.client();
    node.until("the presence is known", |_| {
        let ask = |client: &mut Client, op: &str| {
            client.send(&json!({ "op": op, "topic": topic }));
            client.receive()
        };
        // The client is no member: it asks without subscribing.
        let (presence, page) = (ask(&mut client, "presence"), ask(&mut client, "members"));
        presence["subscribers"] == connections && page["members"].as_array().unwrap().len() == members
    });
}

impl TestPeer {
    /// Polls with a client of its own.
    fn joined(&self, topic: &str, member: &str) -> Client {
        let mut client = self.client();
        client.request(&json!({ "op": "join", "topic": topic, "member": { "id": member }, "id": 1 }));
        client
    }
}

#[test]
fn presence_covers_all_nodes() {
    for_both(|broker| {
        let mut nodes: Vec<TestPeer> = (0..2).map(|_| TestPeer::start(&broker)).collect();
        let first = nodes[0].joined("room", "anna");
        let _second = nodes[1].joined("room", "anna");
        let _third = nodes[1].joined("room", "ben");
        let _watcher = nodes[0].subscriber("room");
        for node in &nodes {
            wait_for_presence(node, "room", 4, 2);
            // The numbers of connections are those of all nodes. A node that has missed a change learns them a moment later.
            let mut client = node.client();
            node.until("all connections of the members are known", |_| {
                client.send(&json!({ "op": "members", "topic": "room" }));
                let members = json!([{ "id": "anna", "connections": 2 }, { "id": "ben", "connections": 1 }]);
                client.receive()["members"] == members
            });
        }
        // A node that joins late gets the whole presence.
        nodes.push(TestPeer::start(&broker));
        wait_for_presence(&nodes[2], "room", 4, 2);
        drop(first);
        wait_for_presence(&nodes[2], "room", 3, 2);
        // A node that leaves takes its members with it.
        nodes.remove(1);
        for node in &nodes {
            wait_for_presence(node, "room", 1, 0);
        }
    });
}

#[test]
fn presence_changes_during_an_outage_are_known_afterwards() {
    for_nodes(|broker, nodes: [TestPeer; 2]| {
        let leaves = nodes[0].joined("room", "leaves");
        let _stays = nodes[0].joined("room", "stays");
        wait_for_presence(&nodes[1], "room", 2, 2);
        broker.go_down();
        nodes[0].until("the outage is noticed", |node| !node.is_ready());
        drop(leaves);
        let _joins = nodes[0].joined("room", "joins");
        let _also = nodes[1].joined("room", "also");
        // Members of other nodes are retained meanwhile.
        wait_for_presence(&nodes[1], "room", 3, 3);
        broker.come_up();
        for node in &nodes {
            wait_for_presence(node, "room", 3, 3);
        }
    });
}

const KEY: &str = "a-key-for-tests-of-at-least-32-bytes";

fn with_api(broker: &FakeBroker) -> TestPeer {
    TestPeer::start_with(broker, |builder| {
        let keys = ApiKeys::new().with_key(KEY).unwrap();
        let auth = Auth::new(&AuthOptions::new()).unwrap();
        builder.history("chat.>", 100).config(HubConfig::new(auth, HostRules::default()).with_api_keys(keys))
    })
}

impl TestPeer {
    fn api(&self, head: &str, body: &Value) -> Value {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let lines = format!("Authorization: Bearer {KEY}\r\n");
        let (status, body) = self.request_with(head, &lines, body.as_bytes());
        assert_eq!(status, 200, "{body}");
        parse(&body)
    }
}

#[test]
fn api_lists_and_disconnects_on_all_nodes() {
    for_both(|broker| {
        let nodes = [(); 2].map(|()| with_api(&broker));
        for node in &nodes {
            node.until("both are known", |node| node.metric("sinews_cluster_nodes") == 2);
        }
        // An idle node of a hub with topics that have a history.
        let nodes_of = |node: &TestPeer| {
            let listed = node.api("GET /api/v1/nodes", &Value::Null);
            assert_eq!(listed["connected"], true, "{listed}");
            let mut nodes = listed["nodes"].as_array().unwrap().clone();
            nodes.sort_by_key(|node| node["self"] != true);
            nodes
                .iter()
                .map(|node| (node["connections"].as_u64().unwrap(), node["topics"].as_u64().unwrap()))
                .collect::<Vec<_>>()
        };
        assert_eq!(nodes_of(&nodes[0]), [(0, 0), (0, 0)]);
        let _first = nodes[0].subscriber("a.1");
        let _second = [nodes[1].subscriber("a.1"), nodes[1].subscriber("a.2")];
        let topics = nodes[0].api("GET /api/v1/topics?filter=a.*", &Value::Null);
        let listed = |topic: &str, subscribers: u64| json!({ "topic": topic, "subscribers": subscribers, "keys": 0, "key_subscribers": 0 });
        let expected = json!([listed("a.1", 2), listed("a.2", 1)]);
        assert_eq!(topics, json!({ "topics": expected }));
        let page = nodes[1].api("GET /api/v1/topics?filter=a.*&limit=1", &Value::Null);
        assert_fields(&page, json!({"topics": [expected[0]], "next": "a.1"}));
        // Of the other node, from its next heartbeat.
        nodes[1].until("the nodes are counted", |node| nodes_of(node) == [(2, 2), (1, 1)]);
        let published = nodes[0].api("POST /api/v1/publish", &json!({ "topic": "a.2", "data": 1 }));
        assert_eq!(published, json!({ "topic": "a.2", "subscribers": 0, "cluster": true }));
        let connections = nodes[0].api("GET /api/v1/connections", &Value::Null);
        let ids: Vec<&str> = connections["connections"]
            .as_array()
            .unwrap()
            .iter()
            .map(|connection| connection["connection"].as_str().unwrap())
            .collect();
        assert_eq!(ids.len(), 3, "{connections}");
        let mut paged = Vec::new();
        let mut after = String::new();
        loop {
            let page = nodes[1].api(&format!("GET /api/v1/connections?limit=1{after}"), &Value::Null);
            paged.push(page["connections"][0]["connection"].as_str().unwrap().to_owned());
            let Some(next) = page["next"].as_str() else { break };
            after = format!("&after={next}");
        }
        assert_eq!(paged, ids);
        // A connection is described by the node that has it.
        for (node, id) in nodes.iter().flat_map(|node| ids.iter().map(move |id| (node, id))) {
            let described = node.api(&format!("GET /api/v1/connections/{id}"), &Value::Null);
            assert_eq!(described["connection"], **id, "{described}");
            assert_eq!(described["subscriptions"].as_array().unwrap().len(), 1, "{described}");
        }
        for id in &ids {
            let closed = nodes[0].api("POST /api/v1/disconnect", &json!({ "connection": id }));
            assert_eq!(closed, json!({ "connections": 1 }));
        }
    });
}

#[test]
fn nodes_without_an_answer_are_named() {
    for_both(|broker| {
        let nodes = [(); 2].map(|()| with_api(&broker));
        for node in &nodes {
            node.until("both are known", |node| node.metric("sinews_cluster_nodes") == 2);
        }
        broker.go_down();
        let topics = nodes[0].api("GET /api/v1/topics", &Value::Null);
        assert_eq!(topics["missing_nodes"].as_array().map(Vec::len), Some(1), "{topics}");
    });
}

#[test]
fn nodes_are_observed_from_outside() {
    for_both(|broker| {
        let nodes = ["b", "a"].map(|name| {
            let options = options(&broker.url()).with_name(name).unwrap();
            TestPeer::start_with(&broker, |builder| builder.cluster(options))
        });
        for node in &nodes {
            node.until("both are known", |node| node.metric("sinews_cluster_nodes") == 2);
        }
        let observed = observe_nodes(&options(&broker.url()), TIMEOUT).unwrap();
        let names: Vec<&str> = observed.iter().map(|node| &*node.name).collect();
        assert_eq!(names, ["a", "b"]);
        assert!(observed.iter().all(|node| node.id.len() == 32 && !node.version.is_empty()));
    });
    let error = observe_nodes(&ClusterOptions::parse("nats://127.0.0.1:1").unwrap(), TIMEOUT).unwrap_err();
    assert_eq!(error.kind(), HubErrorKind::Broker);
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}

#[test]
fn durable_topics_on_the_disk_of_one_node_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let streams =
        sinews_hub::StreamOptions::in_directory(directory.path()).with_durable_topics(["orders".to_owned()]);
    let options = ClusterOptions::parse("nats://127.0.0.1:1").unwrap();
    let error = Hub::builder().streams(streams).cluster(options).build().err().unwrap().to_string();
    assert!(error.contains("cluster") && error.contains("at a broker"), "{error}");
}

#[test]
fn durable_keys_on_the_disk_of_one_node_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let streams =
        sinews_hub::StreamOptions::in_directory(directory.path()).with_durable_keys(["prices".to_owned()]);
    let options = ClusterOptions::parse("nats://127.0.0.1:1").unwrap();
    let error = Hub::builder().streams(streams).cluster(options).build().err().unwrap().to_string();
    let names = ["cluster", "streams.durable_keys", "namespace.*.durable_keys", "cluster.store"];
    assert!(names.iter().all(|name| error.contains(name)), "{error}");
}

/// NATS closes the connection of a node that sends a larger message.
#[test]
fn nodes_share_members_within_a_small_payload_limit() {
    let broker = FakeBroker::with_max_payload(WireProtocol::Nats, 8 << 10);
    let nodes = [(); 2].map(|()| TestPeer::start(&broker));
    for node in &nodes {
        node.until("both are known", |node| node.metric("sinews_cluster_nodes") == 2);
    }
    let info = "i".repeat(1_000);
    let mut client = nodes[0].client();
    // In one burst, so that the changes of many members are sent together.
    for number in 0..60 {
        let member = json!({ "id": "anna", "info": info });
        client.send(&json!({ "op": "join", "topic": format!("t.{number}"), "member": member }));
    }
    // Loads the members.
    let late = TestPeer::start(&broker);
    for node in [&nodes[0], &nodes[1], &late] {
        for number in 0..60 {
            wait_for_presence(node, &format!("t.{number}"), 1, 1);
        }
        assert_eq!(node.metric("sinews_cluster_connects_total"), 1, "the broker has closed a connection");
        assert_eq!(node.metric("sinews_cluster_dropped_total{reason=\"too_large\"}"), 0);
    }
}

/// The outage is shorter than the delay of its report.
#[test]
fn client_that_was_welcomed_in_a_short_outage_learns_its_end() {
    let broker = FakeBroker::start(WireProtocol::Nats);
    let node = TestPeer::start(&broker);
    node.until("ready", TestPeer::is_ready);
    broker.go_down();
    node.until("the outage is noticed", |node| !node.is_ready());
    let mut client = Client(node.websocket("/ws"));
    let welcome = client.receive_any();
    broker.come_up();
    assert_fields(&welcome, json!({"op": "welcome", "cluster": false}));
    // On a slow machine, the outage is reported as well.
    let mut next = client.receive_any();
    if next == json!({ "op": "cluster", "connected": false }) {
        next = client.receive_any();
    }
    assert_eq!(next, json!({ "op": "cluster", "connected": true }));
}
