//! Presence that several servers share: changes of this server's own members for others, and members of others here.

use std::sync::Arc;
use std::time::Instant;

use super::member::{Member, OwnPresence};
use super::noted::{NotedChanges, NotedMember};
use super::present_members::{JoinedMember, MemberCount};
use super::table::{Changed, PresenceTable, TopicMembers, cost};

/// Changes of a server's own members ([`Publisher::take_own_presence`](crate::Publisher::take_own_presence)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnChanges {
    /// The topics, and their changed members.
    pub topics: Vec<OwnPresence>,
    /// Too many changes were not taken in time: other servers need the whole presence.
    pub overflowed: bool,
    /// More changes wait.
    pub more: bool,
}

impl PresenceTable {
    /// Notes changes of own members from now on.
    pub(super) fn share(&self, notify: Box<dyn Fn() + Send + Sync>) {
        let mut state = self.lock();
        let mut unshared = NotedChanges::new(notify);
        for (name, topic) in state.topics.iter().filter(|(_, topic)| topic.connections > topic.remote()) {
            unshared.note(name, None, None);
            topic.members().iter().for_each(|(id, _)| unshared.note(name, Some(id), None));
        }
        state.unshared = Some(Box::new(unshared));
    }

    pub(super) fn take_own(&self, limit: usize) -> OwnChanges {
        let mut state = self.lock();
        let Some(mut unshared) = state.unshared.take() else { return OwnChanges::default() };
        let taken = unshared.take(limit);
        let topics = taken.topics.into_iter().map(|(name, ids)| state.own(&name, ids)).collect();
        let changes = OwnChanges { topics, overflowed: taken.overflowed, more: taken.more };
        state.unshared = Some(unshared);
        changes
    }

    /// Adds connections and members of other servers, or removes them. Returns the change, and how many members exceed
    /// the memory limit.
    pub(super) fn adjust(
        &self,
        topic: &str,
        connections: isize,
        members: &[(Member, isize)],
        now: Instant,
    ) -> (Changed, usize) {
        let mut state = self.lock();
        let (mut bytes, bytes_max) = (state.bytes, self.bytes_max);
        let mut adjusted = Vec::with_capacity(members.len());
        let changed = state.change(topic, now, |topic| {
            topic.connections = topic.connections.saturating_add_signed(connections);
            let details = topic.details_mut();
            details.remote = details.remote.saturating_add_signed(connections);
            for (at, (member, delta)) in members.iter().enumerate() {
                topic.begin_member(at);
                if topic.adjust(member, *delta, &mut bytes, bytes_max) {
                    adjusted.push(member);
                }
            }
        });
        state.bytes = bytes;
        state.note_observed(&changed.topic, None, None);
        let left_out = members.len() - adjusted.len();
        for member in adjusted {
            state.note_observed(&changed.topic, Some(&member.id), Some(&member.info));
        }
        state.prune(topic);
        (changed, left_out)
    }
}

impl super::table::TableState {
    /// Own connections of a topic and of some members.
    pub(super) fn own(&self, name: &Arc<str>, ids: Vec<NotedMember>) -> OwnPresence {
        let topic = self.topics.get(name);
        let member = |(id, last): NotedMember| match topic.and_then(|topic| topic.members().get(&id)) {
            Some(known) => {
                (Member { id, info: known.info.clone() }, known.connections.get() - known.remote.get())
            }
            None => (Member { id, info: last.unwrap_or_default() }, 0),
        };
        let connections = topic.map_or(0, |topic| topic.connections - topic.remote());
        OwnPresence { topic: name.clone(), connections, members: ids.into_iter().map(member).collect() }
    }
}

