//! Health of the streams and their broker: readiness and metrics.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use sinews_server::{Monitor, Response, Router};

use crate::session::backends::Backends;
use crate::streams::service::StreamService;
use crate::uncached::UNCACHED;

/// Whether this node should get new clients.
#[derive(Clone)]
pub(crate) struct Readiness {
    monitor: Monitor,
    services: Backends,
}

impl Readiness {
    /// The readiness of the server with this router's routes.
    pub(crate) fn new(router: &Router, services: &Backends) -> Self {
        Self { monitor: router.monitor(), services: services.clone() }
    }

    fn check(&self) -> Result<(), String> {
        self.monitor.ready().map_err(|why| why.to_string())?;
        self.services.store.as_ref().map_or(Ok(()), |store| streams_are_ready(store))?;
        self.services.cluster.as_ref().map_or(Ok(()), |cluster| cluster.ready())?;
        self.services.stored.as_ref().map_or(Ok(()), |stored| stored.ready())
    }

    /// The answer to a health check: 200, or 503 with the reason.
    pub(crate) fn answer(&self) -> Response {
        let response = match self.check() {
            Ok(()) => {
                let unusable = self.services.store.as_ref().map_or_else(String::new, |store| unusable(store));
                let stored = self.services.stored.as_ref().map_or_else(String::new, |stored| {
                    format!("topic store {}\n{}", stored.capabilities(), stored.away_servers())
                });
                Response::text(format!("ready\n{stored}{unusable}"))
            }
            Err(why) => Response::text(format!("{why}\n")).with_status(503),
        };
        response.with_header("Cache-Control", UNCACHED)
    }
}

/// `GET /readyz`.
pub(crate) fn add_to(router: Router, readiness: Readiness) -> Router {
    router.health_check("/readyz", move |_| readiness.answer())
}

/// Returns a line for each damaged or failed stream: the server stays ready for all other streams.
fn unusable(store: &StreamService) -> String {
    lines(&store.damaged(), "is damaged", "are damaged")
        + &lines(&store.failed(), "has failed", "have failed")
}

fn lines(all: &[(Arc<str>, Arc<str>)], one_state: &str, state: &str) -> String {
    let line = |(name, why): &(Arc<str>, Arc<str>)| format!("stream {name} {one_state}: {why}\n");
    let mut lines: String = all.iter().take(STREAMS_NAMED).map(line).collect();
    if let Some(more @ 1..) = all.len().checked_sub(STREAMS_NAMED) {
        lines.push_str(&format!("{more} more streams {state}\n"));
    }
    lines
}

/// Maximum number of damaged streams, and of failed streams, that `/readyz` names.
const STREAMS_NAMED: usize = 100;

/// Whether appends are expected to succeed.
fn streams_are_ready(store: &StreamService) -> Result<(), String> {
    if let Some(why) = store.failure() {
        return Err(format!("the streams: {why}"));
    }
    match store.broker() {
        Some((health, _)) if !health.ready => {
            let why = health.error.unwrap_or_else(|| "it has not answered yet".into());
            Err(format!("the broker of the streams: {why}"))
        }
        _ => Ok(()),
    }
}

/// Metrics at one point in time.
#[derive(Debug)]
pub(crate) struct BrokerMetrics {
    ready: bool,
    waiting: u64,
    rejected: u64,
}

impl BrokerMetrics {
    /// `None` without a broker.
    pub(crate) fn for_store(store: &StreamService) -> Option<Self> {
        let (health, rejected) = store.broker()?;
        Some(Self { ready: health.ready, waiting: health.waiting, rejected })
    }
}

impl Collector for BrokerMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut gauge = |name, help, value: u64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        let help = "Whether the broker of the streams answers, and every stream follows it";
        gauge("sinews_store_ready", help, u64::from(self.ready))?;
        let help = "Records that wait for the broker's acknowledgement";
        gauge("sinews_store_waiting", help, self.waiting)?;
        let rejected = ConstCounter::new(self.rejected);
        let help =
            "Appends and requests that the broker rejected, did not answer, or had no queue capacity for";
        rejected.encode(encoder.encode_descriptor(
            "sinews_store_refused",
            help,
            None,
            rejected.metric_type(),
        )?)
    }
}
