//! Connections with a log that writes on demand: backpressure, and the order of answers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use sinews_server::{Config, Listen, MessageRoute, Position, Router, Server, StopHandle};
use sinews_stream::record::{RecordBuilder, ValueKind};
use sinews_stream::{StreamConfig, Streams, StreamsConfig};
use tempfile::TempDir;

use super::errors::malformed;
use super::json::write_record;
use super::options::CreationRules;
use super::service::{StreamPatterns, StreamService};
use crate::access::auth::{Auth, AuthOptions};
use crate::access::hosts::HostRules;
use crate::config::{ConfigHandle, HubConfig};
use crate::protocol::binary::BinaryClient;

/// Longer than any step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server whose log is written by [`Streams::work`] alone.
struct StoredStreams {
    store: Arc<StreamService>,
    streams: Streams,
    _directory: TempDir,
    plain: std::net::SocketAddr,
    http: std::net::SocketAddr,
    stop: StopHandle,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl StoredStreams {
    fn new(max_pending: usize) -> Self {
        Self::with_config(max_pending, Config::default())
    }

    /// Creates a host with this configuration for plain TCP connections.
    fn with_config(max_pending: usize, config_of_plain: Config) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = StreamsConfig::default().with_writers(0).with_max_pending(max_pending);
        let (streams, _) = Streams::open(directory.path(), config).unwrap();
        let store = StreamService::new(
            StreamConfig::default(),
            StreamPatterns::default(),
            1 << 20,
            None,
            CreationRules::default(),
            Default::default(),
        );
        store.install(streams.clone());
        streams.create("s", &StreamConfig::default()).unwrap();
        let kept = Arc::clone(&store);
        let auth = Auth::new(&AuthOptions::new()).unwrap();
        let live = ConfigHandle::new(HubConfig::new(auth, HostRules::default())).unwrap();
        let (to_post, of_post) = (live.clone(), Arc::clone(&store));
        let router = Router::new().post("/streams/{name}", move |request| {
            crate::api::streams::append(&to_post.config(), Some(&of_post), request)
        });
        let (to_read, of_read) = (live.clone(), Arc::clone(&store));
        let router = router.get("/streams/{name}", move |request| {
            crate::api::streams::read(&to_read.config(), Some(&of_read), request)
        });
        let (to_fetch, of_fetch) = (live.clone(), Arc::clone(&store));
        let router = router.get("/streams/{name}/records", move |request| {
            crate::api::streams::fetch_records(&to_fetch.config(), Some(&of_fetch), request)
        });
        let route = MessageRoute::new(move |_| {
            BinaryClient::plain(&live, Arc::clone(&store), Arc::default(), 1 << 20)
        });
        let route = route.with_config(config_of_plain);
        let any = || Listen::tcp(([127, 0, 0, 1], 0).into());
        let server = Server::new(router).threads(1).listen_on(any()).listen_on(any().with_messages(route));
        let server = server.bind().unwrap();
        let (http, plain, stop) = (server.addresses()[0], server.addresses()[1], server.stop_handle());
        let thread = Some(std::thread::spawn(|| server.run()));
        Self { store: kept, streams, _directory: directory, plain, http, stop, thread }
    }

    /// A client that has sent hello.
    fn client(&self) -> StoreClient {
        self.client_of("s")
    }

    fn client_of(&self, name: &str) -> StoreClient {
        let stream = TcpStream::connect(self.plain).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut client = StoreClient(stream);
        client.send_message(0, 0, 0, &[&[1, name.len() as u8], name.as_bytes()].concat());
        assert_eq!(client.receive_message().0, 128);
        client
    }

    fn get(&self, path: &str) -> String {
        let answer = answer(self.request("GET", path, b""));
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        body.to_owned()
    }

    fn post(&self, path: &str, body: &[u8]) -> TcpStream {
        self.request("POST", path, body)
    }

    fn request(&self, method: &str, path: &str, body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.http).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let len = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n"
        )
        .unwrap();
        stream.write_all(body).unwrap();
        stream
    }

    fn pending(&self) -> u64 {
        self.streams.stream("s").unwrap().partition(0).unwrap().statistics().pending
    }

    fn work(&self) {
        while self.streams.work() {}
    }
}

