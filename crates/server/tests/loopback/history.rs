//! Topics with history: subscribers that join late or resume get every message exactly once.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sinews_proto::Role;
use sinews_server::{
    Config, Context, DropReason, HistoryPolicy, InvalidTopic, Kind, Position, Prepared, PublishOptions,
    Publisher, ReplayFrom, Response, Router, Server, TopicConfig, TopicRule, WebSocketRoute,
};
use sinews_testkit::{Frame, Reply};

use crate::backend;
use crate::support::{EventReceiver, HandlerEvent, Peer, Running, for_slow_peers, post, scripted};

const THREADS: usize = 3;

/// Message that contains its sequence.
fn numbered(position: Option<Position>) -> Prepared {
    Prepared::binary(position.expect("the topic is kept").sequence.to_be_bytes().to_vec())
}

/// Commands: `last n` and `after epoch sequence` subscribe to the topic with a start, `+` and `-` without; `n times`
/// publishes numbers.
fn execute(text: &str, cx: &mut Context<'_>) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let join = |cx: &mut Context<'_>, start| match cx.subscribe_from("kept.a", start) {
        Ok(joined) => {
            let Position { epoch, sequence } = joined.position;
            format!("{epoch} {sequence} {} {}", joined.replayed, joined.complete)
        }
        Err(invalid) => invalid.to_string(),
    };
    match words[..] {
        ["last", count] => join(cx, ReplayFrom::Last(count.parse().unwrap())),
        ["after", epoch, sequence] => {
            let position = Position { epoch: epoch.parse().unwrap(), sequence: sequence.parse().unwrap() };
            join(cx, ReplayFrom::After(position))
        }
        [count, "times"] => {
            for _ in 0..count.parse().unwrap() {
                cx.publish_with("kept.a", numbered, PublishOptions::new()).unwrap();
            }
            "published".to_owned()
        }
        [name] if name.starts_with('-') => cx.unsubscribe(&name[1..]).to_string(),
        [name] => cx.subscribe(name).map_or_else(|invalid| invalid.to_string(), |()| "subscribed".to_owned()),
        _ => panic!("{text}"),
    }
}

fn member(config: Config) -> (WebSocketRoute, EventReceiver) {
    let (route, events) = scripted(|event, cx| {
        if let HandlerEvent::Message(Kind::Text, text) = event {
            let answer = execute(std::str::from_utf8(text).unwrap(), cx);
            let _ = cx.send_text(&answer).unwrap();
        }
    });
    (route.with_config(config), events)
}

struct World {
    server: Running,
    publisher: Publisher,
    events: EventReceiver,
}

fn world_with(history: HistoryPolicy, config: Config, change: impl FnOnce(Server) -> Server) -> World {
    let (route, events) = member(config);
    let router = Router::new().websocket("/", route).post("/publish", |request| {
        Response::text(
            request.topics().publish_with("kept.a", numbered, PublishOptions::new()).unwrap().to_string(),
        )
    });
    let router = router.post("/kept", |request| {
        let topics = request.topics();
        let kept = topics.history("kept.a", ReplayFrom::Last(usize::MAX));
        let kept: Vec<String> = kept.iter().map(|(sequence, _)| sequence.to_string()).collect();
        assert_eq!(topics.position("kept.b"), None);
        Response::text(kept.join(" "))
    });
    let server = Server::new(router).threads(THREADS).engine(backend::engine());
    let server = change(server.topic_rule(TopicRule::new("kept.*").with_history(history)));
    let server = Running::bound(server.listen(([127, 0, 0, 1], 0).into()).bind().unwrap());
    World { publisher: server.publisher.clone(), server, events }
}

fn world(history: HistoryPolicy) -> World {
    world_with(history, Config::default(), |server| server)
}

/// State that several threads may use.
#[derive(Clone, Copy)]
struct Shared<'a> {
    server: &'a Running,
    publisher: &'a Publisher,
}

impl World {
    fn peer(&self) -> Peer {
        self.server.websocket("/")
    }

    fn publish(&self, times: u64) {
        Shared { server: &self.server, publisher: &self.publisher }.publish(times);
    }
}

