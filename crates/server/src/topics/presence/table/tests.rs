use std::collections::BTreeSet;
use std::time::Duration;

use super::super::changes::NOTED_BYTES_MAX;
use super::super::interval::PresenceInterval;
use super::super::member::{
    CHANGE_TEXT, CHANGED_BYTES_MAX, CHANGES_MAX, PRESENCE_INTERVAL, TRANSITION_BYTES_MAX, TRANSITIONS_MAX,
};
use super::*;

fn table() -> PresenceTable {
    PresenceTable::new(usize::MAX, None)
}

fn member(id: &str) -> Member {
    Member::new(id)
}

fn join(table: &PresenceTable, id: &str, now: Instant) -> Changed {
    table.join("t", Some(&member(id)), now).unwrap()
}

fn leave(table: &PresenceTable, id: &str, now: Instant) -> Changed {
    table.leave("t", Some(&id.into()), now)
}

fn joined(update: &PresenceUpdate) -> Vec<&str> {
    update.joined().iter().map(Member::id).collect()
}

fn numbers(table: &PresenceTable) -> (usize, usize) {
    let count = table.count("t");
    (count.members, count.connections)
}

#[test]
fn member_with_several_connections_counts_once() {
    let (table, now) = (table(), Instant::now());
    table.watch("t", now);
    assert!(join(&table, "a", now).due.is_some());
    assert_eq!(joined(&table.take_update("t", now).unwrap()), ["a"]);
    join(&table, "a", now);
    assert_eq!(numbers(&table), (1, 2));
    let update = table.take_update("t", now).unwrap();
    assert!(update.joined().is_empty() && update.left().len() == 0 && update.count().connections == 2);
    leave(&table, "a", now);
    assert_eq!(table.take_update("t", now).unwrap().left().len(), 0, "one connection is left");
    leave(&table, "a", now);
    assert_eq!(table.take_update("t", now).unwrap().left().collect::<Vec<_>>(), ["a"]);
    assert_eq!(numbers(&table), (0, 0));
}

#[test]
fn changes_within_an_interval_become_one_update() {
    let (table, now) = (table(), Instant::now());
    let version = table.watch("t", now).1.version;
    assert_eq!(join(&table, "a", now).due, Some(now), "the first at once");
    let first = table.take_update("t", now).unwrap();
    assert_eq!((first.since(), first.count().version), (version, version + 1));
    let due = join(&table, "b", now).due;
    assert_eq!(due, Some(now + PRESENCE_INTERVAL));
    assert_eq!(join(&table, "c", now).due, None, "scheduled already");
    leave(&table, "c", now);
    leave(&table, "a", now);
    table.join("t", None, now).unwrap();
    let second = table.take_update("t", due.unwrap()).unwrap();
    assert_eq!((joined(&second), second.left().collect::<Vec<_>>()), (vec!["b"], vec!["a"]));
    assert_eq!(second.since(), first.count().version, "no update is missing");
    assert_eq!((second.count().members, second.count().connections), (1, 2));
    // Without an effect, there is no update.
    join(&table, "d", now);
    leave(&table, "d", now);
    assert_eq!(table.take_update("t", now), None);
}

#[test]
fn state_read_between_updates_is_corrected() {
    let (table, now) = (table(), Instant::now());
    table.watch("t", now);
    join(&table, "a", now);
    table.take_update("t", now);
    // A late watcher lists a member that joins and leaves between two updates, and misses one that returns.
    join(&table, "b", now);
    leave(&table, "a", now);
    assert_eq!(table.members("t", None, 9), [(member("b"), 1)]);
    join(&table, "a", now);
    leave(&table, "b", now);
    let update = table.take_update("t", now).unwrap();
    assert_eq!((joined(&update), update.left().collect::<Vec<_>>()), (vec!["a"], vec!["b"]));
    // The same for its numbers.
    table.join("t", None, now).unwrap();
    assert_eq!(table.watch("t", now).1.connections, 2);
    table.leave("t", None, now);
    assert_eq!(table.take_update("t", now).unwrap().count().connections, 1);
    assert_eq!(table.take_update("t", now), None);
}

