//! Writes answers: heads, and bodies and sockets within the windows.
//!
//! QUIC does not tell the size of a window. One piece of each stream waits for its window at most; further content of
//! that stream waits where it is, and delays no other stream.

use bytes::Bytes;
use sinews_http::h3::{H3Code, QuicStreamId};
use sinews_proto::Time;
use sinews_session::{Chain, Resources};

use super::H3Streams;
use crate::exchange::RetainedRequest;
use crate::framing::streams::{
    ExchangeTable, OutgoingBody, PIECE, RequestStreams, SentFrame, SocketTable, StreamReset, StreamStage,
};
use crate::shared::WorkerShared;

impl RequestStreams for H3Streams<'_, '_> {
    type Id = QuicStreamId;

    fn table(&mut self) -> &mut ExchangeTable<QuicStreamId> {
        &mut self.conn.table
    }

    fn queue_head<'f>(
        &mut self,
        stream: QuicStreamId,
        status: u16,
        fields: impl Iterator<Item = (&'f str, &'f str)>,
        ends: bool,
        _: &mut Resources,
        _: Time,
    ) -> bool {
        self.exchanges.send_head(stream, status, fields, ends).is_ok()
    }

    fn reset_stream(&mut self, stream: QuicStreamId, reset: StreamReset) {
        self.exchanges.reset(stream, reset.into());
    }

    fn cancel(&mut self, stream: QuicStreamId, reset: StreamReset, shared: &WorkerShared) {
        // The end of an answer may be all that waits for the window.
        self.exchanges.cancel(stream, reset.into());
        if let Some(at) = self.conn.table.position(stream) {
            self.conn.table.remove(at, shared.services.now);
        }
    }

    fn release(&mut self, stream: QuicStreamId, _: usize) {
        self.exchanges.resume_reads(stream);
    }

    fn hold(&mut self, stream: QuicStreamId) {
        self.exchanges.pause_reads(stream);
    }

    fn open_session(&mut self, session: QuicStreamId, request: Box<RetainedRequest>) -> Option<QuicStreamId> {
        self.open_message_stream(session, request)
    }

    fn sockets(&mut self) -> &mut SocketTable<QuicStreamId> {
        &mut self.conn.sockets
    }

    fn queued_answers(&mut self) -> usize {
        // QUIC has pieces of them.
        let sending = self.conn.table.exchanges.iter();
        let sending = sending.filter(|exchange| matches!(exchange.stage, StreamStage::Sending(_)));
        let queued: usize = sending.map(|exchange| self.exchanges.queued_on(exchange.stream)).sum();
        self.conn.table.outgoing() + self.conn.sockets.responses() + queued
    }

    /// The windows are the limit.
    fn has_capacity(&self) -> bool {
        true
    }

    fn send_chain(
        &mut self,
        stream: QuicStreamId,
        chain: &mut Chain,
        ends: bool,
        _: &mut WorkerShared,
    ) -> Result<Option<SentFrame>, ()> {
        if self.exchanges.is_blocked(stream) {
            self.conn.sockets.mark_blocked(stream);
            return Ok(None);
        }
        let bytes = chain.len().min(PIECE);
        let ends = ends && bytes == chain.len();
        let mut piece = Vec::with_capacity(bytes);
        for part in chain.pieces() {
            piece.extend_from_slice(&part[..part.len().min(bytes - piece.len())]);
            if piece.len() == bytes {
                break;
            }
        }
        if self.conn.carries_messages(stream) {
            self.exchanges.send_bytes(stream, piece.into(), ends);
        } else {
            self.exchanges.send_data(stream, piece.into(), ends).map_err(|_| ())?;
        }
        chain.advance(bytes);
        Ok(Some(SentFrame { bytes, ends }))
    }

    fn send_next_body(&mut self, shared: &mut WorkerShared) -> bool {
        for _ in 0..self.conn.table.exchanges.len() {
            self.conn.table.next %= self.conn.table.exchanges.len();
            let at = self.conn.table.next;
            let Some(ends) = self.send_piece(at, shared) else {
                self.conn.table.next += 1;
                continue;
            };
            if ends {
                self.conn.table.remove(at, shared.services.now);
            } else {
                self.conn.table.next += 1;
            }
            return true;
        }
        false
    }

    fn send_pieces(&mut self, shared: &mut WorkerShared) {
        while self.send_next_body(shared) {}
    }
}

impl H3Streams<'_, '_> {
    /// Sends a piece of a body, unless an earlier one waits for the window. Returns whether the exchange has ended: the
    /// window was open for all of the body, so that the timeout of writes applies until then.
    fn send_piece(&mut self, at: usize, shared: &WorkerShared) -> Option<bool> {
        let Self { conn, exchanges } = self;
        let exchange = &mut conn.table.exchanges[at];
        let stream = exchange.stream;
        let StreamStage::Sending(outgoing) = &mut exchange.stage else { return None };
        let is_part = outgoing.has_large_pieces();
        let body = &mut outgoing.body;
        if exchanges.is_blocked(stream) {
            return None;
        }
        if body.is_finished() {
            return Some(true);
        }
        let piece: Bytes = match body.read(PIECE) {
            // QUIC may hold a piece for long, and a part of a body holds all of it.
            Ok(piece) if is_part => Bytes::copy_from_slice(&piece),
            Ok(piece) => piece,
            Err(error) => {
                tracing::error!(%error, "failed to read the body; the response is incomplete");
                exchanges.reset(stream, H3Code::H3_INTERNAL_ERROR);
                return Some(true);
            }
        };
        let ends = body.is_finished();
        exchange.progress = shared.services.now;
        if exchanges.send_data(stream, piece, ends).is_err() {
            exchanges.reset(stream, H3Code::H3_INTERNAL_ERROR);
            return Some(true);
        }
        if ends && !exchange.is_received {
            // The client need not send the rest of its request (RFC 9114 section 4.1).
            exchanges.reset(stream, H3Code::H3_NO_ERROR);
        }
        if ends {
            *outgoing = OutgoingBody::empty();
        }
        Some(ends && !exchanges.is_blocked(stream))
    }
}

impl From<StreamReset> for H3Code {
    fn from(reset: StreamReset) -> Self {
        match reset {
            StreamReset::Unneeded => Self::H3_NO_ERROR,
            StreamReset::Cancelled => Self::H3_REQUEST_CANCELLED,
            StreamReset::Refused => Self::H3_REQUEST_REJECTED,
            StreamReset::Internal => Self::H3_INTERNAL_ERROR,
        }
    }
}
