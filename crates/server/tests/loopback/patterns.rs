//! Subscriptions with wildcards, over several threads.

use std::collections::BTreeMap;

use sinews_server::{
    InvalidTopic, Prepared, PublishError, PublishOptions, Response, Router, Server, WebSocketRoute,
};
use sinews_testkit::{Frame, Reply};

use crate::support::{HandlerEvent, Peer, Running, post, scripted};

const THREADS: usize = 3;

/// Commands: `+name` subscribes, `-name` unsubscribes, `=name` publishes the name to it, `!name` to the other
/// subscribers; each is answered with its result.
fn member() -> WebSocketRoute {
    let (route, _events) = scripted(|event, cx| {
        let HandlerEvent::Message(_, payload) = event else { return };
        let text = std::str::from_utf8(payload).unwrap();
        let (command, name) = text.split_at(1);
        let message = Prepared::text(name);
        let answer = match command {
            "+" => cx.subscribe(name).map_or_else(|error| error.to_string(), |()| "subscribed".to_owned()),
            "-" => cx.unsubscribe(name).to_string(),
            "=" => cx
                .publish(name, &message, PublishOptions::new())
                .map_or_else(|error| error.to_string(), |to| format!("to {to}")),
            _ => cx
                .publish(name, &message, PublishOptions::new().except(cx.subscriber_id()))
                .map_or_else(|error| error.to_string(), |to| format!("to {to}")),
        };
        let _ = cx.send_text(&answer).unwrap();
    });
    route
}

fn routes() -> Router {
    Router::new().websocket("/", member()).post("/publish/{topic}", |request| {
        let topic = request.param("topic").unwrap_or_default();
        match request.topics().publish(&topic, &Prepared::text(topic.as_ref()), PublishOptions::new()) {
            Ok(reached) => Response::text(reached.to_string()),
            Err(invalid) => Response::text(invalid.to_string()).with_status(400),
        }
    })
}

fn server(threads: usize) -> Running {
    Running::server(Server::new(routes()).threads(threads))
}

fn ask(peer: &mut Peer, command: &str, answer: &str) {
    peer.send(&Frame::text(command)).expect(&Reply::text(answer));
}

fn subscriber(server: &Running, names: &[&str]) -> Peer {
    let mut peer = server.websocket("/");
    names.iter().for_each(|name| ask(&mut peer, &format!("+{name}"), "subscribed"));
    peer
}

/// Collects the messages of each peer after these publications, up to the reply to a last command.
fn deliveries(server: &Running, peers: &mut [Peer], publish: &[(&str, usize)]) -> Vec<Vec<String>> {
    for (topic, reached) in publish {
        let answer = server.connect().send(post(&format!("/publish/{topic}"), "")).answer();
        assert_eq!(answer.text(), reached.to_string(), "{topic}");
    }
    let collect = |peer: &mut Peer| {
        peer.send(&Frame::text("-nothing"));
        let mut words = Vec::new();
        loop {
            match peer.next() {
                Some(Reply::Message(_, word)) if word == b"false" => return words,
                Some(Reply::Message(_, word)) => words.push(String::from_utf8(word).unwrap()),
                other => panic!("{other:?}"),
            }
        }
    };
    peers.iter_mut().map(collect).collect()
}

#[test]
fn pattern_receives_exactly_the_matching_topics() {
    let server = server(1);
    let patterns = ["a.*", "a.>", "*.b", ">", "a.b", "a.*.c"];
    let mut peers: Vec<Peer> = patterns.iter().map(|pattern| subscriber(&server, &[pattern])).collect();
    let topics = [("a.b", 5), ("a", 1), ("a.b.c", 3), ("x.b", 2), ("a.c", 3), ("a.x.y.z", 2)];
    let delivered = deliveries(&server, &mut peers, &topics);
    let expected: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("a.*", &["a.b", "a.c"][..]),
        ("a.>", &["a.b", "a.b.c", "a.c", "a.x.y.z"]),
        ("*.b", &["a.b", "x.b"]),
        (">", &["a.b", "a", "a.b.c", "x.b", "a.c", "a.x.y.z"]),
        ("a.b", &["a.b"]),
        ("a.*.c", &["a.b.c"]),
    ]);
    for (pattern, received) in patterns.iter().zip(delivered) {
        assert_eq!(received, expected[pattern], "{pattern}");
    }
}

#[test]
fn overlapping_subscriptions_deliver_a_message_once() {
    for threads in [1, THREADS] {
        let server = server(threads);
        let all = ["a.b", "a.*", "*.b", ">", "a.b.c"];
        let mut peers: Vec<Peer> = (0..8).map(|_| subscriber(&server, &all)).collect();
        let publisher = peers.last_mut().unwrap();
        // Its own message arrives first, and once.
        publisher.send(&Frame::text("=a.b"));
        publisher.expect(&Reply::text("a.b"));
        publisher.expect(&Reply::text("to 32"));
        ask(publisher, "!a.b", "to 28");
        for peer in &mut peers[..7] {
            peer.expect(&Reply::text("a.b"));
            peer.expect(&Reply::text("a.b"));
        }
        // From other threads it arrives at any time.
        for peer in peers.iter_mut().filter(|_| threads == 1) {
            // The earlier peers have published.
            drain(peer);
            // The remaining subscriptions still deliver it once; without any, no message arrives.
            for (left, name) in all[..4].iter().enumerate() {
                peer.send(&Frame::text("=a.b")).expect(&Reply::text("a.b"));
                assert!(matches!(peer.next(), Some(Reply::Message(..))), "{left} gone");
                ask(peer, &format!("-{name}"), "true");
            }
            peer.send(&Frame::text("-a.b.c")).expect(&Reply::text("true"));
            drain(peer);
        }
        let left = if threads == 1 { 0 } else { 32 };
        assert_eq!(server.connect().send(post("/publish/a.b", "")).answer().text(), left.to_string());
    }
}

