//! The cluster in a build without the feature `cluster`: no value of these types exists.

pub(crate) mod command;
pub(crate) mod node;

use std::future::Ready;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;

pub(crate) use self::AbsentCluster as Cluster;
use self::command::{NodeCommand, NodeResults};
use self::node::ClusterNode;
use crate::connections::ConnectionCounts;
use crate::error::HubError;
use crate::model::nodes::OtherNodes;
use crate::topics::stored::StoredTopics;
use crate::topics::subscribed::TopicObserver;

/// A cluster node.
#[derive(Debug)]
pub(crate) enum AbsentCluster {}

impl AbsentCluster {
    pub(crate) fn new(
        options: options::ClusterOptions,
        _retained: &[String],
        _predecessor: Option<&str>,
    ) -> Result<Self, HubError> {
        match options {}
    }

    pub(crate) fn set_serving(&self, _is_serving: bool) {
        match *self {}
    }

    pub(crate) fn set_stored(&self, _stored: Arc<StoredTopics>) {
        match *self {}
    }

    pub(crate) fn other_nodes(self: &Arc<Self>) -> Arc<dyn OtherNodes> {
        match **self {}
    }

    pub(crate) fn collector(&self) -> Box<dyn Collector> {
        match *self {}
    }

    pub(crate) fn observer(&self) -> Arc<dyn TopicObserver> {
        match *self {}
    }

    pub(crate) fn ready(&self) -> Result<(), String> {
        match *self {}
    }

    pub(crate) fn check_broker(&self) -> Result<(), String> {
        match *self {}
    }

    pub(crate) fn name(&self) -> &str {
        match *self {}
    }

    pub(crate) fn nodes(&self, _counts: ConnectionCounts) -> Vec<(ClusterNode, bool)> {
        match *self {}
    }

    pub(crate) fn request(&self, _command: &NodeCommand) -> Ready<NodeResults> {
        match *self {}
    }

    pub(crate) fn wait_connected(&self, _limit: Duration) -> bool {
        match *self {}
    }

    pub(crate) fn note_presence(&self) {
        match *self {}
    }
}

pub(crate) mod link {
    use std::io;
    use std::sync::Arc;

    use sinews_server::Publisher;

    use super::Cluster;
    use super::node::LocalParts;
    use crate::topics::HubTopics;

    pub(crate) use self::AbsentLink as RunningLink;

    /// The thread that connects a node with the other nodes.
    #[derive(Debug)]
    pub(crate) enum AbsentLink {}

    impl AbsentLink {
        pub(crate) fn start(
            cluster: &Arc<Cluster>,
            _hub: Arc<HubTopics>,
            _local: LocalParts,
            _publisher: Publisher,
        ) -> io::Result<Self> {
            match **cluster {}
        }
    }
}

pub(crate) mod options {
    pub(crate) use self::AbsentOptions as ClusterOptions;

    /// Cluster options.
    pub(crate) enum AbsentOptions {}
}
