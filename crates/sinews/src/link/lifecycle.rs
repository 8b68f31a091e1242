//! Deadlines, and the progress of the connection towards its end.

use sinews_proto::{CloseCode, Expired, Misuse, Time};
use sinews_session::{Cause, Closed, TransportAction};

use super::state::Link;
use crate::error::Error;
use crate::message::CloseFrame;
use crate::resources;

/// The driver's next step with the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// Receive and send.
    Continue,
    /// End the sending side, once everything has left; and receive.
    ShutDown,
    /// Report that the connection ends, and continue.
    ReportEnd,
    /// The connection has ended.
    Ended,
}

impl Link {
    /// The next step with the transport.
    #[inline]
    pub(crate) fn next(&self) -> NextStep {
        if self.session.is_open() && !self.lifecycle.receive_ended {
            return NextStep::Continue;
        }
        self.next_in_closing()
    }

    #[cold]
    fn next_in_closing(&self) -> NextStep {
        match self.session.transport_action() {
            TransportAction::Drop => NextStep::Ended,
            // A peer that is too slow for the queued bytes is too slow to wait for.
            _ if !self.lifecycle.reported && self.is_overflowed() => NextStep::ReportEnd,
            _ if (self.lifecycle.receive_ended || self.is_given_up()) && !self.wants_send() => {
                NextStep::Ended
            }
            TransportAction::Finish if !self.lifecycle.shut && !self.lifecycle.send_ended => {
                NextStep::ShutDown
            }
            TransportAction::AwaitEnd | TransportAction::Finish if self.ends_at_close() => NextStep::Ended,
            TransportAction::Open | TransportAction::AwaitEnd | TransportAction::Finish => NextStep::Continue,
        }
    }

    /// Whether the connection ends with the Closes that are exchanged. After a violation the peer may still send, so
    /// that a reset could overtake the Close.
    fn ends_at_close(&self) -> bool {
        let is_orderly = self.closed().is_some_and(Closed::is_orderly);
        let is_sent = !self.wants_send() && !self.half.as_ref().is_some_and(|half| half.pair.is_waiting());
        self.config().end_at_close() && is_orderly && is_sent
    }

    /// Whether waiting for the peer is pointless.
    fn is_given_up(&self) -> bool {
        self.closed().is_some_and(|closed| matches!(closed.cause(), Cause::Expired(_)))
    }

    /// Whether input may still arrive.
    pub(crate) fn receives(&self) -> bool {
        !self.lifecycle.receive_ended
    }

    /// Whether the [`deadline`](Self::deadline), or the time to free spare memory, may have moved earlier since the
    /// last call.
    #[inline]
    pub(crate) fn take_recheck(&mut self) -> bool {
        std::mem::take(&mut self.lifecycle.recheck)
    }

    /// The result of [`take_recheck`](Self::take_recheck), without resetting it.
    #[inline]
    pub(crate) fn awaits_recheck(&self) -> bool {
        self.lifecycle.recheck
    }

