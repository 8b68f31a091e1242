//! The ring backend's state: its queues, and each connection's kernel-side state.

use std::collections::BTreeMap;
use std::mem;
use std::time::Instant;

use slab::Slab;

use super::accept::RingAcceptors;
use super::broadcast::SharedSends;
use super::kernel::{Completion, RingKernel};
use super::outgoing::OutgoingSocket;
use super::token::Token;
use super::uring::Uring;
use crate::{Append, CloseReason, ConnId, Io, LargeBuffer};

pub(crate) struct Ring<C, K: RingKernel = Uring> {
    pub(super) kernel: K,
    pub(super) acceptors: RingAcceptors,
    /// Kernel-side state of each connection, by slot.
    pub(super) links: Vec<Option<RingLink<C>>>,
    /// Completions since the last turn.
    pub(super) completed: Vec<Completion>,
    /// Fired sends, in order. They are complete once the kernel has taken them without a completion.
    pub(super) fired: Vec<FiredSend>,
    /// Sends of broadcasts.
    pub(super) shared: SharedSends,
    /// Bytes of fired sends that are queued and not submitted.
    pub(super) unsubmitted: usize,
    /// A fired send must complete before the next event, regardless of the application.
    pub(super) must_complete_fired: bool,
    /// Boxes without a chain, for reuse.
    pub(super) spare_boxes: Vec<Box<Option<C>>>,
    /// Sockets to be connected, by slot, each boxed: the kernel reads from its address.
    pub(super) outgoing: BTreeMap<usize, Box<OutgoingSocket>>,
    /// Reasons of closing connections, by slot.
    pub(super) reasons: BTreeMap<usize, CloseReason>,
    /// Appends in flight, each boxed, although the kernel reads only the buffers behind it.
    pub(super) appends: Slab<Box<Append>>,
    /// Resumed connections with deferred input.
    pub(super) readable: Vec<ConnId>,
    /// Connections whose receive has ended and may have to be armed again.
    pub(super) unarmed: Vec<ConnId>,
    /// The same, but other connections took all buffers before them: they are armed first.
    pub(super) starved: Vec<ConnId>,
    /// Polls of datagram sockets that have failed, and when they are repeated.
    pub(super) unwatched: Vec<Token>,
    pub(super) rewatch_at: Option<Instant>,
    /// Deferred bytes delivered at once: as many as one receive returns.
    pub(super) piece: usize,
    /// Empty between turns: swapped with a list while that list is processed, to keep its memory.
    pub(super) batch: Vec<ConnId>,
}

/// State of a connection in this backend.
pub(super) struct RingLink<C> {
    /// The socket's slot in the ring's file table.
    pub(super) file: u32,
    pub(super) receive: ReceiveProgress,
    pub(super) send: SendProgress,
    pub(super) shutdown: ShutdownProgress,
    pub(super) close: CloseProgress,
    /// Large receives: the application may want them in its own buffer.
    pub(super) bulk: bool,
    /// The turn of the last receive, in its lower bits.
    pub(super) last_receive_turn: u32,
    /// Bytes offered to the kernel by the send in flight.
    pub(super) offered: u32,
    /// The chain in flight, boxed: the kernel reads from its address.
    pub(super) chain: Option<Box<Option<C>>>,
    /// Received input that the application has deferred.
    pub(super) deferred: Option<Box<DeferredInput>>,
    /// The buffer of the large receive in flight, boxed.
    pub(super) large: Option<Box<LargeBuffer>>,
}

/// State of a connection's receive operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveProgress {
    Idle,
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
pub(super) enum SendProgress {
    Idle,
    /// Complete once it is submitted, unless a completion reports otherwise.
    Fired,
    /// Completes when bytes are sent.
    Waiting,
}

/// State of the shutdown of the sending side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShutdownProgress {
    Idle,
    InFlight,
}

/// Progress of closing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseProgress {
    No,
    /// Waits until all operations complete.
    Wanted,
    /// The close operation is in flight.
    InFlight,
}

/// A send that completes as soon as the kernel has taken this many operations.
#[derive(Clone, Copy, Debug)]
pub(super) struct FiredSend {
    pub(super) number: u64,
    pub(super) conn: ConnId,
}

/// Input received between the application's pause and its effect in the kernel. It is copied, since a
/// buffer retained by a paused connection would be unavailable to all other connections.
#[derive(Debug, Default)]
pub(super) struct DeferredInput {
    pub(super) bytes: Vec<u8>,
    /// Bytes at the front that the application has handled.
    pub(super) handled: usize,
    /// A buffer of the application, and the number of bytes received into it.
    pub(super) large: Option<(Vec<u8>, usize)>,
    pub(super) end: Option<ReceiveEnd>,
}

#[derive(Debug)]
pub(super) enum ReceiveEnd {
    Peer,
    Failed(CloseReason),
}

impl<C, K: RingKernel> Ring<C, K> {
    /// The connection of an operation, unless it has closed.
    pub(super) fn owner(&mut self, io: &Io, token: Token) -> Option<(ConnId, &mut RingLink<C>)> {
        let conn = io.slots.id_at(token.index()).filter(|conn| token.is_of(*conn))?;
        Some((conn, self.links.get_mut(conn.index())?.as_mut()?))
    }

    /// The link of an open connection.
    pub(super) fn link(&mut self, io: &Io, conn: ConnId) -> Option<&mut RingLink<C>> {
        io.slots.get(conn)?;
        self.links.get_mut(conn.index())?.as_mut()
    }

    /// Stores a new connection's link in its slot. `false`: an earlier connection's operations are in flight, although
    /// its slot is vacant.
    pub(super) fn insert_link(&mut self, conn: ConnId, link: RingLink<C>) -> bool {
        if self.links.len() <= conn.index() {
            self.links.resize_with(conn.index() + 1, || None);
        }
        let slot = &mut self.links[conn.index()];
        let free = slot.is_none();
        if free {
            *slot = Some(link);
        }
        free
    }
}

impl<C> RingLink<C> {
    pub(super) fn new(file: u32) -> Self {
        Self {
            file,
            receive: ReceiveProgress::Idle,
            send: SendProgress::Idle,
            shutdown: ShutdownProgress::Idle,
            close: CloseProgress::No,
            bulk: false,
            last_receive_turn: 0,
            offered: 0,
            chain: None,
            deferred: None,
            large: None,
        }
    }
}

impl<C, K: RingKernel> Drop for Ring<C, K> {
    /// Memory that the kernel may still access is not freed before its operations complete.
    fn drop(&mut self) {
        if !self.kernel.join() {
            for link in self.links.drain(..).flatten() {
                mem::forget((link.chain, link.large));
            }
            mem::forget((mem::take(&mut self.outgoing), mem::take(&mut self.appends)));
            mem::forget(mem::take(&mut self.shared));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::slots::ConnectionSlot;

    #[test]
    fn connection_state_is_small() {
        // A slab adds at most a word; lists contain a connection's id a few times.
        let slot = size_of::<ConnectionSlot>() + size_of::<usize>();
        let link = size_of::<Option<RingLink<io::Cursor<Vec<u8>>>>>();
        assert!(slot + link <= 88, "{slot} + {link} bytes");
    }
}
