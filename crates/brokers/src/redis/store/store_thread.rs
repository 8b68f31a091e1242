//! The store's thread.

use std::sync::Arc;

use sinews_store::StoreSink;
use tokio::sync::Notify;

use super::script::Scripts;
use super::settings::Settings;
use super::shared::RedisStoreShared;
use crate::lock::lock;

/// State on the store's thread, for all servers.
pub(super) struct StoreThread {
    pub(super) settings: Settings,
    pub(super) shared: Arc<RedisStoreShared>,
    pub(super) sink: Arc<dyn StoreSink>,
    pub(super) scripts: Scripts,
    /// Notified when a server has rejected a slot, or is away.
    pub(super) slots_moved: Notify,
}

impl StoreThread {
    pub(super) fn new(settings: Settings, shared: Arc<RedisStoreShared>, sink: Arc<dyn StoreSink>) -> Self {
        let scripts = Scripts::new(settings.rules);
        Self { settings, shared, sink, scripts, slots_moved: Notify::new() }
    }

    /// Notifies the sink if the health of the whole store has changed.
    pub(super) fn report_health(&self) {
        let next = self.shared.servers.health();
        let mut reported = lock(&self.shared.is_reported_up);
        let has_changed = next.is_up() != *reported;
        *reported = next.is_up();
        drop(reported);
        if has_changed {
            self.sink.health_changed(next);
        }
    }
}
