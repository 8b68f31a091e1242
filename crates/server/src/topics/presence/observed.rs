//! Changes of the presence of all members, for a program that reports them elsewhere.

use std::sync::Arc;

use super::member::Member;
use super::noted::{NotedChanges, NotedMember};
use super::table::{PresenceTable, TableState};
use crate::topics::publisher::Publisher;

/// Changes of the presence of all topics ([`Publisher::take_presence_changes`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PresenceChangeList {
    /// The topics, and their changed members.
    pub topics: Vec<TopicPresence>,
    /// Changes are missing: too many were not taken in time, or another server was in charge meanwhile. The observer
    /// has to read the presence of all topics ([`Publisher::presence_topics`]).
    pub overflowed: bool,
    /// More changes wait.
    pub more: bool,
}

/// Presence of a topic, over all servers that share it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicPresence {
    /// Name of the topic.
    pub topic: Arc<str>,
    /// Number of joined connections, with and without a member.
    pub connections: usize,
    /// Some members, each with its number of connections. A member that has left has none, and its last info, unless
    /// more than 4 MiB of infos wait.
    pub members: Vec<(Member, usize)>,
}

impl PresenceTable {
    /// Notes changes from now on.
    fn observe_changes(&self, notify: Box<dyn Fn() + Send + Sync>) {
        self.lock().observed = Some(Box::new(NotedChanges::new(notify)));
    }

    fn take_changes(&self, limit: usize) -> PresenceChangeList {
        let mut state = self.lock();
        let Some(mut observed) = state.observed.take() else { return PresenceChangeList::default() };
        let taken = observed.take(limit);
        let presence = |(name, ids): (Arc<str>, Vec<_>)| state.topic_presence(&name, ids);
        let topics = taken.topics.into_iter().map(presence).collect();
        let changes = PresenceChangeList { topics, overflowed: taken.overflowed, more: taken.more };
        state.observed = Some(observed);
        changes
    }
}

impl TableState {
    /// Notes a change of any member. While another server is in charge, changes are no concern of this one.
    pub(super) fn note_observed(
        &mut self,
        topic: &Arc<str>,
        id: Option<&Arc<str>>,
        last: Option<&Arc<[u8]>>,
    ) {
        if let Some(observed) = self.observed.as_mut().filter(|_| !self.paused) {
            observed.note(topic, id, last);
        }
    }

    fn topic_presence(&self, name: &Arc<str>, ids: Vec<NotedMember>) -> TopicPresence {
        let topic = self.topics.get(name);
        let member = |(id, last): NotedMember| match topic.and_then(|topic| topic.members().get(&id)) {
            Some(known) => (Member { id, info: known.info.clone() }, known.connections.get()),
            None => (Member { id, info: last.unwrap_or_default() }, 0),
        };
        let connections = topic.map_or(0, |topic| topic.connections);
        let members = ids.into_iter().map(member).collect();
        TopicPresence { topic: name.clone(), connections, members }
    }
}

impl Publisher {
    /// Notes each change of presence from now on, of all servers that share it. Calls `notify` when the first change
    /// waits for [`take_presence_changes`](Self::take_presence_changes): while presence is locked, so it must be short.
    ///
    /// While presence is paused ([`pause_presence`](Self::pause_presence)), no change is noted;
    /// [`resume_presence`](Self::resume_presence) makes the observer read everything again.
    pub fn observe_presence(&self, notify: impl Fn() + Send + Sync + 'static) {
        self.directory().presence.observe_changes(Box::new(notify));
    }

    /// Takes topics and members whose presence has changed, with their present numbers: at most about `limit` members.
    #[must_use]
    pub fn take_presence_changes(&self, limit: usize) -> PresenceChangeList {
        self.directory().presence.take_changes(limit)
    }

    /// Returns the names of all topics with connections, in no order.
    #[must_use]
    pub fn presence_topics(&self) -> Vec<Arc<str>> {
        let state = self.directory().presence.lock();
        let joined = state.topics.iter().filter(|(_, topic)| topic.connections > 0);
        joined.map(|(name, _)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    use super::*;

    /// Name and connections of a topic, and its changed members with their connections.
    type TakenTopic = (String, usize, Vec<(String, usize)>);

    fn taken(table: &PresenceTable) -> Vec<TakenTopic> {
        let changes = table.take_changes(100);
        let mut all: Vec<_> = changes
            .topics
            .into_iter()
            .map(|topic| {
                let members = topic.members.iter().map(|(member, count)| (member.id().to_owned(), *count));
                let mut members: Vec<_> = members.collect();
                members.sort();
                (topic.topic.to_string(), topic.connections, members)
            })
            .collect();
        all.sort();
        all
    }

    #[test]
    fn changes_of_all_servers_are_observed_with_their_result() {
        let (table, notified) = (PresenceTable::new(10_000, None), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&notified);
        table.observe_changes(Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        let (now, member) = (Instant::now(), |id: &str| Member::new(id));
        table.join("a", Some(&member("1")), now).unwrap();
        table.join("b", None, now).unwrap();
        table.adjust("a", 2, &[(member("1"), 1), (member("2"), 1)], now);
        assert_eq!(notified.load(Ordering::Relaxed), 1, "one notification until the changes are taken");
        let a = ("a".to_owned(), 3, vec![("1".to_owned(), 2), ("2".to_owned(), 1)]);
        assert_eq!(taken(&table), [a, ("b".to_owned(), 1, vec![])]);
        table.leave("b", None, now);
        table.adjust("a", -1, &[(member("2"), -1)], now);
        let a = ("a".to_owned(), 2, vec![("2".to_owned(), 0)]);
        assert_eq!(taken(&table), [a, ("b".to_owned(), 0, vec![])]);
        assert_eq!((taken(&table), notified.load(Ordering::Relaxed)), (vec![], 2));
    }

    #[test]
    fn changes_while_presence_is_paused_are_read_again() {
        let table = PresenceTable::new(10_000, None);
        table.observe_changes(Box::new(|| {}));
        table.pause();
        table.join("a", None, Instant::now()).unwrap();
        assert_eq!(table.take_changes(9), PresenceChangeList::default());
        table.resume();
        assert!(table.take_changes(9).overflowed && !table.take_changes(9).overflowed);
    }
}
