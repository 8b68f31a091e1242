//! The end of connections, and of the run.

use std::time::{Duration, Instant};

use sinews_engine::{CloseReason, Io};

use super::LoadApp;
use crate::load::connection::LoadConnection;
use crate::plan::LoadMode;
use crate::tally::FailureKind;
use crate::target::TargetProtocol;

impl LoadApp {
    pub(super) fn end(&mut self, io: &mut Io) {
        self.ending = true;
        self.thread_state.stopped = true;
        self.schedule = None;
        self.thread_state.at(Instant::now());
        for index in 0..self.conns.len() {
            let Self { conns, thread_state, resources, .. } = self;
            let Some(conn) = &mut conns[index] else { continue };
            conn.traffic.iter_mut().for_each(|traffic| traffic.tracker.abandon(thread_state));
            conn.closing = true;
            let id = conn.id;
            if conn.open && !conn.is_stalled() && conn.protocol.close(thread_state, resources) {
                self.request_send(io, id);
            } else {
                self.request_close(io, id);
            }
        }
        // Connections whose peer does not answer Close in time are abandoned.
        io.set_app_timer(self.thread_state.now + CLOSE_TIMEOUT);
    }

    /// Handles a closed connection: counts the failure if it is unexpected, and opens a replacement if needed.
    pub(super) fn handle_closed(&mut self, failure: FailureKind, text: String, conn: LoadConnection) {
        let Self { thread_state, replacements, ending, .. } = self;
        let LoadConnection { ordinal, mut traffic, open, closing, .. } = conn;
        if open {
            thread_state.live.open.set(thread_state.live.open.get().saturating_sub(1));
        }
        let unexpected = !closing && !*ending;
        if unexpected {
            thread_state.fail(failure, 1, || text);
            if !open {
                thread_state.live.settled.add(1);
            }
        }
        let another = match thread_state.plan.mode {
            LoadMode::Storm => !thread_state.stopped && thread_state.budget.is_none_or(|left| left > 0),
            // A server may close a connection after any answer (RFC 9112 section 9.6).
            LoadMode::Echo => !unexpected && thread_state.plan.target.protocol == TargetProtocol::Http,
            LoadMode::Idle | LoadMode::FanOut => false,
        };
        if another && !*ending {
            let unanswered = traffic.iter_mut().flat_map(|traffic| traffic.tracker.take_unanswered());
            replacements.push((ordinal, unanswered.collect()));
        } else {
            traffic.iter_mut().for_each(|traffic| traffic.tracker.abandon(thread_state));
        }
    }

    /// Stops the loop once the run has ended, and all connections with it. HTTP/3 connections end at the end of a turn.
    pub(super) fn stop_if_over(&self, io: &mut Io) {
        if self.ending && self.quic.is_none() && io.connections() == 0 {
            io.stop();
        }
    }
}

/// Returns the failure for a connection that closed unexpectedly.
pub(super) fn failure_of(why: &CloseReason, open: bool) -> (FailureKind, String) {
    let text = match why {
        CloseReason::Error(error) => error.to_string(),
        CloseReason::Reset => "reset".to_owned(),
        _ => "closed unexpectedly".to_owned(),
    };
    let failure = match why {
        CloseReason::Error(error) if !open => match error.kind() {
            std::io::ErrorKind::ConnectionRefused => FailureKind::Refused,
            std::io::ErrorKind::TimedOut => FailureKind::ConnectTimeout,
            _ => FailureKind::Unreachable,
        },
        CloseReason::Reset => FailureKind::Reset,
        CloseReason::Error(_) => FailureKind::Io,
        _ => FailureKind::Closed,
    };
    (failure, text)
}

/// Timeout for the server's answer to Close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
