//! Streams that carry sockets: WebSockets by extended CONNECT (RFC 8441, RFC 9220), and streaming response bodies.
//!
//! The worker owns a socket; the connection knows its stream, and whether it has output that the windows permit.

use std::collections::VecDeque;
use std::mem;

use sinews_engine::ConnId;
use sinews_proto::Time;

use crate::timer::NEVER;

/// A connection's sockets.
pub(crate) struct SocketTable<I> {
    /// In stream order.
    sockets: Vec<SocketStream<I>>,
    /// Streams with output, ordered by their turns.
    ready: VecDeque<I>,
    /// Sockets whose output has moved to the connection, until it has left.
    pub(crate) moved: Vec<ConnId>,
    /// No later than the first socket deadline.
    pub(crate) due: Time,
    /// Queued bytes for all streaming responses.
    responses: usize,
}

/// A socket's stream.
struct SocketStream<I> {
    stream: I,
    socket: ConnId,
    /// It is in the queue of streams with output.
    ready: bool,
    /// A window is closed.
    blocked: bool,
    /// A streaming response's queued bytes.
    response: usize,
}

/// Socket output that has moved to its connection.
pub(crate) struct SentFrame {
    pub(crate) bytes: usize,
    /// It ends the stream.
    pub(crate) ends: bool,
}

impl<I: Copy + Ord> SocketTable<I> {
    pub(crate) const fn new() -> Self {
        Self { sockets: Vec::new(), ready: VecDeque::new(), moved: Vec::new(), due: NEVER, responses: 0 }
    }

    fn position(&self, stream: I) -> Option<usize> {
        self.sockets.binary_search_by_key(&stream, |socket| socket.stream).ok()
    }

    /// Returns a stream's socket.
    pub(crate) fn get(&self, stream: I) -> Option<ConnId> {
        Some(self.sockets[self.position(stream)?].socket)
    }

    pub(crate) fn list(&self) -> Vec<ConnId> {
        self.sockets.iter().map(|socket| socket.socket).collect()
    }

    /// Takes the sockets on a connection that ends without its streams.
    pub(crate) fn take(&mut self) -> Vec<ConnId> {
        let sockets = self.list();
        (self.sockets, self.ready, self.due) = (Vec::new(), VecDeque::new(), NEVER);
        self.responses = 0;
        sockets
    }

    /// Takes the sockets whose windows are closed.
    pub(crate) fn take_blocked(&mut self) -> Vec<ConnId> {
        let blocked = self
            .sockets
            .iter_mut()
            .filter_map(|socket| mem::take(&mut socket.blocked).then_some(socket.socket));
        blocked.collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sockets.is_empty()
    }

    /// Returns the memory in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.sockets.capacity() * size_of::<SocketStream<I>>()
    }

    /// Adds a socket. Its stream is mostly the latest; an upload may have delayed its answer.
    pub(crate) fn add(&mut self, stream: I, socket: ConnId) {
        let at = self.sockets.partition_point(|known| known.stream < stream);
        self.sockets.insert(at, SocketStream { stream, socket, ready: false, blocked: false, response: 0 });
    }

    pub(crate) fn remove(&mut self, stream: I) {
        let Some(at) = self.position(stream) else { return };
        self.responses -= self.sockets.remove(at).response;
        if self.sockets.is_empty() {
            (self.sockets, self.ready, self.due) = (Vec::new(), VecDeque::new(), NEVER);
        }
    }

    /// Notes a streaming response's queued bytes. Returns whether they have become fewer.
    pub(crate) fn note_response(&mut self, stream: I, bytes: usize) -> bool {
        let Some(at) = self.position(stream) else { return false };
        let before = mem::replace(&mut self.sockets[at].response, bytes);
        self.responses = self.responses - before + bytes;
        bytes < before
    }

    /// Returns the queued bytes for all streaming responses.
    pub(crate) const fn responses(&self) -> usize {
        self.responses
    }

    /// Notes that a socket has output, or has to end its stream.
    pub(crate) fn mark_ready(&mut self, stream: I) {
        let Some(at) = self.position(stream) else { return };
        let socket = &mut self.sockets[at];
        if !socket.blocked && !mem::replace(&mut socket.ready, true) {
            self.ready.push_back(stream);
        }
    }

    /// Notes that a stream's window is closed.
    pub(crate) fn mark_blocked(&mut self, stream: I) {
        if let Some(at) = self.position(stream) {
            self.sockets[at].blocked = true;
        }
    }

    /// Queues the sockets whose windows may have opened: on one stream, or on all.
    pub(crate) fn unblock(&mut self, stream: Option<I>) {
        for socket in &mut self.sockets {
            let is_meant = stream.is_none_or(|stream| stream == socket.stream);
            if is_meant && mem::take(&mut socket.blocked) {
                socket.ready = true;
                self.ready.push_back(socket.stream);
            }
        }
    }

    /// Returns whether output of sockets can be queued now.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes the next socket with output.
    pub(crate) fn take_ready(&mut self) -> Option<(I, ConnId)> {
        while let Some(stream) = self.ready.pop_front() {
            if let Some(at) = self.position(stream) {
                self.sockets[at].ready = false;
                return Some((stream, self.sockets[at].socket));
            }
        }
        None
    }
}
