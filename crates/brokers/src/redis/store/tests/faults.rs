//! Failures of the server and the connections.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sinews_store::{ChainLink, TopicChain};

use super::server::TestProxy;
use super::*;

#[test]
fn append_whose_answer_is_lost_is_unknown_and_may_be_repeated_by_its_name() {
    let server = start_server!();
    let proxy = TestProxy::start(server.port);
    let node = StoreNode::up(&proxy.url());
    proxy.set_silent(true);
    let named = LogAppend { once: Some("id".into()), ..message("t", "a") };
    let answer = wait(node.store.append(named.clone()));
    assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
    until("the silence is found", || !node.store.health().is_up());
    let answer = wait(node.store.append(message("t", "b")));
    assert!(matches!(answer, Err(StoreError::Away(_))), "{answer:?}");
    proxy.set_silent(false);
    node.wait_until_up();
    let repeated = wait(node.store.append(named)).expect("it answers");
    assert!(repeated.repeated);
    let payloads: Vec<_> = node.read_after("t", 0).entries.into_iter().map(|entry| entry.payload).collect();
    assert_eq!(payloads, ["a"]);
}

#[test]
fn frozen_server_is_away_until_it_continues() {
    let server = start_server!();
    let node = StoreNode::up(&server.url());
    node.follow(&TopicPart::log("t"));
    server.signal("STOP");
    let started = Instant::now();
    let pending: Vec<_> = (0..2000).map(|_| node.store.append(message("t", "a"))).collect();
    let answers: Vec<_> = pending.into_iter().map(wait).collect();
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let unknown = answers.iter().filter(|answer| matches!(answer, Err(StoreError::Unknown(_)))).count();
    let busy = answers.iter().filter(|answer| **answer == Err(StoreError::Busy)).count();
    let away = answers.iter().filter(|answer| matches!(answer, Err(StoreError::Away(_)))).count();
    assert_eq!((unknown + away, busy), (1024, 2000 - 1024), "{answers:?}");
    assert!(unknown >= 64, "the first batch was sent");
    until("it is away", || !node.store.health().is_up());
    server.signal("CONT");
    node.wait_until_up();
    // The frozen server executes what it has received.
    let page = node.read_after("t", 0);
    assert!(page.entries.len() <= unknown);
    assert!(node.append("t", "b").is_ok());
    until("it is announced", || node.announced("t").last().is_some_and(|entry| entry.payload == "b"));
}

#[test]
fn server_that_restarts_empty_begins_new_epochs() {
    let mut server = start_server!();
    let node = StoreNode::up(&server.url());
    let part = TopicPart::log("t");
    node.follow(&part);
    let first = node.append("t", "a").expect("it is appended");
    let chain = TopicChain { last: first.position };
    server.restart();
    until("it is followed again", || node.count(|event| *event == StoreEvent::Following(part.clone())) >= 2);
    node.wait_until_up();
    assert_eq!(chain.top(node.top(&part)), ChainLink::Lost);
    let next = node.append("t", "b").expect("it is appended");
    assert_eq!(chain.link(next.position, next.prev), ChainLink::Lost);
    assert_eq!((next.position.sequence, next.prev), (1, 0));
    assert!(!node.read_after("t", 0).follows(first.position));
}

#[test]
fn lost_scripts_are_stored_again() {
    let server = start_server!();
    let node = StoreNode::up(&server.url());
    let mut pending = Vec::new();
    for number in 0..500 {
        pending.push(node.store.append(message("t", &number.to_string())));
        if number % 50 == 0 {
            let _: String = server.run("SCRIPT FLUSH");
        }
    }
    let sequences: Vec<u64> =
        pending.into_iter().map(|pending| wait(pending).expect("it is appended").position.sequence).collect();
    assert_eq!(sequences, (1..=500).collect::<Vec<_>>());
    let _: String = server.run("SCRIPT FLUSH");
    assert_eq!(node.append("t", "last").expect("it is appended").prev, 500);
}

