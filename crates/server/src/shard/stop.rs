//! Graceful stop: announcement, gradual close of clients, grace period.
//!
//! ```text
//!   serving ─▶ announced: /readyz fails ─▶ telling: no accepts, 1001 in steps ─▶ waiting
//!              delay                       window                                grace
//! ```
//!
//! After a handover of the listeners, the first phase is skipped. After the second phase the shard lingers until the
//! window ends, for keep-alive HTTP connections: a request in transit would be lost. A connection without any request
//! yet outlives the window, and is bounded by the head timeout and the grace period: this process accepted its client
//! by chance, and a busy machine may report it after the window.

use std::time::{Duration, Instant};

use sinews_engine::{ConnId, Io};
use sinews_proto::{CloseCode, Time};

use super::{Protocol, Shard};

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
pub(super) enum Phase {
    Serving,
    Announced,
    /// Remaining clients to close, and how many to close in each step.
    Telling {
        untold: Vec<ConnId>,
        each: usize,
    },
    /// All are closing, except keep-alive HTTP connections.
    Lingering,
    Waiting,
}

impl Shard {
    /// Starts the stop of a server with a successor.
    pub(super) fn begin_to_leave(&mut self, io: &mut Io) {
        if matches!(self.phase, Phase::Serving) {
            self.patience = Some(self.stop_times.window);
            self.handed_over = true;
            self.phase = Phase::Announced;
            self.step_of_stop(io);
        }
    }

    /// Starts a graceful stop.
    pub(super) fn announce_stop(&mut self, io: &mut Io) {
        if std::mem::take(&mut self.handed_over) {
            return self.lose_patience(io);
        }
        if !matches!(self.phase, Phase::Serving) {
            return;
        }
        self.phase = Phase::Announced;
        if self.stop_times.delay.is_zero() {
            return self.step_of_stop(io);
        }
        io.set_app_timer(in_time(io, self.stop_times.delay));
    }

    /// Runs the next step of a stop.
    pub(super) fn step_of_stop(&mut self, io: &mut Io) {
        match std::mem::replace(&mut self.phase, Phase::Waiting) {
            Phase::Serving => self.phase = Phase::Serving,
            Phase::Announced => {
                let (untold, each) = self.begin_to_stop(io);
                self.tell(io, untold, each);
            }
            Phase::Telling { untold, each } => {
                self.patience = self.patience.map(|left| left.saturating_sub(STEP));
                self.tell(io, untold, each);
            }
            Phase::Lingering => self.linger(io),
            Phase::Waiting => {
                tracing::info!(
                    connections = io.connections(),
                    "grace period expired; closing remaining connections"
                );
                io.stop();
            }
        }
    }

    /// Ends accepting and waiting for requests. Returns the clients to close, and how many to close per step.
    fn begin_to_stop(&mut self, io: &mut Io) -> (Vec<ConnId>, usize) {
        self.stopping = true;
        io.stop_accepting();
        let untold = self.those_who_speak(|protocol| matches!(protocol, Protocol::WebSocket(_)));
        self.settle_others(io);
        let steps = (self.stop_times.window.as_millis() / STEP.as_millis()).max(1);
        let each = untold.len().div_ceil(usize::try_from(steps).unwrap_or(usize::MAX));
        (untold, each.max(TOLD_AT_LEAST))
    }

    /// Ends HTTP connections without a pending request, unless they may send one more.
    fn settle_others(&mut self, io: &mut Io) {
        for conn in self.those_who_speak(|protocol| !matches!(protocol, Protocol::WebSocket(_))) {
            self.settle(io, conn);
        }
    }

    /// Lingers for another step of the window, if any is left. Steps are counted instead of time: a thread that was
    /// stalled for longer than the window has not read its clients' requests meanwhile.
    fn linger(&mut self, io: &mut Io) {
        match self.patience {
            Some(left) if !left.is_zero() => {
                let step = (self.stop_times.window / LINGERING_STEPS).max(LINGERING_STEP_MIN).min(left);
                self.patience = Some(left - step);
                self.phase = Phase::Lingering;
                io.set_app_timer(in_time(io, step));
            }
            _ => {
                self.lose_patience(io);
                io.set_app_timer(in_time(io, self.stop_times.grace));
            }
        }
    }

    fn lose_patience(&mut self, io: &mut Io) {
        self.patience = None;
        self.settle_others(io);
        if matches!(self.phase, Phase::Lingering) {
            self.phase = Phase::Waiting;
            io.set_app_timer(in_time(io, self.stop_times.grace));
        }
    }

    fn those_who_speak(&self, what: impl Fn(&Protocol) -> bool) -> Vec<ConnId> {
        self.conns.iter().flatten().filter(|conn| what(&conn.protocol)).map(|conn| conn.id).collect()
    }

    /// Starts the closing handshake of the next clients.
    fn tell(&mut self, io: &mut Io, mut untold: Vec<ConnId>, each: usize) {
        // Earlier publications are delivered before the Close.
        self.publish_all(io);
        let now = self.time(io);
        for conn in untold.split_off(untold.len().saturating_sub(each)) {
            self.close_websocket(conn, now);
            self.settle(io, conn);
        }
        if untold.is_empty() {
            match self.patience {
                Some(_) => self.linger(io),
                None => io.set_app_timer(in_time(io, self.stop_times.grace)),
            }
        } else {
            self.phase = Phase::Telling { untold, each };
            io.set_app_timer(in_time(io, STEP));
        }
    }

    /// Starts the closing handshake of a stop.
    pub(super) fn close_websocket(&mut self, conn: ConnId, now: Time) {
        if let Some((Protocol::WebSocket(websocket), mut lent)) = self.lend(conn, now) {
            websocket.flush(&mut lent);
            // A connection that is closing already goes on.
            let _ = websocket.session.tx(lent.resources, now).close(CloseCode::GOING_AWAY, "server stops");
            websocket.session.after_tx(lent.resources, now);
        }
    }
}

/// Adds a wait to the time; a wait beyond the clock's range practically never ends.
fn in_time(io: &Io, wait: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);
    io.now() + wait.min(CENTURY)
}

/// Duration of one step: many steps spread the reconnects evenly instead of in bursts.
const STEP: Duration = Duration::from_millis(20);

/// Number of steps of lingering: one stall of a thread costs one step.
pub(super) const LINGERING_STEPS: u32 = 16;

/// Minimum duration of a step: a short window has fewer steps.
pub(super) const LINGERING_STEP_MIN: Duration = Duration::from_millis(1);

/// Minimum number of clients to close per step: 3,200 reconnects a second are harmless, and a server with few clients
/// stops at once.
const TOLD_AT_LEAST: usize = 64;
