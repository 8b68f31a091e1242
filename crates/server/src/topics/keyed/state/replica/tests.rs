use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use sinews_testkit::Rng;

use super::*;
use crate::topics::keyed::config::KeyedConfig;
use crate::topics::keyed::state::WriteLimits;
use crate::topics::keyed::write::{KeyError, KeyWrite};

const CONFIG: KeyedConfig = KeyedConfig {
    keys: 8,
    value_bytes: 64,
    topic_bytes: usize::MAX,
    total_bytes: usize::MAX,
    client_bytes: usize::MAX,
};

const LIMITS: WriteLimits = WriteLimits { config: CONFIG, left: usize::MAX, client_left: usize::MAX };

/// Returns the changes after a sequence, at most this many; `None` if removals after it are forgotten.
fn changes_after(owner: &KeyedState, after: u64, max: usize, now: Instant) -> Option<KeyedSnapshot> {
    let mut changes = owner.export("t", now);
    if after < changes.forgotten || after > changes.position.sequence {
        return None;
    }
    changes.keys.retain(|key| key.version > after);
    if let Some(next) = changes.keys.get(max) {
        changes.position.sequence = next.version - 1;
        changes.keys.truncate(max);
    }
    Some(changes)
}

fn replica_of(owner: &KeyedState, now: Instant) -> KeyedState {
    let mut replica = KeyedState::new(2);
    replica.set_role(KeyRole::NoReplica);
    replica.install(owner.export("t", now), usize::MAX, now).unwrap();
    replica
}

fn random_write(owner: &mut KeyedState, rng: &mut Rng, now: Instant) {
    let key = format!("k{}", rng.below(6));
    let write = match rng.below(3) {
        0 => KeyWrite::delete(key),
        1 => KeyWrite::set(key, format!("{}", rng.below(99))).with_ttl(Duration::from_millis(300)),
        _ => KeyWrite::set(key, format!("{}", rng.below(99))),
    };
    owner.write(&write, LIMITS, now).unwrap();
}

fn keys_of(state: &KeyedState) -> Vec<(String, u64, Option<Bytes>)> {
    let keys = state.snapshot(None).into_iter();
    keys.map(|key| (key.key().to_owned(), key.version(), key.value().cloned())).collect()
}

#[test]
fn replica_applies_changes_in_order_once_and_notices_gaps() {
    for seed in 0..100 {
        let (mut rng, mut now) = (Rng::new(seed), Instant::now());
        let mut owner = KeyedState::new(7);
        let mut replica = replica_of(&owner, now);
        let mut sent: Vec<(u64, KeyedSnapshot)> = Vec::new();
        let mut published = 0;
        for _ in 0..200 {
            now += Duration::from_millis(rng.below(200) as u64);
            random_write(&mut owner, &mut rng, now);
            if rng.below(3) == 0 {
                let batch = changes_after(&owner, published, 1 + rng.below(3), now).unwrap();
                sent.push((published, batch));
                published = sent.last().unwrap().1.position.sequence;
            }
            // A batch may be lost, arrive twice or late.
            for _ in 0..rng.below(3) {
                let Some((after, batch)) = sent.get(rng.below(sent.len().max(1))).cloned() else { continue };
                let (before, end) = (replica.position(), batch.position.sequence);
                match replica.apply(after, batch, usize::MAX, now) {
                    Ok(()) => assert_eq!(replica.position().sequence, before.sequence.max(end)),
                    Err(error) => assert_eq!((error, replica.position()), (ReplicaError::Gap, before)),
                }
            }
            if rng.below(10) == 0 {
                replica.install(owner.export("t", now), usize::MAX, now).unwrap();
                assert_eq!(keys_of(&replica), keys_of(&owner), "seed {seed}");
            }
        }
        let rest = changes_after(&owner, replica.position().sequence, usize::MAX, now);
        if let Some(rest) = rest {
            replica.apply(replica.position().sequence, rest, usize::MAX, now).unwrap();
            assert_eq!(keys_of(&replica), keys_of(&owner), "seed {seed}");
            assert_eq!(replica.position(), owner.position());
        }
    }
}

/// What a subscriber shows that reads changes by cursor, as `KeyedReader` does.
#[derive(Default)]
struct View {
    after: Option<u64>,
    epoch: u64,
    keys: BTreeMap<String, (u64, Option<Bytes>)>,
}

impl View {
    fn read(&mut self, state: &KeyedState) {
        let read = self.after.map(|after| state.changes(after, state.cursor(), None, usize::MAX));
        let Some(Ok(read)) = read else {
            self.keys =
                keys_of(state).into_iter().map(|(key, version, value)| (key, (version, value))).collect();
            (self.after, self.epoch) = (Some(state.cursor()), state.position().epoch);
            return;
        };
        assert_eq!(self.epoch, state.position().epoch, "an update of another epoch without a snapshot");
        for change in read.changes {
            let key = change.key().to_owned();
            let (version, value) = (change.version(), change.value().cloned());
            assert!(self.keys.get(&key).is_none_or(|known| known.0 < version), "a stale value of {key}");
            match value {
                Some(_) => drop(self.keys.insert(key, (version, value))),
                None => drop(self.keys.remove(&key)),
            }
        }
        self.after = Some(read.cursor);
    }

