//! Topics over several threads.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use sinews_proto::Role;
use sinews_server::{
    DeflateConfig, EngineConfig, HistoryPolicy, Kind, Overflow, Prepared, PublishError, PublishOptions,
    Request, Response, Router, Server, ServerOptions, TopicConfig, TopicRule, WebSocketRoute,
};
use sinews_testkit::{Codec, Frame, Reply, negotiate};

use crate::support::{HandlerEvent, Peer, Running, post, scripted};

const THREADS: usize = 3;

/// Subscribes to `all`; sends the thread it lives on; publishes its messages, to itself or not.
fn member() -> WebSocketRoute {
    let (route, _events) = scripted(|event, cx| match event {
        HandlerEvent::Open => {
            cx.subscribe("all").unwrap();
            let _ = cx.send_text(std::thread::current().name().unwrap()).unwrap();
        }
        HandlerEvent::Message(kind, payload) => {
            let message = Prepared::new(*kind, payload.clone().into());
            let reached = match payload.first() {
                Some(b'+') => cx.publish("all", &message, PublishOptions::new()),
                _ => cx.publish("all", &message, PublishOptions::new().except(cx.subscriber_id())),
            };
            let reached = reached.unwrap();
            let _ = cx.send_text(&format!("reached {reached}")).unwrap();
        }
        _ => {}
    });
    route
}

fn routes() -> Router {
    Router::new().websocket("/member", member()).post("/publish/{topic}", |request| {
        let topic = request.param("topic").unwrap_or_default();
        let message = Prepared::binary(request.body().to_vec());
        match request.topics().publish(&topic, &message, PublishOptions::new()) {
            Ok(reached) => Response::text(reached.to_string()),
            Err(invalid) => Response::text(invalid.to_string()).with_status(400),
        }
    })
}

/// Creates members on every thread, several on each.
fn crowd(server: &Running) -> Vec<Peer> {
    let mut crowd: Vec<(String, Peer)> = Vec::new();
    // The kernel spreads connections by their ports: no run of hundreds misses a thread.
    for _ in 0..500 {
        let mut peer = server.websocket("/member");
        let Some(Reply::Message(Kind::Text, thread)) = peer.next() else { panic!("the name of a thread") };
        crowd.push((String::from_utf8(thread).unwrap(), peer));
        let count = |name: &String| crowd.iter().filter(|(thread, _)| thread == name).count();
        let mut names: Vec<&String> = crowd.iter().map(|(thread, _)| thread).collect();
        names.sort_unstable();
        names.dedup();
        if names.len() == THREADS && names.into_iter().all(|name| count(name) >= 2) {
            return crowd.into_iter().map(|(_, peer)| peer).collect();
        }
    }
    panic!("some thread got no connections");
}

fn server() -> Running {
    Running::server(Server::new(routes()).threads(THREADS))
}

#[test]
fn publication_reaches_every_subscriber_on_every_thread() {
    let server = server();
    let mut crowd = crowd(&server);
    let size = crowd.len();
    for publisher in 0..size {
        let text = format!("+{publisher}");
        crowd[publisher].send(&Frame::text(&text));
        for (at, peer) in crowd.iter_mut().enumerate() {
            peer.expect(&Reply::text(&text));
            if at == publisher {
                peer.expect(&Reply::text(format!("reached {size}")));
            }
        }
        let bytes = vec![publisher as u8; 1_000];
        crowd[publisher].send(&Frame::binary(&bytes));
        for (at, peer) in crowd.iter_mut().enumerate() {
            let reported = Reply::text(format!("reached {}", size - 1));
            peer.expect(&if at == publisher { reported } else { Reply::binary(&bytes) });
        }
    }
    let answer = server.connect().send(post("/publish/all", "posted")).answer();
    assert_eq!(answer.text(), size.to_string());
    crowd.iter_mut().for_each(|peer| peer.expect(&Reply::binary("posted")));
    assert_eq!(server.connect().send(post("/publish/nobody", "posted")).answer().text(), "0");
}

#[test]
fn other_threads_publish_too() {
    let server = Running::server(Server::new(routes()).threads(THREADS));
    let publisher = &server.publisher;
    let mut crowd = crowd(&server);
    assert_eq!(publisher.publish("nobody", &Prepared::text("x"), PublishOptions::new()), Ok(0));
    for number in 0..100 {
        let text = number.to_string();
        assert_eq!(publisher.publish("all", &Prepared::text(text), PublishOptions::new()), Ok(crowd.len()));
    }
    for number in 0..100 {
        crowd.iter_mut().for_each(|peer| peer.expect(&Reply::text(number.to_string())));
    }
}

