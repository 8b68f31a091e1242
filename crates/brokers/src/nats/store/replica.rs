//! This node's replica of all keys: one stream's part.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::Message;
use bytes::Bytes;
use sinews_store::{KeyChanges, KeyUpdate, Position, StoredKey, StoredKeys};

use super::subjects::parse_token;
use super::wire::{as_micros, header, number};

/// Marks a key's removal. The server leaves no marker of its own behind it.
pub(super) const REMOVED: (&str, &str) = ("KV-Operation", "PURGE");
/// A marker that the server has left when a key expired.
pub(super) const MARKER: &str = "Nats-Marker-Reason";
/// Time to live in microseconds, from the time when the server has stored the message: the writer's view of the server's
/// clock may be late.
pub(super) const TTL: &str = "Sinews-TTL";
/// Time for which removals are remembered.
pub(super) const REMOVALS: Duration = Duration::from_secs(60);
/// Less than [`REMOVALS`]: a replica without messages for longer may have missed a removal.
pub(super) const REMOVALS_SAFE: Duration = Duration::from_secs(50);
/// Time for which a topic without keys has a position.
const EMPTY_TOPICS: Duration = Duration::from_secs(3_600);
/// Keys that a node removes at once when they have expired.
const EXPIRED_MAX: usize = 256;
/// Changes whose predecessors are remembered.
const RECENT_MAX: usize = 4_096;

/// A message in a key stream.
pub(super) struct KeyMessage {
    topic: String,
    key: Arc<str>,
    pub(super) sequence: u64,
    stored_at: u64,
    value: Option<Bytes>,
    expires: Option<u64>,
}

/// A key's last message.
#[derive(Clone, Debug)]
struct ReplicaKey {
    version: u64,
    stored_at: u64,
    value: Option<Bytes>,
    expires: Option<u64>,
}

/// A key that has expired, and was not removed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExpiredKey {
    pub(super) topic: Box<str>,
    pub(super) key: Arc<str>,
    pub(super) version: u64,
}

/// What is known about a key before a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KnownKey {
    /// Sequence of its last message, 0 if it has none.
    pub(super) sequence: u64,
    /// Bytes of its value; `None` if it was removed.
    pub(super) bytes: Option<u64>,
    pub(super) expires: Option<u64>,
}

#[derive(Default)]
struct ReplicaTopic {
    top: u64,
    changed_at: u64,
    keys: BTreeMap<Arc<str>, ReplicaKey>,
    /// The key of each version.
    versions: BTreeMap<u64, Arc<str>>,
    /// Highest forgotten removal.
    forgotten: u64,
    /// Keys with a value, and the bytes of keys and values.
    count: u64,
    bytes: u64,
}

/// Keys in one stream.
#[derive(Default)]
pub(super) struct KeyReplica {
    pub(super) epoch: Cell<u64>,
    /// Last sequence that was applied.
    pub(super) applied: Cell<u64>,
    /// Removals up to this sequence may be unknown.
    floor: Cell<u64>,
    topics: RefCell<HashMap<Box<str>, ReplicaTopic>>,
    /// Versions, and the sequences before them in their topics.
    recent: RefCell<VecDeque<(u64, u64)>>,
    /// Keys with a time to live, by their expiries and versions.
    expiries: RefCell<BTreeMap<(u64, u64), ExpiredKey>>,
}

impl KnownKey {
    /// Whether the key has a value at this time.
    pub(super) fn is_live(&self, now: u64) -> bool {
        self.bytes.is_some() && self.expires.is_none_or(|expires| expires > now)
    }
}

impl KeyMessage {
    /// Parses a message whose subject begins with this prefix.
    pub(super) fn parse(message: &Message, subjects: &str, sequence: u64, stored_at: u64) -> Option<Self> {
        let (topic, key) = message.subject.strip_prefix(subjects)?.split_once('.')?;
        let is_removed = header(message, REMOVED.0).is_some() || header(message, MARKER).is_some();
        Some(Self {
            topic: parse_token(topic)?,
            key: parse_token(key)?.into(),
            sequence,
            stored_at,
            value: (!is_removed).then(|| message.payload.clone()),
            expires: number(message, TTL).map(|ttl| stored_at.saturating_add(ttl)),
        })
    }
}

impl ReplicaKey {
    fn is_live(&self, now: u64) -> bool {
        self.value.is_some() && self.expires.is_none_or(|expires| expires > now)
    }

