//! All topics' presence, shared by the threads.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};

use super::changes::PresenceChanges;
use super::interval::PresenceIntervals;
use super::member::{
    MEMBERS_MAX, Member, PresenceCount, PresenceError, PresenceMessage, PresenceSnapshot, PresenceUpdate,
};
use super::noted::NotedChanges;
use super::present_members::{JoinedMember, MemberCount, PresentMembers};

/// Encodes an update for its watchers.
pub(crate) struct EncodeUpdate(EncodeFn);

type EncodeFn = Box<dyn Fn(&PresenceUpdate) -> Vec<PresenceMessage> + Send + Sync>;

impl EncodeUpdate {
    pub(crate) fn new<M>(encode: impl Fn(&PresenceUpdate) -> M + Send + Sync + 'static) -> Self
    where
        M: IntoIterator<Item: Into<PresenceMessage>>,
    {
        Self(Box::new(move |update| encode(update).into_iter().map(Into::into).collect()))
    }
}

impl fmt::Debug for EncodeUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EncodeUpdate")
    }
}

/// All topics' members. Locked for a join or a leave, never for a publication.
#[derive(Debug)]
pub(crate) struct PresenceTable {
    state: Mutex<TableState>,
    pub(super) bytes_max: usize,
    encode: Option<EncodeUpdate>,
    intervals: PresenceIntervals,
}

#[derive(Debug, Default)]
pub(super) struct TableState {
    /// By name, so that lists by prefix look at no other topics.
    pub(super) topics: BTreeMap<Arc<str>, TopicMembers>,
    /// All topics' members; a member in two topics counts twice.
    members: usize,
    /// Approximate memory for all members.
    pub(super) bytes: usize,
    /// The largest version that a removed topic had: a topic that returns goes on from there.
    removed_version: u64,
    /// Another server has taken over: no updates are published.
    pub(super) paused: bool,
    /// When restored members without a connection leave.
    restored_until: Option<Instant>,
    /// Changes that other servers do not know, if they share the topics.
    pub(super) unshared: Option<Box<NotedChanges>>,
    /// Changes to all members, if the program observes them.
    pub(super) observed: Option<Box<NotedChanges>>,
}

/// One topic's presence. There may be a topic for each connection, so few fields are in place.
#[derive(Debug, Default)]
pub(super) struct TopicMembers {
    /// Joined connections, restored ones and other servers' included.
    pub(super) connections: usize,
    version: u64,
    details: Option<Box<TopicDetails>>,
}

/// What most topics lack: connections without a member are a number.
#[derive(Debug)]
pub(super) struct TopicDetails {
    pub(super) members: PresentMembers,
    /// Connections at other servers.
    pub(super) remote: usize,
    /// Restored connections without a member that have not returned yet.
    restored_anonymous: usize,
    /// While it is watched.
    pub(super) changes: Option<Box<PresenceChanges>>,
}

impl TopicDetails {
    const NONE: Self =
        Self { members: PresentMembers::EMPTY, remote: 0, restored_anonymous: 0, changes: None };
}

/// Topic with a change, and when its worker has to publish an update, if no update is scheduled yet.
#[derive(Debug)]
pub(crate) struct Changed {
    pub(crate) topic: Arc<str>,
    pub(crate) count: PresenceCount,
    pub(crate) due: Option<Instant>,
}

/// Memory per member besides its id and info, in bytes.
const MEMBER_COST: usize = 128;

pub(super) fn cost(id: &str, info: &[u8]) -> usize {
    MEMBER_COST + id.len() + info.len()
}

impl PresenceTable {
    /// Creates a table with a memory limit for all members in bytes.
    pub(crate) fn new(bytes_max: usize, encode: Option<EncodeUpdate>) -> Self {
        Self { state: Mutex::default(), bytes_max, encode, intervals: PresenceIntervals::default() }
    }

    /// Sets the update intervals.
    pub(crate) fn with_intervals(self, intervals: PresenceIntervals) -> Self {
        Self { intervals, ..self }
    }

