use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use sinews_testkit::Rng;

use super::super::config::KeyedConfig;
use super::super::snapshot::SnapshotMemory;
use super::super::state::{WriteLimits, matches};
use super::super::update::{KeyChange, KeyedUpdate};
use super::super::write::KeyWrite;
use super::*;

/// `part last sequence`, with `-` for an update, then `key version value` for each change. Counts its calls.
fn encoder(calls: Arc<AtomicUsize>) -> EncodeKeys {
    EncodeKeys(Box::new(move |update: &KeyedUpdate<'_>| {
        calls.fetch_add(1, Ordering::Relaxed);
        let part = match update.part() {
            Some(part) => format!("{part} {}", update.is_last_part()),
            None => "- -".to_owned(),
        };
        let change = |change: &KeyChange| {
            let value = change.value().map(|value| String::from_utf8_lossy(value).into_owned());
            format!("\n{} {} {}", change.key(), change.version(), value.as_deref().unwrap_or("-"))
        };
        let changes: String = update.changes().iter().map(change).collect();
        Prepared::text(format!("{part} {}{changes}", update.position().sequence))
    }))
}

/// A subscriber's view: what it shows.
#[derive(Default)]
struct View {
    keys: BTreeMap<String, (u64, String)>,
    /// The parts of a snapshot so far.
    snapshot: Option<BTreeMap<String, (u64, String)>>,
    /// The number of parts of the snapshot so far, and its sequence.
    parts: (usize, String),
    /// Snapshots that did not end.
    restarts: usize,
    /// The newest version of each key that it has shown or seen removed.
    newest: BTreeMap<String, u64>,
    sequence: u64,
}

impl View {
    /// Returns whether the message ends a snapshot.
    fn apply(&mut self, message: &Prepared, current: impl Fn(&str) -> Option<u64>) -> bool {
        let text = String::from_utf8(message.payload().to_vec()).unwrap();
        let mut lines = text.lines();
        let head: Vec<&str> = lines.next().unwrap().split(' ').collect();
        if head[0] == "1" {
            self.restarts += usize::from(self.snapshot.replace(BTreeMap::new()).is_some());
            self.parts = (0, head[2].to_owned());
        }
        let is_snapshot = head[0] != "-";
        if is_snapshot {
            self.parts.0 += 1;
            assert_eq!((head[0], head[2]), (&*self.parts.0.to_string(), &*self.parts.1), "parts in order");
        }
        for line in lines {
            let [key, version, value] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let version: u64 = version.parse().unwrap();
            if is_snapshot {
                let part = self.snapshot.as_mut().expect("the first part came first");
                assert!(part.insert(key.to_owned(), (version, value.to_owned())).is_none());
                continue;
            }
            assert_eq!(current(key), Some(version), "a stale value of {key}");
            self.note(key, version);
            match value {
                "-" => drop(self.keys.remove(key)),
                _ => drop(self.keys.insert(key.to_owned(), (version, value.to_owned()))),
            }
        }
        if head[1] == "true" {
            self.keys = self.snapshot.take().unwrap();
            let shown: Vec<_> = self.keys.iter().map(|(key, (version, _))| (key.clone(), *version)).collect();
            shown.into_iter().for_each(|(key, version)| self.note(&key, version));
        }
        if !is_snapshot || head[1] == "true" {
            let sequence = head[2].parse().unwrap();
            assert!(sequence >= self.sequence, "the view goes back");
            self.sequence = sequence;
        }
        head[1] == "true"
    }

    fn note(&mut self, key: &str, version: u64) {
        let newest = self.newest.insert(key.to_owned(), version).unwrap_or(0);
        assert!(newest <= version, "{key} {version} after {newest}");
    }
}

struct World {
    topic: KeyedTopic,
    encode: EncodeKeys,
    limits: WriteLimits,
    now: Instant,
    memory: Arc<SnapshotMemory>,
    /// Calls of the encoder.
    encoded: Arc<AtomicUsize>,
    /// The keys at each sequence.
    history: RefCell<BTreeMap<u64, Vec<KeyChange>>>,
}

