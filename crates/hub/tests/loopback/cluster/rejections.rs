//! Commands that the broker rejects, at a broker in this process and at real ones, with the rights of the documentation.

use serde_json::{Value, json};

use sinews_testkit::{RealBroker, assert_fields, documented};

use super::{Client, TestPeer, ask_on, for_both, for_nodes};
use crate::support::fake_broker::{FakeBroker, WireProtocol};

/// The page with the rights that a cluster needs.
const PAGE: &str = include_str!("../../../../../docs/book/src/operate/cluster.md");

impl Client {
    /// Subscribes to a topic that the broker rejects.
    fn subscribe_rejected(&mut self, topic: &str) {
        self.request(&json!({ "op": "subscribe", "topic": topic, "id": 1 }));
        let error = self.receive();
        assert_fields(&error, json!({"op": "error", "code": 503, "topic": topic}));
        assert!(error["error"].as_str().unwrap().contains("rejects the subscription"), "{error}");
    }
}

impl TestPeer {
    fn assert_one_login(&self, rejected: u64) {
        assert_eq!(self.metric("sinews_cluster_connects_total"), 1);
        assert_eq!(self.metric("sinews_cluster_subscriptions_rejected"), rejected);
        assert!(self.metric("sinews_cluster_commands_rejected_total") >= rejected);
    }
}

/// Subscribes to rejected topics, and uses another one.
fn use_beside_rejected(nodes: &[TestPeer; 2], rejected: &[&str]) {
    for node in nodes {
        node.until("all are known", |node| node.metric("sinews_cluster_nodes") == 2);
    }
    let mut subscriber = nodes[0].subscriber("open.a");
    for topic in rejected {
        subscriber.subscribe_rejected(topic);
    }
    // Before the broker has the subscription, it drops messages.
    nodes[0].until("the topic is subscribed", |node| {
        nodes[1].publish("open.a", "probe");
        node.metric("sinews_cluster_received_total") > 0
    });
    for text in ["1", "2"] {
        nodes[1].publish("open.a", text);
        let received = std::iter::repeat_with(|| subscriber.data(1)).find(|data| *data != ["probe"]);
        assert_eq!(received.unwrap(), [text]);
    }
    nodes[0].assert_one_login(rejected.len() as u64);
    // Subscribers of the same node get each other's messages.
    if let Some(topic) = rejected.iter().find(|topic| !topic.contains(['*', '>'])) {
        nodes[0].publish(topic, "here");
        assert_eq!(subscriber.data(1), ["here"]);
    }
    nodes.iter().for_each(|node| assert_eq!(node.metric("sinews_cluster_connects_total"), 1));
}

#[test]
fn rejected_subscription_is_reported_to_its_clients_and_leaves_the_link() {
    for_both(|broker| {
        broker.reject(Some(("SUBSCRIBE", "sinews.t.secret")));
        let nodes = [(); 2].map(|()| TestPeer::start(&broker));
        use_beside_rejected(&nodes, &["secret.a", "secret.*"]);
        // Each new subscriber is notified, and the rights may change.
        let mut late = nodes[0].client();
        late.subscribe_rejected("secret.a");
        broker.reject(None);
        let mut last = nodes[0].subscriber("secret.a");
        broker.wait_for("sinews.t.secret.a", 1);
        nodes[1].publish("secret.a", "x");
        for subscriber in [&mut late, &mut last] {
            assert_eq!(subscriber.data(1), ["x"]);
        }
    });
}

#[test]
fn event_streams_are_notified_of_a_rejected_subscription_and_other_forms_continue() {
    for_both(|broker| {
        broker.reject(Some(("SUBSCRIBE", "sinews.t.secret")));
        let node = TestPeer::start(&broker);
        let open = |path: &str, accept: &str| ask_on(node.connect(), path, &format!("Accept: {accept}\r\n"));
        let mut poll = open("/topics/secret.a?wait=55", "application/json");
        poll.until("\"op\":\"ack\"").unwrap();
        // Its frames are messages of the topic alone.
        let mut raw = node.websocket("/topics/secret.a");
        let mut events = open("/topics/secret.a", "text/event-stream");
        let mut lines = open("/topics/secret.a", "application/x-ndjson");
        let is_expected = |message: &Value| {
            let is_error = message["op"] == "error";
            if is_error {
                assert_fields(message, json!({"code": 503, "topic": "secret.a"}));
                assert!(message["error"].as_str().unwrap().contains("rejects the subscription"), "{message}");
            }
            is_error
        };
        while !is_expected(&serde_json::from_str(&events.event().unwrap().data).unwrap()) {}
        while !is_expected(&serde_json::from_str(&lines.line().unwrap()).unwrap()) {}
        node.publish("secret.a", "x");
        assert_eq!(raw.next().unwrap().unwrap().as_bytes(), b"x");
        let rest = poll.rest();
        assert!(rest.contains("\"data\":\"x\"") && !rest.contains("rejects"), "{rest}");
    });
}

