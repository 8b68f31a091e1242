//! Connecting to a URL with the sockets of the standard library.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use super::{Blocking, BlockingIo, run_ready, websocket};
use crate::blocking::stream::{Stream, bound, secure};
use crate::blocking::websocket::WebSocket;
use crate::client::dial::{self, AddressesError, Network, OpenedTransport};
use crate::client::exchange::WaitError;
use crate::client::proxy::ProxyChoice;
use crate::client::settings::NetworkSettings;
use crate::client::{Connect, ConnectError, ConnectPhase, OverTls, Response, over_tls};
use crate::tls::{Tls, TlsError};

/// Minimum time for each of several addresses, while that much is left: TCP retries after a second.
const ADDRESS_MIN: Duration = Duration::from_secs(2);

impl Connect<Blocking> {
    /// Connects to a `ws` or `wss` URL, and returns the WebSocket and the server's response. The socket has
    /// `TCP_NODELAY` and no timeouts: [set timeouts](crate::blocking#time).
    ///
    /// The addresses of a name are tried in order, each for its share of [`Connect::timeout`]. Name resolution takes
    /// as long as the system needs. Proxies and redirects are not supported.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn open(self) -> Result<(WebSocket<Stream>, Response), ConnectError> {
        let peer = self.settings.target()?.authority();
        let network = NetworkSettings { proxy: ProxyChoice::None, ..self.network };
        opened(run_ready(dial::open::<Blocking>(self.settings, network))?, &peer, SocketTimeouts::default())
    }
}

over_tls!(Blocking, TcpStream);

impl Connect<OverTls<Blocking, TcpStream>> {
    /// Completes TLS and the handshake, and returns the WebSocket and the server's response.
    /// [`Connect::timeout`] applies to both; the socket then has its own timeouts again.
    ///
    /// # Errors
    /// See [`ConnectError`]. The socket is then dropped.
    pub fn open(self) -> Result<(WebSocket<Stream>, Response), ConnectError> {
        let peer = self.settings.target()?.authority();
        let OverTls { tcp, .. } = self.runtime;
        let timeouts = SocketTimeouts::from_socket(&tcp).map_err(|error| transport_error(&peer, error))?;
        opened(run_ready(dial::open_over::<Blocking>(self.settings, self.network, tcp))?, &peer, timeouts)
    }
}

/// The timeouts of a socket outside of the handshake.
#[derive(Default)]
struct SocketTimeouts {
    read: Option<Duration>,
    write: Option<Duration>,
}

impl SocketTimeouts {
    fn from_socket(tcp: &TcpStream) -> io::Result<Self> {
        Ok(Self { read: tcp.read_timeout()?, write: tcp.write_timeout()? })
    }

    fn set(&self, tcp: &TcpStream) -> io::Result<()> {
        tcp.set_read_timeout(self.read)?;
        tcp.set_write_timeout(self.write)
    }
}

fn opened(
    transport: OpenedTransport<BlockingIo<Stream>>,
    peer: &str,
    timeouts: SocketTimeouts,
) -> Result<(WebSocket<Stream>, Response), ConnectError> {
    let OpenedTransport { io, handshake, config } = transport;
    timeouts.set(io.io.tcp()).map_err(|error| transport_error(peer, error))?;
    let (ws, response) = websocket(io.io, handshake, config);
    Ok((ws.with_shutdown(Stream::shutdown), response))
}

fn transport_error(peer: &str, error: io::Error) -> ConnectError {
    ConnectError::Transport { phase: ConnectPhase::Handshake, peer: peer.to_owned(), error }
}

impl Network for Blocking {
    type Tcp = TcpStream;
    type Stream = Stream;
    type TcpIo = BlockingIo<TcpStream>;
    type StreamIo = BlockingIo<Stream>;

    async fn resolve(host: &str, port: u16, _: Option<Instant>) -> Result<Vec<SocketAddr>, WaitError> {
        (host, port).to_socket_addrs().map(Iterator::collect).map_err(WaitError::Io)
    }

    /// Tries one address after another, each for its share of the remaining time.
    async fn connect(
        addresses: Vec<SocketAddr>,
        _: Option<IpAddr>,
        until: Option<Instant>,
    ) -> Result<TcpStream, AddressesError> {
        let mut last_error = None;
        for (at, &address) in addresses.iter().enumerate() {
            let connected = match until.map(|until| share(until, addresses.len() - at)) {
                Some(Duration::ZERO) => break,
                Some(share) => TcpStream::connect_timeout(&address, share),
                None => TcpStream::connect(address),
            };
            match connected {
                Ok(tcp) => return Ok(tcp),
                Err(error) => last_error = Some((address, error)),
            }
        }
        let in_time = until.is_none_or(|until| Instant::now() < until);
        Err(if in_time { AddressesError::Failed(last_error) } else { AddressesError::TimedOut })
    }

    fn set_nodelay(tcp: &TcpStream, nodelay: bool) -> io::Result<()> {
        tcp.set_nodelay(nodelay)
    }

    fn tcp_io(io: TcpStream) -> BlockingIo<TcpStream> {
        BlockingIo { io, bound: |tcp, left| bound(tcp, left) }
    }

    fn into_tcp(io: BlockingIo<TcpStream>) -> Option<TcpStream> {
        Some(io.io)
    }

    fn stream_io(io: Stream) -> BlockingIo<Stream> {
        BlockingIo { io, bound: Stream::bound }
    }

    fn plain(tcp: TcpStream) -> Stream {
        Stream::Plain(tcp)
    }

    async fn secure(
        tls: Tls,
        tcp: TcpStream,
        host: &str,
        until: Option<Instant>,
    ) -> Result<Result<Stream, TlsError>, WaitError> {
        secure(tls, tcp, host, until)
    }
}

/// The share of the remaining time for one of this many addresses.
fn share(until: Instant, addresses: usize) -> Duration {
    let left = until.saturating_duration_since(Instant::now());
    let addresses = u32::try_from(addresses).unwrap_or(u32::MAX).max(1);
    (left / addresses).max(ADDRESS_MIN).min(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_time_is_shared_among_addresses() {
        let until = Instant::now() + Duration::from_secs(60);
        let near = |share: Duration, secs: u64| {
            assert!(share <= Duration::from_secs(secs) && share > Duration::from_secs(secs) / 2, "{share:?}");
        };
        near(share(until, 1), 60);
        near(share(until, 3), 20);
        assert_eq!(share(until, 100), ADDRESS_MIN);
        let until = Instant::now() + Duration::from_secs(1);
        near(share(until, 100), 1);
        assert_eq!(share(Instant::now(), 2), Duration::ZERO);
    }
}