impl World {
    fn new() -> Self {
        Self::with_memory(usize::MAX)
    }

    /// With a memory limit of snapshots.
    fn with_memory(bytes_max: usize) -> Self {
        Self::sharing(SnapshotMemory::new(bytes_max))
    }

    /// With the memory of snapshots of other topics.
    fn sharing(memory: Arc<SnapshotMemory>) -> Self {
        let encoded = Arc::new(AtomicUsize::new(0));
        Self {
            topic: KeyedTopic::new("t", 1, 1, 0, &memory),
            encode: encoder(Arc::clone(&encoded)),
            memory,
            encoded,
            history: RefCell::new([(0, Vec::new())].into()),
            limits: WriteLimits {
                config: KeyedConfig::default().with_max_keys(64),
                left: usize::MAX,
                client_left: usize::MAX,
            },
            now: Instant::now(),
        }
    }

    fn write(&self, write: &KeyWrite) {
        self.topic.lock().write(write, self.limits, self.now).unwrap();
        self.note();
    }

    fn note(&self) {
        let state = self.topic.lock();
        self.history.borrow_mut().insert(state.position().sequence, state.snapshot(None));
    }

    fn sequence(&self) -> u64 {
        self.topic.lock().position().sequence
    }

    /// Reads up to the end of the log; returns whether the reader has reached it.
    fn read(&self, reader: &mut KeyedReader, view: &mut View, filter: Option<&str>) -> bool {
        match reader.next(&self.topic, filter, self.sequence(), &self.encode) {
            ReaderStep::AtEnd { is_exact } => return is_exact,
            ReaderStep::Skipped => {}
            ReaderStep::Message(message) => {
                let current = |key: &str| self.topic.lock().version(key);
                if view.apply(&message, current) {
                    let history = self.history.borrow();
                    let then = history[&view.sequence].iter().filter(|key| matches(filter, &key.key));
                    assert_eq!(view.keys, then.map(shown).collect(), "the keys at {}", view.sequence);
                }
            }
        }
        false
    }
}

fn shown(key: &KeyChange) -> (String, (u64, String)) {
    let value = String::from_utf8(key.value.as_ref().unwrap().to_vec()).unwrap();
    (key.key.to_string(), (key.version, value))
}

/// Readers of any speed end with the state, and never show an older value after a newer one.
#[test]
fn slow_readers_get_the_keys_at_one_time_then_the_state_and_no_stale_value() {
    let mut restarts = 0;
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        // Half of the runs discard snapshots while they are read.
        let memory = if seed % 2 == 0 { usize::MAX } else { 100_000 };
        let mut world = World::with_memory(memory);
        let mut readers: Vec<(KeyedReader, View, Option<&str>, usize)> = Vec::new();
        for _ in 0..600 {
            match rng.below(12) {
                0 if readers.len() < 6 => {
                    let filter = [None, Some("a.*"), Some("*.3")][rng.below(3)];
                    readers.push((KeyedReader::new(None), View::default(), filter, 1 + rng.below(9)));
                }
                1 => world.now += Duration::from_secs(rng.below(40) as u64),
                2 => {
                    world.topic.lock().expire(world.now, 4 + rng.below(60));
                    world.note();
                }
                _ => {
                    let key = format!("{}.{}", ["a", "b"][rng.below(2)], rng.below(20));
                    let write = if rng.below(4) == 0 {
                        KeyWrite::delete(key)
                    } else {
                        KeyWrite::set(key, format!("{:x>1$}", rng.below(9), 1 + rng.below(4_000)))
                    };
                    let ttl = Duration::from_secs(1 + rng.below(60) as u64);
                    world.write(&if rng.below(3) == 0 { write.with_ttl(ttl) } else { write });
                }
            }
            for (reader, view, filter, speed) in &mut readers {
                if rng.below(*speed) == 0 {
                    world.read(reader, view, *filter);
                }
            }
        }
        for (reader, view, filter, _) in &mut readers {
            let mut steps = 0;
            while !world.read(reader, view, *filter) {
                steps += 1;
                assert!(steps <= 200, "the rest is bounded by the state");
            }
            let state = world.topic.lock();
            assert_eq!(view.keys, state.snapshot(*filter).iter().map(shown).collect(), "seed {seed}");
            assert!(memory < usize::MAX || view.restarts == 0);
            restarts += view.restarts;
        }
        drop(readers);
        world.topic.release_snapshot();
        assert_eq!(world.memory.bytes(), 0, "seed {seed}");
    }
    assert!(restarts > 0);
}

