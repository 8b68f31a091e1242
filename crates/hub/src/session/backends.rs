//! What a hub stores and shares in, if its options enable it.

use std::sync::Arc;

use crate::cluster::Cluster;
use crate::streams::service::StreamService;
use crate::topics::stored::StoredTopics;

/// A hub's durable streams, its connection with other nodes, and its topic store, if its options enable them.
#[derive(Clone)]
pub(crate) struct Backends {
    pub(crate) store: Option<Arc<StreamService>>,
    pub(crate) cluster: Option<Arc<Cluster>>,
    pub(crate) stored: Option<Arc<StoredTopics>>,
}