    /// When to call [`timeout`](Self::timeout). It may move later unnoticed.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.session.deadline()
    }

    /// Whether a message was queued since [`note_sent`](Self::note_sent).
    #[inline]
    pub(crate) fn has_sent(&self) -> bool {
        self.outbound.has_sent
    }

    /// Queued messages have left by now: the idle timeout starts here.
    #[inline]
    pub(crate) fn note_sent(&mut self) {
        self.outbound.has_sent = false;
        self.session.note_sent(self.now);
    }

    /// The caller drives the connection from `since` on. All earlier input is read.
    pub(crate) fn note_driven(&mut self, since: Time) {
        if self.has_pending_event() {
            // The peer has sent messages that the caller has not asked for.
            self.session.note_unread(self.now);
        }
        self.session.note_driven(since);
    }

    /// Whether the deadline ends the connection, rather than sending a ping.
    pub(crate) fn awaits_peer(&self) -> bool {
        self.session.expiring_timeout().is_some()
    }

    /// Whether no input postpones the deadline.
    pub(crate) fn awaits_in_spite_of_input(&self) -> bool {
        matches!(self.session.expiring_timeout(), Some(Expired::Write | Expired::Close))
    }

    /// Whether the deadline has expired.
    pub(crate) fn is_due(&self) -> bool {
        self.is_due_at(self.now)
    }

    /// Whether the deadline expires at or before `now`.
    #[inline]
    pub(crate) fn is_due_at(&self, then: Time) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= then)
    }

    /// Executes the actions that are due.
    pub(crate) fn timeout(&mut self) {
        if self.is_due() {
            let now = self.now;
            self.lifecycle.recheck = true;
            resources::with(|shared| self.session.handle_timeout(shared, now));
            self.note_closed();
            // Queued bytes will not leave any more.
            self.lifecycle.send_ended |= self.session.transport_action() == TransportAction::Drop;
        }
        self.debug_check();
    }

    /// Ends the connection without the peer's Close, unless it has ended. Bytes that have not left are dropped.
    pub(crate) fn end_unanswered(&mut self, code: CloseCode, reason: &str) {
        resources::with(|shared| self.session.end_without_answer(code, reason, shared));
        self.note_closed();
        self.debug_check();
    }

    /// How the connection ended, if it has ended.
    pub(crate) fn closed(&self) -> Option<&Closed> {
        self.lifecycle.closed.as_deref()
    }

    /// The result for a receive call after the end: an error once, then `None`.
    pub(crate) fn take_end_error(&mut self) -> Option<Error> {
        let reported = std::mem::replace(&mut self.lifecycle.reported, true);
        self.debug_check();
        if reported {
            return None;
        }
        let closed = self.lifecycle.closed.as_deref()?;
        match closed.cause() {
            Cause::Peer | Cause::Local => None,
            Cause::Ended => {
                Some(self.lifecycle.io_error.take().map_or_else(|| Error::Closed(closed.clone()), Error::Io))
            }
            _ => Some(Error::Closed(closed.clone())),
        }
    }

    /// Suppresses the error for receive calls: the caller of a close waits for the end itself.
    pub(crate) fn suppress_end_error(&mut self) {
        self.lifecycle.reported |= self.is_overflowed();
    }

    /// How the connection ended, for the caller that closed it.
    pub(crate) fn outcome(&mut self) -> Result<Closed, Error> {
        if let Some(error) = self.take_end_error() {
            return Err(error);
        }
        match self.closed() {
            Some(closed) if self.is_overflowed() => Err(Error::Closed(closed.clone())),
            Some(closed) => Ok(closed.clone()),
            None => Err(Error::Misuse(Misuse::Closing)),
        }
    }

    pub(super) fn is_overflowed(&self) -> bool {
        self.closed().is_some_and(|closed| closed.cause() == Cause::Overflow)
    }

    /// Whether the end was reported to receive calls.
    pub(crate) fn is_end_reported(&self) -> bool {
        self.lifecycle.reported
    }

    /// The error for a message without an end.
    pub(crate) fn interrupted_error(&mut self) -> Error {
        self.take_end_error().unwrap_or_else(|| self.end_error())
    }

    /// The error for a send that is not possible.
    pub(crate) fn end_error(&self) -> Error {
        match (self.lifecycle.closed.as_deref(), &self.lifecycle.io_error) {
            (_, Some(error)) => Error::Io(error.kind().into()),
            (Some(closed), None) => Error::Closed(closed.clone()),
            (None, None) => Error::Misuse(Misuse::Closing),
        }
    }

    #[inline]
    pub(super) fn note_closed(&mut self) {
        if let Some(closed) = self.session.take_closed() {
            self.lifecycle.recheck = true;
            if let Some(inbox) = &mut self.outbound.inbox {
                inbox.ended(&closed);
            }
            self.lifecycle.closed = Some(Box::new(closed));
            self.report_to_pair();
        }
    }

    pub(super) fn close_frame(&self) -> Option<CloseFrame> {
        let closed = self.closed()?;
        Some(CloseFrame::new(closed.code()?, closed.reason()))
    }
}
