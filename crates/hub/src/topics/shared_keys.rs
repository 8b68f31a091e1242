//! Topic keys that a cluster's nodes share, as clients use them.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use sinews_server::{KeyError, KeyWrite, KeyWritten, Position};

use crate::model::problem::Problem;
use crate::topics::key_faults::FaultCause;

/// A node owns the keys of a topic in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Number of owners so far.
    pub(crate) term: u32,
    pub(crate) epoch: u64,
    /// The node's id: a successor process has its predecessor's id.
    pub(crate) owner: u128,
}

/// A write's result, or when another node or the log has it.
pub(crate) enum KeyWriteOutcome {
    Done(Result<KeyWritten, Problem>),
    Later(PendingKeyWrite),
}

/// Completes with a write's result.
pub(crate) type PendingKeyWrite = Pin<Box<dyn Future<Output = Result<KeyWritten, Problem>> + Send>>;

/// Completes when keys are loaded, or cannot be.
pub(crate) type LoadingKeys = Pin<Box<dyn Future<Output = Result<(), Problem>> + Send>>;

/// Keys that all nodes of a cluster share.
pub(crate) trait SharedKeys: Debug + Send + Sync {
    /// Writes a key: with this function if this node owns the topic, otherwise at its owner. One caller's writes to a
    /// topic keep their order.
    fn write(
        &self,
        topic: &str,
        write: KeyWrite,
        write_here: &mut dyn FnMut(&KeyWrite) -> Result<KeyWritten, KeyError>,
    ) -> KeyWriteOutcome;

    /// Whether a topic's keys can be read at this node.
    ///
    /// # Errors
    /// They are not loaded from the other nodes yet, or do not fit into the memory limit.
    fn check_ready(&self, topic: &str) -> Result<(), Problem>;

    /// Completes when this node knows a topic's keys, or cannot; `None` if there is nothing to wait for.
    fn loading(&self, topic: &str) -> Option<LoadingKeys>;

    /// Takes over a topic's owner that a predecessor process knew.
    fn inherit(&self, topic: String, claim: Claim);

    /// A topic's owner, for a successor process.
    fn claim(&self, topic: &str) -> Option<Claim>;

    /// More changes are stored ([`ReplicaStore`]), or cannot be.
    fn wake(&self);
}

/// Stores this node's replicas of the durable keys that all nodes share.
pub(crate) trait ReplicaStore: Send + Sync {
    /// Whether a topic's keys are durable.
    fn stores(&self, topic: &str) -> bool;

    /// The topics that were read from the disk since the last call, with the claims that their keys belong to.
    fn take_restored(&self) -> Vec<(String, Claim)>;

    /// A topic's keys, or their owner, have changed.
    fn changed(&self, topic: &Arc<str>);

    /// Whether a topic's keys are stored at this position of an epoch, or a later one.
    fn is_stored(&self, topic: &str, position: Position) -> bool;

    /// This node's directory id, once it is open.
    fn node(&self) -> Option<u64>;

    /// The ids of the nodes that this node has last seen, its own included.
    fn members(&self) -> Vec<u64>;

    /// Stores the ids of the nodes that this node sees.
    fn set_members(&self, members: Vec<u64>);

    /// Why a topic's keys are not stored now.
    fn fault(&self, topic: &str) -> Option<Problem>;

    /// Why a topic's keys are not stored now, for a write that is rejected: it counts.
    fn reject_write(&self, topic: &str) -> Option<Problem>;

    /// Counts a write that is rejected for another storage reason.
    fn count_rejected(&self, cause: FaultCause);

    /// Whether a topic's stream cannot be read: its keys are never stored.
    fn is_unreadable(&self, topic: &str) -> bool;
}
