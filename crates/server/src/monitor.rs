//! The reader of a server's metrics.

use std::fmt;
use std::sync::{Arc, OnceLock};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use sinews_engine::StatsReader;

use crate::limits::Gate;
use crate::metrics::limit::Limit;
use crate::metrics::{MetricReason, Metrics, ProcessMetrics, ShardCounters};
use crate::topics::Directory;
use crate::topics::mail::{Stop, StopLevel};

/// Reads a server's metrics from any thread, at no cost to its loops. Clones are cheap.
///
/// [`Router::monitor`](crate::Router::monitor) and [`BoundServer::monitor`](crate::BoundServer::monitor) return the
/// same monitor. Before the server is bound every number is 0.
///
/// ```
/// use sinews_server::{Response, Router, Server};
///
/// let router = Router::new();
/// let monitor = router.monitor();
/// let router = router.metrics("/metrics").get("/open", move |_| {
///     Response::text(monitor.metrics().websockets().to_string())
/// });
/// # drop(router);
/// ```
///
/// It implements [`Collector`](prometheus_client::collector::Collector), too: a program with its own `Registry` of
/// `prometheus-client` can register the monitor and export both.
#[derive(Clone, Debug, Default)]
pub struct Monitor(Arc<OnceLock<Sources>>);

#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) shards: Vec<(Arc<ShardCounters>, StatsReader)>,
    pub(crate) stop: Arc<StopLevel>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) directory: Arc<Directory>,
}

impl Monitor {
    /// Connects the monitor to a bound server. A second call does nothing.
    pub(crate) fn attach(&self, sources: Sources) {
        // A router serves one server, so there is no second call.
        let _ = self.0.set(sources);
    }

    /// Returns the current numbers. Each is consistent by itself; the threads keep counting meanwhile.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let mut metrics = Metrics { process: ProcessMetrics::read(), ..Metrics::default() };
        for (counters, watch) in self.0.get().into_iter().flat_map(|sources| &sources.shards) {
            counters.add_to(&mut metrics);
            metrics.loops.push(watch.stats());
        }
        if let Some(sources) = self.0.get() {
            let usage = sources.directory.history_usage();
            metrics.max_memory_bytes = sources.gate.max_memory();
            metrics.history_bytes = usage.bytes;
            metrics.histories_evicted = usage.evicted;
            metrics.subscribed_histories_evicted = usage.evicted_subscribed;
            let usage = sources.directory.keyed_usage();
            metrics.keyed_topics = usage.topics;
            metrics.keys = usage.keys;
            metrics.keyed_bytes = usage.bytes;
            metrics.keyed_snapshot_bytes = usage.snapshot_bytes;
            metrics.key_changes = usage.writes;
            metrics.keyed_lags = usage.lagged;
            let (members, bytes) = sources.directory.presence_usage();
            (metrics.presence_members, metrics.presence_bytes) = (members as u64, bytes as u64);
        }
        metrics
    }

    /// Returns whether load balancers should send new clients, or the reason against it.
    ///
    /// # Errors
    /// [`NotReady`] with the reason.
    pub fn ready(&self) -> Result<(), NotReady> {
        match self.0.get() {
            Some(sources) if sources.stop.read() < Stop::Graceful => {
                sources.gate.is_full().map_or(Ok(()), |limit| Err(NotReady::AtLimit(limit)))
            }
            _ => Err(NotReady::Stopping),
        }
    }
}

impl Collector for Monitor {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        Collector::encode(&self.metrics(), encoder)
    }
}

/// Reason why a server should get no new clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotReady {
    /// The server is stopping, or not bound.
    Stopping,
    /// The connection limit or the memory limit of queues is reached.
    AtLimit(Limit),
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopping => f.write_str("stopping"),
            Self::AtLimit(limit) => write!(f, "at the limit of {}", limit.name()),
        }
    }
}

impl std::error::Error for NotReady {}
