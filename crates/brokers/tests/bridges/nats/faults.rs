//! Faults: servers that are killed and frozen, streams that are deleted, and connections without rights.

use std::collections::BTreeMap;
use std::env;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sinews_store::{
    KeyCommand, KeyCommands, KeyCondition, KeyLimits, KeyOutcome, LogAppend, LogEntry, LogStart, ReadKeys,
    Retention, StoreError, StoreHealth, TopicPart,
};
use sinews_testkit::TestCertificate;
use tempfile::TempDir;

use super::admin::request;
use super::{RETENTION, StoreNode, message, prefix, wait};
use crate::broker::real::{control, script};
use crate::broker::{LIMIT, until};

/// Servers of the broker.
pub(super) fn nodes() -> usize {
    env::var("BROKER_NODES").ok().and_then(|count| count.parse().ok()).unwrap_or(1)
}

/// Runs a command for one server.
fn control_node(verb: &str, node: usize) {
    let status = Command::new(script()).args([verb, &node.to_string()]).stdout(Stdio::null()).status();
    assert!(status.expect("bash runs").success(), "{verb} {node}");
}

/// A server with its own configuration.
pub(super) struct OwnServer {
    port: u16,
    directory: TempDir,
}

impl OwnServer {
    pub(super) fn start(config: &str) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        drop(listener);
        let directory = tempfile::tempdir().expect("a directory");
        let config = config.replace("DIRECTORY", directory.path().to_str().expect("UTF-8"));
        std::fs::write(directory.path().join("config"), config).expect("the directory is ours");
        let server = Self { port, directory };
        server.control("up");
        server
    }

    fn control(&self, verb: &str) {
        let mut command = Command::new(script());
        command.arg(verb).env("BROKER_NODES", "1").env("BROKER_PORT", self.port.to_string());
        command.env("BROKER_RUN", self.directory.path().join("run"));
        command.env("BROKER_CONFIG", self.directory.path().join("config")).stdout(Stdio::null());
        assert!(command.status().expect("bash runs").success(), "{verb}");
    }

    pub(super) fn write(&self, name: &str, text: &str) -> String {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).expect("the directory is ours");
        path.to_str().expect("UTF-8").to_owned()
    }

    pub(super) fn host(&self) -> String {
        format!("localhost:{}", self.port)
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        self.control("down");
    }
}

/// Waits until all servers have all of a stream, as an operator does before the next one is restarted.
fn until_replicated(stream: &str) {
    until("all servers are current", || {
        let info = request(&format!("STREAM.INFO.{stream}"), "");
        info.contains("\"leader\"")
            && !info.contains("\"current\":false")
            && !info.contains("\"offline\":true")
    });
}

/// Reads a topic from its beginning, a page at a time.
fn read_all(node: &StoreNode, topic: &str) -> Vec<LogEntry> {
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let page = node.read(topic, LogStart::After(after), 200);
        all.extend(page.entries);
        after = all.last().map_or(after, |last: &LogEntry| last.sequence);
        if !page.more {
            return all;
        }
    }
}

