//! Nodes at the broker that `cargo xtask brokers` has started, which the test kills and freezes.

use std::process::Command;
#[cfg(feature = "redis")]
use std::time::Instant;

use serde_json::{Value, json};
use sinews_testkit::Frame;

use crate::support::{PROGRAM, Running, Socket, until};

pub(crate) use crate::real_broker as broker;

use broker::{control, unused_name, url};

fn node(prefix: &str) -> Running {
    Running::serve(&["--cluster", &url(&format!("prefix={prefix}"))])
}

pub(super) fn client(node: &Running) -> Socket {
    let mut socket = node.websocket("/ws");
    assert_eq!(receive(&mut socket)["op"], "welcome");
    socket
}

/// The next message besides reports of an outage, which a broker may end before or after clients are notified.
pub(super) fn receive(socket: &mut Socket) -> Value {
    loop {
        let message = socket.receive_message();
        if message["op"] != "cluster" {
            return message;
        }
    }
}

fn request(socket: &mut Socket, request: &Value) -> Value {
    socket.send_message(request);
    receive(socket)
}

fn subscriber(node: &Running, topic: &str) -> Socket {
    let mut socket = client(node);
    let ack = request(&mut socket, &json!({ "op": "subscribe", "topic": topic, "id": 1 }));
    assert_eq!(ack["op"], "ack", "{ack}");
    socket
}

