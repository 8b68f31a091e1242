//! Topic keys that a cluster's nodes share, as clients use them.

use std::fmt::Debug;
use std::pin::Pin;

use sinews_server::{KeyWrite, KeyWritten};

use crate::model::problem::{Problem, code, problem};

/// A write's result, or when the store or the log has it.
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
    /// Writes a key. One caller's writes to a topic keep their order.
    fn write(&self, topic: &str, write: KeyWrite) -> KeyWriteOutcome;

    /// Whether a topic's keys can be used at this node.
    ///
    /// # Errors
    /// They do not fit into the memory limit, or the nodes share none.
    fn check_ready(&self, topic: &str) -> Result<(), Problem>;

    /// Completes when this node knows a topic's keys, or cannot; `None` if there is nothing to wait for.
    fn loading(&self, topic: &str) -> Option<LoadingKeys>;
}

/// The keys of a cluster without a topic store: there are none.
#[derive(Debug)]
pub(crate) struct KeysWithoutStore;

impl KeysWithoutStore {
    /// As for a namespace without keys: a retry does not help.
    fn problem() -> Problem {
        problem(code::TOPIC, "keys in a cluster need a topic store (cluster.store)")
    }
}

impl SharedKeys for KeysWithoutStore {
    fn write(&self, _: &str, _: KeyWrite) -> KeyWriteOutcome {
        KeyWriteOutcome::Done(Err(Self::problem()))
    }

    fn check_ready(&self, _: &str) -> Result<(), Problem> {
        Err(Self::problem())
    }

    fn loading(&self, _: &str) -> Option<LoadingKeys> {
        None
    }
}