/// No acknowledged message is lost, and no message is stored twice, while each server is killed in turn.
#[test]
#[ignore = "needs a broker: cargo xtask brokers --only nats"]
fn acknowledged_messages_survive_killed_servers() {
    let (settings, retention) = (prefix("killed"), Retention { messages: 100_000, ..RETENTION });
    let stream = format!("{}_h_100000_0_3600000", settings.trim_start_matches("prefix="));
    let append = move |payload: &str| LogAppend { retention, ..message("t", payload) };
    let (one, two) = (StoreNode::new(&settings), StoreNode::new(&settings));
    two.follow(&TopicPart::log("t"));
    let is_done = Arc::new(AtomicBool::new(false));
    let outcomes = thread::scope(|scope| {
        let is_done = &is_done;
        let writer = scope.spawn(move || {
            let (mut acked, mut rejected, mut number) = (Vec::new(), Vec::new(), 0_u64);
            let begun = Instant::now();
            while !is_done.load(Ordering::SeqCst) && begun.elapsed() < 4 * LIMIT {
                number += 1;
                match one.append(append(&number.to_string())) {
                    Ok(appended) => acked.push((appended.position, number)),
                    Err(StoreError::Away(_) | StoreError::Busy) => {
                        rejected.push(number);
                        // A rejection is immediate, and the servers need the processor.
                        thread::park_timeout(Duration::from_millis(5));
                    }
                    Err(error) => assert!(error.is_unknown(), "{error}"),
                }
            }
            (acked, rejected)
        });
        for node in 1..=nodes() {
            let begun = Instant::now();
            if nodes() == 1 {
                control("kill");
                control("up");
            } else {
                control_node("kill", node);
                // The others have a quorum meanwhile.
                two.append_again(&append("marker"));
                println!("server {node} killed: appends continue after {:?}", begun.elapsed());
                control_node("up", node);
                until_replicated(&stream);
            }
            two.append_again(&append("marker"));
            println!("all servers current after {:?}", begun.elapsed());
        }
        is_done.store(true, Ordering::SeqCst);
        writer.join().expect("no panic")
    });
    let (acked, rejected) = outcomes;
    println!("{} acknowledged, {} rejected", acked.len(), rejected.len());
    assert!(acked.is_sorted_by(|one, two| one.0.sequence < two.0.sequence && one.0.epoch == two.0.epoch));
    let stored = read_all(&two, "t");
    let mut positions = BTreeMap::new();
    for entry in &stored {
        let text = String::from_utf8_lossy(&entry.payload).into_owned();
        assert!(text == "marker" || positions.insert(text, entry.sequence).is_none(), "twice: {entry:?}");
    }
    for (position, number) in &acked {
        assert_eq!(positions.get(&number.to_string()), Some(&position.sequence), "{number} is lost");
    }
    assert!(
        !rejected.iter().any(|number| positions.contains_key(&number.to_string())),
        "rejected, and stored"
    );
    assert!(stored.is_sorted_by(|one, two| one.sequence == two.prev));
    // The follower has missed messages only while it was told so.
    two.sink.until("it follows again", |all| {
        let last = all.entries.get("t")?.last()?;
        (last.1.sequence == stored.last()?.sequence).then_some(())
    });
}

fn set_counter(value: String, condition: Option<KeyCondition>) -> KeyCommands {
    let value = Some(value.into());
    KeyCommands {
        topic: "t".into(),
        writes: vec![KeyCommand { key: "n".into(), value, ttl: None, condition, once: None }],
        limits: KeyLimits { keys: 10, bytes: 1_000 },
    }
}

/// A counter has each acknowledged increment, while each server is killed in turn.
#[test]
#[ignore = "needs a broker: cargo xtask brokers --only nats"]
fn acknowledged_keys_survive_killed_servers() {
    let settings = prefix("keys-killed");
    let (one, two) = (StoreNode::new(&settings), StoreNode::new(&settings));
    two.follow(&TopicPart::keys("t"));
    let is_done = Arc::new(AtomicBool::new(false));
    let first = wait(one.store.write_keys(set_counter("0".to_owned(), Some(KeyCondition::IfNew))))
        .expect("NATS answers");
    let (acked, unknown) = thread::scope(|scope| {
        let (is_done, one) = (&is_done, &one);
        let writer = scope.spawn(move || {
            let (mut version, mut value, mut unknown, begun) =
                (first.position.sequence, 0_u64, 0, Instant::now());
            while !is_done.load(Ordering::SeqCst) && begun.elapsed() < 4 * LIMIT {
                let condition = Some(KeyCondition::Version(version));
                match wait(one.store.write_keys(set_counter((value + 1).to_string(), condition))) {
                    Ok(written) => match written.outcomes[0] {
                        KeyOutcome::Changed(changed) => (version, value) = (changed, value + 1),
                        // The increment without an answer was stored.
                        KeyOutcome::OtherVersion(other) if unknown > 0 => {
                            (version, value) = (other, value + 1)
                        }
                        outcome => panic!("{outcome:?} of {value} at {version}"),
                    },
                    Err(error) => {
                        unknown += u32::from(error.is_unknown());
                        thread::park_timeout(Duration::from_millis(5));
                    }
                }
            }
            (value, unknown)
        });
        for node in 1..=nodes() {
            if nodes() == 1 {
                control("kill");
                control("up");
            } else {
                control_node("kill", node);
                control_node("up", node);
                (0..4).for_each(|index| {
                    until_replicated(&format!("{}_k_{index}", settings.trim_start_matches("prefix=")));
                });
            }
            one.until_up();
            two.until_up();
        }
        is_done.store(true, Ordering::SeqCst);
        writer.join().expect("no panic")
    });
    println!("{acked} increments, {unknown} without an answer");
    assert!(acked > 0);
    let read = || ReadKeys { topic: "t".into(), cursor: None, limit: 9 };
    until("both nodes have the last value", || {
        [&one, &two].iter().all(|node| {
            let page = wait(node.store.read_keys(read()));
            let value = page.ok().and_then(|page| page.keys.first().and_then(|key| key.value.clone()));
            // An increment without an answer may be the last one.
            value.is_some_and(|value| {
                [acked, acked + u64::from(unknown > 0)].iter().any(|last| value == last.to_string())
            })
        })
    });
}

