//! Streaming responses: publications in the body of a response, its ends, and the connection after it.

use std::io::Read as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Poll;

use sinews_server::{
    Answer, BodyFormat, Cause, CloseCode, Closed, Config, Context, Handler, HistoryPolicy, Kind, Limits,
    Payload, Position, Prepared, PublishOptions, ReplayFrom, Response, Router, Server, SlowConsumer,
    StreamingResponse, TopicRule, WebSocketEnd,
};
use sinews_testkit::{BodyReader, SseEvent};

use crate::support::{PATIENCE, Running, for_slow_peers, get, post};

/// Subscribes to a topic, from a sequence on if there is one; the text `end` in its waker's place ends the body.
struct Subscriber {
    topic: String,
    start: Option<ReplayFrom>,
    ends: bool,
    closed: Sender<Closed>,
}

impl Handler for Subscriber {
    fn open(&mut self, cx: &mut Context<'_>) {
        match self.start {
            Some(start) => {
                let joined = cx.subscribe_from(&self.topic, start).unwrap();
                let text =
                    format!("{} {} {}", joined.position.epoch, joined.position.sequence, joined.complete);
                let _ = cx.send_text(&text).unwrap();
            }
            None => {
                cx.subscribe(&self.topic).unwrap();
                let _ = cx.send_text("subscribed").unwrap();
            }
        }
        if self.ends {
            cx.close(CloseCode::NORMAL, "enough").unwrap();
        }
    }

    fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {
        panic!("a response receives nothing");
    }

    fn close(&mut self, closed: &Closed, cx: &mut Context<'_>) {
        assert!(!cx.unsubscribe(&self.topic), "its subscriptions have ended");
        // The test may have ended.
        let _ = self.closed.send(closed.clone());
    }
}

