//! Durable streams, which all client protocols share. docs/book/src/server/streams.md describes them.
//!
//! ```text
//!   binary (WebSocket, TCP) ─┐                        ┌─▶ store: append, read, commit; local or at a broker
//!   JSON (WebSocket) ────────┼─▶ ConnectionStreams ───┤
//!   HTTP ────────────────────┘   pending answers,     └─▶ groups: assignment of partitions
//!                                subscriptions            to members
//! ```
//!
//! [`durable_topics`] serves the durable topics, [`follow`] their subscribers.

mod acks;
pub(crate) mod administration;
mod append_all;
#[cfg(test)]
mod block_on;
pub(crate) mod broker;
pub(crate) mod connection;
mod deletion;
pub(crate) mod directory;
pub(crate) mod discovery;
pub(crate) mod durable_keys;
pub(crate) mod durable_topics;
pub(crate) mod errors;
pub(crate) mod event_records;
pub(crate) mod fetch;
pub(crate) mod follow;
mod groups;
pub(crate) mod idempotency;
pub(crate) mod json;
pub(crate) mod listing;
mod local;
pub(crate) mod missed;
pub(crate) mod options;
mod pattern_state;
pub(crate) mod quota;
pub(crate) mod record_content;
pub(crate) mod record_stamp;
pub(crate) mod records_from;
mod relay_feed;
pub(crate) mod replies;
pub(crate) mod report;
pub(crate) mod request;
mod ring_writes;
pub(crate) mod seeking;
pub(crate) mod service;
pub(crate) mod store;
mod subscription;
mod temporary;
#[cfg(test)]
#[path = "../tests/loopback/support/test_broker.rs"]
mod test_broker;
#[cfg(test)]
mod tests;
pub(crate) mod topic_append;
pub(crate) mod topic_history;
mod wake_flag;
