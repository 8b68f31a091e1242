//! Nodes at the same broker and prefix whose messages have another version.

use std::collections::BTreeSet;
use std::time::Instant;

use parking_lot::Mutex;

use super::message::{NodeId, VERSION};
use super::times::NODE_TIMEOUT;

/// Maximum nodes with another version that are logged.
const LOGGED_MAX: usize = 64;

/// Messages with another version. Nodes ignore them, so two versions never exchange anything; the node that has started
/// later is not ready meanwhile.
#[derive(Debug, Default)]
pub(super) struct OtherVersions(Mutex<VersionState>);

#[derive(Debug, Default)]
struct VersionState {
    logged: BTreeSet<NodeId>,
    /// The last message from a node that has started before this one.
    older: Option<(NodeId, u8, Instant)>,
}

impl OtherVersions {
    /// Notes a message with another version.
    pub(super) fn note(&self, own: NodeId, node: NodeId, version: u8, now: Instant) {
        let mut state = self.0.lock();
        // A predecessor process, which ends.
        if node.id != own.id && (node.start, node.id) < (own.start, own.id) {
            state.older = Some((node, version, now));
        }
        if state.logged.len() < LOGGED_MAX && state.logged.insert(node) {
            drop(state);
            tracing::error!(%node, version, own_version = VERSION,
                "a node at the broker of the cluster has another version of the messages between nodes: both ignore each other");
        }
    }

    /// Returns whether this node may serve clients: no older node has another version.
    ///
    /// # Errors
    /// Names both versions.
    pub(super) fn check(&self, now: Instant) -> Result<(), String> {
        match self.0.lock().older {
            Some((node, version, at)) if now.saturating_duration_since(at) < NODE_TIMEOUT => Err(format!(
                "node {node} of the cluster has version {version} of the messages between nodes, and this node has \
                 version {VERSION}: stop the nodes with the other version, or use another prefix (?prefix=NAME)"
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_the_later_of_two_versions_is_not_ready() {
        let (now, node) = (Instant::now(), |id, start| NodeId { id, start });
        let refused = |own: NodeId, other: NodeId| {
            let versions = OtherVersions::default();
            versions.note(own, other, 9, now);
            let late = now + NODE_TIMEOUT;
            assert_eq!(versions.check(late), Ok(()), "it has left");
            let error = versions.check(late - Duration::from_millis(1)).err();
            assert!(
                error
                    .iter()
                    .all(|text| text.contains("version 9") && text.contains(&format!("version {VERSION}:")))
            );
            error.is_some()
        };
        assert!(refused(node(1, 2), node(2, 1)) && !refused(node(2, 1), node(1, 2)));
        assert!(
            refused(node(2, 1), node(1, 1)) && !refused(node(1, 1), node(2, 1)),
            "in the same microsecond"
        );
        assert!(!refused(node(1, 2), node(1, 1)), "a predecessor process");
    }
}
