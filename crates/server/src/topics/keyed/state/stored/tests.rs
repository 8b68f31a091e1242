use std::cell::{Cell, RefCell};

use super::*;
use crate::topics::keyed::config::KeyedConfig;
use crate::topics::keyed::log::KeyLogError;
use crate::topics::keyed::write::KeyCondition;

const LIMITS: WriteLimits = WriteLimits {
    config: KeyedConfig {
        keys: 3,
        value_bytes: 64,
        topic_bytes: usize::MAX,
        total_bytes: usize::MAX,
        client_bytes: usize::MAX,
    },
    left: usize::MAX,
    client_left: usize::MAX,
};

/// A log that assigns the next sequence.
#[derive(Default)]
struct RecordedChanges {
    last: Cell<u64>,
    appended: RefCell<Vec<(u64, String, bool)>>,
    is_full: Cell<bool>,
}

impl RecordedChanges {
    fn append(&self, change: &LoggedChange<'_>) -> Result<u64, KeyError> {
        if self.is_full.get() {
            return Err(KeyError::Log(KeyLogError::Busy));
        }
        self.last.set(self.last.get() + 1);
        let entry = (change.ticket, change.key.to_owned(), change.value.is_some());
        self.appended.borrow_mut().push(entry);
        Ok(self.last.get())
    }

    fn write(&self, state: &mut KeyedState, write: &KeyWrite, now: Instant) -> Result<KeyWritten, KeyError> {
        state.write_to_log(write, LIMITS, now, &|change| self.append(change))
    }
}

fn stored() -> (KeyedState, RecordedChanges, Instant) {
    let mut state = KeyedState::new(7);
    state.store();
    (state, RecordedChanges::default(), Instant::now())
}

fn version(state: &KeyedState, key: &str) -> Option<u64> {
    state.get(key).map(|change| change.version())
}

#[test]
fn change_is_visible_once_it_is_stored() {
    let (mut state, log, now) = stored();
    let written = log.write(&mut state, &KeyWrite::set("a", "1"), now).unwrap();
    assert_eq!((written.position, written.pending), (Position { epoch: 7, sequence: 1 }, Some(1)));
    assert_eq!((state.get("a"), state.position().sequence), (None, 0));
    state.commit(1, now);
    assert_eq!((version(&state, "a"), state.position().sequence), (Some(1), 1));
    // The log has other records in between.
    log.last.set(9);
    log.write(&mut state, &KeyWrite::delete("a"), now).unwrap();
    assert_eq!(version(&state, "a"), Some(1));
    state.commit(2, now);
    assert_eq!((state.get("a"), state.position().sequence), (None, 10));
}

#[test]
fn conditions_and_limits_see_pending_changes() {
    let (mut state, log, now) = stored();
    let if_new = |key: &str| KeyWrite::set(key, "1").with_condition(KeyCondition::IfNew);
    log.write(&mut state, &if_new("a"), now).unwrap();
    assert_eq!(log.write(&mut state, &if_new("a"), now), Err(KeyError::Exists(1)));
    let at = KeyWrite::set("a", "2").with_condition(KeyCondition::Version(1));
    assert_eq!(log.write(&mut state, &at, now).unwrap().position.sequence, 2);
    assert_eq!(log.write(&mut state, &at, now), Err(KeyError::OtherVersion(2)));
    log.write(&mut state, &KeyWrite::delete("a"), now).unwrap();
    let exists = KeyWrite::set("a", "3").with_condition(KeyCondition::IfExists);
    assert_eq!(log.write(&mut state, &exists, now), Err(KeyError::Missing));
    // The removal of a key that is being removed waits for it.
    let again = log.write(&mut state, &KeyWrite::delete("a"), now).unwrap();
    assert_eq!((again.changed, again.pending), (false, Some(3)));
    for key in ["b", "c"] {
        log.write(&mut state, &if_new(key), now).unwrap();
    }
    assert_eq!(log.write(&mut state, &if_new("d"), now), Err(KeyError::TooManyKeys(3)));
    (1..=5).for_each(|ticket| state.commit(ticket, now));
    assert_eq!(state.len(), 2);
    log.write(&mut state, &if_new("d"), now).unwrap();
    assert_eq!(log.write(&mut state, &if_new("e"), now), Err(KeyError::TooManyKeys(3)));
}

#[test]
fn change_that_is_not_stored_has_no_effect() {
    let (mut state, log, now) = stored();
    log.write(&mut state, &KeyWrite::set("a", "1"), now).unwrap();
    state.commit(1, now);
    let bytes = state.bytes();
    log.write(&mut state, &KeyWrite::set("a", "2"), now).unwrap();
    log.write(&mut state, &KeyWrite::set("b", "2"), now).unwrap();
    assert!(state.bytes() > bytes);
    state.abort(2, now);
    state.abort(3, now);
    assert_eq!((version(&state, "a"), state.get("b"), state.bytes()), (Some(1), None, bytes));
    // The log assigns the offsets of failed appends again.
    log.last.set(1);
    let condition = KeyWrite::set("a", "3").with_condition(KeyCondition::Version(1));
    assert_eq!(log.write(&mut state, &condition, now).unwrap().position.sequence, 2);
    log.is_full.set(true);
    let full = log.write(&mut state, &KeyWrite::set("c", "4"), now);
    assert_eq!(full, Err(KeyError::Log(KeyLogError::Busy)));
    state.commit(4, now);
    assert_eq!((version(&state, "a"), state.get("c")), (Some(2), None));
}

