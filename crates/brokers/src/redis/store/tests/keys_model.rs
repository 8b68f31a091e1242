//! Random operations on keys, compared with a model.

use std::collections::{BTreeMap, HashMap};

use sinews_store::{
    KeyChanges, KeyCommand, KeyCommands, KeyCondition, KeyLimits, KeyOutcome, KeysWritten, ReadKeys,
    StoredKey, StoredKeys,
};
use sinews_testkit::Rng;

use super::*;

const KEYS: [&str; 8] = ["a", "b 1 - ", "c", "ä", "", "0", "- ", "long key with spaces"];

#[derive(Clone, Debug, PartialEq)]
struct ModelKey {
    version: u64,
    value: Option<Bytes>,
}

/// The keys of a topic as they should be; those that were removed have no value.
#[derive(Default)]
struct KeysModel {
    top: Position,
    keys: BTreeMap<Arc<str>, ModelKey>,
    outcomes: HashMap<(Arc<str>, usize), Option<u64>>,
}

impl KeysModel {
    fn count_and_bytes(&self) -> (u64, u64) {
        let values = self.keys.iter().filter_map(|(key, stored)| Some((key, stored.value.as_ref()?)));
        values.fold((0, 0), |(count, bytes), (key, value)| {
            (count + 1, bytes + (key.len() + value.len()) as u64)
        })
    }

    fn apply(&mut self, write: &KeyCommand, once: Option<usize>, limits: KeyLimits) -> KeyOutcome {
        let name = once.map(|id| (write.key.clone(), id));
        if let Some(&outcome) = name.as_ref().and_then(|name| self.outcomes.get(name)) {
            return KeyOutcome::Repeated(outcome);
        }
        let outcome = self.apply_unnamed(write, limits);
        if let Some(name) = name {
            let version = if let KeyOutcome::Changed(version) = outcome { Some(version) } else { None };
            self.outcomes.insert(name, version);
        }
        outcome
    }

    fn apply_unnamed(&mut self, write: &KeyCommand, limits: KeyLimits) -> KeyOutcome {
        let current = self.keys.get(&write.key).filter(|stored| stored.value.is_some());
        let version = current.map(|stored| stored.version);
        match (write.condition, version) {
            (Some(KeyCondition::IfNew), Some(version)) => return KeyOutcome::Exists(version),
            (None | Some(KeyCondition::IfNew), None) | (None | Some(KeyCondition::IfExists), Some(_)) => {}
            (_, None) => return KeyOutcome::Missing,
            (Some(KeyCondition::Version(wanted)), Some(version)) if wanted == version => {}
            (Some(KeyCondition::At(at)), Some(version))
                if at == (Position { epoch: self.top.epoch, sequence: version }) => {}
            (_, Some(version)) => return KeyOutcome::OtherVersion(version),
        }
        let (count, bytes) = self.count_and_bytes();
        if let Some(value) = &write.value {
            let old = current.and_then(|stored| stored.value.as_ref());
            let old_bytes = old.map_or(0, |old| write.key.len() + old.len());
            if old.is_none() && count + 1 > limits.keys {
                return KeyOutcome::TooManyKeys;
            }
            if bytes + (write.key.len() + value.len()) as u64 - old_bytes as u64 > limits.bytes {
                return KeyOutcome::TopicFull;
            }
        } else if version.is_none() {
            return KeyOutcome::Unchanged;
        }
        self.top.sequence += 1;
        let stored = ModelKey { version: self.top.sequence, value: write.value.clone() };
        self.keys.insert(write.key.clone(), stored);
        KeyOutcome::Changed(self.top.sequence)
    }

    /// The changes behind a version, in their order.
    fn behind(&self, version: u64) -> Vec<(Arc<str>, ModelKey)> {
        let behind = self.keys.iter().filter(|(_, stored)| stored.version > version);
        let mut behind: Vec<_> = behind.map(|(key, stored)| (key.clone(), stored.clone())).collect();
        behind.sort_by_key(|(_, stored)| stored.version);
        behind
    }
}

fn plain(changes: Vec<StoredKey>) -> Vec<(Arc<str>, ModelKey)> {
    let plain = |change: StoredKey| (change.key, ModelKey { version: change.version, value: change.value });
    changes.into_iter().map(plain).collect()
}

