//! Publications with an idempotency key: the second one within the window has the result of the first.
//!
//! The window is in the process's memory. Publications of durable topics before the start, or by other nodes, are read
//! from their streams. Backends and clients have different keys: see [`client_key`].

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::{Mutex, MutexGuard};
use ring::digest;

use super::stored::AcknowledgedPublication;
use crate::model::problem::{Problem, code, problem};

/// Time that a publication is remembered: longer than a backend retries.
pub(crate) const WINDOW: Duration = Duration::from_secs(300);

/// Maximum remembered publications; the oldest are forgotten first.
const PUBLICATIONS_MAX: usize = 65_536;

/// Limit of their approximate memory in bytes.
const BYTES_MAX: usize = 16 << 20;

/// Approximate memory of a remembered publication besides its name, in bytes.
const PUBLICATION_COST: usize = 192;

/// Longest idempotency key in bytes.
const KEY_MAX: usize = 128;

/// A publication that a stream or the topic store has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredPublication {
    pub(crate) epoch: u64,
    pub(crate) sequence: u64,
    /// An earlier publication had the same idempotency key.
    pub(crate) is_repeated: bool,
}

impl StoredPublication {
    /// A publication as the topic store has acknowledged it; `None`: it was delivered without the store.
    pub(crate) fn acknowledged(publication: AcknowledgedPublication) -> Option<Self> {
        let AcknowledgedPublication::Stored(appended) = publication else { return None };
        let sinews_store::Position { epoch, sequence } = appended.position;
        Some(Self { epoch, sequence, is_repeated: appended.repeated })
    }
}

/// A publication with an idempotency key that was read from a stream.
pub(crate) struct RecentRecord {
    pub(crate) idempotency_key: String,
    pub(crate) sequence: u64,
    /// Time since the publication, by the clock of the node that published it.
    pub(crate) age: Duration,
}

/// A publication's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Published {
    /// Delivered to this many subscriptions. In a cluster: whether it has reached the other nodes.
    Delivered { subscribers: usize, cluster: Option<bool> },
    /// Stored in a durable topic's stream, or in the topic store.
    Stored(StoredPublication),
    /// Delivered while the topic store is away.
    Unstored,
    /// Delivered by an earlier request, perhaps at another node.
    Elsewhere,
}

/// A publication whose result may follow.
#[derive(Clone)]
pub(crate) enum KeyedPublication {
    Done(Published),
    /// An append to a stream. Requests with the same idempotency key wait for the same append.
    Appending(Appending),
}

pub(crate) type Appending = Shared<BoxFuture<'static, Result<Published, Problem>>>;

/// The window's publications with an idempotency key.
#[derive(Default)]
pub(crate) struct RecentPublications(Mutex<Window>);

impl fmt::Debug for RecentPublications {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RecentPublications").field(&self.lock().order.len()).finish()
    }
}

#[derive(Default)]
struct Window {
    /// By topic and idempotency key. A topic has no line break, so the name is unique.
    publications: HashMap<Arc<str>, RecentPublication>,
    /// Names with their publication times, in insertion order.
    order: VecDeque<(Instant, Arc<str>)>,
    bytes: usize,
}

struct RecentPublication {
    publication: KeyedPublication,
    at: Instant,
}

impl RecentPublications {
    /// Returns the earlier publication of a topic and an idempotency key, and `true`; or publishes. For a durable
    /// topic, `epoch` is its stream's epoch: publications to a deleted stream do not count.
    pub(crate) fn publish_once(
        &self,
        topic: &str,
        key: &str,
        epoch: Option<u64>,
        publish: impl FnOnce() -> KeyedPublication,
    ) -> (KeyedPublication, bool) {
        let name = name_of(topic, key);
        let (mut window, now) = (self.lock(), Instant::now());
        window.expire(now);
        if let Some(found) = window.find(&name, epoch, now) {
            return (found.clone(), true);
        }
        // Under the lock, so that of two simultaneous requests one publishes.
        let publication = publish();
        window.insert(name, publication.clone(), now);
        (publication, false)
    }

