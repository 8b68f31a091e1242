//! A connection's protocol, over any transport.

use std::sync::Arc;

use sinews_proto::Config;
use sinews_session::{Chain, Resources};

use super::super::plan::LoadPlan;
use super::super::target::{LoadTarget, TargetProtocol};
use super::failure::ConnectionFailure;
use super::http::HttpLoad;
use super::http2::Http2Load;
use super::http3::{Http3Load, Http3Requests, Http3Sockets};
use super::random::key;
use super::role::ConnectionRole;
use super::tcp::TcpLoad;
use super::tracker::ThreadState;
use super::traffic::SocketTraffic;
use super::websocket::WebSocketLoad;

#[derive(Debug)]
pub(super) enum LoadProtocol {
    Tcp(TcpLoad),
    Http(HttpLoad),
    WebSocket(WebSocketLoad),
    Http2(Box<Http2Load>),
    /// Its endpoint receives and sends.
    Http3(Box<Http3Load>),
}

impl LoadProtocol {
    /// Target and protocol for a connection with these sockets.
    pub(super) fn from_plan<'p>(
        plan: &'p LoadPlan,
        traffic: &[SocketTraffic],
    ) -> Option<(&'p LoadTarget, Self)> {
        let endpoint = |traffic: &SocketTraffic| match traffic.role {
            ConnectionRole::Echo => plan.endpoint(false, 0),
            ConnectionRole::Publisher(topic) => plan.endpoint(true, topic),
            ConnectionRole::Subscriber(topic) | ConnectionRole::Stalled(topic) => plan.endpoint(false, topic),
        };
        let (target, handshake) = endpoint(traffic.first()?);
        let protocol = match target.protocol {
            TargetProtocol::Tcp => Self::Tcp(TcpLoad::default()),
            TargetProtocol::Http if plan.http3 => {
                Self::Http3(Box::new(Http3Load::Requests(Http3Requests::new())))
            }
            TargetProtocol::Http if plan.http2 => Self::Http2(Box::new(Http2Load::for_requests(target.tls))),
            TargetProtocol::Http => Self::Http(HttpLoad::new()),
            TargetProtocol::WebSocket if plan.http3 => {
                let requests = traffic.iter().filter_map(|traffic| endpoint(traffic).1);
                // The plan has checked the headers.
                Self::Http3(Box::new(Http3Load::WebSockets(
                    Http3Sockets::new(requests, plan.webtransport).ok()?,
                )))
            }
            TargetProtocol::WebSocket if plan.http2 => {
                let requests = traffic.iter().filter_map(|traffic| endpoint(traffic).1);
                // The plan has checked the headers.
                Self::Http2(Box::new(Http2Load::new(requests, target.tls).ok()?))
            }
            TargetProtocol::WebSocket => Self::WebSocket(WebSocketLoad::new(handshake?, key())),
        };
        Some((target, protocol))
    }

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
            Self::Http2(http2) => http2.is_open(),
            Self::Http3(http3) => http3.is_open(),
        }
    }

    pub(super) fn receive(
        &mut self,
        chunk: &mut [u8],
        traffic: &mut [SocketTraffic],
        thread_state: &mut ThreadState,
        resources: &mut Resources,
        config: &Arc<Config>,
    ) -> Result<(), ConnectionFailure> {
        if let Self::Http2(http2) = self {
            return http2.receive(chunk, traffic, thread_state, resources, config);
        }
        let Some(traffic) = traffic.first_mut() else { return Ok(()) };
        let tracker = &mut traffic.tracker;
        match self {
            Self::Http2(_) | Self::Http3(_) => Ok(()),
            Self::Tcp(tcp) => {
                tcp.receive(chunk, tracker, thread_state)?;
                tcp.send(tracker, thread_state, resources);
                Ok(())
            }
            Self::Http(http) => {
                http.receive(chunk, tracker, thread_state)?;
                http.send(tracker, thread_state, resources);
                Ok(())
            }
            Self::WebSocket(websocket) => websocket.receive(chunk, traffic, thread_state, resources, config),
        }
    }

    /// Sends a socket's messages as far as allowed. `index`: its number on the connection.
    pub(super) fn send(
        &mut self,
        index: usize,
        traffic: &mut [SocketTraffic],
        thread_state: &mut ThreadState,
        resources: &mut Resources,
    ) {
        let Some(traffic) = traffic.get_mut(index) else { return };
        match self {
            Self::Tcp(tcp) => tcp.send(&mut traffic.tracker, thread_state, resources),
            Self::Http(http) => http.send(&mut traffic.tracker, thread_state, resources),
            Self::WebSocket(websocket) => websocket.send(traffic, thread_state, resources),
            Self::Http2(http2) => http2.send(index, traffic, thread_state, resources),
            Self::Http3(http3) => http3.send(index, traffic, thread_state, resources),
        }
    }

    /// Sends a message before the load's messages: a login, or a subscription.
    pub(super) fn send_first(
        &mut self,
        index: usize,
        text: &str,
        thread_state: &ThreadState,
        resources: &mut Resources,
    ) {
        match self {
            Self::Tcp(_) | Self::Http(_) => {}
            Self::WebSocket(websocket) => websocket.send_first(text, thread_state, resources),
            Self::Http2(http2) => http2.sockets.send_first(index, text, thread_state, resources),
            Self::Http3(http3) => {
                if let Http3Load::WebSockets(load) = &mut **http3 {
                    load.sockets.send_first(index, text, thread_state, resources);
                }
            }
        }
    }

    pub(super) fn wants_send(&self) -> bool {
        match self {
            Self::Tcp(tcp) => tcp.out.wants_send(),
            Self::Http(http) => http.out.wants_send(),
            Self::WebSocket(websocket) => websocket.wants_send(),
            Self::Http2(http2) => http2.wants_send(),
            Self::Http3(http3) => http3.wants_send(),
        }
    }

    /// Whether no data is queued behind the send in flight.
    pub(super) fn finish_may_wait(&self) -> bool {
        match self {
            Self::Tcp(tcp) => !tcp.out.has_pending(),
            Self::Http(http) => !http.out.has_pending(),
            Self::WebSocket(websocket) => websocket.finish_may_wait(),
            Self::Http2(http2) => http2.finish_may_wait(),
            Self::Http3(_) => true,
        }
    }

    pub(super) fn start_send(
        &mut self,
        thread_state: &ThreadState,
        resources: &mut Resources,
    ) -> Option<Box<Chain>> {
        match self {
            Self::Tcp(tcp) => tcp.start_send(),
            Self::Http(http) => http.start_send(),
            Self::WebSocket(websocket) => websocket.start_send(),
            Self::Http2(http2) => http2.start_send(thread_state, resources),
            Self::Http3(_) => None,
        }
    }

    pub(super) fn progressed(&mut self, bytes: usize, thread_state: &ThreadState) {
        match self {
            Self::Tcp(tcp) => tcp.out.progressed(bytes),
            Self::Http(http) => http.out.progressed(bytes),
            Self::WebSocket(websocket) => websocket.progressed(bytes, thread_state),
            Self::Http2(http2) => http2.out.progressed(bytes),
            Self::Http3(_) => {}
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
            Self::Http2(http2) => http2.out.finish(chain, resources),
            Self::Http3(_) => {}
        }
    }

    /// Closes the protocol. Returns whether an answer is pending.
    pub(super) fn close(&mut self, thread_state: &ThreadState, resources: &mut Resources) -> bool {
        match self {
            Self::Tcp(_) | Self::Http(_) => false,
            Self::WebSocket(websocket) => websocket.close(thread_state, resources),
            Self::Http2(http2) => http2.sockets.close(thread_state, resources),
            Self::Http3(http3) => http3.close(thread_state, resources),
        }
    }

    /// Whether both sides have closed.
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Tcp(_) => false,
            Self::Http(http) => http.last,
            Self::WebSocket(websocket) => websocket.is_over(),
            Self::Http2(http2) => http2.is_over(),
            Self::Http3(http3) => http3.is_over(),
        }
    }
}
