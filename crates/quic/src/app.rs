//! An endpoint's application.

use std::net::{IpAddr, SocketAddr};

#[cfg(feature = "quinn")]
use quinn_proto::ConnectionError;
use sinews_http::h3::{Event, QuicStreamId};

use crate::{ConnectionKey, Exchanges};

/// An endpoint's application.
pub trait Http3App {
    /// Handles an HTTP/3 event.
    fn handle_event(&mut self, exchanges: &mut Exchanges<'_>, event: Event<'_>);

    /// Handles a datagram in a WebTransport session.
    fn handle_datagram(&mut self, exchanges: &mut Exchanges<'_>, session: QuicStreamId, payload: &[u8]) {
        let _ = (exchanges, session, payload);
    }

    /// Whether a client with this address may begin a handshake. The address may be forged: count the connection in
    /// [`handle_start`](Self::handle_start).
    fn admits(&mut self, address: IpAddr) -> bool {
        let _ = address;
        true
    }

    /// The handshake is complete: the connection had no event before.
    ///
    /// # Errors
    /// The reason why the application rejects the connection, which closes with H3_EXCESSIVE_LOAD and has no further event.
    fn handle_start(&mut self, exchanges: &mut Exchanges<'_>) -> Result<(), &'static str> {
        let _ = exchanges;
        Ok(())
    }

    /// Content that was queued for a closed window has left, in part or whole: [`Exchanges::is_blocked`].
    fn handle_writable(&mut self, exchanges: &mut Exchanges<'_>, stream: QuicStreamId) {
        let _ = (exchanges, stream);
    }

    /// All events from a datagram, a timeout or a call are handled. The place to send more.
    fn handle_batch_end(&mut self, exchanges: &mut Exchanges<'_>) {
        let _ = exchanges;
    }

    /// A connection has ended, with its reason for a log; or its handshake has failed. No event follows.
    fn handle_end(&mut self, connection: ConnectionKey, cause: LinkEnd, reason: &str) {
        let _ = (connection, cause, reason);
    }
}

/// Cause of the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkEnd {
    /// The peer closed it.
    Peer,
    /// This side closed it.
    Local,
    /// The peer violated QUIC or HTTP/3, or exceeded a limit.
    Violation,
    /// The peer was silent, or reset the connection.
    Lost,
}

#[cfg(feature = "quinn")]
impl LinkEnd {
    pub(crate) fn from_error(error: &ConnectionError) -> Self {
        match error {
            ConnectionError::ApplicationClosed(_) | ConnectionError::ConnectionClosed(_) => Self::Peer,
            ConnectionError::LocallyClosed => Self::Local,
            ConnectionError::TimedOut | ConnectionError::Reset => Self::Lost,
            _ => Self::Violation,
        }
    }
}

/// Datagrams to send: `segment` is the size of each but the last, for one call with segmentation offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outgoing {
    /// The peer.
    pub destination: SocketAddr,
    /// Length of the datagrams.
    pub len: usize,
    /// Datagram size, if there are several.
    pub segment: Option<usize>,
    /// Explicit congestion notification bits (RFC 3168).
    pub ecn: u8,
    /// The address to send from, if it is known.
    pub source: Option<IpAddr>,
}

/// The fate of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a sender must handle each")]
pub enum DatagramSend {
    /// It leaves with the next packets.
    Sent,
    /// The congestion window is closed, and the buffer is full; or stream content leaves first.
    /// [`handle_batch_end`](crate::Http3App::handle_batch_end) follows once datagrams may leave.
    Blocked,
    /// It exceeds a packet of this path, or the client takes no datagrams.
    TooLarge,
}