impl Shared<'_> {
    /// Publishes from a thread outside the server, or by a request.
    fn publish(&self, times: u64) {
        for number in 0..times {
            if number % 2 == 0 {
                self.publisher.publish_with("kept.a", numbered, PublishOptions::new()).unwrap();
            } else {
                assert_eq!(self.server.connect().send(post("/publish", "")).answer().status, 200);
            }
        }
    }
}

fn sequence(reply: &Reply) -> Option<u64> {
    match reply {
        Reply::Message(Kind::Binary, payload) => Some(u64::from_be_bytes(payload[..].try_into().unwrap())),
        _ => None,
    }
}

/// Joins; returns epoch, sequence, number of replayed messages, and completeness.
fn join(peer: &mut Peer, command: &str) -> (u64, u64, u64, bool) {
    peer.send(&Frame::text(command));
    loop {
        if let Some(Reply::Message(Kind::Text, answer)) = peer.next() {
            let answer = String::from_utf8(answer).unwrap();
            let words: Vec<&str> = answer.split(' ').collect();
            let [epoch, sequence, replayed, complete] = words[..] else { panic!("{answer}") };
            let number = |word: &str| word.parse::<u64>().unwrap();
            return (number(epoch), number(sequence), number(replayed), complete == "true");
        }
    }
}

fn expect_all(peer: &mut Peer, sequences: std::ops::RangeInclusive<u64>) {
    for expected in sequences {
        let reply = peer.next().unwrap();
        assert_eq!(sequence(&reply), Some(expected), "{reply:?}");
    }
}

#[test]
fn joining_subscriber_gets_the_last_value_or_more() {
    let world = world(HistoryPolicy::new(10));
    let mut early = world.peer();
    let (epoch, position, replayed, complete) = join(&mut early, "last 5");
    assert_eq!((position, replayed, complete), (0, 0, true));
    world.publish(20);
    expect_all(&mut early, 1..=20);
    for (command, first, complete) in [
        ("last 1".to_owned(), 20, true),
        ("last 3".to_owned(), 18, true),
        ("last 99".to_owned(), 11, true),
        (format!("after {epoch} 15"), 16, true),
        (format!("after {epoch} 20"), 21, true),
        (format!("after {epoch} 3"), 11, false),
        (format!("after {} 20", epoch ^ 1), 11, false),
    ] {
        let mut peer = world.peer();
        assert_eq!(join(&mut peer, &command), (epoch, 20, 21 - first, complete), "{command}");
        expect_all(&mut peer, first..=20);
        peer.sync();
    }
    let answer = world.server.connect().send(post("/kept", "")).answer();
    assert_eq!(answer.text(), "11 12 13 14 15 16 17 18 19 20");
    // Each of them continues.
    let mut late = world.peer();
    join(&mut late, "last 2");
    world.publish(10);
    expect_all(&mut late, 19..=30);
    expect_all(&mut early, 21..=30);
}

/// Its last subscriber leaves before the first publication, and resumes on any thread, twice.
#[test]
fn position_of_an_empty_topic_holds_after_its_last_subscriber_has_left() {
    let world = world(HistoryPolicy::new(100));
    let mut peers: Vec<Peer> = (0..2 * THREADS).map(|_| world.peer()).collect();
    let (epoch, ..) = join(&mut peers[0], "last 0");
    for peer in &mut peers {
        assert_eq!(join(peer, &format!("after {epoch} 0")), (epoch, 0, 0, true));
    }
    for peer in &mut peers {
        peer.send(&Frame::text("-kept.a")).expect(&Reply::text("true"));
    }
    world.publish(10);
    for peer in &mut peers {
        assert_eq!(join(peer, &format!("after {epoch} 0")), (epoch, 10, 10, true));
        expect_all(peer, 1..=10);
    }
    for peer in &mut peers {
        peer.send(&Frame::text("-kept.a")).expect(&Reply::text("true"));
    }
    world.publish(10);
    for peer in &mut peers {
        assert_eq!(join(peer, &format!("after {epoch} 10")), (epoch, 20, 10, true));
        expect_all(peer, 11..=20);
    }
}

