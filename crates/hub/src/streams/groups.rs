//! Consumer groups: each partition is assigned to one member at a time, evenly.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::task::Waker;

use parking_lot::{Mutex, MutexGuard};

use crate::model::brief::brief;
use crate::model::problem::{Problem, code, problem};

/// The groups with members on this server, by stream.
#[derive(Debug, Default)]
pub(super) struct ActiveGroups(Mutex<HashMap<String, HashMap<String, Weak<ConsumerGroup>>>>);

/// Groups with members per stream. The same number may have a committed offset.
const GROUPS_MAX: usize = 1_024;

/// Members per group: a stream's partition limit, since further members would read nothing.
const MEMBERS_MAX: usize = 1_024;

/// The members of one group of one stream, and their assignments.
///
/// A partition that moves has no reader until its previous reader has released it. Otherwise both members would process
/// the records that the previous reader has not committed yet.
#[derive(Debug, Default)]
struct ConsumerGroup(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    members: Vec<GroupMember>,
    next_id: u64,
    /// By partition: the current reader, and the assigned reader.
    readers: Vec<Option<u64>>,
    assigned: Vec<Option<u64>>,
    /// The stream was deleted.
    is_deleted: bool,
}

#[derive(Debug)]
struct GroupMember {
    id: u64,
    waker: Waker,
}

/// A group member, until it is dropped.
#[derive(Debug)]
pub(super) struct Membership {
    group: Arc<ConsumerGroup>,
    id: u64,
}

/// Assignment changes since the member's last call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reassignment {
    pub(super) lost: Vec<u32>,
    pub(super) gained: Vec<u32>,
}

/// Longest name of a consumer group in bytes.
const GROUP_MAX: usize = 255;

/// Checks a consumer group's name.
///
/// # Errors
/// The rule that it breaks.
pub(super) fn check_group_name(group: &str) -> Result<(), Problem> {
    if group.is_empty() || group.len() > GROUP_MAX || group.chars().any(char::is_control) {
        let text = format!("a group's name has 1 to {GROUP_MAX} bytes and no control characters");
        return Err(problem(code::TOPIC, text));
    }
    Ok(())
}

impl ActiveGroups {
    /// Joins a group of a stream with this partition count. The waker is called when there are
    /// [moves](Membership::reassignment).
    pub(super) fn join(
        &self,
        stream: &str,
        group: &str,
        partitions: u32,
        waker: Waker,
    ) -> Result<Membership, Problem> {
        let group = self.group(stream, group)?;
        let mut state = group.lock();
        if state.members.len() >= MEMBERS_MAX {
            let message = format!("a group has at most {MEMBERS_MAX} members");
            return Err(problem(code::TOO_MANY, message));
        }
        let id = state.next_id;
        state.next_id += 1;
        state.members.push(GroupMember { id, waker });
        let partitions = state.readers.len().max(partitions as usize);
        state.readers.resize(partitions, None);
        state.rebalance();
        state.wake_all();
        drop(state);
        Ok(Membership { group, id })
    }

    /// Returns a group's member count on this server.
    pub(super) fn members(&self, stream: &str, group: &str) -> usize {
        let streams = self.0.lock();
        let group = streams.get(stream).and_then(|groups| groups.get(group)).and_then(Weak::upgrade);
        group.map_or(0, |group| group.lock().members.len())
    }

