//! Updates of the presence of a topic: the effect of its changes since the previous update.

use std::sync::Arc;
use std::time::Instant;

use super::changes::MemberChange;
use super::interval::PresenceInterval;
use super::member::{
    CHANGE_TEXT, CHANGED_BYTES_MAX, Member, PresencePart, PresenceTransition, PresenceUpdate,
    TRANSITION_BYTES_MAX, TRANSITIONS_MAX,
};
use super::present_members::JoinedMember;
use super::table::TopicMembers;

impl TopicMembers {
    /// Takes the update of a topic at this time; `None` without an effect. The next update follows after the interval.
    pub(super) fn take_update(
        &mut self,
        topic: Arc<str>,
        now: Instant,
        interval: PresenceInterval,
    ) -> Option<PresenceUpdate> {
        let count = self.count();
        let interval = interval.for_watchers(self.changes()?.watchers);
        let mut taken = self.changes_mut()?.take(count.version, count.connections, now, interval);
        let mut update = PresenceUpdate {
            topic,
            count,
            since: taken.since,
            connections_before: taken.connections_before,
            joined: Vec::new(),
            left: Vec::new(),
            versions: [Vec::new(), Vec::new()],
            transitions: Vec::new(),
            members: Vec::new(),
            is_complete: true,
            has_transitions: true,
        };
        let mut bytes = 0;
        let mut changes: Vec<_> = std::mem::take(&mut taken.before).into_iter().collect();
        changes.sort_unstable_by_key(|(_, change)| change.version);
        let changed = changes.len();
        for (id, change) in changes {
            let now = self.members().get(&id);
            if changed <= TRANSITIONS_MAX {
                update.transitions.extend(transitions_of(&id, &change, now, taken.observed));
            }
            // The text of an id has a backslash before each of these.
            bytes += id.len() + id.bytes().filter(|byte| b"\"\\".contains(byte)).count() + CHANGE_TEXT;
            match (change.before, now) {
                (Some(before), Some(member)) if before == member.info && !taken.observed => {}
                (_, Some(member)) => {
                    bytes += member.info.len();
                    update.joined.push(Member { id, info: member.info.clone() });
                    update.versions[0].push(change.version);
                }
                (None, None) if !taken.observed => {}
                (_, None) => {
                    update.left.push(id);
                    update.versions[1].push(change.version);
                }
            }
        }
        update.transitions.sort_by_key(PresenceTransition::version);
        let is_told = taken.overflowed || taken.counts_differ || taken.observed;
        if !is_told && update.joined.is_empty() && update.left.is_empty() {
            if let Some(changes) = self.changes_mut() {
                changes.set_since(update.since);
            }
            return None;
        }
        if taken.overflowed || bytes > CHANGED_BYTES_MAX {
            // Of the same time as the version: later joins are in the next update.
            update.omit_changes(self.list());
        } else if changed > TRANSITIONS_MAX || bytes > TRANSITION_BYTES_MAX {
            update.omit_transitions(self.list());
        }
        Some(update)
    }
}

impl PresenceUpdate {
    /// Replaces the changes by all members.
    fn omit_changes(&mut self, members: Vec<Member>) {
        (self.joined, self.left, self.versions) = Default::default();
        self.is_complete = false;
        self.omit_transitions(members);
    }

    /// Replaces the transitions by all members.
    fn omit_transitions(&mut self, members: Vec<Member>) {
        self.transitions = Vec::new();
        self.members = members;
        self.has_transitions = false;
    }

    /// Splits the update for protocols with bounded messages: parts with at most this number of changed members, at
    /// least one part. They are in the order of the changes: each part leads from the version of the previous part to
    /// its own.
    pub fn parts(&self, changes: usize) -> impl Iterator<Item = PresencePart<'_>> {
        let mut next = Some((self.since, 0, 0));
        std::iter::from_fn(move || {
            let (since, joined, left) = next.take()?;
            let (mut to_join, mut to_leave, mut version) = (joined, left, self.count.version);
            for _ in 0..changes.max(1) {
                let at = (self.versions[0].get(to_join), self.versions[1].get(to_leave));
                match at {
                    (None, None) => break,
                    (Some(join), leave) if leave.is_none_or(|leave| join <= leave) => {
                        (to_join, version) = (to_join + 1, *join);
                    }
                    (_, leave) => (to_leave, version) = (to_leave + 1, leave.copied().unwrap_or(version)),
                }
            }
            if (to_join, to_leave) == (self.joined.len(), self.left.len()) {
                version = self.count.version;
            } else {
                next = Some((version, to_join, to_leave));
            }
            let (joined, left) = (&self.joined[joined..to_join], &self.left[left..to_leave]);
            Some(PresencePart { since, version, joined, left })
        })
    }
}

/// The joins and leaves of a member that a watcher may not know.
fn transitions_of(
    id: &Arc<str>,
    change: &MemberChange,
    now: Option<&JoinedMember>,
    observed: bool,
) -> impl Iterator<Item = PresenceTransition> {
    let MemberChange { before, last, left, version } = change;
    let transition = |info: &Arc<[u8]>, has_joined, version| {
        let (id, info) = (id.clone(), info.clone());
        PresenceTransition { id, info, has_joined, version }
    };
    let leave = |version| transition(&last.clone().unwrap_or_default(), false, version);
    let join = |member: &JoinedMember| transition(&member.info, true, *version);
    let pair = match (before, now) {
        (None, Some(member)) => [None, Some(join(member))],
        (Some(_), None) => [Some(leave(*version)), None],
        // A watcher may know the state in between.
        (Some(_), Some(member)) if observed && *left > 0 => [Some(leave(*left)), Some(join(member))],
        (None, None) if observed => [Some(leave(*version)), None],
        _ => [None, None],
    };
    pair.into_iter().flatten()
}
