//! Slow subscribers beside fast subscribers, and the rules for their topics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sinews_server::{
    Cause, CloseCode, DropReason, Kind, Prepared, PublishOptions, Response, Router, Server, SlowConsumer,
    TopicRule,
};
use sinews_testkit::{Frame, Reply};

use crate::support::{EventReceiver, HandlerEvent, Peer, Running, for_slow_peers, post, scripted};

const SIZE: usize = 64 << 10;

/// Far more than the sockets' buffers take.
const COUNT: u64 = 1_000;

/// Maximum number of queued messages.
const WAITING: usize = 20;

fn numbered(number: u64) -> Prepared {
    let mut payload = vec![0; SIZE];
    payload[..8].copy_from_slice(&number.to_be_bytes());
    Prepared::binary(payload)
}

struct World {
    server: Running,
    events: EventReceiver,
    /// Number of drops reported to the handler of the slow subscriber.
    reported: Arc<AtomicU64>,
}

/// Subscribers of `all.0` to `all.9`, to which numbers are published in turn, and words to the first.
fn world(threads: usize, slow: SlowConsumer) -> World {
    let reported = Arc::new(AtomicU64::new(0));
    let telling = reported.clone();
    let (route, events) = scripted(move |event, cx| match event {
        HandlerEvent::Open => cx.subscribe("all.*").unwrap(),
        HandlerEvent::Message(Kind::Binary, payload) => {
            let number = u64::from_be_bytes(payload[..].try_into().unwrap());
            cx.publish(
                &format!("all.{}", number % 10),
                &numbered(number),
                PublishOptions::new().except(cx.subscriber_id()),
            )
            .unwrap();
        }
        HandlerEvent::Message(Kind::Text, word) => {
            cx.publish(
                "all.0",
                &Prepared::new(Kind::Text, word.clone().into()),
                PublishOptions::new().except(cx.subscriber_id()),
            )
            .unwrap();
        }
        HandlerEvent::Dropped(dropped) => {
            telling.fetch_add(dropped.messages(), Ordering::SeqCst);
        }
        _ => {}
    });
    let counters = |topics: &mut sinews_server::Topics| {
        let c = topics.counters();
        format!("{} {} {} {}", c.dropped_newest, c.dropped_oldest, c.conflated, c.closed_slow)
    };
    let router = Router::new()
        .websocket("/", route.with_config(for_slow_peers().with_max_outbound(1)))
        .post("/counters", move |request| Response::text(counters(request.topics())));
    let rule = TopicRule::new("all.*").with_slow_consumer(slow).with_max_queued_messages(WAITING);
    let rule = rule.with_max_queued_bytes(usize::MAX);
    World { server: Running::server(Server::new(router).threads(threads).topic_rule(rule)), events, reported }
}

impl World {
    /// Creates a subscriber that does not read while everything is published. A reading subscriber misses no message
    /// meanwhile.
    fn flood(&self) -> Peer {
        let mut slow = self.server.websocket("/");
        let mut fast = self.server.websocket("/");
        let mut publisher = self.server.websocket("/");
        [&mut slow, &mut fast, &mut publisher].into_iter().for_each(Peer::sync);
        for number in 0..COUNT {
            publisher.send(&Frame::binary(number.to_be_bytes()));
            assert_eq!(number_of(fast.next()), number);
        }
        publisher.send(&Frame::text("end"));
        fast.expect(&Reply::text("end"));
        slow
    }

    /// Newest, oldest, conflated, closed: of one thread.
    fn counters(&self) -> [u64; 4] {
        let answer = self.server.connect().send(post("/counters", "")).answer();
        let numbers: Vec<u64> = answer.text().split(' ').map(|number| number.parse().unwrap()).collect();
        numbers.try_into().unwrap()
    }
}

fn number_of(reply: Option<Reply>) -> u64 {
    match reply {
        Some(Reply::Message(Kind::Binary, payload)) => u64::from_be_bytes(payload[..8].try_into().unwrap()),
        other => panic!("{other:?}"),
    }
}

/// Reads the numbers up to the end.
fn collect(peer: &mut Peer) -> Vec<u64> {
    let mut numbers = Vec::new();
    loop {
        match peer.next() {
            Some(Reply::Ping(_)) => {}
            Some(Reply::Message(Kind::Text, _)) => return numbers,
            other => numbers.push(number_of(other)),
        }
    }
}

/// A slow subscriber gets some messages from the beginning, the last of which were queued.
fn begins_without_a_gap(event: &[u64]) -> usize {
    let whole = event.iter().zip(0..).take_while(|(event, number)| **event == *number).count();
    assert!(whole > 0 && whole < COUNT as usize, "{whole}");
    whole
}

#[test]
fn newest_messages_are_dropped_and_each_drop_is_counted_and_reported() {
    let world = world(1, SlowConsumer::DropNewest);
    let mut slow = world.flood();
    let [newest, oldest, conflated, closed] = world.counters();
    assert_eq!((oldest, conflated, closed), (0, 0, 0));
    assert_eq!(world.reported.load(Ordering::SeqCst), newest);
    // The end was dropped like the other messages.
    let event: Vec<u64> = (0..COUNT + 1 - newest).map(|_| number_of(slow.next())).collect();
    assert_eq!(begins_without_a_gap(&event), event.len());
    let mut publisher = world.server.websocket("/");
    publisher.send(&Frame::text("now there is room"));
    assert_eq!(collect(&mut slow), [0; 0]);
}

