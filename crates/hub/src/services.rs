//! The services of a hub that its options enable.

use std::sync::Arc;

use crate::cluster::Cluster;
use crate::streams::service::StreamService;

/// The durable streams of a hub, and its connection with other nodes, if its options enable them.
#[derive(Clone)]
pub(crate) struct HubServices {
    pub(crate) store: Option<Arc<StreamService>>,
    pub(crate) cluster: Option<Arc<Cluster>>,
}