#[test]
fn error_of_each_command_leaves_the_link_and_the_other_topics() {
    for_nodes(|broker, nodes: [TestPeer; 2]| {
        let commands = ["SUBSCRIBE", "UNSUBSCRIBE", "PUBLISH"].map(|command| (command, "sinews.t.bad"));
        for rejected in commands {
            broker.reject(Some(rejected));
            let mut bad = nodes[0].client();
            for topic in ["bad.a", "bad.*"] {
                bad.send(&json!({ "op": "subscribe", "topic": topic, "id": 1 }));
                nodes[0].publish("bad.a", "x");
                bad.send(&json!({ "op": "unsubscribe", "topic": topic, "id": 2 }));
            }
            let mut subscriber = nodes[1].subscriber("open.a");
            broker.wait_for("sinews.t.open.a", 1);
            nodes[0].publish("open.a", "x");
            assert_eq!(subscriber.data(1), ["x"], "{rejected:?}");
            drop(subscriber);
            broker.wait_for("sinews.t.open.a", 0);
        }
        nodes.iter().for_each(|node| assert_eq!(node.metric("sinews_cluster_connects_total"), 1));
    });
}

/// What the error of a command changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// The node stays in the cluster.
    None,
    /// The login fails, and names the reason.
    Login,
}

/// Each command of the source of a client, with the beginning of the subjects for which it is rejected.
const NATS_COMMANDS: [(&str, &str, Effect); 5] = [
    ("CONNECT", "", Effect::Login),
    // The ping of the login confirms it.
    ("PING", "", Effect::Login),
    ("UNSUB", "", Effect::None),
    ("SUBSCRIBE", "sinews.t.", Effect::None),
    ("PUBLISH", "sinews.n.", Effect::None),
];
const REDIS_COMMANDS: [(&str, &str, Effect); 10] = [
    ("HELLO", "", Effect::Login),
    // Only at a server that Sentinel has named.
    ("ROLE", "", Effect::Login),
    ("CLIENT", "REPLY", Effect::None),
    // Its subscription proves that the broker omits replies.
    ("SUBSCRIBE", "sinews.n.", Effect::Login),
    ("UNSUBSCRIBE", "sinews.n.", Effect::Login),
    ("PUBLISH", "sinews.n.", Effect::None),
    ("PING", "", Effect::None),
    ("SUBSCRIBE", "sinews.t.", Effect::None),
    ("PSUBSCRIBE", "sinews.t.", Effect::None),
    ("PUNSUBSCRIBE", "sinews.t.", Effect::None),
];

/// Words of capitals in byte strings of the source, which are commands or their arguments.
fn words_of(source: &str) -> impl Iterator<Item = &str> {
    let (code, _) = source.split_once("mod tests {").unwrap_or((source, ""));
    let strings = code.split('"').skip(1).step_by(2);
    let words = strings.filter_map(|text| text.split([' ', '\\']).next());
    words.filter(|word| word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase()))
}

#[test]
fn each_command_of_the_source_has_a_case() {
    let protocol = include_str!("../../../src/cluster/protocol.rs");
    let redis = words_of(include_str!("../../../src/cluster/redis.rs")).chain(words_of(protocol));
    let nats = words_of(include_str!("../../../src/cluster/nats.rs"));
    // Arguments, and what the broker sends. Cases have the names of Redis.
    let known =
        ["AUTH", "SETNAME", "REPLY", "SKIP", "PONG", "MSG", "INFO", "ERR", "NATS", "SUB", "PUB", "NOPERM"];
    let missing = |commands: &[(&str, &str, Effect)], words: Vec<&str>| -> Vec<String> {
        let is_missing = |word: &&str| !known.contains(word) && commands.iter().all(|case| case.0 != *word);
        words.into_iter().filter(is_missing).map(str::to_owned).collect()
    };
    assert_eq!(missing(&REDIS_COMMANDS, redis.collect()), Vec::<String>::new());
    assert_eq!(missing(&NATS_COMMANDS, nats.collect()), Vec::<String>::new());
}

