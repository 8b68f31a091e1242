//! What threads tell each other.

use std::sync::Arc;

use sinews_session::Prepared;

/// Mail to a shard.
#[derive(Debug)]
pub(crate) enum Mail {
    /// A message for the subscribers of a topic there.
    Publish { topic: Arc<str>, message: Prepared },
    /// Stop gracefully.
    Stop,
    /// Stop at once.
    StopNow,
}