struct KeysRun<'a> {
    node: &'a StoreNode,
    rng: Rng,
    model: KeysModel,
}

impl KeysRun<'_> {
    fn random_write(&mut self) -> (KeyCommand, Option<usize>) {
        let rng = &mut self.rng;
        let key: Arc<str> = KEYS[rng.below(KEYS.len())].into();
        let version = self.model.keys.get(&key).map_or(1, |stored| stored.version);
        let version = if rng.below(4) == 0 { version + 1 } else { version };
        let epoch = self.model.top.epoch ^ u64::from(rng.below(8) == 0);
        let condition = match rng.below(8) {
            0 => Some(KeyCondition::IfNew),
            1 => Some(KeyCondition::IfExists),
            2 => Some(KeyCondition::Version(version)),
            3 => Some(KeyCondition::At(Position { epoch, sequence: version })),
            _ => None,
        };
        let length = rng.below(60);
        let value = (rng.below(3) > 0).then(|| [b"1 2 ", &rng.bytes(length)[..]].concat().into());
        let ttl = (rng.below(3) == 0).then(|| Duration::from_secs(3600));
        let once = (rng.below(5) == 0).then(|| rng.below(6));
        let name = once.map(|id| id.to_string().into());
        (KeyCommand { key, value, ttl, condition, once: name }, once)
    }

    fn write(&mut self) {
        let limits =
            KeyLimits { keys: [3, 6, 100][self.rng.below(3)], bytes: [100, 300, 100_000][self.rng.below(3)] };
        let count = 1 + self.rng.below(4);
        let writes: Vec<_> = (0..count).map(|_| self.random_write()).collect();
        let request = KeyCommands {
            topic: "t".into(),
            writes: writes.iter().map(|(write, _)| write.clone()).collect(),
            limits,
        };
        let answer = wait(self.node.store.write_keys(request)).expect("it answers");
        let prev = self.model.top.sequence;
        let first = |outcome: &KeyOutcome| match outcome {
            KeyOutcome::Changed(version) if prev == 0 => Some(*version),
            _ => None,
        };
        if let Some(first) = answer.outcomes.iter().find_map(first) {
            assert!(first > 1 << 50, "{first} is no time in microseconds");
            self.model.top.sequence = first - 1;
        }
        let outcomes: Vec<_> =
            writes.iter().map(|(write, once)| self.model.apply(write, *once, limits)).collect();
        if prev == 0 {
            self.model.top.epoch = answer.position.epoch;
        }
        let position = self.model.top;
        assert_eq!(answer, KeysWritten { position, prev, outcomes }, "{writes:?}");
    }

    fn read(&self) {
        let mut keys = BTreeMap::new();
        for page in read_all(self.node, "t") {
            assert_eq!(page.position.unwrap_or_default(), self.model.top);
            keys.extend(plain(page.keys));
        }
        let mut expected = self.model.keys.clone();
        expected.retain(|_, stored| stored.value.is_some());
        assert_eq!(keys, expected);
    }

    fn read_changes(&mut self) {
        let top = self.model.top;
        let sequence = (top.sequence + 1).saturating_sub(self.rng.below(600) as u64);
        let epoch = top.epoch ^ u64::from(self.rng.below(8) == 0);
        let answer =
            wait(self.node.store.key_changes("t", Position { epoch, sequence })).expect("it answers");
        if sequence > 0 && (sequence > top.sequence || epoch != top.epoch) {
            return assert_eq!(answer, KeyChanges::Unknown);
        }
        let KeyChanges::Since(update) = answer else { panic!("unknown behind {sequence} of {top:?}") };
        assert_eq!((update.position, update.prev), (top, sequence));
        assert_eq!(plain(update.changes), self.model.behind(sequence));
    }
}

fn read_all(node: &StoreNode, topic: &str) -> Vec<StoredKeys> {
    let (mut pages, mut cursor) = (Vec::new(), None);
    loop {
        let read = ReadKeys { topic: topic.into(), cursor, limit: 100 };
        let page = wait(node.store.read_keys(read)).expect("it answers");
        cursor = page.cursor.clone();
        pages.push(page);
        if cursor.is_none() {
            return pages;
        }
    }
}

