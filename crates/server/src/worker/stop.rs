//! Graceful stop: announcement, gradual close of clients, grace period.
//!
//! ```text
//!   serving ─▶ announced: /readyz fails ─▶ closing: no accepts, 1001 in steps ─▶ waiting
//!              delay                       window                                grace
//! ```
//!
//! An HTTP connection that is idle when accepting ends is closed at once.
//!
//! After a handover of the listeners, the first phase is skipped. After the second phase the worker lingers until the
//! window ends, for keep-alive HTTP connections: a request in transit would be lost. A connection without any request
//! yet outlives the window, and is bounded by the head timeout and the grace period: this process accepted its client
//! by chance, and a busy machine may report it after the window.

use std::time::{Duration, Instant};

use sinews_engine::{ConnId, Io};

use super::Worker;
use super::conn::ConnProtocol;
use super::stop_state::StopPhase;

impl Worker {
    /// Starts the stop of a server with a successor.
    pub(super) fn start_handover(&mut self, io: &mut Io) {
        if matches!(self.stop.phase, StopPhase::Serving) {
            self.stop.linger_left = Some(self.stop.times.window);
            self.stop.handed_over = true;
            self.stop.phase = StopPhase::ProxiedAddress;
            self.run_stop_step(io);
        }
    }

    /// Starts a graceful stop.
    pub(super) fn announce_stop(&mut self, io: &mut Io) {
        if std::mem::take(&mut self.stop.handed_over) {
            return self.end_lingering(io);
        }
        if !matches!(self.stop.phase, StopPhase::Serving) {
            return;
        }
        self.stop.phase = StopPhase::ProxiedAddress;
        if self.stop.times.delay.is_zero() {
            return self.run_stop_step(io);
        }
        io.set_app_timer(in_time(io, self.stop.times.delay));
    }

    /// Runs the next step of a stop.
    pub(super) fn run_stop_step(&mut self, io: &mut Io) {
        match std::mem::replace(&mut self.stop.phase, StopPhase::Waiting) {
            StopPhase::Serving => self.stop.phase = StopPhase::Serving,
            StopPhase::ProxiedAddress => {
                let (remaining, per_step) = self.stop_accepting(io);
                self.close_next(io, remaining, per_step);
            }
            StopPhase::Closing { remaining, per_step } => {
                self.stop.linger_left = self.stop.linger_left.map(|left| left.saturating_sub(STEP));
                self.close_next(io, remaining, per_step);
            }
            StopPhase::Lingering => self.linger(io),
            StopPhase::Waiting => {
                tracing::info!(
                    connections = io.connections(),
                    "grace period expired; closing remaining connections"
                );
                self.close_http3(io, "server stops");
                self.stop.phase = StopPhase::ClosingHttp3;
                self.run_stop_step(io);
            }
            StopPhase::ClosingHttp3 => {
                if self.quic.listeners.is_empty() {
                    return io.stop();
                }
                self.stop.phase = StopPhase::ClosingHttp3;
                io.set_app_timer(in_time(io, LINGERING_STEP_MIN));
            }
        }
    }

    /// Ends accepting and waiting for requests. Returns the clients to close, and how many to close per step.
    fn stop_accepting(&mut self, io: &mut Io) -> (Vec<ConnId>, usize) {
        self.shared.services.stopping_since = Some(self.time(io));
        io.stop_accepting();
        let remaining = self.conns_where(|protocol| matches!(protocol, ConnProtocol::WebSocket(_)));
        self.flush_http_conns(io);
        let steps = (self.stop.times.window.as_millis() / STEP.as_millis()).max(1);
        let per_step = remaining.len().div_ceil(usize::try_from(steps).unwrap_or(usize::MAX));
        (remaining, per_step.max(CLOSES_PER_STEP_MIN))
    }

    /// Ends HTTP connections without a pending request, unless they may send one more.
    fn flush_http_conns(&mut self, io: &mut Io) {
        for conn in self.conns_where(|protocol| !matches!(protocol, ConnProtocol::WebSocket(_))) {
            self.flush_conn(io, conn);
        }
    }

    /// Lingers for another step of the window, if any is left. Steps are counted instead of time: a thread that was
    /// stalled for longer than the window has not read its clients' requests meanwhile.
    fn linger(&mut self, io: &mut Io) {
        match self.stop.linger_left {
            Some(left) if !left.is_zero() => {
                let step = (self.stop.times.window / LINGERING_STEPS).max(LINGERING_STEP_MIN).min(left);
                self.stop.linger_left = Some(left - step);
                self.stop.phase = StopPhase::Lingering;
                io.set_app_timer(in_time(io, step));
            }
            _ => {
                self.end_lingering(io);
                io.set_app_timer(in_time(io, self.stop.times.grace));
            }
        }
    }

    fn end_lingering(&mut self, io: &mut Io) {
        self.stop.linger_left = None;
        self.flush_http_conns(io);
        if matches!(self.stop.phase, StopPhase::Lingering) {
            self.stop.phase = StopPhase::Waiting;
            io.set_app_timer(in_time(io, self.stop.times.grace));
        }
    }

    fn conns_where(&self, what: impl Fn(&ConnProtocol) -> bool) -> Vec<ConnId> {
        let conns = self.conns.iter().flatten().chain(self.sockets.iter()).chain(self.quic.conns.iter());
        conns.filter(|conn| what(&conn.protocol)).map(|conn| conn.id).collect()
    }

    /// Starts the closing handshake of the next clients.
    fn close_next(&mut self, io: &mut Io, mut remaining: Vec<ConnId>, per_step: usize) {
        // Earlier publications are delivered before the Close.
        self.publish_all(io);
        self.time(io);
        for conn in remaining.split_off(remaining.len().saturating_sub(per_step)) {
            self.close_websocket(conn);
            self.flush_conn(io, conn);
        }
        if remaining.is_empty() {
            match self.stop.linger_left {
                Some(_) => self.linger(io),
                None => io.set_app_timer(in_time(io, self.stop.times.grace)),
            }
        } else {
            self.stop.phase = StopPhase::Closing { remaining, per_step };
            io.set_app_timer(in_time(io, STEP));
        }
    }

    /// Stops at once. The system tells clients of TCP; those of HTTP/3 are told first, which takes longer if the send
    /// buffer is full.
    pub(super) fn stop_now(&mut self, io: &mut Io) {
        self.close_http3(io, "server stops");
        if !self.quic.listeners.is_empty() {
            io.stop_accepting();
            for conn in self.conns_where(|protocol| !matches!(protocol, ConnProtocol::Http3(_))) {
                io.close(conn);
            }
        }
        self.stop.phase = StopPhase::ClosingHttp3;
        self.run_stop_step(io);
    }

    /// Starts the closing handshake of a stop.
    pub(super) fn close_websocket(&mut self, conn: ConnId) {
        if let Some((ConnProtocol::WebSocket(websocket), shared)) = self.conn_and_shared(conn) {
            websocket.go_away(shared);
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
const CLOSES_PER_STEP_MIN: usize = 64;
