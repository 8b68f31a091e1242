//! Metrics for the topic store.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::shared::StoredTopics;

/// Reads the metrics when they are requested.
#[derive(Debug)]
pub(crate) struct StoredMetrics(Weak<StoredTopics>);

impl StoredMetrics {
    pub(crate) fn new(stored: &Arc<StoredTopics>) -> Self {
        Self(Arc::downgrade(stored))
    }
}

impl Collector for StoredMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(stored) = self.0.upgrade() else { return Ok(()) };
        let copies = stored.logs.lock().len() + stored.keys.lock().len();
        let gauges = [
            (
                "sinews_topic_store_up",
                "Whether the topic store answers",
                u64::from(stored.store.health().is_up()),
            ),
            ("sinews_topic_store_copies", "Histories and keys that this node follows", copies as u64),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        let servers = stored.store.servers();
        if !servers.is_empty() {
            let (name, help) =
                ("sinews_topic_store_server_up", "Whether a server answers that has a part of the topics");
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for server in servers {
                let labels = [("server", &*server.name)];
                ConstGauge::new(u64::from(server.health.is_up())).encode(family.encode_family(&labels)?)?;
            }
        }
        let counters = &stored.counters;
        let counters = [
            (
                "sinews_topic_store_failed",
                "Operations that the topic store has not executed, as far as is known",
                &counters.failed,
            ),
            (
                "sinews_topic_store_unknown",
                "Operations that the topic store may have executed, without an answer",
                &counters.unknown,
            ),
            ("sinews_topic_store_gaps", "Reads after notifications were missing", &counters.gaps),
            (
                "sinews_topic_store_lost",
                "Histories whose subscribers were told that messages are lost",
                &counters.lost,
            ),
            (
                "sinews_topic_store_subscriptions_rejected",
                "Subscriptions that the topic store has rejected",
                &counters.rejected,
            ),
            (
                "sinews_topic_store_unstored",
                "Publications that were delivered while the topic store was away, and are in no history",
                &counters.unstored,
            ),
        ];
        for (name, help, value) in counters {
            let counter = ConstCounter::new(value.load(Ordering::Relaxed));
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        Ok(())
    }
}