    pub(crate) fn has_encoder(&self) -> bool {
        self.encode.is_some()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, TableState> {
        self.state.lock()
    }

    /// Adds a member's connection, or one without a member.
    #[cfg(test)]
    pub(super) fn join(
        &self,
        topic: &str,
        member: Option<&Member>,
        now: Instant,
    ) -> Result<Changed, PresenceError> {
        self.join_named(topic, None, member, now)
    }

    /// Adds a member's connection, or one without a member. If a copy of the topic's name is known, a new topic shares
    /// it.
    pub(crate) fn join_named(
        &self,
        topic: &str,
        known_name: Option<&Arc<str>>,
        member: Option<&Member>,
        now: Instant,
    ) -> Result<Changed, PresenceError> {
        let mut state = self.lock();
        if let Some(member) = member {
            let known = state.topics.get(topic).and_then(|topic| topic.members().get(&member.id));
            let before = known.map_or(0, |known| cost(&member.id, &known.info));
            let bytes = state.bytes - before + cost(&member.id, &member.info);
            if bytes > self.bytes_max && bytes > state.bytes {
                return Err(PresenceError::Full);
            }
            state.bytes = bytes;
        }
        if let Some(name) = known_name {
            state.get_or_insert_named(name);
        }
        let changed = state.change(topic, now, |topic| match member {
            Some(member) => topic.add(member),
            None => topic.add_anonymous(),
        });
        state.note_own(&changed.topic, member.map(|member| &member.id), None);
        Ok(changed)
    }

    /// Removes a member's connection, or one without a member.
    pub(crate) fn leave(&self, topic: &str, id: Option<&Arc<str>>, now: Instant) -> Changed {
        let mut state = self.lock();
        let known = state.topics.get(topic).zip(id).and_then(|(topic, id)| topic.members().get(id));
        let last = known.map(|known| known.info.clone());
        let mut freed = 0;
        let changed = state.change(topic, now, |topic| {
            topic.connections = topic.connections.saturating_sub(1);
            if let Some(id) = id {
                freed = topic.remove_connections(id, 1);
            }
        });
        state.bytes -= freed;
        state.note_own(&changed.topic, id, last.as_ref());
        state.prune(topic);
        changed
    }

    /// Replaces a present member's info.
    pub(crate) fn set_info(
        &self,
        topic: &str,
        member: &Member,
        now: Instant,
    ) -> Result<Changed, PresenceError> {
        let mut state = self.lock();
        let known = state.topics.get(topic).and_then(|topic| topic.members().get(&member.id));
        let is_same = known.is_none_or(|known| known.info == member.info);
        let before = known.map_or(0, |known| known.info.len());
        if is_same {
            let found = state.topics.get_key_value(topic);
            let (name, count) = found.map_or_else(
                || (topic.into(), PresenceCount::default()),
                |(name, topic)| (name.clone(), topic.count()),
            );
            return Ok(Changed { topic: name, count, due: None });
        }
        let bytes = state.bytes - before + member.info.len();
        if bytes > self.bytes_max && bytes > state.bytes {
            return Err(PresenceError::Full);
        }
        state.bytes = bytes;
        let changed = state.change(topic, now, |topic| topic.replace_info(member));
        state.note_own(&changed.topic, Some(&member.id), None);
        Ok(changed)
    }

    /// Starts a topic's updates for one more watcher.
    pub(crate) fn watch(&self, topic: &str, now: Instant) -> (Arc<str>, PresenceCount) {
        let mut state = self.lock();
        let (name, topic) = state.get_or_insert(topic);
        let (version, connections) = (topic.version, topic.connections);
        let new = || Box::new(PresenceChanges::new(version, connections, now));
        topic.details_mut().changes.get_or_insert_with(new).watchers += 1;
        (name, topic.observe())
    }

    pub(crate) fn unwatch(&self, topic: &str) {
        let mut state = self.lock();
        if let Some(details) = state.topics.get_mut(topic).and_then(|topic| topic.details.as_mut()) {
            details.changes.take_if(|changes| {
                changes.watchers = changes.watchers.saturating_sub(1);
                changes.watchers == 0
            });
        }
        state.prune(topic);
    }

    /// Takes back a scheduled update that no worker can publish: the next change schedules one.
    pub(super) fn unschedule(&self, topic: &str) {
        if let Some(changes) = self.lock().topics.get_mut(topic).and_then(TopicMembers::changes_mut) {
            changes.unschedule();
        }
    }

    /// Returns the messages for a scheduled update; none if nothing has changed in effect.
    pub(crate) fn take_messages(&self, topic: &str, now: Instant) -> Vec<PresenceMessage> {
        // The application's code runs without the lock.
        match (self.take_update(topic, now), &self.encode) {
            (Some(update), Some(encode)) => (encode.0)(&update),
            _ => Vec::new(),
        }
    }

    pub(super) fn take_update(&self, topic: &str, now: Instant) -> Option<PresenceUpdate> {
        // The application's code runs without the lock.
        let interval = self.intervals.for_topic(topic);
        let mut state = self.lock();
        let paused = state.paused;
        let name = state.topics.get_key_value(topic)?.0.clone();
        state.topics.get_mut(topic)?.take_update(name, now, interval).filter(|_| !paused)
    }

    pub(crate) fn count(&self, topic: &str) -> PresenceCount {
        self.lock().topics.get_mut(topic).map(TopicMembers::observe).unwrap_or_default()
    }

    /// Returns all members ordered by id, and the numbers at the same time.
    pub(crate) fn roster(&self, topic: &str) -> (PresenceCount, Vec<Member>) {
        let mut state = self.lock();
        let Some(topic) = state.topics.get_mut(topic) else { return Default::default() };
        (topic.observe(), topic.list())
    }

    /// Returns a member that is present.
    pub(crate) fn member(&self, topic: &str, id: &str) -> Option<Member> {
        let state = self.lock();
        let known = state.topics.get(topic)?.members().get(id)?;
        Some(Member { id: id.into(), info: known.info.clone() })
    }

    /// Returns members ordered by id, after a given one, each with its connection count.
    pub(crate) fn members(&self, topic: &str, after: Option<&str>, limit: usize) -> Vec<(Member, usize)> {
        let mut state = self.lock();
        let Some(topic) = state.topics.get_mut(topic) else { return Vec::new() };
        topic.observe();
        topic.list_after(after, limit)
    }

    /// Exports all members.
    pub(crate) fn export(&self) -> Vec<PresenceSnapshot> {
        let state = self.lock();
        let joined = state.topics.iter().filter(|(_, topic)| topic.connections > topic.remote());
        joined.map(|(name, topic)| topic.export(name)).collect()
    }

    /// Publishes no more updates.
    pub(crate) fn pause(&self) {
        self.lock().paused = true;
    }

    /// Publishes updates again. Each topic's next update has the numbers only.
    pub(crate) fn resume(&self) {
        let mut state = self.lock();
        state.paused = false;
        if let Some(observed) = &mut state.observed {
            observed.overflow();
        }
        for topic in state.topics.values_mut() {
            if let Some(changes) = topic.changes_mut() {
                changes.overflow();
            }
        }
    }

    /// Restores another server's export. Members without a connection here leave at this time.
    pub(crate) fn restore(&self, topics: Vec<PresenceSnapshot>, until: Instant) {
        let mut state = self.lock();
        state.restored_until = Some(until);
        for PresenceSnapshot { topic, members, anonymous } in topics {
            let (mut bytes, mut added) = (state.bytes, 0);
            let (name, restored) = state.get_or_insert(&topic);
            restored.version += 1;
            restored.connections += anonymous;
            restored.details_mut().restored_anonymous += anonymous;
            let mut ids = Vec::new();
            for (member, connections) in members {
                let cost = cost(&member.id, &member.info);
                match restored.details_mut().members.get_mut(&member.id) {
                    // A member at other servers only.
                    Some(known) if known.connections == known.remote => {
                        known.connections = MemberCount::new(known.connections.get() + connections);
                        known.restored = MemberCount::new(connections);
                    }
                    None if bytes + cost <= self.bytes_max && connections > 0 => {
                        bytes += cost;
                        let info = member.info;
                        let (restored_count, remote) =
                            (MemberCount::new(connections), MemberCount::default());
                        let joined = JoinedMember {
                            info,
                            connections: restored_count,
                            restored: restored_count,
                            remote,
                        };
                        restored.details_mut().members.insert(member.id.clone(), joined);
                        added += 1;
                    }
                    _ => continue,
                }
                restored.connections += connections;
                ids.push(member.id);
            }
            state.bytes = bytes;
            state.members += added;
            state.note_own(&name, None, None);
            ids.iter().for_each(|id| state.note_own(&name, Some(id), None));
        }
    }

    /// Returns when restored members leave, if there are any.
    pub(crate) fn restored_until(&self) -> Option<Instant> {
        self.lock().restored_until
    }

    /// Removes restored connections that have not returned in time. Returns the topics to update.
    pub(crate) fn expire_restored(&self, now: Instant) -> Vec<Changed> {
        let mut state = self.lock();
        if state.restored_until.take_if(|until| *until <= now).is_none() {
            return Vec::new();
        }
        let names: Vec<Arc<str>> = state.topics.keys().cloned().collect();
        let mut all = Vec::new();
        for name in names {
            if !state.topics.get(&name).is_some_and(TopicMembers::has_restored) {
                continue;
            }
            let (mut freed, mut ids) = (0, Vec::new());
            all.push(state.change(&name, now, |topic| (freed, ids) = topic.remove_restored()));
            state.bytes -= freed;
            state.note_own(&name, None, None);
            ids.iter().for_each(|id| state.note_own(&name, Some(id), None));
            state.prune(&name);
        }
        all
    }

    /// Returns the member count over all topics, and the members' approximate memory.
    pub(crate) fn usage(&self) -> (usize, usize) {
        let state = self.lock();
        (state.members, state.bytes)
    }

    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, usize) {
        let state = self.lock();
        (state.topics.len(), state.bytes)
    }
}