    /// Checks that a commit does not move the offset of a partition that another member reads. While a group has
    /// members on this server, only a partition's reader commits there: a member whose partition has moved would
    /// overwrite the next reader's commits. `members` are the caller's memberships in the group: a connection may have
    /// several.
    pub(super) fn check_commit<'a>(
        &self,
        stream: &str,
        group: &str,
        partition: u32,
        members: impl IntoIterator<Item = &'a Membership>,
    ) -> Result<(), Problem> {
        let streams = self.0.lock();
        let found = streams.get(stream).and_then(|groups| groups.get(group)).and_then(Weak::upgrade);
        drop(streams);
        let Some(found) = found else { return Ok(()) };
        let state = found.lock();
        let reader = state.readers.get(partition as usize).copied().flatten();
        let is_reader = reader.is_some_and(|reader| members.into_iter().any(|member| member.id == reader));
        if state.members.is_empty() || is_reader {
            return Ok(());
        }
        drop(state);
        let text = format!(
            "group {}: only the member that partition {partition} is assigned to commits there",
            brief(group)
        );
        Err(problem(code::NOT_SUBSCRIBED, text))
    }

    /// Removes a deleted stream: its members are notified, and its name is free.
    pub(super) fn remove(&self, stream: &str) {
        let groups = self.0.lock().remove(stream);
        for group in groups.into_iter().flatten().filter_map(|(_, group)| group.upgrade()) {
            let mut state = group.lock();
            state.is_deleted = true;
            state.wake_all();
        }
    }

    fn group(&self, stream: &str, group: &str) -> Result<Arc<ConsumerGroup>, Problem> {
        let mut streams = self.0.lock();
        if !streams.contains_key(stream) {
            // Streams without members release their entry.
            streams.retain(|_, groups| groups.values().any(|group| group.strong_count() > 0));
        }
        let groups = streams.entry(stream.to_owned()).or_default();
        if let Some(group) = groups.get(group).and_then(Weak::upgrade) {
            return Ok(group);
        }
        groups.retain(|_, group| group.strong_count() > 0);
        if groups.len() >= GROUPS_MAX {
            let message = format!("at most {GROUPS_MAX} groups of a stream have members");
            return Err(problem(code::TOO_MANY, message));
        }
        let new = Arc::default();
        groups.insert(group.to_owned(), Arc::downgrade(&new));
        Ok(new)
    }
}

impl ConsumerGroup {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl State {
    /// Assigns each member the same number of partitions, or one more; members keep partitions as far as possible.
    fn rebalance(&mut self) {
        let (partitions, members) = (self.readers.len(), self.members.len().max(1));
        let (each, more) = (partitions / members, partitions % members);
        let mut assigned = vec![None; partitions];
        let mut spare = more;
        let mut held: HashMap<u64, Vec<usize>> = HashMap::new();
        for (at, reader) in self.assigned.iter().take(partitions).enumerate() {
            reader.iter().for_each(|id| held.entry(*id).or_default().push(at));
        }
        // Each member, and how many partitions it lacks and keeps.
        let mut short: Vec<(u64, usize, usize)> = Vec::new();
        for member in &self.members {
            let retained = held.remove(&member.id).unwrap_or_default();
            // A member that already has more may keep one more.
            let quota = each + usize::from(spare > 0 && retained.len() > each);
            spare -= quota - each;
            let retained = &retained[..retained.len().min(quota)];
            retained.iter().for_each(|at| assigned[*at] = Some(member.id));
            short.push((member.id, quota - retained.len(), retained.len()));
        }
        let full = |(id, missing, _): &(u64, usize, usize)| std::iter::repeat_n(*id, *missing);
        let one_more = short.iter().filter(|(_, _, retained)| *retained <= each).map(|(id, ..)| *id);
        let rest: Vec<u64> = short.iter().flat_map(full).chain(one_more).collect();
        let mut rest = rest.into_iter();
        assigned
            .iter_mut()
            .filter(|assigned| assigned.is_none())
            .for_each(|assigned| *assigned = rest.next());
        self.assigned = assigned;
    }

    fn wake_all(&self) {
        self.members.iter().for_each(|member| member.waker.wake_by_ref());
    }
}

impl Membership {
    /// Whether the stream was deleted.
    pub(super) fn is_deleted(&self) -> bool {
        self.group.lock().is_deleted
    }