/// Reads publications of other peers.
fn drain(peer: &mut Peer) {
    peer.client.send(Frame::ping("end").encode(sinews_proto::Role::Client));
    while peer.next() != Some(Reply::Pong(b"end".to_vec())) {}
}

#[test]
fn patterns_apply_on_every_thread() {
    let server = Running::server(Server::new(routes()).threads(THREADS));
    let publisher = &server.publisher;
    let mut peers: Vec<Peer> = (0..24).map(|_| subscriber(&server, &["price.*.eur"])).collect();
    for round in 0..20 {
        let topic = format!("price.{round}.eur");
        assert_eq!(publisher.publish(&topic, &Prepared::text(&*topic), PublishOptions::new()), Ok(24));
        let answer = server.connect().send(post(&format!("/publish/{topic}"), "")).answer();
        assert_eq!(answer.text(), "24");
        let at = round % peers.len();
        peers[at].send(&Frame::text(format!("!{topic}")));
        for (number, peer) in peers.iter_mut().enumerate() {
            // Three peers publish from three threads: each thread keeps the order of each peer, not of all.
            let mut received = [peer.next(), peer.next(), peer.next()];
            received.sort_by_key(|reply| *reply != Some(Reply::text(&topic)));
            let (topic, own) = (Some(Reply::text(&topic)), Some(Reply::text("to 23")));
            let last = if number == at { own } else { topic.clone() };
            assert_eq!(received, [topic.clone(), topic, last]);
        }
        assert_eq!(publisher.publish("price.eur", &Prepared::text("x"), PublishOptions::new()), Ok(0));
    }
    // Fewer and fewer subscribers get it, and finally the pattern is removed everywhere.
    while let Some(mut peer) = peers.pop() {
        peer.send(&Frame::text("-price.*.eur")).expect(&Reply::text("true"));
        assert_eq!(
            publisher.publish("price.1.eur", &Prepared::text("left"), PublishOptions::new()),
            Ok(peers.len())
        );
        peers.iter_mut().for_each(|peer| peer.expect(&Reply::text("left")));
        peer.sync();
    }
}

#[test]
fn subscription_changes_count_at_once() {
    let server = server(1);
    let (mut one, mut other) = (subscriber(&server, &[]), subscriber(&server, &["a.b"]));
    ask(&mut one, "!a.b", "to 1");
    other.expect(&Reply::text("a.b"));
    for _ in 0..3 {
        ask(&mut other, "+a.*", "subscribed");
        ask(&mut other, "+a.*", "subscribed");
        ask(&mut one, "!a.b", "to 2");
        other.expect(&Reply::text("a.b"));
        ask(&mut other, "-a.b", "true");
        ask(&mut one, "!a.b", "to 1");
        other.expect(&Reply::text("a.b"));
        ask(&mut other, "-a.*", "true");
        ask(&mut one, "!a.b", "to 0");
        ask(&mut other, "+a.b", "subscribed");
        other.sync();
    }
    // A closed connection takes its patterns along.
    ask(&mut other, "+>", "subscribed");
    other.send(&Frame::close(1000, ""));
    while other.next().is_some() {}
    ask(&mut one, "!a.b", "to 0");
}

#[test]
fn topics_beyond_the_route_cache_are_still_matched() {
    let server = server(1);
    let mut hears = subscriber(&server, &["topic.*", "topic.7"]);
    let mut tells = subscriber(&server, &[]);
    for round in 0..2 {
        for number in 0..5_000 {
            tells.send(&Frame::text(format!("!topic.{number}")));
        }
        for number in 0..5_000 {
            tells.expect(&Reply::text(if number == 7 { "to 2" } else { "to 1" }));
            hears.expect(&Reply::text(format!("topic.{number}")));
        }
        hears.sync();
        assert!(round < 2);
    }
}

#[test]
fn wildcards_are_allowed_in_subscriptions_only() {
    let server = Running::server(Server::new(routes()).threads(1));
    let publisher = &server.publisher;
    let mut peer = subscriber(&server, &["a.*"]);
    let wildcard = InvalidTopic::Wildcard.to_string();
    for pattern in ["a.*", ">", "*.b"] {
        ask(&mut peer, &format!("={pattern}"), &wildcard);
        ask(&mut peer, &format!("!{pattern}"), &wildcard);
        let error = publisher.publish(pattern, &Prepared::text("x"), PublishOptions::new()).unwrap_err();
        assert_eq!(error, PublishError::Topic(InvalidTopic::Wildcard));
    }
    ask(&mut peer, "+a.>.b", &wildcard);
    ask(&mut peer, "=", &InvalidTopic::Name.to_string());
    let answer = server.connect().send(post("/publish/a.*", "x")).answer();
    assert_eq!((answer.status, answer.text()), (400, &*wildcard));
    // As part of a token they are ordinary characters.
    ask(&mut peer, "+a*", "subscribed");
    peer.send(&Frame::text("=a*")).expect(&Reply::text("a*"));
    peer.expect(&Reply::text("to 1"));
}
