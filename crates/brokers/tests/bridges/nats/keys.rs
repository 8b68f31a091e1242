//! Keys of topics, against a model.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sinews_store::{
    ChainLink, FirstValue, KeyChanges, KeyCommand, KeyCommands, KeyCondition, KeyLimits, KeyOutcome,
    KeysWritten, OnceRequest, Position, ReadKeys, StoreError, StoredKey, TopicChain, TopicPart,
};
use sinews_testkit::Rng;

use super::{StoreNode, prefix, wait};
use crate::broker::LIMIT;

const LIMITS: KeyLimits = KeyLimits { keys: 100, bytes: 10_000 };

fn write(key: &str, value: Option<&str>) -> KeyCommand {
    let value = value.map(|value| Bytes::copy_from_slice(value.as_bytes()));
    KeyCommand { key: key.into(), value, ttl: None, condition: None, once: None }
}

fn all(topic: &str, writes: Vec<KeyCommand>) -> KeyCommands {
    KeyCommands { topic: topic.into(), writes, limits: LIMITS }
}

impl StoreNode {
    fn write(&self, topic: &str, write: KeyCommand) -> Result<KeysWritten, StoreError> {
        wait(self.store.write_keys(all(topic, vec![write])))
    }

    fn outcome(&self, topic: &str, write: KeyCommand) -> KeyOutcome {
        self.write(topic, write).expect("NATS answers").outcomes[0]
    }

    /// All keys of a topic, a page at a time.
    fn keys(&self, topic: &str) -> BTreeMap<String, (u64, String)> {
        let (mut keys, mut cursor) = (BTreeMap::new(), None);
        loop {
            let read = ReadKeys { topic: topic.into(), cursor, limit: 3 };
            let page = wait(self.store.read_keys(read)).expect("NATS answers");
            let text = |change: &StoredKey| {
                change.value.as_ref().map(|value| String::from_utf8_lossy(value).into_owned())
            };
            keys.extend(
                page.keys
                    .iter()
                    .map(|change| (change.key.to_string(), (change.version, text(change).expect("a value")))),
            );
            cursor = page.cursor;
            if cursor.is_none() {
                return keys;
            }
        }
    }

    fn changes(&self, topic: &str, after: Position) -> KeyChanges {
        wait(self.store.key_changes(topic, after)).expect("NATS answers")
    }

    fn key_top(&self, topic: &str) -> Option<Position> {
        wait(self.store.tops(vec![TopicPart::keys(topic)]))
            .expect("NATS answers")
            .remove(0)
            .expect("NATS answers")
    }
}

#[derive(Default)]
struct ModelKeys {
    keys: BTreeMap<String, (u64, String)>,
    /// Version of each change, its key, and whether it has a value.
    changes: Vec<(u64, String)>,
    once: BTreeMap<String, u64>,
    epoch: u64,
}

const TOPICS: [&str; 3] = ["users.ü", "a.b", "locks"];
const KEYS: [&str; 4] = ["", "a.b", "k*>", "\u{1}ä ="];

struct KeyRun {
    random: Rng,
    nodes: [StoreNode; 2],
    topics: BTreeMap<&'static str, ModelKeys>,
    outcomes: BTreeMap<String, u32>,
}

impl KeyRun {
    fn pick(&mut self, most: usize) -> usize {
        self.random.below(most)
    }

    fn step(&mut self, number: u32) {
        let (topic, node) = (TOPICS[self.pick(TOPICS.len())], self.pick(2));
        match self.pick(10) {
            0 => self.read(topic, node),
            1 => self.changes(topic, node),
            _ => self.write(topic, node, number),
        }
    }

