//! Keyed topics: snapshots, changes, conflation, filters, intervals, expiry and recovery.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sinews_server::{
    KeyCondition, KeyError, KeySubscription, KeyWrite, KeyedConfig, KeyedUpdate, Position, Prepared,
    Publisher, Router, Server, TopicConfig,
};
use sinews_testkit::{Frame, Reply};

use crate::backend;
use crate::support::{EventReceiver, HandlerEvent, Peer, Running, for_slow_peers, scripted};

/// `kind epoch sequence`, then `key version value` for each change. The kind is `update`, `part` or `last`.
fn encode(update: &KeyedUpdate<'_>) -> Prepared {
    let kind = match (update.is_snapshot(), update.is_last_part()) {
        (false, _) => "update",
        (true, false) => "part",
        (true, true) => "last",
    };
    let Position { epoch, sequence } = update.position();
    let mut text = format!("{kind} {epoch} {sequence}");
    for change in update.changes() {
        let value = change.value().map_or("-", |value| std::str::from_utf8(value).unwrap());
        text += &format!("\n{} {} {value}", change.key(), change.version());
    }
    Prepared::text(text)
}

/// Each message is a command: `set topic key value`, `delete topic key`, `subscribe topic`, with options `filter=`,
/// `interval=` in milliseconds and `from=epoch,sequence`, or `unsubscribe topic`.
fn server(threads: usize) -> (Server, EventReceiver) {
    let (route, events) = scripted(|event, cx| {
        let HandlerEvent::Message(_, payload) = event else { return };
        let words: Vec<&str> = std::str::from_utf8(payload).unwrap().split(' ').collect();
        let result = match words[..] {
            ["set", topic, key, value] => cx
                .write_key(topic, &KeyWrite::set(key, value.to_owned()))
                .map(|written| format!("{} {}", written.position.epoch, written.position.sequence)),
            ["delete", topic, key] => {
                cx.write_key(topic, &KeyWrite::delete(key)).map(|written| written.changed.to_string())
            }
            ["unsubscribe", topic] => Ok(cx.unsubscribe_keys(topic).to_string()),
            ["subscribe", topic, ref options @ ..] => {
                let mut subscription = KeySubscription::new();
                for option in options {
                    subscription = match option.split_once('=').unwrap() {
                        ("filter", filter) => subscription.with_filter(filter),
                        ("interval", ms) => {
                            subscription.with_interval(Duration::from_millis(ms.parse().unwrap()))
                        }
                        (_, from) => {
                            let (epoch, sequence) = from.split_once(',').unwrap();
                            let (epoch, sequence) = (epoch.parse().unwrap(), sequence.parse().unwrap());
                            subscription.with_position(Position { epoch, sequence })
                        }
                    };
                }
                cx.subscribe_keys(topic, &subscription).map(|subscribed| {
                    let Position { epoch, sequence } = subscribed.position;
                    format!("{epoch} {sequence} {}", subscribed.recovered)
                })
            }
            _ => panic!("{words:?}"),
        };
        let _ = cx.send_text(&format!("= {}", result.unwrap_or_else(|error| error.to_string()))).unwrap();
    });
    let router = Router::new().websocket("/", route.with_config(for_slow_peers()));
    (Server::new(router).threads(threads).keyed_topics(encode), events)
}

/// A subscriber and its view.
struct Subscriber {
    peer: Peer,
    keys: BTreeMap<String, String>,
    /// The newest version of each key that it has received.
    versions: BTreeMap<String, u64>,
    parts: BTreeMap<String, String>,
    position: Position,
    updates: usize,
    /// Changes of keys in all updates.
    changes: usize,
    snapshots: usize,
}

impl Subscriber {
    /// Subscribes, and returns the answer, too.
    fn new(server: &Running, command: &str) -> (Self, String) {
        let mut peer = server.websocket("/");
        peer.send(&Frame::text(command));
        let mut subscriber = Self {
            peer,
            keys: BTreeMap::new(),
            versions: BTreeMap::new(),
            parts: BTreeMap::new(),
            position: Position { epoch: 0, sequence: 0 },
            updates: 0,
            changes: 0,
            snapshots: 0,
        };
        let answer = subscriber.answer();
        (subscriber, answer)
    }

