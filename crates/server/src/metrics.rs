//! What the server counts, and how it is read.
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
/// [`Router::monitor`](crate::Router::monitor) and [`BoundServer::monitor`](crate::BoundServer::monitor) give the
/// same one. Before the server is bound every number is 0.
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
/// It is a [`Collector`](prometheus_client::collector::Collector), too: a program that has metrics of its own in a
/// `Registry` of `prometheus-client` registers the monitor there and answers with both.
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
    /// The server is bound. A second time does nothing.
    pub(crate) fn attach(&self, sources: Sources) {
        // A router serves one server, so there is no second time.
        let _ = self.0.set(sources);
    }

    /// The numbers of now. Each is right by itself; the threads go on counting meanwhile.
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

    /// Whether the server should be sent new clients; otherwise why not.
    ///
    /// # Errors
    /// [`NotReady`], with the reason.
    pub fn ready(&self) -> Result<(), NotReady> {
        match self.0.get() {
            Some(sources) if sources.stop.read() < Stop::InOrder => {
                sources.gate.is_full().map_or(Ok(()), |limit| Err(NotReady::AtLimit(limit)))
            }
            _ => Err(NotReady::Stopping),
        }
    }
}

/// Why a server should not be sent new clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotReady {
    /// It is stopping, or not bound.
    Stopping,
    /// As many connections are open as may be, or queues hold as much as they may.
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

/// A server's numbers, over all its threads; totals count since it was bound.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Metrics {
    /// TCP connections accepted.
    pub accepted: u64,
    /// TCP connections that have ended, by how.
    pub closed: Tally<ConnectionEnd>,
    /// Requests that became WebSockets.
    pub handshakes: u64,
    /// Handshakes that were refused, by the status of the answer: those with a count.
    pub handshakes_refused: Vec<(u16, u64)>,
    /// WebSockets that have ended, by who ended them or what.
    pub websockets_closed: Tally<WebSocketEnd>,
    /// Answers to plain requests, by the first digit of the status, from 1 to 5.
    pub responses: [u64; 5],
    /// Data messages received. One that is delivered in fragments counts with its last.
    pub messages_received: u64,
    /// Their payloads, after inflating.
    pub message_bytes_received: u64,
    /// Data messages queued to be sent.
    pub messages_sent: u64,
    /// Their payloads, before deflating.
    pub message_bytes_sent: u64,
    /// Messages that were not sent, by why.
    pub dropped: Tally<Dropped>,
    /// Publications that a thread has delivered to its subscribers. One with subscribers on several threads counts
    /// on each.
    pub publications: u64,
    /// Messages of publications handed to a subscriber's queue, or to its overflow policy.
    pub deliveries: u64,
    /// TLS handshakes that came to an end.
    pub tls_handshakes: u64,
    /// Connections on which TLS failed, in the handshake or later: by what the client did, or a certificate it does
    /// not like.
    pub tls_failures: u64,
    /// Bytes that wait to be sent to clients, of WebSockets and answers. A message that waits for many counts for
    /// each of them, although it lies in memory once.
    pub queued_bytes: u64,
    /// Bytes of memory that hold what has come of messages and requests that are not whole yet.
    pub incomplete_bytes: u64,
    /// Bytes that those two may come to together; `None` without a limit
    /// ([`Limits::with_max_memory`](crate::Limits::with_max_memory)).
    pub max_memory_bytes: Option<u64>,
    /// Bytes that the histories of all topics take, about.
    pub history_bytes: u64,
    /// Topics whose history was evicted, since all took more memory than they may
    /// ([`TopicConfig::with_max_history_bytes`](crate::TopicConfig::with_max_history_bytes)).
    pub histories_evicted: u64,
    /// Those of them that had subscribers.
    pub subscribed_histories_evicted: u64,
    /// What was beyond one of the server's [`Limits`](crate::Limits) and therefore refused or closed.
    pub limited: Tally<Limit>,
    /// The event loops, one for each thread: turns, bytes through sockets, how busy they are.
    pub loops: Vec<Stats>,
    /// The process.
    pub process: Process,
}

impl Metrics {
    /// TCP connections that are open.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.accepted.saturating_sub(self.closed.total())
    }

    /// WebSockets that are open.
    #[must_use]
    pub fn websockets(&self) -> u64 {
        self.handshakes.saturating_sub(self.websockets_closed.total())
    }
}

/// What the system knows of the process. A number is `None` where the system does not tell it: all of them are read
/// from `/proc`, which is Linux's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Process {
    /// Bytes of memory that are in use (resident set).
    pub resident_bytes: Option<u64>,
    /// Time that all threads have spent on a processor, in the system's ticks of 10 ms.
    pub cpu: Option<Duration>,
    /// Descriptors that are open. A ring's connections are none.
    pub open_descriptors: Option<u64>,
}
