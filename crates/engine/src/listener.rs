//! Listening sockets: one, or one per thread on the same port.

mod unix;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// Options of a listening socket.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    reuse_port: bool,
    nodelay: bool,
    send_buffer: Option<usize>,
    receive_buffer: Option<usize>,
}

/// Length of the kernel's accept queue: Linux's default limit (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;

impl Default for ListenOptions {
    fn default() -> Self {
        Self { reuse_port: false, nodelay: true, send_buffer: None, receive_buffer: None }
    }
}

impl ListenOptions {
    /// Lets further sockets of the same user listen on the same port (`SO_REUSEPORT`); Linux distributes
    /// new connections among them. Default: no. [`Listener::bind_all`] sets it where it is needed.
    ///
    /// Drawback: a second server started by mistake does not fail; it silently takes a share of the
    /// connections.
    #[must_use]
    pub fn with_reuse_port(mut self, yes: bool) -> Self {
        self.reuse_port = yes;
        self
    }

    /// Whether small segments are sent without waiting for acknowledgments (`TCP_NODELAY`). Default: yes.
    /// The loop already sends once per burst, so a delay would add latency without a benefit.
    #[must_use]
    pub fn with_nodelay(mut self, yes: bool) -> Self {
        self.nodelay = yes;
        self
    }

    /// The kernel's send buffer of each connection, in bytes (`SO_SNDBUF`, which Linux doubles). Default:
    /// the kernel's choice, which adapts to the path. A fixed value bounds memory and throughput.
    #[must_use]
    pub fn with_send_buffer(mut self, bytes: usize) -> Self {
        self.send_buffer = Some(bytes);
        self
    }

    /// The kernel's receive buffer of each connection, in bytes (`SO_RCVBUF`, which Linux doubles).
    /// Default: the kernel's choice, which adapts to the path.
    #[must_use]
    pub fn with_receive_buffer(mut self, bytes: usize) -> Self {
        self.receive_buffer = Some(bytes);
        self
    }
}

/// A listening socket for an [`Engine`](crate::Engine).
#[derive(Debug)]
pub struct Listener {
    /// Of any address family: accepting uses its descriptor.
    pub(crate) socket: TcpListener,
    /// Whether it listens at a path.
    pub(crate) unix: bool,
    /// Whether another process may accept from it too.
    pub(crate) inherited: bool,
}

impl Listener {
    /// Listens on `address`; port 0 lets the kernel choose. A port whose earlier connections linger
    /// (`TIME_WAIT`) may be bound again at once (`SO_REUSEADDR`).
    ///
    /// # Errors
    ///
    /// Errors of the system: the address is in use, is not local, or is not permitted.
    pub fn bind(address: SocketAddr, options: &ListenOptions) -> io::Result<Self> {
        let socket = bound(address, options)?;
        socket.listen(BACKLOG)?;
        Ok(Self { socket: socket.into(), unix: false, inherited: false })
    }

    /// Creates `count` listeners on `address`, for as many threads. Port 0 lets the kernel choose one port
    /// for all of them.
    ///
    /// `SO_REUSEPORT` alone would let a second server of the same user share the port without an error. So
    /// a given port is first bound without it, which fails if another socket listens on it, and released.
    /// (Two servers that start within the same millisecond can still miss each other.)
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind). `count` 0 is [`io::ErrorKind::InvalidInput`].
    pub fn bind_all(address: SocketAddr, count: usize, options: &ListenOptions) -> io::Result<Vec<Self>> {
        let alone = options.clone().with_reuse_port(false);
        match count {
            0 => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "listener count is 0; at least 1 is required",
                ));
            }
            1 => return Ok(vec![Self::bind(address, &alone)?]),
            _ => {}
        }
        if address.port() != 0 {
            drop(bound(address, &alone)?);
        }
        // The kernel never chooses a port that is shared already.
        let shared = options.clone().with_reuse_port(true);
        let mut listeners = vec![Self::bind(address, &shared)?];
        let address = listeners[0].local_addr()?;
        while listeners.len() < count {
            listeners.push(Self::bind(address, &shared)?);
        }
        Ok(listeners)
    }

    /// Adopts another process's listening socket: TCP or a Unix stream. Both processes may accept from it, each
    /// connection goes to one process, and no connection is refused when either process closes its descriptor.
    /// `TCP_NODELAY` is set, for the reason given at [`ListenOptions::with_nodelay`].
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if it is not a TCP or Unix stream socket; errors of
    /// the system.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let socket = Socket::from(fd);
        let address = socket.local_addr()?;
        let unix = address.is_unix();
        if !(unix || address.as_socket().is_some()) || socket.r#type()? != Type::STREAM {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "descriptor is not a TCP or Unix stream socket",
            ));
        }
        if !unix {
            // Without it, only the latency is larger.
            let _ = socket.set_tcp_nodelay(true);
        }
        Ok(Self { socket: socket.into(), unix, inherited: true })
    }

    /// Creates further listeners on the address of this listener, for further threads, even if it was bound
    /// without `SO_REUSEPORT`. (The option is set late; Linux applies it to later binds.)
    ///
    /// # Errors
    ///
    /// As [`bind`](Self::bind).
    pub fn bind_beside(&self, count: usize, options: &ListenOptions) -> io::Result<Vec<Self>> {
        SockRef::from(&self.socket).set_reuse_port(true)?;
        let (address, shared) = (self.local_addr()?, options.clone().with_reuse_port(true));
        (0..count).map(|_| Self::bind(address, &shared)).collect()
    }

    /// The listen address, with the port that the kernel chose for port 0.
    ///
    /// # Errors
    ///
    /// Errors of the system. A listener at a path has no such address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Creates a socket bound to `address` that does not listen yet. Accepted sockets inherit its options
/// (Linux, the BSDs, macOS), which saves system calls per connection; so they are set before the first
/// accept.
fn bound(address: SocketAddr, options: &ListenOptions) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(options.reuse_port)?;
    socket.set_tcp_nodelay(options.nodelay)?;
    if let Some(bytes) = options.send_buffer {
        socket.set_send_buffer_size(bytes)?;
    }
    if let Some(bytes) = options.receive_buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}
