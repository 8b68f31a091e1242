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
        let write = |state: &mut KeyedState| {
            state.write(write, self.table.limits(&topic.name, state), Instant::now())
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
    let value = "v".repeat(LIMIT - 4_096);
    world.write("a", &KeyWrite::set("a", value)).unwrap();
    world.write("a", &KeyWrite::set("b", "1")).unwrap();
    // The replica of a topic.
    let notifier = Notifier { posts: &[], epochs: &world.epochs };
    let key = |version| KeySnapshot { key: "k".into(), version, value: Some("1".into()), ttl: None };
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
    for topic in 0..500 {
        world.write(&format!("t{topic}"), &KeyWrite::set("k".repeat(128), "1")).unwrap();
    }
    for topic in 0..500 {
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
