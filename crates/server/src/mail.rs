//! What threads tell each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use sinews_engine::ConnId;
use sinews_session::Prepared;

use crate::topics::Position;

/// Mail to a shard.
#[derive(Debug)]
pub(crate) enum Mail {
    /// A message for the subscribers of a topic there.
    Publish(Published),
    /// Of all connections, one there holds most memory, and all together hold too much.
    Shed,
}

/// A message on its way between threads.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) topic: Arc<str>,
    pub(crate) message: Prepared,
    /// Where it stands in its topic, if that is kept.
    pub(crate) position: Option<Position>,
    /// A subscriber there that does not get it.
    pub(crate) except: Option<ConnId>,
}

impl Mail {
    pub(crate) fn publish(topic: &Arc<str>, message: &Prepared) -> Self {
        let (topic, message) = (topic.clone(), message.clone());
        Self::Publish(Published { topic, message, position: None, except: None })
    }
}

/// How a server is to stop, if at all. No mail, since a box may be full: shards look at it when they are woken.
#[derive(Debug, Default)]
pub(crate) struct StopLevel(AtomicU8);

/// What [`StopLevel`] has come to; it only rises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stop {
    No,
    /// Gracefully, and another process accepts in its place.
    HandedOver,
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
            1 => Stop::HandedOver,
            2 => Stop::InOrder,
            _ => Stop::Now,
        }
    }
}