#[test]
#[ignore = "needs a broker: cargo xtask brokers --only nats"]
fn store_is_away_until_the_servers_return() {
    let node = StoreNode::new(&prefix("away"));
    let part = TopicPart::log("t");
    node.follow(&part);
    let first = node.append(message("t", "before")).expect("NATS takes it").position;
    for (freeze, thaw) in [("kill", "up"), ("stop", "cont")] {
        control(freeze);
        let begun = Instant::now();
        let answer = node.append(message("t", "meanwhile"));
        assert!(
            matches!(&answer, Err(error) if error.is_unknown() || matches!(error, StoreError::Away(_))),
            "{answer:?}"
        );
        assert!(begun.elapsed() < Duration::from_secs(5));
        let StoreHealth::Away { reason, .. } = node.until_away() else { unreachable!("it is away") };
        assert!(!reason.is_empty());
        assert!(matches!(node.append(message("t", "away")), Err(StoreError::Away(_))));
        assert!(begun.elapsed() < Duration::from_secs(20));
        node.sink.change(|all| all.following.clear());
        control(thaw);
        node.sink.until("it follows again", |all| all.following.contains(&part).then_some(()));
        node.until_up();
        node.append_again(&message("t", "after"));
    }
    let payloads: Vec<_> =
        node.read("t", LogStart::Last(9), 9).entries.into_iter().map(|entry| entry.payload).collect();
    assert!(payloads.iter().filter(|payload| **payload == "after").count() == 2);
    assert!(!payloads.iter().any(|payload| payload == "away"));
    let tops = wait(node.store.tops(vec![part])).expect("NATS answers");
    assert!(tops[0].as_ref().is_ok_and(|top| top.is_some_and(|top| top.epoch == first.epoch && top.sequence > first.sequence)));
}

#[test]
#[ignore = "needs a broker: cargo xtask brokers --only nats"]
fn recreated_stream_has_another_epoch() {
    let settings = prefix("recreated");
    let (one, two) = (StoreNode::new(&settings), StoreNode::new(&settings));
    two.follow(&TopicPart::log("t"));
    let positions: Vec<_> =
        (0..3).map(|_| one.append(message("t", "old")).expect("NATS takes it").position).collect();
    let last = positions[2];
    let stream = format!("{}_h_5_0_3600000", settings.trim_start_matches("prefix="));
    let answer = request(&format!("STREAM.DELETE.{stream}"), "");
    assert!(answer.contains("\"success\":true"), "{answer}");
    // The old stream's subject reaches no stream.
    let conditional = LogAppend { if_top: Some(last), ..message("t", "conditional") };
    let answer = one.append(conditional.clone());
    assert!(matches!(answer, Err(StoreError::Away(_) | StoreError::OtherTop)), "{answer:?}");
    let new: Vec<_> = (0..4).map(|_| two.append_again(&message("t", "new")).position).collect();
    assert_ne!(new[0].epoch, last.epoch);
    // No sequence is used again.
    assert!(new[0].sequence > last.sequence, "{new:?} {last:?}");
    assert!(new.windows(2).all(|pair| pair[1].sequence == pair[0].sequence + 1), "{new:?}");
    assert_eq!(one.append(conditional), Err(StoreError::OtherTop));
    // The other node has not written since.
    let page = one.read("t", LogStart::After(last.sequence), 10);
    assert_eq!(page.top, Some(new[3]));
    assert!(!page.follows(last) && page.follows(new[3]), "{page:?}");
    let entries = two
        .sink
        .until("all are announced", |all| all.entries.get("t").filter(|entries| entries.len() == 7).cloned());
    let epochs: Vec<_> = entries.iter().map(|(epoch, _)| *epoch).collect();
    assert_eq!(epochs, [vec![last.epoch; 3], vec![new[0].epoch; 4]].concat());
}

