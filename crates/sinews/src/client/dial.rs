//! The path to a server on any runtime: names, addresses, proxies, TLS, redirects.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use sinews_proto::Config;

use super::attempt::ConnectAttempt;
use super::deadline::{CompletedHandshake, ConnectDeadline};
use super::error::{ConnectError, ConnectPhase};
use super::exchange::{ExchangeIo, WaitError};
use super::proxy::{Proxy, ProxyChoice, ProxyKind};
use super::proxy_error::ProxyError;
use super::race::order;
use super::settings::{ConnectSettings, NetworkSettings};
use super::target::authority;
use crate::tls::{Tls, TlsError};

/// The sockets of a runtime. The futures of blocking sockets are ready at once.
pub(crate) trait Network {
    /// A TCP connection.
    type Tcp;
    /// TCP, or TLS over TCP.
    type Stream;
    /// A TCP connection during the exchange with a proxy.
    type TcpIo: ExchangeIo;
    /// A stream during the opening handshake.
    type StreamIo: ExchangeIo;

    /// Resolves a name, in the order of the system.
    async fn resolve(host: &str, port: u16, until: Option<Instant>) -> Result<Vec<SocketAddr>, WaitError>;

    /// Connects to one of these addresses, which are in the order in which to try them.
    async fn connect(
        addresses: Vec<SocketAddr>,
        local: Option<IpAddr>,
        until: Option<Instant>,
    ) -> Result<Self::Tcp, AddressesError>;

    fn set_nodelay(tcp: &Self::Tcp, nodelay: bool) -> io::Result<()>;

    fn tcp_io(tcp: Self::Tcp) -> Self::TcpIo;

    /// The connection after an exchange; `None`: bytes that were received behind the exchange are lost.
    fn into_tcp(io: Self::TcpIo) -> Option<Self::Tcp>;

    fn stream_io(stream: Self::Stream) -> Self::StreamIo;

    fn plain(tcp: Self::Tcp) -> Self::Stream;

    /// The TLS settings of a `wss` URL. Called before anything is sent.
    fn tls(network: &NetworkSettings) -> Result<Tls, TlsError> {
        network.tls.clone().map_or_else(Tls::new, Ok)
    }

    /// The TLS handshake.
    async fn secure(
        tls: Tls,
        tcp: Self::Tcp,
        host: &str,
        until: Option<Instant>,
    ) -> Result<Result<Self::Stream, TlsError>, WaitError>;
}

/// Why no address of a host was reached.
#[derive(Debug)]
pub(crate) enum AddressesError {
    /// All attempts failed; the last error.
    Failed(Option<(SocketAddr, io::Error)>),
    /// The deadline expired.
    TimedOut,
}

/// A stream after the opening handshake.
pub(crate) struct OpenedTransport<I> {
    pub(crate) io: I,
    pub(crate) handshake: CompletedHandshake,
    pub(crate) config: Arc<Config>,
}

/// Connects to the server, makes the opening handshake, and follows redirects.
pub(crate) async fn open<N: Network>(
    settings: ConnectSettings,
    network: NetworkSettings,
) -> Result<OpenedTransport<N::StreamIo>, ConnectError> {
    let deadline = ConnectDeadline::new(settings.timeout, N::StreamIo::now());
    let mut attempt = ConnectAttempt::new(settings, network)?;
    loop {
        let upgrade = attempt.upgrade()?;
        let mut io = N::stream_io(transport::<N>(&attempt, &deadline).await?);
        match deadline.handshake(&mut io, upgrade, &attempt.target).await {
            Ok(handshake) => {
                return Ok(OpenedTransport { io, handshake, config: attempt.settings().config.clone() });
            }
            Err(ConnectError::Rejected(response)) => attempt.follow(response)?,
            Err(error) => return Err(error),
        }
    }
}

/// Connects to the server without the opening handshake.
#[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "only Tokio has a public `dial`"))]
pub(crate) async fn dial<N: Network>(
    settings: ConnectSettings,
    network: NetworkSettings,
) -> Result<N::Stream, ConnectError> {
    let deadline = ConnectDeadline::new(settings.timeout, N::StreamIo::now());
    transport::<N>(&ConnectAttempt::new(settings, network)?, &deadline).await
}

/// Makes TLS, if the URL requires it, and the opening handshake over a TCP connection of the caller.
pub(crate) async fn open_over<N: Network>(
    settings: ConnectSettings,
    network: NetworkSettings,
    tcp: N::Tcp,
) -> Result<OpenedTransport<N::StreamIo>, ConnectError> {
    let deadline = ConnectDeadline::new(settings.timeout, N::StreamIo::now());
    let network = NetworkSettings { proxy: ProxyChoice::None, ..network };
    let attempt = ConnectAttempt::new(settings, network)?;
    let upgrade = attempt.upgrade()?;
    let tls = tls::<N>(&attempt)?;
    let mut io = N::stream_io(secure::<N>(tls, tcp, &attempt, &deadline).await?);
    let handshake = deadline.handshake(&mut io, upgrade, &attempt.target).await?;
    Ok(OpenedTransport { io, handshake, config: attempt.settings().config.clone() })
}

