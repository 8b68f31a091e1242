//! Connecting to a URL with the sockets of compio.

use std::future::{Future, IntoFuture};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::time::Instant;

use compio::net::{TcpSocket, TcpStream, ToSocketAddrsAsync as _};
use compio::time::sleep;

use super::{Compio, websocket, within};
use crate::client::dial::{self, AddressesError, Network, OpenedTransport};
use crate::client::exchange::WaitError;
use crate::client::race::{STAGGER, race};
use crate::client::{Connect, ConnectError, OverTls, Response, over_tls};
use crate::compio::stream::Stream;
use crate::compio::transport::SocketTransport as _;
use crate::compio::transport_io::TransportIo;
use crate::compio::websocket::WebSocket;
#[cfg(any(feature = "rustls", feature = "native-tls"))]
use crate::tls::TlsLibrary;
use crate::tls::{Tls, TlsError};

impl Connect<Compio> {
    /// Connects, and also returns the server's response.
    ///
    /// TLS uses rustls; a connector of native-tls is [`TlsError::Setup`] here.
    ///
    /// A dropped future closes the sockets that it has opened; a name lookup in progress ends by itself.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn open(self) -> Result<(WebSocket<Stream>, Response), ConnectError> {
        let OpenedTransport { io, handshake, config } =
            dial::open::<Compio>(self.settings, self.network).await?;
        Ok(websocket(io, handshake, config))
    }
}

over_tls!(Compio, TcpStream);

impl Connect<OverTls<Compio, TcpStream>> {
    /// Completes TLS and the handshake, and also returns the server's response. TLS uses rustls.
    ///
    /// A dropped future drops the socket.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn open(self) -> Result<(WebSocket<Stream>, Response), ConnectError> {
        let OpenedTransport { io, handshake, config } =
            dial::open_over::<Compio>(self.settings, self.network, self.runtime.tcp).await?;
        Ok(websocket(io, handshake, config))
    }
}

impl IntoFuture for Connect<OverTls<Compio, TcpStream>> {
    type Output = Result<WebSocket<Stream>, ConnectError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.open().await.map(|(ws, _)| ws) })
    }
}

impl IntoFuture for Connect<Compio> {
    type Output = Result<WebSocket<Stream>, ConnectError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.open().await.map(|(ws, _)| ws) })
    }
}

impl Network for Compio {
    type Tcp = TcpStream;
    type Stream = Stream;
    type TcpIo = TransportIo<TcpStream>;
    type StreamIo = TransportIo<Stream>;

    async fn resolve(host: &str, port: u16, until: Option<Instant>) -> Result<Vec<SocketAddr>, WaitError> {
        within(until, (host, port).to_socket_addrs_async()).await.map(Iterator::collect)
    }

    async fn connect(
        addresses: Vec<SocketAddr>,
        local: Option<IpAddr>,
        until: Option<Instant>,
    ) -> Result<TcpStream, AddressesError> {
        let dial = |address| connect_to(address, local);
        let racing = async { Ok(race(addresses, dial, || sleep(STAGGER)).await) };
        let raced = within(until, racing).await.map_err(|_| AddressesError::TimedOut)?;
        raced.map_err(AddressesError::Failed)
    }

    fn set_nodelay(tcp: &TcpStream, nodelay: bool) -> io::Result<()> {
        tcp.set_nodelay(nodelay)
    }

    fn tcp_io(tcp: TcpStream) -> TransportIo<TcpStream> {
        TransportIo::open(tcp)
    }

    fn into_tcp(io: TransportIo<TcpStream>) -> Option<TcpStream> {
        // No operation is in flight between two rounds of an exchange, so that all further bytes are still in the
        // socket.
        io.is_idle().then(|| TcpStream::socket(&io.sink).clone())
    }

    fn stream_io(stream: Stream) -> TransportIo<Stream> {
        TransportIo::open(stream)
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
        within(until, async { Ok(secure(tls, tcp, host).await) }).await
    }
}

async fn connect_to(address: SocketAddr, local: Option<IpAddr>) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4().await? } else { TcpSocket::new_v6().await? };
    if let Some(local) = local {
        socket.bind(SocketAddr::new(local, 0)).await?;
    }
    socket.connect(address).await
}

#[cfg_attr(not(feature = "rustls"), allow(clippy::unused_async, unused_variables, unreachable_code))]
async fn secure(tls: Tls, tcp: TcpStream, host: &str) -> Result<Stream, TlsError> {
    match tls.0 {
        #[cfg(feature = "rustls")]
        TlsLibrary::Rustls(config) => {
            let name =
                rustls::pki_types::ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Name)?;
            let stream = crate::compio::TlsStream::connect(tcp, config, name).await;
            let stream = stream.map_err(TlsError::Handshake)?;
            crate::tls::check_alpn(stream.connection().alpn_protocol())?;
            Ok(Stream::Tls(Box::new(stream)))
        }
        #[cfg(all(feature = "http2-client", feature = "tokio-rustls"))]
        TlsLibrary::Http2(_) => Err(TlsError::Unavailable),
        #[cfg(feature = "native-tls")]
        TlsLibrary::Native(_) => {
            let why = "on compio, Connect::tls requires a configuration of rustls";
            Err(TlsError::Setup(why.to_owned()))
        }
    }
}
