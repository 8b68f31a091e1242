//! Metrics: events are counted, and Prometheus can read the text.

use std::collections::{HashMap, HashSet};

use sinews_server::{
    ConnectionEnd, Context, Dropped, Handler, Metrics, Monitor, Overflow, Payload, Prepared, PublishOptions,
    Router, WebSocketEnd, WebSocketRoute,
};
use sinews_testkit::{Frame, Reply};

use crate::support::{Running, echo, get, handshake, post, routes, wait_for};

/// Broadcasts each message to all clients.
struct Chat;

impl Handler for Chat {
    fn open(&mut self, cx: &mut Context<'_>) {
        cx.subscribe("room").unwrap();
    }

    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        cx.publish("room", &Prepared::new(payload.kind(), payload.detach()), PublishOptions::new()).unwrap();
    }
}

fn server() -> (Running, Monitor) {
    let router = routes().metrics("/metrics").websocket("/chat", WebSocketRoute::new(|_| Ok(Chat)));
    let monitor = router.monitor();
    (Running::router(router), monitor)
}

#[test]
fn connections_and_handshakes_are_counted_by_their_end() {
    let (server, monitor) = server();
    let mut peers = [server.websocket("/echo"), server.websocket("/echo"), server.websocket("/echo")];
    let mut plain = server.connect();
    assert_eq!(plain.send(handshake("/echo", "Origin: http://elsewhere\r\n")).answer().status, 403);
    plain.assert_end();
    let mut other = server.connect();
    other.send(get("/").repeat(2) + &get("/none") + &post("/nothing", ""));
    let statuses: Vec<u16> = (0..4).map(|_| other.answer().status).collect();
    assert_eq!(statuses, [200, 200, 404, 405]);
    let metrics = monitor.metrics();
    assert_eq!((metrics.accepted, metrics.websockets(), metrics.handshakes), (5, 3, 3));
    assert_eq!(metrics.handshakes_rejected, [(403, 1)]);
    assert_eq!(metrics.responses, [0, 2, 0, 2, 0]);

    peers[0].send(&Frame::close(1000, "")).expect_close(1000);
    peers[1].client.send([0xFF; 8]);
    peers[1].expect_close(1002);
    let [_first, _second, third] = peers;
    third.reset();
    let metrics = wait_for(&monitor, |metrics| metrics.websockets() == 0);
    for end in [WebSocketEnd::Client, WebSocketEnd::Fault, WebSocketEnd::Lost] {
        assert_eq!(metrics.websockets_closed.get(end), 1, "{metrics:?}");
    }
    let metrics = wait_for(&monitor, |metrics| metrics.closed.get(ConnectionEnd::Reset) == 1);
    assert_eq!(metrics.connections(), metrics.accepted - metrics.closed.total());
    drop(server);
    assert_eq!(monitor.metrics().connections(), 0, "they can be read when the server has ended");
}

#[test]
fn messages_and_publications_are_counted() {
    let (server, monitor) = server();
    let mut chatters = [server.websocket("/chat"), server.websocket("/chat"), server.websocket("/chat")];
    chatters[0].send(&Frame::text("hello"));
    for chatter in &mut chatters {
        chatter.expect(&Reply::text("hello"));
        chatter.sync();
    }
    let mut peer = server.websocket("/echo");
    peer.send(&Frame::text("ab")).expect(&Reply::text("ab"));
    let metrics = monitor.metrics();
    assert_eq!((metrics.messages_received, metrics.message_bytes_received), (2, 7));
    // The publisher's own copy is a send, the copies of other subscribers are deliveries.
    assert_eq!((metrics.messages_sent, metrics.message_bytes_sent), (4, 3 * 5 + 2));
    assert_eq!((metrics.publications, metrics.deliveries), (1, 2));
    let through: u64 = metrics.loops.iter().map(|stats| stats.received_bytes).sum();
    assert!(through > metrics.message_bytes_received, "heads and handshakes are bytes too");
}

