//! The callbacks and types that an application implements for the loop.

use std::io::{Cursor, IoSlice};
use std::net::SocketAddr;

use bytes::Bytes;

use crate::{Append, CloseReason, ConnId, DatagramSocket, Io};

/// An application on a loop. One value per thread; every callback runs on that thread, one at a time.
///
/// Callbacks may call any command of [`Io`] on any connection, including closed ones. Commands are only
/// recorded, and executed when no callback is running.
pub trait App: Sized {
    /// The bytes of one send.
    type Chain: SendChain + 'static;

    /// The mail that other threads may post to this loop, see [`Post`](crate::Post).
    type Mail: Send + 'static;

    /// Called once, before all other callbacks, on the thread that runs the loop. An application may
    /// connect from here. Default: no action.
    fn started(&mut self, io: &mut Io) {
        let _ = io;
    }

    /// A connection was accepted. `conn` identifies it until [`closed`](Self::closed), which follows
    /// exactly once. Default: no action.
    fn accepted(&mut self, io: &mut Io, conn: ConnId, from: ConnectionOrigin) {
        let _ = (io, conn, from);
    }

    /// A connection of [`Io::connect`] is established. If the attempt fails, [`closed`](Self::closed) is
    /// called instead, with the reason. Default: no action.
    fn connected(&mut self, io: &mut Io, conn: ConnId) {
        let _ = (io, conn);
    }

    /// Bytes were received. `chunk` is never empty, is borrowed until return, and may be modified in place.
    /// [`Flow::Pause`] stops receiving until [`Io::resume`].
    fn received(&mut self, io: &mut Io, conn: ConnId, chunk: &mut [u8]) -> Flow;

    /// Whether the rest of a message is large enough to receive it into the application's own buffer
    /// instead of the loop's. Called after large receives. Default: no.
    fn awaits_large(&self, conn: ConnId) -> bool {
        let _ = conn;
        false
    }

    /// Lends the application's buffer. [`received_large`](Self::received_large) returns it, with or without
    /// new bytes, and no other bytes are received before. If the connection closes, the buffer is dropped.
    fn lend_large(&mut self, conn: ConnId) -> Option<LargeBuffer> {
        let _ = conn;
        None
    }

    /// Takes the buffer back; its last `received` bytes are new. Otherwise as [`received`](Self::received).
    fn received_large(&mut self, io: &mut Io, conn: ConnId, buffer: Vec<u8>, received: usize) -> Flow {
        let _ = (io, conn, buffer, received);
        Flow::Continue
    }

    /// The peer shut down its sending side (FIN): no more bytes are received. Sending still works.
    fn ended(&mut self, io: &mut Io, conn: ConnId);

    /// Returns all queued bytes for one send. Called once at the end of a turn, for each connection that
    /// called [`Io::send`] or [`Io::shutdown`] and has no send in flight. `None`: the queue is empty. Default: `None`.
    fn start_send(&mut self, conn: ConnId) -> Option<Self::Chain> {
        let _ = conn;
        None
    }

    /// Connections to which [`end_turn`](Self::end_turn) is about to send, as far as known. With any, answers wait for
    /// the end of the turn, so that one send carries both. With many, the loop first delivers the input that has
    /// arrived meanwhile: one send per connection then answers more of it. Default: none.
    fn pending_sends(&self) -> usize {
        0
    }

    /// All events of the turn are delivered, and its commands are executed next. Default: no action.
    fn end_turn(&mut self, io: &mut Io) {
        let _ = io;
    }

    /// Whether [`end_turn`](Self::end_turn) has left some sends for a further call. The loop executes the commands,
    /// delivers the input that has arrived meanwhile, and calls `end_turn` again, in the same turn: with many sends,
    /// the later ones carry that input too. The application bounds the number of calls. Default: no.
    fn continues_turn(&self) -> bool {
        false
    }

    /// The kernel did not take all bytes of an [`Io::broadcast`] to this connection: `rest` is left. Returns
    /// the chain with these bytes, which becomes the chain in flight. Default: `None`, which closes the
    /// connection.
    fn take_unsent(&mut self, io: &mut Io, conn: ConnId, rest: Bytes) -> Option<Self::Chain> {
        let _ = (io, conn, rest);
        None
    }

    /// The kernel took `bytes` of the chain in flight, and the rest waits for the peer. An application may
    /// extend the deadline of a stalled peer here.
    fn progressed(&mut self, io: &mut Io, conn: ConnId, bytes: usize) {
        let _ = (io, conn, bytes);
    }

    /// Takes the chain back. `complete` means that the kernel took all of it; otherwise the connection failed
    /// or was closed, and [`closed`](Self::closed) follows. Default: drops the chain.
    fn finish_send(&mut self, io: &mut Io, conn: ConnId, chain: Self::Chain, complete: bool) {
        let _ = (io, conn, chain, complete);
    }