    fn write(&mut self, topic: &'static str, node: usize, number: u32) {
        let key = KEYS[self.pick(KEYS.len())];
        let text = format!("value {number}");
        let mut request = write(key, (self.pick(3) > 0).then_some(&text));
        let (kind, id) = (self.pick(8), format!("id {}", self.pick(40)));
        let is_stale = self.pick(2) == 0;
        let model = self.topics.entry(topic).or_default();
        let current = model.keys.get(key).map(|(version, _)| *version);
        let version = current.unwrap_or(5) + u64::from(is_stale);
        match kind {
            0 => request.condition = Some(KeyCondition::IfNew),
            1 => request.condition = Some(KeyCondition::IfExists),
            2 => request.condition = Some(KeyCondition::Version(version)),
            3 => {
                request.condition =
                    Some(KeyCondition::At(Position { epoch: model.epoch, sequence: version }));
            }
            4 => request.once = Some(id.clone().into()),
            _ => {}
        }
        let name = format!("{topic}|{key}|{id}");
        let expected = match (request.condition, current) {
            _ if request.once.is_some() && model.once.contains_key(&name) => {
                KeyOutcome::Repeated(Some(model.once[&name]))
            }
            (Some(KeyCondition::IfNew), Some(version)) => KeyOutcome::Exists(version),
            (Some(KeyCondition::IfExists | KeyCondition::Version(_) | KeyCondition::At(_)), None) => {
                KeyOutcome::Missing
            }
            (Some(KeyCondition::Version(_) | KeyCondition::At(_)), Some(version)) if is_stale => {
                KeyOutcome::OtherVersion(version)
            }
            (_, None) if request.value.is_none() => KeyOutcome::Unchanged,
            _ => KeyOutcome::Changed(0),
        };
        let (once, value) = (request.once.is_some(), request.value.is_some());
        let written = self.nodes[node].write(topic, request.clone()).expect("NATS answers");
        let outcome = written.outcomes[0];
        let kind = format!("{outcome:?}").split('(').next().expect("a name").to_owned();
        *self.outcomes.entry(kind).or_default() += 1;
        let KeyOutcome::Changed(version) = outcome else {
            assert_eq!(outcome, expected, "{topic} {request:?}");
            return;
        };
        assert_eq!(expected, KeyOutcome::Changed(0), "{topic} {request:?} {written:?}");
        let top = model.changes.last().map_or(0, |change| change.0);
        // A replica may not have had a value that was replaced at once.
        assert!(version > top && written.position.sequence == version, "{written:?}, {top}");
        assert!(written.prev <= top || written.prev == version, "{written:?}, {top}");
        model.epoch = written.position.epoch;
        model.changes.push((version, key.to_owned()));
        if once {
            model.once.insert(name, version);
        }
        match value {
            true => drop(model.keys.insert(key.to_owned(), (version, text))),
            false => drop(model.keys.remove(key)),
        }
        // This node reads what it has written.
        assert_eq!(self.nodes[node].keys(topic), model.keys);
    }

    /// Waits until the node has the changes of the other one.
    fn until_current(&self, topic: &str, node: usize) {
        let top = self.topics[topic].changes.last().map_or(0, |change| change.0);
        let end = Instant::now() + LIMIT;
        while self.nodes[node].key_top(topic).map_or(0, |known| known.sequence) < top {
            assert!(Instant::now() < end, "{topic}");
        }
    }

    fn read(&self, topic: &'static str, node: usize) {
        if self.topics.contains_key(topic) {
            self.until_current(topic, node);
            assert_eq!(self.nodes[node].keys(topic), self.topics[topic].keys);
        }
    }

    fn changes(&mut self, topic: &'static str, node: usize) {
        let back = self.pick(5);
        let Some(model) = self.topics.get(topic) else { return };
        let Some((after, _)) = model.changes.iter().rev().nth(back) else { return };
        let after = Position { epoch: model.epoch, sequence: *after };
        self.until_current(topic, node);
        let KeyChanges::Since(update) = self.nodes[node].changes(topic, after) else { panic!("it is known") };
        let mut expected = BTreeMap::new();
        let newer = model.changes.iter().filter(|change| change.0 > after.sequence);
        expected.extend(newer.map(|(version, key)| (key.clone(), *version)));
        let found: BTreeMap<_, _> =
            update.changes.iter().map(|change| (change.key.to_string(), change.version)).collect();
        assert_eq!(found, expected);
        assert!(update.changes.is_sorted_by(|one, two| one.version < two.version));
        for change in &update.changes {
            let value = model.keys.get(&*change.key).map(|(_, value)| Bytes::from(value.clone()));
            assert_eq!(change.value, value);
        }
        let unknown = Position { sequence: after.sequence + 1_000_000, ..after };
        assert_eq!(self.nodes[node].changes(topic, unknown), KeyChanges::Unknown);
        let unknown = Position { epoch: after.epoch + 1, ..after };
        assert_eq!(self.nodes[node].changes(topic, unknown), KeyChanges::Unknown);
    }
}

