//! Tests of a worker, turn by turn. The clients live in the same thread, so that their writes are in the kernel by the
//! next turn.

use std::future;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use sinews_engine::{Engine, ListenOptions, Listener};
use sinews_proto::Role;
use sinews_testkit::{Frame, Reader, Reply};

mod http2;
mod http3;

use super::app::STALL_MIN;
use super::stop::{LINGERING_STEP_MIN, LINGERING_STEPS};
use super::*;
use crate::date::Date;
use crate::limits::Gate;
use crate::pool::BlockingPool;
use crate::tasks::Tasks;
use crate::topics::mail::Stop;
use crate::topics::{Directory, PublishOptions, TopicRules, Topics};
use crate::{Answer, Context, Handler, Payload, Prepared, Response, TopicConfig, WebSocketRoute};

/// Publishes each message, to another topic if it begins with `=`; `-` ends the subscription, `+` adds the other topic,
/// `?` is answered; a message that begins with `#` is a version. After publishing `!`, the member sends what other
/// clients send meanwhile.
struct ChatMember {
    subscribes: bool,
    meanwhile: Meanwhile,
}

/// Connections of clients, and their next input; none ends the connection.
type Meanwhile = Arc<Mutex<Vec<(TcpStream, Vec<u8>)>>>;

impl Handler for ChatMember {
    fn open(&mut self, cx: &mut Context<'_>) {
        assert!(!self.subscribes || cx.subscribe("all").is_ok());
    }

    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        if &payload[..] == b"-" {
            assert!(cx.unsubscribe("all"));
        } else if &payload[..] == b"+" {
            cx.subscribe("other").unwrap();
        } else if &payload[..] == b"?" {
            let _ = cx.send_text("answer").unwrap();
        } else if payload.starts_with(b"=") {
            cx.publish("other", &Prepared::new(payload.kind(), payload.detach()), PublishOptions::new())
                .unwrap();
        } else if payload.starts_with(b"#") {
            let version = std::str::from_utf8(&payload[1..]).unwrap().parse().unwrap();
            let message = Prepared::new(payload.kind(), payload.detach());
            cx.publish("all", &message, PublishOptions::new().version(version)).unwrap();
        } else {
            let is_first = &payload[..] == b"!";
            cx.publish("all", &Prepared::new(payload.kind(), payload.detach()), PublishOptions::new())
                .unwrap();
            for (mut stream, input) in self.meanwhile.lock().drain(..).filter(|_| is_first) {
                stream.write_all(&input).unwrap();
                if input.is_empty() {
                    stream.shutdown(Shutdown::Both).unwrap();
                }
            }
        }
    }
}

/// A worker, its loop, and its address.
struct TestServer {
    engine: Engine<Worker>,
    worker: Worker,
    address: SocketAddr,
    /// Wakers of requests to `/later`.
    wakers: Arc<Mutex<Vec<Waker>>>,
    meanwhile: Meanwhile,
}

impl TestServer {
    fn new(config: TopicConfig) -> Self {
        Self::on(engine::EngineConfig::default(), config).unwrap()
    }

