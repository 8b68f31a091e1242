//! A graceful stop: announced, told to the clients by and by, waited for.
//!
//! ```text
//!   serving ─▶ announced: only /readyz says it ─▶ telling: nobody is accepted, so many a step get 1001 ─▶ waiting
//!              delay                              window                                                  grace
//! ```
//!
//! One that has handed its listeners over skips the first wait, and behind the second it lingers until the window is
//! over, for HTTP connections that are kept alive: a request that is on its way just now would be lost. One that has
//! asked for nothing yet is not ended with the window either, only with the time for a request's head and with the grace
//! period: its client was accepted here by chance, and on a busy machine the thread may hear of it after the window.

use std::time::{Duration, Instant};

use sinews_engine::{ConnId, Io};
use sinews_proto::{CloseCode, Time};

use super::{Protocol, Shard};

/// How long each part of a graceful stop takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StopTimes {
    /// From the announcement until nobody is accepted any more.
    pub(crate) delay: Duration,
    /// From then until the last client has been told.
    pub(crate) window: Duration,
    /// From then until those who are left are closed.
    pub(crate) grace: Duration,
}

impl Default for StopTimes {
    fn default() -> Self {
        Self { delay: Duration::ZERO, window: Duration::from_secs(5), grace: Duration::from_secs(10) }
    }
}

/// How far a stop has come.
#[derive(Debug)]
pub(super) enum Phase {
    Serving,
    Announced,
    /// These have not been told; so many are told in each step.
    Telling {
        untold: Vec<ConnId>,
        each: usize,
    },
    /// All have been told, but for HTTP connections that are kept alive.
    Lingering,
    Waiting,
}

impl Shard {
    /// Another process has taken over.
    pub(super) fn begin_to_leave(&mut self, io: &mut Io) {
        if matches!(self.phase, Phase::Serving) {
            self.patience = Some(self.stop_times.window);
            self.handed_over = true;
            self.phase = Phase::Announced;
            self.step_of_stop(io);
        }
    }

    /// The server is to stop in order.
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

    /// The next step of a stop is due.
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
                tracing::info!(connections = io.connections(), "the grace period is over");
                io.stop();
            }
        }
    }

    /// From here on nobody is accepted and no request is waited for. Answers whom to tell, and how many in a step.
    fn begin_to_stop(&mut self, io: &mut Io) -> (Vec<ConnId>, usize) {
        self.stopping = true;
        io.stop_accepting();
        let untold = self.those_who_speak(|protocol| matches!(protocol, Protocol::WebSocket(_)));
        self.settle_others(io);
        let steps = (self.stop_times.window.as_millis() / STEP.as_millis()).max(1);
        let each = untold.len().div_ceil(usize::try_from(steps).unwrap_or(usize::MAX));
        (untold, each.max(TOLD_AT_LEAST))
    }

    /// HTTP connections without a request under way end, unless they may still ask.
    fn settle_others(&mut self, io: &mut Io) {
        for conn in self.those_who_speak(|protocol| !matches!(protocol, Protocol::WebSocket(_))) {
            self.settle(io, conn);
        }
    }

    /// Has patience for another step of the window, if one is left. The steps are counted and not the time: a thread that
    /// was held up for longer than the window has not heard meanwhile what clients ask for.
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

    /// Begins the closing handshake with the next ones.
    fn tell(&mut self, io: &mut Io, mut untold: Vec<ConnId>, each: usize) {
        // What was published before comes before the Close.
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

    /// Begins the closing handshake of the server's stop.
    pub(super) fn close_websocket(&mut self, conn: ConnId, now: Time) {
        if let Some((Protocol::WebSocket(websocket), mut lent)) = self.lend(conn, now) {
            websocket.flush(&mut lent);
            // One that is closing already is left to it.
            let _ = websocket.session.tx(lent.resources, now).close(CloseCode::GOING_AWAY, "server stops");
            websocket.session.after_tx(lent.resources, now);
        }
    }
}

/// A wait that no clock can count ends never, or what is as good.
fn in_time(io: &Io, wait: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);
    io.now() + wait.min(CENTURY)
}

/// How long one step takes: many steps, so that the clients' return is a stream and no row of rushes.
const STEP: Duration = Duration::from_millis(20);

/// Steps that lingering consists of: a thread that is held up once loses one of them.
pub(super) const LINGERING_STEPS: u32 = 16;

/// The shortest of them: a short window has fewer.
pub(super) const LINGERING_STEP_MIN: Duration = Duration::from_millis(1);

/// Clients that are told in one step even if the window were long enough for fewer: 3,200 a second come back to no
/// harm, and a server with few clients stops at once.
const TOLD_AT_LEAST: usize = 64;