    fn ask(&mut self, command: &str) -> String {
        self.peer.send(&Frame::text(command));
        self.answer()
    }

    fn answer(&mut self) -> String {
        loop {
            let text = text(&mut self.peer);
            match text.strip_prefix("= ") {
                Some(answer) => return answer.to_owned(),
                None => self.apply(&text),
            }
        }
    }

    fn apply(&mut self, update: &str) {
        let mut lines = update.lines();
        let head: Vec<&str> = lines.next().unwrap().split(' ').collect();
        let [kind, epoch, sequence] = head[..] else { panic!("{head:?}") };
        for line in lines {
            let [key, version, value] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let version = version.parse().unwrap();
            let newest = self.versions.insert(key.to_owned(), version).unwrap_or(0);
            assert!(newest <= version, "{key} {version} after {newest}");
            self.changes += 1;
            let view = if kind == "update" { &mut self.keys } else { &mut self.parts };
            match value {
                "-" => drop(view.remove(key)),
                value => drop(view.insert(key.to_owned(), value.to_owned())),
            }
        }
        match kind {
            "update" => self.updates += 1,
            "last" => {
                self.snapshots += 1;
                self.keys = std::mem::take(&mut self.parts);
            }
            _ => return,
        }
        let position = Position { epoch: epoch.parse().unwrap(), sequence: sequence.parse().unwrap() };
        assert!(position.sequence >= self.position.sequence, "the view goes back");
        self.position = position;
    }

    /// Receives updates until the view is at a sequence.
    fn until(&mut self, sequence: u64) {
        while self.position.sequence < sequence {
            let update = text(&mut self.peer);
            self.apply(&update);
        }
    }

    fn view(&self) -> String {
        let keys: Vec<String> = self.keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
        keys.join(" ")
    }
}

