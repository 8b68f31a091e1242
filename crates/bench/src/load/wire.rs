//! The protocol of a connection, over any transport.

use std::sync::Arc;

use sinews_proto::Config;
use sinews_session::{Chain, Resources};

use super::super::tally::Failure;
use super::http::Http;
use super::lane::{Desk, Lane};
use super::tcp::Tcp;
use super::websocket::WebSocket;

/// Role of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Echo,
    /// Publishes to this topic.
    Publisher(usize),
    Subscriber(usize),
}

/// Reason for closing a connection.
#[derive(Debug)]
pub(super) struct Fault {
    /// `None` for an expected close.
    pub(super) failure: Option<Failure>,
    pub(super) text: String,
}

impl Fault {
    pub(super) fn new(failure: Failure, text: &str) -> Self {
        Self { failure: Some(failure), text: text.to_owned() }
    }

    pub(super) fn expected() -> Self {
        Self { failure: None, text: String::new() }
    }
}

#[derive(Debug)]
pub(super) enum Wire {
    Tcp(Tcp),
    Http(Http),
    WebSocket(WebSocket),
}

impl Wire {
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
        part: Part,
        lane: &mut Lane,
        desk: &mut Desk,
        with: (&mut Resources, &Arc<Config>),
    ) -> Result<(), Fault> {
        match self {
            Self::Tcp(tcp) => {
                tcp.receive(chunk, lane, desk)?;
                tcp.send(lane, desk, with.0);
                Ok(())
            }
            Self::Http(http) => {
                http.receive(chunk, lane, desk)?;
                http.send(lane, desk, with.0);
                Ok(())
            }
            Self::WebSocket(websocket) => websocket.receive(chunk, part, lane, desk, with),
        }
    }

    pub(super) fn send(&mut self, part: Part, lane: &mut Lane, desk: &mut Desk, resources: &mut Resources) {
        match self {
            Self::Tcp(tcp) => tcp.send(lane, desk, resources),
            Self::Http(http) => http.send(lane, desk, resources),
            Self::WebSocket(websocket) => websocket.send(part, lane, desk, resources),
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
            Self::Tcp(tcp) => !tcp.out.has_gathered(),
            Self::Http(http) => !http.out.has_gathered(),
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

    pub(super) fn progressed(&mut self, bytes: usize, desk: &Desk) {
        match self {
            Self::Tcp(tcp) => tcp.out.progressed(bytes),
            Self::Http(http) => http.out.progressed(bytes),
            Self::WebSocket(websocket) => websocket.progressed(bytes, desk),
        }
    }

    pub(super) fn finish_send(&mut self, chain: Box<Chain>, desk: &Desk, resources: &mut Resources) {
        match self {
            Self::Tcp(tcp) => tcp.out.finish(chain, resources),
            Self::Http(http) => http.out.finish(chain, resources),
            Self::WebSocket(websocket) => websocket.finish_send(chain, desk, resources),
        }
    }

    /// Closes the protocol. Returns whether an answer is pending.
    pub(super) fn close(&mut self, desk: &Desk, resources: &mut Resources) -> bool {
        match self {
            Self::Tcp(_) | Self::Http(_) => false,
            Self::WebSocket(websocket) => websocket.close(desk, resources),
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
