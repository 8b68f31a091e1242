//! The protocol of a connection, over any transport.

use std::sync::Arc;

use sinews_proto::Config;
use sinews_session::{Chain, Resources};

use super::failure::ConnectionFailure;
use super::http::HttpLoad;
use super::role::ConnectionRole;
use super::tcp::TcpLoad;
use super::tracker::{MessageTracker, ThreadState};
use super::websocket::WebSocketLoad;

#[derive(Debug)]
pub(super) enum LoadProtocol {
    Tcp(TcpLoad),
    Http(HttpLoad),
    WebSocket(WebSocketLoad),
}

impl LoadProtocol {
    /// Starts the protocol on an open transport.
    pub(super) fn begin(&mut self, resources: &mut Resources) {
        if let Self::WebSocket(websocket) = self {
            websocket.begin(resources);
        }
    }

    /// Whether messages can be sent.
    pub(super) fn is_open(&self) -> bool {
        match self {
            Self::Tcp(_) | Self::Http(_) => true,
            Self::WebSocket(websocket) => websocket.is_open(),
        }
    }

    pub(super) fn receive(
        &mut self,
        chunk: &mut [u8],
        role: ConnectionRole,
        tracker: &mut MessageTracker,
        thread_state: &mut ThreadState,
        with: (&mut Resources, &Arc<Config>),
    ) -> Result<(), ConnectionFailure> {
        match self {
            Self::Tcp(tcp) => {
                tcp.receive(chunk, tracker, thread_state)?;
                tcp.send(tracker, thread_state, with.0);
                Ok(())
            }
            Self::Http(http) => {
                http.receive(chunk, tracker, thread_state)?;
                http.send(tracker, thread_state, with.0);
                Ok(())
            }
            Self::WebSocket(websocket) => websocket.receive(chunk, role, tracker, thread_state, with),
        }
    }

    pub(super) fn send(
        &mut self,
        role: ConnectionRole,
        tracker: &mut MessageTracker,
        thread_state: &mut ThreadState,
        resources: &mut Resources,
    ) {
        match self {
            Self::Tcp(tcp) => tcp.send(tracker, thread_state, resources),
            Self::Http(http) => http.send(tracker, thread_state, resources),
            Self::WebSocket(websocket) => websocket.send(role, tracker, thread_state, resources),
        }
    }

    pub(super) fn wants_send(&self) -> bool {
        match self {
            Self::Tcp(tcp) => tcp.out.wants_send(),
            Self::Http(http) => http.out.wants_send(),
            Self::WebSocket(websocket) => websocket.wants_send(),
        }
    }

    /// Whether no data is queued behind the send in flight.
    pub(super) fn finish_may_wait(&self) -> bool {
        match self {
            Self::Tcp(tcp) => !tcp.out.has_pending(),
            Self::Http(http) => !http.out.has_pending(),
            Self::WebSocket(websocket) => websocket.finish_may_wait(),
        }
    }

    pub(super) fn start_send(&mut self) -> Option<Box<Chain>> {
        match self {
            Self::Tcp(tcp) => tcp.start_send(),
            Self::Http(http) => http.start_send(),
            Self::WebSocket(websocket) => websocket.start_send(),
        }
    }

    pub(super) fn progressed(&mut self, bytes: usize, thread_state: &ThreadState) {
        match self {
            Self::Tcp(tcp) => tcp.out.progressed(bytes),
            Self::Http(http) => http.out.progressed(bytes),
            Self::WebSocket(websocket) => websocket.progressed(bytes, thread_state),
        }
    }

    pub(super) fn finish_send(
        &mut self,
        chain: Box<Chain>,
        thread_state: &ThreadState,
        resources: &mut Resources,
    ) {
        match self {
            Self::Tcp(tcp) => tcp.out.finish(chain, resources),
            Self::Http(http) => http.out.finish(chain, resources),
            Self::WebSocket(websocket) => websocket.finish_send(chain, thread_state, resources),
        }
    }

    /// Closes the protocol. Returns whether an answer is pending.
    pub(super) fn close(&mut self, thread_state: &ThreadState, resources: &mut Resources) -> bool {
        match self {
            Self::Tcp(_) | Self::Http(_) => false,
            Self::WebSocket(websocket) => websocket.close(thread_state, resources),
        }
    }

    /// Whether both sides have closed.
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Tcp(_) => false,
            Self::Http(http) => http.last,
            Self::WebSocket(websocket) => websocket.is_over(),
        }
    }
}
