//! Encoded pages of members: of many clients that subscribe to a large topic at the same time, each gets the first
//! page.

use bytes::Bytes;

use super::member::{Member, MemberPage};
use super::table::{PresenceTable, TopicMembers};
use crate::topics::registry::Topics;

/// Minimum number of members for which a page is retained: for fewer, encoding saves little.
const PAGE_MEMBERS_MIN: usize = 32;

impl Topics {
    /// Returns the first members of a topic in order of their ids, at most `limit`, as the program encodes them. For a
    /// topic with watchers and many members, the page is encoded once between two updates: changes after its version
    /// are in the next update. The limit and the encoder of a topic must always be the same.
    pub fn first_members(
        &self,
        topic: &str,
        limit: usize,
        encode: impl FnOnce(&[(Member, usize)]) -> Bytes,
    ) -> MemberPage {
        self.directory.presence.first_members(topic, limit, encode)
    }
}

impl PresenceTable {
    pub(super) fn first_members(
        &self,
        topic: &str,
        limit: usize,
        encode: impl FnOnce(&[(Member, usize)]) -> Bytes,
    ) -> MemberPage {
        let mut state = self.lock();
        let found = state.topics.get_mut(topic);
        if let Some(page) = found.as_ref().and_then(|found| found.changes()?.page.as_deref()) {
            return page.clone();
        }
        let read = |found: &mut TopicMembers| {
            let (version, since) = (found.observe().version, found.changes().map(|it| it.since()));
            (found.list_after(None, limit.saturating_add(1)), version, since)
        };
        let (mut members, version, since) = found.map_or_else(Default::default, read);
        // The program's code runs without the lock.
        drop(state);
        let more = members.len() > limit;
        members.truncate(limit);
        let page = MemberPage { version, more, encoded: encode(&members) };
        if since.is_some() && members.len() >= PAGE_MEMBERS_MIN {
            self.retain_page(topic, since, &page);
        }
        page
    }

    /// Retains a page until the next update, unless an update was taken while the page was encoded.
    fn retain_page(&self, topic: &str, since: Option<u64>, page: &MemberPage) {
        let mut state = self.lock();
        let changes = state.topics.get_mut(topic).and_then(TopicMembers::changes_mut);
        if let Some(changes) = changes.filter(|changes| Some(changes.since()) == since) {
            changes.page = Some(Box::new(page.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Instant;

    use super::*;

    fn encode(members: &[(Member, usize)]) -> Bytes {
        members.iter().map(|(member, count)| format!("{}:{count}\n", member.id())).collect::<String>().into()
    }

    fn ids(page: &MemberPage) -> BTreeSet<String> {
        let text = String::from_utf8(page.encoded.to_vec()).unwrap();
        text.lines().map(|line| line.split(':').next().unwrap().to_owned()).collect()
    }

    #[test]
    fn page_is_encoded_once_between_two_updates() {
        let (table, now) = (PresenceTable::new(usize::MAX, None), Instant::now());
        let join = |id: usize| table.join("t", Some(&Member::new(format!("{id:03}"))), now).unwrap();
        let fresh = || table.first_members("t", 40, encode);
        let retained = || table.first_members("t", 40, |_| panic!("the page is encoded"));
        assert_eq!(fresh(), MemberPage { version: 0, more: false, encoded: Bytes::new() }, "no topic");
        (0..PAGE_MEMBERS_MIN - 1).for_each(|id| _ = join(id));
        table.watch("t", now);
        for _ in 0..2 {
            assert_eq!(ids(&fresh()).len(), PAGE_MEMBERS_MIN - 1, "small pages are not retained");
            assert_eq!(table.first_members("t", 40, |_| Bytes::new()).encoded, Bytes::new());
        }
        join(31);
        let page = fresh();
        assert!(!page.more && page.encoded.ends_with(b"031:1\n"));
        join(31);
        join(32);
        assert_eq!(retained(), page);
        let update = table.take_update("t", now).unwrap();
        assert!(update.since() <= page.version && update.joined().iter().any(|member| member.id() == "032"));
        let page = fresh();
        assert!(page.version == update.count().version && ids(&page).contains("032"));
        assert!(page.encoded.ends_with(b"031:2\n032:1\n"));
        (33..50).for_each(|id| _ = join(id));
        table.take_update("t", now);
        assert!(fresh().more && ids(&retained()).len() == 40);
        table.unwatch("t");
        (0..2).for_each(|_| assert!(fresh().more, "a topic without watchers has no updates"));
        assert_eq!(table.first_members("t", 40, |_| Bytes::new()).encoded, Bytes::new());
    }

    #[test]
    fn page_of_before_an_update_is_not_retained() {
        let (table, now) = (PresenceTable::new(usize::MAX, None), Instant::now());
        table.watch("t", now);
        (0..40).for_each(|id| _ = table.join("t", Some(&Member::new(id.to_string())), now).unwrap());
        let page = table.first_members("t", 99, |members| {
            table.take_update("t", now);
            encode(members)
        });
        table.join("t", Some(&Member::new("late")), now).unwrap();
        let next = table.first_members("t", 99, encode);
        assert!(next.version > page.version && ids(&next).contains("late"));
    }

    /// Random changes, and watchers that begin with a page at any time and apply the updates.
    #[test]
    fn watcher_that_begins_with_a_retained_page_has_the_members() {
        let (table, now) = (PresenceTable::new(usize::MAX, None), Instant::now());
        table.watch("t", now);
        let mut state = 3_u64;
        let mut watchers: Vec<(BTreeSet<String>, u64)> = Vec::new();
        for step in 0..5_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let id = format!("{}", (state >> 33) % 80);
            let present: BTreeSet<String> =
                table.members("t", None, 99).iter().map(|(member, _)| member.id().to_owned()).collect();
            match present.contains(&id) {
                true if present.len() > 36 => _ = table.leave("t", Some(&id.as_str().into()), now),
                true => {}
                false => _ = table.join("t", Some(&Member::new(id)), now).unwrap(),
            }
            if step % 3 == 0 {
                let page = table.first_members("t", 99, encode);
                watchers.push((ids(&page), page.version));
            }
            if step % 17 != 0 {
                continue;
            }
            let Some(update) = table.take_update("t", now) else { continue };
            for (known, at) in &mut watchers {
                assert!(update.since() <= *at, "a watcher has missed an update");
                *at = update.count().version;
                known.extend(update.joined().iter().map(|member| member.id().to_owned()));
                update.left().for_each(|id| _ = known.remove(id));
            }
            let present: BTreeSet<String> =
                table.members("t", None, 99).iter().map(|(member, _)| member.id().to_owned()).collect();
            assert!(watchers.iter().all(|(known, _)| *known == present));
            watchers.truncate(2);
        }
    }
}
