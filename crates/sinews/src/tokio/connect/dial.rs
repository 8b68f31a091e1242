//! The path to a server: names, addresses, proxies, TLS, redirects.

use std::future::{Future, IntoFuture};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;

use tokio::net::{TcpSocket, TcpStream};
use tokio::time::sleep;

use super::{Broken, Deadline, Tokio, handshake, within};
use crate::client::journey::{Journey, Network};
use crate::client::proxy::{Proxy, ProxyKind};
use crate::client::race::{STAGGER, order, race};
use crate::client::target::authority;
use crate::client::{Connect, ConnectError, Phase, ProxyError, Response};
#[cfg(any(feature = "rustls", feature = "native-tls"))]
use crate::tls::Library;
use crate::tls::{Tls, TlsError};
use crate::tokio::{Stream, WebSocket};

impl Connect<Tokio> {
    /// Connects, and also returns the server's response.
    ///
    /// A dropped future closes the sockets that it has opened; a name lookup in progress ends by itself.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn open(self) -> Result<(WebSocket<Stream>, Response), ConnectError> {
        let deadline = Deadline::new(self.settings.timeout);
        let mut journey = Journey::new(self.settings, self.network)?;
        loop {
            let upgrade = journey.upgrade()?;
            let stream = dial(&journey, &deadline).await?;
            let config = journey.settings().config.clone();
            match handshake(stream, upgrade, &journey.target, config, &deadline).await {
                Err(ConnectError::Rejected(response)) => journey.follow(response)?,
                done => return done,
            }
        }
    }
}

impl Connect<Tokio> {
    /// Connects to the server without the handshake: proxy, TCP and TLS, and so no redirects. For a handshake or a
    /// protocol of your own; pass the stream to [`over`](Self::over) to continue.
    ///
    /// A dropped future closes the sockets that it has opened.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn dial(self) -> Result<Stream, ConnectError> {
        let deadline = Deadline::new(self.settings.timeout);
        dial(&Journey::new(self.settings, self.network)?, &deadline).await
    }
}

impl IntoFuture for Connect<Tokio> {
    type Output = Result<WebSocket<Stream>, ConnectError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.open().await.map(|(ws, _)| ws) })
    }
}

/// A transport to the server.
async fn dial(journey: &Journey, deadline: &Deadline) -> Result<Stream, ConnectError> {
    let Journey { target, network, .. } = journey;
    let name = journey.server_name();
    let fault = |error| ConnectError::Tls { host: name.to_owned(), error };
    // Before anything is sent: a missing feature is an error without connecting.
    let tls = match target.secure {
        true => Some(network.tls.clone().map_or_else(Tls::new, Ok).map_err(fault)?),
        false => None,
    };
    let tcp = match &journey.proxy {
        None => {
            let (host, port) = journey.destination();
            tcp(host, port, network, deadline).await?
        }
        Some(proxy) => tunnel(proxy, journey, deadline).await?,
    };
    let Some(tls) = tls else { return Ok(Stream::Plain(tcp)) };
    let secured = async { Ok(secure(tls, tcp, name).await) };
    match within::<_, ()>(deadline.at, secured).await {
        Ok(secured) => secured.map_err(fault),
        Err(_) => Err(deadline.over(Phase::Tls, &target.authority())),
    }
}

/// A connection to the server through a proxy.
async fn tunnel(proxy: &Proxy, journey: &Journey, deadline: &Deadline) -> Result<TcpStream, ConnectError> {
    let destination = journey.destination();
    let (server, port) = destination;
    // Errors that need no proxy are returned before it is contacted.
    let host = match proxy.kind {
        ProxyKind::Socks5 => {
            let found = resolve(server, port, None, deadline).await?;
            found.first().map_or_else(|| server.to_owned(), |address| address.ip().to_string())
        }
        ProxyKind::Http | ProxyKind::Socks5h => server.to_owned(),
    };
    let mut io = tcp(&proxy.host, proxy.port, &journey.network, deadline).await?;
    let mut received = Vec::new();
    let refused = |error| proxy.refused(error);
    let leg = (Phase::Proxy, &*proxy.authority());
    match proxy.kind {
        ProxyKind::Http => {
            let machine = proxy.tunnel(destination, journey.settings());
            deadline.exchange(&mut io, &mut received, machine, leg, refused).await?;
        }
        ProxyKind::Socks5 | ProxyKind::Socks5h => {
            let machine = proxy.socks5(&host, port)?;
            deadline.exchange(&mut io, &mut received, machine, leg, refused).await?;
        }
    }
    if !received.is_empty() {
        return Err(proxy.refused(ProxyError::EarlyBytes));
    }
    Ok(io)
}