impl TableState {
    fn get_or_insert(&mut self, topic: &str) -> (Arc<str>, &mut TopicMembers) {
        let name = self.topics.get_key_value(topic).map_or_else(|| topic.into(), |(name, _)| name.clone());
        let members = self.get_or_insert_named(&name);
        (name, members)
    }

    fn get_or_insert_named(&mut self, name: &Arc<str>) -> &mut TopicMembers {
        let version = self.removed_version;
        let new = || TopicMembers { version, ..TopicMembers::default() };
        self.topics.entry(name.clone()).or_insert_with(new)
    }

    /// Notes a change to this server's own members.
    fn note_own(&mut self, topic: &Arc<str>, id: Option<&Arc<str>>, last: Option<&Arc<[u8]>>) {
        if let Some(unshared) = &mut self.unshared {
            unshared.note(topic, id, last);
        }
        self.note_observed(topic, id, last);
    }

    /// Changes a topic and schedules an update.
    pub(super) fn change(
        &mut self,
        topic: &str,
        now: Instant,
        change: impl FnOnce(&mut TopicMembers),
    ) -> Changed {
        let (name, topic) = self.get_or_insert(topic);
        let before = topic.members().len();
        change(topic);
        topic.version += 1;
        let due = topic.changes_mut().and_then(|changes| changes.schedule(now));
        let count = topic.count();
        self.members = self.members + count.members - before;
        Changed { topic: name, count, due }
    }

