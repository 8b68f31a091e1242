//! What the loop asks of the server above it.

use std::io::{Cursor, IoSlice};
use std::net::SocketAddr;

use crate::{Append, ConnId, Io};

/// What lives on a loop. One value per thread; every callback runs on that thread, one at a time.
///
/// Callbacks may call any command of [`Io`] on any connection, also on one that has gone: commands are only
/// recorded, and carried out when no callback is running.
pub trait App: Sized {
    /// Bytes that leave in one send.
    type Chain: Chain + 'static;

    /// What other threads may post to this loop, see [`Post`](crate::Post).
    type Mail: Send + 'static;

    /// The loop begins: called once, before everything else, on the thread that runs it. The place of an
    /// application that connects on its own account to do so. Default: nothing.
    fn started(&mut self, io: &mut Io) {
        let _ = io;
    }

    /// A connection has come. From here to [`closed`](Self::closed), which follows exactly once, `conn`
    /// names it.
    fn accepted(&mut self, io: &mut Io, conn: ConnId, from: Accepted);

    /// A connection asked for by [`Io::connect`] is made. If it cannot be made, [`closed`](Self::closed) comes
    /// in place of this and tells why. Default: nothing.
    fn connected(&mut self, io: &mut Io, conn: ConnId) {
        let _ = (io, conn);
    }

    /// Bytes have come. `chunk` is never empty, is lent until return, and may be modified in place.
    /// [`Flow::Pause`] stops receiving until [`Io::resume`].
    fn received(&mut self, io: &mut Io, conn: ConnId, chunk: &mut [u8]) -> Flow;

    /// Whether so much is still to come, to a place of the application's own, that it should be received there
    /// and not into the loop's buffer: asked when much comes. Default: no.
    fn awaits_large(&self, conn: ConnId) -> bool {
        let _ = conn;
        false
    }

    /// Lends that place. It comes back in [`received_large`](Self::received_large), with or without something
    /// received, and nothing else is received before; or it is dropped, if the connection closes.
    fn lend_large(&mut self, conn: ConnId) -> Option<Large> {
        let _ = conn;
        None
    }

    /// The buffer is back, and its last `received` bytes are new. Otherwise as [`received`](Self::received).
    fn received_large(&mut self, io: &mut Io, conn: ConnId, buffer: Vec<u8>, received: usize) -> Flow {
        let _ = (io, conn, buffer, received);
        Flow::Continue
    }

    /// The peer ended its sending side (FIN): nothing more is received. Sending still works.
    fn ended(&mut self, io: &mut Io, conn: ConnId);

    /// Asked at the end of a turn, once, for each connection that called [`Io::send`] or [`Io::shutdown`]
    /// and has no send in flight: everything queued, to leave together. `None`: nothing is queued.
    fn start_send(&mut self, conn: ConnId) -> Option<Self::Chain>;

    /// The kernel took `bytes` of the chain in flight, and the rest waits for the peer. A place to move the
    /// deadline of a stalled peer.
    fn progressed(&mut self, io: &mut Io, conn: ConnId, bytes: usize) {
        let _ = (io, conn, bytes);
    }

    /// The chain is home. `complete` says that all of it was handed to the kernel; otherwise the connection
    /// has failed or was closed, and [`closed`](Self::closed) follows.
    fn finish_send(&mut self, io: &mut Io, conn: ConnId, chain: Self::Chain, complete: bool);

    /// Whether [`finish_send`](Self::finish_send) of the chain in flight may wait until something else happens on this
    /// loop (a receive, mail, a timer), or a second has passed. Asked for each chain that has not come home when the loop
    /// is about to sleep, so the answer counts for what has happened until then. Default: no.
    ///
    /// A ring knows that the kernel took a chain when it next comes back from it, which is after it has
    /// slept. An application that does nothing in `finish_send` but take its memory back answers yes and
    /// saves a system call per message when there is little to do. One that has more to send behind the chain, or does
    /// anything else when it is home, answers no. After [`Io::send`], a pause, a shutdown or a close on that connection the
    /// loop does not sleep all the same.
    fn finish_may_wait(&self, conn: ConnId) -> bool {
        let _ = conn;
        false
    }

