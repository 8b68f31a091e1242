//! Keyed topics: state that each subscriber sees, in place of messages that pass by.
//!
//! ```text
//!   write, on any thread ─▶ KeyedTopic, shared: values, and a log of the last change of each key
//!                               │ the first change after a read notifies the threads with subscribers
//!                               ▼
//!   group of subscribers with the same filter and interval ─▶ one update, encoded once, to all that are ready
//!                               │ not ready
//!                               ▼
//!   KeyedReader: a position in the log; reads when its connection has drained
//! ```
//!
//! The log has each key once, at its last change. So what waits for a slow subscriber is a number: it is bounded by the
//! state, whatever the rate of changes, and a value that was replaced is never sent to it.

pub(crate) mod config;
pub(crate) mod delivery;
pub(crate) mod local;
pub(crate) mod log;
mod operations;
pub(crate) mod page;
pub(crate) mod reader;
mod recent;
pub(crate) mod replication;
pub(crate) mod snapshot;
pub(crate) mod state;
pub(crate) mod table;
pub(crate) mod topic;
pub(crate) mod update;
pub(crate) mod write;
