//! The topics and patterns with subscribers, by their public names.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::fmt::Debug;
use std::hash::BuildHasher as _;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use sinews_server::SubscriptionObserver;

use super::encodings::Encodings;

/// Observes which client topics and patterns have subscribers.
pub(crate) trait TopicObserver: Debug + Send + Sync {
    /// A topic or pattern has a first subscriber in an encoding, which is a bit. May be repeated.
    fn subscribed(&self, name: &str, encoding: u8);

    /// A topic or pattern has no subscriber left in an encoding. May be repeated.
    fn unsubscribed(&self, name: &str, encoding: u8);
}

/// Reports the topics of the server below to an observer, by their public names.
#[derive(Debug)]
pub(super) struct PublicNames {
    pub(super) encodings: Arc<Encodings>,
    pub(super) observer: Arc<dyn TopicObserver>,
}

impl SubscriptionObserver for PublicNames {
    fn subscribed(&self, topic: &Arc<str>) {
        if let Some((name, encoding)) = self.encodings.split(topic) {
            self.observer.subscribed(name, encoding);
        }
    }

    fn unsubscribed(&self, topic: &Arc<str>) {
        if let Some((name, encoding)) = self.encodings.split(topic) {
            self.observer.unsubscribed(name, encoding);
        }
    }
}

/// Counts topics and patterns with subscribers, each once in all encodings.
#[derive(Debug, Default)]
pub(crate) struct SubscribedTopics {
    state: Mutex<SubscribedNames>,
    /// Names are chosen by clients, so the hash is keyed.
    hash: RandomState,
}

#[derive(Debug, Default)]
struct SubscribedNames {
    /// Each public name's hash, with the bit of the encoding in place of the last bits: there may be as many topics as
    /// connections.
    encoded: HashSet<u64>,
    names: usize,
}

/// The hash bits that an encoding's bit replaces.
const ENCODING_BITS: u64 = (1 << Encodings::MAX) - 1;

impl SubscribedNames {
    /// Whether a name has subscribers in any encoding.
    fn contains(&self, name: u64) -> bool {
        (0..Encodings::MAX).any(|number| self.encoded.contains(&(name | 1 << number)))
    }
}

impl SubscribedTopics {
    pub(crate) fn len(&self) -> usize {
        self.lock().names
    }

    /// Returns a name's hash, without its encoding's bits.
    fn hash_name(&self, name: &str) -> u64 {
        self.hash.hash_one(name) & !ENCODING_BITS
    }

    fn lock(&self) -> MutexGuard<'_, SubscribedNames> {
        self.state.lock()
    }
}

impl TopicObserver for SubscribedTopics {
    fn subscribed(&self, name: &str, encoding: u8) {
        let name = self.hash_name(name);
        let mut state = self.lock();
        state.names += usize::from(!state.contains(name));
        state.encoded.insert(name | u64::from(encoding));
    }

    fn unsubscribed(&self, name: &str, encoding: u8) {
        let name = self.hash_name(name);
        let mut state = self.lock();
        let is_removed = state.encoded.remove(&(name | u64::from(encoding)));
        if is_removed && !state.contains(name) {
            state.names -= 1;
        }
    }
}

#[cfg(all(test, feature = "pusher"))]
mod tests;