    /// The partitions that this member stops reading now, and the partitions that it reads from now on.
    pub(super) fn reassignment(&self) -> Reassignment {
        let mut state = self.group.lock();
        let State { members, readers, assigned, .. } = &mut *state;
        let (mut reassignment, mut has_released) = (Reassignment::default(), false);
        for (at, (reader, assigned)) in readers.iter_mut().zip(assigned).enumerate() {
            match (*reader == Some(self.id), *assigned == Some(self.id)) {
                (true, false) => {
                    *reader = None;
                    has_released = true;
                    reassignment.lost.push(at as u32);
                }
                (false, true) if reader.is_none() => {
                    *reader = Some(self.id);
                    reassignment.gained.push(at as u32);
                }
                _ => {}
            }
        }
        if has_released {
            let others = members.iter().filter(|member| member.id != self.id);
            others.for_each(|member| member.waker.wake_by_ref());
        }
        reassignment
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut state = self.group.lock();
        state.members.retain(|member| member.id != self.id);
        state.readers.iter_mut().filter(|reader| **reader == Some(self.id)).for_each(|reader| *reader = None);
        state.rebalance();
        state.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct CountedWakes(AtomicUsize);

    impl Wake for CountedWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct TestMember {
        membership: Membership,
        reads: Vec<u32>,
    }

    impl TestMember {
        fn join(groups: &ActiveGroups, partitions: u32) -> Self {
            let membership = groups.join("s", "g", partitions, Waker::noop().clone()).unwrap();
            Self { membership, reads: Vec::new() }
        }

        fn settle(&mut self) {
            let Reassignment { lost, gained } = self.membership.reassignment();
            self.reads.retain(|partition| !lost.contains(partition));
            self.reads.extend(gained);
            self.reads.sort_unstable();
        }
    }

    /// Lets all members process all changes, in any order.
    fn settle(readers: &mut [TestMember]) {
        for _ in 0..2 {
            readers.iter_mut().for_each(TestMember::settle);
            assert_disjoint(readers);
        }
    }

    fn assert_disjoint(readers: &[TestMember]) {
        let mut all: Vec<u32> = readers.iter().flat_map(|reader| reader.reads.iter().copied()).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count, "a partition has two readers");
    }

    #[test]
    fn partitions_are_assigned_evenly_as_members_join_and_leave() {
        let groups = ActiveGroups::default();
        let mut readers: Vec<TestMember> = Vec::new();
        for partitions in [7, 8, 12] {
            for _ in 0..5 {
                readers.push(TestMember::join(&groups, partitions));
                settle(&mut readers);
                check(&readers, partitions);
            }
            while readers.len() > 1 {
                let removed = readers.len() * 3 / 7 % readers.len();
                readers.remove(removed);
                settle(&mut readers);
                check(&readers, partitions);
            }
        }
    }

    fn check(readers: &[TestMember], partitions: u32) {
        let all: usize = readers.iter().map(|reader| reader.reads.len()).sum();
        assert_eq!(all, partitions as usize, "every partition has a reader");
        let most = readers.iter().map(|reader| reader.reads.len()).max().unwrap_or(0);
        let least = readers.iter().map(|reader| reader.reads.len()).min().unwrap_or(0);
        assert!(most - least <= 1, "{least} to {most}");
    }

    #[test]
    fn moving_partition_has_no_reader_until_it_is_released() {
        let groups = ActiveGroups::default();
        let mut first = TestMember::join(&groups, 2);
        first.settle();
        assert_eq!(first.reads, [0, 1]);
        let mut second = TestMember::join(&groups, 2);
        second.settle();
        assert_eq!(second.reads, [0; 0], "the first member has not released yet");
        first.settle();
        second.settle();
        assert_eq!((first.reads.len(), second.reads.len()), (1, 1));
        assert_disjoint(&[first, second]);
    }

    #[test]
    fn rebalancing_moves_few_partitions() {
        let groups = ActiveGroups::default();
        let mut readers = vec![TestMember::join(&groups, 6), TestMember::join(&groups, 6)];
        settle(&mut readers);
        let before: Vec<Vec<u32>> = readers.iter().map(|reader| reader.reads.clone()).collect();
        readers.push(TestMember::join(&groups, 6));
        settle(&mut readers);
        for (reader, before) in readers.iter().zip(before) {
            assert!(reader.reads.iter().all(|partition| before.contains(partition)));
        }
        assert_eq!(readers[2].reads.len(), 2);
    }

    #[test]
    fn surplus_member_is_assigned_a_partition_when_another_leaves() {
        let groups = ActiveGroups::default();
        let mut readers: Vec<TestMember> = (0..3).map(|_| TestMember::join(&groups, 1)).collect();
        settle(&mut readers);
        assert_eq!(readers.iter().filter(|reader| reader.reads.is_empty()).count(), 2);
        let reads = readers.iter().position(|reader| !reader.reads.is_empty()).unwrap();
        readers.remove(reads);
        settle(&mut readers);
        assert_eq!(readers.iter().filter(|reader| !reader.reads.is_empty()).count(), 1);
    }

