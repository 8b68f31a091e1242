//! Addresses, TLS, rights, first answers and budgets.

use std::fs;

use sinews_store::{FirstValue, KeyCommand, KeyCommands, KeyLimits, OnceRequest, ReadKeys, TakeRequest};
use sinews_testkit::{TestCertificate, documented};

use super::*;

/// Submits all operations. Returns the errors.
fn submit_all(node: &StoreNode) -> Vec<StoreError> {
    let (log, keys) = (TopicPart::log("t"), TopicPart::keys("t"));
    let mut errors = Vec::new();
    [&log, &keys].into_iter().for_each(|part| node.store.follow(part));
    let retention = Retention { messages: 2, age: Some(Duration::from_secs(60)), ..RETENTION };
    for payload in ["a", "b", "c"] {
        let once = Some(payload.into());
        let append = LogAppend { retention, once, ..message("t", payload) };
        errors.extend(wait(node.store.append(append)).err());
    }
    for start in [LogStart::After(0), LogStart::Last(1)] {
        let read = ReadLog { topic: "t".into(), start, max_messages: 9, max_bytes: 9 };
        errors.extend(wait(node.store.read_log(read)).err());
    }
    let (second, short) = (Some(Duration::from_secs(1)), Some(Duration::from_millis(20)));
    for (key, ttl, is_set) in [
        ("a", second, true),
        ("a", None, true),
        ("a", second, true),
        ("a", None, false),
        ("b", short, true),
        ("c", None, true),
    ] {
        let value = is_set.then(|| Bytes::from_static(b"x"));
        let once = Some(format!("{key}{ttl:?}{is_set}").into());
        let writes = vec![KeyCommand { key: key.into(), value, ttl, condition: None, once }];
        let limits = KeyLimits { keys: 10, bytes: 1000 };
        let writes = KeyCommands { topic: "t".into(), writes, limits };
        errors.extend(wait(node.store.write_keys(writes)).err());
    }
    errors.extend(wait(node.store.read_keys(ReadKeys { topic: "t".into(), cursor: None, limit: 10 })).err());
    errors.extend(wait(node.store.key_changes("t", Position::default())).err());
    let once = OnceRequest { name: "n".into(), value: "x".into(), window: RETENTION.unused };
    errors.extend(wait(node.store.once(once)).err());
    errors.extend(
        wait(node.store.take(TakeRequest { name: "n".into(), permits: 2, rate: 0.1, burst: 3 })).err(),
    );
    node.store.unfollow(&log);
    errors.extend(wait(node.store.tops(vec![log.clone(), keys])).err());
    errors.extend(wait(node.store.clear(&log)).err());
    errors
}

/// Uses all operations, and waits for all notifications.
pub(super) fn use_all(node: &StoreNode) {
    [TopicPart::log("t"), TopicPart::keys("t")].iter().for_each(|part| node.follow(part));
    assert_eq!(submit_all(node), []);
    let is_removal = |event: &StoreEvent| match event {
        StoreEvent::KeysChanged(_, update) => {
            update.changes.iter().any(|change| &*change.key == "b" && change.value.is_none())
        }
        _ => false,
    };
    until("a key expires", || node.count(is_removal) == 1);
    assert_eq!(node.announced("t").len(), 3);
    assert_eq!(wait(node.store.clear(&TopicPart::keys("t"))), Ok(()));
}

pub(super) fn documented_rights_for_clusters() -> String {
    let page = include_str!("../../store.rs");
    let rights = page.lines().find(|line| line.contains("+spublish")).expect("a line");
    rights.trim_start_matches("//! ").to_owned()
}

