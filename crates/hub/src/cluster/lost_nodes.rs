//! Nodes that have been removed without their notice: perhaps they run, with connections, and are cut off from the
//! broker.

use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::message::NodeId;
use super::nodes::NODES_MAX;

/// Time for which commands report such a node as missing.
const MISSING_TIME: Duration = Duration::from_secs(5 * 60);

/// The lost nodes.
#[derive(Debug, Default)]
pub(super) struct LostNodes(Mutex<Vec<LostNode>>);

#[derive(Debug)]
struct LostNode {
    id: NodeId,
    name: String,
    at: Instant,
}

impl LostNodes {
    fn lock(&self) -> MutexGuard<'_, Vec<LostNode>> {
        self.0.lock()
    }

    /// Adds a node that is removed.
    pub(super) fn add(&self, id: NodeId, name: String, at: Instant) {
        let mut lost = self.lock();
        lost.push(LostNode { id, name, at });
        let excess = lost.len().saturating_sub(NODES_MAX);
        lost.drain(..excess);
    }

    /// A node has joined: the lost one with its id has returned, and one with its name was started again.
    pub(super) fn joined(&self, id: NodeId, name: &str) {
        self.lock().retain(|lost| lost.id.id != id.id && lost.name != name);
    }

    /// A node has left by its own notice.
    pub(super) fn left(&self, id: NodeId) {
        self.lock().retain(|lost| lost.id != id);
    }

    /// Returns the names of the lost nodes. While the broker is away, no node can return: they are lost for longer.
    pub(super) fn names(&self, is_connected: bool, now: Instant) -> Vec<String> {
        let mut lost = self.lock();
        lost.retain(|lost| !is_connected || now.saturating_duration_since(lost.at) < MISSING_TIME);
        lost.iter().map(|lost| lost.name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: u128, start: u64) -> NodeId {
        NodeId { id, start }
    }

    #[test]
    fn lost_nodes_are_missing_until_they_return_or_for_some_minutes() {
        let (lost, now) = (LostNodes::default(), Instant::now());
        for id in 1..=4 {
            lost.add(node(id, 1), id.to_string(), now);
        }
        assert_eq!(lost.names(true, now), ["1", "2", "3", "4"]);
        lost.joined(node(1, 2), "another name");
        lost.joined(node(9, 2), "2");
        lost.left(node(3, 2));
        assert_eq!(lost.names(true, now), ["3", "4"], "another process of the node has left");
        lost.left(node(3, 1));
        assert_eq!(lost.names(false, now + MISSING_TIME), ["4"]);
        assert!(lost.names(true, now + MISSING_TIME).is_empty());
        for id in 0..2 * NODES_MAX {
            lost.add(node(id as u128, 1), id.to_string(), now);
        }
        assert_eq!(lost.names(true, now).len(), NODES_MAX);
    }
}