    fn change(&self, key: &Arc<str>, now: u64) -> StoredKey {
        let is_live = self.is_live(now);
        StoredKey {
            key: key.clone(),
            version: self.version,
            value: self.value.clone().filter(|_| is_live),
            expiry: self
                .expires
                .filter(|_| is_live)
                .map(|expires| Instant::now() + Duration::from_micros(expires - now)),
        }
    }

    fn size(&self, key: &str) -> u64 {
        self.value.as_ref().map_or(0, |value| (key.len() + value.len()) as u64)
    }
}

impl ReplicaTopic {
    fn set(&mut self, key: Arc<str>, entry: ReplicaKey) {
        self.top = entry.version;
        self.changed_at = entry.stored_at;
        self.versions.insert(entry.version, key.clone());
        self.bytes += entry.size(&key);
        self.count += u64::from(entry.value.is_some());
        if let Some(old) = self.keys.insert(key.clone(), entry) {
            self.uncount(&key, &old);
        }
    }

    fn uncount(&mut self, key: &str, old: &ReplicaKey) {
        self.versions.remove(&old.version);
        self.bytes -= old.size(key);
        self.count -= u64::from(old.value.is_some());
    }
}

impl KeyReplica {
    /// Empties the replica before it is loaded.
    pub(super) fn reset(&self, epoch: u64) {
        self.epoch.set(epoch);
        self.applied.set(0);
        self.topics.borrow_mut().clear();
        self.recent.borrow_mut().clear();
        self.expiries.borrow_mut().clear();
    }

    /// Ends the loading of a replica, at this time of the server: removals that may be forgotten are older than a message
    /// of the last [`REMOVALS_SAFE`].
    pub(super) fn loaded(&self, now: u64, last: u64) {
        let safe = now.saturating_sub(as_micros(REMOVALS_SAFE));
        let topics = self.topics.borrow();
        let entries = topics.values().flat_map(|topic| topic.keys.values());
        let first = entries.filter(|entry| entry.stored_at >= safe).map(|entry| entry.version).min();
        self.floor.set(first.map_or(last, |first| first.saturating_sub(1)));
        self.applied.set(self.applied.get().max(last));
    }

    /// Applies a message. Returns the topic's change.
    pub(super) fn apply(&self, message: KeyMessage, now: u64) -> (String, KeyUpdate) {
        let mut topics = self.topics.borrow_mut();
        let topic = topics.entry(message.topic.as_str().into()).or_default();
        let prev = topic.top;
        let entry = ReplicaKey {
            version: message.sequence,
            stored_at: message.stored_at,
            value: message.value,
            expires: message.expires,
        };
        let change = entry.change(&message.key, now);
        let mut expiries = self.expiries.borrow_mut();
        if let Some((expires, old)) = topic.keys.get(&message.key).and_then(|old| Some((old.expires?, old))) {
            expiries.remove(&(expires, old.version));
        }
        if let Some(expires) = entry.expires.filter(|_| entry.value.is_some()) {
            let (topic, key, version) = (message.topic.as_str().into(), message.key.clone(), entry.version);
            expiries.insert((expires, version), ExpiredKey { topic, key, version });
        }
        topic.set(message.key, entry);
        let mut recent = self.recent.borrow_mut();
        if recent.len() >= RECENT_MAX {
            recent.pop_front();
        }
        recent.push_back((message.sequence, prev));
        self.applied.set(message.sequence);
        let position = Position { epoch: self.epoch.get(), sequence: message.sequence };
        (message.topic, KeyUpdate { position, prev, changes: vec![change], skipped: false })
    }

    /// Takes keys that have expired.
    pub(super) fn take_expired(&self, now: u64) -> Vec<ExpiredKey> {
        let (mut expiries, mut expired) = (self.expiries.borrow_mut(), Vec::new());
        while let Some(first) = expiries.first_entry().filter(|first| first.key().0 <= now)
            && expired.len() < EXPIRED_MAX
        {
            expired.push(first.remove());
        }
        expired
    }

    /// Returns a key that was not removed.
    pub(super) fn expires_again(&self, key: ExpiredKey, at: u64) {
        if self.known(&key.topic, &key.key).sequence == key.version {
            self.expiries.borrow_mut().insert((at, key.version), key);
        }
    }