    fn on(engine: engine::EngineConfig, config: TopicConfig) -> std::io::Result<Self> {
        let wakers = Arc::<Mutex<Vec<Waker>>>::default();
        let waiting = wakers.clone();
        let meanwhile = Meanwhile::default();
        let member = |subscribes| {
            let meanwhile = meanwhile.clone();
            WebSocketRoute::new(move |_| Ok(ChatMember { subscribes, meanwhile: meanwhile.clone() }))
        };
        let router = Router::new()
            .get("/later", move |_| {
                let (waiting, mut is_listed) = (waiting.clone(), false);
                Answer::later(future::poll_fn(move |cx| {
                    if std::mem::replace(&mut is_listed, true) {
                        return Poll::Ready(Response::new(204));
                    }
                    waiting.lock().push(cx.waker().clone());
                    Poll::Pending
                }))
            })
            .get("/large", |_| Response::text(vec![b'x'; LARGE]))
            .websocket("/hear", member(true).with_config(patient()))
            .websocket("/tell", member(false))
            .websocket("/idle", member(false).with_config(idle()))
            .post("/", |request| {
                let message = Prepared::text(String::from_utf8_lossy(request.body()));
                request.topics().publish("all", &message, PublishOptions::new()).unwrap();
                Response::new(204)
            });
        let listener = Listener::bind(([127, 0, 0, 1], 0).into(), &ListenOptions::default()).unwrap();
        let address = listener.local_addr().unwrap();
        let engine = Engine::new(engine, vec![listener])?;
        let worker = Worker::new(WorkerSetup {
            router: Arc::new(router),
            stop_times: StopTimes { grace: Duration::from_secs(60), ..StopTimes::default() },
            stop: Arc::default(),
            appends: AppendQueue::new(engine.post()),
            number: 0,
            listener_protocols: Arc::default(),
            endpoints: Vec::new(),
            routing: Arc::new(QuicRouting::new(1, None)),
            services: Services {
                http: Arc::default(),
                topics: Topics::new(
                    0,
                    config,
                    Directory::new(1, TopicRules::default()),
                    Arc::new([engine.post()]),
                ),
                tasks: Tasks::new(engine.post(), BlockingPool::new(Default::default())),
                counters: Arc::default(),
                gate: Arc::new(Gate::new(crate::Limits::default(), Arc::default(), Vec::new())),
                proxies: Arc::default(),
                date: Date::default(),
                now: Time::ZERO,
                epoch: Instant::now(),
                stopping_since: None,
                encrypted: false,
                tag: 0,
                http3_port: None,
            },
        });
        Ok(Self { engine, worker, address, wakers, meanwhile })
    }

    /// Runs one turn; returns the number of sends.
    fn turn(&mut self) -> u64 {
        let before = self.engine.stats().sends;
        self.engine.turn(&mut self.worker, Some(Duration::from_millis(10))).unwrap();
        self.engine.stats().sends - before
    }

    fn turn_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..1_000 {
            if done(self) {
                return;
            }
            self.turn();
        }
        panic!("condition not met within the maximum number of turns");
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    fn open(&mut self, path: &str) -> TestClient {
        let mut client =
            TestClient { stream: self.connect(), reader: Reader::new(Role::Server, None), texts: Vec::new() };
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        );
        client.stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        self.turn_until(|_| {
            read(&mut client.stream, &mut answer);
            answer.ends_with(b"\r\n\r\n")
        });
        client
    }

    fn subscribers<const N: usize>(&mut self) -> [TestClient; N] {
        std::array::from_fn(|_| self.open("/hear"))
    }

    fn waits(&mut self) -> bool {
        self.worker.delivery.partial.is_some()
    }
}

/// More than the kernel takes.
const LARGE: usize = 24 << 20;

/// Keeps connections that read nothing for a long time.
fn patient() -> sinews_proto::Config {
    sinews_proto::Config::default().with_max_outbound(64 << 20)
}

/// Closes connections that are idle for a short time.
fn idle() -> sinews_proto::Config {
    sinews_proto::Config::default().with_ping_interval(None).with_idle_timeout(Some(IDLE_TIMEOUT))
}

const IDLE_TIMEOUT: Duration = Duration::from_secs(2);

struct TestClient {
    stream: TcpStream,
    reader: Reader,
    texts: Vec<String>,
}

impl TestClient {
    /// Sends a text while `!` is published.
    fn send_meanwhile(&self, host: &TestServer, text: &str) {
        let input = Frame::text(text).encode(Role::Client);
        host.meanwhile.lock().push((self.stream.try_clone().unwrap(), input));
    }

    fn send_texts(&mut self, texts: impl IntoIterator<Item = String>) {
        let wire: Vec<u8> =
            texts.into_iter().flat_map(|text| Frame::text(text).encode(Role::Client)).collect();
        self.stream.write_all(&wire).unwrap();
    }

    /// Reads available input; returns the number of messages.
    fn receive_texts(&mut self) -> usize {
        let mut bytes = Vec::new();
        read(&mut self.stream, &mut bytes);
        for reply in self.reader.read(&bytes).unwrap() {
            match reply {
                Reply::Message(_, text) => self.texts.push(String::from_utf8(text).unwrap()),
                Reply::Close(code, _) => self.texts.push(format!("closed with {code:?}")),
                other => panic!("{other:?}"),
            }
        }
        self.texts.len()
    }
}

