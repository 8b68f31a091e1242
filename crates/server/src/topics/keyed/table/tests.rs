use std::sync::atomic::Ordering;

use super::super::state::KEY_COST;
use super::*;
use crate::topics::keyed::update::KeySnapshot;

const LIMIT: usize = 1 << 20;

struct TestTable {
    table: KeyedTable,
    epochs: Epochs,
}

impl TestTable {
    fn new() -> Self {
        let config = KeyedConfig::default().with_max_total_bytes(LIMIT);
        Self { table: KeyedTable::new(1, config, None), epochs: Epochs::new() }
    }

    fn write(&self, topic: &str, write: &KeyWrite) -> Result<KeyWritten, KeyError> {
        // Its thread is not running.
        self.table.change(&self.table.find_or_create(topic, &self.epochs), |state| state.answer());
        let topic = self.table.find_or_create(topic, &self.epochs);
        let write_client = write.client;
        let write = |state: &mut KeyedState| {
            state.write(write, self.table.limits(&topic.name, state, write_client), Instant::now())
        };
        self.table.change(&topic, write).unwrap()
    }

    /// Subscribes to a topic without keys.
    fn subscribe(&self, topic: &str) -> Arc<KeyedTopic> {
        let topic = self.table.find_or_create(topic, &self.epochs);
        topic.threads[0].subscribers.fetch_add(1, Ordering::SeqCst);
        topic
    }

    fn bytes(&self) -> usize {
        self.table.usage().bytes as usize
    }
}

#[test]
fn topics_with_subscribers_only_take_no_memory_of_keys() {
    let world = TestTable::new();
    let topics: Vec<_> =
        (0..2_000).map(|number| world.subscribe(&format!("{}.{number}", "x".repeat(200)))).collect();
    assert_eq!((world.bytes(), world.table.usage().topics), (0, 2_000));
    let value = "v".repeat(LIMIT - 10_240);
    world.write("a", &KeyWrite::set("a", value)).unwrap();
    world.write("a", &KeyWrite::set("b", "1")).unwrap();
    // The replica of a topic.
    let notifier = Notifier { posts: &[], epochs: &world.epochs };
    let key =
        |version| KeySnapshot { key: "k".into(), version, value: Some("1".into()), ..KeySnapshot::default() };
    let replica = |version| KeyedSnapshot {
        topic: "r".into(),
        position: Position { epoch: 7, sequence: version },
        forgotten: 0,
        keys: vec![key(version)],
        recent: Vec::new(),
    };
    world.table.find_or_create("r", &world.epochs).lock().answer();
    for version in 1..=2 {
        let changed = world.table.change_shared("r", notifier, |state| {
            let left = world.table.bytes_left_for_replica("r", state);
            match version {
                1 => state.install(replica(1), left, Instant::now()),
                _ => state.apply(1, replica(2), left, Instant::now()),
            }
        });
        assert_eq!(changed, Ok(()));
    }
    // A topic counts with its first key.
    let full = world.write(&topics[0].name, &KeyWrite::set("k".repeat(100), "v".repeat(4_000)));
    assert_eq!(full, Err(KeyError::ServerFull(LIMIT)));
    let before = world.bytes();
    world.write(&topics[0].name, &KeyWrite::set("k", "1")).unwrap();
    assert_eq!(world.bytes() - before, TOPIC_COST + topics[0].name.len() + KEY_COST + 2);
}

#[test]
fn memory_of_a_topic_is_free_when_its_keys_are_forgotten() {
    let world = TestTable::new();
    let topic = world.subscribe("a");
    world.write("a", &KeyWrite::set("k", "1")).unwrap();
    world.write("a", &KeyWrite::delete("k")).unwrap();
    assert!(world.bytes() > TOPIC_COST);
    let later = Instant::now() + std::time::Duration::from_secs(3_600);
    world.table.change(&topic, |state| state.expire(later, 8));
    assert_eq!(world.bytes(), 0);
    topic.threads[0].subscribers.store(0, Ordering::SeqCst);
    world.table.release(&topic, &world.epochs);
    assert_eq!((world.bytes(), world.table.usage().topics), (0, 0));
}

/// A write with the longest names.
fn named(number: usize, value: &str) -> KeyWrite {
    KeyWrite::set("k".repeat(128), value.to_owned()).with_idempotency_key(format!("{number:0128}"))
}

#[test]
fn idempotency_keys_count_toward_the_limit_and_leave_memory_for_keys() {
    let world = TestTable::new();
    for topic in 0..250 {
        world.write(&format!("t{topic}"), &KeyWrite::set("k".repeat(128), "1")).unwrap();
    }
    for topic in 0..250 {
        for number in 0..200 {
            world.write(&format!("t{topic}"), &named(number, "2")).unwrap();
        }
        // The last write is remembered in any case.
        assert!(world.write(&format!("t{topic}"), &named(199, "2")).unwrap().repeated);
    }
    assert!(world.bytes() <= LIMIT, "{} bytes", world.bytes());
    for topic in 0..50 {
        world.write(&format!("other{topic}"), &KeyWrite::set("a", "1")).unwrap();
    }
}

#[test]
fn topic_remembers_1024_writes_while_memory_is_left() {
    let config = KeyedConfig::default();
    let world = TestTable { table: KeyedTable::new(1, config, None), epochs: Epochs::new() };
    for number in 0..1_025 {
        world.write("t", &named(number, "1")).unwrap();
    }
    assert!(world.write("t", &named(1, "1")).unwrap().repeated);
    assert!(!world.write("t", &named(0, "1")).unwrap().repeated);
}

