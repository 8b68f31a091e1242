//! Topics of the table whose keys another program has.

use super::{KeyedTable, Notifier};
use crate::topics::keyed::state::KeyedState;

/// Replicas may exceed the memory limit by this part of it. Servers count the same keys, but not at the same time: keys
/// that fit into one server usually fit into the others.
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
}