#[test]
fn repeated_write_waits_for_the_first() {
    let (mut state, log, now) = stored();
    let write = KeyWrite::set("a", "1").with_idempotency_key("one");
    let first = log.write(&mut state, &write, now).unwrap();
    let again = log.write(&mut state, &write, now).unwrap();
    assert_eq!((again.position, again.repeated, again.pending), (first.position, true, first.pending));
    state.commit(1, now);
    let again = log.write(&mut state, &write, now).unwrap();
    assert_eq!((again.position, again.repeated, again.pending), (first.position, true, None));
    assert_eq!(log.last.get(), 1);
}

#[test]
fn expiry_is_a_removal_in_the_log() {
    let (mut state, log, now) = stored();
    let second = Duration::from_secs(1);
    log.write(&mut state, &KeyWrite::set("a", "1").with_ttl(second), now).unwrap();
    state.commit(1, now);
    let due = now + second;
    assert_eq!(state.next_due(), Some(due));
    let expire = |state: &mut KeyedState, at| {
        state.expire_to_log(at, &|change| log.append(change));
        state.expire(at, 3);
    };
    log.is_full.set(true);
    expire(&mut state, due);
    log.is_full.set(false);
    assert_eq!((version(&state, "a"), state.next_due()), (Some(1), Some(due + RETRY)));
    expire(&mut state, due + RETRY);
    expire(&mut state, due + RETRY);
    assert_eq!(log.appended.borrow().last().cloned(), Some((2, "a".to_owned(), false)));
    // It is expired for conditions, and visible until its removal is stored.
    let if_new = KeyWrite::set("a", "2").with_condition(KeyCondition::IfNew);
    assert!(log.write(&mut state, &if_new, due + RETRY).is_ok());
    state.abort(2, due + RETRY);
    assert_eq!(version(&state, "a"), Some(1));
    state.commit(3, due + RETRY);
    assert_eq!(version(&state, "a"), Some(3));
    expire(&mut state, due + RETRY * 5);
    assert_eq!((version(&state, "a"), log.last.get()), (Some(3), 3));
}

#[test]
fn stored_topic_with_changes_is_not_removed() {
    let (mut state, log, now) = stored();
    log.write(&mut state, &KeyWrite::set("a", "1"), now).unwrap();
    assert!(!state.remove_if_empty());
    state.commit(1, now);
    log.write(&mut state, &KeyWrite::delete("a"), now).unwrap();
    state.commit(2, now);
    state.expire(now + Duration::from_secs(3_600), 3);
    assert!(state.keys.is_empty() && !state.remove_if_empty());
    let (mut unused, ..) = stored();
    assert!(unused.remove_if_empty());
}

#[test]
fn idempotency_keys_of_pending_changes_count_toward_the_limit() {
    let (mut state, log, now) = stored();
    let write = |number: usize| KeyWrite::set("a", "1").with_idempotency_key(format!("{number:0128}"));
    let named = named_bytes(&write(0));
    let append = |state: &mut KeyedState, number: usize, left: usize| {
        state.write_to_log(&write(number), WriteLimits { left, ..LIMITS }, now, &|change| log.append(change))
    };
    let value = cost("a", Some(&"1".into()));
    let full = Err(KeyError::ServerFull(usize::MAX));
    assert_eq!(append(&mut state, 0, value + named - 1), full);
    assert!(append(&mut state, 0, value + named).is_ok());
    assert_eq!(state.bytes(), value + named);
    state.commit(1, now);
    assert_eq!(state.bytes(), value + named);
    // The oldest make space for others of the same topic.
    assert!(append(&mut state, 1, 0).is_ok());
    state.commit(2, now);
    assert_eq!(state.bytes(), value + named);
    assert!(append(&mut state, 1, 0).unwrap().repeated);
    // A removal is accepted in any case.
    let removal = KeyWrite::delete("a").with_idempotency_key("x");
    let limits = WriteLimits { left: 0, ..LIMITS };
    assert!(state.write_to_log(&removal, limits, now, &|change| log.append(change)).unwrap().changed);
}

#[test]
fn pending_changes_count_toward_the_share_of_their_client() {
    let (mut state, log, now) = stored();
    let write = |key: &'static str| KeyWrite::set(key, "12345").with_client(NonZeroU64::MIN);
    let changed = |state: &mut KeyedState| -> isize {
        let shares = state.take_shares();
        assert!(shares.iter().all(|(client, _)| *client == NonZeroU64::MIN));
        shares.iter().map(|(_, bytes)| bytes).sum()
    };
    let cost = isize::try_from(super::super::KEY_COST + 1 + 5).unwrap();
    log.write(&mut state, &write("a"), now).unwrap();
    assert_eq!(changed(&mut state), cost);
    log.write(&mut state, &write("b"), now).unwrap();
    assert_eq!(changed(&mut state), cost);
    state.abort(2, now);
    assert_eq!(changed(&mut state), -cost);
    // The key counts in the place of its change, and the topic.
    state.commit(1, now);
    assert_eq!(changed(&mut state), isize::try_from(super::super::TOPIC_COST).unwrap());
}
