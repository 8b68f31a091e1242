//! Outgoing connections: remote address, local address, and socket.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::ConnId;

/// The remote end of an outgoing connection, see [`Io::connect`](crate::Io::connect).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Remote {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A Unix socket at a path of the file system.
    Unix(Arc<Path>),
}

impl From<SocketAddr> for Remote {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl From<Arc<Path>> for Remote {
    fn from(path: Arc<Path>) -> Self {
        Self::Unix(path)
    }
}

/// Options of an outgoing connection.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    local: Option<SocketAddr>,
    nodelay: bool,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self { local: None, nodelay: true }
    }
}

impl ConnectOptions {
    /// The local address; with port 0 the kernel chooses the port. Default: the kernel chooses both.
    ///
    /// On Linux it chooses the port when the socket connects, so that connections to several servers can
    /// have the same local address and port.
    ///
    /// One address has some 28,000 ephemeral ports (`net.ipv4.ip_local_port_range`). Spread more
    /// connections to one server over several addresses. No effect for a Unix socket.
    #[must_use]
    pub fn with_local(mut self, address: SocketAddr) -> Self {
        self.local = Some(address);
        self
    }

    /// Whether small segments are sent without waiting for acknowledgments (`TCP_NODELAY`). Default: yes,
    /// for the reason given at [`ListenOptions::with_nodelay`](crate::ListenOptions::with_nodelay).
    #[must_use]
    pub fn with_nodelay(mut self, yes: bool) -> Self {
        self.nodelay = yes;
        self
    }
}

/// A requested connection that is not started yet.
#[derive(Debug)]
pub(crate) struct ConnectRequest {
    pub(crate) conn: ConnId,
    pub(crate) to: Remote,
    pub(crate) options: ConnectOptions,
}

impl ConnectRequest {
    /// Creates the socket, bound if a local address is set, and returns it with the remote address.
    pub(crate) fn socket(&self) -> io::Result<(Socket, SockAddr)> {
        match &self.to {
            Remote::Unix(path) => Ok((Socket::new(Domain::UNIX, Type::STREAM, None)?, SockAddr::unix(path)?)),
            Remote::Tcp(address) => {
                let socket = Socket::new(Domain::for_address(*address), Type::STREAM, Some(Protocol::TCP))?;
                socket.set_tcp_nodelay(self.options.nodelay)?;
                if let Some(local) = self.options.local {
                    #[cfg(target_os = "linux")]
                    if local.port() == 0 {
                        crate::calls::choose_port_at_connect(&socket)?;
                    }
                    socket.bind(&local.into())?;
                }
                Ok((socket, (*address).into()))
            }
        }
    }
}

/// Maximum connections started in one turn; the rest follow in the next turn. It bounds the descriptors
/// that sockets need until they are in a ring's table.
pub(crate) const CONNECTS_PER_TURN: usize = 256;

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::slots::Slots;

    #[test]
    fn port_of_requested_local_address_is_chosen_at_connect() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let options = ConnectOptions::default().with_local(([127, 0, 0, 2], 0).into());
        let request = ConnectRequest { conn: Slots::default().insert(), to: to.into(), options };
        let (socket, address) = request.socket().unwrap();
        let local = || socket.local_addr().unwrap().as_socket().unwrap();
        assert_eq!(local(), ([127, 0, 0, 2], 0).into());
        socket.connect(&address).unwrap();
        assert_eq!(local().ip(), IpAddr::from([127, 0, 0, 2]));
        assert_ne!(local().port(), 0);
    }
}