/// All messages have expired while the subscriber was away: it has received them.
#[test]
fn subscriber_that_resumes_an_expired_topic_has_missed_nothing() {
    let world = world(HistoryPolicy::new(100).with_max_age(Duration::from_millis(1)));
    let mut peer = world.peer();
    let (epoch, ..) = join(&mut peer, "last 0");
    world.publish(10);
    expect_all(&mut peer, 1..=10);
    let expired = |peer: &mut Peer| while join(peer, "last 10").2 > 0 {};
    expired(&mut world.peer());
    peer.send(&Frame::text("-kept.a")).expect(&Reply::text("true"));
    expired(&mut world.peer());
    assert_eq!(join(&mut peer, &format!("after {epoch} 10")), (epoch, 10, 0, true));
}

#[test]
fn topic_without_a_rule_has_no_history() {
    let (route, _events) = scripted(|event, cx| {
        if *event == HandlerEvent::Open {
            for name in ["other", "kept.*", ">"] {
                assert_eq!(cx.subscribe_from(name, ReplayFrom::Last(1)), Err(InvalidTopic::NoHistory));
            }
            assert_eq!(cx.subscribe_from("kept.>.a", ReplayFrom::Last(1)), Err(InvalidTopic::Wildcard));
            let message = |position: Option<Position>| {
                assert_eq!(position, None);
                Prepared::text("x")
            };
            assert_eq!(cx.publish_with("other", message, PublishOptions::new()), Ok(0));
            assert_eq!(cx.publish("kept.a", &Prepared::text("x"), PublishOptions::new()), Ok(0));
            assert!(cx.topics().history("other", ReplayFrom::Last(1)).is_empty());
            assert_eq!(cx.topics().position("kept.a").map(|position| position.sequence), Some(1));
            let _ = cx.send_text("done").unwrap();
        }
    });
    let rule = TopicRule::new("kept.*").with_history(HistoryPolicy::new(1));
    let server = Running::server(Server::new(Router::new().websocket("/", route)).topic_rule(rule));
    server.websocket("/").expect(&Reply::text("done"));
}

/// Publishers on every thread and outside, subscribers that join and leave all the time.
fn no_message_is_lost_or_delivered_twice(change: impl FnOnce(Server) -> Server, rounds: u64) {
    let world = world_with(HistoryPolicy::new(100_000), Config::default(), change);
    let mut publishers: Vec<Peer> = (0..6).map(|_| world.server.websocket("/")).collect();
    // This test ignores the callbacks of handlers.
    drop(world.events);
    let world = Shared { server: &world.server, publisher: &world.publisher };
    let total = rounds * 10 * publishers.len() as u64 + rounds * 10;
    std::thread::scope(|scope| {
        for publisher in &mut publishers {
            scope.spawn(move || {
                for _ in 0..rounds {
                    publisher.send(&Frame::text("10 times")).expect(&Reply::text("published"));
                }
            });
        }
        scope.spawn(move || world.publish(rounds * 10));
        for _ in 0..8 {
            scope.spawn(move || {
                let (mut next, mut epoch) = (1, 0);
                while next <= total {
                    let mut peer = world.server.websocket("/");
                    let (of, at, replayed, complete) =
                        join(&mut peer, &format!("after {epoch} {}", next - 1));
                    assert!(epoch == 0 || complete && of == epoch, "{epoch}, then {of}");
                    assert_eq!(at + 1 - replayed, next);
                    epoch = of;
                    // It stays for a while after the replay.
                    for _ in 0..replayed + 37 {
                        if next > total {
                            break;
                        }
                        let reply = peer.next().unwrap();
                        assert_eq!(sequence(&reply), Some(next), "{reply:?}");
                        next += 1;
                    }
                }
            });
        }
    });
}

#[test]
fn resuming_subscriber_gets_every_message_exactly_once() {
    no_message_is_lost_or_delivered_twice(|server| server, 20);
}

