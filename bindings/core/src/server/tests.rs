use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sinews_proto::{Negotiated, Role};

use super::*;
use crate::{Batch, Connection};

/// Limit of a wait: no test that passes waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// An event: kind, id, payload.
type Event = (u32, u32, Vec<u8>);

fn server(config: Config) -> BatchServer {
    let paths = |path: &str| vec![path.to_owned()];
    let address = ([127, 0, 0, 1], 0).into();
    let (websockets, requests) = (paths("/"), paths("/api/{name}"));
    BatchServer::bind(ServerSettings { websockets, requests, config, ..ServerSettings::new(address) })
        .unwrap()
}

impl BatchServer {
    /// Turns until there are events.
    fn next_events(&mut self) -> Vec<Event> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            assert!(self.turn().unwrap() && Instant::now() < deadline);
            let events = self.with_events(|words, bytes| {
                let event = |word: &[u32]| {
                    let (start, len) = (word[2] as usize, word[3] as usize);
                    (word[0], word[1], bytes[start..start + len].to_vec())
                };
                words.chunks_exact(4).map(event).collect::<Vec<_>>()
            });
            self.clear();
            if !events.is_empty() {
                return events;
            }
        }
    }

    /// Turns while the client does something on its own thread.
    fn during<R: Send>(&mut self, client: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| {
            let client = scope.spawn(client);
            while !client.is_finished() {
                assert!(self.turn().unwrap());
            }
            client.join().unwrap()
        })
    }
}

/// A client with its own connection.
struct Peer {
    stream: TcpStream,
    connection: Connection,
}

impl Peer {
    fn connect(server: &mut BatchServer) -> (Self, u32) {
        let mut stream = TcpStream::connect(server.address().unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = "GET /?a=b HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let events = server.next_events();
        let [(kind, id, request)] = &events[..] else { panic!("{events:?}") };
        let request = String::from_utf8(request.clone()).unwrap();
        assert_eq!(*kind, ServerEvent::Open as u32);
        assert!(
            request.starts_with("/?a=b\n127.0.0.1:") && request.contains("\nHost: localhost\n"),
            "{request}"
        );
        let mut response = Vec::new();
        server.during(|| {
            let mut byte = [0];
            while !response.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte).unwrap();
                response.push(byte[0]);
            }
        });
        let config = Arc::new(Config::default());
        let connection = Connection::new(Negotiated::websocket(Role::Client), config);
        (Self { stream, connection }, *id)
    }

    fn send(&mut self, texts: &[&str]) {
        for text in texts {
            let _ = self.connection.send(Kind::Text, text.as_bytes()).unwrap();
        }
        let bytes = self.connection.start_write().unwrap().concat();
        self.connection.finish_write();
        self.stream.write_all(&bytes).unwrap();
    }

    /// Receives this many messages.
    fn receive(&mut self, count: usize) -> Vec<String> {
        let mut texts = Vec::new();
        while texts.len() < count {
            let mut chunk = vec![0; 64 << 10];
            let len = self.stream.read(&mut chunk).unwrap();
            assert!(len > 0, "the server has closed");
            let mut batch = Batch::new();
            self.connection.receive(&mut chunk[..len], &mut batch);
            let text = |event| String::from_utf8(batch.payload(event, &chunk).to_vec()).unwrap();
            texts.extend(batch.events().map(text));
        }
        texts
    }
}

#[test]
fn burst_is_one_list_of_events_and_its_answers_leave_together() {
    let mut server = server(Config::default());
    let (mut peer, id) = Peer::connect(&mut server);
    peer.send(&["one", "two", "three"]);
    let events = server.next_events();
    let texts: Vec<_> = events.iter().map(|event| String::from_utf8_lossy(&event.2)).collect();
    assert_eq!(texts, ["one", "two", "three"]);
    for (kind, from, payload) in &events {
        assert_eq!((*kind, *from), (ServerEvent::Text as u32, id));
        assert_eq!(server.send(id, Kind::Text, payload), SendResult::Queued);
    }
    assert_eq!(server.buffered(id), 11);
    assert_eq!(server.next_turn(), NextTurn::Now);
    assert_eq!(server.during(|| peer.receive(3)), ["one", "two", "three"]);
    assert_eq!(server.buffered(id), 0);
}