#[test]
fn killed_subscriptions_are_renewed() {
    let server = start_server!();
    let node = StoreNode::up(&server.url());
    let parts: Vec<_> = (0..1500).map(|number| TopicPart::log(&format!("t{number}"))).collect();
    parts.iter().for_each(|part| node.store.follow(part));
    let confirmed = || node.count(|event| matches!(event, StoreEvent::Following(_)));
    until("all are followed", || confirmed() == 1500);
    let killed: i64 = server.run("CLIENT KILL TYPE pubsub");
    assert_eq!(killed, 1);
    // Operations continue meanwhile.
    assert!(node.append("t7", "a").is_ok());
    until("all are followed again", || confirmed() == 3000);
    node.wait_until_up();
    assert!(node.append("t7", "b").is_ok());
    until("it is announced", || node.announced("t7").iter().any(|entry| entry.payload == "b"));
    node.store.unfollow(&parts[7]);
    until("it is not followed", || server.run::<Vec<String>>("PUBSUB CHANNELS *").len() == 1499);
}

#[test]
fn patterns_are_filtered_precisely() {
    let server = start_server!();
    let node = StoreNode::up(&server.url());
    for pattern in ["a.*", "a.*.c", "b.>"] {
        node.store.follow_pattern(pattern);
    }
    let confirmed = || node.count(|event| matches!(event, StoreEvent::Following(_)));
    until("all are followed", || confirmed() == 3);
    for topic in ["a.b", "a.b.c", "a.b.d", "a", "b.c.d", "b", "c", "b.end"] {
        assert!(node.append(topic, "x").is_ok());
    }
    let topics = || {
        let name = |event| if let StoreEvent::Appended(topic, ..) = event { Some(topic) } else { None };
        node.events().into_iter().filter_map(name).collect::<Vec<_>>()
    };
    until("the last is announced", || topics().last().is_some_and(|topic| topic == "b.end"));
    assert_eq!(topics(), ["a.b", "a.b.c", "b.c.d", "b.end"]);
    node.store.unfollow_pattern("b.>");
    until("it is not followed", || server.run::<i64>("PUBSUB NUMPAT") == 2);
}

/// A primary, and a replica behind a proxy.
pub(super) struct ReplicatedPair {
    pub(super) primary: server::TestRedis,
    pub(super) replica: server::TestRedis,
    pub(super) link: TestProxy,
    /// The address of the service.
    pub(super) entrance: TestProxy,
}

impl ReplicatedPair {
    pub(super) fn start() -> Option<Self> {
        let primary = server::TestRedis::start(&["--repl-diskless-sync-delay", "0"])?;
        let replica = server::TestRedis::start(&[])?;
        let link = TestProxy::start(primary.port);
        let _: String = replica.run(&format!("REPLICAOF 127.0.0.1 {}", link.port()));
        until("it replicates", || primary.info("slave0").contains("state=online"));
        let entrance = TestProxy::start(primary.port);
        Some(Self { primary, replica, link, entrance })
    }

    /// Waits until the replica has the value of a key.
    pub(super) fn wait_until_replicated(&self, node: &StoreNode, part: &TopicPart) {
        let command = format!("GET {}", node.store.shared.names.meta(part));
        let value = |server: &server::TestRedis| server.try_run::<Option<String>>(&command).ok().flatten();
        until("it is replicated", || {
            let (primary, replica) = (value(&self.primary), value(&self.replica));
            primary.is_some() && primary == replica
        });
    }

    /// Makes the replica the primary, for new connections.
    pub(super) fn fail_over(&self) {
        let _: String = self.replica.run("REPLICAOF NO ONE");
        self.entrance.switch(self.replica.port);
    }
}

/// Loses the messages 4 and 5 of the topic `t`. Returns the position of the last message before, and of the last lost one.
fn lose_messages(pair: &ReplicatedPair, node: &StoreNode) -> (Position, Position) {
    let kept = ["a", "b", "c"].map(|payload| node.append("t", payload).expect("it is appended"));
    pair.wait_until_replicated(node, &TopicPart::log("t"));
    pair.link.set_silent(true);
    let lost = ["d", "e"].map(|payload| node.append("t", payload).expect("it is appended"));
    pair.fail_over();
    until("it has found the failover", || node.append("other", "x").is_ok());
    node.wait_until_up();
    (kept[2].position, lost[1].position)
}