#[test]
fn queued_bytes_are_counted_while_queued() {
    const MESSAGE: usize = 1 << 20;
    let flood = |router: Router, overflow| {
        let (route, events) = crate::support::scripted(|event, cx| {
            if matches!(event, crate::support::HandlerEvent::Message(..)) {
                for _ in 0..40 {
                    let _ = cx.send_binary(&vec![7; MESSAGE]);
                }
            }
        });
        let config = sinews_server::Config::default().with_max_outbound(20 * MESSAGE).with_overflow(overflow);
        (router.websocket("/flood", route.with_config(config)), events)
    };
    let (router, _events) = flood(Router::new().websocket("/echo", echo()), Overflow::DropNewest);
    let monitor = router.monitor();
    let server = Running::router(router);
    let mut peer = server.websocket("/flood");
    peer.send(&Frame::text("go"));
    // The thread of the server changes one counter after the other.
    let metrics = wait_for(&monitor, |metrics| {
        metrics.messages_sent >= 20 && metrics.messages_sent + metrics.dropped.get(Dropped::Newest) == 40
    });
    assert!(metrics.queued_bytes > 10 * MESSAGE as u64, "{metrics:?}");
    for _ in 0..metrics.messages_sent {
        assert!(matches!(peer.next(), Some(Reply::Message(..))));
    }
    peer.sync();
    wait_for(&monitor, |metrics| metrics.queued_bytes == 0);
    drop(peer);
    server.websocket("/flood").send(&Frame::text("go"));
    wait_for(&monitor, |metrics| metrics.connections() == 0 && metrics.queued_bytes == 0);
}

#[test]
fn text_is_valid_openmetrics() {
    let (server, _) = server();
    let mut peer = server.websocket("/echo");
    peer.send(&Frame::text("ab")).expect(&Reply::text("ab"));
    assert_eq!(server.connect().send(handshake("/none", "")).answer().status, 404);
    assert_eq!(server.connect().send(handshake("/echo", "Origin: http://x\r\n")).answer().status, 403);
    let answer = server.connect().send(get("/metrics")).answer();
    assert_eq!(answer.header("content-type"), Some(Metrics::CONTENT_TYPE));
    let samples = parse(answer.text());
    for (name, value) in [
        ("sinews_websockets", 1.0),
        ("sinews_handshakes_total", 1.0),
        ("sinews_handshakes_refused_total{status=\"403\"}", 1.0),
        ("sinews_http_responses_total{class=\"4xx\"}", 1.0),
        ("sinews_messages_received_total", 1.0),
        ("sinews_messages_sent_bytes_total", 2.0),
        ("sinews_messages_dropped_total{reason=\"oldest\"}", 0.0),
        ("sinews_connections_accepted_total", 4.0),
    ] {
        assert_eq!(samples.get(name), Some(&value), "{name} in {}", answer.text());
    }
    assert!(samples["sinews_loop_turns_total{thread=\"0\"}"] > 3.0);
    if let Some(process) = samples.get("process_cpu_seconds_total") {
        // The process's time is in steps of 10 ms.
        let cpu = samples["sinews_loop_cpu_seconds_total{thread=\"0\"}"];
        assert!(cpu > 0.0 && cpu < process + 0.02, "{cpu} of {process}");
    }
    let total = samples["sinews_loop_turn_seconds_count"];
    assert_eq!(samples["sinews_loop_turn_seconds_bucket{le=\"+Inf\"}"], total);
}

/// Parses the format strictly: every family is announced once, before its samples, which carry its name and a suffix
/// of its type; no line follows the end.
fn parse(text: &str) -> HashMap<String, f64> {
    let (mut samples, mut types, mut reported) = (HashMap::new(), HashMap::new(), HashSet::new());
    let mut family = String::new();
    let text = text.strip_suffix("# EOF\n").expect("an end");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let [kind, name, about] = rest.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            assert!(reported.insert((kind.to_owned(), name.to_owned())), "twice: {line}");
            assert!(!about.is_empty(), "{line}");
            if kind == "TYPE" {
                types.insert(name.to_owned(), about.to_owned());
            }
            family = name.to_owned();
            continue;
        }
        let (name, value) = line.rsplit_once(' ').expect("a value");
        let bare = name.split('{').next().unwrap();
        let suffix = bare.strip_prefix(&*family).unwrap_or_else(|| panic!("{line} is none of {family}"));
        let suffixes: &[&str] = match &*types[&family] {
            "counter" => &["_total"],
            "gauge" => &[""],
            "histogram" => &["_sum", "_count", "_bucket"],
            other => panic!("{other}"),
        };
        assert!(suffixes.contains(&suffix), "{line}");
        assert!(samples.insert(name.to_owned(), value.parse().unwrap()).is_none(), "twice: {line}");
    }
    samples
}
