//! Clusters of servers: the settings, and `sinews nodes`. The hub's own tests have the rest.

#[path = "../../../hub/tests/loopback/support/fake_broker.rs"]
#[allow(dead_code, reason = "these tests need a part of it")]
pub(crate) mod broker;
#[cfg(any(feature = "nats", feature = "redis"))]
mod one_channel;
#[cfg(any(feature = "nats", feature = "redis"))]
mod outage;
#[cfg(any(feature = "nats", feature = "redis"))]
mod presence;
#[cfg(any(feature = "nats", feature = "redis"))]
pub(crate) mod real;
#[cfg(any(feature = "nats", feature = "redis"))]
mod tap;
#[cfg(any(feature = "nats", feature = "redis"))]
mod users;

use broker::{FakeBroker, WireProtocol};

use crate::config::Directory;
use crate::support::{Running, fails, program, until};

/// The arguments of a node at a [`FakeBroker`], which connects nodes and is no topic store.
pub(crate) fn at_bus(url: &str) -> [&str; 4] {
    ["--cluster", url, "--cluster-store", "none"]
}

/// The same in a file.
pub(crate) fn at_bus_in_file(url: &str, name: &str) -> String {
    format!("[cluster]\nurl = {url:?}\nstore = \"none\"\nnode_name = {name:?}\n")
}

fn nodes(arguments: &[&str]) -> String {
    let output = program().arg("nodes").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn nodes_lists_living_nodes_by_name() {
    // Each list takes 2.5 s.
    std::thread::scope(|scope| {
        for engine in [WireProtocol::Nats, WireProtocol::Redis] {
            scope.spawn(move || check_nodes(engine));
        }
    });
}

fn check_nodes(engine: WireProtocol) {
    let broker = FakeBroker::start(engine);
    let url = broker.url();
    assert!(nodes(&[&url]).ends_with("no node\n"));
    let cluster = [&at_bus(&url)[..], &["--log", "error", "--cluster-node-name"]].concat();
    let _nodes = ["b", "a"].map(|name| Running::serve(&[&cluster[..], &[name]].concat()));
    broker.wait_for("sinews.all", 2);
    // On a machine that is busy for longer, a heartbeat is late.
    until("the table has both nodes", || {
        let table = nodes(&[&url]);
        table.lines().skip(1).filter_map(|line| line.split(' ').next()).eq(["a", "b"])
    });
    until("the lines have both nodes", || nodes(&["--json", &url]).lines().count() == 2);
    assert!(nodes(&[&format!("{url}?prefix=other")]).ends_with("no node\n"));
}

#[test]
#[cfg(not(feature = "nats"))]
fn node_without_the_feature_of_its_topic_store_warns() {
    let broker = FakeBroker::start(WireProtocol::Nats);
    let url = broker.url();
    let log = |arguments: &[&str]| {
        let node = Running::serve(arguments);
        broker.wait_for("sinews.all", 1);
        node.signal("TERM");
        node.wait().1
    };
    let warned = log(&["--cluster", &url]);
    let command = "`nats`: build it with `cargo install --path crates/cli --features nats`";
    assert!(warned.contains("rejects keys") && warned.contains(command), "{warned}");
    assert!(!log(&at_bus(&url)).contains("rejects keys"));
}

#[test]
fn invalid_clusters_are_reported() {
    let failure = fails(program().args(["nodes", "kafka://127.0.0.1"]));
    assert!(failure.contains("nats, nats+tls, redis, rediss, redis+unix"), "{failure}");
    let failure = fails(program().args(["nodes", "nats://127.0.0.1:1"]));
    assert!(failure.contains("127.0.0.1:1"), "{failure}");
    let failure = fails(program().args(["serve", "--cluster", "nats://a:secret@"]));
    assert!(failure.contains("--cluster") && !failure.contains("secret"), "{failure}");
    let directory = Directory::new();
    let streams = ["--streams", &directory.path("streams"), "--streams-durable-topics", "orders"];
    let failure = fails(program().args(["serve", "--cluster", "nats://127.0.0.1:1"]).args(streams));
    assert!(failure.contains("--cluster") && failure.contains("at a broker"), "{failure}");
    let streams = ["--streams", &directory.path("streams"), "--streams-durable-keys", "prices"];
    let failure = fails(program().args(["serve", "--cluster", "nats://127.0.0.1:1"]).args(streams));
    assert!(failure.contains("--cluster") && failure.contains("streams.durable_keys"), "{failure}");
}