#[test]
fn publication_reaches_subscribers_of_topics_and_patterns() {
    let mut server = server(Config::default());
    let (mut one, first) = Peer::connect(&mut server);
    let (mut other, second) = Peer::connect(&mut server);
    assert_ne!(first, second);
    assert_eq!(server.subscribe(first, "news.sport"), Ok(true));
    assert_eq!(server.subscribe(second, "news.>"), Ok(true));
    assert!(server.subscribe(first, "a..b").is_err());
    // No turn in between.
    assert!(server.publish("news.*", Kind::Text, b"").is_err());
    assert!(server.publish("a..b", Kind::Text, b"").is_err());
    server.publish("news.sport", Kind::Text, b"goal").unwrap();
    server.publish("news.music", Kind::Text, b"song").unwrap();
    assert_eq!(server.during(|| one.receive(1)), ["goal"]);
    assert_eq!(server.during(|| other.receive(2)), ["goal", "song"]);
    assert!(server.unsubscribe(second, "news.>"));
    server.publish("news.sport", Kind::Text, b"end").unwrap();
    assert_eq!(server.during(|| one.receive(1)), ["end"]);
}

#[test]
fn subscriptions_of_many_connections_precede_the_publication() {
    // More than the server wakes in a turn.
    const COUNT: usize = 300;
    let mut server = server(Config::default());
    let mut peers: Vec<_> = (0..COUNT).map(|_| Peer::connect(&mut server)).collect();
    for (_, id) in &peers {
        assert_eq!(server.subscribe(*id, "news"), Ok(true));
    }
    server.publish("news", Kind::Text, b"first").unwrap();
    for (peer, _) in &mut peers {
        assert_eq!(server.during(|| peer.receive(1)), ["first"]);
    }
    // Sends of the same turn go first.
    for (_, id) in &peers {
        assert_eq!(server.send(*id, Kind::Text, b"send"), SendResult::Queued);
    }
    server.publish("news", Kind::Text, b"second").unwrap();
    for (peer, _) in &mut peers {
        assert_eq!(server.during(|| peer.receive(2)), ["send", "second"]);
    }
}

#[test]
fn publications_beyond_the_mailbox_are_all_delivered() {
    const COUNT: usize = 70_000;
    let mut server = server(Config::default().with_max_outbound(16 << 20));
    let (mut peer, id) = Peer::connect(&mut server);
    assert_eq!(server.subscribe(id, "news"), Ok(true));
    for _ in 0..COUNT {
        assert_eq!(server.publish("news", Kind::Text, b"x"), Ok(true));
    }
    assert_eq!(server.during(|| peer.receive(COUNT)).len(), COUNT);
    // Their memory has a limit.
    let large = vec![0; PUBLICATION_BYTES_MAX];
    assert_eq!(server.publish("other", Kind::Binary, &large), Ok(true));
    assert_eq!(server.publish("other", Kind::Binary, b"x"), Ok(false));
    assert!(server.turn().unwrap());
    assert_eq!(server.publish("other", Kind::Binary, b"x"), Ok(true));
}

/// The whole server, with a route of its own at `/`.
fn whole(settings: &str) -> BatchServer {
    let (websockets, whole) = (vec!["/".to_owned()], Some(ConfigSource::Json(settings.to_owned())));
    let config = Config::default().with_max_outbound(16 << 20);
    let address = ([127, 0, 0, 1], 0).into();
    BatchServer::bind(ServerSettings { websockets, whole, config, ..ServerSettings::new(address) }).unwrap()
}