#[test]
fn messages_lost_in_a_failover_are_found() {
    let Some(pair) = ReplicatedPair::start() else { return };
    let node = StoreNode::up(&pair.entrance.url());
    let untouched = node.append("u", "a").expect("it is appended").position;
    let (kept, lost) = lose_messages(&pair, &node);
    let part = TopicPart::log("t");
    let chain = TopicChain { last: lost };
    // Before a new message, and behind it.
    assert_eq!(chain.top(node.top(&part)), ChainLink::Lost);
    assert!(!node.read_after("t", lost.sequence).follows(lost));
    let if_top = LogAppend { if_top: Some(lost), ..message("t", "f") };
    assert_eq!(wait(node.store.append(if_top)), Err(StoreError::OtherTop));
    let next = node.append("t", "f").expect("it is appended");
    assert_eq!((next.position.epoch, next.prev), (kept.epoch, kept.sequence));
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let is_recent = |sequence: u64| Duration::from_micros(sequence).abs_diff(time) < Duration::from_secs(600);
    assert!(is_recent(next.position.sequence), "{next:?}");
    assert_eq!(chain.link(next.position, next.prev), ChainLink::Lost);
    assert!(!node.read_after("t", lost.sequence).follows(lost));
    // A node without the lost messages continues, and one in another topic.
    assert_eq!(TopicChain { last: kept }.link(next.position, next.prev), ChainLink::Next);
    assert!(node.read_after("t", kept.sequence).follows(kept));
    assert!(node.read_after("u", untouched.sequence).follows(untouched));
    // The former primary replicates from now on: a failover back without a loss is another jump.
    pair.link.set_silent(false);
    let _: String = pair.primary.run(&format!("REPLICAOF 127.0.0.1 {}", pair.replica.port));
    until("it replicates", || pair.replica.info("slave0").contains("state=online"));
    assert!(node.append("t", "g").is_ok());
    pair.wait_until_replicated(&node, &part);
    let _: String = pair.primary.run("REPLICAOF NO ONE");
    pair.entrance.switch(pair.primary.port);
    let mut back = Err(StoreError::Busy);
    until("it has found the failover", || {
        back = node.append("t", "h");
        back.is_ok()
    });
    let back = back.expect("it is appended");
    assert_eq!(back.prev, next.position.sequence + 1);
    assert!(
        back.position.sequence > back.prev + (1 << 20) - 1 && is_recent(back.position.sequence),
        "{back:?}"
    );
    let payloads: Vec<_> = node.read_after("t", 0).entries.into_iter().map(|entry| entry.payload).collect();
    assert_eq!(payloads, ["a", "b", "c", "f", "g", "h"]);
}

/// Shows that the rule finds the loss, and that nothing else does.
#[test]
fn messages_lost_in_a_failover_are_not_found_without_the_jump() {
    let Some(pair) = ReplicatedPair::start() else { return };
    let mut settings = settings(&pair.entrance.url());
    settings.rules.jump = 1;
    let node = StoreNode::with(settings);
    node.wait_until_up();
    let (kept, lost) = lose_messages(&pair, &node);
    let next = ["f", "g"].map(|payload| node.append("t", payload).expect("it is appended"));
    assert_eq!(next[0].prev, kept.sequence);
    assert_eq!(TopicChain { last: lost }.link(next[1].position, next[1].prev), ChainLink::Duplicate);
    assert!(node.read_after("t", lost.sequence).follows(lost));
}

#[test]
fn another_server_without_a_replication_id_begins_new_epochs() {
    let Some(pair) = ReplicatedPair::start() else { return };
    let mut settings = settings(&pair.entrance.url());
    settings.rules.id_field = "none";
    let node = StoreNode::with(settings);
    node.wait_until_up();
    assert_eq!(node.store.capabilities().failover_detection, sinews_store::FailoverDetection::None);
    let (kept, lost) = lose_messages(&pair, &node);
    let next = node.append("t", "f").expect("it is appended");
    assert_eq!(TopicChain { last: lost }.link(next.position, next.prev), ChainLink::Lost);
    assert_eq!(TopicChain { last: kept }.link(next.position, next.prev), ChainLink::Lost);
    assert_eq!((next.position.sequence, node.read_after("t", 0).entries.len()), (1, 1));
}

