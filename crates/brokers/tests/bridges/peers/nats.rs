//! Scripted brokers of NATS.

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

use super::{CommandLog, Peer, bytes, check_cases, line, reject_each_command};
use crate::broker::operations::Operation;
use crate::broker::{acked, publish, publish_once, until};

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
