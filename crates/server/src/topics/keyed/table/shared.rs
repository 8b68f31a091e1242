//! Topics of the table that several servers share.

use std::sync::atomic::Ordering;

use super::{KeyedTable, Notifier};
use crate::topics::keyed::state::KeyedState;
use crate::topics::keyed::state::replica::KeyRole;
use crate::topics::keyed::topic::KeyedTopic;

/// Replicas may exceed the memory limit by this part of it. Servers count the same keys, but not at the same time: a
/// write that the owner has accepted usually fits.
const REPLICA_SLACK: usize = 8;

impl KeyedTable {
    pub(crate) fn bytes_left_for_replica(&self, topic: &str, state: &KeyedState) -> usize {
        let total = self.config.total_bytes;
        self.bytes_left(total.saturating_add(total / REPLICA_SLACK), topic, state)
    }

    /// Changes a topic, which is created if there is none, and notifies its subscribers.
    pub(crate) fn change_shared<T>(
        &self,
        name: &str,
        notifier: Notifier<'_>,
        mut change: impl FnMut(&mut KeyedState) -> T,
    ) -> T {
        loop {
            let topic = self.find_or_create(name, notifier.epochs);
            let changed = self.change(&topic, |state| {
                let before = state.cursor();
                let result = change(state);
                (result, state.cursor() != before, state.ask())
            });
            let Some((result, has_changed, is_asked)) = changed else { continue };
            if has_changed {
                self.notify(&topic, notifier.posts);
            }
            if is_asked {
                self.ask_home(&topic, notifier.posts);
            }
            return result;
        }
    }

    /// Notifies the replication of a topic that this server owns.
    pub(crate) fn note_owned_change(&self, topic: &KeyedTopic) {
        let Some(replication) = &self.replication else { return };
        if topic.lock().role() == KeyRole::Owner && !topic.is_noted.swap(true, Ordering::SeqCst) {
            replication.0.changed(&topic.name);
        }
    }

    pub(crate) fn release_owned(&self, name: &str, notifier: Notifier<'_>) -> bool {
        let Some(topic) = self.find(name) else { return true };
        let is_released = !topic.has_subscribers()
            && self.change(&topic, |state| {
                let is_empty = state.is_owned_and_empty();
                if is_empty {
                    state.set_role(KeyRole::Unowned);
                }
                is_empty
            }) != Some(false);
        if is_released {
            self.release(&topic, notifier.epochs);
        }
        is_released
    }
}