    #[test]
    fn members_are_woken_by_each_change_that_concerns_them() {
        let (groups, count) = (ActiveGroups::default(), Arc::new(CountedWakes::default()));
        let was_woken = || count.0.swap(0, Ordering::Relaxed) > 0;
        let join = |waker| groups.join("s", "g", 2, waker).unwrap();
        let first = join(Waker::noop().clone());
        assert_eq!(first.reassignment().gained, [0, 1]);
        let second = join(Waker::from(Arc::clone(&count)));
        assert!(was_woken(), "it joins");
        assert_eq!((first.reassignment().lost.len(), was_woken()), (1, true), "a partition is released");
        second.reassignment();
        let third = join(Waker::noop().clone());
        assert!(was_woken(), "another member joins");
        second.reassignment();
        was_woken();
        drop((first, third));
        assert!(was_woken(), "others leave");
        assert_eq!(second.reassignment().gained.len(), 1);
        groups.remove("s");
        assert!(was_woken() && second.is_deleted());
    }

    #[test]
    fn only_the_reader_of_a_partition_commits_while_a_group_has_members() {
        let groups = ActiveGroups::default();
        let check = |partition, member: Option<&TestMember>| {
            let member = member.map(|member| &member.membership);
            groups.check_commit("s", "g", partition, member).map_err(|problem| problem.code)
        };
        assert_eq!(check(0, None), Ok(()), "without members, readers assign themselves");
        let mut first = TestMember::join(&groups, 2);
        assert_eq!(check(0, Some(&first)), Err(409), "before its assignment");
        first.settle();
        assert_eq!(
            (check(0, Some(&first)), check(1, Some(&first)), check(0, None)),
            (Ok(()), Ok(()), Err(409))
        );
        let mut second = TestMember::join(&groups, 2);
        first.settle();
        second.settle();
        let (own, other) = (u32::from(first.reads == [1]), u32::from(first.reads == [0]));
        // The first member has lost a partition.
        assert_eq!((check(own, Some(&first)), check(other, Some(&first))), (Ok(()), Err(409)));
        assert_eq!((check(other, Some(&second)), check(own, Some(&second))), (Ok(()), Err(409)));
        assert_eq!(check(2, Some(&first)), Err(409), "a partition that no member reads");
        for partition in 0..3 {
            let members = [&first.membership, &second.membership];
            let checked = groups.check_commit("s", "g", partition, members).map_err(|problem| problem.code);
            assert_eq!(
                checked,
                if partition < 2 { Ok(()) } else { Err(409) },
                "a caller with both memberships"
            );
        }
        assert_eq!(groups.check_commit("s", "h", 0, Some(&first.membership)).map_err(|it| it.code), Ok(()));
        drop((first, second));
        assert_eq!(check(0, None), Ok(()));
    }

    #[test]
    fn group_without_members_is_removed() {
        let groups = ActiveGroups::default();
        let join = |stream, group| groups.join(stream, group, 1, Waker::noop().clone()).unwrap();
        drop((join("s", "g"), join("t", "g")));
        let _other = (join("s", "h"), join("u", "h"));
        let streams = groups.0.lock();
        let names = |stream| streams.get(stream).map(|groups| groups.keys().cloned().collect::<Vec<_>>());
        assert_eq!((names("s"), names("t")), (Some(vec!["h".to_owned()]), None));
    }

    #[test]
    fn members_and_groups_beyond_their_limits_are_rejected() {
        let groups = ActiveGroups::default();
        let join = |stream: &str, group: &str| groups.join(stream, group, 1, Waker::noop().clone());
        let refused = |joined: Result<Membership, Problem>| joined.map(drop).unwrap_err();
        let mut all: Vec<_> = (0..MEMBERS_MAX).map(|_| join("s", "g").unwrap()).collect();
        let problem = refused(join("s", "g"));
        assert_eq!((problem.code, &*problem.text), (429, "a group has at most 1024 members"));
        all.pop();
        all.push(join("s", "g").unwrap());
        all.extend((1..GROUPS_MAX).map(|number| join("s", &number.to_string()).unwrap()));
        let problem = refused(join("s", "more"));
        assert_eq!((problem.code, &*problem.text), (429, "at most 1024 groups of a stream have members"));
        assert!(join("t", "more").is_ok(), "limit of another stream");
        all.pop();
        assert!(join("s", "more").is_ok(), "a group was removed");
    }
}