#[test]
fn tight_budget_and_full_mailbox_lose_no_message() {
    let tight = TopicConfig::default().with_deliveries_per_turn(3).with_max_queued_messages(5);
    no_message_is_lost_or_delivered_twice(|server| server.topics(tight), 5);
    no_message_is_lost_or_delivered_twice(
        |server| server.engine(backend::engine().with_mailbox(1).unwrap()),
        5,
    );
    let both = |server: Server| server.engine(backend::engine().with_mailbox(2).unwrap()).topics(tight);
    no_message_is_lost_or_delivered_twice(both, 5);
}

#[test]
fn publisher_gets_its_own_message_once_unless_excluded() {
    let (route, _events) = scripted(|event, cx| match event {
        HandlerEvent::Open => cx.subscribe("kept.a").unwrap(),
        HandlerEvent::Message(_, payload) => {
            let message = Prepared::text(std::str::from_utf8(payload).unwrap());
            let reached = match payload.first() {
                Some(b'+') => cx.publish("kept.a", &message, PublishOptions::new()),
                _ => cx.publish("kept.a", &message, PublishOptions::new().except(cx.subscriber_id())),
            };
            let _ = cx.send_text(&format!("to {}", reached.unwrap())).unwrap();
        }
        _ => {}
    });
    let rule = TopicRule::new("kept.*").with_history(HistoryPolicy::new(1));
    let server =
        Running::server(Server::new(Router::new().websocket("/", route)).threads(1).topic_rule(rule));
    let (mut one, mut other) = (server.websocket("/"), server.websocket("/"));
    other.sync();
    one.send(&Frame::text("+both")).expect(&Reply::text("to 2"));
    one.expect(&Reply::text("+both"));
    one.send(&Frame::text("other")).expect(&Reply::text("to 1"));
    one.sync();
    other.expect(&Reply::text("+both"));
    other.expect(&Reply::text("other"));
}

/// A loop blocked in a callback, with a mailbox of one message: the others come from the history.
#[test]
fn excluded_subscriber_gets_no_message_beyond_a_full_mailbox() {
    let (standing, stands) = channel();
    let (go_on, continued) = channel::<()>();
    let (ids, continued) = (Arc::new(Mutex::new(Vec::new())), Mutex::new(continued));
    let known = Arc::clone(&ids);
    let (route, _events) = scripted(move |event, cx| match event {
        HandlerEvent::Open => {
            cx.subscribe("kept.a").unwrap();
            known.lock().unwrap().push(cx.subscriber_id());
        }
        HandlerEvent::Message(..) => {
            standing.send(()).unwrap();
            continued.lock().unwrap().recv_timeout(Duration::from_secs(30)).unwrap();
        }
        _ => {}
    });
    let engine = backend::engine().with_mailbox(1).unwrap();
    let rule = TopicRule::new("kept.*").with_history(HistoryPolicy::new(10));
    let server = Server::new(Router::new().websocket("/", route)).threads(1).engine(engine).topic_rule(rule);
    let server = Running::bound(server.listen(([127, 0, 0, 1], 0).into()).bind().unwrap());
    let publisher = server.publisher.clone();
    let mut excluded = server.websocket("/");
    excluded.sync();
    let mut other = server.websocket("/");
    other.send(&Frame::text("stand still"));
    stands.recv_timeout(Duration::from_secs(30)).unwrap();
    let except = ids.lock().unwrap()[0];
    for sequence in 1..=5 {
        publisher
            .publish_with("kept.a", numbered, PublishOptions::new().except((sequence < 5).then_some(except)))
            .unwrap();
    }
    go_on.send(()).unwrap();
    expect_all(&mut other, 1..=5);
    expect_all(&mut excluded, 5..=5);
}

#[test]
fn pattern_and_name_deliver_topics_with_history_once() {
    let world = world(HistoryPolicy::new(10));
    let mut pattern = world.peer();
    pattern.send(&Frame::text("kept.*")).expect(&Reply::text("subscribed"));
    world.publish(5);
    expect_all(&mut pattern, 1..=5);
    // From the history, and then by two subscriptions.
    join(&mut pattern, "last 2");
    expect_all(&mut pattern, 4..=5);
    world.publish(5);
    expect_all(&mut pattern, 6..=10);
    pattern.send(&Frame::text("-kept.a")).expect(&Reply::text("true"));
    world.publish(2);
    expect_all(&mut pattern, 11..=12);
    pattern.sync();
}

