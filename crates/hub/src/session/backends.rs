//! What a hub stores and shares in, if its options enable it.

use std::sync::Arc;

use crate::cluster::Cluster;
use crate::streams::service::StreamService;

/// A hub's durable streams, and its connection with other nodes, if its options enable them.
#[derive(Clone)]
pub(crate) struct Backends {
    pub(crate) store: Option<Arc<StreamService>>,
    pub(crate) cluster: Option<Arc<Cluster>>,
}
