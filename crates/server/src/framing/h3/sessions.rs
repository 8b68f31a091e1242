//! WebTransport sessions. Each message stream is a socket: the server opens one with the session, and the client may
//! open further ones.
//!
//! ```text
//!   CONNECT stream  ─▶ the session: its request, its end with a code and a reason
//!   message streams ─▶ sockets: Session and Handler of the worker
//!   datagrams       ─▶ whole messages, of the first of the sockets
//! ```

use std::rc::Rc;

use bytes::Bytes;
use sinews_engine::ConnId;
use sinews_http::h3::{H3Code, QuicStreamId};
use sinews_proto::Time;

use super::{H3Conn, H3Streams, SocketChange};
use crate::exchange::RetainedRequest;
use crate::framing::streams::{OpenedSocket, RequestStreams as _, SocketSlot};
use crate::shared::WorkerShared;

/// A session's message streams that are open at a time. Each has a handler and subscriptions.
const MESSAGE_STREAMS_MAX: usize = 16;

/// Code for a unidirectional stream, which carries no messages: "unsupported data" in WebSockets.
const UNSUPPORTED: u32 = 1003;

/// Code for a message stream beyond the limit, and for a session whose client permits no bidirectional stream: "try
/// again later" in WebSockets.
const TRY_LATER: u32 = 1013;

/// Code for a message stream whose request is rejected, beside its status.
const REJECTED: u32 = 4000;

/// A session's message stream.
#[derive(Debug)]
pub(crate) struct MessageStream {
    pub(crate) session: QuicStreamId,
    pub(crate) stream: QuicStreamId,
    /// The request for the session.
    request: Rc<RetainedRequest>,
    /// The client has sent bytes on it.
    has_input: bool,
    /// The server has opened it, and the client uses its own instead.
    is_replaced: bool,
    /// The client has closed the session.
    is_closed: bool,
}

impl MessageStream {
    fn new(session: QuicStreamId, stream: QuicStreamId, request: Rc<RetainedRequest>) -> Self {
        Self { session, stream, request, has_input: false, is_replaced: false, is_closed: false }
    }

    /// Returns the memory in bytes.
    pub(super) fn memory(&self) -> usize {
        size_of::<Self>() + self.request.len()
    }
}

/// How a session ends.
pub(crate) enum SessionEnd {
    /// By the socket's Close.
    Closed(u32, Box<str>),
    /// The client has ended its side.
    Finished,
    Cancelled,
}

impl SessionEnd {
    /// The code for a message stream that ends before its session.
    fn stream_code(&self) -> H3Code {
        H3Code::from_session_code(match self {
            Self::Closed(code, _) => *code,
            Self::Finished | Self::Cancelled => 0,
        })
    }
}

impl H3Conn {
    fn streams_of(&self, session: QuicStreamId) -> impl Iterator<Item = &MessageStream> {
        self.sessions.iter().filter(move |found| found.session == session)
    }

    /// Returns the socket for a session's datagrams: its first stream's.
    pub(crate) fn socket_of_session(&self, session: QuicStreamId) -> Option<ConnId> {
        let first = self.streams_of(session).min_by_key(|found| (found.is_replaced, found.stream))?;
        self.sockets.get(first.stream)
    }

    /// Returns the sockets in a session that the client has closed.
    pub(super) fn closed_session(&mut self, session: QuicStreamId) -> Vec<ConnId> {
        let streams = self.sessions.iter_mut().filter(|found| found.session == session);
        let sockets = streams.map(|found| {
            found.is_closed = true;
            self.sockets.get(found.stream)
        });
        sockets.flatten().collect()
    }

    /// Whether a stream carries a session's messages.
    pub(super) fn carries_messages(&self, stream: QuicStreamId) -> bool {
        self.sessions.iter().any(|found| found.stream == stream)
    }

    /// Notes that the client has sent bytes on a stream.
    pub(super) fn note_input(&mut self, stream: QuicStreamId) {
        if let Some(found) = self.sessions.iter_mut().find(|found| found.stream == stream) {
            found.has_input = true;
        }
    }