#[test]
fn joining_again_restarts_the_replay_and_leaving_ends_it() {
    let world = world(HistoryPolicy::new(100));
    let mut peer = world.peer();
    world.publish(10);
    for _ in 0..3 {
        assert_eq!(join(&mut peer, "last 4").2, 4);
        expect_all(&mut peer, 7..=10);
    }
    peer.send(&Frame::text("-kept.a")).expect(&Reply::text("true"));
    world.publish(1);
    peer.sync();
    join(&mut peer, "last 0");
    world.publish(1);
    expect_all(&mut peer, 12..=12);
}

/// Messages that expire before it reads them are reported, and no other message is missing.
#[test]
fn slow_subscriber_is_told_of_messages_that_expired_before_delivery() {
    const SIZE: usize = 64 << 10;
    let large = |position: Option<Position>| {
        let mut payload = vec![0; SIZE];
        payload[..8].copy_from_slice(&position.unwrap().sequence.to_be_bytes());
        Prepared::binary(payload)
    };
    let history = HistoryPolicy::new(200).with_max_bytes(usize::MAX);
    let bytes = TopicConfig::default().with_max_history_bytes(usize::MAX);
    let world = world_with(history, for_slow_peers(), |server| server.topics(bytes).threads(1));
    let publish = |count| {
        for _ in 0..count {
            world.publisher.publish_with("kept.a", large, PublishOptions::new()).unwrap();
        }
    };
    publish(200);
    let mut slow = world.peer();
    slow.client.send(Frame::text("last 200").encode(Role::Client));
    // Other clients are served: the slow client's history stays in the topic.
    world.peer().sync();
    publish(1_000);
    let (mut expected, mut gap) = (1, 0);
    while expected <= 1_200 {
        let Some(Reply::Message(Kind::Binary, payload)) = slow.next() else { continue };
        let sequence = u64::from_be_bytes(payload[..8].try_into().unwrap());
        assert!(sequence >= expected, "{sequence} after {expected}");
        gap += sequence - expected;
        expected = sequence + 1;
    }
    assert!(gap > 0);
    let mut reported = 0;
    while reported < gap {
        if let HandlerEvent::Dropped(dropped) = world.events.next() {
            assert_eq!((dropped.topic(), dropped.reason()), (Some("kept.a"), DropReason::Expired));
            reported += dropped.messages();
        }
    }
    assert_eq!(reported, gap);
}

#[test]
fn expired_messages_are_not_replayed() {
    let world = world(HistoryPolicy::new(10).with_max_age(Duration::ZERO));
    // A subscriber keeps the topic from being removed.
    let mut early = world.peer();
    join(&mut early, "last 5");
    world.publish(3);
    expect_all(&mut early, 1..=3);
    let (_, position, replayed, complete) = join(&mut world.peer(), "last 5");
    assert_eq!((position, replayed, complete), (3, 0, true));
}

/// A publication of another server reaches subscribers that joined an empty topic.
#[test]
fn publication_of_another_server_is_delivered_at_its_position() {
    let world = world(HistoryPolicy::new(10));
    let (mut early, mut pattern) = (world.peer(), world.peer());
    join(&mut early, "last 5");
    pattern.send(&Frame::text("kept.*")).expect(&Reply::text("subscribed"));
    let at = |sequence| {
        let position = Position { epoch: 77, sequence };
        world
            .publisher
            .publish("kept.a", &numbered(Some(position)), PublishOptions::new().at(position))
            .unwrap();
    };
    (1..=5).for_each(at);
    at(4);
    expect_all(&mut early, 1..=5);
    expect_all(&mut pattern, 1..=5);
    let mut late = world.peer();
    assert_eq!(join(&mut late, "after 77 3"), (77, 5, 2, true));
    expect_all(&mut late, 4..=5);
    world.publish(2);
    for peer in [&mut early, &mut pattern, &mut late] {
        expect_all(peer, 6..=7);
        peer.sync();
    }
}
