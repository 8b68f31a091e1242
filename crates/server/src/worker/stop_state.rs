//! State of a graceful stop.

use std::sync::Arc;
use std::time::Duration;

use sinews_engine::ConnId;

use crate::topics::mail::StopLevel;

/// Duration of each phase of a graceful stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StopTimes {
    /// From the announcement until accepting ends.
    pub(crate) delay: Duration,
    /// From then until the last client gets its Close.
    pub(crate) window: Duration,
    /// From then until the remaining connections are closed.
    pub(crate) grace: Duration,
}

impl Default for StopTimes {
    fn default() -> Self {
        Self { delay: Duration::ZERO, window: Duration::from_secs(5), grace: Duration::from_secs(10) }
    }
}

/// Phase of a stop.
#[derive(Debug)]
pub(super) enum StopPhase {
    Serving,
    ProxiedAddress,
    /// Remaining clients to close, and how many to close in each step.
    Closing {
        remaining: Vec<ConnId>,
        per_step: usize,
    },
    /// All are closing, except keep-alive HTTP connections.
    Lingering,
    Waiting,
    /// The last datagrams of HTTP/3 are being sent.
    ClosingHttp3,
}

/// Progress of a stop on one thread.
pub(super) struct StopState {
    pub(super) times: StopTimes,
    pub(super) level: Arc<StopLevel>,
    pub(super) phase: StopPhase,
    /// How long keep-alive connections may still send one request after accepting has ended.
    pub(super) linger_left: Option<Duration>,
    /// A successor process has taken over: connections accepted here may send one request, however late this thread
    /// sees it.
    pub(super) handed_over: bool,
}

impl StopState {
    pub(super) fn new(times: StopTimes, level: Arc<StopLevel>) -> Self {
        Self { times, level, phase: StopPhase::Serving, linger_left: None, handed_over: false }
    }
}