    /// Returns the earlier publication of a topic and an idempotency key, if there is one.
    pub(crate) fn find(&self, topic: &str, key: &str, epoch: Option<u64>) -> Option<KeyedPublication> {
        let (mut window, now) = (self.lock(), Instant::now());
        window.expire(now);
        window.find(&name_of(topic, key), epoch, now).cloned()
    }

    /// Remembers the publications that were read from a topic's stream with this epoch.
    pub(crate) fn restore(&self, topic: &str, epoch: u64, records: &[RecentRecord]) {
        let (mut window, now) = (self.lock(), Instant::now());
        window.expire(now);
        // The first publication within the window counts, and the records are not in order.
        let mut recent: Vec<_> = records.iter().filter(|record| record.age < WINDOW).collect();
        recent.sort_unstable_by_key(|record| record.sequence);
        for record in recent {
            let name = name_of(topic, &record.idempotency_key);
            if window.find(&name, Some(epoch), now).is_none() {
                let stored = StoredPublication { epoch, sequence: record.sequence, is_repeated: false };
                let at = now.checked_sub(record.age).unwrap_or(now);
                window.insert(name, KeyedPublication::Done(Published::Stored(stored)), at);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Window> {
        self.0.lock()
    }
}

/// Checks an idempotency key's length.
pub(crate) fn check_key(key: &str) -> Result<(), Problem> {
    if key.is_empty() || key.len() > KEY_MAX {
        return Err(problem(code::TOPIC, format!("an idempotency key has 1 to {KEY_MAX} bytes")));
    }
    Ok(())
}

/// Returns a client's idempotency key as the window and the stores have it: no client can use another user's key, or a
/// backend's. Clients without a user share their keys.
pub(crate) fn client_key(user: Option<&str>, key: &str) -> String {
    let mut hash = digest::Context::new(&digest::SHA256);
    let length = user.map_or(u64::MAX, |user| user.len() as u64);
    hash.update(&length.to_le_bytes());
    hash.update(user.unwrap_or_default().as_bytes());
    hash.update(key.as_bytes());
    format!("~{}", URL_SAFE_NO_PAD.encode(hash.finish()))
}

fn name_of(topic: &str, key: &str) -> Arc<str> {
    format!("{topic}\n{key}").into()
}

impl KeyedPublication {
    pub(crate) fn appending(
        append: impl Future<Output = Result<Published, Problem>> + Send + 'static,
    ) -> Self {
        Self::Appending(append.boxed().shared())
    }

    /// Returns the result when it is known.
    pub(crate) async fn result(self) -> Result<Published, Problem> {
        match self {
            Self::Done(published) => Ok(published),
            Self::Appending(append) => append.await,
        }
    }

    /// Whether a request with the same idempotency key has this result. After a failed append, and after the stream's
    /// deletion, it publishes again.
    fn counts(&self, epoch: Option<u64>) -> bool {
        let result = match self {
            Self::Done(published) => Some(Ok(published)),
            Self::Appending(append) => append.peek().map(Result::as_ref),
        };
        match result {
            Some(Err(_)) => false,
            Some(Ok(Published::Stored(stored))) => epoch.is_none_or(|epoch| epoch == stored.epoch),
            Some(Ok(_)) | None => true,
        }
    }
}

impl Window {
    fn find(&self, name: &str, epoch: Option<u64>, now: Instant) -> Option<&KeyedPublication> {
        let RecentPublication { publication, at } = self.publications.get(name)?;
        (now.saturating_duration_since(*at) < WINDOW && publication.counts(epoch)).then_some(publication)
    }

    fn insert(&mut self, name: Arc<str>, publication: KeyedPublication, at: Instant) {
        self.bytes += cost(&name);
        self.order.push_back((at, name.clone()));
        self.publications.insert(name, RecentPublication { publication, at });
        while self.order.len() > PUBLICATIONS_MAX || self.bytes > BYTES_MAX {
            self.pop();
        }
    }

    fn expire(&mut self, now: Instant) {
        while self.order.front().is_some_and(|(at, _)| now.saturating_duration_since(*at) >= WINDOW) {
            self.pop();
        }
    }

    fn pop(&mut self) {
        let Some((at, name)) = self.order.pop_front() else { return };
        self.bytes -= cost(&name);
        // A later publication may have replaced it.
        if self.publications.get(&name).is_some_and(|recent| recent.at == at) {
            self.publications.remove(&name);
        }
    }
}

fn cost(name: &str) -> usize {
    PUBLICATION_COST + name.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered(subscribers: usize) -> KeyedPublication {
        KeyedPublication::Done(Published::Delivered { subscribers, cluster: None })
    }

    fn stored(epoch: u64, sequence: u64) -> Published {
        Published::Stored(StoredPublication { epoch, sequence, is_repeated: false })
    }

    fn result(publication: &KeyedPublication) -> Result<Published, Problem> {
        match publication {
            KeyedPublication::Done(published) => Ok(*published),
            KeyedPublication::Appending(append) => append.clone().now_or_never().expect("the append is done"),
        }
    }

    #[test]
    fn second_publication_has_the_result_of_the_first() {
        let recent = RecentPublications::default();
        let publish = |topic: &str, key: &str, subscribers| {
            let (publication, repeated) = recent.publish_once(topic, key, None, || delivered(subscribers));
            (result(&publication).unwrap(), repeated)
        };
        let of = |subscribers| Published::Delivered { subscribers, cluster: None };
        assert_eq!(publish("t", "k", 1), (of(1), false));
        assert_eq!(publish("t", "k", 2), (of(1), true));
        assert_eq!(publish("u", "k", 3), (of(3), false));
        assert_eq!(publish("t", "l", 4), (of(4), false));
        let late = Instant::now() + WINDOW;
        recent.lock().expire(late);
        assert_eq!(publish("t", "k", 5), (of(5), false));
        for bad in ["", &"k".repeat(129)] {
            assert_eq!(check_key(bad).unwrap_err().code, 422);
        }
        check_key(&"k".repeat(128)).unwrap();
    }

    #[test]
    fn failed_append_is_not_remembered() {
        let recent = RecentPublications::default();
        let append = |outcome: Result<Published, Problem>| {
            let append = || KeyedPublication::appending(std::future::ready(outcome));
            let (publication, repeated) = recent.publish_once("t", "k", Some(1), append);
            (result(&publication), repeated)
        };
        assert!(append(Err(problem(code::STORE, "full"))).0.is_err());
        assert_eq!(append(Ok(stored(1, 2))), (Ok(stored(1, 2)), false));
        assert_eq!(append(Err(problem(code::STORE, "full"))), (Ok(stored(1, 2)), true));
    }

    #[test]
    fn publication_to_a_deleted_stream_is_not_remembered() {
        let recent = RecentPublications::default();
        let publish = |epoch, sequence| {
            let append = || KeyedPublication::Done(stored(epoch, sequence));
            let (publication, repeated) = recent.publish_once("t", "k", Some(epoch), append);
            (result(&publication).unwrap(), repeated)
        };
        assert_eq!(publish(1, 7), (stored(1, 7), false));
        assert_eq!(publish(1, 8), (stored(1, 7), true));
        assert_eq!(publish(2, 1), (stored(2, 1), false));
    }

    #[test]
    fn clients_do_not_share_keys_of_other_users_or_backends() {
        let users = [None, Some(""), Some("a"), Some("ab"), Some("b")];
        let keys = users.iter().flat_map(|user| ["", "a", "b", "bc"].map(|key| client_key(*user, key)));
        let mut keys: Vec<String> = keys.collect();
        assert!(keys.iter().all(|key| key.starts_with('~') && check_key(key).is_ok()));
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 20, "ab, c is not a, bc");
        assert_eq!(client_key(Some("a"), "k"), client_key(Some("a"), "k"));
    }

    #[test]
    fn memory_is_bounded() {
        let recent = RecentPublications::default();
        let key = "k".repeat(120);
        for at in 0..PUBLICATIONS_MAX + 10 {
            recent.publish_once(&format!("{at:0200}"), &key, None, || delivered(0));
        }
        let window = recent.lock();
        assert!(window.bytes <= BYTES_MAX && window.publications.len() == window.order.len());
        assert!(window.order.len() < PUBLICATIONS_MAX, "names are long");
    }
}
