//! The contract of a topic store: histories and keys of topics that several nodes share, in Redis or NATS.
//!
//! A store is the owner of every topic. It assigns positions, checks conditions, and lets keys expire. A node has a copy
//! of the topics that it follows:
//!
//! ```text
//!   node ──▶ TopicStore::append, write_keys ──▶ the store ──▶ StoreSink ──▶ the copies of all nodes that follow
//!                      ▲                           │
//!                   Pending ◀── its answer, with the position
//! ```
//!
//! Notifications can be lost, duplicated and late. Each names its predecessor, so that a [`Chain`] detects a gap, and a
//! loss of acknowledged writes, and a node reads the missing part. `sinews-brokers` has the stores.

#![forbid(unsafe_code)]

mod capabilities;
mod chain;
mod error;
mod keys;
mod log;
mod pending;
mod position;
mod store;
mod windows;

pub use capabilities::{AckedLoss, Capabilities, ConditionSupport, FailoverDetection};
pub use chain::{Chain, Link};
pub use error::{StoreError, StoreHealth};
pub use keys::{
    KeyChange, KeyChanges, KeyCondition, KeyLimits, KeyOutcome, KeyPage, KeyUpdate, KeyWrite, KeyWrites,
    KeysWritten, ReadKeys,
};
pub use log::{Append, Appended, LogEntry, LogPage, LogStart, ReadLog, Retention};
pub use pending::{Pending, Responder};
pub use position::{POSITION_MAX, Part, Position, TopicPart};
pub use store::{StoreSink, TopicStore};
pub use windows::{First, Once, Take};
