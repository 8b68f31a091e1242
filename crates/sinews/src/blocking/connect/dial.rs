//! The path to a server: its addresses in order.

use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use super::{Blocking, Deadline};
use crate::blocking::WebSocket;
use crate::client::race::order;
use crate::client::target::{Target, authority};
use crate::client::{Connect, ConnectError, Phase, Response, TlsError};

/// Minimum time for each of several addresses, while that much is left: TCP retries after a second.
const ADDRESS_MIN: Duration = Duration::from_secs(2);

impl Connect<Blocking> {
    /// Connects to a `ws` URL, and returns the WebSocket and the server's response. The socket has `TCP_NODELAY` and
    /// no timeouts: [set timeouts](crate::blocking#time).
    ///
    /// The addresses of a name are tried in order, each for its share of [`Connect::timeout`]. Name resolution takes
    /// as long as the system needs. Proxies and redirects are not supported.
    ///
    /// # Errors
    /// See [`ConnectError`]. [`ConnectError::Tls`] for a `wss` URL: connect a TLS stream, and pass it to `over`.
    pub fn open(self) -> Result<(WebSocket<TcpStream>, Response), ConnectError> {
        let deadline = Deadline::new(self.settings.timeout);
        let target = self.settings.target()?;
        if target.secure {
            let why = "sinews::blocking does not open TLS streams: pass a TLS stream to Connect::over";
            return Err(ConnectError::Tls { host: target.host, error: TlsError::Setup(why.to_owned()) });
        }
        let upgrade = self.settings.upgrade(&target)?;
        let mut io = tcp(&target, &deadline)?;
        let opened = deadline.handshake(&mut io, upgrade, &target, bound)?;
        let peer = target.authority();
        bound(&mut io, None).map_err(|error| ConnectError::Transport {
            phase: Phase::Handshake,
            peer,
            error,
        })?;
        let (ws, response) = opened.into_websocket(io, self.settings.config);
        Ok((ws.with_shutdown(|tcp| tcp.shutdown(Shutdown::Write)), response))
    }
}

/// A TCP connection to one of the addresses of a server.
fn tcp(target: &Target, deadline: &Deadline) -> Result<TcpStream, ConnectError> {
    let peer = authority(&target.host, target.port);
    let addresses = resolve(&target.host, target.port)?;
    let mut fault = None;
    for (at, &address) in addresses.iter().enumerate() {
        let connected = match deadline.at.map(|until| share(until, addresses.len() - at)) {
            Some(Duration::ZERO) => break,
            Some(share) => TcpStream::connect_timeout(&address, share),
            None => TcpStream::connect(address),
        };
        match connected {
            Ok(tcp) => {
                // A socket that rejects this option works all the same.
                let _ = tcp.set_nodelay(true);
                return Ok(tcp);
            }
            Err(error) => fault = Some((address, error)),
        }
    }
    match fault {
        Some((address, error)) if deadline.at.is_none_or(|until| Instant::now() < until) => {
            let literal = target.host.parse::<IpAddr>().is_ok();
            let address = if literal { peer } else { format!("{peer} ({address})") };
            Err(ConnectError::Tcp { address, error })
        }
        _ => Err(deadline.over(Phase::Connect, &peer)),
    }
}

/// The share of the remaining time for one of this many addresses.
fn share(until: Instant, addresses: usize) -> Duration {
    let left = until.saturating_duration_since(Instant::now());
    let addresses = u32::try_from(addresses).unwrap_or(u32::MAX).max(1);
    (left / addresses).max(ADDRESS_MIN).min(left)
}

/// The addresses of a host in the order in which to try them, at least one.
fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, ConnectError> {
    let fault = |error| ConnectError::Resolve { host: host.to_owned(), error };
    let found = match host.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, port)],
        Err(_) => order((host, port).to_socket_addrs().map_err(fault)?, None),
    };
    if found.is_empty() {
        return Err(fault(io::Error::new(io::ErrorKind::NotFound, "none")));
    }
    Ok(found)
}

/// Bounds the next read or write.
fn bound(tcp: &mut TcpStream, left: Option<Duration>) -> io::Result<()> {
    tcp.set_read_timeout(left)?;
    tcp.set_write_timeout(left)
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
