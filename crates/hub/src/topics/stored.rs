//! Topics whose histories and keys a store has, which all nodes share.
//!
//! ```text
//!   publish ─▶ TopicStore::append ─▶ the store ─▶ notifications ─▶ copies ─▶ deliver, on each node
//!   write a key ─▶ TopicStore::write_keys ─▶ the same
//! ```
//!
//! A node has a copy of each topic that it uses: its histories and keys are those of the server below, from which
//! subscribers resume. The [copies](sinews_store::LogCopy) decide what is read; this module executes it. A copy is
//! dropped when its topic was unused for a minute.

mod audit;
mod interest;
mod key_topic;
mod keys;
mod log_topic;
mod logs;
mod metrics;
mod payload;
mod revocations;
mod shared;
mod sink;
mod target;
mod unstored;

use std::sync::Arc;

use sinews_server::Publisher;

pub(crate) use self::interest::StoredInterest;
pub(crate) use self::metrics::StoredMetrics;
pub(crate) use self::shared::StoredTopics;
use self::shared::Target;
use self::sink::CopySink;
pub(crate) use self::target::{StoredEntries, StoredTarget};
pub(crate) use self::unstored::AcknowledgedPublication;
pub use self::unstored::StoreAway;

impl StoredTopics {
    /// Connects to the store. Called once, when the server is bound.
    pub(crate) fn start(
        self: &Arc<Self>,
        hub: Arc<dyn StoredTarget>,
        publisher: Publisher,
    ) -> std::io::Result<()> {
        // The first call sets it.
        let _ = self.target.set(Target { hub: Arc::downgrade(&hub), publisher });
        self.store.start(Arc::new(CopySink(Arc::downgrade(self))));
        let stored = Arc::downgrade(self);
        self.background.spawn("store-audit", audit::run(stored)).map(drop)
    }
}
