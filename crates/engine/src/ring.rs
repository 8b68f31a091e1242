//! The ring backend: `io_uring`.
//!
//! One system call per turn submits all queued operations and returns all completions. A single multishot operation per
//! listener accepts sockets into the ring's own file table, outside the process's descriptors. Each connection has one
//! persistent receive, which fills buffers shared by all connections. A send is fired: the kernel takes it whole
//! without a completion, or reports at once why it did not; only then the connection submits an ordinary send that
//! waits for the peer.
//!
//! Submitted memory belongs to the kernel until the operation completes, so a connection is closed in two
//! steps: cancel the operations in flight, and close the socket when the last of them has completed.

mod accept;
mod appends;
mod broadcast;
mod buffers;
mod close;
mod connect;
mod kernel;
mod large;
mod memory;
#[cfg(test)]
mod model;
mod outgoing;
mod receive;
mod send;
mod setup;
mod state;
mod token;
mod unavailable;
mod uring;
mod wake;

use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::time::Duration;

use slab::Slab;

use self::accept::{Arrival, RingAcceptors, parse_peer};
use self::broadcast::SharedSends;
use self::kernel::{Completion, RingKernel};
pub(crate) use self::state::Ring;
use self::state::RingLink;
use self::token::{OpKind, Token};
pub(crate) use self::unavailable::RingUnavailable;
use self::uring::Uring;
pub(crate) use self::wake::RingWaker;
use crate::backend::Backend;
use crate::{App, ConnectionOrigin, DatagramSocket, EngineConfig, Io, Listener, SendChain};

impl<A: App, K: RingKernel> Backend<A> for Ring<A::Chain, K> {
    fn start(&mut self) -> io::Result<()> {
        self.kernel.start()
    }

    fn has_work(&self, app: &A, io: &Io) -> bool {
        let listed = !self.readable.is_empty() || !self.completed.is_empty();
        listed || io.accepting() && self.acceptors.have_work() || self.must_not_sleep(app, io)
    }

    fn until_next_work(&self, io: &Io) -> Option<Duration> {
        let fired = (!self.fired.is_empty()).then_some(send::FIRED_WAIT);
        let rewatch = self.rewatch_at.map(|at| at.saturating_duration_since(io.now()));
        [self.acceptors.until_retry(io), fired, rewatch].into_iter().flatten().min()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.kernel.enter(timeout, &mut self.completed)
    }

    fn deliver(&mut self, app: &mut A, io: &mut Io) {
        io.stats.enters.set(self.kernel.enters());
        let mut completed = mem::take(&mut self.completed);
        // Completed sends first, so that the next received chunk may be answered at once.
        for completion in &completed {
            match completion.token.kind() {
                Some(OpKind::Fire | OpKind::Send) => self.sent(app, io, completion),
                Some(OpKind::Share) => self.shared_sent(app, io, completion),
                _ => {}
            }
        }
        self.finish_fired(app, io);
        self.finish_shared();
        for (index, completion) in completed.iter().enumerate() {
            self.handle(app, io, completion);
            let next = completed.get(index + 1).map(|next| next.token);
            self.send_answer_now(app, io, completion.token, next);
        }
        completed.clear();
        // Completions of early submissions.
        completed.append(&mut self.completed);
        self.completed = completed;
        self.deliver_deferred(app, io);
        self.acceptors.request_peer_names(&mut self.kernel);
    }

    fn execute_commands(&mut self, app: &mut A, io: &mut Io) {
        self.connect_listed(io);
        self.append_listed(app, io);
        self.close_listed(app, io);
        while let Some(conn) = io.resumes.pop() {
            self.resume(app, io, conn);
        }
        while let Some(conn) = io.unsent_limits.pop() {
            if io.slots.live_mut(conn).is_some()
                && let Some(link) = self.link(io, conn)
            {
                let file = link.file;
                self.kernel.limit_unsent(file);
            }
        }
        self.rewatch_datagrams(io);
        self.broadcast_listed(app, io);
        if self.shared.is_empty() {
            let mut batch = mem::replace(&mut io.sends, mem::take(&mut self.batch));
            for conn in batch.drain(..) {
                self.start_send(app, io, conn);
            }
            self.batch = batch;
        }
        io.late_broadcasts = !self.shared.is_empty() || !io.broadcasts.is_empty();
        self.close_listed(app, io);
        self.arm_listed(app, io);
        if io.accepting() {
            self.acceptors.arm(&mut self.kernel, io);
        } else {
            self.acceptors.close(&mut self.kernel, &mut self.completed);
            self.acceptors.request_peer_names(&mut self.kernel);
        }
        io.set_pending_accepts(self.acceptors.pending_accepts());
    }

    fn watch_datagrams(&mut self, index: usize, socket: &DatagramSocket) -> io::Result<()> {
        self.kernel.watch_datagrams(Token::numbered(OpKind::Datagrams, index as u32), socket);
        Ok(())
    }

    fn unwatch_datagrams(&mut self, index: usize, _: &DatagramSocket) {
        self.kernel.cancel(Token::numbered(OpKind::Datagrams, index as u32));
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.kernel.consumed() == self.kernel.queued() {
            return Ok(());
        }
        self.kernel.enter(Some(Duration::ZERO), &mut self.completed)
    }
}