impl Drop for StoredStreams {
    fn drop(&mut self) {
        self.stop.stop_now();
        let ended = self.thread.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

struct StoreClient(TcpStream);

impl StoreClient {
    fn send_message(&mut self, op: u8, flags: u8, id: u32, body: &[u8]) {
        self.send_message_to(0, op, flags, id, body);
    }

    fn send_message_to(&mut self, partition: u16, op: u8, flags: u8, id: u32, body: &[u8]) {
        let mut message = ((8 + body.len()) as u32).to_le_bytes().to_vec();
        message.extend([op, flags]);
        message.extend(partition.to_le_bytes());
        message.extend(id.to_le_bytes());
        message.extend(body);
        self.0.write_all(&message).unwrap();
    }

    /// Returns the next message's op, id and body.
    fn receive_message(&mut self) -> (u8, u32, Vec<u8>) {
        let mut len = [0; 4];
        self.0.read_exact(&mut len).unwrap();
        let mut message = vec![0; u32::from_le_bytes(len) as usize];
        self.0.read_exact(&mut message).unwrap();
        (message[0], u32::from_le_bytes(message[4..8].try_into().unwrap()), message[8..].to_vec())
    }
}

fn batch(len: usize) -> Vec<u8> {
    let mut builder = RecordBuilder::new();
    builder.push(1, b"", &vec![b'x'; len], ValueKind::Bytes).unwrap();
    builder.finish().unwrap().into_bytes().to_vec()
}

fn answer(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn fast_producer_is_paused_and_loses_no_record() {
    const MAX: usize = 64 << 10;
    let host = StoredStreams::new(MAX);
    let mut client = host.client();
    let batch = batch(10_000);
    for id in 1..=50 {
        client.send_message(1, 1, id, &batch);
    }
    client.send_message(6, 0, 51, b"");
    // The log queues the first batches at once.
    let fit = (MAX / batch.len()) as u32;
    for id in 1..=fit {
        let (op, of, body) = client.receive_message();
        assert_eq!((op, of, body[0]), (129, id, id as u8 - 1));
    }
    // A request, which has no connection to pause, is rejected.
    let refused = answer(host.post("/streams/s", &batch));
    assert!(refused.starts_with("HTTP/1.1 429 ") && refused.contains("Retry-After: 1"), "{refused}");
    assert!(host.pending() <= (MAX + batch.len()) as u64, "{} bytes queued", host.pending());
    let working = std::thread::scope(|scope| {
        let working = scope.spawn(|| {
            let mut most = 0;
            while host.streams.stream("s").unwrap().partition(0).unwrap().offsets().readable < 50 {
                most = most.max(host.pending());
                host.work();
                std::thread::yield_now();
            }
            most
        });
        for id in fit + 1..=50 {
            let (op, of, body) = client.receive_message();
            assert_eq!((op, of, body[0]), (129, id, id as u8 - 1), "in order");
        }
        assert_eq!(client.receive_message().0, 134, "later messages");
        working.join().unwrap()
    });
    assert!(working <= (MAX + batch.len()) as u64, "{working} bytes queued");
}

#[test]
fn batch_above_half_of_the_queue_waits_for_the_write_and_is_appended() {
    const MAX: usize = 64 << 10;
    let host = StoredStreams::new(MAX);
    let mut client = host.client();
    // Nearly half of the queue, and batches that do not fit into the other half.
    client.send_message(1, 1, 1, &batch(MAX / 2 - 2_000));
    client.send_message(1, 1, 2, &batch(MAX / 2 + 8_000));
    // The worker does not try again and again until the log has written.
    assert_eq!(client.receive_message().1, 1);
    assert_eq!(client.receive_message().1, 2);
    client.send_message(1, 1, 3, &batch(MAX / 2 + 8_000));
    let pending = host.pending();
    let refused = answer(host.post("/streams/s", &batch(MAX / 2 + 8_000)));
    assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
    assert_eq!(host.pending(), pending, "the third batch waits");
    host.work();
    let (op, id, body) = client.receive_message();
    assert_eq!((op, id, body[0]), (129, 3, 2));
}

#[test]
fn commit_to_a_partition_that_another_client_reads_is_rejected() {
    let host = StoredStreams::new(1 << 20);
    let [mut member, mut other] = [(); 2].map(|()| host.client());
    member.send_message_to(u16::MAX, 2, 0, 1, &[&[1][..], &[0; 15], b"g"].concat());
    assert_eq!(member.receive_message().0, 130, "subscribed");
    assert_eq!(member.receive_message().0, 140, "assigned");
    let commit = |client: &mut StoreClient, group: &[u8]| {
        client.send_message_to(0, 4, 0, 2, &[&0_u64.to_le_bytes(), group].concat());
    };
    commit(&mut other, b"g");
    let (op, id, body) = other.receive_message();
    assert_eq!((op, id, &body[..2]), (255, 2, &409_u16.to_le_bytes()[..]));
    // A group without members.
    commit(&mut other, b"h");
    other.send_message(6, 0, 3, b"");
    assert_eq!(other.receive_message().0, 134, "the log has not written the commit");
    host.work();
    assert_eq!(other.receive_message().0, 132, "committed");
}

#[test]
fn answers_wait_for_capacity_of_the_connection() {
    const COUNT: u32 = 1_000;
    // Far less than the size of all answers, which are due at once.
    let host = StoredStreams::with_config(
        1 << 20,
        Config::default().with_high_water(1_000).with_max_outbound(2_000),
    );
    let mut client = host.client();
    for id in 0..COUNT {
        client.send_message(1, 2, id, &batch(1));
    }
    client.send_message(6, 0, COUNT, b"");
    assert_eq!(client.receive_message().0, 134, "earlier messages were processed");
    host.work();
    for id in 0..COUNT {
        assert_eq!(
            client.receive_message(),
            (129, id, [&u64::from(id).to_le_bytes()[..], &[1, 0, 0, 0]].concat())
        );
    }
}

#[test]
fn disk_acknowledgement_follows_the_sync() {
    let host = StoredStreams::new(1 << 20);
    let mut client = host.client();
    client.send_message(2, 0, 9, &[0; 16]);
    assert_eq!(client.receive_message().0, 130);
    client.send_message(1, 2, 1, &batch(10));
    client.send_message(1, 1, 2, &batch(10));
    client.send_message(1, 2, 3, &batch(10));
    client.send_message(6, 0, 4, b"");
    // Answers of one partition are in order; readers receive only records on disk.
    assert_eq!(client.receive_message().0, 134);
    let posted = host.post("/streams/s?ack=disk", b"four");
    let at_once = answer(host.post("/streams/s?ack=memory", b"five"));
    assert!(at_once.contains("\"offset\":"), "{at_once}");
    host.work();
    let (mut ids, mut read) = (Vec::new(), 0);
    while ids.len() < 3 || read < 5 {
        match client.receive_message() {
            (129, id, _) => ids.push(id),
            (131, 9, body) => read = u64::from_le_bytes(body[8..16].try_into().unwrap()),
            other => panic!("{other:?}"),
        }
        host.work();
    }
    assert_eq!(ids, [1, 2, 3]);
    assert!(answer(posted).starts_with("HTTP/1.1 200 "));
}

#[test]
fn closed_log_is_reported_to_all_clients() {
    let host = StoredStreams::new(1 << 20);
    let mut client = host.client();
    client.send_message(2, 0, 9, &[0; 16]);
    assert_eq!(client.receive_message().0, 130);
    host.store.close();
    let (op, id, body) = client.receive_message();
    assert_eq!((op, id, &body[..2]), (255, 9, &503_u16.to_le_bytes()[..]), "the subscription ended");
    client.send_message(1, 2, 1, &batch(1));
    assert_eq!(client.receive_message().2[..2], 503_u16.to_le_bytes());
    let refused = answer(host.post("/streams/s", b"x"));
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("Retry-After: 1"), "{refused}");
}

#[test]
fn partitions_of_a_connection_are_limited() {
    let host = StoredStreams::new(1 << 20);
    host.streams.create("wide", &StreamConfig::default().with_partitions(64)).unwrap();
    let mut client = host.client_of("wide");
    let all = |client: &mut StoreClient, id: u32| {
        client.send_message_to(u16::MAX, 2, 0, id, &[0; 16]);
        client.receive_message()
    };
    for id in 1..=64 {
        assert_eq!(all(&mut client, id).0, 130);
    }
    let (op, id, body) = all(&mut client, 65);
    assert_eq!((op, id, &body[..2]), (255, 65, &429_u16.to_le_bytes()[..]));
    assert!(body.ends_with(b"at most 4096 partitions"), "{}", String::from_utf8_lossy(&body));
    client.send_message(5, 0, 66, &7_u32.to_le_bytes());
    assert_eq!(client.receive_message().0, 133);
    assert_eq!(all(&mut client, 65).0, 130, "earlier subscriptions were ended");
}

#[test]
fn connection_commits_for_each_of_its_memberships_of_a_group() {
    let host = StoredStreams::new(1 << 20);
    host.streams.create("pair", &StreamConfig::default().with_partitions(2)).unwrap();
    let mut client = host.client_of("pair");
    for id in [1, 2] {
        let start = [4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        client.send_message_to(u16::MAX, 2, 0, id, &[&start[..], b"g"].concat());
    }
    let mut assigned = [0, 0];
    // An assigned partition has 16 bytes.
    while assigned != [16, 16] {
        match client.receive_message() {
            (130, ..) => {}
            (140, id, body) => assigned[id as usize - 1] = body.len(),
            other => panic!("{other:?}"),
        }
    }
    for partition in [0, 1] {
        client.send_message_to(partition, 4, 0, 3, &[&[0; 8], &b"g"[..]].concat());
    }
    client.send_message(6, 0, 4, b"");
    assert_eq!(client.receive_message().0, 134, "no commit is rejected");
    host.work();
    assert_eq!([client.receive_message().0, client.receive_message().0], [132, 132]);
}

#[test]
fn publications_of_another_process_are_delivered_if_they_follow_directly() {
    let directory = tempfile::tempdir().unwrap();
    let (streams, _) = Streams::open(directory.path(), StreamsConfig::default().with_writers(0)).unwrap();
    let store = StreamService::new(
        StreamConfig::default(),
        StreamPatterns { topics: vec!["chat".to_owned()].into(), ..StreamPatterns::default() },
        1 << 20,
        None,
        CreationRules::default(),
        Default::default(),
    );
    let stream = streams.create("chat", &StreamConfig::default().with_partitions(1)).unwrap();
    store.install(streams);
    let topics = store.topics();
    let at = |sequence| Position { epoch: stream.created(), sequence };
    assert!(topics.follows_directly("other", at(7)), "not a durable topic");
    assert!(!topics.follows_directly("chat", at(1)), "the relay of this process publishes it");
    assert!(store.topic_relay("chat").unwrap().is_some(), "the stream is open, and its relay runs");
    topics.finish();
    let follows_directly: Vec<bool> =
        [2, 1, 1, 2, 4, 3].map(|sequence| topics.follows_directly("chat", at(sequence))).into();
    assert_eq!(follows_directly, [false, true, false, true, false, true]);
    assert!(!topics.follows_directly("chat", Position { epoch: 1, sequence: 4 }));
}

#[test]
fn line_has_one_record_with_any_content() {
    let mut builder = RecordBuilder::new();
    let forged = b"[\r\n{\"offset\":9}\n, \"a\\nb\"]";
    builder.push(1, b"\n", forged, ValueKind::Json).unwrap();
    let records = builder.finish().unwrap();
    let mut line = String::new();
    write_record(&records.iter().next().unwrap().unwrap(), "", &mut line);
    assert!(!line.contains(['\r', '\n']), "{line}");
    let read: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(read["data"], serde_json::from_slice::<serde_json::Value>(forged).unwrap());
}

#[test]
fn record_above_8_mib_is_rejected() {
    let store = StreamService::new(
        StreamConfig::default(),
        Default::default(),
        64 << 20,
        None,
        CreationRules::default(),
        Default::default(),
    );
    let value = vec![0; 8 << 20];
    let mut builder = RecordBuilder::with_limits(*store.limits());
    let problem = malformed(builder.push(0, b"", &value, ValueKind::Bytes).unwrap_err());
    assert_eq!(problem.code, 413);
    assert!(problem.text.contains("8 MiB"), "{}", problem.text);
    builder.push(0, b"", &value[1000..], ValueKind::Bytes).unwrap();
}

#[test]
fn large_batch_is_answered_in_parts_of_limited_length() {
    let host = StoredStreams::new(16 << 20);
    let mut builder = RecordBuilder::new();
    for _ in 0..1_000 {
        // Six bytes of JSON for each byte.
        builder.push(1, b"", &[1; 8_000], ValueKind::Text).unwrap();
    }
    host.streams.stream("s").unwrap().partition(0).unwrap().append(builder.finish().unwrap()).unwrap();
    host.work();
    let mut next = 0;
    let mut answers = 0;
    while next < 1_000 {
        let answer = host.get(&format!("/streams/s/records?offset={next}"));
        assert!(answer.len() < (256 << 10) + 50_000, "{} bytes", answer.len());
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        let records = answer["records"].as_array().unwrap();
        let offsets: Vec<u64> = records.iter().map(|record| record["offset"].as_u64().unwrap()).collect();
        let end = answer["next"].as_u64().unwrap();
        assert_eq!((offsets, &answer["end"]), ((next..end).collect(), &1_000.into()));
        (next, answers) = (end, answers + 1);
    }
    assert!(answers >= 150, "{answers}");
    let lines = host.get("/streams/s?max=1000");
    assert!(((4 << 20)..(4 << 20) + 50_000).contains(&lines.len()), "{} bytes", lines.len());
    assert!(lines.ends_with("}\n"));
}
