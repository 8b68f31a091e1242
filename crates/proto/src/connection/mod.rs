//! The connection state machine: frames in, events out; messages in, frames out.

mod body;
mod closing;
mod control;
mod event;
mod frames;
mod incoming;
mod inflate;
mod keepalive;
mod outgoing;
mod parts;
mod pending;
mod per_thread;
mod prepared;
mod receive;
mod send;
mod spares;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

pub(crate) use self::body::BodySetup;
use self::body::BodyWriter;
pub use self::body::{BodyFormat, BodyPrefix, write_body};
pub use self::closing::TransportState;
use self::closing::{CloseSignal, ReceiveState, SendState};
pub use self::event::{Event, Kind, PayloadLocation, Received};
use self::incoming::{IncomingMessage, ReceiveCompression, ReceiveStage};
use self::keepalive::{DeadlineAction, Keepalive};
use self::outgoing::{OpenMessage, SendCompression};
use self::pending::PendingControl;
pub use self::per_thread::PerThread;
pub use self::prepared::{write_close, write_prepared};
use crate::{CloseCode, Config, Expired, Misuse, Negotiated, PeerMisbehaved, Role, Time, WireFormat};

/// One WebSocket connection after its handshake, either role.
///
/// It owns no payload and performs no I/O. Its methods form four groups:
///
/// * input: [`receive`](Self::receive), [`receive_end`](Self::receive_end),
///   [`handle_timeout`](Self::handle_timeout), [`note_outbound`](Self::note_outbound);
/// * application: [`send`](Self::send), [`send_head`](Self::send_head),
///   [`send_fragment`](Self::send_fragment), [`send_ping`](Self::send_ping), [`close`](Self::close);
/// * next action: [`write_control`](Self::write_control), [`transport`](Self::transport),
///   [`deadline`](Self::deadline);
/// * getters.
///
/// The order of a turn: call `receive` until it returns [`Event::NeedMore`]; the application sends while it
/// handles the events. Then call `write_control`, send the bytes, and query `transport` and `deadline`. The
/// crate page shows the loop.
#[derive(Debug)]
pub struct Connection {
    config: Arc<Config>,
    role: Role,
    framing: WireFormat,
    part: ConnectionHalf,
    receiving: ReceiveState,
    sending: SendState,
    /// Deliver fragments instead of whole messages.
    fragments: bool,
    stage: ReceiveStage,
    /// Boxed, since most messages arrive whole and need none.
    message: Option<Box<IncomingMessage>>,
    /// Boxed, since few connections compress.
    compression: Option<Box<CompressionState>>,
    open_message: Option<OpenMessage>,
    /// The body of a streaming response.
    body: Option<Box<BodyWriter>>,
    pending: PendingControl,
    keepalive: Keepalive,
}

/// Compression in each direction; a half has only its own.
#[derive(Debug)]
struct CompressionState {
    inflate: Option<ReceiveCompression>,
    deflate: Option<SendCompression>,
}

/// The role of a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionHalf {
    /// The whole connection.
    Whole,
    /// Receives, answers pings, keeps the deadlines, and sends no data.
    Control,
    /// Sends data and receives no bytes.
    Data,
}

impl Connection {
    /// Creates a connection for a completed handshake.
    #[must_use]
    pub fn new(negotiated: Negotiated, config: Arc<Config>, now: Time) -> Self {
        let role = negotiated.role();
        let deflate = negotiated.deflate;
        Self {
            role,
            framing: negotiated.framing,
            part: ConnectionHalf::Whole,
            receiving: ReceiveState::Open,
            sending: SendState::Open,
            fragments: false,
            stage: ReceiveStage::Head,
            message: None,
            compression: deflate.map(|setup| {
                Box::new(CompressionState {
                    inflate: Some(ReceiveCompression::new(&setup, role)),
                    deflate: Some(SendCompression::new(setup, role)),
                })
            }),
            open_message: None,
            keepalive: match negotiated.framing {
                WireFormat::Body | WireFormat::Tagged => Keepalive::for_body(now),
                WireFormat::WebSocket | WireFormat::Prefixed => Keepalive::new(now),
            },
            body: negotiated.body.map(|setup| Box::new(BodyWriter::new(setup))),
            pending: PendingControl::default(),
            config,
        }
    }

    /// Delivers later messages in pieces ([`Event::Fragment`]) instead of whole, so that a message may
    /// exceed the available memory.
    pub fn deliver_fragments(&mut self, fragments: bool) {
        self.fragments = fragments;
    }