#[test]
fn keys_are_as_their_model() {
    let server = start_server!();
    let node = StoreNode::up(&server.url());
    node.follow(&TopicPart::keys("t"));
    let mut run = KeysRun { node: &node, rng: Rng::new(11), model: KeysModel::default() };
    for _ in 0..3000 {
        match run.rng.below(10) {
            0..6 => run.write(),
            6..8 => run.read(),
            _ => run.read_changes(),
        }
    }
    assert_eq!(node.top(&TopicPart::keys("t")), Some(run.model.top));
    let updates = || {
        let update = |event| if let StoreEvent::KeysChanged(_, update) = event { Some(update) } else { None };
        node.events().into_iter().filter_map(update).collect::<Vec<_>>()
    };
    until("all are announced", || updates().last().is_some_and(|last| last.position == run.model.top));
    let (mut copy, mut last) = (BTreeMap::new(), 0);
    for update in updates() {
        assert_eq!((update.prev, update.position.epoch), (last, run.model.top.epoch));
        last = update.position.sequence;
        assert!(update.changes.windows(2).all(|pair| pair[0].version < pair[1].version));
        let keys: std::collections::HashSet<_> = update.changes.iter().map(|change| &change.key).collect();
        assert_eq!(keys.len(), update.changes.len(), "each key once");
        copy.extend(plain(update.changes));
    }
    assert_eq!(copy, run.model.keys);
    assert_eq!(wait(node.store.clear(&TopicPart::keys("t"))), Ok(()));
    assert_eq!(node.top(&TopicPart::keys("t")), None);
    assert_eq!(read_all(&node, "t"), [StoredKeys::default()]);
    assert_eq!(wait(node.store.key_changes("t", run.model.top)), Ok(KeyChanges::Unknown));
    let rest: Vec<String> = server.run("KEYS *:t");
    assert!(rest.is_empty(), "{rest:?}");
}

fn set(key: &str, value: &str) -> KeyCommand {
    let value = Some(Bytes::copy_from_slice(value.as_bytes()));
    KeyCommand { key: key.into(), value, ttl: None, condition: None, once: None }
}

const LIMITS: KeyLimits = KeyLimits { keys: 10_000, bytes: 16 << 20 };

fn write(node: &StoreNode, limits: KeyLimits, writes: Vec<KeyCommand>) -> KeysWritten {
    let writes = KeyCommands { topic: "t".into(), writes, limits };
    wait(node.store.write_keys(writes)).expect("it answers")
}

fn write_one(node: &StoreNode, one: KeyCommand) -> KeyOutcome {
    write(node, LIMITS, vec![one]).outcomes[0]
}

/// No node of this server sweeps.
fn stop_sweep(server: &server::TestRedis) {
    let _: String = server.run("SET sinews:{p0}:sweeper nobody");
}

#[test]
fn expired_keys_are_removed_and_announced() {
    let server = start_server!();
    let (one, two) = (StoreNode::up(&server.url()), StoreNode::up(&server.url()));
    two.follow(&TopicPart::keys("t"));
    let ttl = Some(Duration::from_millis(30));
    for number in 0..5 {
        let batch = (0..500).map(|key| KeyCommand { ttl, ..set(&format!("{number} {key}"), "x") }).collect();
        write(&one, LIMITS, batch);
    }
    write_one(&one, set("stays", "x"));
    let removals = |node: &StoreNode| {
        let events = node.events().into_iter();
        let changes = events.filter_map(|event| match event {
            StoreEvent::KeysChanged(_, update) => Some(update.changes),
            _ => None,
        });
        changes.flatten().filter(|change| change.value.is_none()).count()
    };
    until("all are removed", || removals(&two) == 2500);
    let keys: Vec<_> = read_all(&one, "t").into_iter().flat_map(|page| page.keys).collect();
    assert_eq!(keys.iter().map(|change| &*change.key).collect::<Vec<_>>(), ["stays"]);
    // Another node continues when the one with the lease has ended.
    drop(one);
    write_one(&two, KeyCommand { ttl, ..set("again", "x") });
    until("it is removed", || removals(&two) == 2501);
    assert_eq!(server.run::<i64>("EXISTS sinews:{p0}:sweeper"), 1);
}

