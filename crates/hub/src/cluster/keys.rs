//! Keys of topics, shared by all nodes. One node owns each topic: it accepts the writes, and publishes the changes.
//! Each node has a replica.
//!
//! ```text
//!   client ─▶ node ── write ──▶ owner: condition, limits, version ── changes ──▶ all nodes: replica, subscribers
//!              ◀─── result ────┘ after the changes
//! ```
//!
//! Decision 58 in docs/book/src/internals/decisions.md has the reasons, docs/book/src/server/keys.md the guarantees.

mod claim;
mod durable;
mod joining;
mod ownership;
mod replicator;
mod settling;
mod shared;
mod transfer;
mod wire;
mod write_order;
mod writes;

pub(super) use self::replicator::{KeyNodes, KeyReplicator};
pub(super) use self::settling::KeysHeartbeat;
pub(super) use self::shared::{ClusterKeys, KeyCounters};
pub(super) use self::transfer::{KeySender, KeyTarget};

#[cfg(test)]
mod tests;