fn publish(node: &Running, topic: &str, text: &str) {
    let answer = node.request(&format!("POST /topics/{topic} HTTP/1.1"), text);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

fn presence(node: &Running, topic: &str) -> u64 {
    let mut socket = client(node);
    request(&mut socket, &json!({ "op": "presence", "topic": topic }))["subscribers"].as_u64().unwrap()
}

/// Publications, presence and the list of nodes, while the broker is killed, restarted and frozen, and a node dies.
fn nodes_are_one_server() {
    let prefix = unused_name("test");
    let nodes = [(); 3].map(|()| node(&prefix));
    for node in &nodes {
        until("all nodes are known", || node.get("/metrics").contains("\nsinews_cluster_nodes 3\n"));
    }
    // The broker has the subscriptions of a node before its presence, which is known last.
    let mut subscribers = [
        subscriber(&nodes[2], ">"),
        subscriber(&nodes[1], "chat.*"),
        subscriber(&nodes[1], "chat.room"),
        subscriber(&nodes[0], "chat.room"),
    ];
    let _last = subscriber(&nodes[2], "last");
    for node in &nodes {
        until("the presence is known", || presence(node, "chat.room") == 2 && presence(node, "last") == 1);
    }
    let mut publisher = client(&nodes[0]);
    for number in 0..1_000 {
        let text = json!({ "op": "publish", "topic": "chat.room", "data": number }).to_string();
        publisher.send(&Frame::text(text));
    }
    for subscriber in &mut subscribers {
        for number in 0..1_000 {
            assert_eq!(receive(subscriber)["data"], number);
        }
    }
    let listed =
        Command::new(PROGRAM).args(["nodes", "--json", &url(&format!("prefix={prefix}"))]).output().unwrap();
    assert_eq!(String::from_utf8(listed.stdout).unwrap().lines().count(), 3);

    for (down, up) in [("kill", "up"), ("stop", "cont")] {
        control(down);
        for node in &nodes {
            until("the outage is noticed", || !node.is_ready());
        }
        publish(&nodes[0], "chat.room", "local");
        assert_eq!(receive(&mut subscribers[3])["data"], "local");
        control(up);
        for node in &nodes {
            until("it is ready again", || node.is_ready());
        }
        publish(&nodes[0], "chat.room", "again");
        for subscriber in &mut subscribers {
            assert_eq!(receive(subscriber)["data"], "again");
        }
    }

    let [first, second, third] = nodes;
    until("all nodes are known", || first.get("/metrics").contains("\nsinews_cluster_nodes 3\n"));
    // Dropping it kills the process.
    drop(second);
    for node in [&first, &third] {
        until("the members of the dead node are removed", || presence(node, "chat.room") == 1);
    }
}

/// Servers that a script controls.
#[cfg(feature = "redis")]
struct ServerSet {
    script: &'static str,
    port: u16,
    run: tempfile::TempDir,
}

#[cfg(feature = "redis")]
impl ServerSet {
    fn new(script: &'static str) -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        // Several ports in a row, below the last one.
        Self { script, port: port.min(u16::MAX - 20), run: tempfile::tempdir().unwrap() }
    }

    /// Runs a command of their control script; returns its output.
    fn control(&self, verb: &str) -> String {
        let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dev/brokers");
        let mut command = Command::new(format!("{scripts}/{}", self.script));
        command.env("BROKER_PORT", self.port.to_string()).env("BROKER_RUN", self.run.path().join("run"));
        let output = command.arg(verb).output().unwrap();
        assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

#[cfg(feature = "redis")]
impl Drop for ServerSet {
    fn drop(&mut self) {
        self.control("down");
    }
}

/// The primary dies, and returns as a replica.
#[cfg(feature = "redis")]
fn nodes_follow_a_failover() {
    // A primary, its replica and three sentinels.
    let servers = ServerSet::new("sentinel.sh");
    let sentinels = servers.control("up");
    let nodes =
        [(); 2].map(|()| Running::serve(&["--cluster", &format!("redis+sentinel://{sentinels}/main")]));
    let mut subscriber = subscriber(&nodes[1], "chat.room");
    let mut works_again = |round: &str| {
        for node in &nodes {
            until("both nodes are known", || node.get("/metrics").contains("\nsinews_cluster_nodes 2\n"));
        }
        until("a publication arrives", || {
            let before = received(&nodes[1]);
            publish(&nodes[0], "chat.room", round);
            received(&nodes[1]) > before
        });
        while receive(&mut subscriber)["data"] != round {}
    };
    works_again("first");
    let begin = Instant::now();
    servers.control("kill");
    for node in &nodes {
        until("the outage is noticed", || !node.is_ready());
    }
    for node in &nodes {
        until("it is ready again", || node.is_ready());
    }
    works_again("second");
    println!("works {} ms after the death of the primary", begin.elapsed().as_millis());
    servers.control("up");
    works_again("third");
}

/// Messages and histories pass through a cluster of Redis servers, of which one dies.
#[cfg(feature = "redis")]
fn nodes_share_a_redis_cluster() {
    let servers = ServerSet::new("redis-cluster.sh");
    let url = format!("redis+cluster://{}", servers.control("up"));
    let nodes = [(); 2].map(|()| Running::serve(&["--cluster", &url, "--history", "kept.*=100"]));
    for node in &nodes {
        until("both nodes are known", || node.get("/metrics").contains("\nsinews_cluster_nodes 2\n"));
        until("the store answers", || node.get("/metrics").contains("\nsinews_topic_store_up 1\n"));
    }
    let mut pattern = subscriber(&nodes[1], "kept.*");
    let topics: Vec<String> = (0..12).map(|number| format!("kept.{number}")).collect();
    let append = |topic: &str| nodes[0].request(&format!("POST /topics/{topic} HTTP/1.1"), "x");
    for topic in &topics {
        let mut one = subscriber(&nodes[1], topic);
        until("it is appended", || append(topic).starts_with("HTTP/1.1 200 "));
        assert_eq!(receive(&mut one)["topic"], **topic);
        while receive(&mut pattern)["topic"] != **topic {}
    }
    let mut plain = subscriber(&nodes[1], "chat.room");
    publish(&nodes[0], "chat.room", "hello");
    assert_eq!(receive(&mut plain)["data"], "hello");
    servers.control("kill");
    let away = format!("sinews_topic_store_server_up{{server=\"redis://127.0.0.1:{}\"}} 0", servers.port);
    until("the server is away", || nodes[0].get("/metrics").contains(&away));
    let answers: Vec<_> = topics.iter().map(|topic| append(topic)).collect();
    // Without all slots, the rest of the cluster rejects writes, by its default.
    assert!(answers.iter().any(|answer| answer.starts_with("HTTP/1.1 503 ")), "{answers:?}");
    servers.control("up");
    for topic in &topics {
        until("it is appended again", || append(topic).starts_with("HTTP/1.1 200 "));
    }
}

/// Histories and keys of a server without a cluster, which is killed.
fn topic_store_outlives_a_server_alone() {
    let url = url(&format!("prefix={}", unused_name("alone")));
    let start = || Running::serve(&["--cluster-store", &url, "--history", "kept.*=100"]);
    let server = start();
    let publish = |server: &Running, text: &str| {
        let answer = server.request("POST /topics/kept.a HTTP/1.1", text);
        answer.starts_with("HTTP/1.1 200 ").then(|| answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    };
    let put = |server: &Running| server.request("PUT /topics/a/keys/b HTTP/1.1\r\nIf-None-Match: *", "1");
    let mut first = None;
    until("the store answers", || {
        first = publish(&server, "one");
        first.is_some()
    });
    let mut position: Value = serde_json::from_str(&first.unwrap()).unwrap();
    assert!(publish(&server, "two").is_some());
    assert!(put(&server).starts_with("HTTP/1.1 200 "));
    assert!(server.get("/readyz").contains("topic store"));
    // Dropping it kills the process.
    drop(server);
    let server = start();
    let from = json!({ "epoch": position["epoch"].take(), "seq": position["seq"].take() });
    let subscribe = json!({ "op": "subscribe", "id": 1, "topic": "kept.a", "from": from });
    let (mut socket, mut ack) = (client(&server), Value::Null);
    until("the store answers", || {
        ack = request(&mut socket, &subscribe);
        ack["op"] == "ack"
    });
    assert_eq!((&ack["complete"], &ack["replayed"]), (&json!(true), &json!(1)), "{ack}");
    assert_eq!(receive(&mut socket)["data"], "two");
    assert!(put(&server).starts_with("HTTP/1.1 412 "));
}

#[cfg(feature = "redis")]
fn received(node: &Running) -> u64 {
    let metrics = node.get("/metrics");
    let line = metrics.lines().find_map(|line| line.strip_prefix("sinews_cluster_received_total "));
    line.unwrap().parse().unwrap()
}

#[cfg(feature = "nats")]
mod nats {
    use super::super::{one_channel, outage, presence, users};

    sinews_testkit::tests! {
        ignore "needs a broker: cargo xtask brokers --only nats":
        nodes_are_one_server_through_failures => super::nodes_are_one_server();
        topic_store_outlives_a_server_alone => super::topic_store_outlives_a_server_alone();
        members_of_a_killed_node_leave_once => presence::members_of_a_killed_node_leave_once();
        users_are_added_and_removed_once => users::users_are_added_and_removed_once();
        members_of_one_channel_are_added_and_removed_once =>
            one_channel::members_of_one_channel_are_added_and_removed_once();
        apps_survive_outages_of_the_broker => outage::apps_survive_outages_of_the_broker();
    }
}

#[cfg(feature = "redis")]
mod redis {
    use super::super::{one_channel, outage, presence, users};

    sinews_testkit::tests! {
        ignore "needs a broker: cargo xtask brokers --only redis":
        nodes_follow_a_failover_of_sentinel => super::nodes_follow_a_failover();
        nodes_share_a_redis_cluster => super::nodes_share_a_redis_cluster();
        nodes_are_one_server_through_failures => super::nodes_are_one_server();
        topic_store_outlives_a_server_alone => super::topic_store_outlives_a_server_alone();
        members_of_a_killed_node_leave_once => presence::members_of_a_killed_node_leave_once();
        users_are_added_and_removed_once => users::users_are_added_and_removed_once();
        members_of_one_channel_are_added_and_removed_once =>
            one_channel::members_of_one_channel_are_added_and_removed_once();
        apps_survive_outages_of_the_broker => outage::apps_survive_outages_of_the_broker();
    }
}
