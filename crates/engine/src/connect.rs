//! Outgoing connections: where to, from where, and the socket that they begin with.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::ConnId;

/// Whom to connect to, see [`Io::connect`](crate::Io::connect).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Remote {
    /// By TCP.
    Tcp(SocketAddr),
    /// Who listens at a path of the file system.
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
    /// The address to connect from; with port 0 the kernel chooses one. Default: the kernel chooses both.
    ///
    /// One address has some 28,000 ports to connect from (`net.ipv4.ip_local_port_range`); who needs more
    /// connections to one server spreads them over several addresses. No meaning for a Unix socket.
    #[must_use]
    pub fn local(mut self, address: SocketAddr) -> Self {
        self.local = Some(address);
        self
    }

    /// Whether small segments leave without waiting for acknowledgements (`TCP_NODELAY`). Default: yes, for
    /// the reason given at [`ListenOptions::nodelay`](crate::ListenOptions::nodelay).
    #[must_use]
    pub fn nodelay(mut self, yes: bool) -> Self {
        self.nodelay = yes;
        self
    }
}

/// One that was asked for and is not under way.
#[derive(Debug)]
pub(crate) struct Connect {
    pub(crate) conn: ConnId,
    pub(crate) to: Remote,
    pub(crate) options: ConnectOptions,
}

impl Connect {
    /// A socket, bound where that was asked for, and the address to connect it to.
    pub(crate) fn socket(&self) -> io::Result<(Socket, SockAddr)> {
        match &self.to {
            Remote::Unix(path) => Ok((Socket::new(Domain::UNIX, Type::STREAM, None)?, SockAddr::unix(path)?)),
            Remote::Tcp(address) => {
                let socket = Socket::new(Domain::for_address(*address), Type::STREAM, Some(Protocol::TCP))?;
                socket.set_tcp_nodelay(self.options.nodelay)?;
                if let Some(local) = self.options.local {
                    socket.bind(&local.into())?;
                }
                Ok((socket, (*address).into()))
            }
        }
    }
}

/// Connections begun in one turn; what goes beyond that comes with the next. It bounds the descriptors that
/// sockets need on their way into a ring's table.
pub(crate) const CONNECTS_PER_TURN: usize = 256;
