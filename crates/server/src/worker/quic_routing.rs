//! Paths for datagrams to their connection's owner: a worker in this process, or another process in a hot restart.
//!
//! ```text
//!   predecessor                                  successor
//!    │ sockets ◀───────── clients ─────────▶ sockets │   the kernel chooses by the addresses of both sides
//!    │ ◀────── datagrams of its connections ─────────│   by the generation in their identifiers
//!    │ ─────── datagrams of others, new clients ────▶│   once it has handed over
//! ```

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use parking_lot::Mutex;
use sinews_engine::Post;
use sinews_quic::{ConnectionRoutes, WorkerRoute};

use super::process_link::ProcessLink;
use crate::topics::mail::{Mail, MailedDatagram};

/// QUIC for all workers: the routes of their connections, and the datagrams in transit between workers and processes.
#[derive(Debug)]
pub(crate) struct QuicRouting {
    routes: ConnectionRoutes,
    /// This process's number in a chain of hot restarts.
    generation: u8,
    /// Datagrams in each worker's mailbox.
    mailed: Box<[AtomicUsize]>,
    /// Listener addresses by index. Another process has them in another order.
    addresses: OnceLock<Box<[SocketAddr]>>,
    predecessor: Mutex<Option<Arc<ProcessLink>>>,
    /// The last process that was to replace this one.
    successor: Mutex<Option<Arc<ProcessLink>>>,
    /// The successor serves new clients.
    handed_over: AtomicBool,
    has_ended: AtomicBool,
}

/// Datagrams from other workers and processes in a mailbox. Few clients change their address, a hot restart is short,
/// and QUIC repeats what is lost.
const MAILED_MAX: usize = 1024;

/// Processes in a chain of hot restarts that may live at a time. A client's identifier looks like one of ours once in
/// 256 times, with any generation.
const GENERATIONS_MAX: u8 = 4;

/// A received datagram's owner.
pub(super) enum DatagramOwner {
    /// The worker that has received it, or any worker if another process has received it.
    Receiver,
    Worker(usize),
    Process(Arc<ProcessLink>),
}

/// A datagram's origin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// A socket in this process.
    Client,
    Predecessor,
    Successor,
}

impl QuicRouting {
    /// Creates a process's routing, which continues its predecessor's.
    pub(crate) fn new(workers: usize, predecessor: Option<ProcessLink>) -> Self {
        let (routes, generation) = match predecessor.as_ref().and_then(ProcessLink::receive_greeting) {
            Some((key, generation)) => (ConnectionRoutes::with_key(key), generation.wrapping_add(1)),
            None => (ConnectionRoutes::new(), 0),
        };
        Self {
            routes,
            generation,
            mailed: (0..workers).map(|_| AtomicUsize::new(0)).collect(),
            addresses: OnceLock::new(),
            // Without its end, a predecessor with another version closes its sockets.
            predecessor: Mutex::new(predecessor.filter(|link| !link.is_gone()).map(Arc::new)),
            successor: Mutex::default(),
            handed_over: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        }
    }

    pub(crate) const fn routes(&self) -> &ConnectionRoutes {
        &self.routes
    }

    pub(crate) const fn route(&self, worker: u8) -> WorkerRoute {
        WorkerRoute::new(worker, self.generation)
    }

    /// Sets the listeners' addresses, once they are bound.
    pub(crate) fn set_addresses(&self, addresses: Vec<SocketAddr>) {
        let _ = self.addresses.set(addresses.into());
    }

    pub(crate) fn has_listeners(&self) -> bool {
        self.addresses.get().is_some_and(|addresses| !addresses.is_empty())
    }

    /// Whether datagrams for the predecessor's connections reach it from here, so that both processes may have sockets.
    pub(crate) fn has_predecessor(&self) -> bool {
        live(&self.predecessor).is_some()
    }

    /// Whether new clients' datagrams reach the successor from here.
    pub(super) fn has_successor(&self) -> bool {
        live(&self.successor).is_some()
    }

    /// The successor serves new clients from now on.
    pub(crate) fn hand_over(&self) {
        // Its HTTP/3 may be off.
        live(&self.successor).inspect(|link| link.probe());
        self.handed_over.store(true, Ordering::SeqCst);
    }