    /// Whether the assembly buffer holds part of a message.
    #[must_use]
    #[inline]
    pub fn holds_assembly(&self) -> bool {
        self.message.is_some()
    }

    /// The role of this end.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Whether frames [prepared](write_prepared) for many connections may be sent: only to clients of a
    /// WebSocket.
    #[must_use]
    #[inline]
    pub fn takes_prepared(&self) -> bool {
        self.role == Role::Server && self.framing == WireFormat::WebSocket
    }

    /// The format of a streaming response, and whether its body is sent in chunks; `None` for other
    /// connections.
    #[must_use]
    pub fn body_format(&self) -> Option<(&'static BodyFormat, bool)> {
        self.body.as_ref().map(|body| (body.setup.format, body.setup.chunked))
    }

    /// Sets the bytes between the messages of a streaming response. Other connections ignore it.
    pub fn set_body_prefix(&mut self, prefix: Box<dyn BodyPrefix>) {
        if let Some(body) = &mut self.body {
            body.prefix = Some(prefix);
        }
    }

    /// Whether this connection writes bytes between the messages of a streaming response.
    #[must_use]
    pub fn has_body_prefix(&self) -> bool {
        self.body.as_ref().is_some_and(|body| body.prefix.is_some())
    }

    /// Appends the prefix for a message from [`write_body`] with this label, which must follow.
    pub fn write_body_prefix(&mut self, label: Option<&[u8]>, out: &mut Vec<u8>) {
        if let Some(body) = &mut self.body {
            body.before(label, out);
        }
    }

    /// The limits and timeouts.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether data may still be sent.
    #[must_use]
    #[inline]
    pub fn is_open(&self) -> bool {
        self.sending == SendState::Open
    }

    /// Whether a message is being sent in fragments. No other message may begin until it ends.
    #[must_use]
    #[inline]
    pub fn is_mid_message(&self) -> bool {
        self.open_message.is_some()
    }

    /// Whether input of the peer is still processed: it has neither sent a Close nor violated the protocol.
    #[must_use]
    #[inline]
    pub fn is_receiving(&self) -> bool {
        self.receiving == ReceiveState::Open
    }

    /// Starts the closing handshake (RFC 6455 section 7.1.2). Messages of the peer are still delivered
    /// until its Close.
    ///
    /// # Errors
    /// [`Misuse::ReasonTooLong`] over 123 bytes; [`Misuse::Closing`] if a local Close is pending or written
    /// already.
    pub fn close(&mut self, code: CloseCode, reason: &str, now: Time) -> Result<(), Misuse> {
        if reason.len() > pending::REASON_MAX {
            return Err(Misuse::ReasonTooLong);
        }
        if self.sending != SendState::Open {
            return Err(Misuse::Closing);
        }
        self.pending.set_close(Some(code), Box::from(reason));
        self.signal(CloseSignal::WeClose, now);
        Ok(())
    }

    /// Starts the closing handshake with a Close that has no code.
    ///
    /// # Errors
    /// [`Misuse::Closing`] if a Close was started already.
    pub fn close_without_code(&mut self, now: Time) -> Result<(), Misuse> {
        if self.sending != SendState::Open {
            return Err(Misuse::Closing);
        }
        self.pending.set_close(None, Box::default());
        self.signal(CloseSignal::WeClose, now);
        Ok(())
    }

    /// Prepares the Close with the code for the peer's violation.
    fn fail(&mut self, fault: PeerMisbehaved, now: Time) {
        if !self.config.answers {
            return self.signal(CloseSignal::PeerFailsUnanswered, now);
        }
        if self.sending == SendState::Open {
            self.pending.set_close(Some(fault.close_code()), Box::from(fault.reason()));
        }
        self.pending.clear_pong();
        self.signal(CloseSignal::PeerFails, now);
    }

    /// Code and reason of the Close that was written, for the transport's own end: only with [`Negotiated::tagged`].
    #[must_use]
    pub fn written_close(&self) -> Option<(CloseCode, &str)> {
        (self.sending == SendState::Closed).then(|| self.pending.close()).flatten()
    }

    fn signal(&mut self, signal: CloseSignal, now: Time) {
        (self.receiving, self.sending) = closing::step(self.receiving, self.sending, signal);
        if self.sending != SendState::Open {
            self.keepalive.start_closing(now);
        }
    }

