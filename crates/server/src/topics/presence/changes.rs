//! A topic's presence changes since its last update.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::member::{CHANGES_MAX, MemberPage};

/// Maximum bytes in changed members' ids and former infos: former infos are in no other memory limit.
pub(super) const NOTED_BYTES_MAX: usize = 4 << 20;

/// A watched topic's presence changes since its last update: bounded, whatever happens in between.
#[derive(Debug)]
pub(super) struct PresenceChanges {
    pub(super) watchers: usize,
    /// Each changed member since the last update.
    before: BTreeMap<Arc<str>, MemberChange>,
    /// Bytes in their ids and infos.
    bytes: usize,
    /// More members have changed than an update lists.
    overflowed: bool,
    /// At the last update: version and connection count.
    since: u64,
    connections: usize,
    /// When the next update may be published.
    next: Instant,
    /// A worker will publish the next update.
    scheduled: bool,
    /// A client may have read a state that neither the last update nor the next reports.
    observed: bool,
    /// The first members, encoded after the last update.
    pub(super) page: Option<Box<MemberPage>>,
}

/// A member's change since the last update.
#[derive(Debug)]
pub(super) struct MemberChange {
    /// Its info at the last update; `None` if it was absent then.
    pub(super) before: Option<Arc<[u8]>>,
    /// Its info at its last leave, if it has left.
    pub(super) last: Option<Arc<[u8]>>,
    /// The version at its last leave; 0 if it has not left.
    pub(super) left: u64,
    /// The version at its last change.
    pub(super) version: u64,
}

impl MemberChange {
    /// Memory for the last info besides the former one.
    fn last_bytes(&self) -> usize {
        let is_former = |last: &Arc<[u8]>| self.before.as_ref().is_some_and(|it| Arc::ptr_eq(it, last));
        self.last.as_ref().filter(|last| !is_former(last)).map_or(0, |last| last.len())
    }
}

/// What an update is computed from.
pub(super) struct TakenChanges {
    pub(super) before: BTreeMap<Arc<str>, MemberChange>,
    pub(super) overflowed: bool,
    pub(super) since: u64,
    /// The connection count at the last update.
    pub(super) connections_before: usize,
    /// The connection count differs from the last update.
    pub(super) counts_differ: bool,
    /// Members and numbers were read since the last update, after a change. The changes must be reported even if they
    /// have no effect in the end.
    pub(super) observed: bool,
}

impl PresenceChanges {
    /// Starts with a topic that is watched from now on, without watchers.
    pub(super) fn new(version: u64, connections: usize, now: Instant) -> Self {
        let before = BTreeMap::new();
        Self {
            watchers: 0,
            before,
            bytes: 0,
            overflowed: false,
            since: version,
            connections,
            next: now,
            scheduled: false,
            observed: false,
            page: None,
        }
    }

    /// Notes a change to a member that was absent, or had this info; and whether it leaves. The change leads to this
    /// version.
    pub(super) fn note(&mut self, id: &Arc<str>, before: Option<&Arc<[u8]>>, leaves: bool, version: u64) {
        if self.overflowed {
            return;
        }
        let left = if leaves { version } else { 0 };
        let last = before.filter(|_| leaves).cloned();
        if let Some(known) = self.before.get_mut(id) {
            (known.left, known.version) = (known.left.max(left), version);
            if last.is_some() {
                self.bytes -= known.last_bytes();
                known.last = last;
                self.bytes += known.last_bytes();
            }
            if self.bytes > NOTED_BYTES_MAX {
                self.overflow();
            }
            return;
        }
        // The last info is the same one.
        self.bytes += id.len() + before.map_or(0, |info| info.len());
        if self.before.len() == CHANGES_MAX || self.bytes > NOTED_BYTES_MAX {
            return self.overflow();
        }
        self.before.insert(id.clone(), MemberChange { before: before.cloned(), last, left, version });
    }

    /// Notes that members or numbers are read, with this many connections.
    pub(super) fn observe(&mut self, connections: usize) {
        self.observed |= !self.before.is_empty() || self.connections != connections;
    }

    /// Replaces the changed members by a mark.
    pub(super) fn overflow(&mut self) {
        self.before = BTreeMap::new();
        self.overflowed = true;
    }

    /// Schedules the next update; `None` if it is scheduled already.
    pub(super) fn schedule(&mut self, now: Instant) -> Option<Instant> {
        (!std::mem::replace(&mut self.scheduled, true)).then(|| self.next.max(now))
    }

    /// Takes back a schedule.
    pub(super) fn unschedule(&mut self) {
        self.scheduled = false;
    }

    /// Takes the changes for an update, with the state that it reports. The next update follows after this interval at
    /// the earliest.
    pub(super) fn take(
        &mut self,
        version: u64,
        connections: usize,
        now: Instant,
        interval: Duration,
    ) -> TakenChanges {
        self.scheduled = false;
        self.bytes = 0;
        self.page = None;
        self.next = now + interval;
        TakenChanges {
            before: std::mem::take(&mut self.before),
            overflowed: std::mem::take(&mut self.overflowed),
            since: std::mem::replace(&mut self.since, version),
            counts_differ: self.connections != connections,
            connections_before: std::mem::replace(&mut self.connections, connections),
            observed: std::mem::take(&mut self.observed),
        }
    }

    /// Returns the last update's version.
    pub(super) fn since(&self) -> u64 {
        self.since
    }

    /// Sets the last update's version, if the changes that were taken lead to none.
    pub(super) fn set_since(&mut self, version: u64) {
        self.since = version;
    }
}
