//! The ring backend: `io_uring`.
//!
//! One system call per turn submits all queued operations and returns all completions. A single multishot
//! operation per listener accepts sockets into the ring's own file table, outside of the process's
//! descriptors. Each connection has one persistent receive, which fills buffers shared by all connections.
//! A send is fired: the kernel takes all of it without a completion, or reports at once why it did not;
//! only then the connection submits an ordinary send that waits for the peer.
//!
//! Submitted memory belongs to the kernel until the operation completes, so a connection is closed in two
//! steps: cancel the operations in flight, and close the socket when the last of them has completed.

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
    /// Kernel-side state of each connection, by slot.
    links: Vec<Option<Link<C>>>,
    /// Completions since the last turn.
    completed: Vec<Completion>,
    /// Fired sends, in order. They are complete once the kernel has taken them without a completion.
    fired: Vec<Fired>,
    /// Bytes of fired sends that are queued and not submitted.
    unsubmitted: usize,
    /// A fired send must complete before the next event, regardless of the application.
    hurried: bool,
    /// Boxes without a chain, for reuse.
    berths: Vec<Box<Option<C>>>,
    /// Sockets to be connected, by slot, each boxed: the kernel reads from its address.
    outgoing: BTreeMap<usize, Box<Outgoing>>,
    /// Appends in flight, each boxed, although the kernel reads only the buffers behind it.
    appends: Slab<Box<Append>>,
    /// Resumed connections with deferred input.
    readable: Vec<ConnId>,
    /// Connections whose receive has ended and may have to be armed again.
    unarmed: Vec<ConnId>,
    /// The same, but other connections took all buffers before them: they are armed first.
    starved: Vec<ConnId>,
    /// Deferred bytes delivered at once: as many as one receive returns.
    piece: usize,
    /// Empty between turns: swapped with a list while that list is processed, to keep its memory.
    batch: Vec<ConnId>,
}

/// State of a connection in this backend.
struct Link<C> {
    /// The socket's slot in the ring's file table.
    file: u32,
    receive: Receive,
    send: Send,
    shutdown: Shutdown,
    close: Close,
    /// Large receives: the application may want them in its own buffer.
    bulk: bool,
    /// The turn of the last receive, in its lower bits.
    fed: u32,
    /// Bytes offered to the kernel by the send in flight.
    offered: u32,
    /// The chain in flight, boxed: the kernel reads from its address.
    chain: Option<Box<Option<C>>>,
    /// Received input that the application has deferred.
    held: Option<Box<Held>>,
    /// The buffer of the large receive in flight, boxed.
    large: Option<Box<Large>>,
    /// The reason for closing. Boxed, since most connections have none.
    why: Option<Box<Closed>>,
}

/// State of a connection's receive operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receive {
    Home,
    /// No receive is possible: the socket is being moved into the table.
    Installing,
    /// No receive is possible: the socket is being connected.
    Connecting,
    Armed,
    /// A single receive into a buffer of the application.
    Large,
    /// The peer has ended; a poll for errors is in flight.
    Watching,
    /// A cancellation is in flight.
    Cancelled,
}

/// State of a connection's send operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Send {
    Home,
    /// Complete once it is submitted, unless a completion reports otherwise.
    Fired,
    /// Completes when bytes are sent.
    Waiting,
}

/// State of the shutdown of the sending side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shutdown {
    Home,
    InFlight,
}

/// Progress of closing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Close {
    No,
    /// Waits until all operations complete.
    Wanted,
    /// The close operation is in flight.
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
        // Completed sends first, so that the next received chunk may be answered at once.
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
        // Completions of early submissions.
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
    /// Creates the backend and its waker; or returns the listeners, and the reason why a ring is not
    /// available.
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
            None => tracing::error!(?completion, "the ring returned a completion with an unknown token"),
        }
    }

    /// Sends the answer to this connection alone while its data is in the cache. A broadcast waits for the
    /// end of the turn, and so does the answer to a burst that continues.
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

    /// The connection of an operation, unless it has closed.
    fn owner(&mut self, io: &Io, token: Token) -> Option<(ConnId, &mut Link<C>)> {
        let conn = io.slots.id_at(token.index()).filter(|conn| token.is_of(*conn))?;
        Some((conn, self.links.get_mut(conn.index())?.as_mut()?))
    }

    /// The link of an open connection.
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
    /// Memory that the kernel may still access is not freed before its operations complete.
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
    fn connection_state_is_small() {
        // A slab adds at most a word; lists contain a connection's id a few times.
        let slot = size_of::<Slot>() + size_of::<usize>();
        let link = size_of::<Option<Link<io::Cursor<Vec<u8>>>>>();
        assert!(slot + link <= 104, "{slot} + {link} bytes");
    }
}
