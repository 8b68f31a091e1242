//! One connection: its protocol machine, buffers, operations in flight and deadlines.

mod closing;
mod datagram;
mod pull;
mod push;
mod run;
mod send;

use std::sync::Arc;

use sinews_proto::{BodyPrefix, CloseCode, Config, Connection, Negotiated, Role, Time};

use crate::closed::Closed;
use crate::outbound::Outbound;
use crate::stored_buffer::StoredBuffer;

/// One WebSocket connection: everything between a protocol machine and a socket.
///
/// A driver passes received bytes ([`receive`](Self::receive), [`receive_end`](Self::receive_end)), sends
/// queued bytes ([`start_send`](Self::start_send), [`progressed`](Self::progressed),
/// [`finish_send`](Self::finish_send)), and queries the next step: [`transport_action`](Self::transport_action),
/// [`deadline`](Self::deadline), [`take_closed`](Self::take_closed).
#[derive(Debug)]
pub struct Session {
    pub(crate) connection: Connection,
    pub(crate) outbound: Outbound,
    /// Unprocessed input: part of a head or of a control frame, or, while paused, the rest of a chunk.
    pub(crate) rest: StoredBuffer,
    /// The message under assembly.
    pub(crate) assembly: StoredBuffer,
    /// The capacity of the assembly while it is lent to a driver, saturated at 4 GiB.
    pub(crate) lent_bytes: u32,
    pub(crate) paused: bool,
    /// The peer closed the transport.
    pub(crate) ended: bool,
    pub(crate) dropped: bool,
    /// The end of the connection, until it is reported.
    pub(crate) closed: Option<Box<Closed>>,
    /// The end of the connection is recorded.
    pub(crate) is_closed: bool,
}

/// The driver's next action on the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a driver must handle each")]
pub enum TransportAction {
    /// Continue.
    Open,
    /// Send the queued bytes, shut down the sending side, discard received bytes. Close at the peer's end
    /// of the transport or at the deadline.
    Finish,
    /// Send the queued bytes. Close at the peer's end of the transport or at the deadline.
    AwaitEnd,
    /// Close immediately.
    Drop,
}

impl Session {
    /// Creates a session for a completed handshake.
    #[must_use]
    pub fn new(negotiated: Negotiated, config: Arc<Config>, now: Time) -> Self {
        Self::with_outbound(negotiated, config, now, Outbound::default())
    }

    /// Creates a session for a handshake whose response, and possibly earlier bytes, are still in
    /// `outbound`.
    #[must_use]
    pub fn with_outbound(negotiated: Negotiated, config: Arc<Config>, now: Time, outbound: Outbound) -> Self {
        Self {
            connection: Connection::new(negotiated, config, now),
            outbound,
            rest: StoredBuffer::NONE,
            assembly: StoredBuffer::NONE,
            lent_bytes: 0,
            paused: false,
            ended: false,
            dropped: false,
            closed: None,
            is_closed: false,
        }
    }

    /// Delivers later messages in pieces ([`Events::fragment`](crate::Events::fragment)), so that a message may exceed the available
    /// memory.
    pub fn deliver_fragments(&mut self, fragments: bool) {
        self.connection.deliver_fragments(fragments);
    }

    /// Sets the bytes between the messages of a streaming response
    /// ([`Negotiated::response_body`](sinews_proto::Negotiated::response_body)); other sessions ignore it.
    pub fn set_body_prefix(&mut self, prefix: Box<dyn BodyPrefix>) {
        self.connection.set_body_prefix(prefix);
    }

    /// The role of this end.
    #[must_use]
    pub fn role(&self) -> Role {
        self.connection.role()
    }

    /// The limits and timeouts.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.connection.config()
    }

    /// Records that nothing was read until now: see [`Connection::note_unread`].
    pub fn note_unread(&mut self, now: Time) {
        self.connection.note_unread(now);
    }

    /// Records that the session is driven again: see [`Connection::note_driven`].
    pub fn note_driven(&mut self, since: Time) {
        self.connection.note_driven(since);
    }

    /// Bytes of memory held for incomplete input, including a lent assembly.
    #[must_use]
    pub fn incomplete(&self) -> usize {
        self.assembly.capacity() + self.lent_bytes as usize + self.rest.capacity()
    }

    /// Whether data may still be sent.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.connection.is_open() && !self.dropped
    }

    /// Code and reason of the Close that was written: see [`Connection::written_close`].
    #[must_use]
    pub fn written_close(&self) -> Option<(CloseCode, &str)> {
        self.connection.written_close()
    }
}
