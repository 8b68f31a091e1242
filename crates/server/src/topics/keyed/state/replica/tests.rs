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

fn owner(epoch: u64) -> KeyedState {
    let mut state = KeyedState::new(1);
    state.own(epoch).unwrap();
    state
}

fn replica_of(owner: &KeyedState, now: Instant) -> KeyedState {
    let mut replica = KeyedState::new(2);
    replica.set_role(KeyRole::Unowned);
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
        let mut owner = owner(7);
        let mut replica = replica_of(&owner, now);
        let mut sent: Vec<(u64, KeyedSnapshot)> = Vec::new();
        let mut published = 0;
        for _ in 0..200 {
            now += Duration::from_millis(rng.below(200) as u64);
            random_write(&mut owner, &mut rng, now);
            if rng.below(3) == 0 {
                let batch = owner.export_changes("t", published, 1 + rng.below(900), now).unwrap();
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
        let rest = owner.export_changes("t", replica.position().sequence, usize::MAX, now);
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
fn readers_of_a_replica_see_one_state_also_when_the_owner_changes() {
    for seed in 0..100 {
        let (mut rng, now) = (Rng::new(seed), Instant::now());
        let mut owners = [owner(10), owner(11)];
        let mut state = replica_of(&owners[0], now);
        let mut views = [View::default(), View::default()];
        for epoch in 20..220 {
            let at = rng.below(2);
            random_write(&mut owners[at], &mut rng, now);
            match rng.below(12) {
                0 => state.install(owners[at].export("t", now), usize::MAX, now).unwrap(),
                1 => {
                    let from = state.position();
                    state.adopt(epoch).unwrap();
                    assert_eq!(state.position().sequence, from.sequence);
                }
                2 => {
                    state.own(epoch).unwrap();
                    random_write(&mut state, &mut rng, now);
                    state.set_role(KeyRole::Replica);
                }
                3 => state.disown(epoch),
                4 => {
                    let full = state.install(owners[at].export("t", now), 0, now);
                    assert!(full.is_ok() || state.is_refused() && keys_of(&state).is_empty());
                }
                _ => {
                    let after = state.position().sequence;
                    if let Some(batch) = owners[at].export_changes("t", after, usize::MAX, now) {
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
    let mut owner = owner(7);
    let write = KeyWrite::set("a", "1").with_ttl(Duration::from_secs(1));
    owner.write(&write, LIMITS, now).unwrap();
    let mut replica = replica_of(&owner, now);
    assert_eq!(replica.write(&write, LIMITS, now), Err(KeyError::NotOwner));
    let late = now + Duration::from_secs(2);
    assert!(!replica.expire(late, 8) && replica.get("a").is_some() && replica.next_due().is_none());
    // Its successor expires it.
    replica.own(8).unwrap();
    assert!(replica.next_due().is_some_and(|due| due <= late));
    assert!(replica.expire(late, 8) && replica.get("a").is_none());
    assert_eq!(replica.position(), Position { epoch: 8, sequence: 2 });
}

#[test]
fn replica_beyond_the_memory_limit_has_no_keys() {
    let now = Instant::now();
    let mut owner = owner(7);
    let mut replica = replica_of(&owner, now);
    owner.write(&KeyWrite::set("a", "1"), LIMITS, now).unwrap();
    owner.write(&KeyWrite::set("b", "2"), LIMITS, now).unwrap();
    let first = owner.export_changes("t", 0, 1, now).unwrap();
    replica.apply(0, first, 300, now).unwrap();
    let second = owner.export_changes("t", 1, usize::MAX, now).unwrap();
    assert_eq!(replica.apply(1, second.clone(), 200, now), Err(ReplicaError::ServerFull));
    assert!(replica.is_refused() && keys_of(&replica).is_empty());
    assert_eq!(replica.apply(1, second, 900, now), Err(ReplicaError::OtherEpoch), "it needs a snapshot");
    replica.install(owner.export("t", now), 900, now).unwrap();
    assert!(!replica.is_refused() && keys_of(&replica) == keys_of(&owner));
}

#[test]
fn malformed_changes_are_rejected() {
    let now = Instant::now();
    let owner = owner(7);
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
