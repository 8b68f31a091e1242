//! Topics and members that have changed since they were last taken.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Maximum number of topics and members with a change that is not taken; more are reported as an overflow.
const CHANGES_MAX: usize = 262_144;

/// Maximum size of the noted infos of members that have left, in bytes. Beyond it, infos are omitted.
const INFO_BYTES_MAX: usize = 4 << 20;

/// Topics and members that changed since they were last taken. Bounded by the state and by [`CHANGES_MAX`], not by the
/// rate of changes.
pub(super) struct NotedChanges {
    topics: HashMap<Arc<str>, NotedMembers>,
    count: usize,
    /// Size of the infos.
    info_bytes: usize,
    overflowed: bool,
    notify: Box<dyn Fn() + Send + Sync>,
}

/// Changed members of a topic, each with its last info if it has left.
type NotedMembers = HashMap<Arc<str>, Option<Arc<[u8]>>>;

/// Changed member, with its last info if it has left.
pub(super) type NotedMember = (Arc<str>, Option<Arc<[u8]>>);

/// Changes that were taken.
pub(super) struct TakenNotes {
    /// Topics, and their changed members.
    pub(super) topics: Vec<(Arc<str>, Vec<NotedMember>)>,
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
        Self { topics: HashMap::new(), count: 0, info_bytes: 0, overflowed: false, notify }
    }

    /// Notes the change of a topic, and of a member of it, with the last info of a member that has left.
    pub(super) fn note(&mut self, topic: &Arc<str>, id: Option<&Arc<str>>, last: Option<&Arc<[u8]>>) {
        if self.overflowed {
            return;
        }
        if self.count >= CHANGES_MAX {
            return self.clear();
        }
        let was_empty = self.topics.is_empty();
        let before = self.topics.len();
        let members = self.topics.entry(topic.clone()).or_default();
        let members_before = members.len();
        if let Some(id) = id {
            let noted = members.entry(id.clone()).or_default();
            let size = |info: &Option<Arc<[u8]>>| info.as_ref().map_or(0, |info| info.len());
            self.info_bytes -= size(noted);
            *noted = last.filter(|info| !info.is_empty()).cloned();
            if self.info_bytes + size(noted) > INFO_BYTES_MAX {
                *noted = None;
            }
            self.info_bytes += size(noted);
        }
        self.count += members.len() - members_before;
        self.count += self.topics.len() - before;
        if was_empty {
            (self.notify)();
        }
    }

    /// Replaces the list of changes by a mark.
    pub(super) fn overflow(&mut self) {
        self.clear();
        (self.notify)();
    }

    /// Replaces the changes by a mark.
    fn clear(&mut self) {
        (self.topics, self.count, self.info_bytes) = (HashMap::new(), 0, 0);
        self.overflowed = true;
    }

    /// Takes at most about `limit` changes.
    pub(super) fn take(&mut self, limit: usize) -> TakenNotes {
        let mut taken =
            TakenNotes { topics: Vec::new(), overflowed: std::mem::take(&mut self.overflowed), more: false };
        let mut count = 0;
        while count < limit {
            let Some(name) = self.topics.keys().next().cloned() else { break };
            let Some(members) = self.topics.get_mut(&name) else { break };
            let ids: Vec<Arc<str>> = members.keys().take(limit - count).cloned().collect();
            let ids: Vec<NotedMember> = ids.into_iter().filter_map(|id| members.remove_entry(&id)).collect();
            count += ids.len() + 1;
            self.count -= ids.len();
            self.info_bytes -= ids.iter().flat_map(|(_, info)| info).map(|info| info.len()).sum::<usize>();
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
            noted.note(&"a".into(), Some(&id.to_string().into()), None);
        }
        let taken = noted.take(10);
        assert!(taken.overflowed && taken.topics.is_empty() && !taken.more);
        noted.note(&"a".into(), None, None);
        assert_eq!(noted.take(10).topics.len(), 1, "later changes are noted");
    }

    #[test]
    fn last_infos_of_members_are_bounded() {
        let (mut noted, topic) = (NotedChanges::new(Box::new(|| {})), Arc::from("a"));
        let info: Arc<[u8]> = vec![b'x'; 1_024].into();
        for id in 0..6_000 {
            let id: Arc<str> = id.to_string().into();
            noted.note(&topic, Some(&id), Some(&info));
            // A member that has left again takes no more.
            noted.note(&topic, Some(&id), Some(&info));
        }
        let taken = noted.take(10_000).topics.remove(0).1;
        assert_eq!(taken.len(), 6_000);
        assert_eq!(taken.iter().filter(|(_, info)| info.is_some()).count(), INFO_BYTES_MAX / 1_024);
        assert_eq!((noted.info_bytes, noted.count), (0, 0));
        noted.note(&topic, Some(&"b".into()), Some(&info));
        noted.note(&topic, Some(&"b".into()), None);
        assert_eq!(noted.take(9).topics[0].1, [("b".into(), None)], "the member is present again");
    }
}