    /// The required state of the transport once all written bytes are sent.
    #[must_use]
    #[inline]
    pub fn transport(&self) -> TransportState {
        match self.framing {
            // Only the peer's own end shows that it has seen the local end.
            WireFormat::Prefixed | WireFormat::Tagged | WireFormat::Body
                if self.sending == SendState::Closed =>
            {
                TransportState::Finish
            }
            _ => closing::transport(self.receiving, self.sending, self.role),
        }
    }

    /// Time at which to call [`handle_timeout`](Self::handle_timeout); `None`: never. It may move to a
    /// later time, and to an earlier time only after [`handle_timeout`](Self::handle_timeout),
    /// [`close`](Self::close), a Close or violation of the peer, or [`note_outbound`](Self::note_outbound).
    #[must_use]
    #[inline]
    pub fn deadline(&self) -> Option<Time> {
        self.keepalive.deadline(&self.config)
    }

    /// Executes the actions due at `now`: prepares a ping or a Close for
    /// [`write_control`](Self::write_control).
    ///
    /// # Errors
    /// The timeout that ended the connection. `Idle` and `Pong` still prepare a Close frame; after `Write`
    /// and `Close` the transport must be dropped.
    pub fn handle_timeout(&mut self, now: Time) -> Result<(), Expired> {
        match self.keepalive.due(&self.config, now) {
            None => Ok(()),
            Some(DeadlineAction::Ping) => {
                self.pending.set_ping();
                if matches!(self.framing, WireFormat::Body | WireFormat::Tagged) {
                    self.keepalive.assume_pong(now);
                }
                Ok(())
            }
            Some(DeadlineAction::Close(wait)) => {
                let code = if wait == Expired::Idle { CloseCode::GOING_AWAY } else { CloseCode::INTERNAL };
                self.pending.set_close(Some(code), Box::from(wait.reason()));
                self.signal(CloseSignal::WeClose, now);
                Err(wait)
            }
            Some(DeadlineAction::Drop(wait)) => Err(wait),
        }
    }

    /// The timeout that ends the connection at the [`deadline`](Self::deadline); `None` if a ping is due
    /// then, or if there is no deadline.
    #[must_use]
    pub fn expiring_timeout(&self) -> Option<Expired> {
        self.keepalive.expiring_timeout(&self.config)
    }

    /// Records that the application has sent a message, at `now` or later. [`Config::idle_timeout`]
    /// restarts there, so that the peer has time to answer.
    #[inline]
    pub fn note_sent(&mut self, now: Time) {
        self.keepalive.sent(now);
    }

    /// Records that no input was read until `now`, since reads were paused or the driver was delayed. The
    /// peer's silence starts here.
    pub fn note_unread(&mut self, now: Time) {
        self.keepalive.unread(now);
    }

    /// Records that the connection is driven again, from `since` on. If the idle or the close timeout
    /// expired in the meantime, it restarts: a peer is not at fault for the absence of the caller. A driver
    /// calls this before [`handle_timeout`](Self::handle_timeout), after reading all pending input.
    ///
    /// The close timeout restarts only once. The pong timeout restarts only if bytes arrived after the
    /// ping: otherwise the pong had time to arrive.
    pub fn note_driven(&mut self, since: Time) {
        self.keepalive.driven(&self.config, since);
    }

    /// Records that the transport accepts no more bytes: the write timeout starts here.
    pub fn note_stalled(&mut self, now: Time) {
        self.keepalive.stalled(now);
    }

    /// Whether messages of the peer may be compressed.
    #[must_use]
    #[inline]
    pub fn inflates(&self) -> bool {
        self.inflate().is_some()
    }

    #[inline]
    fn inflate(&self) -> Option<&ReceiveCompression> {
        self.compression.as_ref()?.inflate.as_ref()
    }

    #[inline]
    fn deflate(&self) -> Option<&SendCompression> {
        self.compression.as_ref()?.deflate.as_ref()
    }

    #[inline]
    fn deflate_mut(&mut self) -> Option<&mut SendCompression> {
        self.compression.as_mut()?.deflate.as_mut()
    }

    /// Records the number of queued bytes, and whether the peer accepted some since the last call. The
    /// write timeout depends on both.
    #[inline]
    pub fn note_outbound(&mut self, waiting: usize, moved: bool, now: Time) {
        self.keepalive.outbound(waiting, moved, now);
    }
}