#[test]
fn error_of_each_command_of_a_link_has_its_effect() {
    let kinds = [(WireProtocol::Nats, &NATS_COMMANDS[..]), (WireProtocol::Redis, &REDIS_COMMANDS[..])];
    for (kind, (command, subject, effect)) in
        kinds.into_iter().flat_map(|(kind, cases)| cases.iter().map(move |case| (kind, *case)))
    {
        let broker = FakeBroker::start(kind);
        broker.reject(Some((command, subject)));
        let url = if command == "ROLE" { broker.sentinel_url() } else { broker.url() };
        let nodes = [(); 2].map(|()| TestPeer::start_at(&url, |builder| builder));
        if effect == Effect::Login {
            for node in &nodes {
                node.until("the reason is named", |node| {
                    let (_, answer) = node.request("GET /readyz", b"");
                    answer.to_lowercase().contains(&command.to_lowercase())
                });
            }
            broker.reject(None);
        }
        for node in &nodes {
            node.until("all are known", |node| node.metric("sinews_cluster_nodes") == 2);
        }
        let mut subscriber = nodes[0].subscriber("open.a");
        nodes[0].subscriber("open.*");
        if (command, subject) != ("SUBSCRIBE", "sinews.t.") {
            broker.wait_for("sinews.t.open.a", 1);
            nodes[1].publish("open.a", "x");
            assert_eq!(subscriber.data(1), ["x"], "{kind:?} {command}");
        }
        if effect == Effect::None {
            nodes.iter().for_each(|node| assert_eq!(node.metric("sinews_cluster_connects_total"), 1));
        }
    }
}

#[test]
fn node_without_the_rights_for_its_own_subjects_names_them() {
    for kind in [WireProtocol::Nats, WireProtocol::Redis] {
        let broker = FakeBroker::start(kind);
        broker.reject(Some(("SUBSCRIBE", "sinews.all")));
        let node = TestPeer::start_at(&broker.url(), |builder| builder);
        node.until("the reason is named", |node| {
            let (_, answer) = node.request("GET /readyz", b"");
            answer.contains("the subscription to sinews.all, which each node needs, is rejected")
        });
        broker.reject(None);
        node.until("ready", TestPeer::is_ready);
    }
}

/// Two nodes at a real broker.
fn nodes_at(broker: &RealBroker) -> [TestPeer; 2] {
    [(); 2].map(|()| TestPeer::start_at(&broker.url, |builder| builder))
}

#[test]
fn documented_rights_of_redis_suffice() {
    let acl = documented(PAGE, "ACL SETUSER").replace("ACL SETUSER", "user");
    // One line of a configuration file.
    let acl = acl.split_whitespace().collect::<Vec<_>>().join(" ");
    let config = |user: &str| {
        format!("port PORT\nbind 127.0.0.1\nsave \"\"\nappendonly no\nuser default off\n{user}\n")
    };
    let Some(broker) = RealBroker::start("redis-server", "redis", &config(&acl)) else { return };
    let nodes = nodes_at(&broker);
    use_beside_rejected(&nodes, &[]);
    let mut subscriber = nodes[0].subscriber("open.*");
    let before = nodes[0].metric("sinews_cluster_received_total");
    nodes[0].until("the pattern is subscribed", |node| {
        nodes[1].publish("open.b", "x");
        node.metric("sinews_cluster_received_total") > before
    });
    assert_eq!(subscriber.data(1), ["x"]);
    nodes.iter().for_each(|node| node.assert_one_login(0));
    drop(nodes);
    // With channels of the prefix alone, Redis rejects patterns.
    let limited = acl.replace("allchannels", "&sinews.*");
    assert_ne!(limited, acl);
    let Some(broker) = RealBroker::start("redis-server", "redis", &config(&limited)) else { return };
    use_beside_rejected(&nodes_at(&broker), &["room.*", "a.>"]);
}

#[test]
fn documented_rights_of_nats_suffice() {
    let rights = documented(PAGE, "permissions");
    let config = |rights: &str, more: &str| format!("listen: \"127.0.0.1:PORT\"\n{more}\n{rights}\n");
    let Some(broker) = RealBroker::start("nats-server", "nats", &config(&rights, "")) else { return };
    use_beside_rejected(&nodes_at(&broker), &[]);
    let all = r#"subscribe: ["sinews.>", "_INBOX.>"]"#;
    let some = r#"subscribe: { allow: ["sinews.>", "_INBOX.>"], deny: "sinews.t.secret.>" }"#;
    let limited = rights.replace(all, some);
    assert_ne!(limited, rights);
    let Some(broker) = RealBroker::start("nats-server", "nats", &config(&limited, "")) else { return };
    use_beside_rejected(&nodes_at(&broker), &["secret.a", "secret.b"]);
    // Three subscriptions: those of a node, and one topic.
    let Some(broker) = RealBroker::start("nats-server", "nats", &config(&rights, "max_subscriptions: 3"))
    else {
        return;
    };
    use_beside_rejected(&nodes_at(&broker), &["other.a"]);
}