/// A transport to the server.
async fn transport<N: Network>(
    attempt: &ConnectAttempt,
    deadline: &ConnectDeadline,
) -> Result<N::Stream, ConnectError> {
    // Before anything is sent: a missing feature is an error without connecting.
    let tls = tls::<N>(attempt)?;
    let tcp = match &attempt.proxy {
        None => {
            let (host, port) = attempt.destination();
            tcp::<N>(host, port, &attempt.network, deadline).await?
        }
        Some(proxy) => tunnel::<N>(proxy, attempt, deadline).await?,
    };
    secure::<N>(tls, tcp, attempt, deadline).await
}

/// The TLS settings; `None`: the URL is `ws`.
fn tls<N: Network>(attempt: &ConnectAttempt) -> Result<Option<Tls>, ConnectError> {
    let tls = attempt.target.secure.then(|| N::tls(&attempt.network));
    tls.transpose().map_err(|error| tls_error(attempt, error))
}

/// The transport over a TCP connection: TLS, or none.
async fn secure<N: Network>(
    tls: Option<Tls>,
    tcp: N::Tcp,
    attempt: &ConnectAttempt,
    deadline: &ConnectDeadline,
) -> Result<N::Stream, ConnectError> {
    let Some(tls) = tls else { return Ok(N::plain(tcp)) };
    match N::secure(tls, tcp, attempt.server_name(), deadline.at).await {
        Ok(secured) => secured.map_err(|error| tls_error(attempt, error)),
        Err(_) => Err(deadline.timed_out(ConnectPhase::Tls, &attempt.target.authority())),
    }
}

fn tls_error(attempt: &ConnectAttempt, error: TlsError) -> ConnectError {
    ConnectError::Tls { host: attempt.server_name().to_owned(), error }
}

/// A connection to the server through a proxy.
async fn tunnel<N: Network>(
    proxy: &Proxy,
    attempt: &ConnectAttempt,
    deadline: &ConnectDeadline,
) -> Result<N::Tcp, ConnectError> {
    let (server, port) = attempt.destination();
    // Errors that need no proxy are returned before it is contacted.
    let host = match proxy.kind {
        ProxyKind::Socks5 => {
            let found = resolve::<N>(server, port, None, deadline).await?;
            found.first().map_or_else(|| server.to_owned(), |address| address.ip().to_string())
        }
        ProxyKind::Http | ProxyKind::Socks5h => server.to_owned(),
    };
    let mut io = N::tcp_io(tcp::<N>(&proxy.host, proxy.port, &attempt.network, deadline).await?);
    let mut received = Vec::new();
    let rejected = |error| proxy.rejected(error);
    let phase = ConnectPhase::Proxy;
    let peer = &*proxy.authority();
    match proxy.kind {
        ProxyKind::Http => {
            let machine = proxy.tunnel(server, port, attempt.settings());
            deadline.exchange(&mut io, &mut received, machine, phase, peer, rejected).await?;
        }
        ProxyKind::Socks5 | ProxyKind::Socks5h => {
            let machine = proxy.socks5(&host, port)?;
            deadline.exchange(&mut io, &mut received, machine, phase, peer, rejected).await?;
        }
    }
    match N::into_tcp(io) {
        Some(tcp) if received.is_empty() => Ok(tcp),
        _ => Err(proxy.rejected(ProxyError::EarlyBytes)),
    }
}

/// A TCP connection to one of the addresses of a host.
async fn tcp<N: Network>(
    host: &str,
    port: u16,
    network: &NetworkSettings,
    deadline: &ConnectDeadline,
) -> Result<N::Tcp, ConnectError> {
    let peer = authority(host, port);
    let addresses = resolve::<N>(host, port, network.local, deadline).await?;
    match N::connect(addresses, network.local, deadline.at).await {
        Ok(tcp) => {
            // A socket that rejects this option works all the same.
            let _ = N::set_nodelay(&tcp, network.nodelay);
            Ok(tcp)
        }
        Err(AddressesError::Failed(Some((address, error)))) => {
            let literal = host.parse::<IpAddr>().is_ok();
            let address = if literal { peer } else { format!("{peer} ({address})") };
            Err(ConnectError::Tcp { address, error })
        }
        Err(AddressesError::Failed(None)) => {
            Err(ConnectError::Tcp { address: peer, error: io::ErrorKind::NotFound.into() })
        }
        Err(AddressesError::TimedOut) => Err(deadline.timed_out(ConnectPhase::Connect, &peer)),
    }
}

/// The addresses of a host in the order in which to try them, at least one.
async fn resolve<N: Network>(
    host: &str,
    port: u16,
    local: Option<IpAddr>,
    deadline: &ConnectDeadline,
) -> Result<Vec<SocketAddr>, ConnectError> {
    let failed = |error| ConnectError::Resolve { host: host.to_owned(), error };
    let found = match host.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, port)],
        Err(_) => match N::resolve(host, port, deadline.at).await {
            Ok(found) => found,
            Err(WaitError::Io(error)) => return Err(failed(error)),
            Err(WaitError::TimedOut) => return Err(deadline.timed_out(ConnectPhase::Resolve, host)),
        },
    };
    let ordered = order(found, local);
    if ordered.is_empty() {
        let family = "none in the address family of Connect::local_address";
        let why = if local.is_some() { family } else { "none" };
        return Err(failed(io::Error::new(io::ErrorKind::NotFound, why)));
    }
    Ok(ordered)
}
