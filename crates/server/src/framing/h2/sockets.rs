//! Output and input of sockets on streams.

use std::ops::Range;

use sinews_engine::ConnId;
use sinews_http::h2::{ErrorCode, StreamId};
use sinews_proto::Time;

use super::H2Conn;
use crate::framing::streams::OpenedSocket;
use crate::shared::WorkerShared;

/// Input that concerns a socket.
pub(crate) enum SocketEvent {
    /// The answer to its request is queued.
    Opened(Box<OpenedSocket>),
    /// Bytes of the input, and whether the peer sends no more.
    Data { socket: ConnId, range: Range<usize>, ends: bool },
    /// The stream is reset. It exists no longer.
    Reset(ConnId),
}

impl H2Conn {
    /// Removes a socket, and resets its stream unless it has ended.
    pub(crate) fn remove_socket(&mut self, stream: StreamId, code: ErrorCode, now: Time) {
        self.machine.reset(stream, code);
        self.sockets.remove(stream);
        self.table.idle_since = now;
    }

    /// Returns whether sends of sockets may begin: control frames are queued, and no send is in flight.
    pub(crate) fn starts_frames(&mut self, shared: &mut WorkerShared) -> bool {
        self.queue_control(shared);
        !self.closing && !self.outbound.is_sending() && !self.machine.wants_write()
    }

    /// Ends the stream of a socket, behind all that is queued.
    pub(crate) fn end_stream(&mut self, stream: StreamId, shared: &mut WorkerShared) {
        if let Ok(Some(frame)) = self.machine.start_data(stream, 0, true) {
            let out = self.outbound.pending_chain(&mut shared.resources);
            out.write(|out| out.extend_from_slice(&frame.header()));
        }
    }

    /// Returns whether frames of the machine are queued.
    pub(crate) fn wants_control(&self) -> bool {
        self.machine.wants_write()
    }

    /// Returns whether a call has failed the machine, which the connection has not handled yet.
    pub(crate) const fn has_failed_outside_of_input(&self) -> bool {
        self.machine.error().is_some() && !self.closing
    }

    /// Fails the machine outside of input.
    #[cfg(test)]
    pub(crate) fn fill_control_queue(&mut self) {
        while self.machine.error().is_none() {
            self.machine.ping([0; 8]);
        }
    }

    /// Returns whether the connection ends without its streams.
    pub(crate) fn has_failed(&self) -> bool {
        self.closing
    }

    /// Handles bytes of a stream without an exchange.
    pub(super) fn socket_data(
        &self,
        stream: StreamId,
        range: Range<usize>,
        ends: bool,
    ) -> Option<SocketEvent> {
        Some(SocketEvent::Data { socket: self.sockets.get(stream)?, range, ends })
    }
}
