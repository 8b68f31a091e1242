//! Presence: subscriber counts, members, and the updates to connections that watch a topic.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sinews_server::{
    HistoryPolicy, Member, Prepared, PresenceError, PresenceUpdate, Response, Router, Server, TopicRule,
    Topics,
};
use sinews_testkit::{Frame, Reply, until};

use crate::backend;
use crate::support::{EventReceiver, HandlerEvent, PATIENCE, Peer, Running, post, scripted};

/// `topic members connections version ids;ids`, or `?` in place of the ids of an incomplete update.
fn encode(update: &PresenceUpdate) -> String {
    let count = update.count();
    let joined: Vec<&str> = update.joined().iter().map(Member::id).collect();
    let left: Vec<&str> = update.left().collect();
    let changes = if update.is_complete() {
        format!("{};{}", joined.join(","), left.join(","))
    } else {
        "?".to_owned()
    };
    format!("{} {} {} {} {changes}", update.topic(), count.members, count.connections, count.version)
}

/// Each message is a command and a topic: `+` and `-` subscribe and unsubscribe, `id>` joins as this member, `>` without
/// a member, `<` leaves, `!` watches, `.` ends watching, `?` lists the members.
fn server(threads: usize) -> (Server, EventReceiver) {
    let (route, events) = scripted(|event, cx| {
        let HandlerEvent::Message(_, payload) = event else { return };
        let text = std::str::from_utf8(payload).unwrap();
        let result = match text.split_at(1) {
            ("+", topic) => cx.subscribe(topic).map(|()| String::new()).map_err(PresenceError::from),
            ("-", topic) => Ok(cx.unsubscribe(topic).to_string()),
            ("<", topic) => Ok(cx.leave(topic).to_string()),
            ("!", topic) => cx.watch_presence(topic).map(|count| count.members.to_string()),
            (".", topic) => Ok(cx.unwatch_presence(topic).to_string()),
            ("?", topic) => {
                let members = cx.topics().members(topic, None, usize::MAX);
                Ok(members.iter().map(|(member, _)| member.id()).collect::<Vec<_>>().join(","))
            }
            _ => {
                let joined = match text.split_once('>').unwrap() {
                    ("", topic) => cx.join_anonymous(topic),
                    (id, topic) => cx.join(topic, Member::new(id).with_info("info")),
                };
                joined.map(|count| format!("{} {}", count.members, count.connections))
            }
        };
        let _ = cx.send_text(&format!("= {}", result.unwrap_or_else(|error| error.to_string()))).unwrap();
    });
    let router = Router::new().websocket("/", route).post("/subscribers/{topic}", |request| {
        Response::text({
            let topic = request.param("topic").unwrap().into_owned();
            request.topics().subscribers(&topic).to_string()
        })
    });
    let server = Server::new(router).threads(threads);
    (server.presence(|update| Some(Prepared::text(encode(update)))), events)
}

fn world(threads: usize) -> (Running, EventReceiver) {
    let (server, events) = server(threads);
    (Running::server(server), events)
}

