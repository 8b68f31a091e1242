//! What threads tell each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use sinews_session::Prepared;

/// Mail to a shard.
#[derive(Debug)]
pub(crate) enum Mail {
    /// A message for the subscribers of a topic there.
    Publish { topic: Arc<str>, message: Prepared },
}

/// How a server is to stop, if at all. No mail, since a box may be full: shards look at it when they are woken.
#[derive(Debug, Default)]
pub(crate) struct StopLevel(AtomicU8);

/// What [`StopLevel`] has come to; it only rises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    No,
    /// Gracefully.
    InOrder,
    /// At once.
    Now,
}

impl StopLevel {
    pub(crate) fn raise(&self, to: Stop) {
        self.0.fetch_max(to as u8, Ordering::SeqCst);
    }

    pub(crate) fn read(&self) -> Stop {
        match self.0.load(Ordering::SeqCst) {
            0 => Stop::No,
            1 => Stop::InOrder,
            _ => Stop::Now,
        }
    }
}