#[test]
fn changed_info_is_reported_as_a_join() {
    let (table, now) = (table(), Instant::now());
    table.watch("t", now);
    join(&table, "a", now);
    table.take_update("t", now);
    table.join("t", Some(&member("a").with_info("x")), now).unwrap();
    let update = table.take_update("t", now).unwrap();
    assert_eq!(update.joined(), [member("a").with_info("x")]);
    assert!(table.set_info("t", &member("a").with_info("x"), now).unwrap().due.is_none());
    table.set_info("t", &member("a").with_info("y"), now).unwrap();
    assert_eq!(table.take_update("t", now).unwrap().joined()[0].info(), b"y");
    assert_eq!(table.members("t", None, 9), [(member("a").with_info("y"), 2)]);
}

#[test]
fn storm_of_joins_is_reported_by_its_numbers() {
    let (table, now) = (table(), Instant::now());
    table.watch("t", now);
    for number in 0..CHANGES_MAX {
        join(&table, &number.to_string(), now);
    }
    let update = table.take_update("t", now).unwrap();
    assert!(update.is_complete() && update.joined().len() == CHANGES_MAX);
    for number in 0..=CHANGES_MAX {
        join(&table, &format!("x{number}"), now);
    }
    let update = table.take_update("t", now).unwrap();
    assert!(!update.is_complete() && update.joined().is_empty());
    assert_eq!(update.count().members, 2 * CHANGES_MAX + 1);
    assert_eq!(table.take_update("t", now), None);
}

#[test]
fn changes_larger_than_the_queue_of_a_watcher_are_not_listed() {
    let (table, now) = (table(), Instant::now());
    table.watch("t", now);
    let large = |id: usize| Member::new(format!("{id:024}")).with_info(vec![b'1'; 1_000 - CHANGE_TEXT]);
    for id in 0..TRANSITION_BYTES_MAX / 1_024 {
        table.join("t", Some(&large(10_000 + id)), now).unwrap();
    }
    assert!(table.take_update("t", now).unwrap().has_transitions());
    for id in 0..CHANGED_BYTES_MAX / 1_024 {
        table.join("t", Some(&large(id)), now).unwrap();
    }
    let update = table.take_update("t", now).unwrap();
    assert!(update.is_complete() && !update.has_transitions());
    for id in 0..=CHANGED_BYTES_MAX / 1_024 {
        table.join("t", Some(&large(1_000 + id)), now).unwrap();
    }
    let update = table.take_update("t", now).unwrap();
    assert_eq!((update.is_complete(), update.joined().len(), update.transitions().len()), (false, 0, 0));
    assert_eq!(update.parts(9).count(), 1);
}

#[test]
fn transitions_of_many_members_are_replaced_by_one_list() {
    let (table, now) = (table(), Instant::now());
    table.watch("t", now);
    for number in 0..TRANSITIONS_MAX {
        join(&table, &format!("{number:05}"), now);
    }
    let update = table.take_update("t", now).unwrap();
    assert!(update.has_transitions() && update.members().is_empty());
    assert_eq!(update.transitions().len(), TRANSITIONS_MAX);
    (0..TRANSITIONS_MAX).for_each(|number| _ = leave(&table, &format!("{number:05}"), now));
    (0..=TRANSITIONS_MAX).for_each(|number| _ = join(&table, &format!("x{number:05}"), now));
    let update = table.take_update("t", now).unwrap();
    assert!(!update.has_transitions() && update.transitions().is_empty());
    assert_eq!(update.members(), update.joined());
    // For other protocols, all changes are listed.
    let listed: usize = update.parts(256).map(|part| part.joined().len() + part.left().len()).sum();
    assert_eq!((update.is_complete(), listed), (true, 2 * TRANSITIONS_MAX + 1));
}