#[test]
#[ignore = "needs a broker: cargo xtask brokers --only nats"]
fn stream_with_other_limits_is_reported() {
    let settings = prefix("foreign");
    let stream = format!("{}_h_5_0_3600000", settings.trim_start_matches("prefix="));
    let config =
        format!("{{\"name\":\"{stream}\",\"subjects\":[\"{stream}.>\"],\"max_msgs_per_subject\":3}}");
    let answer = request(&format!("STREAM.CREATE.{stream}"), &config);
    assert!(answer.contains("\"did_create\":true"), "{answer}");
    let node = StoreNode::new(&settings);
    let Err(StoreError::Rejected(reason)) = node.append(message("t", "x")) else {
        panic!("the limits differ")
    };
    assert!(reason.contains(&stream) && reason.contains("topic stores need"), "{reason}");
}

const USERS: &str = r#"
authorization { users = [
  { user: full, password: secret }
  { user: limited, password: secret, permissions: {
      publish: { deny: ["limits.h.*.secret.>", "limits.h.*.secret"] }
      subscribe: { deny: ["limits.r.*.secret.>", "limits.r.*.secret"] } } }
] }
"#;

#[test]
#[ignore = "needs a broker: cargo xtask brokers --only nats"]
fn denied_topic_does_not_concern_others() {
    let server = OwnServer::start(USERS);
    let at = |user: &str| StoreNode::at(&format!("nats://{user}:secret@{}?prefix=limits", server.host()));
    let (full, limited) = (at("full"), at("limited"));
    let (secret, open) = (TopicPart::log("secret"), TopicPart::log("open"));
    limited.store.follow(&secret);
    limited.follow(&open);
    let reason = limited.sink.until("one is denied", |all| all.denied.first().cloned());
    assert!(reason.0 == secret && reason.1.contains("ermissions Violation"), "{reason:?}");
    let (in_flight, secret_topic) = (limited.store.append(message("open", "one")), message("secret", "x"));
    let Err(StoreError::Rejected(reason)) = limited.append(secret_topic.clone()) else {
        panic!("it is denied")
    };
    assert!(reason.contains("secret"), "{reason}");
    wait(in_flight).expect("it is granted");
    full.append(secret_topic).expect("it is granted");
    full.append(message("open", "two")).expect("it is granted");
    limited.sink.until("both", |all| all.entries.get("open").filter(|all| all.len() == 2).map(|_| ()));
    limited.sink.until("nothing else", |all| {
        (all.entries.len() == 1 && !all.following.contains(&secret) && all.health == [StoreHealth::Up])
            .then_some(())
    });
}

/// Of the documentation of NATS.
const SEED: &str = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";
const PUBLIC_KEY: &str = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";

#[test]
#[ignore = "needs a broker: cargo xtask brokers --only nats"]
fn node_logs_in_by_a_key() {
    let server = OwnServer::start(&format!("authorization {{ users = [ {{ nkey: {PUBLIC_KEY} }} ] }}"));
    let seed = server.write("seed", &format!("{SEED}\n"));
    let node = StoreNode::at(&format!("nats://{}?nkey={seed}", server.host()));
    node.append(message("t", "x")).expect("NATS takes it");
}

#[test]
#[ignore = "needs a broker: cargo xtask brokers --only nats"]
fn node_with_a_certificate_is_accepted_over_tls() {
    let (server, client) = (TestCertificate::new(), TestCertificate::new());
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: String| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("the directory is ours");
        path.to_str().expect("UTF-8").to_owned()
    };
    let (certificate, key) = (write("server.pem", server.pem()), write("server.key", server.key_pem()));
    let (own, own_key) = (write("client.pem", client.pem()), write("client.key", client.key_pem()));
    let server = OwnServer::start(&format!(
        "tls {{ cert_file: {certificate:?}, key_file: {key:?}, ca_file: {own:?}, verify: true }}"
    ));
    let host = server.host();
    let node =
        StoreNode::at(&format!("nats+tls://{host}?tls.ca={certificate}&tls.cert={own}&tls.key={own_key}"));
    node.append(message("t", "x")).expect("NATS takes it");
    let anonymous = sinews_brokers::connect_topic_store(
        &format!("nats+tls://{host}?tls.ca={certificate}"),
        &BTreeMap::new(),
    );
    let anonymous = anonymous.expect("the settings are known");
    let sink = Arc::new(super::RecordingSink::default());
    anonymous.start(sink.clone());
    let reason = sink.until("it is rejected", |all| {
        all.health.iter().find_map(|health| match health {
            StoreHealth::Away { reason, .. } => Some(reason.to_string()),
            _ => None,
        })
    });
    assert!(!anonymous.health().is_up(), "{reason}");
}
