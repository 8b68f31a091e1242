//! Scripted brokers of Redis.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use sinews_brokers::connect;
use sinews_stream::broker::{Broker, BrokerError};
use sinews_stream::{AppendError, Partition, StartPosition};

use super::{CommandLog, Peer, bytes, check_cases, line, reject_each_command};
use crate::broker::operations::Operation;
use crate::broker::{Node, acked, publish, publish_once, read, until, values};

/// A Redis with one stream.
#[derive(Default)]
struct RedisDouble {
    stored: Mutex<Vec<&'static str>>,
    /// The answer to each append, and to requests for the extent of the stream.
    append_error: Mutex<Option<&'static str>>,
    extent_error: Mutex<Option<&'static str>>,
    /// Channels that clients have subscribed to.
    subscriptions: Mutex<Vec<String>>,
    log: CommandLog,
}

impl RedisDouble {
    fn start(stored: Vec<&'static str>) -> (Arc<Self>, Peer) {
        let redis = Arc::new(Self { stored: Mutex::new(stored), ..Self::default() });
        let served = redis.clone();
        (redis, Peer::new(move |stream| served.serve(stream)))
    }

    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        self.log.connections.fetch_add(1, Ordering::SeqCst);
        let mut reader = BufReader::new(stream);
        loop {
            let count = line(&mut reader)?.trim_start_matches('*').parse().expect("a command");
            let mut words = Vec::new();
            for _ in 0..count {
                let length = line(&mut reader)?.trim_start_matches('$').parse().expect("a length");
                words.push(bytes(&mut reader, length)?);
            }
            let answer = self.answer(&words);
            reader.get_mut().write_all(answer.as_bytes())?;
        }
    }

    fn answer(&self, words: &[String]) -> String {
        let is_of = |command| words.get(1).is_some_and(|script| script.contains(command));
        let is_read = is_of("XRANGE") || is_of("XINFO");
        let error = match &*words[0] {
            "XADD" | "EVAL" | "EVALSHA" if !is_read => *self.append_error.lock().unwrap(),
            "EVAL" if is_of("XINFO") => *self.extent_error.lock().unwrap(),
            _ => None,
        };
        if let Some(error) = error {
            return format!("-{error}\r\n");
        }
        if self.log.receive(&command(words)) {
            let name = words[0].to_lowercase();
            return format!("-NOPERM User app has no permissions to run the '{name}' command\r\n");
        }
        match &*words[0] {
            "SCAN" => "*2\r\n$1\r\n0\r\n*0\r\n".to_owned(),
            "HGET" => "$-1\r\n".to_owned(),
            "HSET" => ":1\r\n".to_owned(),
            "XRANGE" => format!("*1\r\n{}", entry(&self.stored.lock().unwrap(), 0)),
            "SUBSCRIBE" => {
                self.subscriptions.lock().unwrap().push(words[1].clone());
                if words[1].starts_with("denied") {
                    return "-NOPERM No permissions to access a channel\r\n".to_owned();
                }
                answer(words, &[])
            }
            "XADD" => "$-1\r\n".to_owned(),
            "EVALSHA" => "-NOSCRIPT No matching script.\r\n".to_owned(),
            "EVAL" if !is_read => {
                let mut stored = self.stored.lock().unwrap();
                // The value of an entry with a guard is the guard.
                let guard = (words[2] == "2").then(|| &*words[4]);
                let known = stored.iter().position(|value| Some(*value) == guard);
                let id = known.map(|at| format!("repeated 0-{}", at + 1)).unwrap_or_else(|| {
                    stored.push(guard.map_or("new", |guard| guard.to_owned().leak()));
                    format!("0-{}", stored.len())
                });
                format!("${}\r\n{id}\r\n", id.len())
            }
            _ => answer(words, &self.stored.lock().unwrap()),
        }
    }
}

