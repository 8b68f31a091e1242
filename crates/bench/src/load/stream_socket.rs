//! A WebSocket on a stream of HTTP/2 or HTTP/3.

use std::sync::Arc;

use sinews_http::h2::ResponseFields;
use sinews_proto::handshake::ExtendedConnect;
use sinews_proto::{Config, Negotiated, Role, Time};
use sinews_session::{Cause, Chain, Outbound, Session, TransportAction};

use super::super::tally::FailureKind;
use super::failure::ConnectionFailure;

/// The request of a WebSocket, and its session once it is open.
#[derive(Debug)]
pub(super) struct StreamedWebSocket {
    pub(super) request: ExtendedConnect,
    pub(super) session: Option<Box<Session>>,
    /// Output that moves to the connection as the windows permit.
    pub(super) chain: Option<Box<Chain>>,
    /// The end of the stream is queued.
    pub(super) has_ended: bool,
}

impl StreamedWebSocket {
    pub(super) fn new(request: ExtendedConnect) -> Self {
        Self { request, session: None, chain: None, has_ended: false }
    }

    /// Handles the answer to the handshake.
    pub(super) fn open(
        &mut self,
        head: &ResponseFields<'_>,
        ends: bool,
        config: &Arc<Config>,
        now: Time,
    ) -> Result<(), ConnectionFailure> {
        let refused = |text: &str| ConnectionFailure::new(FailureKind::Handshake, text);
        let fields = head.fields();
        let established = self.request.read_response(head.status(), fields.iter());
        let established = established.map_err(|error| refused(&error.to_string()))?;
        if ends {
            return Err(refused("the server ended the stream of its response"));
        }
        let negotiated = established.negotiated();
        let session = Session::with_outbound(negotiated, config.clone(), now, Outbound::default());
        self.session = Some(Box::new(session));
        Ok(())
    }

    /// Starts the messages of a session of WebTransport.
    pub(super) fn open_session(&mut self, config: &Arc<Config>, now: Time) {
        let negotiated = Negotiated::tagged(Role::Client);
        let session = Session::with_outbound(negotiated, config.clone(), now, Outbound::default());
        self.session = Some(Box::new(session));
    }

    /// Handles the end of the server's side of the stream.
    pub(super) fn end(&mut self, now: Time) -> Result<(), ConnectionFailure> {
        let Some(session) = &mut self.session else { return Ok(()) };
        session.receive_end(now);
        match session.take_closed() {
            Some(closed) if closed.cause() != Cause::Local => {
                Err(ConnectionFailure::new(FailureKind::Closed, "the server ended a stream"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn has_output(&self) -> bool {
        let Some(session) = &self.session else { return false };
        self.chain.is_some() || session.wants_send() || self.finishes()
    }

    /// Whether only the end of the stream is left to send.
    pub(super) fn finishes(&self) -> bool {
        let Some(session) = &self.session else { return false };
        session.transport_action() == TransportAction::Finish && !self.has_ended
    }

    pub(super) fn is_over(&self) -> bool {
        self.session.as_ref().is_some_and(|session| {
            session.transport_action() != TransportAction::Open
                && !session.is_open()
                && session.buffered() == 0
                && !self.has_output()
        })
    }
}
