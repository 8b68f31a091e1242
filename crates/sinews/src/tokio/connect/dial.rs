//! Connecting to a URL with the sockets of Tokio.

use std::future::{Future, IntoFuture};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::time::Instant;

use tokio::net::{TcpSocket, TcpStream};
use tokio::time::sleep;

use super::{Tokio, TokioIo, websocket, within};
use crate::client::dial::{self, AddressesError, Network, OpenedTransport};
use crate::client::exchange::WaitError;
use crate::client::race::{STAGGER, race};
use crate::client::settings::NetworkSettings;
use crate::client::{Connect, ConnectError, OverTls, Response, over_tls};
#[cfg(any(feature = "rustls", feature = "native-tls"))]
use crate::tls::TlsLibrary;
use crate::tls::{Tls, TlsError};
use crate::tokio::stream::Stream;
use crate::tokio::websocket::WebSocket;

impl Connect<Tokio> {
    /// Connects, and also returns the server's response.
    ///
    /// A dropped future closes the sockets that it has opened; a name lookup in progress ends by itself.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn open(self) -> Result<(WebSocket<Stream>, Response), ConnectError> {
        let OpenedTransport { io, handshake, config } =
            dial::open::<Tokio>(self.settings, self.network).await?;
        Ok(websocket(io, handshake, config))
    }

    /// Connects to the server without the handshake: proxy, TCP and TLS, and so no redirects. For a handshake or a
    /// protocol of your own; pass the stream to [`over`](Self::over) to continue.
    ///
    /// A dropped future closes the sockets that it has opened.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn dial(self) -> Result<Stream, ConnectError> {
        dial::dial::<Tokio>(self.settings, self.network).await
    }
}

over_tls!(Tokio, TcpStream);

impl Connect<OverTls<Tokio, TcpStream>> {
    /// Completes TLS and the handshake, and also returns the server's response.
    ///
    /// A dropped future drops the socket.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn open(self) -> Result<(WebSocket<Stream>, Response), ConnectError> {
        let OpenedTransport { io, handshake, config } =
            dial::open_over::<Tokio>(self.settings, self.network, self.runtime.tcp).await?;
        Ok(websocket(io, handshake, config))
    }
}

impl IntoFuture for Connect<OverTls<Tokio, TcpStream>> {
    type Output = Result<WebSocket<Stream>, ConnectError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.open().await.map(|(ws, _)| ws) })
    }
}

impl IntoFuture for Connect<Tokio> {
    type Output = Result<WebSocket<Stream>, ConnectError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.open().await.map(|(ws, _)| ws) })
    }
}

impl Network for Tokio {
    type Tcp = TcpStream;
    type Stream = Stream;
    type TcpIo = TokioIo<TcpStream>;
    type StreamIo = TokioIo<Stream>;

    async fn resolve(host: &str, port: u16, until: Option<Instant>) -> Result<Vec<SocketAddr>, WaitError> {
        within(until, tokio::net::lookup_host((host, port))).await.map(Iterator::collect)
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

    fn tcp_io(tcp: TcpStream) -> TokioIo<TcpStream> {
        TokioIo(tcp)
    }

    fn into_tcp(io: TokioIo<TcpStream>) -> Option<TcpStream> {
        Some(io.0)
    }

    fn stream_io(stream: Stream) -> TokioIo<Stream> {
        TokioIo(stream)
    }

    fn plain(tcp: TcpStream) -> Stream {
        Stream::Plain(tcp)
    }

    fn tls(network: &NetworkSettings) -> Result<Tls, TlsError> {
        Tls::on_tokio(network.tls.as_ref())
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
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(local) = local {
        socket.bind(SocketAddr::new(local, 0))?;
    }
    socket.connect(address).await
}

#[cfg_attr(
    not(any(feature = "tokio-rustls", feature = "native-tls")),
    allow(clippy::unused_async, unused_variables, unreachable_code)
)]
async fn secure(tls: Tls, tcp: TcpStream, host: &str) -> Result<Stream, TlsError> {
    match tls.0 {
        #[cfg(feature = "tokio-rustls")]
        TlsLibrary::Rustls(config) => {
            let name =
                rustls::pki_types::ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Name)?;
            let connector = tokio_rustls::TlsConnector::from(config);
            let stream = connector.connect(name, tcp).await.map_err(TlsError::Handshake)?;
            crate::tls::check_alpn(stream.get_ref().1.alpn_protocol())?;
            Ok(Stream::Rustls(Box::new(stream)))
        }
        #[cfg(all(feature = "http2-client", feature = "tokio-rustls"))]
        TlsLibrary::Http2(config) => {
            let name =
                rustls::pki_types::ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Name)?;
            let connector = tokio_rustls::TlsConnector::from(config);
            let stream = connector.connect(name, tcp).await.map_err(crate::tls::http2_error)?;
            crate::tls::check_http2(stream.get_ref().1.alpn_protocol())?;
            Ok(Stream::Rustls(Box::new(stream)))
        }
        #[cfg(all(feature = "rustls", not(feature = "tokio-rustls")))]
        TlsLibrary::Rustls(_) => Err(TlsError::Unavailable),
        #[cfg(feature = "native-tls")]
        TlsLibrary::Native(connector) => {
            let connector = tokio_native_tls::TlsConnector::from(connector);
            let stream = connector.connect(host, tcp).await;
            let stream = stream.map_err(|error| TlsError::Handshake(io::Error::other(error)))?;
            Ok(Stream::NativeTls(Box::new(stream)))
        }
    }
}