fn text(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn entry(stored: &[&str], at: usize) -> String {
    format!("*2\r\n{}*2\r\n{}{}", text(&format!("0-{}", at + 1)), text("v"), text(stored[at]))
}

/// Names a command. Scripts have the name of the command that they run.
fn command(words: &[String]) -> String {
    let script = match &*words[0] {
        "EVAL" => ["XRANGE", "XINFO", "XADD"].into_iter().find(|name| words[1].contains(name)),
        _ => None,
    };
    let name = if words[0] == "CLIENT" { words[..2].join(" ") } else { words[0].clone() };
    script.map_or_else(|| name.clone(), |script| format!("{name} {script}"))
}

fn answer(words: &[String], stored: &[&str]) -> String {
    match &*words[0] {
        "PING" => "+PONG\r\n".to_owned(),
        "SUBSCRIBE" => format!("*3\r\n{}{}:1\r\n", text("subscribe"), text(&words[1])),
        // Without the entries, which may be large.
        "EVAL" if words[1].contains("XINFO") && stored.is_empty() => "-ERR no such key\r\n".to_owned(),
        "EVAL" if words[1].contains("XINFO") => {
            format!("*2\r\n{}{}", text(&format!("0-{}", stored.len())), text("0-1"))
        }
        "EVAL" => {
            let from: usize = words[4].trim_start_matches("0-").parse().expect("an id of ours");
            let entries: Vec<String> = (from.max(1) - 1..stored.len()).map(|at| entry(stored, at)).collect();
            format!("*2\r\n:1\r\n*{}\r\n{}", entries.len(), entries.concat())
        }
        _ => "+OK\r\n".to_owned(),
    }
}

/// A node that follows a stream of three records.
struct Followed {
    redis: Arc<RedisDouble>,
    broker: Arc<dyn Broker>,
    partition: Partition,
    _node: Node,
    _peer: Peer,
}

impl Followed {
    fn new() -> Self {
        let (redis, peer) = RedisDouble::start(vec!["a", "b", "c"]);
        let broker = connect(&format!("redis://{}", peer.address), &BTreeMap::new()).expect("a URL");
        let node = Node::new();
        let partition = node.partition("s", 0);
        broker.follow("s", 0, StartPosition::Earliest, partition.clone());
        assert_eq!(values(&read(&partition, 0, 4)), ["a", "b", "c"]);
        Self { redis, broker, partition, _node: node, _peer: peer }
    }
}

#[test]
fn recreated_stream_is_not_appended_to_the_old_copy() {
    let Followed { redis, broker, partition, .. } = &Followed::new();
    until("it is ready", || broker.health().ready);
    *redis.stored.lock().unwrap() = vec!["other"];
    until("that is noticed", || {
        !broker.health().ready && broker.health().error.is_some_and(|reason| reason.contains("recreated"))
    });
    *redis.stored.lock().unwrap() = vec!["other"; 10];
    assert_eq!(broker.offset_range("s", 0).block(), Ok((1, 11)));
    assert_eq!(values(&read(partition, 0, 4)), ["a", "b", "c"]);
    assert!(!broker.health().ready);
}

#[test]
fn repeated_record_is_not_taken_for_a_record_of_another_stream() {
    let Followed { redis, broker, partition, .. } = &Followed::new();
    assert_eq!(publish_once(&**broker, "s", "one", "x"), (4, false));
    assert_eq!(acked(&mut publish(&**broker, "s", 0, &["y"])), Ok(5));
    read(partition, 4, 6);
    assert_eq!(publish_once(&**broker, "s", "one", "z"), (4, true));
    assert_eq!(redis.stored.lock().unwrap().len(), 5);
    assert_eq!(acked(&mut publish(&**broker, "s", 0, &["y"])), Ok(6));
}

#[test]
fn rejected_channel_leaves_the_subscriptions_of_other_streams() {
    let Followed { redis, broker, _node: node, .. } = &Followed::new();
    let is_subscribed = |channel: &str| {
        until("it is subscribed", || {
            redis.subscriptions.lock().unwrap().iter().any(|known| known == channel)
        });
    };
    for stream in ["denied", "t"] {
        broker.follow(stream, 0, StartPosition::Earliest, node.partition(stream, 0));
        is_subscribed(&format!("{stream}:0"));
    }
    // The stream is read every second in place of its announcements.
    assert_eq!(acked(&mut publish(&**broker, "denied", 0, &["x"])), Ok(4));
    let subscriptions = redis.subscriptions.lock().unwrap();
    assert_eq!(*subscriptions, ["s:0", "denied:0", "t:0"], "each once, on one connection");
}

#[test]
fn append_to_an_emptied_stream_is_rejected() {
    let Followed { redis, broker, .. } = &Followed::new();
    redis.stored.lock().unwrap().clear();
    let rejected = acked(&mut publish(&**broker, "s", 0, &["x"]));
    assert!(
        matches!(&rejected, Err(AppendError::Broker(reason)) if reason.contains("recreated")),
        "{rejected:?}"
    );
    until("that is noticed", || !broker.health().ready);
    let end = redis.stored.lock().unwrap().len();
    let rejected = broker.publish("s", 0, crate::broker::records(&["y"])).map(drop);
    assert!(
        matches!(&rejected, Err(AppendError::Broker(reason)) if reason.contains("recreated")),
        "{rejected:?}"
    );
    assert_eq!(redis.stored.lock().unwrap().len(), end, "no further append is sent");
    // Other streams are unaffected.
    assert_eq!(acked(&mut publish(&**broker, "t", 0, &["z"])), Ok(end as u64 + 1));
}

#[test]
fn stream_emptied_and_refilled_beyond_the_copy_is_not_followed() {
    let Followed { redis, broker, partition, .. } = &Followed::new();
    *redis.stored.lock().unwrap() = vec!["other"; 10];
    until("that is noticed", || {
        broker.health().error.is_some_and(|reason| reason.contains("recreated")) && !broker.health().ready
    });
    assert_eq!(values(&read(partition, 0, 4)), ["a", "b", "c"]);
}

#[test]
fn error_of_redis_is_not_taken_for_an_emptied_stream() {
    let Followed { redis, broker, partition, .. } = &Followed::new();
    until("it is ready", || broker.health().ready);
    for error in ["ERR upstream failure", "ERR max number of clients reached"] {
        *redis.extent_error.lock().unwrap() = Some(error);
        let fetched = broker.fetch("s", 0, 1, 1000).block();
        assert!(matches!(&fetched, Err(BrokerError::Failed(_))), "{fetched:?}");
        assert!(broker.offset_range("s", 0).block().is_err());
        let is_noticed = || broker.health().error.is_some_and(|reason| reason.contains("s:0: "));
        until("the follower has the error", is_noticed);
        *redis.extent_error.lock().unwrap() = None;
        let first = acked(&mut publish(&**broker, "s", 0, &["x"])).expect("the stream is followed");
        read(partition, first, first + 1);
        assert!(broker.health().ready);
    }
}

#[test]
fn broker_that_rejects_every_append_is_not_ready_until_it_accepts_them() {
    let (redis, peer) = RedisDouble::start(Vec::new());
    let rejects = |error| *redis.append_error.lock().unwrap() = error;
    rejects(Some("OOM command not allowed when used memory > 'maxmemory'."));
    let url = format!("redis://{}?failure.timeout.ms=0", peer.address);
    let broker = connect(&url, &BTreeMap::new()).expect("a URL");
    until("it answers", || broker.health().ready);
    let refused = acked(&mut publish(&*broker, "s", 0, &["x"]));
    assert!(matches!(refused, Err(AppendError::Broker(_))), "{refused:?}");
    let health = broker.health();
    let error = health.error.unwrap_or_default();
    assert!(!health.ready && error.contains("every append fails"), "{error}");
    rejects(None);
    until("it takes appends again", || broker.health().ready);
    assert_eq!(acked(&mut publish(&*broker, "s", 0, &["x"])), Ok(1));
}

/// Commands that the source has, with the scripts that they run.
fn commands_of_the_source() -> BTreeSet<String> {
    let sources = [
        include_str!("../../../src/redis.rs"),
        include_str!("../../../src/redis/append.rs"),
        include_str!("../../../src/redis/entries.rs"),
    ];
    let commands = sources.iter().flat_map(|source| source.split("cmd(\"").skip(1));
    let commands = commands.filter_map(|rest| rest.split('"').next());
    commands.map(str::to_owned).collect()
}

#[test]
fn each_rejected_command_ends_its_operations_and_no_other() {
    use Operation::{Append, Commit, Committed, Fetch, Follow, FollowFromTime, Range, Streams};
    let cases: &[(&str, &[Operation])] = &[
        // The client's own, which it may omit.
        ("CLIENT SETINFO", &[]),
        // Redis answers.
        ("PING", &[]),
        // Each append sends the script.
        ("SCRIPT", &[]),
        // Streams are read every second.
        ("SUBSCRIBE", &[]),
        ("EVALSHA", &[Append]),
        ("EVAL XADD", &[Append]),
        ("EVAL XRANGE", &[Fetch, Follow, FollowFromTime]),
        ("EVAL XINFO", &[Fetch, Range, Follow, FollowFromTime]),
        ("XRANGE", &[FollowFromTime]),
        ("SCAN", &[Streams]),
        ("HSET", &[Commit]),
        ("HGET", &[Committed]),
        // Sent while appends fail.
        ("XADD", &[]),
    ];
    let (redis, peer) = RedisDouble::start(vec!["a", "b", "c"]);
    let url = format!("redis://{}?failure.timeout.ms=60000", peer.address);
    let connect = || connect(&url, &BTreeMap::new()).expect("a URL");
    reject_each_command(&redis.log, connect, cases, "the documentation of brokers");
    check_cases(&redis.log, cases);
    // Three, and those of the cases in which appends succeed.
    let is_stored = |case: &&(&str, &[Operation])| !case.1.contains(&Append);
    assert_eq!(redis.stored.lock().unwrap().len(), 3 + cases.iter().filter(is_stored).count());
    let names: BTreeSet<String> =
        cases.iter().filter_map(|(command, _)| command.split(' ').next()).map(str::to_owned).collect();
    let missing: Vec<String> =
        commands_of_the_source().into_iter().filter(|name| !names.contains(name)).collect();
    assert!(missing.is_empty(), "commands without a case: {missing:?}");
}

/// The login succeeds, and the connection ends behind it.
#[test]
fn logins_become_rarer_at_a_broker_that_closes_each_connection() {
    let log = Arc::new(CommandLog::default());
    let peer = Peer::new({
        let log = log.clone();
        move |stream| {
            log.connections.fetch_add(1, Ordering::SeqCst);
            let mut reader = BufReader::new(stream);
            loop {
                let head = line(&mut reader)?;
                if head.contains("CLIENT") {
                    reader.get_mut().write_all(b"+OK\r\n")?;
                }
                // The first command behind the login.
                if ["PING", "SUBSCRIBE", "SCRIPT", "EVAL", "SCAN"].iter().any(|name| head == *name) {
                    return Ok(());
                }
            }
        }
    });
    let broker = connect(&format!("redis://{}", peer.address), &BTreeMap::new()).expect("a URL");
    let node = Node::new();
    broker.follow("s", 0, StartPosition::Earliest, node.partition("s", 0));
    // Each caller gets an error at once, and begins again.
    for _ in 0..1_000 {
        assert!(broker.streams().block().is_err());
    }
    let logins = log.connections.load(Ordering::SeqCst);
    assert!((1..100).contains(&logins), "{logins} logins");
}

#[test]
fn rejection_that_concerns_one_stream_does_not_change_readiness() {
    let (redis, peer) = RedisDouble::start(Vec::new());
    let url = format!("redis://{}?failure.timeout.ms=0", peer.address);
    let broker = connect(&url, &BTreeMap::new()).expect("a URL");
    until("it answers", || broker.health().ready);
    for error in [
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "ERR The ID specified in XADD is equal or smaller than the target stream top item",
        "NOPERM No permissions to access a key",
    ] {
        *redis.append_error.lock().unwrap() = Some(error);
        let refused = acked(&mut publish(&*broker, "s", 0, &["x"]));
        assert!(matches!(refused, Err(AppendError::Broker(_))), "{refused:?}");
        assert!(broker.health().ready, "{error}");
    }
}
