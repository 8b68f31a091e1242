//! Keys of topics that the nodes of a cluster share, as clients use them.

use std::fmt::Debug;
use std::pin::Pin;

use sinews_server::{KeyError, KeyWrite, KeyWritten};

use crate::problem::Problem;

/// A node owns the keys of a topic in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Number of owners so far.
    pub(crate) term: u32,
    pub(crate) epoch: u64,
    /// The id of the node: a successor process has the id of its predecessor.
    pub(crate) owner: u128,
}

/// The result of a write, or when another node or the log has it.
pub(crate) enum KeyWriteOutcome {
    Done(Result<KeyWritten, Problem>),
    Later(PendingKeyWrite),
}

/// Completes with the result of a write.
pub(crate) type PendingKeyWrite = Pin<Box<dyn Future<Output = Result<KeyWritten, Problem>> + Send>>;

/// Completes when keys are loaded, or cannot be.
pub(crate) type LoadingKeys = Pin<Box<dyn Future<Output = Result<(), Problem>> + Send>>;

/// Keys that all nodes of a cluster share.
pub(crate) trait SharedKeys: Debug + Send + Sync {
    /// Writes a key: with this function if this node owns the topic, otherwise at its owner. The writes of one caller to
    /// a topic keep their order.
    fn write(
        &self,
        topic: &str,
        write: KeyWrite,
        write_here: &mut dyn FnMut(&KeyWrite) -> Result<KeyWritten, KeyError>,
    ) -> KeyWriteOutcome;

    /// Whether the keys of a topic can be read at this node.
    ///
    /// # Errors
    /// They are not loaded from the other nodes yet, or do not fit into the memory limit.
    fn check_ready(&self, topic: &str) -> Result<(), Problem>;

    /// Completes when the keys of the other nodes are loaded, or cannot be; `None` if there is nothing to wait for.
    fn loading(&self) -> Option<LoadingKeys>;

    /// Takes over the owner of a topic that a predecessor process knew.
    fn inherit(&self, topic: String, claim: Claim);

    /// The owner of a topic, for a successor process.
    fn claim(&self, topic: &str) -> Option<Claim>;
}
