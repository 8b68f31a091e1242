//! Cluster metrics.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::Cluster;

/// Metrics at one point in time.
#[derive(Debug)]
pub(crate) struct ClusterMetrics {
    is_connected: bool,
    nodes: u64,
    rejected_subscriptions: u64,
    connects: u64,
    rejected_commands: u64,
    sent: u64,
    received: u64,
    dropped: [(&'static str, u64); 3],
}

impl ClusterMetrics {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        let counters = cluster.counters();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Self {
            is_connected: cluster.check_broker().is_ok(),
            nodes: cluster.node_count() as u64,
            rejected_subscriptions: cluster.rejected_subscriptions() as u64,
            connects: read(&counters.connects),
            rejected_commands: read(&counters.rejected),
            sent: read(&counters.sent),
            received: read(&counters.received),
            dropped: [
                ("broker_away", read(&counters.dropped_away)),
                ("queue_full", read(&counters.dropped_full)),
                ("too_large", read(&counters.dropped_large)),
            ],
        }
    }
}

impl Collector for ClusterMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let gauges = [
            (
                "sinews_cluster_connected",
                "Whether the broker of the cluster is connected",
                u64::from(self.is_connected),
            ),
            ("sinews_cluster_nodes", "Nodes of the cluster, including this one", self.nodes),
            (
                "sinews_cluster_subscriptions_rejected",
                "Topics and patterns whose subscription the broker of the cluster rejects",
                self.rejected_subscriptions,
            ),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        let counters = [
            ("sinews_cluster_connects", "Connections to the broker of the cluster", self.connects),
            (
                "sinews_cluster_commands_rejected",
                "Commands that the broker of the cluster has rejected, subscriptions included",
                self.rejected_commands,
            ),
            ("sinews_cluster_sent", "Publications passed to the broker for other nodes", self.sent),
            ("sinews_cluster_received", "Publications received from other nodes", self.received),
        ];
        for (name, help, value) in counters {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        let help = "Publications that other nodes do not receive, by reason";
        let kind = ConstCounter::new(0_u64).metric_type();
        let mut dropped = encoder.encode_descriptor("sinews_cluster_dropped", help, None, kind)?;
        for (reason, value) in &self.dropped {
            let labels = [("reason", *reason)];
            ConstCounter::new(*value).encode(dropped.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