    /// Forgets old removals.
    pub(super) fn sweep(&self, now: u64) {
        let (removals, empty) = (as_micros(REMOVALS), as_micros(EMPTY_TOPICS));
        self.topics.borrow_mut().retain(|_, topic| {
            let is_old =
                |entry: &ReplicaKey| entry.value.is_none() && entry.stored_at.saturating_add(removals) < now;
            let old: Vec<(Arc<str>, u64)> = topic
                .keys
                .iter()
                .filter(|(_, entry)| is_old(entry))
                .map(|(key, entry)| (key.clone(), entry.version))
                .collect();
            for (key, version) in old {
                topic.keys.remove(&key);
                topic.versions.remove(&version);
                topic.forgotten = topic.forgotten.max(version);
            }
            !topic.keys.is_empty() || topic.changed_at.saturating_add(empty) >= now
        });
    }

    /// The predecessor of a version, if it is known.
    pub(super) fn prev_of(&self, version: u64) -> Option<u64> {
        let recent = self.recent.borrow();
        let found = recent.binary_search_by_key(&version, |(known, _)| *known).ok()?;
        recent.get(found).map(|(_, prev)| *prev)
    }

    pub(super) fn top(&self, topic: &str) -> Option<Position> {
        let sequence = self.topics.borrow().get(topic)?.top;
        Some(Position { epoch: self.epoch.get(), sequence })
    }

    pub(super) fn known(&self, topic: &str, key: &str) -> KnownKey {
        let topics = self.topics.borrow();
        let entry = topics.get(topic).and_then(|topic| topic.keys.get(key));
        entry.map_or_else(KnownKey::default, |entry| KnownKey {
            sequence: entry.version,
            bytes: entry.value.as_ref().map(|value| value.len() as u64),
            expires: entry.expires,
        })
    }

    /// Keys with a value, and the bytes of keys and values.
    pub(super) fn size(&self, topic: &str) -> (u64, u64) {
        self.topics.borrow().get(topic).map_or((0, 0), |topic| (topic.count, topic.bytes))
    }

    /// Keys that have a value.
    pub(super) fn live_keys(&self, topic: &str) -> Vec<Arc<str>> {
        let topics = self.topics.borrow();
        let keys = topics.get(topic).into_iter().flat_map(|topic| &topic.keys);
        keys.filter(|(_, entry)| entry.value.is_some()).map(|(key, _)| key.clone()).collect()
    }

    pub(super) fn page(&self, topic: &str, cursor: Option<&str>, limit: u32, now: u64) -> StoredKeys {
        let topics = self.topics.borrow();
        let Some(topic) = topics.get(topic) else { return StoredKeys::default() };
        let from = cursor.map_or(Bound::Unbounded, Bound::Excluded);
        let mut keys = Vec::new();
        let mut rest =
            topic.keys.range::<str, _>((from, Bound::Unbounded)).filter(|(_, entry)| entry.is_live(now));
        keys.extend(rest.by_ref().take(limit.max(1) as usize).map(|(key, entry)| entry.change(key, now)));
        let last = keys.last().map(|change| Bytes::copy_from_slice(change.key.as_bytes()));
        let cursor = if rest.next().is_some() { last } else { None };
        StoredKeys { position: Some(Position { epoch: self.epoch.get(), sequence: topic.top }), keys, cursor }
    }

