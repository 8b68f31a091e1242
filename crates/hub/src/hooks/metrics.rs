//! Hook metrics.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use serde_json::{Value, json};

use super::client::HookClient;
use super::queues::HookBacklog;
use crate::model::HookKind;

/// Hook counters, which outlive a reload.
#[derive(Debug)]
pub(crate) struct HookMetrics {
    counts: [[AtomicU64; HookResult::ALL.len()]; HookKind::ALL.len()],
    seconds: [Histogram; HookKind::ALL.len()],
    /// Microseconds of all requests in `seconds`, and their number.
    times: [[AtomicU64; 2]; HookKind::ALL.len()],
    retries: AtomicU64,
}

/// A hook's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HookResult {
    Accepted,
    Rejected,
    /// The application cannot be reached, or its answer is an error or malformed.
    Failed,
    TimedOut,
    QueueFull,
    CircuitOpen,
    /// A call beyond its client's rate, which is not passed on.
    RateExceeded,
}

impl HookResult {
    const ALL: [Self; 7] = [
        Self::Accepted,
        Self::Rejected,
        Self::Failed,
        Self::TimedOut,
        Self::QueueFull,
        Self::CircuitOpen,
        Self::RateExceeded,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Rejected => "rejected",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::QueueFull => "queue_full",
            Self::CircuitOpen => "circuit_open",
            Self::RateExceeded => "rate_exceeded",
        }
    }
}

/// Latency bucket limits in seconds.
const BUCKETS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];

impl Default for HookMetrics {
    fn default() -> Self {
        Self {
            counts: Default::default(),
            seconds: [(); HookKind::ALL.len()].map(|()| Histogram::new(BUCKETS)),
            times: Default::default(),
            retries: AtomicU64::new(0),
        }
    }
}

impl HookMetrics {
    pub(super) fn record(&self, kind: HookKind, result: HookResult, time: Option<Duration>) {
        self.counts[kind as usize][result as usize].fetch_add(1, Ordering::Relaxed);
        if let Some(time) = time {
            self.seconds[kind as usize].observe(time.as_secs_f64());
            let [micros, count] = &self.times[kind as usize];
            micros.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }
}

/// The hook metrics, for `/metrics`.
#[derive(Debug)]
pub(crate) struct HookCollector {
    pub(crate) metrics: Arc<HookMetrics>,
    pub(crate) client: Weak<HookClient>,
}

impl HookCollector {
    /// Returns the counts of requested hooks, for the dashboard.
    pub(crate) fn report(&self) -> Value {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let requested =
            |kind: &HookKind| self.metrics.counts[*kind as usize].iter().any(|count| load(count) > 0);
        let hooks = HookKind::ALL.into_iter().filter(requested).map(|kind| {
            let [micros, timed] = &self.metrics.times[kind as usize];
            let mut hook = json!({ "hook": kind.name(), "us": load(micros), "timed": load(timed) });
            for result in HookResult::ALL {
                hook[result.name()] = json!(load(&self.metrics.counts[kind as usize][result as usize]));
            }
            hook
        });
        let hooks: Vec<Value> = hooks.collect();
        let (open, pending) = self.present();
        json!({
            "hooks": hooks, "retries": load(&self.metrics.retries), "open_circuits": open,
            "pending": pending.requests,
        })
    }

    /// Returns the number of URLs with an open circuit, and the pending requests.
    fn present(&self) -> (usize, HookBacklog) {
        let client = self.client.upgrade();
        client.map_or_else(Default::default, |client| (client.open_circuits(), client.pending()))
    }
}

impl Collector for HookCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Requests to hooks of the application, by result";
        let mut family =
            encoder.encode_descriptor("sinews_hook_requests", help, None, MetricType::Counter)?;
        for kind in HookKind::ALL {
            for result in HookResult::ALL {
                let count = self.metrics.counts[kind as usize][result as usize].load(Ordering::Relaxed);
                let labels = [("hook", kind.name()), ("result", result.name())];
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        let help = "Time from a hook's request to its answer, with the time in the queue and retries";
        let mut family =
            encoder.encode_descriptor("sinews_hook_seconds", help, None, MetricType::Histogram)?;
        for kind in HookKind::ALL {
            let seconds = &self.metrics.seconds[kind as usize];
            seconds.encode(family.encode_family(&[("hook", kind.name())])?)?;
        }
        let retries = ConstCounter::new(self.metrics.retries.load(Ordering::Relaxed));
        let help = "Repeated requests to hooks";
        retries.encode(encoder.encode_descriptor(
            "sinews_hook_retries",
            help,
            None,
            MetricType::Counter,
        )?)?;
        let (open, pending) = self.present();
        for (name, help, value) in [
            ("sinews_hook_open_circuits", "URLs of hooks that are not requested because they fail", open),
            ("sinews_hook_pending", "Requests to hooks that wait or are in progress", pending.requests),
            (
                "sinews_hook_pending_bytes",
                "Memory of the requests to hooks that wait or are in progress, in bytes",
                pending.bytes,
            ),
        ] {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        Ok(())
    }
}