#[test]
#[ignore = "needs a broker: cargo xtask brokers --only nats"]
fn keys_agree_with_a_model() {
    let settings = prefix("keys");
    let nodes = [StoreNode::new(&settings), StoreNode::new(&settings)];
    TOPICS.iter().for_each(|topic| nodes[0].follow(&TopicPart::keys(topic)));
    let mut run = KeyRun { random: Rng::new(11), nodes, topics: BTreeMap::new(), outcomes: BTreeMap::new() };
    (0..2_000).for_each(|number| run.step(number));
    println!("{:?}", run.outcomes);
    assert_eq!(run.outcomes.len(), 6, "each outcome");
    for (topic, model) in &run.topics {
        let last = model.changes.last().map(|change| change.0);
        let updates = run.nodes[0].sink.until("all are announced", |all| {
            let updates = all.updates.get(*topic)?;
            (updates.last().map(|update| update.position.sequence) == last).then(|| updates.clone())
        });
        let mut chain = TopicChain { last: Position::default() };
        for update in &updates {
            assert_eq!(chain.link(update.position, update.prev), ChainLink::Next);
            let change = (update.position.sequence, update.changes[0].key.to_string());
            assert!(model.changes.contains(&change), "{update:?}");
            chain.last = update.position;
        }
        println!("{} of {} changes announced", updates.len(), model.changes.len());
    }
    // A node that starts now has the same.
    let late = StoreNode::new(&settings);
    for (topic, model) in &run.topics {
        assert_eq!(late.keys(topic), model.keys);
        assert_eq!(late.key_top(topic), run.nodes[0].key_top(topic));
    }
    let limits = KeyLimits { keys: 3, bytes: 20 };
    let mut limited =
        all("limited", vec![write("a", Some("1")), write("b", Some("2")), write("c", Some("3"))]);
    limited.limits = limits;
    wait(late.store.write_keys(limited.clone())).expect("NATS answers");
    limited.writes = vec![write("d", Some("4")), write("a", Some(&"x".repeat(20))), write("a", Some("5"))];
    let written = wait(late.store.write_keys(limited)).expect("NATS answers");
    assert_eq!(written.outcomes[..2], [KeyOutcome::TooManyKeys, KeyOutcome::TopicFull]);
    assert!(matches!(written.outcomes[2], KeyOutcome::Changed(_)));
    wait(late.store.clear(&TopicPart::keys("limited"))).expect("NATS answers");
    assert_eq!(late.keys("limited"), BTreeMap::new());
}

/// Each increment is stored once, whatever conflicts there are.
#[test]
#[ignore = "needs a broker: cargo xtask brokers --only nats"]
fn conditional_writes_of_three_nodes_are_exclusive() {
    const INCREMENTS: u64 = 100;
    let settings = prefix("counter");
    let nodes = [(); 3].map(|()| StoreNode::new(&settings));
    nodes[0].outcome("t", write("n", Some("0")));
    let conflicts: u64 = thread::scope(|scope| {
        let count = |node| scope.spawn(move || increment(node, INCREMENTS));
        nodes
            .iter()
            .map(count)
            .collect::<Vec<_>>()
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .sum()
    });
    println!("{conflicts} conflicts, {} increments", 3 * INCREMENTS);
    let late = StoreNode::new(&settings);
    assert_eq!(late.keys("t")["n"].1, (3 * INCREMENTS).to_string());
}

/// Returns the conflicts.
fn increment(node: &StoreNode, increments: u64) -> u64 {
    let (mut done, mut conflicts) = (0, 0);
    while done < increments {
        let Some((version, value)) = node.keys("t").get("n").cloned() else { continue };
        let next = (value.parse::<u64>().expect("a number") + 1).to_string();
        let condition = Some(KeyCondition::Version(version));
        match node.write("t", KeyCommand { condition, ..write("n", Some(&next)) }) {
            Ok(written) if matches!(written.outcomes[0], KeyOutcome::Changed(_)) => done += 1,
            Ok(_) | Err(StoreError::Busy) => conflicts += 1,
            Err(error) => panic!("{error}"),
        }
    }
    conflicts
}

/// A copy takes the answer to a write and the announcements, in whatever order they come.
#[test]
#[ignore = "needs a broker: cargo xtask brokers --only nats"]
fn answer_to_several_writes_is_no_loss_between_their_announcements() {
    let node = StoreNode::new(&prefix("several"));
    node.follow(&TopicPart::keys("t"));
    let written = wait(node.store.write_keys(all("t", vec![write("a", Some("1")), write("b", Some("2"))])));
    let written = written.expect("NATS answers");
    let updates = node.sink.until("both are announced", |all| {
        all.updates.get("t").filter(|updates| updates.len() == 2).cloned()
    });
    for update in updates {
        let chain = TopicChain { last: update.position };
        assert_ne!(chain.link(written.position, written.prev), ChainLink::Lost, "{update:?} {written:?}");
    }
    let next = node.write("t", write("a", Some("3"))).expect("NATS answers");
    assert_eq!(next.prev, written.position.sequence);
}