fn text(peer: &mut Peer) -> String {
    match peer.next() {
        Some(Reply::Message(_, payload)) => String::from_utf8(payload).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Executes a command. Updates that arrive before its answer are dropped.
fn ask(peer: &mut Peer, command: &str) -> String {
    peer.send(&Frame::text(command));
    loop {
        if let Some(answer) = text(peer).strip_prefix("= ") {
            return answer.to_owned();
        }
    }
}

/// A connection that watches a topic, and what it has learned.
struct Watcher {
    peer: Peer,
    members: BTreeSet<String>,
    connections: usize,
    version: u64,
    updates: usize,
}

impl Watcher {
    fn new(server: &Running, topic: &str) -> Self {
        let mut peer = server.websocket("/");
        ask(&mut peer, &format!("!{topic}"));
        Self { peer, members: BTreeSet::new(), connections: 0, version: 0, updates: 0 }
    }

    /// Reads updates until this number of members is present, on this number of connections.
    fn until(&mut self, members: usize, connections: usize) {
        let ids = |list: &str| list.split(',').filter(|id| !id.is_empty()).map(str::to_owned).collect();
        while (self.members.len(), self.connections) != (members, connections) {
            let update = text(&mut self.peer);
            if let Some(listed) = update.strip_prefix("= ") {
                self.members = ids(listed);
                continue;
            }
            self.updates += 1;
            let fields: Vec<&str> = update.split(' ').collect();
            let number = |at: usize| fields[at].parse::<u64>().unwrap();
            if number(3) <= self.version {
                // From two threads they may arrive in another order.
                continue;
            }
            (self.connections, self.version) = (number(2) as usize, number(3));
            if let Some((joined, left)) = fields[4].split_once(';') {
                let (joined, left): (BTreeSet<String>, BTreeSet<String>) = (ids(joined), ids(left));
                self.members = &(&self.members | &joined) - &left;
            } else {
                self.peer.send(&Frame::text(format!("?{}", fields[0])));
            }
        }
    }
}

#[test]
fn subscribers_are_counted_over_all_threads() {
    let (server, _events) = world(3);
    let count = |topic: &str| {
        server
            .connect()
            .send(post(&format!("/subscribers/{topic}"), ""))
            .answer()
            .text()
            .parse::<usize>()
            .unwrap()
    };
    let mut peers: Vec<Peer> = (0..12).map(|_| server.websocket("/")).collect();
    for (number, peer) in peers.iter_mut().enumerate() {
        ask(peer, "+a.b");
        assert_eq!((count("a.b"), count("a.c"), count("a.*")), (number + 1, 0, 0));
    }
    ask(&mut peers[0], "+a.*");
    assert_eq!((count("a.b"), count("a.c")), (13, 1));
    while let Some(mut peer) = peers.pop() {
        peer.send(&Frame::close(1000, ""));
        while peer.next().is_some() {}
        assert_eq!(count("a.b"), peers.len() + usize::from(!peers.is_empty()));
    }
}

#[test]
fn watchers_on_all_threads_learn_of_members() {
    let (server, _events) = world(3);
    let mut watchers: Vec<Watcher> = (0..6).map(|_| Watcher::new(&server, "a")).collect();
    let mut quiet = server.websocket("/");
    assert_eq!(ask(&mut quiet, "alice>b"), "1 1", "another topic");
    let mut peers: Vec<Peer> = (0..6).map(|_| server.websocket("/")).collect();
    assert_eq!(ask(&mut peers[0], "alice>a"), "1 1");
    assert_eq!(ask(&mut peers[0], "alice>a"), "1 1", "repeated");
    assert_eq!(ask(&mut peers[1], "alice>a"), "1 2", "a second connection");
    assert_eq!(ask(&mut peers[2], "bob>a"), "2 3");
    assert_eq!(ask(&mut peers[3], ">a"), "2 4");
    watchers.iter_mut().for_each(|watcher| watcher.until(2, 4));
    assert_eq!(watchers[0].members, ["alice", "bob"].map(str::to_owned).into());
    assert_eq!(ask(&mut peers[4], "!a"), "2");
    assert_eq!(ask(&mut peers[4], "?a"), "alice,bob");
    assert_eq!(ask(&mut peers[0], "<a"), "true");
    assert_eq!(ask(&mut peers[0], "<a"), "false");
    watchers.iter_mut().for_each(|watcher| watcher.until(2, 3));
    assert_eq!(ask(&mut peers[2], "carol>a"), "2 3", "one connection is one member");
    watchers.iter_mut().for_each(|watcher| watcher.until(2, 3));
    // The end of a connection is its leave, with a Close and without.
    peers.remove(2).send(&Frame::close(1000, ""));
    peers.remove(1).reset();
    watchers.iter_mut().for_each(|watcher| watcher.until(0, 1));
    assert_eq!(ask(&mut watchers[0].peer, ".a"), "true");
    assert_eq!(ask(&mut peers[0], "dave>a"), "1 2");
    watchers[1].until(1, 2);
    assert_eq!(ask(&mut watchers[0].peer, ".a"), "false");
    watchers[0].peer.sync();
}

/// Connections leave together, and each watcher gets few updates, the last of them right.
#[test]
fn thousand_members_leave_at_once() {
    let (server, _events) = world(2);
    let begin = Instant::now();
    let mut watchers = [Watcher::new(&server, "room"), Watcher::new(&server, "room")];
    let mut peers: Vec<Peer> = (0..1_000).map(|_| server.websocket("/")).collect();
    for (number, peer) in peers.iter_mut().enumerate() {
        peer.send(&Frame::text(format!("{number}>room")));
    }
    watchers.iter_mut().for_each(|watcher| watcher.until(1_000, 1_000));
    drop(peers);
    watchers.iter_mut().for_each(|watcher| watcher.until(0, 0));
    let intervals = begin.elapsed().as_millis() / Topics::PRESENCE_INTERVAL.as_millis();
    for watcher in &mut watchers {
        assert!(watcher.updates as u128 <= intervals + 2, "{} updates in {intervals}", watcher.updates);
    }
    let mut late = server.websocket("/");
    assert_eq!((ask(&mut late, "?room"), ask(&mut late, "!room")), (String::new(), "0".to_owned()));
}

#[test]
fn restless_member_causes_few_updates_and_delays_no_connection() {
    let (server, _events) = world(1);
    let begin = Instant::now();
    let mut watcher = Watcher::new(&server, "a");
    let (mut restless, mut other) = (server.websocket("/"), server.websocket("/"));
    for _ in 0..2_000 {
        restless.send(&Frame::text("m>a")).send(&Frame::text("<a"));
        ask(&mut other, "?a");
    }
    for _ in 0..4_000 {
        text(&mut restless);
    }
    ask(&mut restless, "m>a");
    ask(&mut other, "m>a");
    watcher.until(1, 2);
    let intervals = begin.elapsed().as_millis() / Topics::PRESENCE_INTERVAL.as_millis();
    assert!(watcher.updates as u128 <= intervals + 2, "{} updates in {intervals}", watcher.updates);
}

#[test]
fn clients_cannot_use_the_topic_of_the_updates() {
    let (server, events) = server(1);
    let rule = TopicRule::new(">").with_history(HistoryPolicy::new(10));
    let server = Running::server(server.topic_rule(rule));
    let mut subscriber = server.websocket("/");
    ask(&mut subscriber, "+>");
    assert!(ask(&mut subscriber, "+\u{1}a").starts_with("a topic name has 1 to 256 bytes"));
    let (mut watcher, mut member) = (Watcher::new(&server, "a"), server.websocket("/"));
    ask(&mut member, "m>a");
    watcher.until(1, 1);
    subscriber.sync();
    drop((subscriber, watcher, member, server, events));
}

#[test]
fn invalid_joins_are_rejected() {
    let (server, _events) = world(1);
    let mut peer = server.websocket("/");
    assert!(ask(&mut peer, "m>a..b").starts_with("a topic name has 1 to 256 bytes"));
    assert!(ask(&mut peer, "!a.*").starts_with("the wildcards"));
    assert_eq!(
        ask(&mut peer, &format!("{}>a", "x".repeat(129))),
        "a member's id has 1 to 128 characters and no control characters"
    );
    for number in 0..1_024 {
        ask(&mut peer, &format!("m>t{number}"));
    }
    assert_eq!(ask(&mut peer, "m>a"), "a connection is present in at most 1024 topics");
    assert_eq!(ask(&mut peer, "n>t0"), "1 1");
    ask(&mut peer, "<t0");
    assert_eq!(ask(&mut peer, "m>a"), "1 1");

    let (route, events) = scripted(|event, cx| {
        if *event == HandlerEvent::Open {
            assert_eq!(cx.watch_presence("a"), Err(PresenceError::NoEncoder));
            let large = Member::new("m").with_info(vec![0; 1_025]);
            assert_eq!(cx.join("a", large), Err(PresenceError::MemberInfo(1_025)));
            assert_eq!(cx.join("a", Member::new("")), Err(PresenceError::MemberId));
        }
    });
    let server = Running::router(Router::new().websocket("/", route));
    server.websocket("/").sync();
    assert_eq!(events.next(), HandlerEvent::Open);
}

/// A successor gets the members, and its watchers learn only of those that do not return.
#[test]
fn members_return_to_a_successor_without_updates() {
    // On a busy machine, members may return too late: then once more.
    while !members_return_in_time() {}
}

fn members_return_in_time() -> bool {
    const TIME: Duration = Duration::from_secs(2);
    let (first, _first_events) = server(2);
    let first = first.listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
    let first_publisher = first.publisher();
    let first = Running::bound(first);
    let mut peers: Vec<Peer> = (0..50).map(|_| first.websocket("/")).collect();
    for (number, peer) in peers.iter_mut().enumerate() {
        ask(peer, &format!("m{number}>room"));
    }
    let mut old_watcher = first.websocket("/");
    ask(&mut old_watcher, "!room");

    let (second, _second_events) = server(2);
    let second = second.listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
    let exported = first_publisher.presence();
    first_publisher.pause_presence();
    let begin = Instant::now();
    second.publisher().restore_presence(exported, TIME);
    let second = Running::bound(second);
    // The old connections end without updates.
    drop(peers);
    old_watcher.sync();

    let mut watcher = Watcher::new(&second, "room");
    (watcher.members, watcher.connections) = ((0..50).map(|number| format!("m{number}")).collect(), 50);
    let mut returned: Vec<Peer> = (0..49).map(|_| second.websocket("/")).collect();
    let joined = returned.iter_mut().enumerate();
    let answers: Vec<String> = joined.map(|(number, peer)| ask(peer, &format!("m{number}>room"))).collect();
    if begin.elapsed() >= TIME {
        return false;
    }
    assert!(answers.iter().all(|answer| answer == "50 50"), "{answers:?}");
    watcher.until(49, 49);
    assert_eq!(watcher.updates, 1, "of the member that did not return");
    assert!(!watcher.members.contains("m49"));
    true
}

/// A member that is as fast as its connection allows, and watchers that read nothing.
#[test]
fn slow_watchers_are_reported_as_slow_subscribers() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let counted = dropped.clone();
    let (route, _events) = scripted(move |event, cx| match event {
        HandlerEvent::Open => assert!(cx.watch_presence("a").is_ok()),
        HandlerEvent::Message(_, id) if id.is_empty() => assert!(cx.leave("a")),
        HandlerEvent::Message(_, id) => {
            assert!(cx.join("a", Member::new(String::from_utf8(id.clone()).unwrap())).is_ok());
        }
        HandlerEvent::Dropped(missed) => {
            assert_eq!((missed.topic(), missed.is_presence()), (Some("a"), true));
            counted.fetch_add(1, Ordering::Relaxed);
        }
        _ => {}
    });
    let config = sinews_server::Config::default().with_overflow(sinews_server::Overflow::DropNewest);
    let route = route.with_config(config.with_max_outbound(100_000).with_high_water(50_000));
    // An update is larger than all buffers of the sockets.
    let router = Router::new().websocket("/", route);
    let server = Server::new(router).threads(1).presence(|_| Some(Prepared::binary(vec![0; 8 << 20])));
    let server = Running::server(server);
    let (_slow, mut member) = (server.websocket("/"), server.websocket("/"));
    until("a dropped update", || {
        member.send(&Frame::text("m"));
        next_update(&mut member);
        member.send(&Frame::text(""));
        next_update(&mut member);
        dropped.load(Ordering::Relaxed) > 0
    });
}

fn next_update(peer: &mut Peer) {
    match peer.next() {
        Some(Reply::Message(_, payload)) => assert_eq!(payload.len(), 8 << 20),
        other => panic!("{other:?}"),
    }
}

/// A thread that is blocked in a callback, with a mailbox of one message, misses no member of any topic.
#[test]
fn presence_beyond_a_full_mailbox_is_delivered_later_and_in_order() {
    const TOPICS: usize = 20;
    let (standing, stands) = channel();
    let (go_on, continued) = channel::<()>();
    let continued = Mutex::new(continued);
    let (route, _events) = scripted(move |event, cx| {
        let HandlerEvent::Message(_, payload) = event else { return };
        match std::str::from_utf8(payload).unwrap().split_once(' ').unwrap() {
            ("thread", _) => {
                let _ = cx.send_text(&format!("{:?}", std::thread::current().id())).unwrap();
            }
            ("watch", _) => {
                (0..TOPICS).for_each(|topic| _ = cx.watch_presence(&format!("t{topic}")).unwrap());
                let _ = cx.send_text("watching").unwrap();
            }
            ("stand", _) => {
                standing.send(()).unwrap();
                continued.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            }
            (_, id) => {
                for topic in 0..TOPICS {
                    let topic = format!("t{topic}");
                    _ = cx.join(&topic, Member::new(id)).unwrap();
                }
                let _ = cx.send_text("done").unwrap();
            }
        }
    });
    let engine = backend::engine().with_mailbox(1).unwrap();
    let server = Server::new(Router::new().websocket("/", route)).threads(2).engine(engine);
    let server = server.presence(|update| Some(Prepared::text(encode(update))));
    let server = Running::bound(server.listen(([127, 0, 0, 1], 0).into()).bind().unwrap());
    let mut watcher = server.websocket("/");
    let thread_of = |peer: &mut Peer| text(peer.send(&Frame::text("thread ?")));
    let blocked = thread_of(&mut watcher);
    let mut others: Vec<Peer> = Vec::new();
    while others.len() < 4 {
        let mut peer = server.websocket("/");
        if thread_of(&mut peer) != blocked {
            others.push(peer);
        }
    }
    assert_eq!(text(watcher.send(&Frame::text("watch all"))), "watching");
    watcher.send(&Frame::text("stand still"));
    stands.recv_timeout(PATIENCE).unwrap();
    assert_eq!(text(others[3].send(&Frame::text("watch all"))), "watching");
    for (id, peer) in others[..3].iter_mut().enumerate() {
        assert_eq!(text(peer.send(&Frame::text(format!("join {id}")))), "done");
    }
    let (mut early, mut late) = (BTreeMap::new(), BTreeMap::new());
    while early.len() < 3 {
        // The other thread has published updates of these topics: more messages than the mailbox holds.
        read_update(&mut others[3], &mut early);
    }
    go_on.send(()).unwrap();
    for (peer, updates) in [(&mut others[3], &mut early), (&mut watcher, &mut late)] {
        let is_last = |updates: &Vec<String>| updates.last().unwrap().starts_with("3 3 ");
        while updates.len() < TOPICS || !updates.values().all(is_last) {
            read_update(peer, updates);
        }
    }
    assert_eq!(late, early, "both watchers got the same updates in the same order");
}

/// Reads one update, and adds its members, connections and version to those of its topic.
fn read_update(watcher: &mut Peer, updates: &mut BTreeMap<String, Vec<String>>) {
    let update = text(watcher);
    let (topic, result) = update.split_once(' ').unwrap();
    updates.entry(topic.to_owned()).or_default().push(result.to_owned());
}
