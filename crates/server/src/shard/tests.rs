//! Tests of a shard, turn by turn. The clients live in the same thread, so that their writes are in the kernel by the
//! next turn.

use std::future;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use sinews_engine::{Engine, ListenOptions, Listener};
use sinews_proto::Role;
use sinews_testkit::{Frame, Reader, Reply};

use super::stop::{LINGERING_STEP_MIN, LINGERING_STEPS};
use super::*;
use crate::pool::BlockingPool;
use crate::topics::{Directory, Rules};
use crate::{Answer, Context, Handler, Payload, Prepared, Response, TopicConfig, WebSocketRoute};

/// Publishes each message; `-` ends the subscription.
struct Member {
    hears: bool,
}

impl Handler for Member {
    fn open(&mut self, cx: &mut Context<'_>) {
        assert!(!self.hears || cx.subscribe("all").is_ok());
    }

    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        if &payload[..] == b"-" {
            assert!(cx.unsubscribe("all"));
        } else {
            cx.publish("all", &Prepared::new(payload.kind(), payload.detach())).unwrap();
        }
    }
}

/// A shard, its loop, and its address.
struct Host {
    engine: Engine<Shard>,
    shard: Shard,
    address: SocketAddr,
    /// Wakers of requests to `/later`.
    wakers: Arc<Mutex<Vec<Waker>>>,
}

impl Host {
    fn new(config: TopicConfig) -> Self {
        Self::on(engine::Config::default(), config).unwrap()
    }

    fn on(engine: engine::Config, config: TopicConfig) -> std::io::Result<Self> {
        let wakers = Arc::<Mutex<Vec<Waker>>>::default();
        let waiting = wakers.clone();
        let router = Router::new()
            .get("/later", move |_| {
                let (waiting, mut is_listed) = (waiting.clone(), false);
                Answer::later(future::poll_fn(move |cx| {
                    if std::mem::replace(&mut is_listed, true) {
                        return Poll::Ready(Response::new(204));
                    }
                    waiting.lock().unwrap().push(cx.waker().clone());
                    Poll::Pending
                }))
            })
            .websocket("/hear", WebSocketRoute::new(|_| Ok(Member { hears: true })))
            .websocket("/tell", WebSocketRoute::new(|_| Ok(Member { hears: false })))
            .websocket("/idle", WebSocketRoute::new(|_| Ok(Member { hears: false })).with_config(idle()))
            .post("/", |request| {
                let message = Prepared::text(String::from_utf8_lossy(request.body()));
                request.topics().publish("all", &message, None).unwrap();
                Response::new(204)
            });
        let listener = Listener::bind(([127, 0, 0, 1], 0).into(), &ListenOptions::default()).unwrap();
        let address = listener.local_addr().unwrap();
        let engine = Engine::new(engine, vec![listener])?;
        let shard = Shard::new(ShardParts {
            router: Arc::new(router),
            http: Arc::default(),
            stop_times: StopTimes { grace: Duration::from_secs(60), ..StopTimes::default() },
            stop: Arc::default(),
            tasks: Tasks::new(engine.post(), BlockingPool::new(Default::default())),
            appends: Queue::new(engine.post()),
            number: 0,
            topics: Topics::new(0, config, Directory::new(1, Rules::default()), Arc::new([engine.post()])),
            counters: Arc::default(),
            proxies: Arc::default(),
            expects: Arc::default(),
            gate: Arc::new(Gate::new(crate::Limits::default(), Arc::default(), Vec::new())),
        });
        Ok(Self { engine, shard, address, wakers })
    }

