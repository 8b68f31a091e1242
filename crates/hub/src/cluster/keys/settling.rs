//! Whether this node knows the owners of all topics.
//!
//! A node that joins does not see an owner that has just died, or is silent. The other nodes count this owner as alive
//! for [`NODE_TIMEOUT`], and then claim its topics. So a node claims no unknown topic, and reads none as empty, before
//! this time has passed since its login, and all nodes report the same nodes and no topic without an owner.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::cluster::message::NodeId;
use crate::cluster::times::NODE_TIMEOUT;

/// Time after a login in which each living node sends a heartbeat.
pub(super) const SYNC_MIN: Duration = Duration::from_millis(1_200);

/// A node's report about topics' keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeysHeartbeat {
    /// Number of its last message with changes.
    pub(crate) number: u64,
    /// Milliseconds since its login at the broker.
    pub(crate) connected: u64,
    /// Id of its directory with durable keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) store: Option<u64>,
    /// Digest of the nodes that share keys, as this node sees them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) nodes: Option<u64>,
    /// Topics without an owner, except for durable topics.
    #[serde(default)]
    pub(crate) orphans: u64,
    /// It does not know all owners yet, and claims no new topics.
    #[serde(default)]
    pub(crate) joining: bool,
}

/// The other nodes' reports, and whether this node knows all owners.
#[derive(Debug, Default)]
pub(super) struct Settling {
    reports: BTreeMap<u128, NodeReport>,
    /// The login from which the time counts.
    pub(super) login: Option<Instant>,
    /// Since when this node knows all owners.
    pub(super) settled: Option<Instant>,
    /// The absence before the login was shorter than [`NODE_TIMEOUT`]: the other nodes know this node, and no unknown
    /// node owns topics. But an owner may have died with topics that this node does not know.
    is_known: bool,
    /// The topics of a predecessor process are known.
    pub(super) has_predecessor: bool,
}

/// Another node's last heartbeat.
#[derive(Clone, Copy, Debug)]
struct NodeReport {
    at: Instant,
    /// `None`: the node has a version that does not report it.
    nodes: Option<u64>,
    orphans: u64,
    is_joining: bool,
}

impl Settling {
    /// Notes a login.
    pub(super) fn log_in(&mut self, absence: Option<Duration>, now: Instant) {
        let is_short = absence.is_some_and(|absence| absence < NODE_TIMEOUT);
        self.is_known = is_short && (self.is_known || self.settled.is_some());
        self.login = Some(now);
        self.settled = None;
    }

    /// Time after the login before which this node knows no owners.
    pub(super) fn wait(&self) -> Duration {
        if self.has_predecessor || self.is_known { SYNC_MIN } else { NODE_TIMEOUT }
    }

    /// Whether this node reports that it joins, so that other nodes choose it for no topic.
    pub(super) fn joins(&self) -> bool {
        !self.is_settled() && !self.is_known
    }

    /// Notes another node's heartbeat.
    pub(super) fn note(&mut self, node: NodeId, heartbeat: &KeysHeartbeat, now: Instant) {
        let KeysHeartbeat { nodes, orphans, joining: is_joining, .. } = *heartbeat;
        self.reports.insert(node.id, NodeReport { at: now, nodes, orphans, is_joining });
    }

    /// Forgets nodes that have gone.
    pub(super) fn retain(&mut self, is_known: impl Fn(u128) -> bool) {
        self.reports.retain(|node, _| is_known(*node));
    }

    pub(super) fn is_settled(&self) -> bool {
        self.settled.is_some()
    }

    /// Whether this node is settled, and the other nodes know it.
    pub(super) fn is_announced(&self, now: Instant) -> bool {
        self.settled.is_some_and(|settled| self.is_known || now >= settled + SYNC_MIN)
    }

    pub(super) fn is_joining(&self, node: u128) -> bool {
        self.reports.get(&node).is_none_or(|report| report.is_joining)
    }

    /// Returns whether a node has sent a report since the login, and knows the same nodes, and an owner for each topic.
    pub(super) fn agrees(&self, node: u128, digest: u64) -> bool {
        let report = self.reports.get(&node).filter(|report| self.login.is_some_and(|at| report.at >= at));
        report.is_some_and(|report| report.orphans == 0 && report.nodes.is_none_or(|nodes| nodes == digest))
    }
}
