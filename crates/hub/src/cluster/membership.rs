//! Nodes that join, leave and die.

use std::time::Instant;

use super::Cluster;
use super::message::NodeId;
use super::nodes::{Heartbeat, NODES_MAX};
use super::times::{NODE_TIMEOUT, OUTAGE_MAX, RETURN_TIME};
use crate::model::brief::brief;

impl Cluster {
    pub(super) fn note_heartbeat(&self, node: NodeId, heartbeat: Heartbeat, now: Instant) {
        let name = heartbeat.name.clone();
        // Until then, all other nodes join or return: see `PROBATION`.
        let is_new_here = now.saturating_duration_since(self.lock_status().since) < RETURN_TIME;
        if self.lock_nodes().beat(node, heartbeat, is_new_here, now) {
            self.lost.joined(node, &name);
            self.cached_events.forget_all();
            if let Some(omitted) = self.log_limits.joined.permit(now) {
                tracing::info!(%node, name = brief(&name), omitted, "a node has joined the cluster");
            }
        }
    }

    pub(super) fn left(&self, node: NodeId) {
        self.lost.left(node);
        let was_known = self.lock_nodes().remove(node);
        if was_known && let Some(omitted) = self.log_limits.left.permit(Instant::now()) {
            tracing::info!(%node, omitted, "a node has left the cluster");
        }
    }

    /// Logs a node beyond the node limit.
    pub(super) fn log_excess(&self, node: NodeId, now: Instant) {
        if let Some(omitted) = self.log_limits.excess.permit(now) {
            let limit = NODES_MAX;
            tracing::warn!(%node, limit, omitted, "the cluster has more other nodes than its limit: one is ignored");
        }
    }

    /// Removes nodes without heartbeats, and returns them. While the broker is silent, they are retained, and for a
    /// while after its connection is lost.
    pub(super) fn expire_nodes(&self, now: Instant, is_heard: bool) -> Vec<NodeId> {
        let status = self.lock_status().clone();
        let is_short = status.is_connected || now.saturating_duration_since(status.since) < OUTAGE_MAX;
        if !is_heard && is_short {
            self.lock_nodes().renew(now);
        }
        let (dead, names) = self.expire_silent(now);
        names.into_iter().for_each(|(node, name)| self.lost.add(node, name, now));
        let mut noted = self.dead.lock();
        let is_gone =
            |id: u128| id != self.node.id && self.lock_nodes().iter().all(|(node, _)| node.id != id);
        noted.extend(dead.iter().map(|node| node.id).filter(|id| is_gone(*id)));
        // Without webhooks, nothing takes them.
        let excess = noted.len().saturating_sub(NODES_MAX);
        noted.drain(..excess);
        drop(noted);
        for node in &dead {
            if let Some(omitted) = self.log_limits.dead.permit(now) {
                tracing::warn!(%node, omitted, "a node of the cluster is dead: no heartbeat for {:?}", NODE_TIMEOUT);
            }
        }
        dead
    }

    /// Removes nodes without heartbeats, and returns them, and the names of nodes without a successor process.
    fn expire_silent(&self, now: Instant) -> (Vec<NodeId>, Vec<(NodeId, String)>) {
        let mut nodes = self.lock_nodes();
        let mut names: Vec<(NodeId, String)> =
            nodes.iter().map(|(id, heartbeat)| (id, heartbeat.name.clone())).collect();
        let dead = nodes.expire(now);
        names.retain(|(id, _)| dead.contains(id) && !nodes.iter().any(|(live, _)| live.id == id.id));
        (dead, names)
    }
}
