//! The connection of a socket on a stream.

use sinews_engine::ConnId;
use sinews_proto::Time;

use super::conn::{ClientConn, ConnProtocol};
use super::quic::Http3Conns;
use crate::framing::h2::H2Conn;
use crate::framing::h3::{H3Conn, SessionEnd};
use crate::framing::streams::{RequestStreams as _, StreamKey, StreamReset};
use crate::shared::WorkerShared;

pub(super) enum SocketParent<'a> {
    Http2(&'a mut H2Conn),
    Http3(&'a mut H3Conn),
}

/// Calls the connection with its stream; a stream of the other version does not occur.
macro_rules! on_stream {
    ($parent:expr, $stream:expr, $h2:ident, $h3:ident, $id:ident => $http2:expr, $http3:expr) => {
        match ($parent, $stream) {
            (SocketParent::Http2($h2), StreamKey::Http2($id)) => $http2,
            (SocketParent::Http3($h3), StreamKey::Http3($id)) => $http3,
            _ => {}
        }
    };
}

impl<'a> SocketParent<'a> {
    pub(super) fn find(
        conns: &'a mut [Option<ClientConn>],
        http3: &'a mut Http3Conns,
        conn: ConnId,
    ) -> Option<Self> {
        let found = match conns.get_mut(conn.index()) {
            Some(found) => found.as_mut().filter(|found| found.id == conn)?,
            None => http3.get(conn)?,
        };
        match &mut found.protocol {
            ConnProtocol::Http2(http2) => Some(Self::Http2(http2)),
            ConnProtocol::Http3(http3) => Some(Self::Http3(http3)),
            _ => None,
        }
    }

    /// Returns whether the connection uses TCP, and has no socket.
    pub(super) fn is_first_on_tcp(&self) -> bool {
        matches!(self, Self::Http2(http2) if http2.sockets.is_empty())
    }

    pub(super) fn add(&mut self, stream: StreamKey, socket: ConnId) {
        on_stream!(self, stream, h2, h3, id => h2.sockets.add(id, socket), h3.sockets.add(id, socket));
    }

    pub(super) fn mark_ready(&mut self, stream: StreamKey) {
        on_stream!(self, stream, h2, h3, id => h2.sockets.mark_ready(id), h3.sockets.mark_ready(id));
    }

    /// Notes the queued bytes of a streaming response. Returns whether a request of the connection waits for them.
    pub(super) fn note_response(&mut self, stream: StreamKey, bytes: usize) -> bool {
        match (self, stream) {
            (Self::Http2(http2), StreamKey::Http2(id)) => {
                http2.sockets.note_response(id, bytes) && http2.table.has_waiting
            }
            (Self::Http3(http3), StreamKey::Http3(id)) => {
                http3.sockets.note_response(id, bytes) && http3.table.has_waiting
            }
            _ => false,
        }
    }

    /// Returns whether a request of the connection waits for queued answers.
    pub(super) fn has_waiting(&self) -> bool {
        match self {
            Self::Http2(http2) => http2.table.has_waiting,
            Self::Http3(http3) => http3.table.has_waiting,
        }
    }

    /// Returns consumed bytes to the window of a stream. QUIC does so by itself, unless the stream was
    /// [held](Self::hold).
    pub(super) fn release(&mut self, stream: StreamKey, bytes: usize, was_held: bool) {
        on_stream!(self, stream, h2, h3, id => h2.release(id, bytes), {
            if was_held {
                h3.resume_stream(id);
            }
        });
    }

    /// Keeps the window of a stream closed: the session has paused reads.
    pub(super) fn hold(&mut self, stream: StreamKey) {
        on_stream!(self, stream, h2, h3, id => h2.hold(id), h3.pause_stream(id));
    }

    pub(super) fn end_stream(&mut self, stream: StreamKey, shared: &mut WorkerShared) {
        on_stream!(self, stream, h2, h3, id => h2.end_stream(id, shared), h3.end_stream(id));
    }

    /// Removes a socket, and resets its stream unless it has ended.
    pub(super) fn remove_socket(&mut self, stream: StreamKey, reset: StreamReset, now: Time) {
        on_stream!(self, stream, h2, h3, id =>
            h2.remove_socket(id, reset.into(), now), h3.remove_socket(id, reset, now));
    }

    /// Removes the socket of a session of WebTransport, and ends the session.
    pub(super) fn remove_session(&mut self, stream: StreamKey, ended: bool, end: SessionEnd, now: Time) {
        if let (Self::Http3(http3), StreamKey::Http3(stream)) = (self, stream) {
            http3.remove_session(stream, ended, end, now);
        }
    }

    /// Notes that no socket has the slot of the connection.
    pub(super) fn return_slot(&mut self) {
        match self {
            Self::Http2(http2) => http2.table.is_slot_taken = false,
            Self::Http3(http3) => http3.table.is_slot_taken = false,
        }
    }

    /// The first deadline of a socket.
    pub(super) fn due(&mut self) -> &mut Time {
        match self {
            Self::Http2(http2) => &mut http2.sockets.due,
            Self::Http3(http3) => &mut http3.sockets.due,
        }
    }

    pub(super) fn sockets(&self) -> Vec<ConnId> {
        match self {
            Self::Http2(http2) => http2.sockets.list(),
            Self::Http3(http3) => http3.sockets.list(),
        }
    }
}
