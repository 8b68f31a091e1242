use std::collections::HashMap;

use sinews_testkit::Rng;

use super::*;

const CONFIG: KeyedConfig = KeyedConfig {
    keys: 8,
    value_bytes: 64,
    topic_bytes: usize::MAX,
    total_bytes: usize::MAX,
    client_bytes: usize::MAX,
};

const LIMITS: WriteLimits = WriteLimits { config: CONFIG, left: usize::MAX, client_left: usize::MAX };

/// A map and the list of all changes: what the state must be equal to.
#[derive(Default)]
struct NaiveState {
    keys: BTreeMap<String, (u64, Bytes, Option<Instant>)>,
    log: Vec<(String, Option<Bytes>)>,
    repeats: HashMap<(String, String), u64>,
}

impl NaiveState {
    fn sequence(&self) -> u64 {
        self.log.len() as u64
    }

    fn change(&mut self, key: &str, value: Option<Bytes>, expires: Option<Instant>) {
        self.log.push((key.to_owned(), value.clone()));
        match value {
            Some(value) => drop(self.keys.insert(key.to_owned(), (self.sequence(), value, expires))),
            None => drop(self.keys.remove(key)),
        }
    }

    fn expire(&mut self, now: Instant) {
        let due = self.keys.iter().filter_map(|(key, (.., expires))| Some(((*expires)?, key.clone())));
        let mut due: Vec<_> = due.filter(|(at, _)| *at <= now).collect();
        due.sort();
        due.into_iter().for_each(|(_, key)| self.change(&key, None, None));
    }

    fn write(&mut self, write: &KeyWrite, now: Instant) -> Result<(bool, bool), KeyError> {
        self.expire(now);
        let repeat = write.idempotency_key.as_ref().map(|name| (write.key.to_string(), name.to_string()));
        if repeat.as_ref().is_some_and(|repeat| self.repeats.contains_key(repeat)) {
            return Ok((true, true));
        }
        let version = self.keys.get(&*write.key).map(|known| known.0);
        match (write.condition, version) {
            (Some(KeyCondition::IfNew), Some(version)) => return Err(KeyError::Exists(version)),
            (Some(KeyCondition::IfExists | KeyCondition::Version(_) | KeyCondition::At(_)), None) => {
                return Err(KeyError::Missing);
            }
            (Some(KeyCondition::Version(wanted)), Some(version)) if wanted != version => {
                return Err(KeyError::OtherVersion(version));
            }
            _ => {}
        }
        if write.value.is_some() && version.is_none() && self.keys.len() >= CONFIG.keys {
            return Err(KeyError::TooManyKeys(CONFIG.keys));
        }
        let changed = write.value.is_some() || version.is_some();
        if changed {
            self.change(&write.key, write.value.clone(), write.ttl.map(|ttl| now + ttl));
            if let Some(repeat) = repeat {
                self.repeats.insert(repeat, self.sequence());
            }
        }
        Ok((changed, false))
    }

    /// The last change of each key after a sequence, in order.
    fn changes(&self, after: u64) -> Vec<(u64, String, Option<Bytes>)> {
        let log = (1..).zip(&self.log).filter(|(at, _)| *at > after);
        let is_last = |at: u64, key: &str| self.log[at as usize..].iter().all(|later| later.0 != key);
        let last = log.filter(|(at, (key, _))| is_last(*at, key));
        last.map(|(at, (key, value))| (at, key.clone(), value.clone())).collect()
    }
}

fn random_write(rng: &mut Rng, naive: &NaiveState) -> KeyWrite {
    let key = format!("k{}", rng.below(10));
    let mut write = match rng.below(4) {
        0 => KeyWrite::delete(key),
        _ => KeyWrite::set(key, format!("v{}", rng.below(1_000))),
    };
    if rng.below(3) == 0 {
        write = write.with_ttl(Duration::from_millis(1 + rng.below(5_000) as u64));
    }
    match rng.below(8) {
        0 => write = write.with_condition(KeyCondition::IfNew),
        1 => write = write.with_condition(KeyCondition::IfExists),
        2 => {
            let version = naive.keys.get(&*write.key).map_or(7, |known| known.0);
            write = write.with_condition(KeyCondition::Version(version + rng.below(2) as u64));
        }
        3 => write = write.with_idempotency_key(format!("i{}", rng.below(20))),
        _ => {}
    }
    write
}