fn text(peer: &mut Peer) -> String {
    loop {
        match peer.next() {
            Some(Reply::Message(_, payload)) => return String::from_utf8(payload).unwrap(),
            Some(Reply::Ping(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn set(publisher: &Publisher, key: &str, value: &str) -> u64 {
    publisher.write_key("t", &KeyWrite::set(key, value.to_owned())).unwrap().position.sequence
}

/// Runs the server, and returns its publisher.
fn run(server: Server) -> (Running, Publisher) {
    let server = Running::server(server);
    let publisher = server.publisher.clone();
    (server, publisher)
}

#[test]
fn subscribers_on_all_threads_get_a_snapshot_and_the_changes_after_it() {
    let (server, _events) = server(3);
    let (server, publisher) = run(server);
    let mut writer = server.websocket("/");
    let mut ask = |command: &str| {
        writer.send(&Frame::text(command));
        text(&mut writer)
    };
    ask("set t anna 1");
    ask("set t ben 1");
    ask("set other carla 1");
    let mut subscribers: Vec<Subscriber> =
        (0..6).map(|_| Subscriber::new(&server, "subscribe t").0).collect();
    for subscriber in &mut subscribers {
        subscriber.until(2);
        assert_eq!((&*subscriber.view(), subscriber.snapshots), ("anna=1 ben=1", 1));
    }
    ask("set t anna 2");
    assert_eq!(ask("delete t ben"), "= true");
    assert_eq!(ask("delete t ben"), "= false");
    assert_eq!(set(&publisher, "dora", "7"), 5);
    for subscriber in &mut subscribers {
        subscriber.until(5);
        assert_eq!((&*subscriber.view(), subscriber.snapshots), ("anna=2 dora=7", 1));
    }
    assert_eq!(subscribers[0].ask("unsubscribe t"), "true");
    assert_eq!(subscribers[0].ask("unsubscribe t"), "false");
    assert_eq!(set(&publisher, "dora", "8"), 6);
    subscribers[1].until(6);
    subscribers[0].peer.sync();
    assert_eq!(subscribers[0].view(), "anna=2 dora=7");
}

#[test]
fn slow_subscriber_gets_the_last_value_of_each_key() {
    let (server, _events) = server(1);
    let (server, publisher) = run(server);
    let (mut slow, _) = Subscriber::new(&server, "subscribe t");
    let (mut fast, _) = Subscriber::new(&server, "subscribe t");
    let padding = "x".repeat(4_000);
    let mut last = 0;
    // Far more than the buffers of the sockets take.
    for round in 0..200 {
        for key in 0..100 {
            last = set(&publisher, &format!("k{key}"), &format!("{round}{padding}"));
        }
        if round == 120 {
            publisher.write_key("t", &KeyWrite::delete("k7")).unwrap();
        }
        fast.until(last);
    }
    publisher.write_key("t", &KeyWrite::delete("k8")).unwrap();
    let end = set(&publisher, "k9", "end");
    slow.until(end);
    fast.until(end);
    assert_eq!(slow.keys, fast.keys);
    let changes = (slow.changes, fast.changes);
    assert!(fast.changes > 15_000 && 2 * slow.changes < fast.changes, "conflated: {changes:?}");
    // The kernel would queue about 1,000 changes without a limit of unsent bytes.
    #[cfg(target_os = "linux")]
    assert!(slow.changes < 500, "stale changes in the kernel: {changes:?}");
    assert!(!slow.keys.contains_key("k8") && slow.keys["k7"].starts_with("199") && slow.keys["k9"] == "end");
    // It receives live updates again.
    let end = set(&publisher, "k9", "more");
    slow.until(end);
    assert_eq!(slow.snapshots, 1);
}

#[test]
fn subscriber_continues_after_a_position_if_nothing_is_forgotten() {
    let (server, _events) = server(2);
    let (server, publisher) = run(server);
    set(&publisher, "a", "1");
    set(&publisher, "b", "1");
    let (mut first, _) = Subscriber::new(&server, "subscribe t");
    first.until(2);
    let Position { epoch, sequence } = first.position;
    first.ask("unsubscribe t");
    set(&publisher, "c", "1");
    publisher.write_key("t", &KeyWrite::delete("a")).unwrap();
    let answer = first.ask(&format!("subscribe t from={epoch},{sequence}"));
    assert_eq!(answer, format!("{epoch} 4 true"));
    first.until(4);
    assert_eq!((&*first.view(), first.snapshots, first.updates), ("b=1 c=1", 1, 1));
    for from in [format!("{epoch},5"), format!("{},2", epoch ^ 1)] {
        let (mut other, answer) = Subscriber::new(&server, &format!("subscribe t from={from}"));
        assert_eq!(answer, format!("{epoch} 4 false"));
        other.until(4);
        assert_eq!((&*other.view(), other.snapshots), ("b=1 c=1", 1));
    }
    // A second subscription replaces the first.
    assert_eq!(first.ask("subscribe t filter=b"), format!("{epoch} 4 false"));
    set(&publisher, "b", "2");
    first.until(5);
    assert_eq!(first.view(), "b=2");
}

#[test]
fn filter_limits_a_subscription_to_matching_keys() {
    let (server, _events) = server(1);
    let (server, publisher) = run(server);
    set(&publisher, "gold.eur", "1");
    set(&publisher, "iron.eur", "1");
    let (mut gold, _) = Subscriber::new(&server, "subscribe t filter=gold.>");
    let (mut eur, _) = Subscriber::new(&server, "subscribe t filter=*.eur");
    for number in 0..100 {
        set(&publisher, &format!("iron.{number}"), "2");
    }
    set(&publisher, "gold.usd", "3");
    let end = publisher.write_key("t", &KeyWrite::delete("iron.eur")).unwrap().position.sequence;
    let last = set(&publisher, "gold.eur", "4");
    eur.until(end);
    gold.until(last);
    eur.until(last);
    assert_eq!((&*gold.view(), &*eur.view()), ("gold.eur=4 gold.usd=3", "gold.eur=4"));
    let (_, answer) = Subscriber::new(&server, "subscribe t filter=a..b");
    assert!(answer.starts_with("the filter is no pattern of keys"), "{answer}");
}

#[test]
fn interval_limits_the_number_of_updates() {
    const INTERVAL: Duration = Duration::from_millis(100);
    let (server, _events) = server(2);
    let (server, publisher) = run(server);
    let (mut calm, _) = Subscriber::new(&server, "subscribe t interval=100");
    calm.ask("unsubscribe t");
    let begin = Instant::now();
    calm.ask("subscribe t interval=100");
    let mut last = 0;
    // On a busy machine, one update may have the changes of all intervals.
    while calm.updates < 2 {
        let begin = Instant::now();
        while begin.elapsed() < 4 * INTERVAL {
            for key in ["a", "b", "c"] {
                last = set(&publisher, key, &format!("{last}"));
            }
        }
        calm.until(last);
    }
    // Each interval that has begun, the first update, and the last.
    let limit = begin.elapsed().div_duration_f64(INTERVAL) as usize + 2;
    assert!(calm.updates <= limit, "{} of {limit}", calm.updates);
    assert_eq!(calm.keys["c"], format!("{}", last - 1));
}

#[test]
fn expired_keys_are_removed_for_subscribers() {
    let (server, _events) = server(3);
    let (server, publisher) = run(server);
    let write = |key: &str, ttl: u64| {
        let write = KeyWrite::set(key, "1").with_ttl(Duration::from_millis(ttl));
        publisher.write_key("t", &write).unwrap().position.sequence
    };
    let mut subscribers: Vec<Subscriber> =
        (0..3).map(|_| Subscriber::new(&server, "subscribe t").0).collect();
    write("stays", 600_000);
    let begin = Instant::now();
    write("late", 100);
    write("soon", 20);
    for subscriber in &mut subscribers {
        subscriber.until(5);
        assert_eq!(subscriber.view(), "stays=1");
    }
    assert!(begin.elapsed() >= Duration::from_millis(90), "expired too early");
    // A key that is set again expires later.
    let again = loop {
        let first = write("late", 200);
        let again = set(&publisher, "late", "2");
        // On a busy machine, it may have expired before.
        if again == first + 1 {
            break again;
        }
    };
    assert_eq!(write("end", 300), again + 1);
    subscribers[0].until(again + 2);
    assert_eq!(subscribers[0].view(), "late=2 stays=1");
}

#[test]
fn notifications_beyond_a_full_mailbox_are_not_lost() {
    let (server, _events) = server(2);
    let engine = backend::engine().with_mailbox(2).unwrap();
    let bound = server.engine(engine).listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
    let server = Running::bound(bound);
    let publisher = server.publisher.clone();
    let mut subscribers = Vec::new();
    for topic in 0..40 {
        for _ in 0..4 {
            subscribers.push(Subscriber::new(&server, &format!("subscribe t{topic}")).0);
        }
    }
    for round in 1..=200_u64 {
        for topic in 0..40 {
            let write = KeyWrite::set("a", format!("{round}"));
            publisher.write_key(&format!("t{topic}"), &write).unwrap();
        }
    }
    for subscriber in &mut subscribers {
        subscriber.until(200);
        assert_eq!(subscriber.view(), "a=200");
    }
}

#[test]
fn keys_continue_in_another_server_with_their_positions() {
    let (first, second) = (server(2), server(2));
    let (_first, old) = run(first.0);
    set(&old, "a", "1");
    set(&old, "b", "1");
    old.write_key("t", &KeyWrite::set("c", "1").with_ttl(Duration::from_millis(200))).unwrap();
    old.write_key("t", &KeyWrite::delete("b")).unwrap();
    let epochs = old.epochs();
    let exported = old.keyed_topics();
    assert_eq!(old.write_key("t", &KeyWrite::set("a", "2")), Err(KeyError::HandedOver));
    assert_eq!(old.write_key("new", &KeyWrite::set("a", "2")), Err(KeyError::HandedOver));
    let server = second.0.engine(backend::engine()).listen(([127, 0, 0, 1], 0).into());
    let bound = server.bind().unwrap();
    let new = bound.publisher();
    assert!(new.restore_epochs(&epochs));
    let position = exported[0].position;
    for topic in exported {
        assert_eq!(new.restore_keyed_topic(topic.clone()), Ok(Some(0)));
        assert_eq!(new.restore_keyed_topic(topic), Ok(None), "it has changes");
    }
    let server = Running::bound(bound);
    // A client of the first server that had the first two changes.
    let (mut subscriber, answer) =
        Subscriber::new(&server, &format!("subscribe t from={},2", position.epoch));
    assert!(answer.ends_with("true"), "{answer}");
    let written = new.write_key("t", &KeyWrite::set("a", "2")).unwrap();
    assert_eq!(written.position.epoch, position.epoch);
    subscriber.until(6);
    assert_eq!((&*subscriber.view(), subscriber.snapshots), ("a=2", 0));
    assert_eq!(subscriber.versions.len(), 3, "a, the removed b, and c, which has expired");
    old.resume_keyed_topics();
    assert_eq!(set(&old, "a", "3"), 6, "c has expired here, too");
}

#[test]
fn conditions_and_limits_are_enforced_across_threads() {
    let (server, _events) = server(2);
    let keyed = KeyedConfig::default().with_max_value_bytes(10).with_max_keys(3);
    let (server, publisher) = run(server.topics(TopicConfig::default().with_keyed(keyed)));
    let lock = |name: &str| {
        let write = KeyWrite::set("lock", name.to_owned()).with_condition(KeyCondition::IfNew);
        publisher.write_key("t", &write)
    };
    assert!(lock("anna").unwrap().changed);
    assert_eq!(lock("ben"), Err(KeyError::Exists(1)));
    let mut peer = server.websocket("/");
    peer.send(&Frame::text("set t key 12345678901"));
    assert_eq!(text(&mut peer), "= value of 11 bytes exceeds max_value_bytes (10)");
    for key in ["a", "b"] {
        set(&publisher, key, "1");
    }
    peer.send(&Frame::text("set t c 1"));
    assert_eq!(text(&mut peer), "= the topic has max_keys (3) keys");
    peer.send(&Frame::text("set t a.*.b 1"));
    assert!(text(&mut peer).starts_with("= a key has 1 to 128 bytes"));
}

#[test]
fn subscriptions_to_topics_without_keys_take_no_memory_of_keys() {
    const LIMIT: usize = 64 << 10;
    let (server, _events) = server(2);
    let keyed = KeyedConfig::default().with_max_total_bytes(LIMIT);
    let (server, publisher) = run(server.topics(TopicConfig::default().with_keyed(keyed)));
    set(&publisher, "a", "1");
    let mut peer = server.websocket("/");
    for number in 0..500 {
        peer.send(&Frame::text(format!("subscribe {}{number}", "x".repeat(200))));
    }
    peer.send(&Frame::text("set t b 1"));
    while text(&mut peer).split(' ').nth(2) != Some("2") {}
    publisher.write_key("other", &KeyWrite::set("a", "1")).unwrap();
    let large = publisher.write_key("other", &KeyWrite::set("b", "x".repeat(LIMIT)));
    assert_eq!(large, Err(KeyError::ServerFull(LIMIT)));
}

#[test]
fn subscribers_that_do_not_read_cost_no_encoded_snapshot() {
    const SUBSCRIBERS: usize = 20;
    let encoded = Arc::new(AtomicUsize::new(0));
    let (server, _events) = server(2);
    let calls = Arc::clone(&encoded);
    let (server, publisher) = run(server.keyed_topics(move |update| {
        calls.fetch_add(1, Ordering::SeqCst);
        encode(update)
    }));
    let value = "x".repeat(60_000);
    let keys = 200;
    for key in 0..keys {
        set(&publisher, &format!("k.{key}"), &value);
    }
    let mut subscribers: Vec<Subscriber> =
        (0..SUBSCRIBERS).map(|_| Subscriber::new(&server, "subscribe t filter=k.*").0).collect();
    let mut last = 0;
    for key in 0..keys {
        last = set(&publisher, &format!("k.{key}"), &format!("{key}"));
    }
    let slow = &mut subscribers[SUBSCRIBERS - 1];
    slow.until(last);
    assert_eq!((slow.snapshots, slow.keys.len()), (1, keys));
    assert!((0..keys).all(|key| slow.keys[&format!("k.{key}")] == key.to_string()));
    // What the sockets of the others have taken is a small part of the 12 MB of each.
    let messages = encoded.load(Ordering::SeqCst);
    assert!(messages <= SUBSCRIBERS * keys / 2, "{messages} messages");
}
