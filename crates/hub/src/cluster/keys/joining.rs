//! Joins: when this node may claim topics that it does not know.

use std::time::{Duration, Instant};

use super::claim::{topic_hash, weight};
use super::replicator::KeyReplicator;
use super::settling::KeysHeartbeat;
use crate::model::stable_hash::mix;

/// Time after the login after which a node continues although the nodes report different nodes: a broker with several
/// servers perhaps does not pass on all heartbeats.
const DISAGREEMENT_MAX: Duration = Duration::from_secs(20);

impl KeyReplicator {
    /// Sets whether a predecessor process hands over its topics: then an owner that has died is known.
    pub(crate) fn set_predecessor(&mut self, has_predecessor: bool) {
        self.settling.has_predecessor = has_predecessor;
    }

    /// Returns a digest of the nodes that this node knows, itself included.
    fn nodes_digest(&self) -> u64 {
        let hash = |node: u128| mix(node as u64 ^ mix((node >> 64) as u64));
        self.nodes.keys().fold(hash(self.own), |sum, node| sum.wrapping_add(hash(*node)))
    }

    /// Returns this node's report.
    pub(crate) fn heartbeat(&self, now: Instant) -> KeysHeartbeat {
        let connected = u64::try_from(self.connected_for(now).as_millis()).unwrap_or(u64::MAX);
        // Of durable keys, the latest copy is found among all nodes.
        let orphans = self.orphans.keys().filter(|topic| !self.is_durable(topic)).count() as u64;
        KeysHeartbeat {
            number: self.number,
            connected,
            store: self.store_id(),
            nodes: Some(self.nodes_digest()),
            orphans,
            joining: self.settling.joins(),
        }
    }

    /// Notes whether this node knows the owners of all topics.
    pub(super) fn update_settled(&mut self, now: Instant) {
        let Some(login) = self.settling.login.filter(|_| !self.settling.is_settled()) else { return };
        let time = now.saturating_duration_since(login);
        if time < self.settling.wait() {
            return;
        }
        let digest = self.nodes_digest();
        // A node that dies behind its report has not sent its topics: the others agree once they own these topics.
        let agree = self.is_synced && self.nodes.keys().all(|node| self.settling.agrees(*node, digest));
        if !agree && time < DISAGREEMENT_MAX {
            return;
        }
        if !agree {
            tracing::warn!(
                seconds = DISAGREEMENT_MAX.as_secs(),
                "the nodes of the cluster do not see the same nodes: this node may not know all owners of keys"
            );
        }
        self.settling.settled = Some(now);
    }

    /// Whether this node may claim topics that it does not know.
    pub(super) fn knows_owners(&self) -> bool {
        self.is_synced && self.settling.is_announced(self.now)
    }

    /// The node that claims a topic that no node knows: no node that joins.
    pub(super) fn first_owner(&self, topic: &str) -> u128 {
        let hash = topic_hash(topic);
        let others = self.nodes.keys().filter(|node| !self.settling.is_joining(**node));
        others.map(|node| weight(*node, hash)).fold(weight(self.own, hash), Ord::max).1
    }
}