pub(super) fn documented_rights() -> String {
    let page = include_str!("../../store.rs").replace("//! ", "").replace("//!", "");
    let rights = documented(&page, "ACL SETUSER");
    rights.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn documented_rights_suffice() {
    // With a replica, since some operations wait for one.
    let Some(faults::ReplicatedPair { primary: server, .. }) = &faults::ReplicatedPair::start() else {
        return;
    };
    let _: String = server.run(&documented_rights());
    let url = server.url().replace("//", "//sinews:secret@") + "?replica.wait.ms=500";
    let node = StoreNode::up(&url);
    use_all(&node);
    assert_eq!(server.run::<Vec<redis::Value>>("ACL LOG"), [], "nothing was rejected");
    assert_eq!(node.count(|event| matches!(event, StoreEvent::NotFollowing(..))), 0);
    // Patterns need more.
    node.store.follow_pattern("a.*");
    let rejection = |event: &StoreEvent| match event {
        StoreEvent::NotFollowing(part, reason) => {
            *part == TopicPart::log("a.*") && reason.contains("PSUBSCRIBE")
        }
        _ => false,
    };
    until("it is rejected", || node.count(rejection) == 1);
    let _: String = server.run("ACL SETUSER sinews allchannels +psubscribe +punsubscribe");
    node.store.unfollow_pattern("a.*");
    node.store.follow_pattern("b.*");
    until("it is followed", || {
        node.count(|event| *event == StoreEvent::Following(TopicPart::log("b.*"))) == 1
    });
}

#[test]
fn each_documented_right_is_needed() {
    // With a replica, since some operations wait for one.
    let Some(faults::ReplicatedPair { primary: server, .. }) = &faults::ReplicatedPair::start() else {
        return;
    };
    let rights = documented_rights();
    let commands: Vec<&str> = rights.split(' ').filter(|right| right.starts_with('+')).collect();
    // The client continues without them, and calls no script by its hash.
    let optional = ["+script|load", "+select"];
    for right in commands.iter().filter(|right| !optional.contains(right)) {
        let _: i64 = server.try_run("ACL DELUSER sinews").expect("no user");
        let _: String = server.run(&rights);
        let _: String = server.run(&format!("ACL SETUSER sinews {}", right.replace('+', "-")));
        let _: String = server.run("ACL LOG RESET");
        let _: String = server.run("FLUSHALL");
        let mut settings =
            settings(&(server.url().replace("//", "//sinews:secret@") + "?replica.wait.ms=500"));
        // Removals are forgotten at once.
        settings.rules.removals_kept = 1;
        let node = StoreNode::with(settings);
        let is_denied = || !server.run::<Vec<redis::Value>>("ACL LOG").is_empty();
        until("the store is up, or a right is missing", || node.store.health().is_up() || is_denied());
        // They are sent again, by `EVAL`.
        let _: String = server.run("SCRIPT FLUSH");
        submit_all(&node);
        until(format_args!("{right} is missed"), is_denied);
    }
}

#[test]
fn rejected_subscription_leaves_the_others() {
    let server = start_server!();
    let names = "&sinews:{p*}:log:open* resetpass >secret";
    let _: String = server.run(&format!("ACL SETUSER sinews on ~* +@all resetchannels {names}"));
    let node = StoreNode::up(&server.url().replace("//", "//sinews:secret@"));
    let parts: Vec<_> = (0..700).map(|number| TopicPart::log(&format!("open{number}"))).collect();
    let closed = ["closed", "x"].map(TopicPart::log);
    parts.iter().chain(&closed).for_each(|part| node.store.follow(part));
    until("all have an answer", || {
        node.count(|event| matches!(event, StoreEvent::Following(_) | StoreEvent::NotFollowing(..))) == 702
    });
    for part in &closed {
        let rejection = |event: &StoreEvent| match event {
            StoreEvent::NotFollowing(rejected, reason) => rejected == part && reason.contains("NOPERM"),
            _ => false,
        };
        assert_eq!(node.count(rejection), 1);
    }
    assert!(node.store.health().is_up());
    assert!(node.append("open7", "a").is_ok());
    until("it is announced", || node.announced("open7").len() == 1);
    // A message that cannot be announced is stored.
    assert!(node.append("x", "a").is_ok());
    assert_eq!(server.info("connected_clients"), "3", "the subscriptions have one connection");
}

#[test]
fn unix_socket_is_an_address() {
    let server = start_server!("--unixsocket", "redis.sock");
    let path = server.directory.path().join("redis.sock");
    until("the socket exists", || path.exists());
    use_all(&StoreNode::up(&format!("redis+unix://{}", path.display())));
    let node = StoreNode::up(&format!("redis+unix://{}?database=3&prefix=x:", path.display()));
    assert!(node.append("t", "a").is_ok());
    assert!(!server.info("db3").is_empty());
}

#[test]
fn tls_has_its_own_authority_and_client_certificates() {
    let files = tempfile::tempdir().expect("a directory");
    let certificate = TestCertificate::for_names(&["localhost", "127.0.0.1"]);
    let file = |name: &str, content: String| {
        let path = files.path().join(name);
        fs::write(&path, content).expect("the directory is ours");
        path.display().to_string()
    };
    let (cert, key) = (file("cert.pem", certificate.pem()), file("key.pem", certificate.key_pem()));
    let other = file("other.pem", TestCertificate::new().pem());
    let server = start_server!(
        "--tls-port",
        "0",
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &cert
    );
    // The port of TLS is the system's choice by way of a free port.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    drop(listener);
    let _: String = server.run(&format!("CONFIG SET tls-port {port}"));
    let url = format!("rediss://localhost:{port}?tls.ca={cert}");
    use_all(&StoreNode::up(&format!("{url}&tls.cert={cert}&tls.key={key}")));
    // Without a client certificate, and with another authority.
    for url in [url, format!("rediss://localhost:{port}?tls.ca={other}&tls.cert={cert}&tls.key={key}")] {
        let node = StoreNode::new(&url);
        until("it is away", || match node.store.health() {
            StoreHealth::Away { reason, .. } => &*reason != "not connected yet",
            _ => panic!("it is up"),
        });
    }
    let settings = |query: &str| {
        let error = Settings::parse(&format!("rediss://h?{query}"), &Default::default()).err();
        error.map(|error| error.to_string()).unwrap_or_default()
    };
    assert!(settings("tls.ca=/none").contains("tls.ca"));
    assert!(settings(&format!("tls.cert={cert}")).contains("it needs tls.key"));
    assert!(settings("tls.other=1").contains("unknown"));
}

#[test]
fn sentinels_name_the_primary() {
    let Some(pair) = faults::ReplicatedPair::start() else { return };
    // The replica has the primary's own address, since the sentinel finds it there.
    let _: String = pair.replica.run(&format!("REPLICAOF 127.0.0.1 {}", pair.primary.port));
    until("it replicates", || pair.primary.info("slave0").contains("state=online"));
    let directory = tempfile::tempdir().expect("a directory");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    drop(listener);
    let config = format!(
        "port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {} 1\n\
         sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 3000\n",
        pair.primary.port
    );
    let path = directory.path().join("sentinel.conf");
    fs::write(&path, config).expect("the directory is ours");
    let sentinel = std::process::Command::new("redis-server")
        .arg(&path)
        .arg("--sentinel")
        .stdout(std::process::Stdio::null())
        .spawn();
    let mut sentinel = sentinel.expect("it is installed");
    // The first one does not answer.
    let url = format!("redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/main");
    let node = StoreNode::up(&url);
    assert!(node.append("t", "a").is_ok());
    pair.wait_until_replicated(&node, &TopicPart::log("t"));
    until("the sentinel knows the replica", || {
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).expect("a URL");
        let mut connection = client.get_connection().expect("it listens");
        let found: redis::RedisResult<Vec<redis::Value>> =
            redis::cmd("SENTINEL").arg("REPLICAS").arg("main").query(&mut connection);
        found.is_ok_and(|replicas| !replicas.is_empty())
    });
    pair.primary.signal("STOP");
    until("the replica is the primary", || pair.replica.info("role") == "master");
    node.wait_until_up();
    let mut next = Err(StoreError::Busy);
    until("it is appended", || {
        next = node.append("t", "b");
        next.is_ok()
    });
    assert_eq!(next.expect("it is appended").prev, 1);
    let unknown = StoreNode::new(&url.replace("main", "other"));
    until("the service is unknown", || match unknown.store.health() {
        StoreHealth::Away { reason, .. } => reason.contains("no sentinel knows the service other"),
        _ => false,
    });
    let _ = sentinel.kill();
    let _ = sentinel.wait();
}