#[test]
fn what_waits_for_a_reader_does_not_grow_with_the_changes() {
    let world = World::new();
    let (mut reader, mut view) = (KeyedReader::new(None), View::default());
    assert!(!world.read(&mut reader, &mut view, None), "a snapshot of no keys");
    assert!(world.read(&mut reader, &mut view, None));
    for round in 0..10_000 {
        world.write(&KeyWrite::set(format!("k{}", round % 20), format!("{round}")));
    }
    assert!(!world.read(&mut reader, &mut view, None));
    assert!(world.read(&mut reader, &mut view, None), "one update has them all");
    assert_eq!((view.keys.len(), view.keys["k19"].1.as_str(), view.sequence), (20, "9999", 10_000));
}

#[test]
fn parts_of_a_snapshot_are_encoded_once_for_many_readers() {
    let world = World::new();
    let encoded = || world.encoded.swap(0, Ordering::Relaxed);
    let read_all = |filter: Option<&str>| {
        let (mut reader, mut view) = (KeyedReader::new(None), View::default());
        while !world.read(&mut reader, &mut view, filter) {}
        view
    };
    for key in 0..40 {
        world.write(&KeyWrite::set(format!("k{key}"), "x".repeat(4_000)));
    }
    (0..20).for_each(|_| assert_eq!(read_all(None).keys.len(), 40));
    assert_eq!(encoded(), 5);
    for round in 0..64 {
        world.write(&KeyWrite::set("k0", format!("{round}")));
    }
    assert_eq!(read_all(None).keys["k0"].1, "63");
    assert_eq!(encoded(), 1, "64 changes follow the snapshot");
    world.write(&KeyWrite::set("k0", "64"));
    assert_eq!(read_all(None).keys["k0"].1, "64");
    assert_eq!(encoded(), 5);
    world.write(&KeyWrite::set("k0", "65"));
    let filtered = read_all(Some("k0"));
    assert_eq!((filtered.keys["k0"].1.as_str(), filtered.newest["k0"], encoded()), ("65", 106, 1));
}

#[test]
fn parts_for_a_filter_have_each_key_once() {
    let world = World::new();
    for number in 0..20 {
        for suffix in ["a", "b"] {
            world.write(&KeyWrite::set(format!("{number}.{suffix}"), "x".repeat(4_000)));
        }
    }
    let (mut reader, mut view) = (KeyedReader::new(None), View::default());
    while !world.read(&mut reader, &mut view, Some("*.a")) {}
    assert_eq!((view.keys.len(), view.parts.0), (20, 3));
}

#[test]
fn encoded_parts_count_toward_the_limit_and_are_dropped_above_it() {
    // The keys take 33,000 bytes, and their part twice as many.
    for (limit, bytes, calls) in [(usize::MAX, 90_000..110_000, 1), (60_000, 32_000..60_001, 2)] {
        let world = World::with_memory(limit);
        (0..8).for_each(|key| world.write(&KeyWrite::set(format!("k{key}"), "x".repeat(4_000))));
        for _ in 0..2 {
            let (mut reader, mut view) = (KeyedReader::new(None), View::default());
            while !world.read(&mut reader, &mut view, None) {}
            assert!(bytes.contains(&world.memory.bytes()), "{} bytes", world.memory.bytes());
        }
        assert_eq!(world.encoded.load(Ordering::Relaxed), calls);
    }
}

