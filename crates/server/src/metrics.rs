//! Metrics of the server and their readers.
//!
//! ```text
//!   shard ─▶ Counters: a load and a store each, no locked operation    ─┐
//!   loop  ─▶ the engine's Watch                                         ├─▶ Monitor ─▶ Metrics ─▶ text
//!   /proc ─▶ resident memory, CPU time, descriptors                    ─┘   any thread, on demand
//! ```

mod counters;
mod process;
mod reasons;
mod text;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sinews_engine::{Stats, Watch};

pub(crate) use self::counters::{Counters, Held};
pub(crate) use self::reasons::reason_enum;
pub use self::reasons::{ConnectionEnd, Dropped, Reason, Tally, WebSocketEnd};
use crate::limits::{Gate, Limit};
use crate::mail::{Stop, StopLevel};
use crate::topics::Directory;

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
    pub(crate) shards: Vec<(Arc<Counters>, Watch)>,
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
        let mut metrics = Metrics { process: Process::read(), ..Metrics::default() };
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
        }
        metrics
    }

    /// Returns whether load balancers should send new clients, or the reason against it.
    ///
    /// # Errors
    /// [`NotReady`] with the reason.
    pub fn ready(&self) -> Result<(), NotReady> {
        match self.0.get() {
            Some(sources) if sources.stop.read() < Stop::InOrder => {
                sources.gate.is_full().map_or(Ok(()), |limit| Err(NotReady::AtLimit(limit)))
            }
            _ => Err(NotReady::Stopping),
        }
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

impl std::fmt::Display for NotReady {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stopping => f.write_str("stopping"),
            Self::AtLimit(limit) => write!(f, "at the limit of {}", limit.name()),
        }
    }
}

impl std::error::Error for NotReady {}

/// Metrics of a server, over all its threads. Totals count since bind.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Metrics {
    /// TCP connections accepted.
    pub accepted: u64,
    /// TCP connections that have ended, by reason.
    pub closed: Tally<ConnectionEnd>,
    /// Requests that became WebSockets.
    pub handshakes: u64,
    /// Rejected handshakes by response status; statuses with a count only.
    pub handshakes_refused: Vec<(u16, u64)>,
    /// WebSockets that have ended, by reason.
    pub websockets_closed: Tally<WebSocketEnd>,
    /// Answers to plain requests, by the first digit of the status, from 1 to 5.
    pub responses: [u64; 5],
    /// Data messages received. A message that is delivered in fragments counts with its last fragment.
    pub messages_received: u64,
    /// Payload bytes of received messages, after decompression.
    pub message_bytes_received: u64,
    /// Data messages queued to be sent.
    pub messages_sent: u64,
    /// Payload bytes of sent messages, before compression.
    pub message_bytes_sent: u64,
    /// Messages that were not sent, by reason.
    pub dropped: Tally<Dropped>,
    /// Publications delivered to subscribers, counted on each thread that has subscribers.
    pub publications: u64,
    /// Messages of publications passed to a subscriber's queue, or to its overflow policy.
    pub deliveries: u64,
    /// Completed TLS handshakes.
    pub tls_handshakes: u64,
    /// Connections on which TLS failed, during the handshake or later: by an error of the client, or a certificate
    /// that it rejects.
    pub tls_failures: u64,
    /// Bytes in outbound queues of WebSockets and answers. A message counts once for each recipient, although it is
    /// in memory once.
    pub queued_bytes: u64,
    /// Bytes of buffers with incomplete messages and requests.
    pub incomplete_bytes: u64,
    /// Limit of `queued_bytes` and `incomplete_bytes` together; `None` without a limit
    /// ([`Limits::with_max_memory`](crate::Limits::with_max_memory)).
    pub max_memory_bytes: Option<u64>,
    /// Approximate bytes of all topic histories.
    pub history_bytes: u64,
    /// Topic histories evicted, since all histories together exceeded their limit
    /// ([`TopicConfig::with_max_history_bytes`](crate::TopicConfig::with_max_history_bytes)).
    pub histories_evicted: u64,
    /// Evicted histories of topics with subscribers.
    pub subscribed_histories_evicted: u64,
    /// Rejections and closes by an exceeded limit of the server ([`Limits`](crate::Limits)).
    pub limited: Tally<Limit>,
    /// Statistics of the event loops, one for each thread: turns, socket bytes, load.
    pub loops: Vec<Stats>,
    /// The process.
    pub process: Process,
}

impl Metrics {
    /// Returns the number of open TCP connections.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.accepted.saturating_sub(self.closed.total())
    }

    /// Returns the number of open WebSockets.
    #[must_use]
    pub fn websockets(&self) -> u64 {
        self.handshakes.saturating_sub(self.websockets_closed.total())
    }
}

/// Process metrics of the system. A number is `None` if the system does not report it: all are read from `/proc`,
/// which is Linux's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Process {
    /// Resident set in bytes.
    pub resident_bytes: Option<u64>,
    /// Processor time of all threads, in the system's ticks of 10 ms.
    pub cpu: Option<Duration>,
    /// Open descriptors. Connections of a ring use none.
    pub open_descriptors: Option<u64>,
}
