//! Presence that a node sends to the others: changes at an interval, and everything to a node that needs it.

use std::sync::atomic::Ordering;
use std::time::Instant;

use sinews_server::{Publisher, Topics};

use super::Cluster;
use super::members::{self, PresenceSnapshotSender};
use super::message::{MessageKind, NodeId};

/// Bytes that wait for the broker, above which parts of presence and other lists wait, too: they do not delay
/// publications.
pub(super) const WAITING_PARTS_MAX: usize = 256 << 10;

/// Announces the presence of this node's own connections.
pub(super) struct Announcer {
    /// Number of the last changes.
    pub(super) announced: u64,
    /// When the next changes may be announced.
    pub(super) next: Instant,
    snapshot: Option<PresenceSnapshotSender>,
}

impl Announcer {
    pub(super) fn new(now: Instant) -> Self {
        Self { announced: 0, next: now, snapshot: None }
    }

    /// Returns whether parts of the whole presence are left to send.
    pub(super) fn sends_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }

    /// Announces changes, and sends the whole presence in parts to `requesters`, the nodes that need it.
    pub(super) fn run(
        &mut self,
        cluster: &Cluster,
        requesters: &mut Vec<NodeId>,
        publisher: &Publisher,
        now: Instant,
    ) {
        if !cluster.outbox.is_open() {
            // Nodes request again what they miss.
            self.snapshot = None;
            requesters.clear();
            return;
        }
        if now >= self.next && cluster.has_changes.swap(false, Ordering::AcqRel) {
            self.next = now + Topics::PRESENCE_INTERVAL;
            self.announce(cluster, publisher);
        }
        if self.snapshot.is_none() && !requesters.is_empty() {
            let requesters = std::mem::take(requesters);
            self.snapshot = Some(PresenceSnapshotSender::new(requesters, publisher));
        }
        self.send_parts(cluster, publisher);
    }

    fn announce(&mut self, cluster: &Cluster, publisher: &Publisher) {
        let outbox = &cluster.outbox;
        let all = outbox.subjects.all();
        loop {
            let changes = publisher.take_own_presence(outbox.members_max());
            if changes.overflowed {
                // The gap makes the other nodes request everything.
                self.announced += 1;
            }
            if !changes.topics.is_empty() || changes.overflowed {
                self.announced += 1;
                let mut body = self.announced.to_le_bytes().to_vec();
                changes.topics.iter().for_each(|own| members::write_own(&mut body, own));
                outbox.send(&all, MessageKind::PresenceChanges, &body);
            }
            if !changes.more {
                return;
            }
            if outbox.waiting() > WAITING_PARTS_MAX {
                cluster.has_changes.store(true, Ordering::Release);
                return;
            }
        }
    }

    fn send_parts(&mut self, cluster: &Cluster, publisher: &Publisher) {
        let outbox = &cluster.outbox;
        while let Some(snapshot) = &mut self.snapshot {
            if outbox.waiting() > WAITING_PARTS_MAX {
                return;
            }
            let (body, is_last) = snapshot.next(self.announced, outbox.members_max(), publisher);
            for node in &snapshot.requesters {
                outbox.send(&outbox.subjects.node(*node), MessageKind::PresenceSnapshot, &body);
            }
            if is_last {
                self.snapshot = None;
            }
        }
    }
}