fn changes_of(state: &KeyedState, after: u64) -> Vec<(u64, String, Option<Bytes>)> {
    let read = state.changes(after, state.sequence, None, usize::MAX).unwrap();
    assert_eq!(read.cursor, state.sequence);
    read.changes.into_iter().map(|change| (change.version, change.key.to_string(), change.value)).collect()
}

#[test]
fn state_equals_a_naive_map_and_log() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let (mut state, mut naive) = (KeyedState::new(3), NaiveState::default());
        let mut now = Instant::now();
        for _ in 0..400 {
            // Less than the time for which removals and writes are remembered.
            now += Duration::from_millis(rng.below(100) as u64);
            let write = random_write(&mut rng, &naive);
            let expected = naive.write(&write, now);
            let written = state.write(&write, LIMITS, now);
            assert_eq!(written.map(|written| (written.changed, written.repeated)), expected, "{write:?}");
            assert_eq!(state.position(), Position { epoch: 3, sequence: naive.sequence() }, "{write:?}");
            let keys: Vec<_> = state.snapshot(None).into_iter().map(|key| (key.version, key.value)).collect();
            let expected: Vec<_> =
                naive.keys.values().map(|known| (known.0, Some(known.1.clone()))).collect();
            assert_eq!((keys, state.len()), (expected, naive.keys.len()));
            let after = rng.below(naive.log.len() + 1) as u64;
            if after >= state.forgotten {
                assert_eq!(changes_of(&state, after), naive.changes(after), "seed {seed} after {after}");
            }
            let bytes: usize = state.keys.iter().map(|(key, known)| cost(key, known.value.as_ref())).sum();
            assert_eq!((state.bytes, state.order.len()), (bytes, state.keys.len()));
            assert_eq!(state.expiries.len(), state.keys.values().filter(|key| key.expires.is_some()).count());
        }
    }
}

#[test]
fn repeated_write_returns_the_first_result() {
    let (mut state, now) = (KeyedState::new(3), Instant::now());
    let write = |value: &str, name: &str| KeyWrite::set("a", value.to_owned()).with_idempotency_key(name);
    let first = state.write(&write("1", "x"), LIMITS, now).unwrap();
    state.write(&KeyWrite::set("a", "2"), LIMITS, now).unwrap();
    let again = state.write(&write("1", "x"), LIMITS, now).unwrap();
    assert_eq!(again, KeyWritten { repeated: true, ..first });
    assert_eq!(state.get("a").unwrap().value, Some("2".into()));
    assert!(!state.write(&write("3", "y"), LIMITS, now).unwrap().repeated);
    let later = now + Duration::from_secs(301);
    assert!(!state.write(&write("1", "x"), LIMITS, later).unwrap().repeated, "it is forgotten");
    state.expire(later + Duration::from_secs(301), 8);
    assert_eq!((state.recent.bytes(), state.bytes()), (0, KEY_COST + 2));
}

#[test]
fn version_of_another_epoch_is_rejected() {
    let (mut state, now) = (KeyedState::new(3), Instant::now());
    let written = state.write(&KeyWrite::set("a", "1"), LIMITS, now).unwrap();
    let at = |position| KeyWrite::set("a", "2").with_condition(KeyCondition::At(position));
    let other = Position { epoch: 4, ..written.position };
    assert_eq!(state.write(&at(other), LIMITS, now), Err(KeyError::OtherVersion(1)));
    assert!(state.write(&at(written.position), LIMITS, now).unwrap().changed);
}

#[test]
fn writes_beyond_a_limit_are_rejected_and_removals_are_accepted() {
    let (mut state, now) = (KeyedState::new(3), Instant::now());
    let config = KeyedConfig::default().with_max_keys(2).with_max_topic_bytes(2 * (KEY_COST + 11));
    let limits = WriteLimits { config, left: KEY_COST + 11, client_left: usize::MAX };
    let set = |key: &str, value: &str| KeyWrite::set(key.to_owned(), value.to_owned());
    assert!(state.write(&set("a", "0123456789"), limits, now).is_ok());
    let left = WriteLimits { left: KEY_COST + 10, ..limits };
    assert_eq!(state.write(&set("b", "0123456789"), left, now), Err(KeyError::ServerFull(64 << 20)));
    assert!(state.write(&set("b", "0123456789"), limits, now).is_ok());
    assert_eq!(state.write(&set("c", "1"), limits, now), Err(KeyError::TooManyKeys(2)));
    let full = Err(KeyError::TopicFull(config.topic_bytes));
    assert_eq!(state.write(&set("b", "01234567890"), limits, now), full);
    assert!(state.write(&set("b", "012345678"), WriteLimits { left: 0, ..limits }, now).is_ok());
    assert!(state.write(&KeyWrite::delete("a"), WriteLimits { left: 0, ..limits }, now).unwrap().changed);
}

