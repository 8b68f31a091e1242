//! The ring backend: `io_uring`.
//!
//! One call of the kernel a turn hands over everything queued and brings everything completed. Sockets are
//! accepted by one operation for all and live in the ring's own table, outside of the process's
//! descriptors. Each connection has one receive that stays, and is filled from buffers shared by all. A send
//! is fired: the kernel takes it whole and says nothing, or reports at once what went wrong, and only then
//! the connection has one ordinary send that waits for the peer.
//!
//! What has been handed over belongs to the kernel until it is home, so a connection is closed in two
//! steps: cancel what is in flight, and when the last of it has come home, close the socket.

mod accept;
mod appends;
mod buffers;
mod calls;
mod close;
mod connect;
mod kernel;
mod large;
#[cfg(test)]
mod model;
mod receive;
mod refusal;
mod send;
mod setup;
mod token;
mod uring;
mod wake;

use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::time::Duration;

use slab::Slab;

use self::accept::Acceptors;
use self::connect::Outgoing;
use self::kernel::{Completion, Kernel};
use self::receive::Held;
pub(crate) use self::refusal::Refusal;
use self::send::Fired;
use self::token::{Kind, Token};
use self::uring::Uring;
pub(crate) use self::wake::RingWaker;
use crate::backend::Backend;
use crate::{App, Append, Chain, Closed, Config, ConnId, Io, Large, Listener};

pub(crate) struct Ring<C, K: Kernel = Uring> {
    kernel: K,
    acceptors: Acceptors,
    /// The kernel's end of each connection, by slot.
    links: Vec<Option<Link<C>>>,
    /// What has completed since the last turn.
    completed: Vec<Completion>,
    /// Sends that are home when the kernel has taken them and said nothing, in the order of firing.
    fired: Vec<Fired>,
    /// Bytes of them that were queued and not submitted.
    unsubmitted: usize,
    /// One of them cannot wait for the next event to be called home, whatever the application says.
    hurried: bool,
    /// Boxes without a chain, to be used again.
    berths: Vec<Box<Option<C>>>,
    /// Sockets on their way to be connected, by slot, each at an address of its own: the kernel reads from it.
    outgoing: BTreeMap<usize, Box<Outgoing>>,
    /// Appends to files that are with the kernel, each at an address of its own, though it reads behind that only.
    appends: Slab<Box<Append>>,
    /// Connections that receive again and have something that was held.
    readable: Vec<ConnId>,
    /// Connections whose receive has ended and may have to be armed anew.
    unarmed: Vec<ConnId>,
    /// The same, but others took all buffers before them: they come first.
    starved: Vec<ConnId>,
    /// Bytes handed over at once of what was held: as many as a receive brings.
    piece: usize,
    /// Empty between turns: swapped with a list while that is worked off, to keep its memory.
    batch: Vec<ConnId>,
}

/// What this backend knows of a connection.
struct Link<C> {
    /// The socket's place in the ring's table.
    file: u32,
    receive: Receive,
    send: Send,
    shutdown: Shutdown,
    close: Close,
    /// Much comes: the application may want it elsewhere.
    bulk: bool,
    /// The turn in which something was received last, in its lower bits.
    fed: u32,
    /// Bytes offered to the kernel by the send in flight.
    offered: u32,
    /// The chain in flight, at an address of its own: the kernel reads from it.
    chain: Option<Box<Option<C>>>,
    /// Received and not wanted yet.
    held: Option<Box<Held>>,
    /// What the receive in flight fills, at an address of its own.
    large: Option<Box<Large>>,
    /// Why it closes. In a box, since most do not.
    why: Option<Box<Closed>>,
}

/// The receive of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receive {
    Home,
    /// Nothing can be received yet: the socket is on its way into the table.
    Installing,
    /// Nor now: it is being connected.
    Connecting,
    Armed,
    /// Into a buffer of the application's, once.
    Large,
    /// The peer has ended; an error is waited for.
    Watching,
    /// A cancellation is under way.
    Cancelled,
}

/// The send of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Send {
    Home,
    /// It is home when it has been handed over and no completion says otherwise.
    Fired,
    /// It completes when something has left.
    Waiting,
}

/// The operation that ends our sending side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shutdown {
    Home,
    InFlight,
}

/// How far closing has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Close {
    No,
    /// Waits until everything is home.
    Wanted,
    /// With the kernel.
    InFlight,
}

impl<A: App, K: Kernel> Backend<A> for Ring<A::Chain, K> {
    fn start(&mut self) -> io::Result<()> {
        self.kernel.start()
    }

    fn has_work(&self, app: &A, io: &Io) -> bool {
        let listed = !self.readable.is_empty() || !self.completed.is_empty();
        listed || io.accepting() && self.acceptors.have_work() || self.calls_home(app, io)
    }

    fn until_next_work(&self, io: &Io) -> Option<Duration> {
        let fired = (!self.fired.is_empty()).then_some(send::FIRED_WAIT);
        [self.acceptors.until_retry(io), fired].into_iter().flatten().min()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.kernel.enter(timeout, &mut self.completed)
    }

    fn deliver(&mut self, app: &mut A, io: &mut Io) {
        io.stats.enters.set(self.kernel.enters());
        let mut completed = mem::take(&mut self.completed);
        // Chains come home first, so that what is received next may be answered at once.
        for completion in &completed {
            if let Some(Kind::Fire | Kind::Send) = completion.token.kind() {
                self.sent(app, io, completion);
            }
        }
        self.finish_fired(app, io);
        for (place, completion) in completed.iter().enumerate() {
            self.handle(app, io, completion);
            let next = completed.get(place + 1).map(|next| next.token);
            self.answer_at_once(app, io, completion.token, next);
        }
        completed.clear();
        // What early submissions have brought meanwhile.
        completed.append(&mut self.completed);
        self.completed = completed;
        self.deliver_held(app, io);
        self.acceptors.ask_names(&mut self.kernel);
    }

