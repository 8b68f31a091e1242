//! An HTTP/3 client: several WebSockets on one connection (RFC 9220), WebTransport sessions, or requests.

mod requests;
mod sockets;

use std::sync::Arc;

use sinews_http::h3::{Event, H3Code, QuicStreamId};
use sinews_proto::Config;
use sinews_quic::Exchanges;
use sinews_session::Resources;

use super::super::tally::FailureKind;
use super::failure::ConnectionFailure;
use super::tracker::ThreadState;
use super::traffic::SocketTraffic;

pub(super) use self::requests::Http3Requests;
pub(super) use self::sockets::Http3Sockets;

/// The load on one connection. Its endpoint lends the connection for each call.
#[derive(Debug)]
pub(super) enum Http3Load {
    WebSockets(Http3Sockets),
    Requests(Http3Requests),
}

impl Http3Load {
    /// Whether messages can be sent.
    pub(super) fn is_open(&self) -> bool {
        match self {
            Self::WebSockets(load) => load.sockets.is_open(),
            Self::Requests(requests) => requests.is_open(),
        }
    }

    /// Handles an event on the connection.
    pub(super) fn receive(
        &mut self,
        event: Event<'_>,
        traffic: &mut [SocketTraffic],
        thread_state: &mut ThreadState,
        resources: &mut Resources,
        config: &Arc<Config>,
    ) -> Result<(), ConnectionFailure> {
        if let Event::GoAway { .. } = event {
            return Err(ConnectionFailure::new(
                FailureKind::Closed,
                "the server accepts no further requests",
            ));
        }
        match self {
            Self::WebSockets(load) => load.receive(event, traffic, thread_state, resources, config),
            Self::Requests(requests) => requests.receive(event, traffic, thread_state),
        }
    }

    /// Handles a session's datagram.
    pub(super) fn receive_datagram(
        &mut self,
        session: QuicStreamId,
        payload: &[u8],
        traffic: &mut [SocketTraffic],
        thread_state: &mut ThreadState,
        resources: &mut Resources,
    ) -> Result<(), ConnectionFailure> {
        match self {
            Self::WebSockets(load) => {
                load.receive_datagram(session, payload, traffic, thread_state, resources)
            }
            Self::Requests(_) => Ok(()),
        }
    }

    /// Moves output to the connection, as far as the windows permit.
    pub(super) fn fill(
        &mut self,
        exchanges: &mut Exchanges<'_>,
        thread_state: &ThreadState,
        resources: &mut Resources,
    ) -> Result<(), ConnectionFailure> {
        match self {
            Self::WebSockets(load) => load.fill(exchanges, thread_state, resources),
            Self::Requests(requests) => requests.fill(exchanges, thread_state),
        }
    }

    /// A stream takes more output.
    pub(super) fn writable(&mut self, stream: QuicStreamId) {
        if let Self::WebSockets(load) = self {
            load.writable(stream);
        }
    }

    /// Sends messages as far as allowed.
    pub(super) fn send(
        &mut self,
        index: usize,
        traffic: &mut SocketTraffic,
        thread_state: &mut ThreadState,
        resources: &mut Resources,
    ) {
        match self {
            Self::WebSockets(load) => load.sockets.send(index, traffic, thread_state, resources),
            Self::Requests(load) => load.requests.send(&mut traffic.tracker, thread_state),
        }
    }

    /// Whether [`fill`](Self::fill) has something to move.
    pub(super) fn wants_send(&self) -> bool {
        match self {
            Self::WebSockets(load) => load.sockets.has_ready(),
            Self::Requests(load) => load.requests.wants_send(),
        }
    }

    /// Closes the protocol. Returns whether an answer is pending.
    pub(super) fn close(&mut self, thread_state: &ThreadState, resources: &mut Resources) -> bool {
        match self {
            Self::WebSockets(load) => load.sockets.close(thread_state, resources),
            Self::Requests(_) => false,
        }
    }

    /// Whether both sides have closed.
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::WebSockets(load) => load.sockets.is_over() && !load.sockets.has_ready(),
            Self::Requests(_) => false,
        }
    }
}

/// Requests take the identifiers of client-initiated bidirectional streams in order (RFC 9000 section 2.1).
fn index_of(stream: QuicStreamId) -> usize {
    (stream.get() / 4) as usize
}

/// Returns the failure for a stream that the server has reset.
fn reset(code: H3Code, violation: Option<&str>) -> ConnectionFailure {
    let rule = violation.map(|rule| format!(": {rule}")).unwrap_or_default();
    match code {
        H3Code::H3_REQUEST_REJECTED => {
            ConnectionFailure::new(FailureKind::Handshake, &format!("the server rejected a request{rule}"))
        }
        _ => ConnectionFailure::new(FailureKind::Reset, &format!("stream was reset with {code}{rule}")),
    }
}
