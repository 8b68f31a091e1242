//! Tests of the bridges against scripted brokers, which cause rare behavior of real ones at will.

#![cfg(any(feature = "nats", feature = "redis"))]

#[allow(dead_code, reason = "these need a part of it")]
mod broker;

use std::io::{self, BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

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

#[cfg(feature = "redis")]
mod redis {
    use std::collections::BTreeMap;
    use std::io::{self, BufReader, Write};
    use std::net::TcpStream;
    use std::sync::{Arc, Mutex};

    use sinews_brokers::connect;
    use sinews_stream::broker::{Broker, BrokerError};
    use sinews_stream::{AppendError, Partition, StartPosition};

    use super::broker::{Node, acked, publish, publish_once, read, until, values};
    use super::{Peer, bytes, line};

    /// A Redis with one stream.
    #[derive(Default)]
    struct RedisDouble {
        stored: Mutex<Vec<&'static str>>,
        /// The answer to each append, and to requests for the extent of the stream.
        append_error: Mutex<Option<&'static str>>,
        extent_error: Mutex<Option<&'static str>>,
        /// Channels that clients have subscribed to.
        subscriptions: Mutex<Vec<String>>,
    }

    impl RedisDouble {
        fn start(stored: Vec<&'static str>) -> (Arc<Self>, Peer) {
            let redis = Arc::new(Self { stored: Mutex::new(stored), ..Self::default() });
            let served = redis.clone();
            (redis, Peer::new(move |stream| served.serve(stream)))
        }

        fn serve(&self, stream: TcpStream) -> io::Result<()> {
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
            match &*words[0] {
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

    fn answer(words: &[String], stored: &[&str]) -> String {
        let text = |text: &str| format!("${}\r\n{text}\r\n", text.len());
        let entry = |at: usize| {
            format!("*2\r\n{}*2\r\n{}{}", text(&format!("0-{}", at + 1)), text("v"), text(stored[at]))
        };
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
                let entries: Vec<String> = (from.max(1) - 1..stored.len()).map(entry).collect();
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

    use super::broker::{acked, publish, publish_once, until};
    use super::{Peer, bytes, line};

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
