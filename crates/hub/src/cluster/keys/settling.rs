//! Whether this node knows the owners of all topics.
//!
//! A node that joins does not see an owner that has just died, or is silent. The other nodes count this owner as alive for
//! [`NODE_TIMEOUT`], and then claim its topics. So a node claims no unknown topic, and reads none as empty, before this time
//! has passed since its login, and all nodes report the same nodes and no topic without an owner.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::claim::{topic_hash, weight};
use super::replicator::{KeyNodes, KeyReplicator, SYNC_MIN};
use crate::cluster::message::NodeId;
use crate::cluster::nodes::KeysHeartbeat;
use crate::cluster::times::NODE_TIMEOUT;
use crate::stable_hash::mix;

/// Time after the login after which a node continues although the nodes report different nodes: a broker of several servers
/// perhaps does not pass on all heartbeats.
const DISAGREEMENT_MAX: Duration = Duration::from_secs(20);

/// The reports of the other nodes, and whether this node knows all owners.
#[derive(Debug, Default)]
pub(super) struct Settling {
    reports: BTreeMap<u128, NodeReport>,
    /// The login from which the time counts.
    login: Option<Instant>,
    /// Since when this node knows all owners.
    settled: Option<Instant>,
    /// The topics of a predecessor process are known.
    has_predecessor: bool,
}

/// The last heartbeat of another node.
#[derive(Clone, Copy, Debug)]
struct NodeReport {
    at: Instant,
    /// `None`: the node is of a version that does not report it.
    nodes: Option<u64>,
    orphans: u64,
    is_joining: bool,
}

impl Settling {
    /// Notes a login. After an absence that is shorter than [`NODE_TIMEOUT`], no unknown node owns topics.
    pub(super) fn log_in(&mut self, absence: Option<Duration>, now: Instant) {
        let is_short = absence.is_some_and(|absence| absence < NODE_TIMEOUT);
        if self.settled.is_none() || !is_short {
            self.login = Some(now);
            self.settled = None;
        }
    }

    /// Notes the heartbeat of another node.
    pub(super) fn note(&mut self, node: NodeId, heartbeat: &KeysHeartbeat, now: Instant) {
        let KeysHeartbeat { nodes, orphans, joining: is_joining, .. } = *heartbeat;
        self.reports.insert(node.id, NodeReport { at: now, nodes, orphans, is_joining });
    }

    /// Forgets nodes that have gone.
    pub(super) fn retain(&mut self, nodes: &KeyNodes) {
        self.reports.retain(|node, _| nodes.contains_key(node));
    }

    pub(super) fn is_settled(&self) -> bool {
        self.settled.is_some()
    }

    /// Whether this node has been settled for so long that the other nodes know it.
    fn is_announced(&self, now: Instant) -> bool {
        self.settled.is_some_and(|settled| now >= settled + SYNC_MIN)
    }

    fn is_joining(&self, node: u128) -> bool {
        self.reports.get(&node).is_none_or(|report| report.is_joining)
    }

    /// Whether a node has sent a report since the login, and knows the same nodes, and an owner of each topic.
    fn agrees(&self, node: u128, digest: u64) -> bool {
        let report = self.reports.get(&node).filter(|report| self.login.is_some_and(|at| report.at >= at));
        report.is_some_and(|report| report.orphans == 0 && report.nodes.is_none_or(|nodes| nodes == digest))
    }
}

impl KeyReplicator {
    /// Sets whether a predecessor process hands over its topics: then an owner that has died is known.
    pub(crate) fn set_predecessor(&mut self, has_predecessor: bool) {
        self.settling.has_predecessor = has_predecessor;
    }

    /// A digest of the nodes that this node knows, itself included.
    fn nodes_digest(&self) -> u64 {
        let hash = |node: u128| mix(node as u64 ^ mix((node >> 64) as u64));
        self.nodes.keys().fold(hash(self.own), |sum, node| sum.wrapping_add(hash(*node)))
    }

    /// The report of this node.
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
            joining: !self.settling.is_settled(),
        }
    }

    /// Notes whether this node knows the owners of all topics.
    pub(super) fn update_settled(&mut self, now: Instant) {
        let Some(login) = self.settling.login.filter(|_| !self.settling.is_settled()) else { return };
        let wait = if self.settling.has_predecessor { SYNC_MIN } else { NODE_TIMEOUT };
        let time = now.saturating_duration_since(login);
        if time < wait {
            return;
        }
        let digest = self.nodes_digest();
        let agree = self.nodes.keys().all(|node| self.settling.agrees(*node, digest));
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