/// A TCP connection to one of the addresses of a host.
async fn tcp(
    host: &str,
    port: u16,
    network: &Network,
    deadline: &Deadline,
) -> Result<TcpStream, ConnectError> {
    let peer = authority(host, port);
    let addresses = resolve(host, port, network.local, deadline).await?;
    let dial = |address| connect_to(address, network.local);
    let racing = async { Ok(race(addresses, dial, || sleep(STAGGER)).await) };
    let raced = within::<_, ()>(deadline.at, racing).await;
    let tcp = match raced {
        Ok(Ok(tcp)) => tcp,
        Ok(Err(Some((address, error)))) => {
            let literal = host.parse::<IpAddr>().is_ok();
            let address = if literal { peer } else { format!("{peer} ({address})") };
            return Err(ConnectError::Tcp { address, error });
        }
        Ok(Err(None)) => {
            return Err(ConnectError::Tcp { address: peer, error: io::ErrorKind::NotFound.into() });
        }
        Err(_) => return Err(deadline.over(Phase::Connect, &peer)),
    };
    // A socket that rejects this option works all the same.
    let _ = tcp.set_nodelay(network.nodelay);
    Ok(tcp)
}

async fn connect_to(address: SocketAddr, local: Option<IpAddr>) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(local) = local {
        socket.bind(SocketAddr::new(local, 0))?;
    }
    socket.connect(address).await
}

/// The addresses of a host in the order in which to try them, at least one.
async fn resolve(
    host: &str,
    port: u16,
    local: Option<IpAddr>,
    deadline: &Deadline,
) -> Result<Vec<SocketAddr>, ConnectError> {
    let fault = |error| ConnectError::Resolve { host: host.to_owned(), error };
    let found = match host.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, port)],
        Err(_) => match within::<_, ()>(deadline.at, tokio::net::lookup_host((host, port))).await {
            Ok(found) => found.collect(),
            Err(Broken::Io(error)) => return Err(fault(error)),
            Err(_) => return Err(deadline.over(Phase::Resolve, host)),
        },
    };
    let ordered = order(found, local);
    if ordered.is_empty() {
        let family = "none in the address family of Connect::local_address";
        let why = if local.is_some() { family } else { "none" };
        return Err(fault(io::Error::new(io::ErrorKind::NotFound, why)));
    }
    Ok(ordered)
}

#[cfg_attr(
    not(any(feature = "tokio-rustls", feature = "native-tls")),
    allow(clippy::unused_async, unused_variables, unreachable_code)
)]
async fn secure(tls: Tls, tcp: TcpStream, host: &str) -> Result<Stream, TlsError> {
    match tls.0 {
        #[cfg(feature = "tokio-rustls")]
        Library::Rustls(config) => {
            let name =
                rustls::pki_types::ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Name)?;
            let connector = tokio_rustls::TlsConnector::from(config);
            let stream = connector.connect(name, tcp).await.map_err(TlsError::Handshake)?;
            crate::tls::check_alpn(stream.get_ref().1.alpn_protocol())?;
            Ok(Stream::Rustls(Box::new(stream)))
        }
        #[cfg(all(feature = "rustls", not(feature = "tokio-rustls")))]
        Library::Rustls(_) => Err(TlsError::Unavailable),
        #[cfg(feature = "native-tls")]
        Library::Native(connector) => {
            let connector = tokio_native_tls::TlsConnector::from(connector);
            let stream = connector.connect(host, tcp).await;
            let stream = stream.map_err(|error| TlsError::Handshake(io::Error::other(error)))?;
            Ok(Stream::NativeTls(Box::new(stream)))
        }
    }
}
