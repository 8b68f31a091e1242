//! Tests of the bridges against scripted brokers, which cause rare behavior of real ones at will.

#![cfg(any(feature = "nats", feature = "redis"))]

#[allow(dead_code, reason = "these need a part of it")]
mod broker;

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use sinews_stream::broker::Broker;

use broker::operations::{OPERATIONS, Operation};

/// Accepts connections, each served by its own thread.
struct Peer {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Peer {
    fn new(serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let (is_over, serve) = (Arc::new(AtomicBool::new(false)), Arc::new(serve));
        let over = is_over.clone();
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let (serve, stream) = (serve.clone(), stream.expect("a connection"));
                // The client closes the connection.
                thread::spawn(move || drop(serve(stream)));
            }
        });
        Self { address, is_over, thread: Some(thread) }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The next line without its end; an error when the client has closed.
fn line(reader: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

/// Reads this many bytes, and the end of the line behind them.
fn bytes(reader: &mut BufReader<TcpStream>, count: usize) -> io::Result<String> {
    let mut bytes = vec![0; count + 2];
    reader.read_exact(&mut bytes)?;
    bytes.truncate(count);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Commands that a scripted broker has received, and the one that it rejects.
#[derive(Default)]
struct CommandLog {
    rejected: Mutex<Option<&'static str>>,
    received: Mutex<BTreeSet<String>>,
    connections: AtomicUsize,
}

impl CommandLog {
    /// Notes a command. Returns whether it is rejected.
    fn receive(&self, command: &str) -> bool {
        self.received.lock().unwrap().insert(command.to_owned());
        *self.rejected.lock().unwrap() == Some(command)
    }
}

/// Rejects each command in turn, and compares the operations that fail with those that need it.
fn reject_each_command(
    log: &CommandLog,
    connect: impl Fn() -> Arc<dyn Broker>,
    cases: &[(&'static str, &[Operation])],
    remedy: &str,
) {
    for (command, expected) in cases {
        *log.rejected.lock().unwrap() = Some(*command);
        let before = log.connections.load(Ordering::SeqCst);
        let (store, node) = (connect(), broker::Node::new());
        for operation in OPERATIONS {
            let failed = operation.run(&*store, &node).err();
            assert_eq!(
                failed.is_some(),
                expected.contains(&operation),
                "{command}, {operation:?}: {failed:?}"
            );
            let Some(reason) = failed else { continue };
            let name = command.split(' ').next().unwrap_or_default();
            assert!(
                name == "HPUB" || reason.to_uppercase().contains(name),
                "{command}, {operation:?}: {reason}"
            );
            assert!(reason.contains(remedy), "{command}, {operation:?}: {reason}");
        }
        broker::until("the broker counts as reachable", || store.health().ready);
        // One each for appends, announcements and everything else.
        let connections = log.connections.load(Ordering::SeqCst) - before;
        assert!(connections <= 3, "{command}: {connections} logins");
    }
    *log.rejected.lock().unwrap() = None;
}

/// Each received command has a case.
fn check_cases(log: &CommandLog, cases: &[(&'static str, &[Operation])]) {
    let received = log.received.lock().unwrap();
    let unknown: Vec<&String> =
        received.iter().filter(|name| cases.iter().all(|(known, _)| known != name)).collect();
    assert!(unknown.is_empty(), "commands without a case: {unknown:?}");
}

#[cfg(feature = "redis")]
mod redis {
    use std::collections::{BTreeMap, BTreeSet};
    use std::io::{self, BufReader, Write};
    use std::net::TcpStream;
    use std::sync::atomic::Ordering;
    use std::sync::{Arc, Mutex};

    use sinews_brokers::connect;
    use sinews_stream::broker::{Broker, BrokerError};
    use sinews_stream::{AppendError, Partition, StartPosition};

    use super::broker::operations::Operation;
    use super::broker::{Node, acked, publish, publish_once, read, until, values};
    use super::{CommandLog, Peer, bytes, check_cases, line, reject_each_command};

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
        script.map_or(name.clone(), |script| format!("{name} {script}"))
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
                let entries: Vec<String> =
                    (from.max(1) - 1..stored.len()).map(|at| entry(stored, at)).collect();
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
        let rejected = broker.publish("s", 0, super::broker::records(&["y"])).map(drop);
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
            include_str!("../src/redis.rs"),
            include_str!("../src/redis/append.rs"),
            include_str!("../src/redis/entries.rs"),
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
}

#[cfg(feature = "nats")]
mod nats {
    use std::collections::BTreeMap;
    use std::io::{self, BufReader, Write};
    use std::net::TcpStream;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};
    use std::thread;
    use std::time::Duration;

    use sinews_brokers::connect;
    use sinews_stream::AppendError;
    use sinews_stream::broker::BrokerError;

    use super::broker::operations::Operation;
    use super::broker::{acked, publish, publish_once, until};
    use super::{CommandLog, Peer, bytes, check_cases, line, reject_each_command};

    const INFO: &str =
        r#"{"server_id":"x","version":"2.10.0","max_payload":1048576,"headers":true,"jetstream":true}"#;
    const STATE: &str = r#""created":"2024-01-01T00:00:00Z","state":{"messages":0,"bytes":0,"first_seq":1,
        "first_ts":"2024-01-01T00:00:00Z","last_seq":0,"last_ts":"2024-01-01T00:00:00Z","consumer_count":0}"#;

    const CONSUMER: &str = r#"{"stream_name":"s-0","name":"c","created":"2024-01-01T00:00:00Z",
        "config":{"deliver_policy":"all","ack_policy":"none","replay_policy":"instant"},
        "delivered":{"consumer_seq":0,"stream_seq":0},"ack_floor":{"consumer_seq":0,"stream_seq":0},
        "num_ack_pending":0,"num_redelivered":0,"num_waiting":0,"num_pending":1}"#;

    /// More attempts than the client makes.
    const SENDS_MAX: usize = 20;

    #[derive(Default)]
    struct Jetstream {
        /// The configuration with which the stream was created.
        config: Mutex<Option<String>>,
        /// The ids of the published messages.
        ids: Mutex<Vec<String>>,
        acknowledges: Mutex<bool>,
        /// The window of the stream in nanoseconds, whatever was requested.
        duplicate_window: Mutex<Option<&'static str>>,
        /// The answer to each message, with this code.
        error_code: Mutex<Option<u32>>,
        /// The last sequence of each stream.
        last_sequence: Mutex<u64>,
        /// Requests of consumers: the operation, and the name of the consumer.
        consumer_requests: Mutex<Vec<(String, String)>>,
        /// Whether consumers are created without an answer, and not slowly.
        is_silent: AtomicBool,
    }

    impl Jetstream {
        fn serve(&self, stream: TcpStream) -> io::Result<()> {
            let mut reader = BufReader::new(stream);
            write!(reader.get_mut(), "INFO {INFO}\r\n")?;
            let mut inbox = String::new();
            loop {
                let words = line(&mut reader)?;
                let words: Vec<&str> = words.split(' ').collect();
                let size = || words.last().and_then(|size| size.parse().ok()).expect("a size");
                let answer = match words[0] {
                    "PING" => {
                        reader.get_mut().write_all(b"PONG\r\n")?;
                        continue;
                    }
                    // All answers arrive on one subscription; messages would arrive on others.
                    "SUB" if words[1].ends_with(".*") => {
                        words[words.len() - 1].clone_into(&mut inbox);
                        continue;
                    }
                    "PUB" => self.answer(words[1], bytes(&mut reader, size())?),
                    "HPUB" if words[1].starts_with("denied") => {
                        bytes(&mut reader, size())?;
                        let subject = words[1];
                        let text = format!("-ERR 'Permissions Violation for Publish to \"{subject}\"'\r\n");
                        reader.get_mut().write_all(text.as_bytes())?;
                        continue;
                    }
                    "HPUB" => Some(self.store(&bytes(&mut reader, size())?)?),
                    _ => continue,
                };
                if let (Some(answer), true) = (answer, words.len() > 3) {
                    write!(reader.get_mut(), "MSG {} {inbox} {}\r\n{answer}\r\n", words[2], answer.len())?;
                }
            }
        }

        fn answer(&self, subject: &str, body: String) -> Option<String> {
            if let Some(request) = subject.strip_prefix("$JS.API.CONSUMER.") {
                return self.answer_consumer(request);
            }
            let mut config = self.config.lock().unwrap();
            if subject.starts_with("$JS.API.STREAM.CREATE.") {
                // Somebody else may have created the stream, with another window.
                let window = self.duplicate_window.lock().unwrap().unwrap_or("120000000000");
                *config = Some(body.replace("120000000000", window));
            } else if !subject.starts_with("$JS.API.STREAM.INFO.") {
                return None;
            }
            let last = format!(r#""last_seq":{}"#, self.last_sequence.lock().unwrap());
            let state = STATE.replace(r#""last_seq":0"#, &last);
            Some(match &*config {
                Some(config) => format!(r#"{{"config":{config},{state}}}"#),
                None => r#"{"error":{"code":404,"err_code":10059,"description":"stream not found"}}"#.into(),
            })
        }

        /// Consumers get no messages.
        fn answer_consumer(&self, request: &str) -> Option<String> {
            let (operation, names) = request.split_once('.').expect("a stream");
            let name = names.split('.').nth(1).expect("each has a name");
            let is_silent = self.is_silent.load(Ordering::SeqCst);
            if operation == "CREATE" && !is_silent {
                // A slow server: the limit of the request ends before that of reading, also on a machine that stalls.
                thread::sleep(Duration::from_secs(4));
            }
            self.consumer_requests.lock().unwrap().push((operation.to_owned(), name.to_owned()));
            match operation {
                "CREATE" if is_silent => None,
                "CREATE" => Some(CONSUMER.to_owned()),
                "DELETE" => Some(r#"{"success":true}"#.to_owned()),
                _ => None,
            }
        }

        /// Without an acknowledgement, the connection ends.
        fn store(&self, message: &str) -> io::Result<String> {
            let mut headers = message.lines().filter_map(|line| line.split_once(": "));
            let (_, id) = headers.find(|(name, _)| *name == "Nats-Msg-Id").expect("each has an id");
            let mut ids = self.ids.lock().unwrap();
            let is_known = ids.iter().any(|known| known == id);
            ids.push(id.to_owned());
            if let Some(code) = *self.error_code.lock().unwrap() {
                return Ok(format!(r#"{{"error":{{"code":{code},"err_code":10000,"description":"no"}}}}"#));
            }
            if *self.acknowledges.lock().unwrap() || ids.len() > SENDS_MAX {
                return Ok(format!(r#"{{"stream":"s-0","seq":7,"duplicate":{is_known}}}"#));
            }
            Err(io::ErrorKind::ConnectionAborted.into())
        }
    }

    /// A server on which each stream has three messages.
    #[derive(Default)]
    struct ThreeMessages {
        log: CommandLog,
        /// Rejected requests of JetStream have an answer with this code; otherwise the server denies their subjects.
        error_code: Option<u32>,
        stored: Mutex<u64>,
    }

    /// A connection of a client: its subscriptions, with their ids.
    #[derive(Default)]
    struct Subscriptions(Vec<(String, String)>);

    impl Subscriptions {
        /// Writes a message to the subscription of an inbox.
        fn send(&self, out: &mut TcpStream, inbox: &str, reply: &str, body: &str) -> io::Result<()> {
            let is_meant = |known: &str| {
                known == inbox || known.strip_suffix('*').is_some_and(|head| inbox.starts_with(head))
            };
            let Some((_, id)) = self.0.iter().find(|(known, _)| is_meant(known)) else { return Ok(()) };
            write!(out, "MSG {inbox} {id} {reply}{}\r\n{body}\r\n", body.len())
        }
    }

    impl ThreeMessages {
        fn serve(&self, stream: TcpStream) -> io::Result<()> {
            self.log.connections.fetch_add(1, Ordering::SeqCst);
            let mut reader = BufReader::new(stream);
            write!(reader.get_mut(), "INFO {INFO}\r\n")?;
            let mut subscriptions = Subscriptions::default();
            loop {
                let line = line(&mut reader)?;
                let words: Vec<&str> = line.split(' ').collect();
                match words[..] {
                    ["PING"] => reader.get_mut().write_all(b"PONG\r\n")?,
                    ["SUB", subject, .., id] => subscriptions.0.push((subject.to_owned(), id.to_owned())),
                    ["UNSUB", id, ..] if words.len() == 2 => subscriptions.0.retain(|(_, known)| known != id),
                    ["PUB" | "HPUB", subject, inbox, .., size] => {
                        let body = bytes(&mut reader, size.parse().expect("a size"))?;
                        self.publish(reader.get_mut(), &subscriptions, subject, inbox, &body)?;
                    }
                    _ => {}
                }
            }
        }

        fn publish(
            &self,
            out: &mut TcpStream,
            subscriptions: &Subscriptions,
            subject: &str,
            inbox: &str,
            body: &str,
        ) -> io::Result<()> {
            let name = match subject.strip_prefix("$JS.API.") {
                Some(request) => {
                    let is_operation = |part: &&str| part.bytes().all(|byte| byte.is_ascii_uppercase());
                    request.split('.').take_while(is_operation).collect::<Vec<_>>().join(".")
                }
                None if subject.starts_with("sinews-groups.") => "PUB group".to_owned(),
                None => "HPUB record".to_owned(),
            };
            if self.log.receive(&name) {
                let Some(code) = self.error_code else {
                    return write!(out, "-ERR 'Permissions Violation for Publish to \"{subject}\"'\r\n");
                };
                let answer = format!(
                    r#"{{"error":{{"code":{code},"err_code":10027,"description":"{name} is rejected here"}}}}"#
                );
                return subscriptions.send(out, inbox, "", &answer);
            }
            let last = STATE.replace(r#""last_seq":0"#, r#""last_seq":3"#);
            let answer = match &*name {
                "STREAM.INFO" if *self.log.rejected.lock().unwrap() == Some("STREAM.CREATE") => {
                    r#"{"error":{"code":404,"err_code":10059,"description":"stream not found"}}"#.to_owned()
                }
                "STREAM.INFO" | "STREAM.CREATE" => {
                    let config = r#"{"name":"s-0","subjects":["s-0"],"retention":"limits","max_consumers":-1,
                        "max_msgs":-1,"max_bytes":-1,"discard":"old","max_age":0,"max_msgs_per_subject":-1,
                        "storage":"file","num_replicas":1,"duplicate_window":120000000000}"#;
                    format!(r#"{{"config":{config},{last}}}"#)
                }
                "STREAM.NAMES" => r#"{"total":1,"offset":0,"limit":1024,"streams":["s-0"]}"#.to_owned(),
                "STREAM.MSG.GET" => {
                    r#"{"error":{"code":404,"err_code":10037,"description":"no message found"}}"#.to_owned()
                }
                "CONSUMER.CREATE" | "CONSUMER.INFO" => {
                    let names: Vec<&str> = subject.split('.').skip(4).collect();
                    let stream = format!(r#""stream_name":"{}""#, names[0]);
                    CONSUMER.replace(r#""stream_name":"s-0""#, &stream)
                }
                "CONSUMER.DELETE" => r#"{"success":true}"#.to_owned(),
                "CONSUMER.MSG.NEXT" => {
                    for sequence in 1..=3 {
                        let reply = format!("$JS.ACK.s-0.c.1.{sequence}.{sequence}.1700000000000000000.0 ");
                        subscriptions.send(out, inbox, &reply, "a")?;
                    }
                    return Ok(());
                }
                "INFO" => "{}".to_owned(),
                _ => {
                    let mut stored = self.stored.lock().unwrap();
                    *stored += u64::from(name == "HPUB record");
                    format!(r#"{{"stream":"s-0","seq":{}}}"#, 3 + *stored)
                }
            };
            assert!(body.len() <= 1 << 20, "the limit of the server");
            subscriptions.send(out, inbox, "", &answer)
        }
    }

    #[test]
    fn each_rejected_command_ends_its_operations_and_no_other() {
        use Operation::{Append, Commit, Committed, Fetch, Follow, FollowFromTime, Range, Streams};
        let of_streams: &[Operation] = &[Append, Fetch, Range, Commit, Committed, Follow, FollowFromTime];
        let cases: &[(&str, &[Operation])] = &[
            ("STREAM.INFO", of_streams),
            ("STREAM.CREATE", of_streams),
            ("STREAM.NAMES", &[Streams]),
            ("STREAM.MSG.GET", &[Committed]),
            ("CONSUMER.CREATE", &[Fetch, Follow, FollowFromTime]),
            ("CONSUMER.DELETE", &[]),
            ("CONSUMER.INFO", &[]),
            ("HPUB record", &[Append]),
            ("PUB group", &[Commit]),
        ];
        // Requests with answers of other forms.
        let more: &[(&str, &[Operation])] =
            &[("CONSUMER.MSG.NEXT", &[Fetch, Follow, FollowFromTime]), ("INFO", &[])];
        let denied = [cases, more].concat();
        let answers = [
            (None, "the documentation of brokers"),
            (Some(400), "is rejected here"),
            (Some(500), "is rejected here"),
        ];
        for (error_code, remedy) in answers {
            let server = Arc::new(ThreeMessages { error_code, ..ThreeMessages::default() });
            let peer = Peer::new({
                let server = server.clone();
                move |stream| server.serve(stream)
            });
            let url = format!("nats://{}?failure.timeout.ms=60000", peer.address);
            let connect = || connect(&url, &BTreeMap::new()).expect("a URL");
            let cases = if error_code.is_none() { &denied[..] } else { cases };
            reject_each_command(&server.log, connect, cases, remedy);
            check_cases(&server.log, &denied);
            let is_stored = |case: &&(&str, &[Operation])| !case.1.contains(&Append);
            assert_eq!(*server.stored.lock().unwrap(), cases.iter().filter(is_stored).count() as u64);
        }
    }

    #[test]
    fn record_with_an_idempotency_key_has_the_same_id_at_all_nodes() {
        let jetstream = Arc::new(Jetstream { acknowledges: Mutex::new(true), ..Jetstream::default() });
        let peer = Peer::new({
            let jetstream = jetstream.clone();
            move |stream| jetstream.serve(stream)
        });
        let url = format!("nats://{}", peer.address);
        let [one, two] = [(); 2].map(|()| connect(&url, &BTreeMap::new()).expect("a URL"));
        let key = "a\r\nNats-Msg-Id: b";
        assert_eq!(publish_once(&*one, "s", key, "first"), (7, false));
        assert_eq!(publish_once(&*two, "s", key, "second"), (7, true));
        assert_eq!(publish_once(&*two, "s", "b", "third"), (7, false));
        let ids = jetstream.ids.lock().unwrap();
        assert!(ids[0] == ids[1] && ids[1] != ids[2], "{ids:?}");
    }

    #[test]
    fn append_older_than_the_duplicate_window_is_not_resent() {
        let jetstream = Arc::new(Jetstream::default());
        let peer = Peer::new({
            let jetstream = jetstream.clone();
            move |stream| jetstream.serve(stream)
        });
        // Ids are remembered as long as messages are retained.
        let url = format!("nats://{}?max.age.seconds=1", peer.address);
        let broker = connect(&url, &BTreeMap::new()).expect("a URL");
        let refused = acked(&mut publish(&*broker, "s", 0, &["a"]));
        assert!(
            matches!(&refused, Err(AppendError::Broker(reason)) if reason.contains("in time")),
            "{refused:?}"
        );
        let sent = std::mem::take(&mut *jetstream.ids.lock().unwrap());
        assert!(
            !sent.is_empty() && sent.iter().all(|id| *id == sent[0]),
            "each attempt has the same id: {sent:?}"
        );
        *jetstream.acknowledges.lock().unwrap() = true;
        assert_eq!(acked(&mut publish(&*broker, "s", 0, &["b"])), Ok(7));
        assert!(!jetstream.ids.lock().unwrap().contains(&sent[0]));
    }

    #[test]
    fn append_older_than_the_duplicate_window_of_an_existing_stream_is_not_resent() {
        let jetstream = Arc::new(Jetstream::default());
        *jetstream.duplicate_window.lock().unwrap() = Some("100000000");
        let peer = Peer::new({
            let jetstream = jetstream.clone();
            move |stream| jetstream.serve(stream)
        });
        let broker = connect(&format!("nats://{}", peer.address), &BTreeMap::new()).expect("a URL");
        let refused = acked(&mut publish(&*broker, "s", 0, &["a"]));
        assert!(
            matches!(&refused, Err(AppendError::Broker(reason)) if reason.contains("in time")),
            "{refused:?}"
        );
        assert_eq!(jetstream.ids.lock().unwrap().len(), 1);
    }

    #[test]
    fn stream_that_the_server_denies_does_not_delay_other_streams() {
        let jetstream = Arc::new(Jetstream { acknowledges: Mutex::new(true), ..Jetstream::default() });
        let peer = Peer::new({
            let jetstream = jetstream.clone();
            move |stream| jetstream.serve(stream)
        });
        let broker = connect(&format!("nats://{}", peer.address), &BTreeMap::new()).expect("a URL");
        for _ in 0..2 {
            let mut denied = publish(&*broker, "denied", 0, &["a", "b", "c"]);
            assert_eq!(acked(&mut publish(&*broker, "s", 0, &["a"])), Ok(7));
            let denied = acked(&mut denied);
            let is_named = |reason: &str| reason.contains("Permissions Violation for Publish");
            assert!(matches!(&denied, Err(AppendError::Broker(reason)) if is_named(reason)), "{denied:?}");
        }
    }

    #[test]
    fn only_rejections_of_all_appends_change_readiness() {
        let jetstream = Arc::new(Jetstream::default());
        let peer = Peer::new({
            let jetstream = jetstream.clone();
            move |stream| jetstream.serve(stream)
        });
        let url = format!("nats://{}?failure.timeout.ms=0", peer.address);
        let broker = connect(&url, &BTreeMap::new()).expect("a URL");
        for (code, is_ready) in [(400, true), (503, false)] {
            *jetstream.error_code.lock().unwrap() = Some(code);
            let refused = acked(&mut publish(&*broker, "s", 0, &["a"]));
            assert!(matches!(refused, Err(AppendError::Broker(_))), "{refused:?}");
            let error = broker.health().error.unwrap_or_default();
            assert_eq!(!error.contains("every append fails"), is_ready, "{error}");
        }
    }

    #[test]
    fn fetch_that_takes_too_long_deletes_its_consumer() {
        let error = BrokerError::failed("the broker did not answer in time");
        for is_silent in [false, true] {
            let jetstream = Arc::new(Jetstream {
                last_sequence: Mutex::new(1),
                is_silent: AtomicBool::new(is_silent),
                ..Jetstream::default()
            });
            let peer = Peer::new({
                let jetstream = jetstream.clone();
                move |stream| jetstream.serve(stream)
            });
            let broker = connect(&format!("nats://{}", peer.address), &BTreeMap::new()).expect("a URL");
            let fetched = broker.fetch("s", 0, 1, 1000).block();
            // The limit of the request, not that of reading.
            assert_eq!(fetched.err(), Some(error.clone()));
            let last = || jetstream.consumer_requests.lock().unwrap().last().cloned();
            until("the consumer is deleted", || last().is_some_and(|(operation, _)| operation == "DELETE"));
            let requests = jetstream.consumer_requests.lock().unwrap();
            let (created, deleted) = (&requests[0], requests.last().expect("two"));
            assert_eq!((&*created.0, &created.1), ("CREATE", &deleted.1));
        }
    }
}

/// The rights of the documentation, at real brokers.
mod rights {
    use std::collections::BTreeMap;

    use sinews_testkit::{RealBroker, documented};

    use super::broker::operations::OPERATIONS;
    use super::broker::{Node, acked, publish, publish_once, until};

    const PAGE: &str = include_str!("../../../docs/book/src/server/brokers.md");

    /// Runs all operations twice: a second node continues behind the records of its copy.
    fn use_all(broker: &RealBroker) {
        for _ in 0..2 {
            let store = sinews_brokers::connect(&broker.url, &BTreeMap::new()).expect("a URL");
            let node = Node::new();
            for stream in ["s", "t"] {
                assert!(acked(&mut publish(&*store, stream, 0, &["a", "b", "c"])).is_ok());
            }
            publish_once(&*store, "s", "key", "x");
            for operation in OPERATIONS {
                assert_eq!(operation.run(&*store, &node), Ok(()), "{operation:?}");
            }
            until("it is ready", || store.health().ready);
            assert_eq!(store.health().error, None, "nothing is rejected");
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn documented_rights_of_redis_suffice() {
        let acl = documented(PAGE, "ACL SETUSER").trim().replace("ACL SETUSER", "user");
        let config =
            format!("port PORT\nbind 127.0.0.1\nsave \"\"\nappendonly no\nuser default off\n{acl}\n");
        let Some(broker) = RealBroker::start("redis-server", "redis", &config) else { return };
        use_all(&broker);
    }

    #[cfg(feature = "nats")]
    #[test]
    fn documented_rights_of_nats_suffice() {
        let rights = documented(PAGE, "permissions");
        let config = format!("listen: \"127.0.0.1:PORT\"\njetstream {{ store_dir: \"js\" }}\n{rights}\n");
        let Some(broker) = RealBroker::start("nats-server", "nats", &config) else { return };
        use_all(&broker);
    }
}