#[test]
fn noted_infos_of_members_that_leave_are_bounded() {
    let (table, now) = (table(), Instant::now());
    let large = |id: usize| Member::new(format!("{id:024}")).with_info(vec![b'1'; 1_000]);
    let count = NOTED_BYTES_MAX / 1_024 + 1;
    (0..2 * count).for_each(|id| _ = table.join("t", Some(&large(id)), now).unwrap());
    table.watch("t", now);
    let leave = |range: std::ops::Range<usize>| {
        range.for_each(|id| _ = table.leave("t", Some(&large(id).id), now));
        table.take_update("t", now).unwrap()
    };
    let update = leave(0..count - 1);
    assert_eq!((update.is_complete(), update.left().len()), (true, count - 1));
    assert!(!leave(count..2 * count).is_complete());
}

#[test]
fn interval_grows_with_the_watchers_of_a_topic() {
    let (table, now) = (table(), Instant::now());
    for _ in 0..1_500 {
        table.watch("t", now);
    }
    assert_eq!(join(&table, "a", now).due, Some(now), "the first change at once");
    table.take_update("t", now);
    assert_eq!(join(&table, "b", now).due, Some(now + Duration::from_millis(1_500)));
    table.take_update("t", now);
    for _ in 0..1_450 {
        table.unwatch("t");
    }
    join(&table, "c", now);
    table.take_update("t", now);
    assert_eq!(join(&table, "d", now).due, Some(now + PRESENCE_INTERVAL));
    let fixed = PresenceIntervals::new(|topic| match topic {
        "t" => PresenceInterval::new(Duration::from_secs(3), Duration::ZERO),
        _ => PresenceInterval::default(),
    });
    let table = PresenceTable::new(usize::MAX, None).with_intervals(fixed);
    table.watch("t", now);
    join(&table, "a", now);
    table.take_update("t", now);
    assert_eq!(join(&table, "b", now).due, Some(now + Duration::from_secs(3)), "the topic's own interval");
}

/// Random changes, and a watcher that applies the parts of updates from any version on.
#[test]
fn parts_lead_from_version_to_version() {
    let (table, now) = (table(), Instant::now());
    let mut state = 5_u64;
    let mut next = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut last = table.watch("t", now).1.version;
    // Watchers with the members and the version of their list, which they have read at any time.
    let mut watchers: Vec<(BTreeSet<String>, u64)> = Vec::new();
    for step in 0..3_000 {
        let id = next(40).to_string();
        let is_present = table.members("t", None, 99).iter().any(|(member, _)| member.id() == id);
        if is_present {
            leave(&table, &id, now)
        } else {
            join(&table, &id, now)
        };
        if step % 5 == 0 {
            let (count, members) = table.roster("t");
            watchers.push((members.iter().map(|member| member.id().to_owned()).collect(), count.version));
        }
        if step % 23 != 0 {
            continue;
        }
        let Some(update) = table.take_update("t", now) else { continue };
        let parts: Vec<_> = update.parts(4).collect();
        assert!(parts.iter().all(|part| part.joined().len() + part.left().len() <= 4));
        for part in &parts {
            assert_eq!(std::mem::replace(&mut last, part.version()), part.since(), "no gap between parts");
            for (known, at) in watchers.iter_mut().filter(|(_, at)| part.version() > *at) {
                assert!(part.since() <= *at, "a watcher has missed a part");
                *at = part.version();
                known.extend(part.joined().iter().map(|member| member.id().to_owned()));
                part.left().for_each(|id| _ = known.remove(id));
            }
        }
        assert_eq!(last, update.count().version);
        let present: BTreeSet<_> =
            table.members("t", None, 99).iter().map(|(member, _)| member.id().to_owned()).collect();
        assert!(watchers.iter().all(|(known, at)| *known == present && *at == last));
        watchers.truncate(3);
    }
}