    /// Removes a topic without connections and watchers.
    pub(super) fn prune(&mut self, topic: &str) {
        if self.topics.get(topic).is_some_and(|topic| topic.connections == 0 && topic.changes().is_none())
            && let Some(removed) = self.topics.remove(topic)
        {
            self.removed_version = self.removed_version.max(removed.version);
        }
    }
}

impl TopicMembers {
    fn details(&self) -> &TopicDetails {
        static NONE: TopicDetails = TopicDetails::NONE;
        self.details.as_deref().unwrap_or(&NONE)
    }

    pub(super) fn details_mut(&mut self) -> &mut TopicDetails {
        self.details.get_or_insert_with(|| Box::new(TopicDetails::NONE))
    }

    pub(super) fn members(&self) -> &PresentMembers {
        &self.details().members
    }

    fn member_mut(&mut self, id: &str) -> Option<&mut JoinedMember> {
        self.details.as_mut()?.members.get_mut(id)
    }

    /// Returns the connections at other servers.
    pub(super) fn remote(&self) -> usize {
        self.details().remote
    }

    pub(super) fn changes(&self) -> Option<&PresenceChanges> {
        self.details().changes.as_deref()
    }

    pub(super) fn changes_mut(&mut self) -> Option<&mut PresenceChanges> {
        self.details.as_mut()?.changes.as_deref_mut()
    }

    pub(super) fn count(&self) -> PresenceCount {
        PresenceCount { members: self.members().len(), connections: self.connections, version: self.version }
    }

    /// Lists members after a given one, each with its connection count.
    pub(super) fn list_after(&self, after: Option<&str>, limit: usize) -> Vec<(Member, usize)> {
        let members = self.members().after(after);
        let member = |(id, joined): (&Arc<str>, &JoinedMember)| {
            (Member { id: id.clone(), info: joined.info.clone() }, joined.connections.get())
        };
        members.take(limit.min(MEMBERS_MAX)).map(member).collect()
    }