    pub(super) fn changes(&self, topic: &str, after: Position, now: u64) -> KeyChanges {
        let topics = self.topics.borrow();
        let Some(topic) = topics.get(topic) else { return KeyChanges::Unknown };
        let position = Position { epoch: self.epoch.get(), sequence: topic.top };
        let is_known = after.epoch == position.epoch
            && after.sequence <= topic.top
            && (after.sequence == topic.top || after.sequence >= self.floor.get().max(topic.forgotten));
        if !is_known {
            return KeyChanges::Unknown;
        }
        let newer = topic.versions.range((Bound::Excluded(after.sequence), Bound::Unbounded));
        let change = |(_, key): (&u64, &Arc<str>)| topic.keys.get(key).map(|entry| entry.change(key, now));
        let changes = newer.filter_map(change).collect();
        KeyChanges::Since(KeyUpdate { position, prev: after.sequence, changes, skipped: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn apply(replica: &KeyReplica, sequence: u64, key: &str, value: Option<&str>, stored_at: u64) -> u64 {
        let message = KeyMessage {
            topic: "t".to_owned(),
            key: key.into(),
            sequence,
            stored_at,
            value: value.map(|value| value.to_owned().into()),
            expires: None,
        };
        replica.apply(message, stored_at).1.prev
    }

    fn changes(replica: &KeyReplica, sequence: u64) -> Option<Vec<u64>> {
        match replica.changes("t", Position { epoch: 7, sequence }, 0) {
            KeyChanges::Since(update) => Some(update.changes.iter().map(|change| change.version).collect()),
            KeyChanges::Unknown => None,
        }
    }

    #[test]
    fn changes_before_a_forgotten_removal_are_unknown() {
        let replica = KeyReplica::default();
        replica.reset(7);
        replica.loaded(0, 0);
        assert_eq!(apply(&replica, 3, "a", Some("1"), SECOND), 0);
        assert_eq!(apply(&replica, 5, "b", Some("1"), SECOND), 3);
        assert_eq!(apply(&replica, 9, "a", None, 2 * SECOND), 5);
        assert_eq!(apply(&replica, 12, "c", Some("1"), 80 * SECOND), 9);
        assert_eq!((changes(&replica, 3), changes(&replica, 5)), (Some(vec![5, 9, 12]), Some(vec![9, 12])));
        replica.sweep(61 * SECOND);
        assert_eq!(changes(&replica, 5), Some(vec![9, 12]));
        replica.sweep(63 * SECOND);
        assert_eq!((changes(&replica, 5), changes(&replica, 9)), (None, Some(vec![12])));
        assert_eq!((changes(&replica, 12), changes(&replica, 13)), (Some(vec![]), None));
        assert_eq!(replica.size("t"), (2, 4));
    }

    #[test]
    fn loaded_replica_knows_the_removals_of_the_last_time_only() {
        let replica = KeyReplica::default();
        replica.reset(7);
        apply(&replica, 3, "a", Some("1"), SECOND);
        apply(&replica, 8, "b", Some("1"), 100 * SECOND);
        apply(&replica, 9, "c", None, 120 * SECOND);
        replica.loaded(140 * SECOND, 9);
        assert_eq!((changes(&replica, 3), changes(&replica, 7)), (None, Some(vec![8, 9])));
        replica.loaded(1_000 * SECOND, 20);
        assert_eq!(
            (changes(&replica, 8), changes(&replica, 9), replica.applied.get()),
            (None, Some(vec![]), 20)
        );
    }

    #[test]
    fn time_to_live_begins_when_the_server_has_stored_the_message() {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert(TTL, "300");
        let message = Message {
            subject: "k.t.key".into(),
            reply: None,
            payload: Bytes::from_static(b"v"),
            headers: Some(headers),
            status: None,
            description: None,
            length: 0,
        };
        let parsed = KeyMessage::parse(&message, "k.", 1, 5_000).expect("the subject has a topic and a key");
        assert_eq!(parsed.expires, Some(5_300));
    }

    #[test]
    fn expired_key_is_no_value_before_its_removal() {
        let replica = KeyReplica::default();
        replica.reset(7);
        let message = KeyMessage {
            topic: "t".to_owned(),
            key: "k".into(),
            sequence: 1,
            stored_at: 0,
            value: Some("v".into()),
            expires: Some(5),
        };
        let begun = Instant::now();
        let update = replica.apply(message, 2).1;
        let left = update.changes[0].expiry.map(|expiry| expiry.saturating_duration_since(begun));
        assert!(left.is_some_and(|left| left >= Duration::from_micros(3) && left < Duration::from_secs(10)));
        assert_eq!(
            (replica.page("t", None, 9, 4).keys.len(), replica.page("t", None, 9, 5).keys.len()),
            (1, 0)
        );
        let known = replica.known("t", "k");
        assert!(known.is_live(4) && !known.is_live(5));
        assert_eq!(replica.take_expired(4), []);
        let expired = ExpiredKey { topic: "t".into(), key: "k".into(), version: 1 };
        assert_eq!(replica.take_expired(5), std::slice::from_ref(&expired));
        replica.expires_again(expired.clone(), 8);
        assert_eq!((replica.take_expired(7), replica.take_expired(8)), (vec![], vec![expired.clone()]));
        // It has another value.
        apply(&replica, 2, "k", Some("w"), 9);
        replica.expires_again(expired, 9);
        assert_eq!(replica.take_expired(9), []);
    }
}
