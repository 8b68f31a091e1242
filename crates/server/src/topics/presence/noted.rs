//! Topics and members that have changed since they were last taken.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// Maximum number of topics and members with a change that is not taken; more are reported as an overflow.
const CHANGES_MAX: usize = 262_144;

/// Topics and members that changed since they were last taken. Bounded by the state and by [`CHANGES_MAX`], not by the
/// rate of changes.
pub(super) struct NotedChanges {
    topics: HashMap<Arc<str>, HashSet<Arc<str>>>,
    count: usize,
    overflowed: bool,
    notify: Box<dyn Fn() + Send + Sync>,
}

/// Changes that were taken.
pub(super) struct TakenNotes {
    /// Topics, and their changed members.
    pub(super) topics: Vec<(Arc<str>, Vec<Arc<str>>)>,
    pub(super) overflowed: bool,
    /// More changes wait.
    pub(super) more: bool,
}

impl fmt::Debug for NotedChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotedChanges").field("count", &self.count).finish_non_exhaustive()
    }
}

impl NotedChanges {
    /// `notify` is called when the first change waits.
    pub(super) fn new(notify: Box<dyn Fn() + Send + Sync>) -> Self {
        Self { topics: HashMap::new(), count: 0, overflowed: false, notify }
    }

    /// Notes the change of a topic, and of a member of it.
    pub(super) fn note(&mut self, topic: &Arc<str>, id: Option<&Arc<str>>) {
        if self.overflowed {
            return;
        }
        if self.count >= CHANGES_MAX {
            (self.topics, self.count, self.overflowed) = (HashMap::new(), 0, true);
            return;
        }
        let was_empty = self.topics.is_empty();
        let before = self.topics.len();
        let members = self.topics.entry(topic.clone()).or_default();
        let is_new = id.is_some_and(|id| !members.contains(id) && members.insert(id.clone()));
        self.count += self.topics.len() - before + usize::from(is_new);
        if was_empty {
            (self.notify)();
        }
    }

    /// Replaces the list of changes by a mark.
    pub(super) fn overflow(&mut self) {
        (self.topics, self.count, self.overflowed) = (HashMap::new(), 0, true);
        (self.notify)();
    }

    /// Takes at most about `limit` changes.
    pub(super) fn take(&mut self, limit: usize) -> TakenNotes {
        let mut taken =
            TakenNotes { topics: Vec::new(), overflowed: std::mem::take(&mut self.overflowed), more: false };
        let mut count = 0;
        while count < limit {
            let Some(name) = self.topics.keys().next().cloned() else { break };
            let Some(members) = self.topics.get_mut(&name) else { break };
            let ids: Vec<Arc<str>> = members.iter().take(limit - count).cloned().collect();
            for id in &ids {
                members.remove(id);
            }
            count += ids.len() + 1;
            self.count -= ids.len();
            if members.is_empty() {
                self.topics.remove(&name);
                self.count -= 1;
            }
            taken.topics.push((name, ids));
        }
        taken.more = !self.topics.is_empty();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_bounded() {
        let mut noted = NotedChanges::new(Box::new(|| {}));
        for id in 0..=CHANGES_MAX {
            noted.note(&"a".into(), Some(&id.to_string().into()));
        }
        let taken = noted.take(10);
        assert!(taken.overflowed && taken.topics.is_empty() && !taken.more);
        noted.note(&"a".into(), None);
        assert_eq!(noted.take(10).topics.len(), 1, "later changes are noted");
    }
}