#[test]
#[ignore = "needs a broker: cargo xtask brokers --only nats"]
fn key_expires_at_all_nodes() {
    let settings = prefix("ttl");
    let (one, two) = (StoreNode::new(&settings), StoreNode::new(&settings));
    two.follow(&TopicPart::keys("t"));
    let ttl = Some(Duration::from_millis(1_200));
    let lock = KeyCommand { ttl, condition: Some(KeyCondition::IfNew), ..write("lock", Some("one")) };
    let begun = Instant::now();
    let KeyOutcome::Changed(first) = one.outcome("t", lock.clone()) else { panic!("it is new") };
    let update = two.sink.until("it is set", |all| all.updates.get("t")?.first().cloned());
    // Each node estimates the clock of the servers.
    let left = update.changes[0].expiry.map(|expiry| expiry.saturating_duration_since(Instant::now()));
    assert!(left.is_some_and(|left| left <= Duration::from_millis(1_700)));
    assert_eq!(two.outcome("t", lock.clone()), KeyOutcome::Exists(first));
    // The lock can be taken when the time is over, before the server has removed the value.
    let second = loop {
        match two.outcome("t", lock.clone()) {
            KeyOutcome::Changed(version) => break version,
            outcome => assert_eq!(outcome, KeyOutcome::Exists(first)),
        }
    };
    let taken = begun.elapsed();
    assert!(taken >= Duration::from_millis(1_150) && taken < Duration::from_secs(3), "{taken:?}");
    let removed = two.sink.until("it is removed", |all| {
        let last = all.updates.get("t")?.last()?;
        last.changes[0].value.is_none().then(|| last.clone())
    });
    println!("taken after {taken:?}, removed after {:?}", begun.elapsed() - taken);
    assert!(removed.position.sequence > second && removed.prev == second, "{removed:?}, {second}");
    assert_eq!((one.keys("t"), two.keys("t")), (BTreeMap::new(), BTreeMap::new()));
    let again = write("lock", Some("again"));
    assert!(matches!(
        one.outcome("t", KeyCommand { condition: Some(KeyCondition::IfNew), ..again }),
        KeyOutcome::Changed(_)
    ));
}

#[test]
#[ignore = "needs a broker: cargo xtask brokers --only nats"]
fn value_is_stored_once_within_its_window() {
    let settings = prefix("once");
    let nodes = [StoreNode::new(&settings), StoreNode::new(&settings)];
    let once = |value: &str, window| {
        let value = Bytes::copy_from_slice(value.as_bytes());
        OnceRequest { name: "order\r\n7".into(), value, window: Duration::from_millis(window) }
    };
    let answers = thread::scope(|scope| {
        let store = |node: usize| {
            let (node, once) = (&nodes[node], once(["a", "b"][node], 1_000));
            scope.spawn(move || wait(node.store.once(once)).expect("NATS answers"))
        };
        [store(0), store(1)].map(|thread| thread.join().expect("no panic"))
    });
    let first = answers.iter().position(|answer| *answer == FirstValue::First).expect("one is the first");
    assert_eq!(answers[1 - first], FirstValue::Value(Bytes::from_static([b"a", b"b"][first])));
    let end = Instant::now() + LIMIT;
    while wait(nodes[0].store.once(once("c", 60_000))) != Ok(FirstValue::First) {
        assert!(Instant::now() < end);
    }
    assert_eq!(wait(nodes[1].store.once(once("d", 60_000))), Ok(FirstValue::Value(Bytes::from_static(b"c"))));
    let take = sinews_store::TakeRequest { name: "n".into(), permits: 1, rate: 1.0, burst: 1 };
    assert_eq!(wait(nodes[0].store.take(take)), Err(StoreError::Unsupported));
    assert!(!nodes[0].store.capabilities().budgets);
}

#[test]
#[ignore = "needs a broker: cargo xtask brokers --only nats"]
fn node_with_another_number_of_key_streams_is_away() {
    let settings = prefix("streams");
    let _one = StoreNode::new(&settings);
    let url = crate::broker::real::url(&format!("{settings}&key.streams=2"));
    let other = sinews_brokers::connect_topic_store(&url, &BTreeMap::new()).expect("the settings are known");
    let sink = std::sync::Arc::new(super::RecordingSink::default());
    other.start(sink.clone());
    sink.until("it is reported", |all| {
        all.health.iter().find(|health| format!("{health:?}").contains("stream 0 of 2")).map(|_| ())
    });
    assert!(!other.health().is_up());
    other.close();
}