    fn carry_out(&mut self, app: &mut A, io: &mut Io) {
        self.connect_listed(io);
        self.append_listed(app, io);
        self.close_listed(app, io);
        while let Some(conn) = io.resumes.pop() {
            self.resume(app, io, conn);
        }
        let mut batch = mem::replace(&mut io.sends, mem::take(&mut self.batch));
        for conn in batch.drain(..) {
            self.start_send(app, io, conn);
        }
        self.batch = batch;
        self.close_listed(app, io);
        self.arm_listed(app, io);
        if io.accepting() {
            self.acceptors.arm(&mut self.kernel, io);
        } else {
            self.acceptors.close(&mut self.kernel, &mut self.completed);
            self.acceptors.ask_names(&mut self.kernel);
        }
        io.set_arriving(self.acceptors.arriving());
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.kernel.consumed() == self.kernel.queued() {
            return Ok(());
        }
        self.kernel.enter(Some(Duration::ZERO), &mut self.completed)
    }
}

impl<C: Chain> Ring<C> {
    /// The backend and the means to wake it; or the listeners back, and why there is no ring here.
    pub(crate) fn new(
        config: &Config,
        listeners: Vec<Listener>,
    ) -> Result<(Self, RingWaker), (Refusal, Vec<Listener>)> {
        match Uring::new(config) {
            Ok((mut kernel, waker)) => {
                let count = listeners.len();
                kernel.listen(listeners);
                Ok((Self::on(kernel, count, config), waker))
            }
            Err(refusal) => Err((refusal, listeners)),
        }
    }
}

impl<C: Chain, K: Kernel> Ring<C, K> {
    fn on(kernel: K, listeners: usize, config: &Config) -> Self {
        Self {
            acceptors: Acceptors::new(&kernel, listeners, config),
            kernel,
            links: Vec::new(),
            completed: Vec::new(),
            fired: Vec::new(),
            unsubmitted: 0,
            hurried: false,
            berths: Vec::new(),
            outgoing: BTreeMap::new(),
            appends: Slab::new(),
            readable: Vec::new(),
            unarmed: Vec::new(),
            starved: Vec::new(),
            piece: config.ring_buffer(),
            batch: Vec::new(),
        }
    }

    fn handle<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, completion: &Completion) {
        match completion.token.kind() {
            Some(Kind::Receive) => self.received(app, io, completion),
            Some(Kind::Large) => self.received_large(app, io, completion),
            Some(Kind::Watch) => self.watched(io, completion),
            Some(Kind::Accept) => self.acceptors.accepted(io, completion),
            Some(Kind::Name) => self.named(app, io, completion),
            Some(Kind::Discard) => self.acceptors.file_closed(),
            Some(Kind::Install) => self.installed(app, io, completion),
            Some(Kind::Connect) => self.connected(app, io, completion),
            Some(Kind::Shutdown) => self.shut_down(io, completion),
            Some(Kind::Close) => self.closed(app, io, completion),
            Some(Kind::Append) => self.appended(app, io, completion),
            Some(Kind::Sync) => self.synced(app, io, completion),
            Some(Kind::Wake) => io.stats.wakes.add(1),
            Some(Kind::Nothing | Kind::Fire | Kind::Send) => {}
            None => tracing::error!(?completion, "the ring completed what nobody asked for"),
        }
    }

    /// An answer to this connection alone is made while all it needs is in the cache; one to many waits for
    /// the end of the turn, and so does one to a burst that goes on.
    fn answer_at_once<A: App<Chain = C>>(
        &mut self,
        app: &mut A,
        io: &mut Io,
        token: Token,
        next: Option<Token>,
    ) {
        if let [conn] = io.sends[..]
            && (token == Token::of(Kind::Receive, conn) || token == Token::of(Kind::Large, conn))
            && next != Some(token)
        {
            io.sends.clear();
            self.start_send(app, io, conn);
        }
    }

    /// Whose operation it was, unless that has gone.
    fn owner(&mut self, io: &Io, token: Token) -> Option<(ConnId, &mut Link<C>)> {
        let conn = io.slots.id_at(token.index()).filter(|conn| token.is_of(*conn))?;
        Some((conn, self.links.get_mut(conn.index())?.as_mut()?))
    }

    /// The link of a connection that has not gone.
    fn link(&mut self, io: &Io, conn: ConnId) -> Option<&mut Link<C>> {
        io.slots.get(conn)?;
        self.links.get_mut(conn.index())?.as_mut()
    }
}

impl<C> Link<C> {
    fn new(file: u32) -> Self {
        Self {
            file,
            receive: Receive::Home,
            send: Send::Home,
            shutdown: Shutdown::Home,
            close: Close::No,
            bulk: false,
            fed: 0,
            offered: 0,
            chain: None,
            held: None,
            large: None,
            why: None,
        }
    }
}

impl<C, K: Kernel> Drop for Ring<C, K> {
    /// Nothing that the kernel may still read or write is freed before it has let go.
    fn drop(&mut self) {
        if !self.kernel.join() {
            for link in self.links.drain(..).flatten() {
                mem::forget((link.chain, link.large));
            }
            mem::forget((mem::take(&mut self.outgoing), mem::take(&mut self.appends)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::Slot;

    #[test]
    fn a_connection_is_small() {
        // A slab adds at most a word; lists hold a connection's id a few times.
        let slot = size_of::<Slot>() + size_of::<usize>();
        let link = size_of::<Option<Link<io::Cursor<Vec<u8>>>>>();
        assert!(slot + link <= 104, "{slot} + {link} bytes");
    }
}