    /// No operation is in flight and the socket is closed. The id is never seen again.
    fn closed(&mut self, io: &mut Io, conn: ConnId, why: Closed);

    /// The connection's timer, set by [`Io::set_timer`], is due. It is unset now.
    fn timer(&mut self, io: &mut Io, conn: ConnId) {
        let _ = (io, conn);
    }

    /// An append that was handed over by [`Io::append`] is done: everything is in the file, and on the disk if that was
    /// asked for. Or it has failed: [`Append::written`] bytes are in the file, and if those were all of them, syncing
    /// has failed. Default: nothing.
    fn appended(&mut self, io: &mut Io, append: Append, result: std::io::Result<()>) {
        let _ = (io, append, result);
    }

    /// The loop's own timer, set by [`Io::set_app_timer`], is due. It is unset now.
    fn app_timer(&mut self, io: &mut Io) {
        let _ = io;
    }

    /// Everything other threads have posted since the last time, in order; nothing, after
    /// [`Post::wake`](crate::Post::wake). What is left in `mail` on return is dropped.
    fn mail(&mut self, io: &mut Io, mail: &mut Vec<Self::Mail>);
}

/// A buffer of the application's to receive into, behind what it holds: see [`App::lend_large`].
#[expect(clippy::exhaustive_structs, reason = "an application makes it")]
#[derive(Debug, Default)]
pub struct Large {
    /// Holds what has come before; its spare capacity is received into and does not grow.
    pub buffer: Vec<u8>,
    /// Bytes that may come behind that, at most.
    pub most: usize,
}

/// Bytes that leave in one send: handed over by value in [`App::start_send`], returned by value in
/// [`App::finish_send`], never copied by the loop.
pub trait Chain {
    /// Bytes that have not left yet.
    fn len(&self) -> usize;

    /// Whether all bytes have left.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `out` from the front with the first slices of what has not left, none of them empty, and
    /// returns how many it filled. It need not show everything: what does not fit is asked for again later.
    fn slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize;

    /// The first `bytes` have left: [`len`](Self::len) shrinks by as much. Never more than `len`.
    fn advance(&mut self, bytes: usize);
}

/// The simplest chain: one vector, from the cursor's position on.
impl Chain for Cursor<Vec<u8>> {
    fn len(&self) -> usize {
        // The position only moves by `advance`, within the vector.
        self.get_ref().len().saturating_sub(self.position() as usize)
    }

    fn slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        if Chain::is_empty(self) {
            return 0;
        }
        out[0] = IoSlice::new(&self.get_ref()[self.position() as usize..]);
        1
    }

    fn advance(&mut self, bytes: usize) {
        self.set_position(self.position() + bytes as u64);
    }
}

/// Whether to go on receiving on this connection.
#[expect(clippy::exhaustive_enums, reason = "an application answers with it and never matches on it")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The next chunk may come at once.
    Continue,
    /// Nothing more until [`Io::resume`]: what the peer sends waits in the kernel, and TCP holds the peer.
    Pause,
}

/// Where a connection came from.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Accepted {
    /// Which listener, by its place in the vector given to [`Engine::new`](crate::Engine::new).
    pub listener: usize,
    /// The peer's address; `0.0.0.0:0` of one that came through a Unix socket.
    pub peer: SocketAddr,
}

/// Why a connection was closed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Closed {
    /// By [`Io::close`].
    Requested,
    /// Both directions ended in order: the peer's, and ours by [`Io::shutdown`].
    Finished,
    /// The peer reset the connection, or was gone when something was sent.
    Reset,
    /// The loop is stopping, by [`Io::stop`].
    Stopped,
    /// The socket failed in another way, for instance by a timeout of TCP; or it could not be connected, for
    /// instance because the peer refused ([`ConnectionRefused`](std::io::ErrorKind::ConnectionRefused)).
    Error(std::io::Error),
}

impl From<std::io::Error> for Closed {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
        match error.kind() {
            BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected => Self::Reset,
            _ => Self::Error(error),
        }
    }
}