/// Completes at its second poll.
pub(crate) async fn pending_once() {
    let mut is_second = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut is_second, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

struct World {
    server: Running,
    monitor: sinews_server::Monitor,
    closed: Receiver<Closed>,
}

fn world(change: impl FnOnce(Server) -> Server) -> World {
    let (sender, closed) = channel();
    let subscriber =
        move |topic: String, start, ends| Subscriber { topic, start, ends, closed: sender.clone() };
    let (ending, resuming, later) = (subscriber.clone(), subscriber.clone(), subscriber.clone());
    let router = Router::new()
        .get("/", |_| Response::text("plain"))
        .get("/topics/{name}", move |request| {
            StreamingResponse::events(subscriber(request.param("name").unwrap().into_owned(), None, false))
                .with_config(Arc::new(for_slow_peers()))
                .with_header("X-Topic", request.param("name").unwrap().into_owned())
        })
        .get("/later/{name}", move |request| {
            let name = request.param("name").unwrap().into_owned();
            let later = later.clone();
            Answer::later_streaming(async move {
                pending_once().await;
                if name == "rejected" {
                    return Err(Response::text("no").with_status(403));
                }
                let is_end = name == "end";
                Ok(StreamingResponse::events(later(name, None, is_end)).with_header("X-Later", "yes"))
            })
        })
        .get("/ends", move |_| StreamingResponse::events(ending("t".to_owned(), None, true)))
        .get("/kept", move |request| {
            let number = |name| request.query(name).map(|value| value.parse().unwrap());
            let start = match (number("epoch"), number("after")) {
                (Some(epoch), Some(sequence)) => ReplayFrom::After(Position { epoch, sequence }),
                _ => ReplayFrom::Last(0),
            };
            StreamingResponse::events(resuming("kept".to_owned(), Some(start), false))
        })
        .post("/topics/{name}", |request| {
            let topic = request.param("name").unwrap().into_owned();
            let (kind, body) = match std::str::from_utf8(request.body()) {
                Ok(_) => (Kind::Text, request.body().to_vec()),
                Err(_) => (Kind::Binary, request.body().to_vec()),
            };
            let message = Prepared::new(kind, body.into());
            Response::text(
                request.topics().publish(&topic, &message, PublishOptions::new()).unwrap().to_string(),
            )
        });
    let monitor = router.monitor();
    let server = Running::server(change(Server::new(router).threads(2)));
    World { server, monitor, closed }
}

impl World {
    fn open(&self, path: &str) -> BodyReader<TcpStream> {
        self.ask(&get(path))
    }

    fn ask(&self, request: &str) -> BodyReader<TcpStream> {
        let mut client = self.server.connect();
        client.send(request);
        BodyReader::new(client.stream)
    }

    /// A response that has subscribed.
    fn subscribed(&self, path: &str) -> BodyReader<TcpStream> {
        let mut body = self.open(path);
        assert_eq!(body.event(), Some(SseEvent::new("message", "subscribed")));
        body
    }

    fn publish(&self, topic: &str, body: &str) -> String {
        let answer = self.server.connect().send(post(&format!("/topics/{topic}"), body)).answer();
        answer.text().to_owned()
    }

    fn closed(&self) -> Closed {
        self.closed.recv_timeout(PATIENCE).unwrap()
    }
}

#[test]
fn publications_are_events_of_every_response() {
    let world = world(|server| server);
    let mut bodies: Vec<_> = (0..20).map(|_| world.subscribed("/topics/news")).collect();
    assert_eq!((bodies[0].status(), bodies[0].header("content-type")), (200, Some("text/event-stream")));
    assert_eq!(
        (bodies[0].header("x-topic"), bodies[0].header("cache-control")),
        (Some("news"), Some("no-store, no-transform"))
    );
    assert_eq!(bodies[0].header("content-length"), None);
    for text in ["hello", "two\nlines\r\n\r\nevent: forged\n", "", "{\"a\":1}"] {
        assert_eq!(world.publish("news", text), "20");
        for body in &mut bodies {
            let expected = text.replace("\r\n", "\n");
            assert_eq!(body.event(), Some(SseEvent::new("message", &expected)));
        }
    }
    let publisher = world.server.connect().send(post_bytes("/topics/news", &[0xff, 0, b'\n'])).answer();
    assert_eq!(publisher.text(), "20");
    for body in &mut bodies {
        assert_eq!(body.event(), Some(SseEvent::new("binary", "/wAK")));
    }
}

fn post_bytes(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

#[test]
fn large_publications_arrive_whole() {
    let world = world(|server| server);
    let mut body = world.subscribed("/topics/large");
    for size in [4_000, 40_000, 400_000] {
        let text = "x".repeat(size);
        world.publish("large", &text);
        assert_eq!(body.event().unwrap().data, text);
    }
}

#[test]
fn connection_takes_the_next_request_after_the_body() {
    let world = world(|server| server);
    let mut client = world.server.connect();
    for _ in 0..3 {
        client.send(get("/ends"));
        let mut body = BodyReader::new(client.stream);
        assert_eq!(body.event(), Some(SseEvent::new("message", "subscribed")));
        assert_eq!(body.event(), Some(SseEvent::new("close", "1000 enough")));
        assert_eq!((body.event(), body.has_ended()), (None, true));
        assert_eq!(world.closed().cause(), Cause::Local);
        client = crate::support::Client::over(body.into_transport());
        assert_eq!(client.send(get("/")).answer().text(), "plain");
    }
    assert_eq!(world.publish("t", "nobody"), "0");
    let metrics = world.monitor.metrics();
    assert_eq!((metrics.streaming_responses, metrics.open_streaming_responses()), (3, 0));
    assert_eq!(metrics.streaming_responses_closed.get(WebSocketEnd::Server), 3);
    assert_eq!((metrics.handshakes, metrics.websockets()), (0, 0));
}

#[test]
fn http_1_0_gets_the_body_without_chunks() {
    let world = world(|server| server);
    let mut body = world.ask("GET /ends HTTP/1.0\r\n\r\n");
    assert_eq!((body.header("transfer-encoding"), body.header("connection")), (None, Some("close")));
    assert_eq!(body.rest(), "data: subscribed\n\nevent: close\ndata: 1000 enough\n\n");
    let mut live = world.ask("GET /topics/old HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_eq!(live.event(), Some(SseEvent::new("message", "subscribed")));
    world.publish("old", "news");
    assert_eq!(live.event(), Some(SseEvent::new("message", "news")));
}

#[test]
fn head_gets_the_head_alone() {
    let world = world(|server| server);
    let mut client = world.server.connect();
    client.send("HEAD /topics/a HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let head = BodyReader::new(client.stream);
    assert_eq!((head.status(), head.header("content-type")), (200, Some("text/event-stream")));
    let mut client = crate::support::Client::over(head.into_transport());
    assert_eq!(client.send(get("/")).answer().text(), "plain");
    assert_eq!(world.monitor.metrics().streaming_responses, 0);
}

#[test]
fn request_during_the_body_ends_the_connection_after_it() {
    let world = world(|server| server.grace(PATIENCE));
    let mut client = world.server.connect();
    client.send(get("/ends").repeat(2));
    let mut body = BodyReader::new(client.stream);
    assert!(body.rest().ends_with("1000 enough\n\n"));
    crate::support::Client::over(body.into_transport()).assert_end();

    let mut client = world.server.connect();
    client.send(get("/topics/a"));
    let mut writer = client.try_clone();
    let mut body = BodyReader::new(client.stream);
    writer.send(get("/"));
    assert_eq!(body.event(), Some(SseEvent::new("message", "subscribed")));
    world.publish("a", "still there");
    assert_eq!(body.event(), Some(SseEvent::new("message", "still there")));
}

#[test]
fn client_that_leaves_is_unsubscribed() {
    let world = world(|server| server);
    for leaves in 0..3 {
        let body = world.subscribed("/topics/left");
        assert_eq!(world.publish("left", "one"), "1");
        let mut client = crate::support::Client::over(body.into_transport());
        match leaves {
            0 => drop(client),
            1 => {
                client.half_close();
                // The server ends its side, too.
                while !client.closes_without_response() {}
            }
            _ => client.reset(),
        }
        world.closed();
        assert_eq!(world.publish("left", "none"), "0");
    }
}

#[test]
fn subscriber_resumes_after_its_last_position() {
    let rule = || TopicRule::new("kept").with_history(HistoryPolicy::new(3));
    let world = world(|server| server.topic_rule(rule()));
    let mut first = world.open("/kept");
    let joined = first.event().unwrap().data;
    let (epoch, rest) = joined.split_once(' ').unwrap();
    assert_eq!(rest, "0 true");
    for number in 1..=5 {
        world.publish("kept", &number.to_string());
        assert_eq!(first.event().unwrap().data, number.to_string());
    }
    for (after, expected, complete) in [(4, 5..=5, true), (2, 3..=5, true), (1, 3..=5, false)] {
        let mut body = world.open(&format!("/kept?epoch={epoch}&after={after}"));
        assert_eq!(body.event().unwrap().data, format!("{epoch} 5 {complete}"));
        for number in expected {
            assert_eq!(body.event().unwrap().data, number.to_string());
        }
    }
    let other = epoch.parse::<u64>().unwrap() ^ 1;
    let mut body = world.open(&format!("/kept?epoch={other}&after=5"));
    assert_eq!(body.event().unwrap().data, format!("{epoch} 5 false"));
    assert_eq!(body.event().unwrap().data, "3");
}

/// The topic closes slow subscribers: the body of a client that does not read ends, and another one gets everything.
#[test]
fn slow_reader_gets_the_queued_events_and_a_close() {
    const COUNT: usize = 600;
    let slow = SlowConsumer::Close(CloseCode::POLICY, "too slow".to_owned());
    let rule = TopicRule::new("fast").with_slow_consumer(slow).with_max_queued_messages(4);
    let world = world(|server| server.topic_rule(rule.with_max_queued_bytes(usize::MAX)));
    let mut slow = world.subscribed("/topics/fast");
    let mut fast = world.subscribed("/topics/fast");
    let text = "x".repeat(64 << 10);
    let mut publisher = world.server.connect();
    for _ in 0..COUNT {
        publisher.send(post("/topics/fast", &text)).answer();
        assert_eq!(fast.event().unwrap().data.len(), text.len());
    }
    assert_eq!(world.closed().cause(), Cause::Overflow);
    let mut events = 0;
    let close = loop {
        let event = slow.event().expect("the close is an event");
        if event.kind == "close" {
            break event;
        }
        events += 1;
    };
    assert_eq!(close.data, "1008 too slow");
    assert_eq!((slow.event(), slow.has_ended()), (None, true));
    assert!((4..COUNT).contains(&events), "{events} events");
}

#[test]
fn stop_ends_every_body() {
    let world = world(|server| server.grace(PATIENCE));
    let mut bodies: Vec<_> = (0..10).map(|_| world.subscribed("/topics/a")).collect();
    world.publish("a", "last");
    world.server.stop.stop();
    for body in &mut bodies {
        assert_eq!(body.event(), Some(SseEvent::new("message", "last")));
        assert_eq!(body.event(), Some(SseEvent::new("close", "1001 server stops")));
        assert_eq!((body.event(), body.has_ended()), (None, true));
    }
    for body in bodies {
        crate::support::Client::over(body.into_transport()).assert_end();
    }
    world.server.join();
}

#[test]
fn limits_of_handshakes_apply() {
    let world = world(|server| server.limits(Limits::default().with_handshakes_per_second(1)));
    let _first = world.subscribed("/topics/a");
    // Unless a second has passed: then the response streams.
    let (mut client, answer) = loop {
        let mut client = world.server.connect();
        client.send(get("/topics/a"));
        let mut status = [0; "HTTP/1.1 503".len()];
        while client.stream.peek(&mut status).unwrap() < status.len() {
            assert_ne!(status[0], 0, "the connection has ended");
        }
        if !status.ends_with(b" 200") {
            let answer = client.answer();
            break (client, answer);
        }
    };
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
    assert_eq!(client.send(get("/")).answer().text(), "plain");
}

#[test]
fn keepalive_is_a_comment() {
    struct Silent;
    impl Handler for Silent {
        fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {}
    }
    let config = Config::default().with_ping_interval(Some(std::time::Duration::from_millis(20)));
    let config = Arc::new(config.with_idle_timeout(Some(std::time::Duration::from_millis(1))));
    let router =
        Router::new().get("/", move |_| StreamingResponse::events(Silent).with_config(config.clone()));
    let (_server, mut client) = Running::connected(router);
    client.send(get("/"));
    let mut body = BodyReader::new(client.stream);
    for _ in 0..5 {
        assert_eq!(body.until("\n\n").as_deref(), Some(":\n\n"));
    }
}

#[test]
fn later_answer_is_a_streaming_response_or_an_error() {
    let world = world(|server| server);
    let mut body = world.subscribed("/later/news");
    assert_eq!((body.status(), body.header("x-later")), (200, Some("yes")));
    assert_eq!(world.publish("news", "hello"), "1");
    assert_eq!(body.event(), Some(SseEvent::new("message", "hello")));
    drop(body);
    world.closed();
    // Requests that wait behind one another on one connection.
    let mut client = world.server.connect();
    let head = get("/later/news").replacen("GET", "HEAD", 1);
    client.send(format!("{head}{}", ["/later/rejected", "/", "/later/end"].map(get).concat()));
    let mut answers = String::new();
    while !answers.contains("event: close") {
        let mut bytes = [0; 1024];
        let count = client.stream.read(&mut bytes).unwrap();
        assert!(count > 0, "{answers}");
        answers.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
    }
    let found = ["HTTP/1.1 200 ", "HTTP/1.1 403 ", "\r\n\r\nplain", "data: subscribed", "event: close"];
    let mut rest = &*answers;
    for part in found {
        rest = rest.split_once(part).unwrap_or_else(|| panic!("{part} in {answers}")).1;
    }
    // The connection takes the next request.
    let mut rest = String::new();
    client.send(get("/"));
    while !rest.contains("\r\n\r\nplain") {
        let mut bytes = [0; 1024];
        let count = client.stream.read(&mut bytes).unwrap();
        assert!(count > 0, "{rest}");
        rest.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
    }
}

/// How often each format has encoded a publication.
static ENCODED: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

/// Counts the publication `counted …`; acknowledgements differ by reader.
fn count(format: usize, message: &[u8], out: &mut Vec<u8>) {
    if message.starts_with(b"counted") {
        ENCODED[format].fetch_add(1, Ordering::Relaxed);
    }
    out.extend_from_slice(message);
    out.push(b'\n');
}

static COUNTED: [BodyFormat; 2] = [
    BodyFormat::new(|_, message, out| count(0, message, out)),
    BodyFormat::new(|_, message, out| count(1, message, out)),
];

#[test]
fn publication_is_encoded_once_for_each_format_over_all_readers_of_a_thread() {
    const READERS: usize = 20;
    const MESSAGES: usize = 50;
    let (closed, _ended) = channel();
    let router = Router::new().get("/counted/{format}", move |request| {
        let format: usize = request.param("format").unwrap().parse().unwrap();
        let reader = Subscriber { topic: "t".to_owned(), start: None, ends: false, closed: closed.clone() };
        StreamingResponse::new("text/plain", &COUNTED[format], reader)
    });
    let router = router.post("/t", |request| {
        let message = Prepared::text(std::str::from_utf8(request.body()).unwrap());
        Response::text(request.topics().publish("t", &message, PublishOptions::new()).unwrap().to_string())
    });
    let server = Running::server(Server::new(router).threads(1));
    let mut readers: Vec<_> = (0..2 * READERS)
        .map(|at| {
            let mut client = server.connect();
            client.send(get(&format!("/counted/{}", at % 2)));
            let mut body = BodyReader::new(client.stream);
            assert_eq!(body.line().as_deref(), Some("subscribed"));
            body
        })
        .collect();
    for number in 0..MESSAGES {
        let answer = server.connect().send(post("/t", &format!("counted {number}"))).answer();
        assert_eq!(answer.text(), (2 * READERS).to_string());
    }
    for reader in &mut readers {
        for number in 0..MESSAGES {
            assert_eq!(reader.line(), Some(format!("counted {number}")));
        }
    }
    assert_eq!(ENCODED.each_ref().map(|encoded| encoded.load(Ordering::Relaxed)), [MESSAGES; 2]);
}