impl TopicMembers {
    /// Adds connections of a member at another server, or removes them. Returns `false` for a new member beyond the
    /// memory limit.
    fn adjust(&mut self, member: &Member, delta: isize, bytes: &mut usize, bytes_max: usize) -> bool {
        let Some(known) = self.details_mut().members.get_mut(&member.id) else {
            let Ok(connections @ 1..) = usize::try_from(delta) else { return true };
            let cost = cost(&member.id, &member.info);
            if *bytes + cost > bytes_max {
                return false;
            }
            *bytes += cost;
            let connections = MemberCount::new(connections);
            let restored = MemberCount::default();
            let joined =
                JoinedMember { info: member.info.clone(), connections, restored, remote: connections };
            self.details_mut().members.insert(member.id.clone(), joined);
            self.note(&member.id, None);
            return true;
        };
        // Of a member that was left out earlier, other servers may remove more connections than are counted here.
        let delta = delta.max(0_isize.saturating_sub_unsigned(known.remote.get()));
        known.connections = known.connections.adjusted(delta);
        known.remote = known.remote.adjusted(delta);
        let is_elsewhere = known.remote == known.connections;
        if known.connections == MemberCount::default() {
            *bytes -= self.remove_connections(&member.id, 0);
        } else if delta >= 0 && is_elsewhere && known.info != member.info {
            *bytes = (*bytes + member.info.len()).saturating_sub(known.info.len());
            self.replace_info(member);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn table() -> (PresenceTable, Arc<AtomicUsize>) {
        let (table, notified) = (PresenceTable::new(10_000, None), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&notified);
        table.share(Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        (table, notified)
    }

    /// Name and connections of a topic, and of its members.
    type Taken = (String, usize, Vec<(String, usize)>);

    fn taken(table: &PresenceTable) -> Vec<Taken> {
        let changes = table.take_own(1_000).topics.into_iter();
        let mut topics: Vec<_> = changes
            .map(|own| {
                let mut members: Vec<_> =
                    own.members.iter().map(|(member, count)| (member.id().to_owned(), *count)).collect();
                members.sort();
                (own.topic.to_string(), own.connections, members)
            })
            .collect();
        topics.sort();
        topics
    }

    #[test]
    fn own_changes_are_taken_with_their_result() {
        let (table, notified) = table();
        let now = Instant::now();
        let member = |id: &str| Member::new(id).with_info("x");
        table.join("a", Some(&member("1")), now).unwrap();
        table.join("a", Some(&member("1")), now).unwrap();
        table.join("a", Some(&member("2")), now).unwrap();
        table.leave("a", Some(&"2".into()), now);
        table.join("b", None, now).unwrap();
        assert_eq!(notified.load(Ordering::Relaxed), 1);
        let own = |count| ("a".to_owned(), count, vec![("1".to_owned(), 2), ("2".to_owned(), 0)]);
        assert_eq!(taken(&table), [own(2), ("b".to_owned(), 1, vec![])]);
        assert!(taken(&table).is_empty());
        // Members of other servers are no changes of this one.
        table.adjust("a", 3, &[(member("1"), 2), (member("3"), 1)], now);
        assert!(taken(&table).is_empty());
        table.leave("a", Some(&"1".into()), now);
        assert_eq!(taken(&table), [("a".to_owned(), 1, vec![("1".to_owned(), 1)])]);
        assert_eq!(notified.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn changes_are_taken_in_parts() {
        let (table, _) = table();
        let now = Instant::now();
        for id in 0..10 {
            table.join("a", Some(&Member::new(id.to_string())), now).unwrap();
        }
        let (mut members, mut calls) = (HashSet::new(), 0);
        loop {
            let changes = table.take_own(4);
            calls += 1;
            members.extend(
                changes.topics.iter().flat_map(|own| own.members.iter().map(|(member, _)| member.id.clone())),
            );
            assert!(changes.topics.iter().all(|own| own.connections == 10));
            if !changes.more {
                break;
            }
        }
        assert_eq!((members.len(), calls), (10, 3));
    }

    #[test]
    fn members_of_other_servers_come_and_go_with_theirs() {
        let (table, _) = table();
        let now = Instant::now();
        let member = |id: &str, info: &'static str| Member::new(id).with_info(info);
        table.watch("a", now);
        table.join("a", Some(&member("1", "own")), now).unwrap();
        table.take_update("a", now);
        let (changed, left_out) = table.adjust(
            "a",
            5,
            &[(member("1", "other"), 1), (member("2", "x"), 2), (member("3", ""), -1)],
            now,
        );
        assert_eq!((changed.count.connections, changed.count.members, left_out), (6, 2, 0));
        let update = table.take_update("a", now).unwrap();
        assert_eq!(update.joined().iter().map(Member::id).collect::<Vec<_>>(), ["2"]);
        assert_eq!(table.members("a", None, 9), [(member("1", "own"), 2), (member("2", "x"), 2)]);
        table.leave("a", Some(&"1".into()), now);
        table.adjust("a", 0, &[(member("1", "other"), 0), (member("2", "y"), -1)], now);
        assert_eq!(table.members("a", None, 9), [(member("1", "other"), 1), (member("2", "x"), 1)]);
        table.adjust("a", -5, &[(member("1", ""), -1), (member("2", ""), -1)], now);
        assert_eq!((table.count("a").connections, table.members("a", None, 9).len()), (0, 0));
        table.unwatch("a");
        assert_eq!(table.size(), (0, 0), "no memory is left");
        let large: Vec<_> = (0..80).map(|id| (Member::new(id.to_string()), 1)).collect();
        assert!(table.adjust("a", 80, &large, now).1 > 0, "memory is bounded");
        let gone: Vec<_> = large.into_iter().map(|(member, count)| (member, -count)).collect();
        table.adjust("a", -80, &gone, now);
        assert_eq!(table.size(), (0, 0));
    }

    #[test]
    fn own_member_stays_when_connections_that_were_left_out_end() {
        let table = PresenceTable::new(0, None);
        let (now, member) = (Instant::now(), Member::new("1"));
        assert_eq!(table.adjust("a", 3, &[(member.clone(), 3)], now).1, 1, "no memory for the member");
        let table = PresenceTable::new(10_000, None);
        table.join("a", Some(&member), now).unwrap();
        // Two more connections of the member were left out.
        table.adjust("a", 3, &[(member.clone(), 1)], now);
        table.adjust("a", -3, &[(member.clone(), -3)], now);
        assert_eq!(table.members("a", None, 9), [(member, 1)]);
    }

    #[test]
    fn members_that_change_together_have_versions_of_their_own() {
        let (table, _) = table();
        let now = Instant::now();
        table.watch("a", now);
        let versions = || {
            let update = table.take_update("a", now).unwrap();
            let versions: Vec<_> =
                update.transitions().iter().map(|transition| transition.version() - update.since()).collect();
            (versions, update.count().version - update.since())
        };
        let changes = |delta| ["1", "2", "3"].map(|id| (Member::new(id), delta));
        // A watcher that reads the members in between knows all of a version, or none.
        table.adjust("a", 3, &changes(1), now);
        assert_eq!(versions(), (vec![1, 2, 3], 3));
        table.adjust("a", -3, &changes(-1), now);
        assert_eq!(versions(), (vec![1, 2, 3], 3));
        let members = changes(1).map(|(member, _)| (member, 1)).to_vec();
        table.restore(vec![crate::PresenceSnapshot { topic: "a".to_owned(), members, anonymous: 0 }], now);
        table.adjust("a", 1, &[], now);
        table.take_update("a", now);
        table.expire_restored(now);
        assert_eq!(versions(), (vec![1, 2, 3], 3));
    }

    #[test]
    fn export_has_own_members_only() {
        let (table, _) = table();
        let now = Instant::now();
        table.join("a", None, now).unwrap();
        table.adjust("a", 4, &[(Member::new("1"), 3)], now);
        table.adjust("b", 4, &[(Member::new("1"), 3)], now);
        let export = table.export();
        assert_eq!((export.len(), export[0].members.len(), export[0].anonymous), (1, 0, 1));
        // A member of another server is restored here as well.
        let member = (Member::new("1"), 1);
        let restored = crate::PresenceSnapshot { topic: "b".to_owned(), members: vec![member], anonymous: 0 };
        table.restore(vec![restored], now);
        assert_eq!(table.count("b").connections, 5);
        table.expire_restored(now);
        assert_eq!((table.count("b").connections, table.count("b").members), (4, 1));
    }
}