/// A loop blocked in a callback, with a mailbox of one message.
#[test]
fn publisher_gets_an_error_for_a_full_mailbox() {
    let (standing, stands) = channel();
    let (go_on, reported) = channel::<()>();
    let reported = Mutex::new(reported);
    let (route, _events) = scripted(move |event, cx| match event {
        HandlerEvent::Open => cx.subscribe("all").unwrap(),
        HandlerEvent::Message(..) => {
            standing.send(()).unwrap();
            reported.lock().unwrap().recv().unwrap();
        }
        _ => {}
    });
    let engine = EngineConfig::default().with_mailbox(1).unwrap();
    let server = Server::new(Router::new().websocket("/", route)).threads(1).engine(engine);
    let bound = server.listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
    let publisher = bound.publisher();
    let server = Running::bound(bound);
    let mut peer = server.websocket("/");
    peer.send(&Frame::text("stand still"));
    stands.recv().unwrap();
    assert_eq!(publisher.publish("all", &Prepared::text("one"), PublishOptions::new()), Ok(1));
    let error = publisher.publish("all", &Prepared::text("two"), PublishOptions::new()).unwrap_err();
    let PublishError::Undelivered(undelivered) = error else { panic!("{error}") };
    assert_eq!((undelivered.reached, undelivered.lost), (0, 1), "{error}");
    go_on.send(()).unwrap();
    peer.expect(&Reply::text("one"));
    assert_eq!(publisher.publish("all", &Prepared::text("three"), PublishOptions::new()), Ok(1));
    peer.expect(&Reply::text("three"));
}

#[test]
fn excluded_subscribers_of_all_threads_receive_the_other_messages_in_order() {
    const TOPICS: [&str; 2] = ["all", "kept"];
    let ids = Arc::new(Mutex::new(Vec::new()));
    let known = Arc::clone(&ids);
    let (route, _events) = scripted(move |event, cx| {
        if let HandlerEvent::Open = event {
            known.lock().unwrap().push(cx.subscriber_id());
            TOPICS.iter().for_each(|topic| cx.subscribe(topic).unwrap());
            let _ = cx.send_text(std::thread::current().name().unwrap()).unwrap();
        }
    });
    let publish = move |request: &mut Request<'_>| {
        let (topic, number) = (request.param("topic").unwrap(), request.param("number").unwrap());
        let except = ids.lock().unwrap()[number.parse::<usize>().unwrap()];
        for round in 0..3 {
            let message = |kind: &str| Prepared::text(format!("{kind} {round}"));
            let reached = request
                .topics()
                .publish(&topic, &message("others"), PublishOptions::new().except(except))
                .unwrap();
            let all = request.topics().publish(&topic, &message("all"), PublishOptions::new()).unwrap();
            // A subscriber of another thread counts.
            assert!((all - 1..=all).contains(&reached), "{reached} of {all}");
        }
        assert!(
            request
                .topics()
                .publish("a.*", &Prepared::text(""), PublishOptions::new().except(except))
                .is_err()
        );
        Response::text("")
    };
    let router = Router::new().websocket("/member", route).post("/{topic}/{number}", publish);
    let history = TopicRule::new("kept").with_history(HistoryPolicy::new(10));
    let server = Running::server(Server::new(router).threads(THREADS).topic_rule(history));
    let mut crowd = crowd(&server);
    for topic in TOPICS {
        for number in 0..crowd.len() {
            server.connect().send(post(&format!("/{topic}/{number}"), "")).answer();
            for (at, peer) in crowd.iter_mut().enumerate() {
                for round in 0..3 {
                    for kind in ["others", "all"].into_iter().filter(|kind| at != number || *kind == "all") {
                        peer.expect(&Reply::text(format!("{kind} {round}")));
                    }
                }
            }
        }
    }
}

#[test]
fn closed_subscribers_are_not_counted() {
    let server = server();
    let mut crowd = crowd(&server);
    while let Some(mut leaving) = crowd.pop() {
        // By a Close, whose answer shows that the subscription has ended.
        leaving.send(&Frame::close(1000, ""));
        while leaving.next().is_some() {}
        let reached = server.connect().send(post("/publish/all", "x")).answer();
        assert_eq!(reached.text(), crowd.len().to_string());
    }
}

#[test]
fn publications_of_closing_connections_are_delivered() {
    let (route, _events) = scripted(|event, cx| match event {
        HandlerEvent::Open => cx.subscribe("all").unwrap(),
        HandlerEvent::Close(closed) => {
            let reached = cx
                .publish("all", &Prepared::text(closed.status().to_string()), PublishOptions::new())
                .unwrap();
            assert!(reached <= 1, "{reached} subscribers: the one that is over is none any more");
        }
        _ => {}
    });
    let server = Running::router(Router::new().websocket("/", route));
    let mut witness = server.websocket("/");
    witness.sync();
    server.websocket("/").reset();
    witness.expect(&Reply::text("1006"));
    server.websocket("/").client.half_close();
    witness.expect(&Reply::text("1006"));
    server.websocket("/").send(&Frame::close(3000, ""));
    witness.expect(&Reply::text("3000"));
    server.websocket("/").send(&Frame::text("x").unmasked());
    witness.expect(&Reply::text("1002"));
}