#[test]
fn invalid_addresses_are_rejected() {
    for (url, reason) in [
        ("redis://h/x", "path"),
        ("redis://h,i,h:6379", "occurs twice"),
        ("redis+sentinel://h/a,", "service name"),
        ("redis+cluster://h/a", "path"),
        ("redis+cluster://h?database=1", "database"),
        ("redis://h?replica.wait.ms=5000", "more than 1000"),
        ("redis+sentinel://h", "service name"),
        ("redis+sentinel://h:x/s", "port"),
        ("redis+unix://h/x", "redis+unix:///PATH"),
        ("redis+unix://", "redis+unix:///PATH"),
        ("redis://h?prefix={", "brace"),
        ("redis://h?tls.ca=x", "rediss"),
        ("redis://h?x=secret", "unknown"),
        ("redis://a:secret@", "no host"),
    ] {
        let error = Settings::parse(url, &Default::default()).err();
        let error = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(reason) && !error.contains("secret"), "{url}: {error}");
    }
}

#[test]
fn budgets_fill_by_the_clock_of_the_server() {
    let server = start_server!();
    let (one, two) = (StoreNode::up(&server.url()), StoreNode::up(&server.url()));
    let take = |node: &StoreNode, permits, rate| {
        wait(node.store.take(TakeRequest { name: "n".into(), permits, rate, burst: 10 })).expect("it answers")
    };
    assert_eq!([take(&one, 8, 0.0), take(&two, 8, 0.0), take(&one, 1, 0.0)], [8, 2, 0]);
    until("there are permits again", || take(&two, 1, 50.0) == 1);
    until("the budget is full, and forgotten", || server.run::<Vec<String>>("KEYS *budget*").is_empty());
    assert_eq!(take(&one, 20, 50.0), 10);
    // The window of a first answer.
    let once = |value: &'static str| {
        wait(one.store.once(OnceRequest {
            name: "n".into(),
            value: value.into(),
            window: Duration::from_millis(30),
        }))
    };
    let first = once("a").expect("it answers");
    assert_eq!(first, FirstValue::First);
    until("the window ends", || once("b") == Ok(FirstValue::First));
}
