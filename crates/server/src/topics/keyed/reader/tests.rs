use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sinews_testkit::Rng;

use super::super::config::KeyedConfig;
use super::super::state::WriteLimits;
use super::super::update::KeyedUpdate;
use super::super::write::KeyWrite;
use super::*;

/// `first last sequence`, with `-` for an update, then `key version value` for each change.
fn encoder() -> EncodeKeys {
    EncodeKeys(Box::new(|update: &KeyedUpdate<'_>| {
        let part = if update.is_snapshot() {
            format!("{} {}", update.part() == Some(1), update.is_last_part())
        } else {
            "- -".to_owned()
        };
        let change = |change: &super::super::update::KeyChange| {
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
    /// The newest version of each key that it has shown or seen removed.
    newest: BTreeMap<String, u64>,
    sequence: u64,
}

impl View {
    fn apply(&mut self, message: &Prepared, current: impl Fn(&str) -> Option<u64>) {
        let text = String::from_utf8(message.payload().to_vec()).unwrap();
        let mut lines = text.lines();
        let head: Vec<&str> = lines.next().unwrap().split(' ').collect();
        if head[0] == "true" {
            self.snapshot = Some(BTreeMap::new());
        }
        let is_snapshot = head[0] != "-";
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
}

impl World {
    fn new() -> Self {
        Self {
            topic: KeyedTopic::new("t", 1, 1, 0),
            encode: encoder(),
            limits: WriteLimits { config: KeyedConfig::default().with_max_keys(64), left: usize::MAX },
            now: Instant::now(),
        }
    }

    fn write(&self, write: &KeyWrite) {
        self.topic.lock().write(write, self.limits, self.now).unwrap();
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
                view.apply(&message, current);
            }
        }
        false
    }
}

/// Readers of any speed end with the state, and never show an older value after a newer one.
#[test]
fn slow_readers_end_with_the_state_and_read_no_stale_value() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut world = World::new();
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
            let keys = state.snapshot(*filter).into_iter().map(|key| {
                (key.key.to_string(), (key.version, String::from_utf8(key.value.unwrap().to_vec()).unwrap()))
            });
            assert_eq!(view.keys, keys.collect(), "seed {seed}");
        }
    }
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
fn snapshot_is_encoded_once_for_many_readers() {
    let world = World::new();
    for key in 0..40 {
        world.write(&KeyWrite::set(format!("k{key}"), "x".repeat(4_000)));
    }
    let first = world.topic.encoded_snapshot(None, &world.encode);
    assert_eq!((first.parts.len(), first.cursor), (5, 40));
    for round in 0..64 {
        world.write(&KeyWrite::set("k0", format!("{round}")));
    }
    let again = world.topic.encoded_snapshot(None, &world.encode);
    assert_eq!(again.cursor, first.cursor, "64 changes follow it");
    let (mut reader, mut view) = (KeyedReader::new(None), View::default());
    while !world.read(&mut reader, &mut view, None) {}
    assert_eq!(view.keys["k0"].1, "63");
    world.write(&KeyWrite::set("k0", "64"));
    assert_eq!(world.topic.encoded_snapshot(None, &world.encode).cursor, 105);
    let filtered = world.topic.encoded_snapshot(Some("k0"), &world.encode);
    assert_eq!((filtered.parts.len(), filtered.cursor), (1, 105));
}
