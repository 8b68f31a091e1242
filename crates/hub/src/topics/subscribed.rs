//! The number of topics and patterns with subscribers.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sinews_server::SubscriptionObserver;

use super::TopicForm;

/// The public name of a topic or pattern of the server below, and a bit for its form; `None` for topics that are no topics
/// of clients.
pub(crate) fn public_form(topic: &str) -> Option<(&str, u8)> {
    let name = TopicForm::name(topic)?;
    let form = match topic.as_bytes() {
        [b'r', ..] => 1,
        [b'j', ..] => 2,
        [b'p' | b'$', ..] => 4,
        _ => 8,
    };
    Some((name, form))
}

/// Counts topics and patterns with subscribers, each once in all forms.
#[derive(Debug, Default)]
pub(crate) struct SubscribedTopics {
    /// Forms with subscribers, by the hash of the public name: there may be as many topics as connections. Names are chosen
    /// by clients, so the hash is keyed.
    forms: Mutex<HashMap<u64, u8>>,
    hash: RandomState,
}

impl SubscribedTopics {
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, u8>> {
        self.forms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SubscriptionObserver for SubscribedTopics {
    fn subscribed(&self, name: &Arc<str>) {
        if let Some((name, form)) = public_form(name) {
            *self.lock().entry(self.hash.hash_one(name)).or_default() |= form;
        }
    }

    fn unsubscribed(&self, name: &Arc<str>) {
        let Some((name, form)) = public_form(name) else { return };
        let name = self.hash.hash_one(name);
        let mut forms = self.lock();
        if let Some(known) = forms.get_mut(&name) {
            *known &= !form;
            if *known == 0 {
                forms.remove(&name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_counted_once_in_all_forms() {
        let topics = SubscribedTopics::default();
        for name in ["j.a", "r.a", "r.a", "j.b.*", "m.feed", "p.a"] {
            topics.subscribed(&name.into());
        }
        assert_eq!(topics.len(), 2);
        for (name, left) in [("j.a", 2), ("r.a", 2), ("j.c", 2), ("j.b.*", 1), ("p.a", 0), ("p.a", 0)] {
            topics.unsubscribed(&name.into());
            assert_eq!(topics.len(), left, "{name}");
        }
    }
}
