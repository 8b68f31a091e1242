//! Webhook metrics.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use serde_json::{Value, json};

use super::queue::WebhookQueue;

/// Latency bucket limits in seconds.
const BUCKETS: [f64; 9] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// One webhook's counters.
#[derive(Debug)]
pub(super) struct WebhookMetrics {
    delivered: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
    retries: AtomicU64,
    seconds: [Histogram; 2],
}

impl Default for WebhookMetrics {
    fn default() -> Self {
        let count = AtomicU64::default;
        Self {
            delivered: count(),
            failed: count(),
            dropped: count(),
            retries: count(),
            seconds: [(); 2].map(|()| Histogram::new(BUCKETS)),
        }
    }
}

impl WebhookMetrics {
    pub(super) fn delivered(&self, events: u64) {
        self.delivered.fetch_add(events, Ordering::Relaxed);
    }

    pub(super) fn failed(&self, events: u64) {
        self.failed.fetch_add(events, Ordering::Relaxed);
    }

    pub(super) fn dropped(&self, events: u64) {
        self.dropped.fetch_add(events, Ordering::Relaxed);
    }

    pub(super) fn retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn request(&self, time: Duration, is_accepted: bool) {
        self.seconds[usize::from(is_accepted)].observe(time.as_secs_f64());
    }

    /// Delivered, failed and dropped events.
    pub(super) fn values(&self) -> (u64, u64, u64) {
        let value = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (value(&self.delivered), value(&self.failed), value(&self.dropped))
    }
}

/// All webhooks' metrics, for `/metrics`. The names in the configuration are the labels.
#[derive(Debug)]
pub(crate) struct WebhookCollector {
    pub(super) receivers: Arc<[Arc<WebhookQueue>]>,
    /// How many nodes report topics; `None` without a cluster.
    pub(super) reporters: Option<usize>,
}

/// Events that wait, and events that were lost, of several webhooks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WebhookBacklog {
    pub(crate) queued: usize,
    pub(crate) failed: u64,
    pub(crate) dropped: u64,
}

impl WebhookCollector {
    /// Returns the sums of the webhooks whose names begin with a prefix.
    pub(crate) fn backlog(&self, prefix: &str) -> WebhookBacklog {
        let receivers = self.receivers.iter().filter(|receiver| receiver.name().starts_with(prefix));
        receivers.fold(WebhookBacklog::default(), |sum, receiver| {
            let (_, failed, dropped) = receiver.metrics.values();
            WebhookBacklog {
                queued: sum.queued + receiver.len(),
                failed: sum.failed + failed,
                dropped: sum.dropped + dropped,
            }
        })
    }

    /// Returns each webhook's counts and queue, for the dashboard.
    pub(crate) fn report(&self) -> Value {
        let webhooks = self.receivers.iter().map(|receiver| {
            let (delivered, failed, dropped) = receiver.metrics.values();
            json!({
                "webhook": receiver.name(), "delivered": delivered, "failed": failed, "dropped": dropped,
                "retries": receiver.metrics.retries.load(Ordering::Relaxed), "queued": receiver.len(),
            })
        });
        webhooks.collect()
    }
}

impl Collector for WebhookCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Events of webhooks, by result";
        let mut family =
            encoder.encode_descriptor("sinews_webhook_events", help, None, MetricType::Counter)?;
        for receiver in self.receivers.iter() {
            let (delivered, failed, dropped) = receiver.metrics.values();
            for (result, count) in [("delivered", delivered), ("failed", failed), ("dropped", dropped)] {
                let labels = [("webhook", receiver.name()), ("result", result)];
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        let help = "Repeated requests of webhooks";
        let mut family =
            encoder.encode_descriptor("sinews_webhook_retries", help, None, MetricType::Counter)?;
        for receiver in self.receivers.iter() {
            let retries = ConstCounter::new(receiver.metrics.retries.load(Ordering::Relaxed));
            retries.encode(family.encode_family(&[("webhook", receiver.name())])?)?;
        }
        let help = "Time of requests of webhooks, by result";
        let mut family =
            encoder.encode_descriptor("sinews_webhook_seconds", help, None, MetricType::Histogram)?;
        for receiver in self.receivers.iter() {
            for (result, seconds) in ["failed", "accepted"].into_iter().zip(&receiver.metrics.seconds) {
                let labels = [("webhook", receiver.name()), ("result", result)];
                seconds.encode(family.encode_family(&labels)?)?;
            }
        }
        let help = "Events that wait for a webhook";
        let mut family =
            encoder.encode_descriptor("sinews_webhook_queued_events", help, None, MetricType::Gauge)?;
        for receiver in self.receivers.iter() {
            let waiting = ConstGauge::new(i64::try_from(receiver.len()).unwrap_or(i64::MAX));
            waiting.encode(family.encode_family(&[("webhook", receiver.name())])?)?;
        }
        if let Some(reporters) = self.reporters {
            let help = "Nodes of the cluster that report topics to webhooks";
            let gauge = ConstGauge::new(i64::try_from(reporters).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(
                "sinews_webhook_reporters",
                help,
                None,
                MetricType::Gauge,
            )?)?;
        }
        Ok(())
    }
}