#[test]
fn expired_key_has_no_value_before_its_removal() {
    let server = start_server!();
    stop_sweep(&server);
    let node = StoreNode::up(&server.url());
    let limits = KeyLimits { keys: 2, bytes: 1000 };
    write(&node, limits, vec![set("a", "x")]);
    let short = Some(Duration::from_millis(40));
    let KeyOutcome::Changed(version) =
        write(&node, limits, vec![KeyCommand { ttl: short, ..set("b", "x") }]).outcomes[0]
    else {
        panic!("it is set")
    };
    let if_new = KeyCommand { condition: Some(KeyCondition::IfNew), ..set("b", "y") };
    let first = write(&node, limits, vec![if_new.clone()]).outcomes[0];
    let is_read =
        || read_all(&node, "t").into_iter().flat_map(|page| page.keys).any(|change| &*change.key == "b");
    if first == KeyOutcome::Exists(version) {
        until("it is not read any more", || !is_read());
        let position =
            Position { sequence: version - 1, ..node.top(&TopicPart::keys("t")).expect("it exists") };
        let Ok(KeyChanges::Since(update)) = wait(node.store.key_changes("t", position)) else {
            panic!("it is known")
        };
        assert_eq!((update.changes.len(), &update.changes[0].value), (1, &None));
        for condition in [KeyCondition::IfExists, KeyCondition::Version(version)] {
            let conditional = KeyCommand { condition: Some(condition), ..set("b", "z") };
            assert_eq!(write(&node, limits, vec![conditional]).outcomes, [KeyOutcome::Missing]);
        }
        assert!(matches!(write(&node, limits, vec![if_new]).outcomes[..], [KeyOutcome::Changed(_)]));
    }
    // Its space is available to another key.
    let full = write(&node, limits, vec![set("c", "x")]).outcomes[0];
    assert_eq!(full, KeyOutcome::TooManyKeys);
    write(&node, limits, vec![KeyCommand { ttl: short, ..set("b", "x") }]);
    until("there is space", || {
        matches!(write(&node, limits, vec![set("c", "x")]).outcomes[0], KeyOutcome::Changed(_))
    });
}

#[test]
fn large_topics_are_read_in_pages() {
    let server = start_server!();
    let node = StoreNode::up(&server.url());
    for number in 0..10 {
        write(&node, LIMITS, (0..500).map(|key| set(&format!("{number} {key}"), "x")).collect());
    }
    let pages = read_all(&node, "t");
    assert!(pages.len() > 2);
    let keys: BTreeMap<_, _> = pages.into_iter().flat_map(|page| plain(page.keys)).collect();
    assert_eq!(keys.len(), 5000);
    let top = node.top(&TopicPart::keys("t")).expect("it exists");
    let behind =
        |sequence| wait(node.store.key_changes("t", Position { sequence, ..top })).expect("it answers");
    assert_eq!(behind(1), KeyChanges::Unknown, "the pages are cheaper");
    assert!(matches!(behind(top.sequence - 3500), KeyChanges::Since(update) if update.changes.len() == 3500));
}

#[test]
fn key_writes_lost_in_a_failover_are_found() {
    let Some(pair) = faults::ReplicatedPair::start() else { return };
    let node = StoreNode::up(&pair.entrance.url());
    node.follow(&TopicPart::keys("t"));
    let (kept, lost) = lose_writes(&pair, &node);
    let changes = |position| wait(node.store.key_changes("t", position)).expect("it answers");
    assert_eq!(changes(lost), KeyChanges::Unknown);
    let if_version = |version, value| {
        let condition = Some(KeyCondition::Version(version));
        write_one(&node, KeyCommand { condition, ..set("a", value) })
    };
    assert_eq!(if_version(lost.sequence, "6"), KeyOutcome::OtherVersion(kept.sequence));
    let outcome = if_version(kept.sequence, "6");
    let KeyOutcome::Changed(next) = outcome else { panic!("{outcome:?}") };
    assert!(next >= kept.sequence + (1 << 20), "{next}");
    assert_eq!(if_version(lost.sequence, "7"), KeyOutcome::OtherVersion(next));
    for sequence in [kept.sequence + 1, lost.sequence, next - 1] {
        assert_eq!(changes(Position { sequence, ..kept }), KeyChanges::Unknown, "{sequence}");
    }
    let KeyChanges::Since(update) = changes(kept) else { panic!("it has all") };
    assert_eq!((update.position.sequence, update.changes.len(), update.skipped), (next, 1, true));
    let announced =
        |event| if let StoreEvent::KeysChanged(_, update) = event { Some(update.skipped) } else { None };
    let all = || node.events().into_iter().filter_map(announced).collect::<Vec<_>>();
    until("it is announced", || all().last() == Some(&true));
    assert!(
        matches!(changes(Position { sequence: next, ..kept }), KeyChanges::Since(update) if !update.skipped)
    );
}