impl<C: SendChain> Ring<C> {
    /// Creates the backend and its waker; or returns the listeners, and the reason why a ring is not
    /// available.
    pub(crate) fn new(
        config: &EngineConfig,
        listeners: Vec<Listener>,
    ) -> Result<(Self, RingWaker), (RingUnavailable, Vec<Listener>)> {
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

impl<C: SendChain, K: RingKernel> Ring<C, K> {
    fn on(kernel: K, listeners: usize, config: &EngineConfig) -> Self {
        Self {
            acceptors: RingAcceptors::new(&kernel, listeners, config),
            kernel,
            links: Vec::new(),
            completed: Vec::new(),
            fired: Vec::new(),
            shared: SharedSends::default(),
            unsubmitted: 0,
            must_complete_fired: false,
            spare_boxes: Vec::new(),
            outgoing: BTreeMap::new(),
            reasons: BTreeMap::new(),
            appends: Slab::new(),
            readable: Vec::new(),
            unarmed: Vec::new(),
            starved: Vec::new(),
            unwatched: Vec::new(),
            rewatch_at: None,
            piece: config.ring_buffer(),
            batch: Vec::new(),
        }
    }

    fn handle<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, completion: &Completion) {
        match completion.token.kind() {
            Some(OpKind::Receive) => self.received(app, io, completion),
            Some(OpKind::Large) => self.received_large(app, io, completion),
            Some(OpKind::Watch) => self.handle_watch_event(io, completion),
            Some(OpKind::Accept) => self.acceptors.accepted(io, completion),
            Some(OpKind::Name) => self.peer_name_received(app, io, completion),
            Some(OpKind::Discard) => self.acceptors.file_closed(),
            Some(OpKind::Install) => self.installed(app, io, completion),
            Some(OpKind::Connect) => self.connected(app, io, completion),
            Some(OpKind::Shutdown) => self.shut_down(io, completion),
            Some(OpKind::Close) => self.closed(app, io, completion),
            Some(OpKind::Append) => self.appended(app, io, completion),
            Some(OpKind::Sync) => self.synced(app, io, completion),
            Some(OpKind::Datagrams) => self.datagrams_readable(io, completion),
            Some(OpKind::Wake) => io.stats.wakes.add(1),
            Some(OpKind::Nothing | OpKind::Fire | OpKind::Share | OpKind::Send) => {}
            None => tracing::error!(?completion, "the ring returned a completion with an unknown token"),
        }
    }

    /// A datagram socket is readable, or its poll has ended: the kernel ends it when the completion queue overflows, or when
    /// memory is short.
    fn datagrams_readable(&mut self, io: &mut Io, completion: &Completion) {
        let index = completion.token.index();
        io.datagrams.mark_ready(index);
        let Some(socket) = io.datagrams.get(index).filter(|_| !completion.more) else { return };
        match completion.outcome() {
            Ok(_) => self.kernel.watch_datagrams(completion.token, socket),
            Err(error) => {
                tracing::warn!(%error, "poll of a datagram socket failed; retrying later");
                self.unwatched.push(completion.token);
                self.rewatch_at = Some(io.now() + REWATCH_INTERVAL);
            }
        }
    }

    /// Polls datagram sockets again whose poll has failed.
    fn rewatch_datagrams(&mut self, io: &Io) {
        if self.rewatch_at.take_if(|at| *at <= io.now()).is_none() {
            return;
        }
        for token in mem::take(&mut self.unwatched) {
            if let Some(socket) = io.datagrams.get(token.index()) {
                self.kernel.watch_datagrams(token, socket);
            }
        }
    }

    /// The peer's address is known: reports the connection.
    fn peer_name_received<A: App<Chain = C>>(&mut self, app: &mut A, io: &mut Io, completion: &Completion) {
        let name_slot = completion.token.index();
        let Some(Arrival { listener, file }) = self.acceptors.take_requested(name_slot) else { return };
        // A peer that has reset the connection has no address.
        let peer =
            completion.outcome().ok().and_then(|length| parse_peer(self.kernel.name(name_slot), length));
        let Some(peer) = peer.filter(|_| !io.stopped()) else {
            return self.kernel.close(Token::numbered(OpKind::Discard, file), file);
        };
        let conn = io.slots.insert();
        if !self.insert_link(conn, RingLink::new(file)) {
            io.slots.remove(conn);
            return self.kernel.close(Token::numbered(OpKind::Discard, file), file);
        }
        self.unarmed.push(conn);
        io.stats.accepts.add(1);
        app.accepted(io, conn, ConnectionOrigin { listener, peer });
    }

    /// Sends the answer to this connection alone while its data is in the cache. A broadcast waits for the
    /// end of the turn, and so does the answer to a burst that continues.
    fn send_answer_now<A: App<Chain = C>>(
        &mut self,
        app: &mut A,
        io: &mut Io,
        token: Token,
        next: Option<Token>,
    ) {
        if let [conn] = io.sends[..]
            && (token == Token::new(OpKind::Receive, conn) || token == Token::new(OpKind::Large, conn))
            && next != Some(token)
            && app.pending_sends() == 0
            && io.broadcasts.is_empty()
            && self.shared.is_empty()
        {
            io.sends.clear();
            self.start_send(app, io, conn);
        }
    }
}

/// Wait before another poll of a datagram socket whose poll has failed: a lasting failure must not keep the loop busy.
const REWATCH_INTERVAL: Duration = Duration::from_millis(100);