    /// Whether [`finish_send`](Self::finish_send) of the chain in flight may be delayed until the next
    /// event on this loop (a receive, mail, a timer), or by at most one second. Called for each chain in
    /// flight when the loop is about to sleep, so the answer covers all events up to then. Default: no.
    ///
    /// A ring learns that the kernel took a chain on its next return from the kernel, which is after its
    /// sleep. An application whose `finish_send` only reclaims memory returns `true` and saves a system
    /// call per message under low load. An application with more bytes to send behind the chain, or with
    /// other work in `finish_send`, returns `false`. After [`Io::send`], a pause, a shutdown or a close on
    /// that connection, the loop does not sleep in any case.
    fn finish_may_wait(&self, conn: ConnId) -> bool {
        let _ = conn;
        false
    }

    /// No operation is in flight and the socket is closed. The id is never used again. Default: no action.
    fn closed(&mut self, io: &mut Io, conn: ConnId, reason: CloseReason) {
        let _ = (io, conn, reason);
    }

    /// The connection's timer, set by [`Io::set_timer`], has expired. It is now unset.
    fn timer(&mut self, io: &mut Io, conn: ConnId) {
        let _ = (io, conn);
    }

    /// An append from [`Io::append`] has completed. On success all bytes are in the file, and on disk if a sync was
    /// requested. On failure [`Append::written`] bytes are in the file; if that is all of them, the sync has failed.
    /// Default: no action.
    fn appended(&mut self, io: &mut Io, append: Append, result: std::io::Result<()>) {
        let _ = (io, append, result);
    }

    /// The loop's own timer, set by [`Io::set_app_timer`], has expired. It is now unset.
    fn app_timer(&mut self, io: &mut Io) {
        let _ = io;
    }

    /// The loop's second timer, set by [`Io::set_batch_timer`], has expired. It is now unset.
    fn batch_timer(&mut self, io: &mut Io) {
        let _ = io;
    }

    /// A socket of [`Engine::add_datagrams`](crate::Engine::add_datagrams) may have datagrams. The application receives a bounded
    /// number, and returns whether more may be available: then the next turn calls again, without a wait. Default: receives and
    /// drops them.
    fn datagrams(&mut self, io: &mut Io, index: usize, socket: &mut DatagramSocket) -> bool {
        let _ = (io, index);
        socket.receive(|_| ()).unwrap_or(false)
    }

    /// The loop's third timer, set by [`Io::set_datagram_timer`], has expired. It is now unset.
    fn datagram_timer(&mut self, io: &mut Io) {
        let _ = io;
    }

    /// All mail that other threads have posted since the last call, in order; possibly empty after
    /// [`Post::wake`](crate::Post::wake). Mail left in the vector on return is dropped. Default: no action.
    fn mail(&mut self, io: &mut Io, mail: &mut Vec<Self::Mail>) {
        let _ = (io, mail);
    }
}

/// A buffer of the application to receive into, behind its content: see [`App::lend_large`].
#[expect(clippy::exhaustive_structs, reason = "applications construct it")]
#[derive(Debug, Default)]
pub struct LargeBuffer {
    /// Contains the bytes received so far. The loop receives into its spare capacity and does not grow it.
    pub buffer: Vec<u8>,
    /// Limit of the bytes to receive.
    pub limit: usize,
}

/// The bytes of one send: moved out of [`App::start_send`], moved back into [`App::finish_send`], never
/// copied by the loop.
pub trait SendChain {
    /// Number of bytes that are not sent yet.
    fn len(&self) -> usize;

    /// Whether all bytes are sent.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `out` with the first unsent slices, none of them empty, and returns the number of filled
    /// entries. It may omit slices that do not fit; they are requested again later.
    fn slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize;

    /// Marks the first `bytes` as sent: [`len`](Self::len) shrinks by that number. Never more than `len`.
    fn advance(&mut self, bytes: usize);
}

/// The simplest chain: a vector, from the cursor's position on.
impl SendChain for Cursor<Vec<u8>> {
    fn len(&self) -> usize {
        // Only `advance` moves the position, within the vector.
        self.get_ref().len().saturating_sub(self.position() as usize)
    }

    fn slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        if SendChain::is_empty(self) {
            return 0;
        }
        out[0] = IoSlice::new(&self.get_ref()[self.position() as usize..]);
        1
    }

    fn advance(&mut self, bytes: usize) {
        self.set_position(self.position() + bytes as u64);
    }
}

/// Whether to continue receiving on this connection.
#[expect(clippy::exhaustive_enums, reason = "applications return it and never match on it")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Continue: the next chunk may be received at once.
    Continue,
    /// Pause until [`Io::resume`]: received bytes wait in the kernel, and TCP throttles the peer.
    Pause,
}

/// The origin of a connection.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ConnectionOrigin {
    /// Index of the listener in the vector passed to [`Engine::new`](crate::Engine::new).
    pub listener: usize,
    /// The peer's address; `0.0.0.0:0` for a connection through a Unix socket.
    pub peer: SocketAddr,
}
