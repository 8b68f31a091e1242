//! Listening sockets that a server hands over to its successor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use sinews_engine::Listener;

use crate::listen::{ListenAddress, ListenTarget, SocketFile};

/// Listening sockets of a server for its successor, usually in another process, which receives the descriptors
/// through a Unix socket (`SCM_RIGHTS`).
///
/// Both servers may listen at the same time, since they share the sockets: one of them accepts each connection. The
/// predecessor leaves with [`StopHandle::hand_over`](crate::StopHandle::hand_over), and no connection is rejected.
///
/// ```
/// use std::os::fd::OwnedFd;
///
/// use sinews_server::{Listeners, Router, Server};
///
/// let first = Server::new(Router::new()).listen("127.0.0.1:0".parse()?).threads(2).bind()?;
/// let mut listeners = Listeners::default();
/// for (address, socket) in first.stop_handle().listeners()?.iter() {
///     // Here the descriptor would travel.
///     let socket: OwnedFd = socket.try_clone_to_owned()?;
///     listeners.push(address.clone(), socket)?;
/// }
/// let second = Server::new(Router::new()).listen("127.0.0.1:0".parse()?).inherit(listeners).bind()?;
/// assert_eq!(first.addresses(), second.addresses());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Listeners {
    sockets: Vec<(ListenAddress, Listener)>,
    /// The way of datagrams between both servers.
    datagrams: Option<OwnedFd>,
}

impl Listeners {
    /// Adds a listening socket, and its configured listen address.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if it is no TCP or Unix stream socket; otherwise system errors.
    pub fn push(&mut self, address: ListenAddress, socket: OwnedFd) -> io::Result<()> {
        if address == ListenAddress::Datagrams {
            self.datagrams = Some(socket);
            return Ok(());
        }
        self.sockets.push((address, Listener::from_fd(socket)?));
        Ok(())
    }

    /// Returns the sockets, in insertion order. An address has one socket for each thread that served it. With HTTP/3,
    /// one more leads to the predecessor ([`ListenAddress::Datagrams`]).
    pub fn iter(&self) -> impl Iterator<Item = (&ListenAddress, BorrowedFd<'_>)> {
        let datagrams = self.datagrams.iter().map(|socket| (&ListenAddress::Datagrams, socket.as_fd()));
        self.sockets.iter().map(|(address, socket)| (address, socket.as_fd())).chain(datagrams)
    }

    pub(crate) fn set_datagrams(&mut self, socket: OwnedFd) {
        self.datagrams = Some(socket);
    }

    pub(crate) fn take_datagrams(&mut self) -> Option<OwnedFd> {
        self.datagrams.take()
    }

    /// Returns the number of sockets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sockets.len() + usize::from(self.datagrams.is_some())
    }

    /// Returns whether it contains no socket.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn add(&mut self, target: &ListenTarget, listeners: &[Listener]) -> io::Result<()> {
        for listener in listeners {
            self.sockets.push((target.address(), listener.try_clone()?));
        }
        Ok(())
    }

    /// Removes the sockets of a listen address, configured or bound.
    pub(crate) fn take(&mut self, target: &ListenTarget) -> Vec<Listener> {
        let wanted = target.address();
        let bound = |listener: &Listener| listener.local_addr().ok();
        let matches = |address: &ListenAddress, listener: &Listener| {
            *address == wanted || bound(listener).map(ListenAddress::Tcp).as_ref() == Some(&wanted)
        };
        let found = self.sockets.iter().find(|(address, listener)| matches(address, listener));
        let Some(at) = found.map(|(_, listener)| bound(listener)) else { return Vec::new() };
        // Port 0, requested twice, is two ports.
        let (taken, rest) = std::mem::take(&mut self.sockets)
            .into_iter()
            .partition(|(address, listener)| matches(address, listener) && bound(listener) == at);
        self.sockets = rest;
        let taken: Vec<(ListenAddress, Listener)> = taken;
        taken.into_iter().map(|(_, listener)| listener).collect()
    }

    /// Closes unused sockets, and removes the files of Unix sockets.
    pub(crate) fn close(self) {
        for (address, _) in self.sockets {
            if let ListenAddress::Unix(path) = address
                && let Ok(mut file) = SocketFile::new(&path)
            {
                file.own();
            }
        }
    }
}

/// Listening sockets of a server, as long as they can be handed over.
#[derive(Debug, Default)]
pub(crate) struct ListenerFds {
    listeners: Mutex<Listeners>,
    handed_over: AtomicBool,
}

impl ListenerFds {
    pub(crate) fn new(listeners: Listeners) -> Self {
        Self { listeners: Mutex::new(listeners), handed_over: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, Listeners> {
        self.listeners.lock()
    }

    pub(crate) fn try_clone(&self) -> io::Result<Listeners> {
        let mut clones = Listeners::default();
        for (address, listener) in &self.lock().sockets {
            clones.sockets.push((address.clone(), listener.try_clone()?));
        }
        Ok(clones)
    }

    /// Closes the sockets; open descriptors would keep the addresses in use.
    pub(crate) fn close(&self) {
        *self.lock() = Listeners::default();
    }

    /// Leaves the files of Unix sockets to the successor.
    pub(crate) fn hand_over(&self) {
        self.handed_over.store(true, Ordering::SeqCst);
        self.close();
    }

    pub(crate) fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::SeqCst)
    }
}