#[test]
fn readers_that_do_not_read_take_no_more_memory_than_the_limit() {
    const LIMIT: usize = 1 << 20;
    let world = World::with_memory(LIMIT);
    for key in 0..60 {
        world.write(&KeyWrite::set(format!("k.{key}"), "x".repeat(4_000)));
    }
    let mut readers = Vec::new();
    for number in 0..50 {
        // Each begins at another version.
        for round in 0..70 {
            let value = format!("{number}{}", "y".repeat(4_000));
            world.write(&KeyWrite::set(format!("k.{}", round % 60), value));
        }
        let filter = [None, Some("k.*"), Some("*.>")][number % 3];
        let (mut reader, mut view) = (KeyedReader::new(None), View::default());
        assert!(!world.read(&mut reader, &mut view, filter));
        readers.push((reader, view, filter));
        assert!(world.memory.bytes() <= LIMIT, "{} bytes", world.memory.bytes());
    }
    let encoded = world.encoded.load(Ordering::Relaxed);
    assert!(encoded <= 50, "at most one part for each reader, not {encoded}");
    for (mut reader, mut view, filter) in readers {
        while !world.read(&mut reader, &mut view, filter) {}
        assert_eq!(view.keys.len(), 60);
        assert!(view.keys.values().all(|(_, value)| value.starts_with("49y")));
    }
}

/// Readers of keys near the limit, in any order: parts do not fit, and no snapshot begins again.
#[test]
fn all_topics_complete_their_snapshots_at_once_near_the_limit() {
    for seed in 0..5 {
        let mut rng = Rng::new(seed);
        // The keys have a limit of 2 MiB, and snapshots twice this.
        let memory = SnapshotMemory::new(4 << 20);
        let worlds: Vec<World> = (0..8).map(|_| World::sharing(Arc::clone(&memory))).collect();
        for world in &worlds {
            for key in 0..60 {
                world.write(&KeyWrite::set(format!("k{key}"), "x".repeat(4_100)));
            }
            assert!((250 << 10..256 << 10).contains(&world.topic.lock().bytes()));
        }
        let reader = |at: usize| (at % 8, KeyedReader::new(None), View::default());
        let mut readers: Vec<_> = (0..24).map(reader).collect();
        while !readers.is_empty() {
            let at = rng.below(readers.len());
            let (topic, reader, view) = &mut readers[at];
            if worlds[*topic].read(reader, view, None) {
                assert_eq!((view.keys.len(), view.restarts), (60, 0), "seed {seed}");
                readers.remove(at);
            }
            assert!(memory.bytes() <= 4 << 20, "{} bytes", memory.bytes());
        }
        let encoded: usize = worlds.iter().map(|world| world.encoded.load(Ordering::Relaxed)).sum();
        // A snapshot has 9 parts.
        assert!((8 * 9..=8 * 9 * 3).contains(&encoded), "{encoded} parts of seed {seed}");
    }
}

impl World {
    /// Changes the keys, of 4,000 bytes each, so that later readers begin with another snapshot if there is memory for
    /// it: or even if there is none, since no reader can begin before a forgotten removal.
    fn change_all(&mut self, round: usize, removes: bool) {
        for key in 0..60 {
            self.write(&KeyWrite::set(format!("k{key}"), format!("{round}{}", "y".repeat(4_000))));
        }
        (0..10).for_each(|_| self.write(&KeyWrite::set("k0", "z".repeat(4_000))));
        if removes {
            self.write(&KeyWrite::delete("k59"));
            self.now += Duration::from_secs(61);
            self.topic.lock().expire(self.now, 64);
            self.note();
        }
    }

    /// Returns a new reader that has read one part.
    fn begin(&self) -> (KeyedReader, View) {
        let (mut reader, mut view) = (KeyedReader::new(None), View::default());
        assert!(!self.read(&mut reader, &mut view, None));
        (reader, view)
    }
}