#[test]
fn whole_server_delivers_publications_beyond_the_mailbox_and_answers_in_events() {
    const COUNT: usize = 70_000;
    let mut server = whole(r#"{ "log": "off", "history": ["news=2"] }"#);
    let (mut peer, id) = Peer::connect(&mut server);
    assert_eq!(server.subscribe(id, "news"), Ok(true));
    assert!(server.turn().unwrap());
    assert!(server.presence("news", None).unwrap().contains("\"subscribers\":1"));
    for number in 0..COUNT {
        assert_eq!(server.publish("news", Kind::Text, number.to_string().as_bytes()), Ok(true));
    }
    let expected = Vec::from_iter((0..COUNT).map(|number| number.to_string()));
    assert_eq!(server.during(|| peer.receive(COUNT)), expected);
    let answer = |server: &mut BatchServer, topic: &str| {
        let id = server.history(topic, ReplayFrom::Last(5)).unwrap().unwrap();
        let events = server.next_events();
        let [(kind, answered, text)] = &events[..] else { panic!("{events:?}") };
        assert_eq!((kind & 0xff, *answered), (ServerEvent::Answer as u32, id));
        (kind >> 8, String::from_utf8(text.clone()).unwrap())
    };
    let (status, text) = answer(&mut server, "news");
    assert_eq!(status, 0);
    assert!(text.starts_with('[') && text.contains("\"69998\"") && text.contains("\"69999\""), "{text}");
    assert_eq!(answer(&mut server, "other"), (410, "topic other has no history".to_owned()));
    assert_eq!(server.publish_json("news", "{").unwrap_err().to_string().split(':').next(), Some("data"));
    server.stop();
    drop(peer);
    let deadline = Instant::now() + PATIENCE;
    while server.turn().unwrap() {
        assert!(Instant::now() < deadline);
    }
}

#[test]
fn connections_are_not_read_while_the_events_are_full() {
    const SIZE: usize = 100_000;
    const COUNT: usize = 400;
    let mut server = server(Config::default());
    let (mut peer, _) = Peer::connect(&mut server);
    let sender = std::thread::spawn(move || {
        let text = "x".repeat(SIZE);
        (0..COUNT).for_each(|_| peer.send(&[&text]));
        peer
    });
    // The interpreter reads nothing: far more than the limit would arrive.
    let mut longest = 0;
    for _ in 0..200 {
        assert!(server.turn().unwrap());
        longest = longest.max(server.with_events(|_, bytes| bytes.len()));
        std::thread::yield_now();
    }
    assert!(longest < EVENT_BYTES_MAX + 2 * SIZE, "{longest}");
    let mut received = server.with_events(|words, _| words.len() / 4);
    server.clear();
    let deadline = Instant::now() + PATIENCE;
    while received < COUNT {
        assert!(server.turn().unwrap() && Instant::now() < deadline, "{received}");
        received += server.with_events(|words, _| words.len() / 4);
        server.clear();
    }
    drop(sender.join().unwrap());
}

#[test]
fn events_that_arrive_while_others_are_read_are_kept() {
    let mut server = server(Config::default());
    let (mut peer, id) = Peer::connect(&mut server);
    let texts = |server: &BatchServer| {
        server.with_events(|words, bytes| {
            let text = |word: &[u32]| bytes[word[2] as usize..(word[2] + word[3]) as usize].to_vec();
            words.chunks_exact(4).map(text).collect::<Vec<_>>()
        })
    };
    let turn_until = |server: &mut BatchServer, count: usize| {
        let deadline = Instant::now() + PATIENCE;
        while lock(&server.shared).events.words.len() < count * 4 {
            assert!(server.turn().unwrap() && Instant::now() < deadline);
        }
    };
    peer.send(&["first", "second"]);
    turn_until(&mut server, 2);
    assert_eq!(texts(&server), [b"first".to_vec(), b"second".to_vec()]);
    peer.send(&["third"]);
    turn_until(&mut server, 3);
    server.clear();
    assert_eq!(texts(&server), [b"third".to_vec()]);
    server.clear();
    assert!(texts(&server).is_empty() && server.send(id, Kind::Text, b"") == SendResult::Queued);
}

#[test]
fn requests_are_answered_later_once_and_under_their_own_id() {
    let mut server = server(Config::default());
    let mut stream = TcpStream::connect(server.address().unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    for body in ["first", "second"] {
        let head = "POST /api/a?x=1 HTTP/1.1\r\nHost: localhost\r\nContent-Length";
        write!(stream, "{head}: {}\r\n\r\n{body}", body.len()).unwrap();
        let events = server.next_events();
        let [(kind, id, request)] = &events[..] else { panic!("{events:?}") };
        assert_eq!(*kind, ServerEvent::Request as u32);
        let request = String::from_utf8(request.clone()).unwrap();
        assert!(request.starts_with("POST /api/a?x=1\n127.0.0.1:"), "{request}");
        assert!(request.ends_with(&format!("\n\n{body}")), "{request}");
        let header = [("X-Name".to_owned(), "value".to_owned())];
        assert!(server.respond(*id, 99, &[], b"").unwrap_err().starts_with("status: 99"));
        let invalid = [("X-Name".to_owned(), "a\r\nb".to_owned())];
        assert!(server.respond(*id, 200, &invalid, b"").unwrap_err().contains("X-Name"));
        assert_eq!(server.respond(*id, 201, &header, b"done"), Ok(true));
        assert_eq!(server.respond(*id, 201, &header, b"again"), Ok(false));
        let answer = server.during(|| {
            let mut answer = Vec::new();
            while !answer.ends_with(b"done") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                answer.push(byte[0]);
            }
            String::from_utf8(answer).unwrap()
        });
        assert!(answer.starts_with("HTTP/1.1 201 ") && answer.contains("X-Name: value\r\n"), "{answer}");
    }
}

#[test]
fn end_of_a_connection_is_reported_once_and_drops_later_sends() {
    let mut server = server(Config::default());
    let (peer, id) = Peer::connect(&mut server);
    drop(peer);
    let events = server.next_events();
    assert_eq!(events, [(ServerEvent::Close as u32, id, 1006_u16.to_be_bytes().to_vec())]);
    assert_eq!(server.send(id, Kind::Text, b"late"), SendResult::Dropped);
    assert!(!server.close(id, CloseCode::NORMAL, ""));
    // The id is free.
    let (_peer, next) = Peer::connect(&mut server);
    assert_eq!(next, id);
}

#[test]
fn answers_to_messages_before_a_close_precede_its_answer() {
    let mut server = server(Config::default());
    let violation = [0x83, 0x80, 0, 0, 0, 0];
    for (code, reason) in [(4000, "done"), (1002, "")] {
        let (mut peer, id) = Peer::connect(&mut server);
        let _ = peer.connection.send(Kind::Text, b"last").unwrap();
        if code == 4000 {
            peer.connection.close(CloseCode::new(code).unwrap(), reason).unwrap();
        }
        let mut bytes = peer.connection.start_write().unwrap().concat();
        peer.connection.finish_write();
        if code == 1002 {
            bytes.extend(violation);
        }
        // One chunk.
        peer.stream.write_all(&bytes).unwrap();
        let events = server.next_events();
        assert_eq!(events, [(ServerEvent::Text as u32, id, b"last".to_vec())]);
        assert_eq!(server.send(id, Kind::Text, b"answer"), SendResult::Queued);
        assert_eq!(server.during(|| peer.receive(1)), ["answer"]);
        let (kind, from, payload) = server.next_events().remove(0);
        assert_eq!((kind, from, &payload[..2]), (ServerEvent::Close as u32, id, &u16::to_be_bytes(code)[..]));
    }
}

#[test]
fn answer_that_waits_for_a_turn_precedes_that_to_a_violation_in_the_next_chunk() {
    let mut server = server(Config::default());
    let (mut peer, id) = Peer::connect(&mut server);
    peer.send(&["last"]);
    assert_eq!(server.next_events(), [(ServerEvent::Text as u32, id, b"last".to_vec())]);
    assert_eq!(server.send(id, Kind::Text, b"answer"), SendResult::Queued);
    // A reserved opcode. It has arrived before the turn that sends the answer.
    peer.stream.write_all(&[0x83, 0x80, 0, 0, 0, 0]).unwrap();
    assert_eq!(server.during(|| peer.receive(1)), ["answer"]);
}

#[test]
fn drain_follows_each_send_that_was_told_to_wait() {
    let config = Config::default().with_high_water(1_000).with_max_outbound(5_000);
    let mut server = server(config);
    let (mut peer, id) = Peer::connect(&mut server);
    let drain = [(ServerEvent::Drain as u32, id, Vec::new())];
    // The queue is long before the turn only: the socket takes all at once.
    assert_eq!(server.send(id, Kind::Binary, &[0; 1_500]), SendResult::Backpressure);
    assert_eq!(server.next_events(), drain);
    assert_eq!(server.send(id, Kind::Binary, &[0; 900]), SendResult::Queued);
    assert_eq!(server.send(id, Kind::Binary, &[0; 4_500]), SendResult::Dropped);
    assert_eq!(server.next_events(), drain);
    server.set_slow(id);
    assert_eq!(server.next_events(), drain);
    server.during(|| peer.receive(2));
}

#[test]
fn full_queue_is_backpressure_and_then_drops() {
    let mut server = server(Config::default().with_high_water(1_000).with_max_outbound(5_000));
    let (mut peer, id) = Peer::connect(&mut server);
    assert_eq!(server.send(id, Kind::Binary, &[0; 900]), SendResult::Queued);
    assert_eq!(server.send(id, Kind::Binary, &[0; 900]), SendResult::Backpressure);
    assert_eq!(server.send(id, Kind::Binary, &[0; 4_000]), SendResult::Dropped);
    server.during(|| peer.receive(2));
    assert_eq!(server.send(id, Kind::Binary, &[0; 900]), SendResult::Queued);
}

#[test]
fn stop_closes_connections_and_ends_the_turns() {
    let mut server = server(Config::default());
    let (peer, _) = Peer::connect(&mut server);
    server.stop();
    let Peer { mut stream, .. } = peer;
    let close = std::thread::spawn(move || {
        let mut received = Vec::new();
        // The rest of the closing handshake is the end of the transport.
        let mut chunk = [0; 64];
        let len = stream.read(&mut chunk).unwrap();
        received.extend_from_slice(&chunk[..len]);
        received
    });
    let deadline = Instant::now() + PATIENCE;
    while server.turn().unwrap() {
        assert!(Instant::now() < deadline);
    }
    assert_eq!(close.join().unwrap()[..4], [0x88, 14, 3, 0xe9]);
}

#[test]
fn settings_are_checked_and_named() {
    let address = ([127, 0, 0, 1], 0).into();
    let fault = |settings: ServerSettings| BatchServer::bind(settings).unwrap_err().to_string();
    let settings = ServerSettings::new(address);
    assert!(
        fault(ServerSettings { websockets: vec!["a".to_owned()], ..settings.clone() })
            .starts_with("routes: \"a\"")
    );
    assert!(
        fault(ServerSettings {
            origins: vec!["x y".to_owned()],
            websockets: vec!["/".to_owned()],
            ..settings.clone()
        })
        .starts_with("origins: ")
    );
    assert!(
        fault(ServerSettings { config: Config::default().with_max_message(0), ..settings })
            .contains("max_message")
    );
    for invalid in [&["/{a}", "/{b}"][..], &["/{}"], &["/{*a}/b"], &["/a}{"]] {
        let requests = invalid.iter().map(|path| (*path).to_owned()).collect();
        assert!(fault(ServerSettings { requests, ..ServerSettings::new(address) }).starts_with("routes: "));
    }
    let same = ["/".to_owned()].to_vec();
    let both = ServerSettings { requests: same.clone(), websockets: same, ..ServerSettings::new(address) };
    assert!(BatchServer::bind(both).is_ok());
    let busy = server(Config::default());
    let fault = BatchServer::bind(ServerSettings::new(busy.address().unwrap())).unwrap_err();
    assert!(matches!(fault, ServerFault::System(_)), "{fault}");
}