    pub(super) fn list(&self) -> Vec<Member> {
        let members = self.members().iter();
        members.map(|(id, member)| Member { id: id.clone(), info: member.info.clone() }).collect()
    }

    /// Returns the numbers for a reader, who may then know a state between two updates.
    pub(super) fn observe(&mut self) -> PresenceCount {
        let connections = self.connections;
        if let Some(changes) = self.changes_mut() {
            changes.observe(connections);
        }
        self.count()
    }

    /// Begins with one among several members that change together. Each has its own version: a watcher that knows a
    /// version does not receive the message that leads to it, and receives all others.
    pub(super) fn begin_member(&mut self, at: usize) {
        self.version += u64::from(at > 0);
    }

    pub(super) fn note(&mut self, id: &Arc<str>, before: Option<&Arc<[u8]>>) {
        let leaves = self.members().get(id).is_none();
        // The version is counted after the change.
        let version = self.version + 1;
        if let Some(changes) = self.changes_mut() {
            changes.note(id, before, leaves, version);
        }
    }

    fn add_anonymous(&mut self) {
        // A connection replaces a restored one.
        match self.details.as_mut().filter(|details| details.restored_anonymous > 0) {
            Some(details) => details.restored_anonymous -= 1,
            None => self.connections += 1,
        }
    }

    fn add(&mut self, member: &Member) {
        let Some(known) = self.member_mut(&member.id) else {
            let none = MemberCount::default();
            let (info, connections) = (member.info.clone(), MemberCount::new(1));
            let joined = JoinedMember { info, connections, restored: none, remote: none };
            self.details_mut().members.insert(member.id.clone(), joined);
            self.connections += 1;
            return self.note(&member.id, None);
        };
        match known.restored.get().checked_sub(1) {
            Some(left) => known.restored = MemberCount::new(left),
            None => {
                known.connections = known.connections.adjusted(1);
                self.connections += 1;
            }
        }
        self.replace_info(member);
    }

    pub(super) fn replace_info(&mut self, member: &Member) {
        let Some(known) = self.member_mut(&member.id).filter(|known| known.info != member.info) else {
            return;
        };
        let before = std::mem::replace(&mut known.info, member.info.clone());
        self.note(&member.id, Some(&before));
    }

    /// Removes a member's connections, and the member with the last one. Returns the freed memory.
    pub(super) fn remove_connections(&mut self, id: &Arc<str>, connections: usize) -> usize {
        let Some(known) = self.member_mut(id) else { return 0 };
        known.connections = MemberCount::new(known.connections.get().saturating_sub(connections));
        if known.connections > MemberCount::default() {
            return 0;
        }
        let Some(removed) = self.details_mut().members.remove(id) else { return 0 };
        self.note(id, Some(&removed.info));
        cost(id, &removed.info)
    }

    fn has_restored(&self) -> bool {
        self.details().restored_anonymous > 0
            || self.members().iter().any(|(_, member)| member.restored > MemberCount::default())
    }

    /// Removes restored connections. Returns the freed memory, and the members.
    fn remove_restored(&mut self) -> (usize, Vec<Arc<str>>) {
        let details = self.details_mut();
        let anonymous = std::mem::take(&mut details.restored_anonymous);
        let restored =
            details.members.iter_mut().filter(|(_, member)| member.restored > MemberCount::default());
        let restored: Vec<_> =
            restored.map(|(id, member)| (id.clone(), std::mem::take(&mut member.restored).get())).collect();
        self.connections -= anonymous;
        let mut freed = 0;
        for (at, (id, connections)) in restored.iter().enumerate() {
            self.begin_member(at);
            self.connections -= connections;
            freed += self.remove_connections(id, *connections);
        }
        (freed, restored.into_iter().map(|(id, _)| id).collect())
    }

    fn export(&self, name: &str) -> PresenceSnapshot {
        let own = self.members().iter().filter(|(_, joined)| joined.connections > joined.remote);
        let members = own.map(|(id, joined)| {
            (
                Member { id: id.clone(), info: joined.info.clone() },
                joined.connections.get() - joined.remote.get(),
            )
        });
        let members: Vec<(Member, usize)> = members.collect();
        let of_members: usize = members.iter().map(|(_, connections)| connections).sum();
        let anonymous = self.connections - self.remote() - of_members;
        PresenceSnapshot { topic: name.to_owned(), members, anonymous }
    }
}

#[cfg(test)]
mod tests;