    /// Runs one turn; returns the number of sends.
    fn turn(&mut self) -> u64 {
        let before = self.engine.stats().sends;
        self.engine.turn(&mut self.shard, Some(Duration::from_millis(10))).unwrap();
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

    fn open(&mut self, path: &str) -> Client {
        let mut client =
            Client { stream: self.connect(), reader: Reader::new(Role::Server, None), heard: Vec::new() };
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

    fn hearers<const N: usize>(&mut self) -> [Client; N] {
        std::array::from_fn(|_| self.open("/hear"))
    }

    fn waits(&mut self) -> bool {
        self.shard.under_way.is_some()
    }
}

/// Closes connections that are idle for a short time.
fn idle() -> sinews_proto::Config {
    sinews_proto::Config::default().with_ping_interval(None).with_idle_timeout(Some(IDLE_TIMEOUT))
}

const IDLE_TIMEOUT: Duration = Duration::from_millis(500);

struct Client {
    stream: TcpStream,
    reader: Reader,
    heard: Vec<String>,
}

impl Client {
    fn tell(&mut self, texts: impl IntoIterator<Item = String>) {
        let wire: Vec<u8> =
            texts.into_iter().flat_map(|text| Frame::text(text).encode(Role::Client)).collect();
        self.stream.write_all(&wire).unwrap();
    }

    /// Reads available input; returns the number of messages.
    fn hear(&mut self) -> usize {
        let mut bytes = Vec::new();
        read(&mut self.stream, &mut bytes);
        for reply in self.reader.read(&bytes).unwrap() {
            match reply {
                Reply::Message(_, text) => self.heard.push(String::from_utf8(text).unwrap()),
                Reply::Close(code, _) => self.heard.push(format!("closed with {code:?}")),
                other => panic!("{other:?}"),
            }
        }
        self.heard.len()
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
    let mut host = Host::new(TopicConfig::default().with_deliveries_per_turn(BUDGET));
    let mut hearers: [Client; 3] = host.hearers();
    let mut teller = host.open("/tell");
    teller.tell(numbers(0..100));
    let (mut all, mut turns) = (0, 0);
    while all < 300 {
        let sends = host.turn();
        let now: usize = hearers.iter_mut().map(Client::hear).sum();
        assert!(now - all <= BUDGET, "{} deliveries in a turn", now - all);
        assert!(sends <= 3, "{sends} sends in a turn");
        assert_eq!(now < 300, host.waits());
        all = now;
        turns += 1;
        assert!(turns < 100, "{all} deliveries after {turns} turns");
    }
    for hearer in &hearers {
        assert_eq!(hearer.heard, numbers(0..100));
    }
}

#[test]
fn wakeups_are_processed_in_batches_per_turn() {
    const CLIENTS: usize = 40;
    let mut host = Host::new(TopicConfig::default());
    let clients: Vec<TcpStream> = (0..CLIENTS)
        .map(|_| {
            let mut client = host.connect();
            client.write_all(b"GET /later HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            client
        })
        .collect();
    host.turn_until(|host| host.wakers.lock().unwrap().len() == CLIENTS);
    std::mem::take(&mut *host.wakers.lock().unwrap()).into_iter().for_each(Waker::wake);
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
    let mut host = Host::new(TopicConfig::default());
    let mut hearers: [Client; 3] = host.hearers();
    let mut teller = host.open("/tell");
    teller.tell(numbers(0..100));
    let before = host.engine.stats().sends;
    host.turn_until(|_| hearers[2].hear() == 100);
    assert_eq!(host.engine.stats().sends - before, 3);
    assert!(hearers.iter_mut().all(|hearer| hearer.hear() == 100));
}

#[test]
fn publisher_reads_pause_while_its_publications_are_queued() {
    let mut host = Host::new(TopicConfig::default().with_deliveries_per_turn(2));
    let [mut hearer, mut other] = host.hearers();
    let mut teller = host.open("/tell");
    teller.tell(numbers(0..10));
    host.turn_until(Host::waits);
    assert_eq!(host.shard.held_back.len(), 1);
    teller.tell(numbers(10..20));
    other.tell(["another".to_owned()]);
    // One publication a turn; the other publisher is read, and paused after the first message.
    for left in (1..9).rev() {
        host.turn();
        assert_eq!(host.shard.topics.waiting(), left, "only the other one's has come");
        assert_eq!(host.shard.held_back.len(), 2);
    }
    host.turn_until(|_| hearer.hear() == 21);
    let of_teller: Vec<&String> = hearer.heard.iter().filter(|text| *text != "another").collect();
    assert_eq!(of_teller, numbers(0..20).iter().collect::<Vec<_>>());
    host.turn_until(|host| host.shard.held_back.is_empty());
}

#[test]
fn publication_queue_is_bounded_and_further_input_stays_with_the_publisher() {
    let config = TopicConfig::default();
    for (config, most) in [
        (config.with_max_waiting_messages(5).with_deliveries_per_turn(2), 5),
        (config.with_max_waiting_bytes(30).with_deliveries_per_turn(2), 15),
        // A large budget, so that only the queue limits.
        (config.with_max_waiting_messages(5), 5),
    ] {
        let mut host = Host::new(config);
        let mut hearers: [Client; 3] = host.hearers();
        let mut teller = host.open("/tell");
        teller.tell(numbers(10..99));
        host.turn_until(|host| {
            assert!(host.shard.topics.most_waiting <= most, "{} wait", host.shard.topics.most_waiting);
            hearers.iter_mut().map(Client::hear).min() == Some(89)
        });
        assert_eq!(host.shard.topics.most_waiting, most);
        assert!(hearers.iter().all(|hearer| hearer.heard == numbers(10..99)));
    }
}

#[test]
fn requests_that_publish_are_paused_too() {
    let config = TopicConfig::default().with_deliveries_per_turn(1).with_max_waiting_messages(3);
    let mut host = Host::new(config);
    let mut hearers: [Client; 2] = host.hearers();
    let mut posting = host.connect();
    let request = |text: &String| format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{text}");
    let wire: String = numbers(10..30).iter().map(request).collect();
    posting.write_all(wire.as_bytes()).unwrap();
    host.turn_until(|_| hearers.iter_mut().map(Client::hear).min() == Some(20));
    assert_eq!(host.shard.topics.most_waiting, 3);
    assert_eq!(hearers[0].heard, numbers(10..30));
    let mut answers = Vec::new();
    host.turn_until(|_| {
        read(&mut posting, &mut answers);
        answers.windows(4).filter(|four| four == b"\r\n\r\n").count() == 20
    });
}

#[test]
fn queued_publications_are_not_delivered_after_unsubscribe() {
    let mut host = Host::new(TopicConfig::default().with_deliveries_per_turn(1));
    let [mut first, mut second] = host.hearers();
    let mut teller = host.open("/tell");
    teller.tell(numbers(0..1));
    host.turn_until(|host| first.hear() == 1 && host.waits());
    // The publication is in delivery to the second subscriber, whose message comes before.
    second.tell(["-".to_owned()]);
    host.turn_until(|host| !host.waits());
    teller.tell(numbers(1..2));
    host.turn_until(|_| first.hear() == 2);
    assert_eq!(second.hear(), 0);
}

#[test]
fn publications_before_a_stop_are_delivered_before_the_close() {
    let mut host = Host::new(TopicConfig::default().with_deliveries_per_turn(1));
    let mut hearers: [Client; 3] = host.hearers();
    let mut teller = host.open("/tell");
    teller.tell(numbers(0..50));
    host.turn_until(Host::waits);
    host.shard.stop.raise(Stop::InOrder);
    host.engine.post().wake();
    let mut expected = numbers(0..50);
    expected.push("closed with Some(1001)".to_owned());
    host.turn_until(|_| hearers.iter_mut().map(Client::hear).min() == Some(51));
    assert!(hearers.iter().all(|hearer| hearer.heard == expected));
}

/// The thread sees a connection, or its request, only after the window.
#[test]
fn connections_accepted_before_a_handover_are_answered_once_however_late() {
    const REQUEST: &[u8] = b"GET /later HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut host = Host::new(TopicConfig::default());
    host.shard.stop_times.window = Duration::ZERO;
    let answered = |host: &mut Host, client: &mut TcpStream| {
        let mut answer = Vec::new();
        host.turn_until(|host| {
            host.wakers.lock().unwrap().drain(..).for_each(Waker::wake);
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
    host.shard.stop.raise(Stop::HandedOver);
    host.engine.post().wake();
    host.turn_until(|_| matches!(kept.read(&mut [0]), Ok(0)));
    assert!(host.shard.patience.is_none() && matches!(host.shard.phase, Phase::Waiting));
    late.write_all(REQUEST).unwrap();
    for mut client in [late, waiting] {
        let answer = answered(&mut host, &mut client);
        assert!(answer.starts_with("HTTP/1.1 204 ") && answer.contains("Connection: close"), "{answer}");
        host.turn_until(|_| matches!(client.read(&mut [0]), Ok(0)));
    }
}

#[test]
fn thread_stalled_for_the_whole_window_still_lingers() {
    let mut host = Host::new(TopicConfig::default());
    host.shard.stop_times.window = LINGERING_STEP_MIN * LINGERING_STEPS;
    let mut kept = host.connect();
    kept.write_all(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    host.turn_until(|_| kept.read(&mut [0; 1024]).is_ok());
    host.shard.stop.raise(Stop::HandedOver);
    host.engine.post().wake();
    host.turn_until(|host| matches!(host.shard.phase, Phase::Lingering));
    std::thread::sleep(host.shard.stop_times.window);
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
        let config = engine::Config::default().backend(backend).receive_buffer(256).unwrap();
        let mut host = match Host::on(config.ring_buffers(1).unwrap(), TopicConfig::default()) {
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
        let (mut client, mut hearer) = (host.open("/idle"), host.open("/hear"));
        // On the ring, the timeout begins when the answer to the handshake has certainly left.
        client.tell(["first".to_owned()]);
        host.turn_until(|_| hearer.hear() > 0);
        crowd.iter_mut().for_each(|stream| stream.write_all(&[b'\n'; 256]).unwrap());
        client.tell(["sent in time".to_owned()]);
        std::thread::sleep(IDLE_TIMEOUT + HELD_UP_MIN * 2);
        host.turn();
        assert_eq!(client.hear(), 0, "{backend:?}: {:?}", client.heard);
        assert_eq!(hearer.hear(), 1, "{backend:?}: the message waits for the second turn");
        host.turn_until(|_| hearer.hear() > 1);
        assert_eq!((&*hearer.heard[1], client.hear()), ("sent in time", 0), "{backend:?}");
        host.turn_until(|_| client.hear() > 0);
        assert_eq!(client.heard, ["closed with Some(1001)"], "{backend:?}: a silent client is closed");
    }
}

fn open_files_limit() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(usize::MAX)
}

#[test]
fn memory_of_small_messages_is_released() {
    let mut host = Host::new(TopicConfig::default());
    let [mut hearer] = host.hearers();
    hearer.tell(["echo".to_owned()]);
    // A chain may complete a while after it has left.
    host.turn_until(|host| hearer.hear() == 1 && host.shard.resources.holds_spares());
    assert!(host.shard.releasing);
    // The loop's timer would call twice, some seconds apart.
    assert!(host.shard.resources.release_idle());
    assert!(!host.shard.resources.release_idle());
}

#[test]
fn graceful_stop_closes_many_clients_gradually_and_serves_them_until_then() {
    const CLIENTS: usize = 150;
    let mut host = Host::new(TopicConfig::default());
    // As many steps as needed, however long the window.
    host.shard.stop_times.window = Duration::MAX;
    let mut hearers: [Client; CLIENTS] = host.hearers();
    let mut teller = host.open("/tell");
    host.shard.stop.raise(Stop::InOrder);
    host.engine.post().wake();
    host.turn_until(|host| matches!(host.shard.phase, Phase::Telling { .. }));
    teller.tell(["last news".to_owned()]);
    let told = |hearer: &Client| hearer.heard.last().is_some_and(|last| last == "closed with Some(1001)");
    host.turn_until(|_| hearers.iter_mut().all(|hearer| hearer.hear() > 0 && told(hearer)));
    assert!(matches!(host.shard.phase, Phase::Waiting));
    let news = hearers.iter().filter(|hearer| hearer.heard[0] == "last news").count();
    assert_eq!(
        news,
        CLIENTS + 1 - 64,
        "all but the clients of the first step, one of which is the publisher"
    );
    assert!(hearers.iter().all(|hearer| hearer.heard.len() <= 2), "each client gets one Close");
}