/// Writes the key `a` five times, and loses the last two. Returns the position of the last one before, and of the last
/// lost one.
fn lose_writes(pair: &faults::ReplicatedPair, node: &StoreNode) -> (Position, Position) {
    let write = |value| write(node, LIMITS, vec![set("a", value)]);
    let kept = ["1", "2", "3"].map(write);
    pair.wait_until_replicated(node, &TopicPart::keys("t"));
    pair.link.set_silent(true);
    let lost = ["4", "5"].map(write);
    pair.fail_over();
    until("it has found the failover", || node.append("other", "x").is_ok());
    node.wait_until_up();
    (kept[2].position, lost[1].position)
}

/// Shows that the rule prevents it.
#[test]
fn versions_are_used_again_without_the_jump() {
    let Some(pair) = faults::ReplicatedPair::start() else { return };
    let mut settings = settings(&pair.entrance.url());
    settings.rules.jump = 1;
    let node = StoreNode::with(settings);
    node.wait_until_up();
    let (_, lost) = lose_writes(&pair, &node);
    write_one(&node, set("a", "6"));
    write_one(&node, set("a", "7"));
    let condition = Some(KeyCondition::Version(lost.sequence));
    let outcome = write_one(&node, KeyCommand { condition, ..set("a", "8") });
    assert_eq!(outcome, KeyOutcome::Changed(lost.sequence + 1), "the version of another value");
}

#[test]
fn old_jumps_and_removals_are_forgotten() {
    let server = start_server!();
    let node = StoreNode::up(&server.url());
    let mut last = write(&node, LIMITS, vec![set("a", "x")]).position;
    let first = last;
    let mut behind_oldest = 0;
    for number in 0..9 {
        // Another replication id.
        let _: String = server.run("REPLICAOF 127.0.0.1 1");
        let _: String = server.run("REPLICAOF NO ONE");
        node.wait_until_up();
        until("it is written", || {
            let writes = KeyCommands { topic: "t".into(), writes: vec![set("a", "x")], limits: LIMITS };
            match wait(node.store.write_keys(writes)) {
                Ok(written) => {
                    last = written.position;
                    true
                }
                Err(_) => false,
            }
        });
        behind_oldest = if number == 0 { last.sequence } else { behind_oldest };
    }
    let since =
        |sequence| wait(node.store.key_changes("t", Position { sequence, ..last })).expect("it answers");
    assert_eq!(since(first.sequence), KeyChanges::Unknown);
    assert_eq!(since(last.sequence - 1), KeyChanges::Unknown, "it is in the last jump");
    assert!(matches!(since(behind_oldest), KeyChanges::Since(_)), "the first one behind the oldest jump");
    let meta: String = server.run(&format!("GET {}", node.store.shared.names.meta(&TopicPart::keys("t"))));
    assert_eq!(meta.split(' ').count(), 7 + 2 * 8, "{meta}");
}