    fn check(&self, state: &KeyedState) {
        let shown: Vec<_> =
            self.keys.iter().map(|(key, (version, value))| (key.clone(), *version, value.clone())).collect();
        assert_eq!((self.epoch, shown), (state.position().epoch, keys_of(state)));
    }
}

#[test]
fn readers_of_a_replica_see_one_state_also_when_it_is_another() {
    for seed in 0..100 {
        let (mut rng, now) = (Rng::new(seed), Instant::now());
        let mut owners = [KeyedState::new(10), KeyedState::new(11)];
        let mut state = replica_of(&owners[0], now);
        let mut views = [View::default(), View::default()];
        for epoch in 20..220 {
            let at = rng.below(2);
            random_write(&mut owners[at], &mut rng, now);
            match rng.below(12) {
                0 => state.install(owners[at].export("t", now), usize::MAX, now).unwrap(),
                1 => state.disown(epoch),
                2 => {
                    let full = state.install(owners[at].export("t", now), 0, now);
                    assert!(full.is_ok() || state.is_refused() && keys_of(&state).is_empty());
                }
                _ => {
                    let after = state.position().sequence;
                    if let Some(batch) = changes_after(&owners[at], after, usize::MAX, now) {
                        let applied = state.apply(after, batch, usize::MAX, now);
                        assert!(matches!(applied, Ok(()) | Err(ReplicaError::OtherEpoch)), "{applied:?}");
                    }
                }
            }
            for view in &mut views {
                if rng.below(3) == 0 {
                    view.read(&state);
                    view.check(&state);
                }
            }
        }
    }
}

#[test]
fn replica_rejects_writes_and_does_not_expire_by_its_own_clock() {
    let now = Instant::now();
    let mut owner = KeyedState::new(7);
    let write = KeyWrite::set("a", "1").with_ttl(Duration::from_secs(1));
    owner.write(&write, LIMITS, now).unwrap();
    let mut replica = replica_of(&owner, now);
    assert_eq!(replica.write(&write, LIMITS, now), Err(KeyError::NotOwner));
    let late = now + Duration::from_secs(2);
    assert!(!replica.expire(late, 8) && replica.get("a").is_some() && replica.next_due().is_none());
    assert!(owner.expire(late, 8));
    replica.apply(1, changes_after(&owner, 1, 1, late).unwrap(), usize::MAX, late).unwrap();
    assert!(replica.get("a").is_none() && replica.position() == owner.position());
}

#[test]
fn replica_beyond_the_memory_limit_has_no_keys() {
    let now = Instant::now();
    let mut owner = KeyedState::new(7);
    let mut replica = replica_of(&owner, now);
    owner.write(&KeyWrite::set("a", "1"), LIMITS, now).unwrap();
    owner.write(&KeyWrite::set("b", "2"), LIMITS, now).unwrap();
    let first = changes_after(&owner, 0, 1, now).unwrap();
    replica.apply(0, first, 300, now).unwrap();
    let second = changes_after(&owner, 1, usize::MAX, now).unwrap();
    assert_eq!(replica.apply(1, second.clone(), 200, now), Err(ReplicaError::ServerFull));
    assert!(replica.is_refused() && keys_of(&replica).is_empty());
    assert_eq!(replica.apply(1, second, 900, now), Err(ReplicaError::OtherEpoch), "it needs a snapshot");
    replica.install(owner.export("t", now), 900, now).unwrap();
    assert!(!replica.is_refused() && keys_of(&replica) == keys_of(&owner));
}

#[test]
fn malformed_changes_are_rejected() {
    let now = Instant::now();
    let owner = KeyedState::new(7);
    let change = |key: &str, version| KeySnapshot {
        key: key.to_owned(),
        version,
        value: Some(Bytes::from_static(b"1")),
        ..KeySnapshot::default()
    };
    let changes = |keys: Vec<KeySnapshot>| KeyedSnapshot {
        topic: "t".to_owned(),
        position: Position { epoch: 7, sequence: 3 },
        forgotten: 0,
        keys,
        recent: Vec::new(),
    };
    for keys in [
        vec![change("a", 2), change("b", 2)],
        vec![change("a", 4)],
        vec![change("a b\n", 1)],
        vec![change("", 1)],
        vec![change("a", 2), change("b", 1)],
    ] {
        let mut replica = replica_of(&owner, now);
        let before = replica.position();
        assert_eq!(replica.apply(0, changes(keys.clone()), usize::MAX, now), Err(ReplicaError::Malformed));
        assert_eq!(replica.install(changes(keys), usize::MAX, now), Err(ReplicaError::Malformed));
        assert_eq!(replica.position(), before);
    }
}