#[test]
fn client_has_a_share_of_the_memory_that_removed_keys_free() {
    const SHARE: usize = 64 << 10;
    let mut world = TestTable::new();
    world.table.config.client_bytes = SHARE;
    let client = |number| NonZeroU64::new(number).unwrap();
    let set = |topic: &str, key: &str, size: usize, of: Option<u64>| {
        let write = KeyWrite::set(key.to_owned(), vec![0; size]);
        let write = match of {
            Some(of) => write.with_client(client(of)),
            None => write,
        };
        world.write(topic, &write)
    };
    let share = |of| world.table.shares.lock().get(&client(of)).copied().unwrap_or_default();
    let delete = |topic: &str, key: &str| world.write(topic, &KeyWrite::delete(key.to_owned())).unwrap();
    // Over topics, and together with the topics.
    let full = Err(KeyError::ClientFull(SHARE));
    let mut topics = 0;
    while set(&format!("a.{topics}"), "k", 1_000, Some(1)).is_ok() {
        topics += 1;
    }
    let each = KEY_COST + 1 + 1_000 + TOPIC_COST;
    assert_eq!((topics, share(1)), (SHARE / each, SHARE / each * each));
    assert_eq!(set("b", "k", 1_000, Some(1)), full);
    // Other clients, the program, values that are not larger, and deletions are not affected.
    for of in [Some(2), None] {
        assert!(set("b", "k", 1_000, of).is_ok() && set("b", "l", SHARE - 4_096, of).is_ok());
    }
    assert!(set("a.0", "k", 1_000, Some(1)).is_ok() && set("a.0", "k", 10, Some(1)).is_ok());
    // A removal frees the value at once, whoever removes it.
    delete("a.1", "k");
    assert_eq!(share(1), (topics * each) - 990 - 1_000);
    // A key counts for the client that has written it last.
    let before = (share(1), share(2));
    assert!(set("a.2", "k", 1_000, Some(2)).is_ok());
    assert_eq!((before.0 - share(1), share(2) - before.1), (KEY_COST + 1 + 1_000, KEY_COST + 1 + 1_000));
    // Expired keys, too.
    let write = KeyWrite::set("t", "v").with_client(client(3)).with_ttl(std::time::Duration::from_millis(1));
    world.write("ttl", &write).unwrap();
    assert_eq!(share(3), KEY_COST + 2 + TOPIC_COST);
    let later = Instant::now() + std::time::Duration::from_secs(3_600);
    let topic = world.table.find("ttl").unwrap();
    world.table.change(&topic, |state| {
        state.expire(later, 10);
        state.expire(later + std::time::Duration::from_secs(3_600), 10)
    });
    assert_eq!(share(3), 0);
    assert!(!world.table.shares.lock().contains_key(&client(3)), "nothing remains of the client");
    // Keys of another server replace those of clients.
    let topic = world.table.find("b").unwrap();
    world.table.change(&topic, |state| state.disown(9));
    assert_eq!(share(2), KEY_COST + 1 + 1_000, "the key in a.2");
}

#[test]
fn keys_of_other_servers_count_toward_the_shares_of_their_clients() {
    const CLIENT: NonZeroU64 = NonZeroU64::MAX;
    let share = |world: &TestTable| {
        let shares = world.table.shares.lock().clone();
        assert!(shares.keys().all(|client| *client == CLIENT));
        shares.get(&CLIENT).copied().unwrap_or_default()
    };
    let first = TestTable::new();
    let write = |key: &'static str| KeyWrite::set(key, vec![0; 1_000]).with_client(CLIENT);
    first.write("t", &write("a")).unwrap();
    first.write("t", &KeyWrite::set("program", "1")).unwrap();
    first.write("t", &write("b")).unwrap();
    first.write("t", &KeyWrite::delete("b")).unwrap();
    let snapshot = first.table.export().remove(0);
    // The removal has no value.
    let expected = TOPIC_COST + 2 * (KEY_COST + 1) + 1_000;
    assert_eq!(share(&first), expected);
    // A successor process, or a node with durable keys that starts again. Its limit may be lower.
    let mut successor = TestTable::new();
    successor.table.config.client_bytes = 1_024;
    let topic = successor.table.find_or_create("t", &successor.epochs);
    let left_out = successor.table.change(&topic, |state| {
        let limits = successor.table.limits("t", state, None);
        state.restore(snapshot.clone(), limits, Instant::now())
    });
    assert_eq!(left_out, Some(0));
    assert_eq!(share(&successor), expected);
    assert_eq!(successor.write("t", &write("c")), Err(KeyError::ClientFull(1_024)));
    // A node with a copy.
    let replica = TestTable::new();
    let topic = replica.table.find_or_create("t", &replica.epochs);
    let now = Instant::now();
    let mut changes = snapshot.clone();
    let later = changes.keys.split_off(1);
    changes.position.sequence = 1;
    replica.table.change(&topic, |state| state.install(changes, usize::MAX, now)).unwrap().unwrap();
    let changes = KeyedSnapshot { keys: later, ..snapshot };
    replica.table.change(&topic, |state| state.apply(1, changes, usize::MAX, now)).unwrap().unwrap();
    assert_eq!(share(&replica), expected);
    assert_eq!(topic.lock().export("t", now).keys.len(), 3);
    replica.table.change(&topic, |state| state.disown(9));
    assert_eq!(share(&replica), 0);
}
