//! The end of a connection: its causes, the timeouts, and the transport's part in it.

use sinews_proto::{CloseCode, Expired, Misuse, PeerMisbehaved, Time, TransportState};

use super::{Session, TransportAction};
use crate::closed::{Cause, Closed};
use crate::outbound::Outbound;
use crate::resources::Resources;
use crate::stored_buffer::StoredBuffer;

impl Session {
    pub(super) fn handle_close(&mut self, code: Option<CloseCode>, reason: &[u8], answers: bool) {
        let reason = String::from_utf8_lossy(reason).into_owned();
        self.record_closed(Closed::new(code, reason, if answers { Cause::Local } else { Cause::Peer }));
    }

    pub(super) fn fault(&mut self, fault: PeerMisbehaved) {
        self.record_closed(Closed::new(
            Some(fault.close_code()),
            fault.reason().to_owned(),
            Cause::Fault(fault),
        ));
    }

    /// The peer closed the transport.
    pub fn receive_end(&mut self, now: Time) {
        self.ended = true;
        let mut assembly = self.assembly.take();
        let clean = self.connection.receive_end(&mut assembly, now);
        self.assembly.put(assembly);
        // A plain stream ends between messages or within a message. A Close was reported on receipt.
        let cause = if clean && self.rest.is_none() { Cause::Peer } else { Cause::Ended };
        self.rest = StoredBuffer::NONE;
        self.record_closed(Closed::new(None, String::new(), cause));
    }

    /// Ends a streaming response whose body is complete ([`TransportAction::Finish`]): its transport may carry
    /// another response. Returns the queued bytes, which must be sent first. Report
    /// [`take_closed`](Self::take_closed), then drop the session.
    pub fn finish_body(&mut self) -> Outbound {
        self.record_closed(Closed::new(None, String::new(), Cause::Local));
        std::mem::take(&mut self.outbound)
    }

    /// The timeout that ends the connection at the [`deadline`](Self::deadline): see
    /// [`Connection::expiring_timeout`](sinews_proto::Connection::expiring_timeout).
    #[must_use]
    pub fn expiring_timeout(&self) -> Option<Expired> {
        self.connection.expiring_timeout()
    }

    /// Executes the actions that are due, and updates [`deadline`](Self::deadline). While the session is
    /// paused, the peer's silence does not count, since no bytes are read.
    pub fn handle_timeout(&mut self, resources: &mut Resources, now: Time) {
        if self.paused && matches!(self.connection.expiring_timeout(), Some(Expired::Idle | Expired::Pong)) {
            self.connection.note_unread(now);
        }
        if let Err(wait) = self.connection.handle_timeout(now) {
            if matches!(wait, Expired::Write | Expired::Close) {
                self.dropped = true;
                self.outbound.discard(resources);
            }
            self.record_closed(Closed::new(None, wait.reason().to_owned(), Cause::Expired(wait)));
        }
        self.write_control(resources, now);
        self.note_outbound(false, now);
    }

    /// Closes a connection whose peer lags more than the owner allows: queues a Close behind the pending
    /// bytes and reports [`Cause::Overflow`].
    ///
    /// # Errors
    /// As [`Tx::close`](crate::Tx::close).
    pub fn close_for_overflow(
        &mut self,
        code: CloseCode,
        reason: &str,
        resources: &mut Resources,
        now: Time,
    ) -> Result<(), Misuse> {
        self.connection.close(code, reason, now)?;
        self.record_closed(Closed::new(Some(code), reason.to_owned(), Cause::Overflow));
        self.after_tx(resources, now);
        Ok(())
    }

    pub(crate) fn record_closed(&mut self, closed: Closed) {
        if !self.is_closed {
            self.is_closed = true;
            self.closed = Some(Box::new(closed));
        }
    }

    /// Returns the cause of the connection's end, once: after the peer's Close, a fault, a timeout, or the
    /// end of the transport.
    pub fn take_closed(&mut self) -> Option<Closed> {
        self.closed.take().map(|closed| *closed)
    }

    /// Whether [`take_closed`](Self::take_closed) returns something.
    #[must_use]
    #[inline]
    pub fn has_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// The peer's Close or violation, while the application has to answer it: see [`Config::answers`](sinews_proto::Config::answers).
    #[must_use]
    pub fn unanswered(&self) -> Option<&Closed> {
        let closed = self.closed.as_deref()?;
        let is_answerable = matches!(closed.cause(), Cause::Peer | Cause::Fault(_)) && !self.ended;
        (is_answerable && self.is_open() && !self.config().answers()).then_some(closed)
    }

    /// Answers the peer's Close or violation that waits for it ([`unanswered`](Self::unanswered)): with the peer's code and
    /// reason, or those of the violation.
    pub fn answer_end(&mut self, resources: &mut Resources, now: Time) {
        let Some(closed) = self.unanswered() else { return };
        let (code, reason) = (closed.code(), closed.reason().to_owned());
        // A connection that is open may be closed, and a received reason is short enough.
        let _ = match code {
            Some(code) => self.connection.close(code, &reason, now),
            None => self.connection.close_without_code(now),
        };
        self.after_tx(resources, now);
    }

    /// The driver's next action on the transport.
    #[must_use]
    #[inline]
    pub fn transport_action(&self) -> TransportAction {
        match self.connection.transport() {
            _ if self.dropped => TransportAction::Drop,
            TransportState::Open => TransportAction::Open,
            _ if self.ended && self.outbound.is_empty() => TransportAction::Drop,
            TransportState::Finish => TransportAction::Finish,
            TransportState::AwaitEnd => TransportAction::AwaitEnd,
        }
    }

    /// Time at which to call [`handle_timeout`](Self::handle_timeout). It may move to a later time without
    /// notice, so a driver checks it again when the known time is reached.
    #[must_use]
    #[inline]
    pub fn deadline(&self) -> Option<Time> {
        if self.dropped { None } else { self.connection.deadline() }
    }
}
