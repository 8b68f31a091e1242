//! A node's copy of a topic, without I/O: it decides what to read from the store, and what its subscribers receive.
//!
//! The caller passes notifications and answers in the order in which they come, and executes the steps in order.

mod keys;
mod log;

pub use keys::{KeyCopy, KeyStep};
pub use log::{LogCopy, LogStep};

/// Maximum notifications that wait for an answer; with more, the copy reads again.
const WAITING_MAX: usize = 1_024;