    /// Returns the sockets of the streams that the server has opened, if their clients use their own streams instead.
    /// Call it after all events from a datagram: it may bring bytes for the server's stream, too.
    pub(crate) fn take_replaced(&mut self) -> Vec<ConnId> {
        let mut replaced = Vec::new();
        for session in std::mem::take(&mut self.has_own_stream) {
            let is_unused = |found: &&mut MessageStream| {
                found.session == session && !found.stream.is_by_client() && !found.has_input
            };
            if let Some(found) = self.sessions.iter_mut().find(is_unused)
                && !std::mem::replace(&mut found.is_replaced, true)
            {
                replaced.extend(self.sockets.get(found.stream));
            }
        }
        replaced
    }

    /// Removes a message stream's socket, and ends the session with the last one. `ended`: the stream has ended behind
    /// all messages.
    pub(crate) fn remove_session(&mut self, stream: QuicStreamId, ended: bool, end: SessionEnd, now: Time) {
        self.changes.push(SocketChange::EndSession { stream, ended, end });
        self.sockets.remove(stream);
        self.table.idle_since = now;
    }
}

impl H3Streams<'_, '_> {
    /// Opens an accepted session's message stream. `None`: the client permits none, and the session ends.
    pub(super) fn open_message_stream(
        &mut self,
        session: QuicStreamId,
        request: Box<RetainedRequest>,
    ) -> Option<QuicStreamId> {
        if let Ok(Some(stream)) = self.exchanges.open_session_stream(session, false) {
            self.conn.sessions.push(MessageStream::new(session, stream, request.into()));
            return Some(stream);
        }
        let _ = self.exchanges.close_session(session, TRY_LATER, "client permits no bidirectional stream");
        None
    }

    /// Creates the socket for a stream that the client has opened in a session, or rejects the stream.
    pub(super) fn accept_message_stream(
        &mut self,
        stream: QuicStreamId,
        session: QuicStreamId,
        shared: &mut WorkerShared,
    ) {
        let accepted = if stream.is_unidirectional() {
            Err(UNSUPPORTED)
        } else {
            self.create_socket(stream, session, shared)
        };
        match accepted {
            Ok(opened) => self.conn.table.opened = Some(opened),
            Err(code) => self.exchanges.reject_session_stream(stream, code),
        }
    }

    fn create_socket(
        &mut self,
        stream: QuicStreamId,
        session: QuicStreamId,
        shared: &mut WorkerShared,
    ) -> Result<Box<OpenedSocket>, u32> {
        let first = self.conn.streams_of(session).next().ok_or(TRY_LATER)?;
        let request = Rc::clone(&first.request);
        if self.conn.streams_of(session).count() >= MESSAGE_STREAMS_MAX {
            return Err(TRY_LATER);
        }
        let (router, peer) = (Rc::clone(&shared.router), self.conn.table.peer);
        let accepted = request.with_exchange(&[], peer, None, &router, |exchange| {
            let route = exchange.websocket_route().ok_or(404_u16)?;
            let accepted = self.accept_socket(route, exchange, shared);
            accepted.map_err(|refusal| exchange.complete_refusal(refusal, &mut shared.services).status())
        });
        let (handshake, slot) = accepted.map_err(|status| REJECTED + u32::from(status))?;
        self.conn.sessions.push(MessageStream::new(session, stream, request));
        if slot != SocketSlot::Rejected {
            self.conn.has_own_stream.push(session);
        }
        Ok(Box::new(OpenedSocket { stream: stream.into(), upgrade: handshake.upgrade, ends: false, slot }))
    }

    /// Ends a message stream whose socket is removed, and the session with the last one.
    pub(super) fn end_session(&mut self, stream: QuicStreamId, ended: bool, end: SessionEnd) {
        let Some(at) = self.conn.sessions.iter().position(|found| found.stream == stream) else { return };
        let MessageStream { session, is_closed, .. } = self.conn.sessions.swap_remove(at);
        let is_last = self.conn.streams_of(session).next().is_none();
        let code = if is_last { H3Code::WEBTRANSPORT_SESSION_GONE } else { end.stream_code() };
        if ended {
            // The messages still leave.
            self.exchanges.reset(stream, code);
        } else {
            self.exchanges.reset_session_stream(stream, code);
        }
        if !is_last {
            return;
        }
        // A stream that exists no longer has ended.
        let _ = match end {
            SessionEnd::Closed(code, reason) if !is_closed => {
                self.exchanges.close_session(session, code, &reason)
            }
            SessionEnd::Cancelled if !is_closed => {
                return self.exchanges.reset(session, H3Code::H3_REQUEST_CANCELLED);
            }
            _ => self.exchanges.send_data(session, Bytes::new(), true),
        };
    }
}
