//! Writes answers: heads, and bodies within the windows.

use sinews_http::h2::{ErrorCode, StreamId};
use sinews_proto::Time;
use sinews_session::{Chain, Resources};

use super::{H2Conn, QUEUED_MAX};
use crate::fixed::BODY_COPY_MAX;
use crate::framing::streams::{
    ExchangeTable, PIECE, RequestStreams, SentFrame, SocketTable, StreamReset, StreamStage,
};
use crate::shared::WorkerShared;

/// Result of sending a part of a body.
enum SentPiece {
    /// Nothing: a window is closed.
    None,
    Part,
    /// The exchange has ended.
    Last,
}

impl RequestStreams for H2Conn {
    type Id = StreamId;

    fn table(&mut self) -> &mut ExchangeTable<StreamId> {
        &mut self.table
    }

    fn queue_head<'f>(
        &mut self,
        stream: StreamId,
        status: u16,
        fields: impl Iterator<Item = (&'f str, &'f str)>,
        ends: bool,
        resources: &mut Resources,
        now: Time,
    ) -> bool {
        let Self { machine, outbound, .. } = self;
        if outbound.is_empty() {
            self.last_progress = now;
        }
        let chain = outbound.pending_chain(resources);
        chain.write(|out| machine.send_head(stream, status, fields, ends, out)).is_ok()
    }

    fn reset_stream(&mut self, stream: StreamId, reset: StreamReset) {
        self.machine.reset(stream, reset.into());
    }

    fn release(&mut self, stream: StreamId, bytes: usize) {
        self.machine.release(stream, bytes);
    }

    /// Queues more of the bodies, a frame of each in turn, up to the limit of queued bytes.
    ///
    /// Control frames leave first: a client sees the acknowledgement of its SETTINGS before DATA that depends on them.
    fn send_pieces(&mut self, shared: &mut WorkerShared) {
        self.queue_control(shared);
        if self.machine.wants_write() {
            // The completion of the send in flight continues here.
            return;
        }
        // Sockets with output take turns with bodies when the send begins.
        while !self.sockets.has_ready() && self.has_capacity() && self.send_next_body(shared) {}
        self.drop_stuck_requests();
    }

    fn send_next_body(&mut self, shared: &mut WorkerShared) -> bool {
        for _ in 0..self.table.exchanges.len() {
            self.table.next %= self.table.exchanges.len();
            match self.send_piece(self.table.next, shared) {
                SentPiece::None => self.table.next += 1,
                SentPiece::Part => {
                    self.table.next += 1;
                    return true;
                }
                SentPiece::Last => {
                    self.table.remove(self.table.next, shared.services.now);
                    return true;
                }
            }
        }
        false
    }

    fn shared_progress(&self, stream: StreamId) -> Time {
        if self.machine.stream_window(stream) == 0 {
            // Only its own window stops it.
            Time::ZERO
        } else if self.machine.window(stream) == 0 {
            // It takes turns in the window of the connection.
            self.last_data
        } else {
            self.last_progress
        }
    }

    fn sockets(&mut self) -> &mut SocketTable<StreamId> {
        &mut self.sockets
    }

    fn queued_answers(&mut self) -> usize {
        self.table.outgoing() + self.sockets.responses()
    }

    fn has_capacity(&self) -> bool {
        self.outbound.len() < QUEUED_MAX
    }

    /// Queues one DATA frame.
    fn send_chain(
        &mut self,
        stream: StreamId,
        chain: &mut Chain,
        ends: bool,
        shared: &mut WorkerShared,
    ) -> Result<Option<SentFrame>, ()> {
        let len = chain.len().min(PIECE);
        let ends = ends && len == chain.len();
        let Some(frame) = self.machine.start_data(stream, len, ends).map_err(|_| ())? else {
            self.sockets.mark_blocked(stream);
            return Ok(None);
        };
        self.last_data = shared.services.now;
        if self.outbound.is_empty() {
            self.last_progress = shared.services.now;
        }
        let out = self.outbound.pending_chain(&mut shared.resources);
        out.write(|out| out.extend_from_slice(&frame.header()));
        chain.move_to(frame.payload_len(), out);
        Ok(Some(SentFrame { bytes: frame.payload_len(), ends: frame.ends() }))
    }
}

impl H2Conn {
    fn send_piece(&mut self, at: usize, shared: &mut WorkerShared) -> SentPiece {
        let Self { machine, outbound, table, last_progress, last_data, .. } = self;
        let exchange = &mut table.exchanges[at];
        let StreamStage::Sending(outgoing) = &mut exchange.stage else { return SentPiece::None };
        let body = &mut outgoing.body;
        let max = machine.window(exchange.stream).min(PIECE);
        if max == 0 && self.ended {
            // The peer has closed its side: no window opens any more.
            machine.reset(exchange.stream, ErrorCode::CANCEL);
            self.is_stuck = true;
            return SentPiece::Last;
        }
        if max == 0 {
            return SentPiece::None;
        }
        let piece = match body.read(max) {
            Ok(piece) => piece,
            Err(error) => {
                tracing::error!(%error, "failed to read the body; the response is incomplete");
                machine.reset(exchange.stream, ErrorCode::INTERNAL_ERROR);
                return SentPiece::Last;
            }
        };
        let ends = body.is_finished();
        let frame = match machine.start_data(exchange.stream, piece.len(), ends) {
            Ok(Some(frame)) if frame.payload_len() == piece.len() => frame,
            _ => {
                machine.reset(exchange.stream, ErrorCode::INTERNAL_ERROR);
                return SentPiece::Last;
            }
        };
        if outbound.is_empty() {
            *last_progress = shared.services.now;
        }
        let chain = outbound.pending_chain(&mut shared.resources);
        chain.write(|out| out.extend_from_slice(&frame.header()));
        if piece.len() <= BODY_COPY_MAX {
            chain.write(|out| out.extend_from_slice(&piece));
        } else {
            chain.push_bytes(piece);
        }
        (exchange.progress, *last_data) = (shared.services.now, shared.services.now);
        if !ends {
            return SentPiece::Part;
        }
        if !exchange.is_received {
            // The client need not send the rest of its request (RFC 9113 section 8.1).
            machine.reset(exchange.stream, ErrorCode::NO_ERROR);
        }
        SentPiece::Last
    }
}

impl From<StreamReset> for ErrorCode {
    fn from(reset: StreamReset) -> Self {
        match reset {
            StreamReset::Unneeded => Self::NO_ERROR,
            StreamReset::Cancelled => Self::CANCEL,
            StreamReset::Refused => Self::REFUSED_STREAM,
            StreamReset::Internal => Self::INTERNAL_ERROR,
        }
    }
}