/// Returns the parts that a slow subscriber reads until it has the keys, and how often it began again. Other
/// subscribers begin, and never continue.
fn read_beside_stalled_subscribers(removes: bool) -> (usize, usize) {
    const LIMIT: usize = 1 << 20;
    let mut world = World::with_memory(LIMIT);
    world.change_all(0, false);
    let (mut reader, mut view) = world.begin();
    let mut stalled = Vec::new();
    for parts in 2..100 {
        world.change_all(parts, removes);
        stalled.push(world.begin());
        assert!(world.memory.bytes() <= LIMIT, "{} bytes", world.memory.bytes());
        world.read(&mut reader, &mut view, None);
        if !view.keys.is_empty() {
            return (parts, view.restarts);
        }
    }
    panic!("the reader has no complete snapshot");
}

#[test]
fn slow_reader_of_a_busy_topic_completes_its_snapshot() {
    assert_eq!(read_beside_stalled_subscribers(false), (8, 0), "all parts of one snapshot");
    let (parts, restarts) = read_beside_stalled_subscribers(true);
    assert!(restarts == 1 && parts <= 8 + 8, "{parts} parts, {restarts} restarts");
}

#[test]
fn stalled_subscribers_of_a_busy_topic_discard_no_snapshots_of_others() {
    for removes in [false, true] {
        let memory = SnapshotMemory::new(1 << 20);
        let [mut busy, mut quiet, mut late] = [(); 3].map(|()| World::sharing(Arc::clone(&memory)));
        quiet.change_all(0, false);
        late.change_all(0, false);
        let mut others = vec![(&quiet, quiet.begin())];
        let mut stalled = Vec::new();
        for round in 0..20 {
            busy.change_all(round, removes);
            stalled.push(busy.begin());
            if round == 10 {
                others.push((&late, late.begin()));
            }
        }
        for (world, (mut reader, mut view)) in others {
            while !world.read(&mut reader, &mut view, None) {}
            assert_eq!((view.keys.len(), view.restarts), (60, 0));
        }
    }
}

#[test]
fn threads_that_begin_at_once_share_a_snapshot() {
    const THREADS: usize = 4;
    let (memory, encoded) = (SnapshotMemory::new(usize::MAX), Arc::new(AtomicUsize::new(0)));
    let (topic, encode) = (KeyedTopic::new("t", 1, 1, 0, &memory), encoder(Arc::clone(&encoded)));
    let limits = WriteLimits { config: KeyedConfig::default(), left: usize::MAX, client_left: usize::MAX };
    for round in 0..20 {
        for key in 0..1_000 {
            let write = KeyWrite::set(format!("k{key}"), format!("{round:0100}"));
            topic.lock().write(&write, limits, Instant::now()).unwrap();
        }
        let end = topic.lock().cursor();
        let start = Barrier::new(THREADS);
        let read_all = || {
            start.wait();
            let mut reader = KeyedReader::new(None);
            while let ReaderStep::Message(_) = reader.next(&topic, None, end, &encode) {}
        };
        thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(read_all))));
        assert_eq!(encoded.swap(0, Ordering::Relaxed), 4, "parts of round {round}");
    }
}

#[test]
fn snapshots_without_readers_are_discarded_first() {
    let memory = SnapshotMemory::new(1 << 20);
    let mut worlds: Vec<World> = (0..5).map(|_| World::sharing(Arc::clone(&memory))).collect();
    worlds.iter_mut().for_each(|world| world.change_all(0, false));
    let (mut reader, mut view) = worlds[0].begin();
    let read_all = |world: &World| {
        let (mut reader, mut view) = world.begin();
        while !world.read(&mut reader, &mut view, None) {}
        view
    };
    // Four fit.
    worlds[1..].iter().for_each(|world| drop(read_all(world)));
    worlds[0].change_all(1, false);
    let newer = read_all(&worlds[0]);
    assert_eq!(newer.parts.1, worlds[0].sequence().to_string(), "a snapshot of the present keys");
    while !worlds[0].read(&mut reader, &mut view, None) {}
    assert_eq!((view.keys.len(), view.restarts), (60, 0));
}
