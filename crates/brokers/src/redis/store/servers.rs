//! The servers of a store, and the partitions that each has.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use sinews_store::{StoreHealth, StoreServer};
use tokio::sync::Notify;

use super::channel::FollowedChannel;
use super::clock::ClockEstimate;
use super::names::PARTITIONS;
use super::queue::OperationQueue;
use crate::lock::lock;

/// The reason before the first connection.
const NOT_CONNECTED: &str = "not connected yet";

/// A server, as its connections and callers share it.
pub(super) struct ServerState {
    /// Its address, for errors; empty if the store has no other.
    pub(super) name: Arc<str>,
    pub(super) queue: OperationQueue,
    health: Mutex<StoreHealth>,
    detects_failover: AtomicBool,
    pub(super) clock: ClockEstimate,
    /// Channels whose followers have changed since the last look.
    changed: Mutex<HashSet<FollowedChannel>>,
    /// Notified of changed channels.
    pub(super) followed_changed: Notify,
    /// Notified when the server has got or lost partitions.
    pub(super) partitions_changed: Notify,
}

impl ServerState {
    pub(super) fn new(name: &str, is_cluster: bool) -> Self {
        Self {
            name: name.into(),
            queue: OperationQueue::new(NOT_CONNECTED, is_cluster),
            health: Mutex::new(StoreHealth::Away { since: Instant::now(), reason: NOT_CONNECTED.into() }),
            detects_failover: AtomicBool::new(true),
            clock: ClockEstimate::new(Instant::now()),
            changed: Mutex::default(),
            followed_changed: Notify::new(),
            partitions_changed: Notify::new(),
        }
    }

    pub(super) fn health(&self) -> StoreHealth {
        lock(&self.health).clone()
    }

    /// Sets the health; returns whether it is another one.
    pub(super) fn set_health(&self, is_up: bool, reason: &str) -> bool {
        let mut health = lock(&self.health);
        let next = match &*health {
            StoreHealth::Up if is_up => return false,
            _ if is_up => StoreHealth::Up,
            _ if reason.is_empty() => return false,
            StoreHealth::Away { since, .. } => {
                StoreHealth::Away { since: *since, reason: self.fault(reason) }
            }
            _ => StoreHealth::Away { since: Instant::now(), reason: self.fault(reason) },
        };
        let has_changed = next.is_up() != health.is_up();
        *health = next;
        has_changed
    }

    /// A reason with the server's name, if there are others.
    pub(super) fn fault(&self, reason: &str) -> Arc<str> {
        if self.name.is_empty() { reason.into() } else { format!("{}: {reason}", self.name).into() }
    }

    pub(super) fn set_detects_failover(&self, is_so: bool) {
        self.detects_failover.store(is_so, Ordering::Relaxed);
    }

    pub(super) fn note_change(&self, followed: FollowedChannel) {
        lock(&self.changed).insert(followed);
        self.followed_changed.notify_one();
    }

    pub(super) fn take_changes(&self) -> HashSet<FollowedChannel> {
        std::mem::take(&mut *lock(&self.changed))
    }
}

/// The servers of a store.
pub(super) struct StoreServers {
    pub(super) is_cluster: bool,
    state: Mutex<ServersState>,
}

struct ServersState {
    all: Vec<Arc<ServerState>>,
    /// The server of each partition.
    by_partition: Vec<Option<Arc<ServerState>>>,
    /// Why a partition has no server.
    missing: StoreHealth,
}

impl StoreServers {
    pub(super) fn new(servers: Vec<Arc<ServerState>>, is_cluster: bool) -> Self {
        let by_partition = if is_cluster {
            vec![None; PARTITIONS as usize]
        } else {
            spread(servers.len()).into_iter().map(|server| servers.get(server).cloned()).collect()
        };
        let missing = StoreHealth::Away { since: Instant::now(), reason: NOT_CONNECTED.into() };
        Self { is_cluster, state: Mutex::new(ServersState { all: servers, by_partition, missing }) }
    }

    /// The server of a partition.
    ///
    /// # Errors
    /// No server has it.
    pub(super) fn get(&self, partition: u32) -> Result<Arc<ServerState>, StoreHealth> {
        let state = lock(&self.state);
        let server = state.by_partition.get(partition as usize).cloned().flatten();
        server.ok_or_else(|| state.missing.clone())
    }