#[test]
fn oldest_messages_are_dropped_and_each_drop_is_counted_and_reported() {
    let world = world(1, SlowConsumer::DropOldest);
    let mut slow = world.flood();
    let event = collect(&mut slow);
    let begin = begins_without_a_gap(&event);
    // After the gap come the messages that stayed queued; the end is one of them.
    let last: Vec<u64> = (COUNT + 1 - WAITING as u64..COUNT).collect();
    assert_eq!(event[begin..], last);
    let [newest, oldest, conflated, closed] = world.counters();
    assert_eq!((newest, conflated, closed), (0, 0, 0));
    assert_eq!(oldest, COUNT - event.len() as u64);
    assert_eq!(world.reported.load(Ordering::SeqCst), oldest);
}

#[test]
fn slow_subscriber_gets_the_last_value_of_each_topic() {
    let world = world(1, SlowConsumer::Conflate);
    let mut slow = world.flood();
    let [newest, oldest, conflated, closed] = world.counters();
    assert_eq!((newest, oldest, closed), (0, 0, 0));
    // The last value of `all.0` is the end, at the queue position of its earlier values.
    let delivered = COUNT - conflated;
    let mut event = collect(&mut slow);
    event.extend((event.len() as u64..delivered).map(|_| number_of(slow.next())));
    let begin = event.len() - 9;
    assert_eq!(begins_without_a_gap(&event), begin);
    event[begin..].sort_unstable();
    assert_eq!(event[begin..], (COUNT - 9..COUNT).collect::<Vec<u64>>());
    slow.sync();
}

#[test]
fn slow_subscriber_is_closed_by_the_rule_and_the_fast_one_continues() {
    let code = CloseCode::new(4_008).unwrap();
    let world = world(1, SlowConsumer::Close(code, "too slow for this".to_owned()));
    let mut slow = world.flood();
    let mut event = Vec::new();
    let close = loop {
        match slow.next() {
            Some(Reply::Message(_, payload)) => {
                event.push(u64::from_be_bytes(payload[..8].try_into().unwrap()))
            }
            other => break other.expect("a Close"),
        }
    };
    assert_eq!(close, Reply::Close(Some(4_008), "too slow for this".to_owned()));
    assert_eq!(begins_without_a_gap(&event), event.len());
    assert!(event.len() > WAITING, "queued messages come before the Close");
    let closed = world.events.closed();
    assert_eq!((closed.cause(), closed.status()), (Cause::Overflow, 4_008));
    assert_eq!(world.counters()[3], 1);
}

/// Sends of a connection are in order with publications, however slow it is.
#[test]
fn slow_publisher_gets_its_own_messages_in_order() {
    let (route, _events) = scripted(move |event, cx| match event {
        HandlerEvent::Open => cx.subscribe("own").unwrap(),
        HandlerEvent::Message(..) => {
            for number in 0..200_u64 {
                cx.publish("own", &numbered(2 * number), PublishOptions::new()).unwrap();
                if number % 3 == 0 {
                    let mut own = vec![0; 16];
                    own[..8].copy_from_slice(&(2 * number + 1).to_be_bytes());
                    let _ = cx.send_binary(&own).unwrap();
                }
            }
            cx.publish("own", &Prepared::text("end"), PublishOptions::new()).unwrap();
        }
        _ => {}
    });
    let rule = TopicRule::new("own").with_slow_consumer(SlowConsumer::DropOldest).with_max_queued_messages(5);
    let router = Router::new().websocket("/", route);
    let server = Running::server(Server::new(router).threads(1).topic_rule(rule));
    let mut peer = server.websocket("/");
    peer.send(&Frame::text("go"));
    let event = collect(&mut peer);
    assert!(event.is_sorted(), "{event:?}");
    let own: Vec<u64> = event.iter().copied().filter(|number| number % 2 == 1).collect();
    assert_eq!(
        own,
        (0..200).filter(|number| number % 3 == 0).map(|number| 2 * number + 1).collect::<Vec<_>>()
    );
}

#[test]
fn queued_messages_are_delivered_before_the_close_of_a_stop() {
    let world = world(1, SlowConsumer::DropNewest);
    let mut slow = world.flood();
    world.server.stop.stop();
    let mut event = 0;
    loop {
        match slow.next() {
            Some(Reply::Message(..)) => event += 1,
            close => {
                assert_eq!(close.and_then(|close| close.close_code()), Some(1001));
                break;
            }
        }
    }
    assert!(event > WAITING);
}

#[test]
fn slow_subscribers_on_several_threads_are_handled() {
    let world = world(3, SlowConsumer::DropOldest);
    let mut slow: Vec<Peer> = (0..6).map(|_| world.server.websocket("/")).collect();
    slow.iter_mut().for_each(Peer::sync);
    let mut publisher = world.server.websocket("/");
    for number in 0..COUNT {
        publisher.send(&Frame::binary(number.to_be_bytes()));
    }
    publisher.send(&Frame::text("end")).sync();
    for peer in &mut slow {
        let event = collect(peer);
        assert!(event.is_sorted() && event.len() >= WAITING - 1, "{event:?}");
    }
    while !matches!(world.events.next(), HandlerEvent::Dropped(dropped) if dropped.reason() == DropReason::Oldest)
    {
    }
}

#[test]
fn invalid_rules_are_rejected() {
    for rule in [TopicRule::new("a.>.b"), TopicRule::new("a").with_max_queued_bytes(0)] {
        let server = Server::new(Router::new()).topic_rule(TopicRule::new("sound")).topic_rule(rule);
        let refused = server.listen(([127, 0, 0, 1], 0).into()).bind().unwrap_err();
        assert!(refused.to_string().contains("`TopicRule` of \"a"), "{refused}");
    }
}
