//! The members of a topic in order of their ids.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// A member of a topic, with its connections.
#[derive(Debug)]
pub(super) struct JoinedMember {
    pub(super) info: Arc<[u8]>,
    /// Restored connections and those of other servers included.
    pub(super) connections: MemberCount,
    /// Restored connections that have not returned yet.
    pub(super) restored: MemberCount,
    /// Connections of other servers.
    pub(super) remote: MemberCount,
}

/// Connections of one member, at most 4,294,967,295. There may be a member for each connection: three numbers of 64
/// bits would take half as much memory again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MemberCount(u32);

impl MemberCount {
    pub(super) fn new(count: usize) -> Self {
        Self(u32::try_from(count).unwrap_or(u32::MAX))
    }

    pub(super) fn get(self) -> usize {
        self.0 as usize
    }

    /// Adds connections, or removes them.
    pub(super) fn adjusted(self, delta: isize) -> Self {
        Self::new(self.get().saturating_add_signed(delta))
    }
}

/// Members in order of their ids. Most topics have few members: a list of five takes half of the memory of a tree,
/// whose smallest node has capacity for eleven.
#[derive(Debug)]
pub(super) enum PresentMembers {
    /// In order, without spare capacity.
    Few(Vec<(Arc<str>, JoinedMember)>),
    Many(BTreeMap<Arc<str>, JoinedMember>),
}

/// Maximum number of members in a list.
const FEW: usize = 16;

impl Default for PresentMembers {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl PresentMembers {
    pub(super) const EMPTY: Self = Self::Few(Vec::new());

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Few(list) => list.len(),
            Self::Many(tree) => tree.len(),
        }
    }

    pub(super) fn get(&self, id: &str) -> Option<&JoinedMember> {
        match self {
            Self::Few(list) => find(list, id).ok().map(|at| &list[at].1),
            Self::Many(tree) => tree.get(id),
        }
    }

    pub(super) fn get_mut(&mut self, id: &str) -> Option<&mut JoinedMember> {
        match self {
            Self::Few(list) => find(list, id).ok().map(|at| &mut list[at].1),
            Self::Many(tree) => tree.get_mut(id),
        }
    }

    /// Adds a member that is absent.
    pub(super) fn insert(&mut self, id: Arc<str>, member: JoinedMember) {
        match self {
            Self::Few(list) if list.len() < FEW => {
                let at = find(list, &id).unwrap_or_else(|at| at);
                list.reserve_exact(1);
                list.insert(at, (id, member));
            }
            Self::Few(list) => {
                let mut tree: BTreeMap<_, _> = std::mem::take(list).into_iter().collect();
                tree.insert(id, member);
                *self = Self::Many(tree);
            }
            Self::Many(tree) => _ = tree.insert(id, member),
        }
    }

    pub(super) fn remove(&mut self, id: &str) -> Option<JoinedMember> {
        match self {
            Self::Few(list) => {
                let (_, removed) = list.remove(find(list, id).ok()?);
                list.shrink_to_fit();
                Some(removed)
            }
            Self::Many(tree) => {
                let removed = tree.remove(id);
                if tree.is_empty() {
                    *self = Self::EMPTY;
                }
                removed
            }
        }
    }

    /// Returns the members after an id, or from the first.
    pub(super) fn after(&self, after: Option<&str>) -> impl Iterator<Item = (&Arc<str>, &JoinedMember)> {
        let (list, tree) = match self {
            Self::Few(list) => {
                let start = after.map_or(0, |after| list.partition_point(|(id, _)| **id <= *after));
                (&list[start..], None)
            }
            Self::Many(tree) => {
                let start = after.map_or(Bound::Unbounded, Bound::Excluded);
                (&[][..], Some(tree.range::<str, _>((start, Bound::Unbounded))))
            }
        };
        list.iter().map(|(id, member)| (id, member)).chain(tree.into_iter().flatten())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &JoinedMember)> {
        self.after(None)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&Arc<str>, &mut JoinedMember)> {
        let (list, tree) = match self {
            Self::Few(list) => (&mut list[..], None),
            Self::Many(tree) => (&mut [][..], Some(tree.iter_mut())),
        };
        list.iter_mut().map(|(id, member)| (&*id, member)).chain(tree.into_iter().flatten())
    }
}

fn find(list: &[(Arc<str>, JoinedMember)], id: &str) -> Result<usize, usize> {
    list.binary_search_by(|(known, _)| (**known).cmp(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(connections: usize) -> JoinedMember {
        JoinedMember {
            info: Arc::default(),
            connections: MemberCount::new(connections),
            restored: MemberCount::default(),
            remote: MemberCount::default(),
        }
    }

    #[test]
    fn rosters_of_all_sizes_are_maps_in_order() {
        let (mut members, mut expected) = (PresentMembers::default(), BTreeMap::new());
        let mut state = 7_u64;
        for step in 0..4_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // The number of members rises beyond that of a list, and falls to zero, several times.
            let grows = (step / 250) % 2 == 0;
            let id: Arc<str> = format!("{}", (state >> 33) % (3 * FEW as u64)).into();
            match (members.get(&id).is_some(), grows) {
                (false, true) => {
                    members.insert(id.clone(), member(step));
                    expected.insert(id.clone(), step);
                }
                (true, false) => {
                    let removed = members.remove(&id).map(|member| member.connections.get());
                    assert_eq!(removed, expected.remove(&id));
                }
                _ => assert!(grows || members.remove(&id).is_none()),
            }
            assert_eq!(members.len(), expected.len());
            assert_eq!(members.get(&id).map(|member| member.connections.get()), expected.get(&id).copied());
            let known = |(id, member): (&Arc<str>, &JoinedMember)| (id.clone(), member.connections.get());
            assert!(members.iter().map(known).eq(expected.clone()));
            let range = expected.range::<str, _>((Bound::Excluded(&*id), Bound::Unbounded));
            assert!(members.after(Some(&id)).map(known).eq(range.map(|(id, count)| (id.clone(), *count))));
        }
    }

    #[test]
    fn small_rosters_have_no_spare_capacity() {
        let mut members = PresentMembers::default();
        let capacity = |members: &PresentMembers| match members {
            PresentMembers::Few(list) => Some(list.capacity()),
            PresentMembers::Many(_) => None,
        };
        for number in 0..FEW {
            members.insert(number.to_string().into(), member(1));
            assert_eq!(capacity(&members), Some(number + 1));
        }
        members.remove("3");
        assert_eq!(capacity(&members), Some(FEW - 1));
        (20..30).for_each(|number| members.insert(number.to_string().into(), member(1)));
        assert_eq!(capacity(&members), None);
        (0..30).for_each(|number| _ = members.remove(&number.to_string()));
        assert_eq!(capacity(&members), Some(0), "a topic that was large is small again");
        members.insert("a".into(), member(1));
        members.iter_mut().for_each(|(_, member)| member.connections = MemberCount::new(9));
        assert_eq!(members.get_mut("a").map(|member| member.connections.get()), Some(9));
    }
}
