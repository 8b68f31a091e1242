//! Health of the streams and their broker: readiness and metrics.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use sinews_server::{Response, Router};

use crate::streams::Store;

/// `GET /readyz`.
pub(crate) fn add_to(router: Router, store: Option<&Arc<Store>>) -> Router {
    let Some(store) = store else { return router.readyz("/readyz") };
    let (store, monitor) = (Arc::clone(store), router.monitor());
    router.get("/readyz", move |_| {
        let answer = monitor.ready().map_err(|why| why.to_string()).and_then(|()| streams_are_ready(&store));
        let response = match answer {
            Ok(()) => Response::text(format!("ready\n{}", damaged(&store))),
            Err(why) => Response::text(format!("{why}\n")).with_status(503),
        };
        response.with_header("Cache-Control", "no-store")
    })
}

/// Returns a line for each damaged stream: the server stays ready for all other streams.
fn damaged(store: &Store) -> String {
    let all = store.damaged();
    let line = |(name, why): &(Arc<str>, Arc<str>)| format!("stream {name} is damaged: {why}\n");
    let mut lines: String = all.iter().take(DAMAGED_TOLD).map(line).collect();
    if let Some(more @ 1..) = all.len().checked_sub(DAMAGED_TOLD) {
        lines.push_str(&format!("{more} more streams are damaged\n"));
    }
    lines
}

/// Maximum number of damaged streams that `/readyz` names.
const DAMAGED_TOLD: usize = 100;

/// Whether appends are expected to succeed.
fn streams_are_ready(store: &Store) -> Result<(), String> {
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
pub(crate) struct Broker {
    ready: bool,
    waiting: u64,
    refused: u64,
}

impl Broker {
    /// `None` without a broker.
    pub(crate) fn of(store: &Store) -> Option<Self> {
        let (health, refused) = store.broker()?;
        Some(Self { ready: health.ready, waiting: health.waiting, refused })
    }
}

impl Collector for Broker {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut gauge = |name, help, value: u64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        let help = "Whether the broker of the streams answers, and every stream follows it";
        gauge("sinews_store_ready", help, u64::from(self.ready))?;
        let help = "Records that wait for the broker's acknowledgement";
        gauge("sinews_store_waiting", help, self.waiting)?;
        let refused = ConstCounter::new(self.refused);
        let help =
            "Appends and requests that the broker rejected, did not answer, or had no queue capacity for";
        refused.encode(encoder.encode_descriptor(
            "sinews_store_refused",
            help,
            None,
            refused.metric_type(),
        )?)
    }
}
