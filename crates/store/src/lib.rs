//! The contract for topic stores: histories and keys that several nodes share, in Redis or NATS.
//!
//! A store owns every topic. It assigns positions, checks conditions, and lets keys expire. A node has a copy
//! for each topic that it follows:
//!
//! ```text
//!   node ──▶ TopicStore::append, write_keys ──▶ the store ──▶ StoreSink ──▶ the copies at all nodes
//!                      ▲                           │
//!                   StoreAnswer ◀── its answer, with the position
//! ```
//!
//! Notifications can be lost, duplicated and late. Each names its predecessor, so that a [`TopicChain`] detects gaps and
//! lost acknowledged writes, and a node reads the missing part. `sinews-brokers` has the stores.

#![forbid(unsafe_code)]

mod answer;
mod capabilities;
mod chain;
mod copy;
mod error;
mod keys;
mod log;
mod position;
mod store;
mod windows;

pub use answer::{StoreAnswer, StoreResponder};
pub use capabilities::{AckedLoss, Capabilities, ConditionSupport, FailoverDetection};
pub use chain::{ChainLink, TopicChain};
pub use copy::{KeyCopy, KeyStep, LogCopy, LogStep};
pub use error::{StoreError, StoreHealth, StoreServer};
pub use keys::{
    KeyChanges, KeyCommand, KeyCommands, KeyCondition, KeyLimits, KeyOutcome, KeyUpdate, KeysWritten,
    ReadKeys, StoredKey, StoredKeys,
};
pub use log::{LogAppend, LogAppended, LogEntry, LogPage, LogStart, ReadLog, Retention};
pub use position::{POSITION_MAX, PartKind, Position, TopicPart};
pub use store::{StoreSink, TopicStore};
pub use windows::{FirstValue, OnceRequest, TakeRequest};
