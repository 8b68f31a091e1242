//! Binds HTTP/3 beside the listeners with TLS.

use std::io;
use std::num::NonZeroU16;
use std::sync::Arc;

use sinews_engine::{DatagramSocket, Listener};
use sinews_http::h3;
use sinews_quic::QuicEndpoint;

use super::Server;
use super::bind_error::{BindError, BindFault};
use crate::listen::{BoundAddress, ListenTarget, ListenerProtocol};
use crate::worker::QuicRouting;
use crate::worker::process_link::ProcessLink;

/// The sockets of one thread, each with its endpoint. A socket that is bound late is absent.
pub(super) type ThreadEndpoints = Vec<(Option<DatagramSocket>, QuicEndpoint)>;

/// Free ports of TCP to try, until one is free for UDP too.
const PORTS_TRIED: usize = 8;

impl Server {
    /// Creates the routing of datagrams, which continues that of the predecessor.
    pub(super) fn routing(&mut self) -> Result<Arc<QuicRouting>, BindError> {
        let link = self.inherited.take_datagrams().map(ProcessLink::from_fd).transpose();
        let link = link.map_err(|error| BindError { fault: BindFault::Loop, error })?;
        Ok(Arc::new(QuicRouting::new(self.threads, link.filter(|_| self.http.http3))))
    }

    /// Binds an address for TCP and, with HTTP/3, for UDP: for each thread a socket, or none if
    /// [`LateSockets`](super::late::LateSockets) binds it.
    pub(super) fn bind_address(
        &self,
        target: &ListenTarget,
        protocol: &mut ListenerProtocol,
        mut inherited: Vec<Listener>,
    ) -> io::Result<(BoundAddress, Vec<Option<DatagramSocket>>)> {
        let is_any_port = matches!(target, ListenTarget::Tcp(address) if address.port() == 0);
        let is_late = !inherited.is_empty();
        for attempt in 1.. {
            let bound = target.bind(self.threads, std::mem::take(&mut inherited))?;
            let Some(address) = bound.address.filter(|_| self.http.http3 && protocol.carries_http3()) else {
                return Ok((bound, Vec::new()));
            };
            let bind = |_| if is_late { Ok(None) } else { DatagramSocket::bind(address).map(Some) };
            let sockets: io::Result<Vec<Option<DatagramSocket>>> = (0..self.threads).map(bind).collect();
            match sockets {
                Ok(sockets) => {
                    protocol.http3_port =
                        self.http.http3_announced_port.or_else(|| NonZeroU16::new(address.port()));
                    return Ok((bound, sockets));
                }
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse && is_any_port && attempt < PORTS_TRIED => {}
                Err(error) => return Err(io::Error::new(error.kind(), format!("UDP, for HTTP/3: {error}"))),
            }
        }
        unreachable!("the loop returns after the last attempt")
    }

    /// Creates an endpoint of a thread for a listener with TLS.
    pub(super) fn endpoint(
        &self,
        protocol: &ListenerProtocol,
        routing: &QuicRouting,
        thread: usize,
    ) -> io::Result<QuicEndpoint> {
        let tls = protocol.tls.as_ref().ok_or_else(|| io::Error::other("HTTP/3 requires TLS"))?;
        let http = &self.http;
        let limits = http.http3_limits.quic().with_handshake_timeout(http.head_timeout);
        let config = h3::Config::new()
            .with_head(http.head)
            .with_max_streams(http.http3_limits.max_streams)
            .with_max_sessions(http.http3_limits.max_sessions)
            .with_extended_connect(true);
        let worker = u8::try_from(thread).map_err(|_| io::Error::other("HTTP/3 permits 256 threads"))?;
        QuicEndpoint::new(tls.http3(), config, limits, routing.routes().clone(), routing.route(worker))
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))
    }
}