#[test]
fn subscriber_in_the_middle_of_a_message_misses_no_message() {
    let (route, _events) = scripted(|event, cx| match event {
        HandlerEvent::Open => cx.subscribe("all").unwrap(),
        HandlerEvent::Message(kind, payload) => match &payload[..] {
            b"begin" => assert!(cx.send_fragment(*kind, b"a long ", false).is_ok()),
            b"end" => assert!(cx.send_fragment(*kind, b"story", true).is_ok()),
            other => assert_eq!(
                cx.publish("all", &Prepared::new(*kind, other.to_vec().into()), PublishOptions::new()),
                Ok(2)
            ),
        },
        _ => {}
    });
    let server = Running::router(Router::new().websocket("/", route));
    let (mut telling, mut other) = (server.websocket("/"), server.websocket("/"));
    telling.send(&Frame::text("begin"));
    telling.sync();
    other.sync();
    for text in ["one", "two"] {
        other.send(&Frame::text(text)).expect(&Reply::text(text));
    }
    // Its own messages are no exception.
    telling.send(&Frame::text("three"));
    other.expect(&Reply::text("three"));
    telling.send(&Frame::text("end"));
    for text in ["a long story", "one", "two", "three"] {
        telling.expect(&Reply::text(text));
    }
}

#[test]
fn each_publisher_is_delivered_in_order_to_all() {
    in_order(&server(), 200);
}

/// Every publication is queued, and all publishers are paused all the time.
#[test]
fn each_publisher_is_delivered_in_order_to_all_with_a_small_budget() {
    for (deliveries, waiting) in [(1, 1), (5, 20), (100, 1_000)] {
        let config =
            TopicConfig::default().with_deliveries_per_turn(deliveries).with_max_queued_messages(waiting);
        in_order(&Running::server(Server::new(routes()).threads(THREADS).topics(config)), 50);
    }
}

fn in_order(server: &Running, rounds: usize) {
    let mut crowd = crowd(server);
    let size = crowd.len();
    let senders: Vec<_> = crowd.iter().map(|peer| peer.client.try_clone()).collect();
    let sending: Vec<_> = senders
        .into_iter()
        .enumerate()
        .map(|(publisher, mut sender)| {
            std::thread::spawn(move || {
                for round in 0..rounds {
                    sender.send(Frame::text(format!("+{publisher} {round}")).encode(Role::Client));
                }
            })
        })
        .collect();
    for (at, peer) in crowd.iter_mut().enumerate() {
        let mut next = vec![0; size];
        // The peer's own publications come with a reply to each, in order too.
        let mut words = 0;
        while next.iter().sum::<usize>() < size * rounds || words < rounds {
            let Some(Reply::Message(Kind::Text, text)) = peer.next() else { panic!("a message") };
            let text = String::from_utf8(text).unwrap();
            match text.strip_prefix('+') {
                None => {
                    assert_eq!(text, format!("reached {size}"));
                    words += 1;
                    assert_eq!(next[at], words, "sends come after publications");
                }
                Some(published) => {
                    let (publisher, round) = published.split_once(' ').unwrap();
                    let publisher: usize = publisher.parse().unwrap();
                    assert_eq!(round, next[publisher].to_string(), "{publisher} to {at}");
                    next[publisher] += 1;
                }
            }
        }
    }
    sending.into_iter().for_each(|sender| sender.join().unwrap());
}

#[test]
fn prepared_message_serves_subscribers_with_and_without_compression() {
    let deflate = DeflateConfig::new();
    let options = ServerOptions::new().with_deflate(deflate.clone());
    for overflow in [Overflow::Close, Overflow::DropNewest, Overflow::DropOldest] {
        let config = sinews_server::Config::default().with_overflow(overflow);
        let route = member().with_options(options.clone()).with_config(config);
        let server = Running::server(Server::new(Router::new().websocket("/member", route)).threads(2));
        let lines = "Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=";
        let mut peers = Vec::new();
        for bits in [0, 9, 12, 15] {
            let mut peer = match bits {
                0 => server.websocket("/member"),
                bits => server.connect().upgrade_with("/member", &format!("{lines}{bits}\r\n")),
            };
            assert!(matches!(peer.next(), Some(Reply::Message(Kind::Text, _))));
            if bits > 0 {
                // An inflater with the largest window understands every smaller one.
                let params =
                    negotiate(Some(deflate.clone()), Some(deflate.clone())).client.deflate().unwrap();
                peer = peer.with_codec(Codec::new(Role::Client, params));
            }
            peers.push(peer);
        }
        for size in [1, 100, 200, 300, 5_000, 70_000] {
            let text = format!("+{}", "compressible ".repeat(size / 13));
            peers[0].send(&Frame::text(&text));
            peers.iter_mut().for_each(|peer| peer.expect(&Reply::text(&text)));
            peers[0].expect(&Reply::text("reached 4"));
        }
    }
}
