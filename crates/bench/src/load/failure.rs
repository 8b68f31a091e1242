//! Connection failures.

use crate::tally::FailureKind;

/// Reason for closing a connection.
#[derive(Debug)]
pub(super) struct ConnectionFailure {
    /// `None` for an expected close.
    pub(super) failure: Option<FailureKind>,
    pub(super) text: String,
    /// The failure's socket among the connection's sockets.
    pub(super) socket: usize,
}

impl ConnectionFailure {
    pub(super) fn new(failure: FailureKind, text: &str) -> Self {
        Self { failure: Some(failure), text: text.to_owned(), socket: 0 }
    }

    pub(super) fn expected() -> Self {
        Self { failure: None, text: String::new(), socket: 0 }
    }
}
