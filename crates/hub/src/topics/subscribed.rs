//! The number of topics and patterns with subscribers.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
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
    state: Mutex<SubscribedForms>,
    /// Names are chosen by clients, so the hash is keyed.
    hash: RandomState,
}

#[derive(Debug, Default)]
struct SubscribedForms {
    /// The hash of the public name, with the bit of the form in place of the last four bits: there may be as many topics as
    /// connections.
    forms: HashSet<u64>,
    names: usize,
}

/// The bits of a hash that are replaced by a form.
const FORM_BITS: u64 = 0xF;

impl SubscribedForms {
    /// Whether a name has subscribers in any form.
    fn contains(&self, name: u64) -> bool {
        [1, 2, 4, 8].into_iter().any(|form| self.forms.contains(&(name | form)))
    }
}

impl SubscribedTopics {
    pub(crate) fn len(&self) -> usize {
        self.lock().names
    }

    /// The hash of a name, without the bits of its form.
    fn hash_of(&self, name: &str) -> u64 {
        self.hash.hash_one(name) & !FORM_BITS
    }

    fn lock(&self) -> MutexGuard<'_, SubscribedForms> {
        self.state.lock()
    }
}

impl SubscriptionObserver for SubscribedTopics {
    fn subscribed(&self, name: &Arc<str>) {
        let Some((name, form)) = public_form(name) else { return };
        let name = self.hash_of(name);
        let mut state = self.lock();
        state.names += usize::from(!state.contains(name));
        state.forms.insert(name | u64::from(form));
    }

    fn unsubscribed(&self, name: &Arc<str>) {
        let Some((name, form)) = public_form(name) else { return };
        let name = self.hash_of(name);
        let mut state = self.lock();
        let is_removed = state.forms.remove(&(name | u64::from(form)));
        if is_removed && !state.contains(name) {
            state.names -= 1;
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