#[test]
fn replica_is_no_primary() {
    let Some(pair) = ReplicatedPair::start() else { return };
    let node = StoreNode::up(&pair.entrance.url());
    assert!(node.append("t", "a").is_ok());
    pair.wait_until_replicated(&node, &TopicPart::log("t"));
    // Connections remain.
    let _: String = pair.primary.run(&format!("REPLICAOF 127.0.0.1 {}", pair.replica.port));
    let answer = node.append("t", "b");
    assert!(matches!(&answer, Err(StoreError::Away(reason)) if reason.contains("READONLY")), "{answer:?}");
    until("the role is found", || match node.store.health() {
        StoreHealth::Away { reason, .. } => reason.contains("no primary"),
        _ => false,
    });
    pair.fail_over();
    node.wait_until_up();
    assert_eq!(node.append("t", "b").expect("it is appended").prev, 1);
}

#[test]
fn acknowledged_write_is_at_a_replica_if_the_setting_says_so() {
    let Some(pair) = ReplicatedPair::start() else { return };
    let node = StoreNode::up(&(pair.entrance.url() + "?replica.wait.ms=200"));
    until("a message is acknowledged", || node.append("t", "a").is_ok());
    pair.link.set_silent(true);
    let started = Instant::now();
    for _ in 0..200 {
        let answer = node.append("t", "b");
        assert!(
            matches!(&answer, Err(StoreError::Unknown(reason)) if reason.contains("replica.wait.ms")),
            "{answer:?}"
        );
        assert!(!node.read_after("t", 0).entries.is_empty(), "reads do not wait");
    }
    // 40 s if each of them waited.
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

#[test]
fn full_memory_rejects_appends_without_an_effect() {
    let server = start_server!();
    let node = StoreNode::up(&server.url());
    assert!(node.append("t", "a").is_ok());
    let _: String = server.run("CONFIG SET maxmemory 1");
    let answer = node.append("t", "b");
    assert!(matches!(&answer, Err(StoreError::Rejected(reason)) if reason.contains("OOM")), "{answer:?}");
    assert_eq!(node.read_after("t", 0).entries.len(), 1, "reads continue");
    let _: String = server.run("CONFIG SET maxmemory 0");
    assert_eq!(node.append("t", "c").expect("it is appended").prev, 1);
    assert!(node.store.health().is_up());
}

#[test]
fn failure_after_a_write_is_unknown_and_one_before_is_a_rejection() {
    let server = start_server!();
    let node = StoreNode::up(&server.url());
    let names = &node.store.shared.names;
    let write = |topic: &str| {
        let key = sinews_store::KeyCommand {
            key: "a".into(),
            value: Some("x".into()),
            ttl: None,
            condition: None,
            once: None,
        };
        let limits = sinews_store::KeyLimits { keys: 9, bytes: 9 };
        let writes = vec![key];
        let writes = sinews_store::KeyCommands { topic: topic.into(), writes, limits };
        wait(node.store.write_keys(writes))
    };
    assert!(write("t").is_ok());
    // Somebody has replaced an index, or the state.
    let _: String = server.run(&format!("SET {} x", names.key("version", "t")));
    let answer = write("t");
    assert!(
        matches!(&answer, Err(StoreError::Unknown(reason)) if reason.contains("WRONGTYPE")),
        "{answer:?}"
    );
    let _: i64 = server.run(&format!("LPUSH {} x", names.key("keymeta", "u")));
    let answer = write("u");
    assert!(
        matches!(&answer, Err(StoreError::Rejected(reason)) if reason.contains("WRONGTYPE")),
        "{answer:?}"
    );
    assert!(write("v").is_ok(), "other topics are not concerned");
}