    pub(super) fn all(&self) -> Vec<Arc<ServerState>> {
        lock(&self.state).all.clone()
    }

    /// Partitions with the same number may be in one operation.
    pub(super) fn group(&self, partition: u32) -> u32 {
        if self.is_cluster {
            return partition;
        }
        let state = lock(&self.state);
        let server = state.by_partition.get(partition as usize).cloned().flatten();
        let is_server =
            |other: &Arc<ServerState>| server.as_ref().is_some_and(|server| Arc::ptr_eq(server, other));
        state.all.iter().position(is_server).and_then(|at| u32::try_from(at).ok()).unwrap_or(0)
    }

    pub(super) fn partitions_of(&self, server: &Arc<ServerState>) -> Vec<u32> {
        let state = lock(&self.state);
        let is_own = |partition: &u32| {
            let other = state.by_partition.get(*partition as usize);
            other.is_some_and(|other| other.as_ref().is_some_and(|other| Arc::ptr_eq(server, other)))
        };
        (0..PARTITIONS).filter(is_own).collect()
    }

    /// Replaces the servers, and notifies those that have got or lost partitions.
    pub(super) fn replace(&self, by_partition: Vec<Option<Arc<ServerState>>>, all: Vec<Arc<ServerState>>) {
        let mut state = lock(&self.state);
        let before = std::mem::replace(&mut state.by_partition, by_partition);
        for (before, after) in before.iter().zip(&state.by_partition) {
            if before.as_ref().map(Arc::as_ptr) != after.as_ref().map(Arc::as_ptr) {
                [before, after]
                    .into_iter()
                    .flatten()
                    .for_each(|server| server.partitions_changed.notify_one());
            }
        }
        state.all = all;
    }

    /// Sets why partitions have no server.
    pub(super) fn set_missing(&self, reason: &str) {
        let mut state = lock(&self.state);
        let since = match state.missing {
            StoreHealth::Away { since, .. } if state.by_partition.iter().any(Option::is_none) => since,
            _ => Instant::now(),
        };
        state.missing = StoreHealth::Away { since, reason: reason.into() };
    }

    /// Up if each partition has a server that is up.
    pub(super) fn health(&self) -> StoreHealth {
        let state = lock(&self.state);
        if state.by_partition.iter().any(Option::is_none) {
            return state.missing.clone();
        }
        let mut away = state.all.iter().map(|server| server.health()).filter(|health| !health.is_up());
        away.next().unwrap_or(StoreHealth::Up)
    }

    /// The servers, if there are several.
    pub(super) fn named(&self) -> Vec<StoreServer> {
        let named =
            |server: &Arc<ServerState>| StoreServer { name: server.name.clone(), health: server.health() };
        self.all().iter().filter(|server| !server.name.is_empty()).map(named).collect()
    }

    pub(super) fn detect_failover(&self) -> bool {
        lock(&self.state).all.iter().all(|server| server.detects_failover.load(Ordering::Relaxed))
    }
}

/// The server of each partition, for independent servers in their order. Each has the same number of partitions, or one more.
/// A further server at the end takes its share from all others, and no other partition moves.
fn spread(servers: usize) -> Vec<usize> {
    let partitions = PARTITIONS as usize;
    let mut placed = vec![0; partitions];
    for server in 1..servers {
        for _ in 0..partitions / (server + 1) {
            let count = |of: usize| placed.iter().filter(|&&other| other == of).count();
            // The first one of those that have the most.
            let fullest = (0..server).rev().max_by_key(|&of| count(of)).unwrap_or(0);
            if let Some(place) = placed.iter_mut().rev().find(|place| **place == fullest) {
                *place = server;
            }
        }
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_spread_evenly_and_few_move() {
        let mut before = spread(1);
        for servers in 2..=16 {
            let after = spread(servers);
            let count = |of| after.iter().filter(|&&server| server == of).count();
            let counts: Vec<_> = (0..servers).map(count).collect();
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= 1, "{servers}: {counts:?}");
            let moved: Vec<_> = before.iter().zip(&after).filter(|(before, after)| before != after).collect();
            assert_eq!(moved.len(), 64 / servers);
            assert!(moved.iter().all(|(_, after)| **after == servers - 1));
            before = after;
        }
        // Data is at these servers.
        assert_eq!(spread(3)[..8], [0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
