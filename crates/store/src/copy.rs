//! A node's copy of a topic, without I/O: it decides which reads the store gets, and which messages subscribers receive.
//!
//! The caller passes notifications and answers in the order in which they come, and executes the steps in order.

mod keys;
mod log;

pub use keys::{KeyCopy, KeyStep};
pub use log::{LogCopy, LogStep};

/// Maximum notifications that wait for an answer; with more, the copy reads again.
const WAITING_MAX: usize = 1_024;