#[test]
fn reader_from_before_a_forgotten_removal_needs_a_snapshot() {
    let (mut state, now) = (KeyedState::new(3), Instant::now());
    for key in ["a", "b", "c"] {
        state.write(&KeyWrite::set(key, "1"), LIMITS, now).unwrap();
    }
    state.write(&KeyWrite::delete("b"), LIMITS, now).unwrap();
    assert_eq!(changes_of(&state, 3), [(4, "b".to_owned(), None)]);
    assert_eq!(state.next_due(), Some(now + TOMBSTONE_TTL));
    assert!(!state.expire(now + TOMBSTONE_TTL, 8), "no key was removed");
    assert_eq!(state.changes(3, 4, None, 1).unwrap_err(), NeedsSnapshot);
    assert!(!state.continues(Position { epoch: 3, sequence: 3 }));
    assert!(state.continues(Position { epoch: 3, sequence: 4 }));
    assert!(!state.continues(Position { epoch: 3, sequence: 5 }), "of a run that was longer");
    assert!(!state.continues(Position { epoch: 4, sequence: 4 }));
    assert_eq!((changes_of(&state, 4), state.next_due(), state.keys.len()), (vec![], None, 2));
    // The oldest is forgotten first beyond the limit.
    state.write(&KeyWrite::delete("a"), LIMITS, now).unwrap();
    state.write(&KeyWrite::delete("c"), LIMITS, now).unwrap();
    state.expire(now, 1);
    assert_eq!((state.forgotten, changes_of(&state, 5)), (5, vec![(6, "c".to_owned(), None)]));
}

#[test]
fn changes_are_read_in_pieces_of_a_size() {
    let (mut state, now) = (KeyedState::new(3), Instant::now());
    for key in ["a", "b.x", "b.y", "c"] {
        state.write(&KeyWrite::set(key, "12345678"), LIMITS, now).unwrap();
    }
    let read = |after, filter, bytes| {
        let read = state.changes(after, 4, filter, bytes).unwrap();
        (read.cursor, read.changes.iter().map(|change| change.version).collect::<Vec<_>>())
    };
    assert_eq!(read(0, None, 1), (1, vec![1]), "at least one");
    assert_eq!(read(1, None, 22), (3, vec![2, 3]));
    assert_eq!(read(0, Some("b.*"), 1), (2, vec![2]));
    assert_eq!(read(2, Some("b.*"), 100), (4, vec![3]));
    assert_eq!(read(3, Some("b.*"), 100), (4, vec![]), "nothing matches");
    assert_eq!(read(9, None, 100), (9, vec![]), "beyond the end");
}

#[test]
fn exported_state_continues_in_another_server() {
    let (mut state, now) = (KeyedState::new(3), Instant::now());
    for key in ["a", "b", "c"] {
        state.write(&KeyWrite::set(key, "1").with_ttl(Duration::from_secs(9)), LIMITS, now).unwrap();
    }
    state.write(&KeyWrite::set("a", "2"), LIMITS, now).unwrap();
    state.write(&KeyWrite::delete("b"), LIMITS, now).unwrap();
    state.freeze(true);
    assert_eq!(state.write(&KeyWrite::set("a", "3"), LIMITS, now), Err(KeyError::HandedOver));
    assert_eq!((state.expire(now + Duration::from_secs(99), 8), state.next_due()), (false, None));
    let exported = state.export("t", now + Duration::from_secs(1));
    let mut restored = KeyedState::new(9);
    assert_eq!(restored.restore(exported.clone(), LIMITS, now), 0);
    assert_eq!((restored.position(), changes_of(&restored, 0)), (state.position(), changes_of(&state, 0)));
    assert_eq!(restored.next_due(), Some(now + Duration::from_secs(8)));
    assert_eq!(restored.export("t", now), exported);
    // With a smaller limit, readers must not take the rest for the whole.
    let config = CONFIG.with_max_keys(1);
    let mut restored = KeyedState::new(9);
    assert_eq!(restored.restore(exported, WriteLimits { config, ..LIMITS }, now), 1);
    assert!(!restored.continues(state.position()) && restored.position().sequence > 5);
}
