//! Accepting, which continues after errors of peers and shortages.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream, UnixListener};
use mio::{Interest, Registry, Token};

use super::{Poll, PollLink};
use crate::shortage::{is_connection_error, remedy};
use crate::{App, ConnId, ConnectionOrigin, EngineConfig, Io, Listener, SendChain};

/// The listeners of one loop, and the accept pause during a shortage.
pub(super) struct PollAcceptors {
    listeners: Vec<PollAcceptor>,
    /// Token of the first connection. Listeners have the tokens before it, the waker the first.
    first_free: usize,
    per_turn: u32,
    backoff: Duration,
    retry_at: Option<Instant>,
    /// The shortage has been logged. It lasts until a backlog has been emptied, so that a server at its
    /// limit logs one line instead of one per connection.
    stalled: bool,
}

struct PollAcceptor {
    socket: PollListener,
    /// The backlog may hold connections.
    ready: bool,
}

enum PollListener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl PollListener {
    fn register(listener: Listener, token: Token, registry: &Registry) -> io::Result<Self> {
        if listener.inherited {
            // An inherited listener may be in blocking mode for a ring.
            listener.socket.set_nonblocking(true)?;
        }
        if listener.unix {
            let mut socket = UnixListener::from_std(OwnedFd::from(listener.socket).into());
            registry.register(&mut socket, token, Interest::READABLE)?;
            return Ok(Self::Unix(socket));
        }
        let mut socket = TcpListener::from_std(listener.socket);
        registry.register(&mut socket, token, Interest::READABLE)?;
        Ok(Self::Tcp(socket))
    }

    /// Streams are received from and sent to by descriptor, so they may be of either family.
    fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        match self {
            Self::Tcp(socket) => socket.accept(),
            Self::Unix(socket) => {
                let (stream, _) = socket.accept()?;
                let unspecified = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
                Ok((TcpStream::from(OwnedFd::from(stream)), unspecified))
            }
        }
    }
}

impl PollAcceptors {
    pub(super) fn new(
        config: &EngineConfig,
        listeners: Vec<Listener>,
        registry: &Registry,
    ) -> io::Result<Self> {
        let mut acceptors = Vec::with_capacity(listeners.len());
        for (index, listener) in listeners.into_iter().enumerate() {
            let socket = PollListener::register(listener, Token(FIRST + index), registry)?;
            acceptors.push(PollAcceptor { socket, ready: false });
        }
        Ok(Self {
            first_free: FIRST + acceptors.len(),
            listeners: acceptors,
            per_turn: config.accepts_per_turn,
            backoff: config.accept_backoff,
            retry_at: None,
            stalled: false,
        })
    }

    pub(super) fn first_free_token(&self) -> usize {
        self.first_free
    }

    pub(super) fn mark_ready(&mut self, token: usize) {
        if let Some(acceptor) = self.listeners.get_mut(token - FIRST) {
            acceptor.ready = true;
        }
    }

    /// Whether a backlog may have connections and accepting is not paused.
    pub(super) fn have_work(&self, io: &Io) -> bool {
        io.accepting() && self.retry_at.is_none() && self.listeners.iter().any(|acceptor| acceptor.ready)
    }

    /// Remaining pause of accepting.
    pub(super) fn until_retry(&self, io: &Io) -> Option<Duration> {
        let at = self.retry_at.filter(|_| io.accepting())?;
        Some(at.saturating_duration_since(io.now()))
    }

    /// Retries after a connection has closed and freed its descriptor.
    pub(super) fn retry_now(&mut self) {
        self.retry_at = None;
    }

    /// Closes the listeners.
    pub(super) fn close(&mut self) {
        self.listeners.clear();
    }

    fn accept(&mut self, listener: usize, io: &Io) -> AcceptAttempt {
        let acceptor = &mut self.listeners[listener];
        if !acceptor.ready || self.retry_at.is_some() {
            return AcceptAttempt::Empty;
        }
        match acceptor.socket.accept() {
            Ok((stream, peer)) => AcceptAttempt::Connection(stream, peer),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                acceptor.ready = false;
                self.stalled = false;
                AcceptAttempt::Empty
            }
            Err(error) if is_connection_error(&error) => AcceptAttempt::Skipped,
            Err(error) => {
                self.stall(&error, io);
                AcceptAttempt::Empty
            }
        }
    }

    /// Pauses accepting. A later retry is right for any error: the pause keeps the loop from spinning, and
    /// the server stays available.
    fn stall(&mut self, error: &io::Error, io: &Io) {
        self.retry_at = Some(io.now() + self.backoff);
        if !std::mem::replace(&mut self.stalled, true) {
            io.stats.accept_stalls.add(1);
            let connections = io.connections();
            tracing::warn!(%error, connections, remedy = remedy(error), "cannot accept connections; retrying");
        }
    }
}

impl<C: SendChain> Poll<C> {
    pub(super) fn accept_turn<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io) {
        self.acceptors.retry_at.take_if(|at| *at <= io.now());
        for listener in 0..self.acceptors.listeners.len() {
            for _ in 0..self.acceptors.per_turn {
                if !io.accepting() {
                    return;
                }
                match self.acceptors.accept(listener, io) {
                    AcceptAttempt::Connection(stream, peer) => {
                        self.admit(app, io, stream, ConnectionOrigin { listener, peer })
                    }
                    AcceptAttempt::Skipped => {}
                    AcceptAttempt::Empty => break,
                }
            }
        }
    }

    fn admit<A: App<Chain = C>>(
        &mut self,
        app: &mut A,
        io: &mut Io,
        stream: TcpStream,
        from: ConnectionOrigin,
    ) {
        let conn = io.slots.insert();
        if let Err(error) = self.register(conn, PollLink::new(stream)) {
            io.slots.remove(conn);
            return self.acceptors.stall(&error, io);
        }
        io.stats.accepts.add(1);
        app.accepted(io, conn, from);
    }

    /// Registers the connection for events.
    pub(super) fn register(&mut self, conn: ConnId, mut link: PollLink<C>) -> io::Result<()> {
        let token = Token(self.acceptors.first_free + conn.index());
        // Registering reports the current state, so earlier bytes are reported too.
        let both = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut link.stream, token, both)?;
        if self.links.len() <= conn.index() {
            self.links.resize_with(conn.index() + 1, || None);
        }
        self.links[conn.index()] = Some(link);
        Ok(())
    }
}

enum AcceptAttempt {
    Connection(TcpStream, SocketAddr),
    /// A connection was lost before it was accepted; continue with the next.
    Skipped,
    Empty,
}

/// Token of the first listener, after the waker's token.
const FIRST: usize = 1;
