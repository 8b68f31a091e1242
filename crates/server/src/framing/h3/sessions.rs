//! Sessions of WebTransport: each is a socket, whose messages use a bidirectional stream that the server opens.
//!
//! ```text
//!   CONNECT stream ─▶ the session: its request, its end with a code and a reason
//!   message stream ─▶ the socket: Session and Handler of the worker
//!   datagrams      ─▶ whole messages beside that stream
//! ```

use bytes::Bytes;
use sinews_engine::ConnId;
use sinews_http::h3::{H3Code, QuicStreamId};
use sinews_proto::Time;

use super::{H3Conn, H3Streams, SocketChange};

/// Code of the application for a stream that the client opens in a session: its messages belong on the message stream.
const UNEXPECTED_STREAM: u32 = 0;

/// Code of a session whose client permits no bidirectional stream: "try again later" of WebSockets.
const NO_STREAM: u32 = 1013;

/// A session, and the stream of its messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageStream {
    pub(crate) session: QuicStreamId,
    pub(crate) stream: QuicStreamId,
    /// The client has closed the session.
    is_closed: bool,
}

/// How a session ends.
pub(crate) enum SessionEnd {
    /// By a Close of the socket.
    Closed(u32, Box<str>),
    /// The client has ended its side.
    Finished,
    Cancelled,
}

impl H3Conn {
    /// Returns the socket of a session.
    pub(crate) fn socket_of_session(&self, session: QuicStreamId) -> Option<ConnId> {
        let found = self.sessions.iter().find(|found| found.session == session)?;
        self.sockets.of(found.stream)
    }

    /// Returns the socket of a session that the client has closed.
    pub(super) fn closed_session(&mut self, session: QuicStreamId) -> Option<ConnId> {
        let found = self.sessions.iter_mut().find(|found| found.session == session)?;
        found.is_closed = true;
        self.sockets.of(found.stream)
    }

    /// Removes the socket of a session, and ends the session. `ended`: the message stream has ended behind all messages.
    pub(crate) fn remove_session(&mut self, stream: QuicStreamId, ended: bool, end: SessionEnd, now: Time) {
        self.changes.push(SocketChange::EndSession { stream, ended, end });
        self.sockets.remove(stream);
        self.table.idle_since = now;
    }
}

/// Whether a stream carries the messages of a session: clients open all others.
pub(super) fn carries_messages(stream: QuicStreamId) -> bool {
    !stream.is_by_client()
}

impl H3Streams<'_, '_> {
    /// Opens the message stream of a session that is accepted. `None`: the client permits none, and the session ends.
    pub(super) fn open_message_stream(&mut self, session: QuicStreamId) -> Option<QuicStreamId> {
        if let Ok(Some(stream)) = self.exchanges.open_session_stream(session, false) {
            self.conn.sessions.push(MessageStream { session, stream, is_closed: false });
            return Some(stream);
        }
        let _ = self.exchanges.close_session(session, NO_STREAM, "client permits no bidirectional stream");
        None
    }

    /// Rejects a stream that the client has opened in a session.
    pub(super) fn reject_session_stream(&mut self, stream: QuicStreamId) {
        self.exchanges.reject_session_stream(stream, UNEXPECTED_STREAM);
    }

    /// Ends a session whose socket is removed.
    pub(super) fn end_session(&mut self, stream: QuicStreamId, ended: bool, end: SessionEnd) {
        let Some(at) = self.conn.sessions.iter().position(|found| found.stream == stream) else { return };
        let MessageStream { session, is_closed, .. } = self.conn.sessions.swap_remove(at);
        if ended {
            // The messages still leave.
            self.exchanges.reset(stream, H3Code::WEBTRANSPORT_SESSION_GONE);
        } else {
            self.exchanges.reset_session_stream(stream, H3Code::WEBTRANSPORT_SESSION_GONE);
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