#[test]
fn members_are_listed_in_bounded_pages() {
    let (table, now) = (table(), Instant::now());
    for number in 0..2_500 {
        join(&table, &format!("{number:04}"), now);
    }
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = table.members("t", after.as_deref(), usize::MAX);
        assert!(page.len() <= MEMBERS_MAX);
        let Some(last) = page.last() else { break };
        after = Some(last.0.id().to_owned());
        all.extend(page.iter().map(|(member, _)| member.id().to_owned()));
    }
    assert_eq!(all, (0..2_500).map(|number| format!("{number:04}")).collect::<Vec<_>>());
    assert_eq!(table.members("t", Some("0009"), 2), [(member("0010"), 1), (member("0011"), 1)]);
    assert!(table.members("other", None, 9).is_empty());
}

#[test]
fn memory_is_limited_and_freed() {
    let (table, now) = (PresenceTable::new(3 * (MEMBER_COST + 1), None), Instant::now());
    table.watch("t", now);
    for id in ["a", "b", "c"] {
        join(&table, id, now);
    }
    let full = |member: &Member| table.join("t", Some(member), now).unwrap_err();
    assert_eq!(full(&member("d")), PresenceError::Full);
    assert_eq!(full(&member("a").with_info("x")), PresenceError::Full);
    assert_eq!(table.set_info("t", &member("a").with_info("x"), now).unwrap_err(), PresenceError::Full);
    assert_eq!(join(&table, "a", now).count.connections, 4, "another connection of a member costs nothing");
    table.join("t", None, now).unwrap();
    assert_eq!(table.usage().0, 3, "neither another connection nor one without a member is a member");
    for id in ["a", "a", "b", "c"] {
        leave(&table, id, now);
    }
    assert_eq!(table.usage(), (0, 0));
    assert_eq!(table.size(), (1, 0));
    table.leave("t", None, now);
    assert_eq!(table.size(), (1, 0), "it is watched");
    table.unwatch("t");
    assert_eq!(table.size(), (0, 0));
}

#[test]
fn versions_rise_even_if_the_topic_was_removed() {
    let (table, now) = (table(), Instant::now());
    join(&table, "a", now);
    let last = leave(&table, "a", now).count.version;
    assert_eq!(table.size().0, 0);
    assert!(join(&table, "a", now).count.version > last);
}

#[test]
fn successor_takes_over_without_leaves_and_joins() {
    let (first, second, now) = (table(), table(), Instant::now());
    first.watch("t", now);
    for id in ["a", "a", "b", "c"] {
        join(&first, id, now);
    }
    first.join("t", None, now).unwrap();
    first.join("t", None, now).unwrap();
    first.take_update("t", now);
    let exported = first.export();
    first.pause();
    leave(&first, "a", now);
    assert_eq!(first.take_update("t", now), None, "its clients go to the successor");

    let until = now + Duration::from_secs(1);
    second.restore(exported, until);
    assert_eq!((numbers(&second), second.restored_until()), ((3, 6), Some(until)));
    second.watch("t", now);
    join(&second, "a", now);
    join(&second, "b", now);
    second.join("t", None, now).unwrap();
    assert_eq!(numbers(&second), (3, 6));
    assert_eq!(second.take_update("t", now), None, "nothing has changed for the watchers");
    join(&second, "new", now);
    assert_eq!(joined(&second.take_update("t", now).unwrap()), ["new"]);

    assert!(second.expire_restored(now).is_empty());
    let expired = second.expire_restored(until);
    assert!(expired.len() == 1 && expired[0].due.is_some());
    let update = second.take_update("t", until).unwrap();
    assert_eq!(update.left().collect::<Vec<_>>(), ["c"]);
    // One connection each of `a`, `b` and `new`, and one without a member.
    assert_eq!(numbers(&second), (3, 4));
    assert_eq!(second.usage().0, 3);
    for id in ["a", "b", "new"] {
        leave(&second, id, now);
    }
    second.leave("t", None, now);
    assert_eq!((numbers(&second), second.usage()), ((0, 0), (0, 0)));

    first.resume();
    leave(&first, "b", now);
    let update = first.take_update("t", now).unwrap();
    assert_eq!((update.is_complete(), update.count().members), (false, 2));
}