/// Reads available bytes from the kernel.
fn read(stream: &mut TcpStream, bytes: &mut Vec<u8>) {
    match stream.read_to_end(bytes) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        Err(error) => panic!("{error}"),
    }
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

#[test]
fn budget_limits_a_turn_to_one_send_per_subscriber() {
    const BUDGET: usize = 10;
    let mut host = TestServer::new(TopicConfig::default().with_deliveries_per_turn(BUDGET));
    let mut subscribers: [TestClient; 3] = host.subscribers();
    let mut publisher = host.open("/tell");
    publisher.send_texts(numbers(0..100));
    let (mut all, mut turns) = (0, 0);
    while all < 300 {
        let sends = host.turn();
        let now: usize = subscribers.iter_mut().map(TestClient::receive_texts).sum();
        assert!(now - all <= BUDGET, "{} deliveries in a turn", now - all);
        assert!(sends <= 3, "{sends} sends in a turn");
        assert_eq!(now < 300, host.waits());
        all = now;
        turns += 1;
        assert!(turns < 100, "{all} deliveries after {turns} turns");
    }
    for subscriber in &subscribers {
        assert_eq!(subscriber.texts, numbers(0..100));
    }
}

#[test]
fn wakeups_are_processed_in_batches_per_turn() {
    const CLIENTS: usize = 40;
    let mut host = TestServer::new(TopicConfig::default());
    let clients: Vec<TcpStream> = (0..CLIENTS)
        .map(|_| {
            let mut client = host.connect();
            client.write_all(b"GET /later HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            client
        })
        .collect();
    host.turn_until(|host| host.wakers.lock().len() == CLIENTS);
    std::mem::take(&mut *host.wakers.lock()).into_iter().for_each(Waker::wake);
    let sends: Vec<u64> = (0..4).map(|_| host.turn()).collect();
    assert_eq!(sends, [16, 16, 8, 0]);
    let is_answered = |client: &mut TcpStream| {
        let mut answer = Vec::new();
        read(client, &mut answer);
        answer.starts_with(b"HTTP/1.1 204 ")
    };
    for mut client in clients {
        host.turn_until(|_| is_answered(&mut client));
    }
}

#[test]
fn deliveries_within_the_budget_leave_in_one_send_per_subscriber() {
    let mut host = TestServer::new(TopicConfig::default());
    let mut subscribers: [TestClient; 3] = host.subscribers();
    let mut publisher = host.open("/tell");
    publisher.send_texts(numbers(0..100));
    let before = host.engine.stats().sends;
    host.turn_until(|_| subscribers[2].receive_texts() == 100);
    assert_eq!(host.engine.stats().sends - before, 3);
    assert!(subscribers.iter_mut().all(|subscriber| subscriber.receive_texts() == 100));
}

/// Both publishers are read in one turn. They may subscribe too: a publication that excludes its publisher does not
/// split the run of the other subscribers.
#[test]
fn publications_of_a_turn_leave_in_one_send_per_subscriber_and_in_order() {
    let backends = [engine::BackendChoice::Poll, engine::BackendChoice::Uring];
    for (backend, path, sends_expected) in
        backends.into_iter().flat_map(|backend| [(backend, "/tell", 20), (backend, "/hear", 22)])
    {
        let config = engine::EngineConfig::default().with_backend(backend);
        let mut host = match TestServer::on(config, TopicConfig::default()) {
            Ok(host) => host,
            Err(error) => {
                println!("skipped: {backend:?}: {error}");
                continue;
            }
        };
        let mut subscribers: [TestClient; 20] = host.subscribers();
        let (mut first, mut second) = (host.open(path), host.open(path));
        host.turn_until(|host| host.turn() == 0);
        first.send_texts(numbers(0..4));
        second.send_texts(numbers(10..14));
        let sends = host.turn();
        host.turn_until(|_| subscribers.iter_mut().map(TestClient::receive_texts).min() == Some(8));
        assert_eq!((sends, host.worker.delivery.runs.direct), (sends_expected, 20 * 8), "{backend:?} {path}");
        if path == "/hear" {
            // A subscriber gets its own publications first, and once.
            host.turn_until(|_| first.receive_texts() + second.receive_texts() == 16);
            assert_eq!(first.texts, [numbers(0..4), numbers(10..14)].concat());
            assert_eq!(second.texts, [numbers(10..14), numbers(0..4)].concat());
        }
        for subscriber in &subscribers {
            let (low, high): (Vec<&String>, Vec<&String>) =
                subscriber.texts.iter().partition(|text| text.len() == 1);
            assert_eq!((low, high), (numbers(0..4).iter().collect(), numbers(10..14).iter().collect()));
            assert_eq!(subscriber.texts, subscribers[0].texts, "{backend:?}");
        }
    }
}

/// Runs a test on both backends.
fn on_each_backend(test: impl Fn(TestServer)) {
    for backend in [engine::BackendChoice::Poll, engine::BackendChoice::Uring] {
        let config = engine::EngineConfig::default().with_backend(backend);
        match TestServer::on(config, TopicConfig::default()) {
            Ok(host) => test(host),
            Err(error) => println!("skipped: {backend:?}: {error}"),
        }
    }
}

/// The first two subscribers have the first publication when the second arrives. The ten others get one send for both.
#[test]
fn publication_during_a_large_fan_out_leaves_in_the_same_sends() {
    on_each_backend(|mut host| {
        let mut subscribers: [TestClient; 12] = host.subscribers();
        let (mut first, second) = (host.open("/tell"), host.open("/tell"));
        host.turn_until(|host| host.turn() == 0);
        second.send_meanwhile(&host, "second");
        first.send_texts(["!".to_owned()]);
        let sends = host.turn();
        host.turn_until(|_| subscribers.iter_mut().map(TestClient::receive_texts).min() == Some(2));
        assert_eq!((sends, host.worker.delivery.runs.direct), (2 + 10 + 2, 24));
        assert!(subscribers.iter().all(|client| client.texts == ["!", "second"]));
    });
}

/// Subscribers that wait for a publication have it before the answer to their input, and after the end of their
/// subscription they get none.
#[test]
fn input_during_a_large_fan_out_is_answered_after_the_publication() {
    on_each_backend(|mut host| {
        let mut subscribers: [TestClient; 12] = host.subscribers();
        let (mut first, second) = (host.open("/tell"), host.open("/tell"));
        host.turn_until(|host| host.turn() == 0);
        subscribers[0].send_meanwhile(&host, "?");
        subscribers[10].send_meanwhile(&host, "?");
        subscribers[11].send_meanwhile(&host, "-");
        second.send_meanwhile(&host, "second");
        first.send_texts(["!".to_owned()]);
        host.turn_until(|_| subscribers[..11].iter_mut().map(TestClient::receive_texts).sum::<usize>() == 24);
        for _ in 0..3 {
            host.turn();
        }
        assert_eq!(subscribers[11].receive_texts(), 1);
        let expected = |number| match number {
            0 | 10 => &["!", "answer", "second"][..],
            11 => &["!"],
            _ => &["!", "second"],
        };
        for (number, client) in subscribers.iter().enumerate() {
            assert_eq!(client.texts, expected(number), "subscriber {number}");
        }
    });
}

/// One waiting subscriber fails with an error of the protocol, another ends its connection.
#[test]
fn subscribers_that_end_during_a_large_fan_out_change_nothing_for_others() {
    on_each_backend(|mut host| {
        let mut subscribers: [TestClient; 12] = host.subscribers();
        let mut first = host.open("/tell");
        host.turn_until(|host| host.turn() == 0);
        let reserved_opcode = vec![0x83, 0x80, 0, 0, 0, 0];
        for (number, input) in [(10, reserved_opcode), (11, Vec::new())] {
            let stream = subscribers[number].stream.try_clone().unwrap();
            host.meanwhile.lock().push((stream, input));
        }
        first.send_texts(["!".to_owned(), "second".to_owned()]);
        host.turn_until(|_| subscribers[..10].iter_mut().map(TestClient::receive_texts).min() == Some(2));
        assert!(subscribers[..10].iter().all(|client| client.texts == ["!", "second"]));
        host.turn_until(|_| subscribers[10].receive_texts() == 3);
        assert_eq!(subscribers[10].texts[..2], ["!", "second"]);
        assert!(subscribers[10].texts[2].starts_with("closed with"), "{:?}", subscribers[10].texts);
        host.turn_until(|host| host.engine.stats().closes == 1);
        first.send_texts(["third".to_owned()]);
        host.turn_until(|_| subscribers[..10].iter_mut().all(|client| client.receive_texts() == 3));
    });
}

/// Subscribers of the same topics share a run.
#[test]
fn subscriber_of_two_topics_gets_one_send_per_turn_in_order() {
    let mut host = TestServer::new(TopicConfig::default());
    let mut both: [TestClient; 3] = host.subscribers();
    for client in &mut both {
        client.send_texts(["+".to_owned()]);
    }
    let mut one: [TestClient; 3] = host.subscribers();
    let mut publisher = host.open("/tell");
    host.turn_until(|host| host.turn() == 0);
    publisher.send_texts(["a", "=b", "c", "=d"].map(str::to_owned));
    let sends = host.turn();
    host.turn_until(|_| both.iter_mut().map(TestClient::receive_texts).min() == Some(4));
    host.turn_until(|_| one.iter_mut().map(TestClient::receive_texts).min() == Some(2));
    assert_eq!((sends, host.worker.delivery.runs.direct), (6, 3 * 4 + 3 * 2));
    assert!(both.iter().all(|client| client.texts == ["a", "=b", "c", "=d"]));
    assert!(one.iter().all(|client| client.texts == ["a", "c"]));
}

/// The run of both topics exceeds its limit, so later messages go through the queues.
#[test]
fn publications_beyond_the_limit_of_a_run_stay_in_order() {
    let mut host = TestServer::new(TopicConfig::default());
    let mut both: [TestClient; 3] = host.subscribers();
    for client in &mut both {
        client.send_texts(["+".to_owned()]);
    }
    let mut publisher = host.open("/tell");
    let mut one: [TestClient; 3] = host.subscribers();
    host.turn_until(|host| host.turn() == 0);
    let texts: Vec<String> =
        (0..8).map(|number| format!("{}{number:0>10000}", if number % 2 == 0 { "" } else { "=" })).collect();
    let half: Vec<String> = texts.iter().step_by(2).cloned().collect();
    publisher.send_texts(texts.iter().cloned());
    host.turn_until(|_| both.iter_mut().map(TestClient::receive_texts).min() == Some(8));
    host.turn_until(|_| one.iter_mut().map(TestClient::receive_texts).min() == Some(4));
    assert!(both.iter().all(|client| client.texts == texts));
    assert!(one.iter().all(|client| client.texts == half));
}

#[test]
fn slow_subscriber_gets_the_rest_of_a_run_in_order() {
    let mut host = TestServer::new(TopicConfig::default());
    let mut subscribers: [TestClient; 3] = host.subscribers();
    let mut publisher = host.open("/tell");
    // More than the kernel buffers for a peer that does not read.
    let texts: Vec<String> = (0..200).map(|number| format!("{number:0>50000}")).collect();
    let [first, second, slow] = &mut subscribers;
    for (count, text) in texts.iter().enumerate() {
        publisher.send_texts([text.clone()]);
        host.turn_until(|_| first.receive_texts() == count + 1 && second.receive_texts() == count + 1);
    }
    host.turn_until(|_| slow.receive_texts() == texts.len());
    assert!(subscribers.iter().all(|subscriber| subscriber.texts == texts));
}

#[test]
fn publisher_reads_pause_while_its_publications_are_queued() {
    let mut host = TestServer::new(TopicConfig::default().with_deliveries_per_turn(2));
    let [mut subscriber, mut other] = host.subscribers();
    let mut publisher = host.open("/tell");
    publisher.send_texts(numbers(0..10));
    host.turn_until(TestServer::waits);
    assert_eq!(host.worker.delivery.paused_publishers.len(), 1);
    publisher.send_texts(numbers(10..20));
    other.send_texts(["another".to_owned()]);
    // One publication a turn; the other publisher is read, and paused after the first message.
    for left in (1..9).rev() {
        host.turn();
        assert_eq!(
            host.worker.shared.services.topics.queued_publications(),
            left,
            "only the other one's has come"
        );
        assert_eq!(host.worker.delivery.paused_publishers.len(), 2);
    }
    host.turn_until(|_| subscriber.receive_texts() == 21);
    let of_publisher: Vec<&String> = subscriber.texts.iter().filter(|text| *text != "another").collect();
    assert_eq!(of_publisher, numbers(0..20).iter().collect::<Vec<_>>());
    host.turn_until(|host| host.worker.delivery.paused_publishers.is_empty());
}

#[test]
fn publication_queue_is_bounded_and_further_input_stays_with_the_publisher() {
    let config = TopicConfig::default();
    for (config, most) in [
        (config.with_max_queued_messages(5).with_deliveries_per_turn(2), 5),
        (config.with_max_queued_bytes(30).with_deliveries_per_turn(2), 15),
        // A large budget, so that only the queue limits.
        (config.with_max_queued_messages(5), 5),
    ] {
        let mut host = TestServer::new(config);
        let mut subscribers: [TestClient; 3] = host.subscribers();
        let mut publisher = host.open("/tell");
        publisher.send_texts(numbers(10..99));
        host.turn_until(|host| {
            assert!(
                host.worker.shared.services.topics.max_queued <= most,
                "{} wait",
                host.worker.shared.services.topics.max_queued
            );
            subscribers.iter_mut().map(TestClient::receive_texts).min() == Some(89)
        });
        assert_eq!(host.worker.shared.services.topics.max_queued, most);
        assert!(subscribers.iter().all(|subscriber| subscriber.texts == numbers(10..99)));
    }
}

/// The versions of a topic arrive by mail. The mailbox has capacity for the messages that may be queued.
#[test]
fn publisher_of_versions_is_paused_before_its_mailbox_is_full() {
    let engine = engine::EngineConfig::default().with_mailbox(5).unwrap();
    let config = TopicConfig::default().with_max_queued_messages(5);
    let mut host = TestServer::on(engine, config).unwrap();
    let mut subscribers: [TestClient; 2] = host.subscribers();
    let mut publisher = host.open("/tell");
    // Messages without a version keep their order among the versions.
    let versions: Vec<String> =
        (1..90).map(|number| format!("#{}", if number % 3 == 0 { 0 } else { number })).collect();
    publisher.send_texts(versions.clone());
    host.turn_until(|_| subscribers.iter_mut().map(TestClient::receive_texts).min() == Some(89));
    assert!(subscribers.iter().all(|subscriber| subscriber.texts == versions));
    let topics = &host.worker.shared.services.topics;
    assert_eq!((topics.max_queued, topics.counters().published, topics.counters().lost), (5, 89, 0));
}

#[test]
fn publisher_is_resumed_once_another_thread_has_caught_up() {
    let mut host = TestServer::new(TopicConfig::default());
    let other = Engine::<Worker>::new(engine::EngineConfig::default(), Vec::new()).unwrap();
    let (directory, posts) = (Directory::new(2, TopicRules::default()), [host.engine.post(), other.post()]);
    let topics =
        |shard| Topics::new(shard, TopicConfig::default(), Arc::clone(&directory), Arc::new(posts.clone()));
    host.worker.shared.services.topics = topics(0);
    let [mut subscriber] = host.subscribers();
    let mut publisher = host.open("/tell");
    let behind = topics(1);
    behind.mark_backlogged();
    publisher.send_texts(numbers(0..1));
    host.turn_until(|host| !host.worker.delivery.paused_publishers.is_empty());
    publisher.send_texts(numbers(1..2));
    for _ in 0..5 {
        host.turn();
    }
    assert_eq!(subscriber.receive_texts(), 1);
    behind.clear_backlogged();
    host.turn_until(|_| subscriber.receive_texts() == 2);
}

#[test]
fn requests_that_publish_are_paused_too() {
    let config = TopicConfig::default().with_deliveries_per_turn(1).with_max_queued_messages(3);
    let mut host = TestServer::new(config);
    let mut subscribers: [TestClient; 2] = host.subscribers();
    let mut posting = host.connect();
    let request = |text: &String| format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{text}");
    let wire: String = numbers(10..30).iter().map(request).collect();
    posting.write_all(wire.as_bytes()).unwrap();
    host.turn_until(|_| subscribers.iter_mut().map(TestClient::receive_texts).min() == Some(20));
    assert_eq!(host.worker.shared.services.topics.max_queued, 3);
    assert_eq!(subscribers[0].texts, numbers(10..30));
    let mut answers = Vec::new();
    host.turn_until(|_| {
        read(&mut posting, &mut answers);
        answers.windows(4).filter(|four| four == b"\r\n\r\n").count() == 20
    });
}

#[test]
fn queued_publications_are_not_delivered_after_unsubscribe() {
    let mut host = TestServer::new(TopicConfig::default().with_deliveries_per_turn(1));
    let [mut first, mut second] = host.subscribers();
    let mut publisher = host.open("/tell");
    publisher.send_texts(numbers(0..1));
    host.turn_until(|host| first.receive_texts() == 1 && host.waits());
    // The publication is in delivery to the second subscriber, whose message comes before.
    second.send_texts(["-".to_owned()]);
    host.turn_until(|host| !host.waits());
    publisher.send_texts(numbers(1..2));
    host.turn_until(|_| first.receive_texts() == 2);
    assert_eq!(second.receive_texts(), 0);
}

#[test]
fn publications_before_a_stop_are_delivered_before_the_close() {
    let mut host = TestServer::new(TopicConfig::default().with_deliveries_per_turn(1));
    let mut subscribers: [TestClient; 3] = host.subscribers();
    let mut publisher = host.open("/tell");
    publisher.send_texts(numbers(0..50));
    host.turn_until(TestServer::waits);
    host.worker.stop.level.raise(Stop::Graceful);
    host.engine.post().wake();
    let mut expected = numbers(0..50);
    expected.push("closed with Some(1001)".to_owned());
    host.turn_until(|_| subscribers.iter_mut().map(TestClient::receive_texts).min() == Some(51));
    assert!(subscribers.iter().all(|subscriber| subscriber.texts == expected));
}

/// The thread sees a connection, or its request, only after the window.
#[test]
fn connections_accepted_before_a_handover_are_answered_once_however_late() {
    const REQUEST: &[u8] = b"GET /later HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut host = TestServer::new(TopicConfig::default());
    host.worker.stop.times.window = Duration::ZERO;
    let answered = |host: &mut TestServer, client: &mut TcpStream| {
        let mut answer = Vec::new();
        host.turn_until(|host| {
            host.wakers.lock().drain(..).for_each(Waker::wake);
            read(client, &mut answer);
            answer.ends_with(b"\r\n\r\n")
        });
        String::from_utf8(answer).unwrap()
    };
    let (mut kept, mut late) = (host.connect(), host.connect());
    kept.write_all(REQUEST).unwrap();
    assert!(!answered(&mut host, &mut kept).contains("Connection: close"));
    host.turn_until(|host| host.engine.stats().accepts == 2);
    let mut waiting = host.connect();
    waiting.write_all(REQUEST).unwrap();
    host.worker.stop.level.raise(Stop::HandedOver);
    host.engine.post().wake();
    host.turn_until(|_| matches!(kept.read(&mut [0]), Ok(0)));
    assert!(host.worker.stop.linger_left.is_none() && matches!(host.worker.stop.phase, StopPhase::Waiting));
    late.write_all(REQUEST).unwrap();
    for mut client in [late, waiting] {
        let answer = answered(&mut host, &mut client);
        assert!(answer.starts_with("HTTP/1.1 204 ") && answer.contains("Connection: close"), "{answer}");
        host.turn_until(|_| matches!(client.read(&mut [0]), Ok(0)));
    }
}

#[test]
fn thread_stalled_for_the_whole_window_still_lingers() {
    let mut host = TestServer::new(TopicConfig::default());
    host.worker.stop.times.window = LINGERING_STEP_MIN * LINGERING_STEPS;
    let mut kept = host.connect();
    kept.write_all(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    host.turn_until(|_| kept.read(&mut [0; 1024]).is_ok());
    host.worker.stop.level.raise(Stop::HandedOver);
    host.engine.post().wake();
    host.turn_until(|host| matches!(host.worker.stop.phase, StopPhase::Lingering));
    std::thread::sleep(host.worker.stop.times.window);
    // Its timer fires late, and at most once per turn.
    host.turn();
    kept.write_all(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    host.turn_until(|_| {
        read(&mut kept, &mut answer);
        answer.ends_with(b"\r\n\r\n")
    });
    assert!(String::from_utf8(answer).unwrap().contains("Connection: close"));
}

/// The first turn after the stall takes no input of the client: the readiness backend takes 1,024 events a turn, and
/// the ring has one buffer.
#[test]
fn stalled_worker_reads_input_before_it_decides_the_idle_timeout() {
    for (backend, crowd) in [(engine::BackendChoice::Poll, 1_024), (engine::BackendChoice::Uring, 1)] {
        if open_files_limit() < 3 * crowd {
            println!("skipped: {backend:?}: the limit of open files is below {}", 3 * crowd);
            continue;
        }
        let config = engine::EngineConfig::default().with_backend(backend).with_receive_buffer(256).unwrap();
        let mut host = match TestServer::on(config.with_ring_buffers(1).unwrap(), TopicConfig::default()) {
            Ok(host) => host,
            Err(error) => {
                println!("skipped: {backend:?}: {error}");
                continue;
            }
        };
        let mut crowd: Vec<_> = (0..crowd)
            .map(|_| {
                let stream = host.connect();
                host.turn();
                stream
            })
            .collect();
        let accepted = crowd.len() as u64;
        host.turn_until(|host| host.engine.stats().accepts == accepted);
        let (mut client, mut subscriber) = (host.open("/idle"), host.open("/hear"));
        // On the ring, the timeout begins when the answer to the handshake has certainly left.
        client.send_texts(["first".to_owned()]);
        host.turn_until(|_| subscriber.receive_texts() > 0);
        crowd.iter_mut().for_each(|stream| stream.write_all(&[b'\n'; 256]).unwrap());
        client.send_texts(["sent in time".to_owned()]);
        std::thread::sleep(IDLE_TIMEOUT + STALL_MIN * 2);
        host.turn();
        assert_eq!(client.receive_texts(), 0, "{backend:?}: {:?}", client.texts);
        assert_eq!(subscriber.receive_texts(), 1, "{backend:?}: the message waits for the second turn");
        host.turn_until(|_| subscriber.receive_texts() > 1);
        assert_eq!((&*subscriber.texts[1], client.receive_texts()), ("sent in time", 0), "{backend:?}");
        host.turn_until(|_| client.receive_texts() > 0);
        assert_eq!(client.texts, ["closed with Some(1001)"], "{backend:?}: a silent client is closed");
    }
}

fn open_files_limit() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(usize::MAX)
}

#[test]
fn memory_of_small_messages_is_released() {
    let mut host = TestServer::new(TopicConfig::default());
    let [mut subscriber] = host.subscribers();
    subscriber.send_texts(["echo".to_owned()]);
    // A chain may complete a while after it has left.
    host.turn_until(|host| subscriber.receive_texts() == 1 && host.worker.shared.resources.holds_spares());
    assert!(host.worker.releasing);
    // The loop's timer would call twice, some seconds apart.
    assert!(host.worker.shared.resources.release_idle());
    assert!(!host.worker.shared.resources.release_idle());
}

#[test]
fn graceful_stop_closes_many_clients_gradually_and_serves_them_until_then() {
    const CLIENTS: usize = 150;
    let mut host = TestServer::new(TopicConfig::default());
    // As many steps as needed, however long the window.
    host.worker.stop.times.window = Duration::MAX;
    let mut subscribers: [TestClient; CLIENTS] = host.subscribers();
    let mut publisher = host.open("/tell");
    host.worker.stop.level.raise(Stop::Graceful);
    host.engine.post().wake();
    host.turn_until(|host| matches!(host.worker.stop.phase, StopPhase::Closing { .. }));
    publisher.send_texts(["last news".to_owned()]);
    let is_closed = |subscriber: &TestClient| {
        subscriber.texts.last().is_some_and(|last| last == "closed with Some(1001)")
    };
    host.turn_until(|_| {
        subscribers.iter_mut().all(|subscriber| subscriber.receive_texts() > 0 && is_closed(subscriber))
    });
    assert!(matches!(host.worker.stop.phase, StopPhase::Waiting));
    let news = subscribers.iter().filter(|subscriber| subscriber.texts[0] == "last news").count();
    assert_eq!(
        news,
        CLIENTS + 1 - 64,
        "all but the clients of the first step, one of which is the publisher"
    );
    assert!(subscribers.iter().all(|subscriber| subscriber.texts.len() <= 2), "each client gets one Close");
}
