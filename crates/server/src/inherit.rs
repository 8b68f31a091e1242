//! Listening sockets that one server leaves to another.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sinews_engine::Listener;

use crate::listen::{Place, SocketFile};

/// Where a socket was asked to listen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ListenAddress {
    /// At an address; port 0 if it was to be a free one.
    Tcp(SocketAddr),
    /// At a path.
    Unix(PathBuf),
}

/// The listening sockets of a server, for one that takes its place: mostly in another process, which gets the
/// descriptors through a Unix socket (`SCM_RIGHTS`).
///
/// Both may listen at a time, since it is the same sockets: who connects is accepted by one of them. The first leaves
/// with [`StopHandle::hand_over`](crate::StopHandle::hand_over), and nobody is refused.
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
}

impl Listeners {
    /// Adds a socket that listens already, and the address that it was asked to listen at.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if it is no TCP or Unix stream socket; otherwise those of the
    /// system.
    pub fn push(&mut self, address: ListenAddress, socket: OwnedFd) -> io::Result<()> {
        self.sockets.push((address, Listener::from_fd(socket)?));
        Ok(())
    }

    /// The sockets, in the order in which they were added. An address has one for each thread that served it.
    pub fn iter(&self) -> impl Iterator<Item = (&ListenAddress, BorrowedFd<'_>)> {
        self.sockets.iter().map(|(address, socket)| (address, socket.as_fd()))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sockets.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sockets.is_empty()
    }

    pub(crate) fn add(&mut self, place: &Place, listeners: &[Listener]) -> io::Result<()> {
        for listener in listeners {
            self.sockets.push((place.address(), listener.try_clone()?));
        }
        Ok(())
    }

    /// Takes out what listens at a place: what was asked to, or what came to be there.
    pub(crate) fn take(&mut self, place: &Place) -> Vec<Listener> {
        let wanted = place.address();
        let bound = |listener: &Listener| listener.local_addr().ok();
        let is_there = |address: &ListenAddress, listener: &Listener| {
            *address == wanted || bound(listener).map(ListenAddress::Tcp).as_ref() == Some(&wanted)
        };
        let found = self.sockets.iter().find(|(address, listener)| is_there(address, listener));
        let Some(at) = found.map(|(_, listener)| bound(listener)) else { return Vec::new() };
        // Port 0, asked for twice, is two ports.
        let (taken, rest) = std::mem::take(&mut self.sockets)
            .into_iter()
            .partition(|(address, listener)| is_there(address, listener) && bound(listener) == at);
        self.sockets = rest;
        let taken: Vec<(ListenAddress, Listener)> = taken;
        taken.into_iter().map(|(_, listener)| listener).collect()
    }

    /// Closes what nobody listens at any more, and removes the files of Unix sockets.
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

/// What a server listens with, as long as it can be handed over.
#[derive(Debug, Default)]
pub(crate) struct Doors {
    listeners: Mutex<Listeners>,
    handed_over: AtomicBool,
}

impl Doors {
    pub(crate) fn new(listeners: Listeners) -> Self {
        Self { listeners: Mutex::new(listeners), handed_over: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, Listeners> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_clone(&self) -> io::Result<Listeners> {
        let mut clones = Listeners::default();
        for (address, listener) in &self.lock().sockets {
            clones.sockets.push((address.clone(), listener.try_clone()?));
        }
        Ok(clones)
    }

    /// What is kept for handing over would keep the addresses open.
    pub(crate) fn close(&self) {
        *self.lock() = Listeners::default();
    }

    /// Another process listens now: the files of Unix sockets are its own.
    pub(crate) fn hand_over(&self) {
        self.handed_over.store(true, Ordering::SeqCst);
        self.close();
    }

    pub(crate) fn are_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::SeqCst)
    }
}