    /// Ends the threads that receive from other processes, and closes the links: the others notice, even if this
    /// process lives on.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        for link in [&self.predecessor, &self.successor] {
            link.lock().take();
        }
    }

    /// Returns the owner of a datagram that a worker has received.
    pub(super) fn owner(&self, datagram: &[u8], own: usize) -> DatagramOwner {
        match self.owner_from(Origin::Client, datagram) {
            DatagramOwner::Worker(worker) if worker == own => DatagramOwner::Receiver,
            owner => owner,
        }
    }

    /// Returns the owner of a datagram: never the process that has sent it here, nor one that has ended.
    fn owner_from(&self, origin: Origin, datagram: &[u8]) -> DatagramOwner {
        let handed_over = || self.handed_over.load(Ordering::Relaxed);
        let link = match self.find(datagram) {
            Found::Worker(worker) => return DatagramOwner::Worker(worker),
            Found::Older if origin != Origin::Predecessor => live(&self.predecessor),
            Found::Newer if origin != Origin::Successor => live(&self.successor),
            Found::Unknown if origin != Origin::Successor && handed_over() => live(&self.successor),
            _ => None,
        };
        link.map_or(DatagramOwner::Receiver, DatagramOwner::Process)
    }

    fn find(&self, datagram: &[u8]) -> Found {
        let Some(route) = self.routes.route(datagram) else { return Found::Unknown };
        let newer = route.generation().wrapping_sub(self.generation);
        match newer {
            0 if usize::from(route.worker()) < self.mailed.len() => Found::Worker(route.worker().into()),
            1..=GENERATIONS_MAX => Found::Newer,
            _ if newer.wrapping_neg() <= GENERATIONS_MAX && newer != 0 => Found::Older,
            _ => Found::Unknown,
        }
    }

    /// Encodes a listener's datagram for another process, and sends it. Returns `false` if it is lost.
    pub(super) fn forward(&self, link: &ProcessLink, datagram: &MailedDatagram) -> bool {
        let address = self.addresses.get().and_then(|addresses| addresses.get(datagram.listener));
        address.is_some_and(|address| link.send(*address, datagram))
    }

    /// Counts a datagram for a worker's mailbox. Returns `false` if it is full.
    pub(super) fn begin_mail(&self, worker: usize) -> bool {
        let more = |count| (count < MAILED_MAX).then_some(count + 1);
        self.mailed[worker].fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Counts a datagram that has left the mailbox.
    pub(super) fn end_mail(&self, worker: usize) {
        self.mailed[worker].fetch_sub(1, Ordering::Relaxed);
    }

    /// Creates the link to a successor, and returns its end.
    pub(crate) fn link_successor(self: &Arc<Self>, posts: &Arc<[Post<Mail>]>) -> io::Result<OwnedFd> {
        let (own, other) = ProcessLink::pair()?;
        own.send_greeting(self.routes.key(), self.generation)?;
        let own = Arc::new(own);
        *self.successor.lock() = Some(Arc::clone(&own));
        self.start_receiver(own, Origin::Successor, posts)?;
        Ok(other)
    }

    /// Starts to receive from the predecessor, if there is one.
    pub(crate) fn receive_from_predecessor(self: &Arc<Self>, posts: &Arc<[Post<Mail>]>) -> io::Result<()> {
        match live(&self.predecessor) {
            Some(link) => self.start_receiver(link, Origin::Predecessor, posts),
            None => Ok(()),
        }
    }

    /// Starts a thread that passes another process's datagrams to their workers, until the process or this server ends.
    fn start_receiver(
        self: &Arc<Self>,
        link: Arc<ProcessLink>,
        origin: Origin,
        posts: &Arc<[Post<Mail>]>,
    ) -> io::Result<()> {
        let (routing, posts) = (Arc::clone(self), Arc::clone(posts));
        let receive = move || {
            let mut buffer = vec![0; ProcessLink::MESSAGE_MAX];
            while !routing.has_ended.load(Ordering::SeqCst) && !link.is_gone() {
                if let Some((address, datagram)) = link.receive(&mut buffer) {
                    routing.pass(origin, address, datagram, &posts);
                }
            }
            // Closes this end, and wakes workers whose sockets wait for the predecessor's end.
            live(&routing.predecessor);
            live(&routing.successor);
            posts.iter().for_each(Post::wake);
        };
        thread::Builder::new().name("sinews-quic".to_owned()).spawn(receive).map(drop)
    }

    /// Passes on a datagram that another process has received.
    fn pass(&self, origin: Origin, to: SocketAddr, mut datagram: MailedDatagram, posts: &[Post<Mail>]) {
        let addresses = self.addresses.get().map_or(&[][..], |addresses| addresses);
        let Some(listener) = addresses.iter().position(|address| *address == to) else { return };
        datagram.listener = listener;
        let worker = match self.owner_from(origin, &datagram.payload) {
            DatagramOwner::Process(link) => {
                self.forward(&link, &datagram);
                return;
            }
            DatagramOwner::Worker(worker) => worker,
            // As the kernel: a client's datagrams reach one worker.
            DatagramOwner::Receiver => {
                let mut hasher = DefaultHasher::new();
                datagram.from.hash(&mut hasher);
                let worker = hasher.finish() % self.mailed.len().max(1) as u64;
                usize::try_from(worker).unwrap_or(0)
            }
        };
        self.mail(worker, datagram, posts);
    }

    fn mail(&self, worker: usize, datagram: MailedDatagram, posts: &[Post<Mail>]) {
        if self.begin_mail(worker) && posts[worker].send(Mail::Datagram(Box::new(datagram))).is_err() {
            self.end_mail(worker);
        }
    }
}

/// Meaning of a datagram's identifier.
enum Found {
    /// A connection with a worker in this process.
    Worker(usize),
    /// A connection in an earlier process.
    Older,
    /// A connection in a later process.
    Newer,
    /// The client has chosen the identifier, or it is none of ours.
    Unknown,
}

/// Returns the link to a process, and closes it if the process has ended.
fn live(link: &Mutex<Option<Arc<ProcessLink>>>) -> Option<Arc<ProcessLink>> {
    let mut link = link.lock();
    link.take_if(|link| link.is_gone());
    link.clone()
}