/// Random changes, and a watcher that applies the updates.
#[test]
fn watcher_that_applies_updates_has_the_members() {
    let (table, start) = (table(), Instant::now());
    let mut known: BTreeSet<String> = BTreeSet::new();
    let (mut connections, mut state) = (vec![0_usize; 12], 7_u64);
    let mut version = table.watch("t", start).1.version;
    for step in 0..20_000 {
        // Knuth's constants.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (who, what) = ((state >> 33) as usize % 12, state >> 60);
        if what < 8 {
            join(&table, &who.to_string(), start);
            connections[who] += 1;
        } else if connections[who] > 0 {
            leave(&table, &who.to_string(), start);
            connections[who] -= 1;
        }
        if step % 7 == 0
            && let Some(update) = table.take_update("t", start)
        {
            assert!(update.since() <= version, "an update is missing");
            version = update.count().version;
            known.extend(update.joined().iter().map(|member| member.id().to_owned()));
            update.left().for_each(|id| assert!(known.remove(id)));
            let present = (0..12).filter(|who| connections[*who] > 0).map(|who| who.to_string());
            assert_eq!(known, present.collect());
            assert_eq!(
                (update.count().members, update.count().connections),
                (known.len(), connections.iter().sum())
            );
        }
    }
}

/// Id, whether it joins, and version of each transition.
fn transitions(update: &PresenceUpdate) -> Vec<(&str, bool, u64)> {
    let transitions = update.transitions().iter();
    transitions.map(|change| (change.id(), change.info().is_some(), change.version())).collect()
}

#[test]
fn transitions_are_first_joins_and_last_leaves_in_order() {
    let (table, now) = (table(), Instant::now());
    table.watch("t", now);
    for id in ["b", "a", "b"] {
        join(&table, id, now);
    }
    let update = table.take_update("t", now).unwrap();
    assert_eq!(transitions(&update), [("b", true, 1), ("a", true, 2)]);
    assert_eq!((update.connections_before(), update.count().connections), (0, 3));
    table.join("t", Some(&member("a").with_info("x")), now).unwrap();
    leave(&table, "b", now);
    let update = table.take_update("t", now).unwrap();
    assert_eq!((joined(&update), transitions(&update)), (vec!["a"], vec![]), "another info is no transition");
    leave(&table, "b", now);
    join(&table, "c", now);
    leave(&table, "c", now);
    let update = table.take_update("t", now).unwrap();
    assert_eq!(transitions(&update), [("b", false, 6)]);
    assert_eq!(update.connections_before(), 3);
    // A watcher that has read the members in between does not know that one has returned.
    leave(&table, "a", now);
    leave(&table, "a", now);
    let (count, members) = table.roster("t");
    assert_eq!((count.version, members.len()), (10, 0));
    join(&table, "a", now);
    let update = table.take_update("t", now).unwrap();
    assert_eq!(transitions(&update), [("a", false, 10), ("a", true, 11)]);
}

#[test]
fn characters_with_a_backslash_count_twice() {
    let most = CHANGED_BYTES_MAX / (2 * 64 + CHANGE_TEXT);
    for (count, is_complete) in [(most, true), (most + 1, false)] {
        let (table, now) = (table(), Instant::now());
        table.watch("t", now);
        for id in 0..count {
            // 64 characters, each of them one of two.
            let id: String = (0..64).map(|bit| if id >> (bit % 16) & 1 == 0 { '"' } else { '\\' }).collect();
            table.join("t", Some(&Member::new(id)), now).unwrap();
        }
        assert_eq!(table.take_update("t", now).unwrap().is_complete(), is_complete);
    }
}