#[test]
fn changes_before_a_forgotten_removal_are_unknown() {
    let server = start_server!();
    let mut settings = settings(&server.url());
    settings.rules.removals_kept = 50;
    let node = StoreNode::with(settings);
    node.wait_until_up();
    let first = write(&node, LIMITS, vec![set("a", "x"), set("b", "x")]).position;
    let removal = KeyCommand { value: None, ..set("a", "") };
    let KeyOutcome::Changed(version) = write_one(&node, removal) else { panic!("it is removed") };
    let since =
        |sequence| wait(node.store.key_changes("t", Position { sequence, ..first })).expect("it answers");
    until("the removal is forgotten", || since(first.sequence) == KeyChanges::Unknown);
    assert!(matches!(since(version), KeyChanges::Since(update) if update.changes.is_empty()));
    let names = &node.store.shared.names;
    for (part, count) in [("removed", 0), ("version", 1)] {
        assert_eq!(server.run::<i64>(&format!("ZCARD {}", names.key(part, "t"))), count, "{part}");
    }
    // A topic without keys is forgotten later, with everything that it has.
    let _ = write_one(&node, KeyCommand { value: None, ..set("b", "") });
    let ttl = |part| server.run::<i64>(&format!("PTTL {}", names.key(part, "t")));
    assert!(["keymeta", "keys", "version", "expiry", "removed"].into_iter().all(|part| ttl(part) != -1));
    assert!(matches!(write_one(&node, set("c", "x")), KeyOutcome::Changed(_)));
    // The removals may be forgotten by now, and missing.
    assert!(["keymeta", "version", "removed"].into_iter().all(|part| ttl(part) < 0));
}

#[test]
fn many_expired_keys_have_no_value_and_no_space() {
    let server = start_server!();
    stop_sweep(&server);
    let node = StoreNode::up(&server.url());
    let limits = KeyLimits { keys: 600, ..LIMITS };
    // Longer than it takes to write all, since a write removes expired keys.
    let ttl = Some(Duration::from_millis(600));
    let fill = || {
        for number in 0..5 {
            let batch = (0..500).map(|key| KeyCommand { ttl, ..set(&format!("{number} {key}"), "x") });
            write(&node, LIMITS, batch.collect());
        }
        until("all expire", || read_all(&node, "t").iter().all(|page| page.keys.is_empty()));
    };
    fill();
    // One call removes a page of them, the oldest first.
    let condition = Some(KeyCondition::IfNew);
    assert!(matches!(
        write_one(&node, KeyCommand { condition, ..set("4 499", "y") }),
        KeyOutcome::Changed(_)
    ));
    fill();
    let batch = (0..500).map(|key| set(&format!("new {key}"), "x")).collect();
    let written = write(&node, limits, batch);
    assert!(written.outcomes.iter().all(|outcome| matches!(outcome, KeyOutcome::Changed(_))));
    assert_eq!(written.position.sequence - written.prev, 500, "removals are announced apart");
}

#[test]
fn key_without_a_new_time_to_live_stays() {
    let server = start_server!();
    let node = StoreNode::up(&server.url());
    let ttl = Some(Duration::from_millis(40));
    write(&node, LIMITS, vec![KeyCommand { ttl, ..set("a", "x") }]);
    if write_one(&node, KeyCommand { condition: Some(KeyCondition::IfExists), ..set("a", "y") })
        == KeyOutcome::Missing
    {
        // A slow machine.
        write_one(&node, set("a", "y"));
    }
    write(&node, LIMITS, vec![KeyCommand { ttl, ..set("b", "x") }]);
    let names = &node.store.shared.names;
    until("the other one is removed", || server.run::<i64>(&format!("HLEN {}", names.key("keys", "t"))) == 1);
    let keys: Vec<_> = read_all(&node, "t").into_iter().flat_map(|page| page.keys).collect();
    assert_eq!(keys.len(), 1);
    assert_eq!((&*keys[0].key, keys[0].expiry), ("a", None));
}

#[test]
fn cursor_of_another_server_is_rejected() {
    let server = start_server!();
    let node = StoreNode::up(&server.url());
    write(&node, LIMITS, vec![set("a", "x")]);
    for (cursor, reason) in [("0123456789abcdef 5", "another server"), ("5", "cursor")] {
        let read = ReadKeys { topic: "t".into(), cursor: Some(cursor.into()), limit: 10 };
        let answer = wait(node.store.read_keys(read));
        assert!(matches!(&answer, Err(StoreError::Rejected(text)) if text.contains(reason)), "{answer:?}");
    }
}
