//! Services that the connections and the HTTP API share.

use std::sync::Arc;

use crate::apps::live::LiveApps;
use crate::streams::service::StreamService;
use crate::topics::HubTopics;

/// The apps, the topics, and the durable topics' streams.
pub(super) struct PusherServices {
    pub(super) apps: Arc<LiveApps>,
    pub(super) hub: Arc<HubTopics>,
    pub(super) store: Option<Arc<StreamService>>,
}

impl PusherServices {
    /// The store, if a topic is durable.
    pub(super) fn durable_store(&self, topic: &str) -> Option<&Arc<StreamService>> {
        self.store.as_ref().filter(|_| self.hub.is_durable(topic))
    }
}
