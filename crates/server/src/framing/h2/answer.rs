//! Writes answers: heads, and bodies within the windows.

use std::mem;
use std::rc::Rc;
use std::task::Poll;

use bytes::Bytes;
use sinews_http::h2::{ErrorCode, StreamId};

use super::{H2Conn, OpenedSocket, StreamStage};
use crate::answer::LaterAnswer;
use crate::exchange::{HttpExchange, Outcome, admit};
use crate::fixed::BODY_COPY_MAX;
use crate::http::HttpConfig;
use crate::request::{Response, ResponseBody};
use crate::shared::WorkerShared;
use crate::streaming::StreamingResponse;

/// Payload of a DATA frame: each peer accepts it (RFC 9113 section 4.2).
pub(super) const PIECE: usize = 16 << 10;

/// Result of sending a part of a body.
enum SentPiece {
    /// Nothing: a window is closed.
    None,
    Part,
    /// The exchange has ended.
    Last,
}

impl H2Conn {
    /// Answers a complete request, or starts its pending answer.
    pub(super) fn respond(
        &mut self,
        stream: StreamId,
        exchange: &HttpExchange<'_>,
        shared: &mut WorkerShared,
    ) {
        match exchange.respond(self.conn, &mut shared.services) {
            Outcome::Ready(response) => self.answer(stream, exchange, response, shared),
            Outcome::Fixed(fixed) => self.write_answer(stream, fixed.response().clone(), shared),
            Outcome::Pending(pending) => {
                if let Some(at) = self.position(stream) {
                    self.exchanges[at].stage = StreamStage::Pending(pending);
                }
            }
            Outcome::Streaming(streaming) => {
                if exchange.head.method() == "HEAD" {
                    self.answer(stream, exchange, streaming.response, shared);
                } else {
                    self.stream_body(stream, exchange, *streaming, shared);
                }
            }
        }
    }

    /// Completes and writes the answer to a request.
    pub(super) fn answer(
        &mut self,
        stream: StreamId,
        exchange: &HttpExchange<'_>,
        mut response: Response,
        shared: &mut WorkerShared,
    ) {
        exchange.complete(&mut response, &mut shared.services);
        self.write_answer(stream, response, shared);
    }

    /// Rejects a request that no hook sees.
    pub(super) fn reject(
        &mut self,
        stream: StreamId,
        status: u16,
        text: &'static str,
        shared: &mut WorkerShared,
    ) {
        shared.services.counters.responded(status);
        self.write_answer(stream, Response::text(text).with_status(status), shared);
    }

    /// Sends 100 (Continue).
    pub(super) fn send_continue(&mut self, stream: StreamId, shared: &mut WorkerShared) {
        let Self { machine, outbound, .. } = self;
        let chain = outbound.pending_chain(&mut shared.resources);
        // The stream was opened by the same event.
        let _ = chain.write(|out| machine.send_head(stream, 100, [], false, out));
    }

    fn reset(&mut self, stream: StreamId, code: ErrorCode, shared: &WorkerShared) {
        self.machine.reset(stream, code);
        if let Some(at) = self.position(stream) {
            self.remove(at, shared.services.now);
        }
    }

    /// Writes the head of an answer. Its body follows as the windows permit.
    pub(super) fn write_answer(&mut self, stream: StreamId, response: Response, shared: &mut WorkerShared) {
        let Some(at) = self.position(stream) else { return };
        let has_body = !self.exchanges[at].is_head && response.may_have_body() && response.body_len() > 0;
        let written = self.write_head(stream, &response, response.content_length(), !has_body, shared);
        let exchange = &mut self.exchanges[at];
        exchange.progress = shared.services.now;
        let is_received = exchange.is_received;
        if written && has_body {
            exchange.stage = StreamStage::Sending(response.body);
            return;
        }
        if !is_received {
            self.machine.reset(stream, ErrorCode::NO_ERROR);
        }
        self.remove(at, shared.services.now);
    }

    /// Queues a head. Returns whether the stream is open.
    pub(super) fn write_head(
        &mut self,
        stream: StreamId,
        response: &Response,
        length: Option<u64>,
        ends: bool,
        shared: &mut WorkerShared,
    ) -> bool {
        let WorkerShared { resources, services, .. } = shared;
        let Self { machine, outbound, .. } = self;
        if outbound.is_empty() {
            self.last_progress = services.now;
        }
        let length = length.map(|length| length.to_string());
        let own = [("date", Some(services.date.at(services.now))), ("content-length", length.as_deref())];
        let own = own.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let added = response.headers.iter().filter(|(name, _)| {
            !name.eq_ignore_ascii_case("date") && !name.eq_ignore_ascii_case("content-length")
        });
        let chain = outbound.pending_chain(resources);
        chain.write(|out| machine.send_head(stream, response.status, own.chain(added), ends, out)).is_ok()
    }

    /// Queues more of the bodies, a frame of each in turn, up to the limit of queued bytes.
    ///
    /// Control frames leave first: a client sees the acknowledgement of its SETTINGS before DATA that depends on them.
    pub(crate) fn send_pieces(&mut self, shared: &mut WorkerShared) {
        self.queue_control(shared);
        if self.machine.wants_write() {
            // The completion of the send in flight continues here.
            return;
        }
        // Sockets with output take turns with bodies when the send begins.
        while self.ready.is_empty() && self.has_capacity() && self.send_next_body(shared) {}
    }

    /// Queues a frame of the next body. Returns `false` if windows stop all of them.
    pub(crate) fn send_next_body(&mut self, shared: &mut WorkerShared) -> bool {
        for _ in 0..self.exchanges.len() {
            self.next %= self.exchanges.len();
            match self.send_piece(self.next, shared) {
                SentPiece::None => self.next += 1,
                SentPiece::Part => {
                    self.next += 1;
                    return true;
                }
                SentPiece::Last => {
                    self.remove(self.next, shared.services.now);
                    return true;
                }
            }
        }
        false
    }

    fn send_piece(&mut self, at: usize, shared: &mut WorkerShared) -> SentPiece {
        let Self { machine, outbound, exchanges, last_progress, .. } = self;
        let exchange = &mut exchanges[at];
        let StreamStage::Sending(body) = &mut exchange.stage else { return SentPiece::None };
        let max = machine.window(exchange.stream).min(PIECE);
        if max == 0 {
            return SentPiece::None;
        }
        let piece = match read_piece(body, max) {
            Ok(piece) => piece,
            Err(error) => {
                tracing::error!(%error, "failed to read file; the response is incomplete");
                machine.reset(exchange.stream, ErrorCode::INTERNAL_ERROR);
                return SentPiece::Last;
            }
        };
        let ends = body.len() == 0;
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
        exchange.progress = shared.services.now;
        if !ends {
            return SentPiece::Part;
        }
        if !exchange.is_received {
            // The client need not send the rest of its request (RFC 9113 section 8.1).
            machine.reset(exchange.stream, ErrorCode::NO_ERROR);
        }
        SentPiece::Last
    }

    /// Polls the answers whose futures were woken, until one of them opens a socket.
    pub(crate) fn poll_answers(&mut self, shared: &mut WorkerShared) -> Option<Box<OpenedSocket>> {
        let mut at = 0;
        while let Some(exchange) = self.exchanges.get_mut(at) {
            let stream = exchange.stream;
            if let StreamStage::Pending(pending) = &mut exchange.stage
                && pending.is_woken()
                && let Poll::Ready(answer) = pending.poll()
            {
                match answer {
                    LaterAnswer::Response(response) => self.finish_answer(stream, response, shared),
                    LaterAnswer::Streaming(streaming) => self.finish_streaming(stream, streaming, shared),
                }
                if self.opened.is_some() {
                    return self.opened.take();
                }
            }
            // An exchange that ended is no longer there.
            at += usize::from(self.exchanges.get(at).is_some_and(|exchange| exchange.stream == stream));
        }
        self.send_pieces(shared);
        None
    }

    fn finish_answer(&mut self, stream: StreamId, mut response: Response, shared: &mut WorkerShared) {
        let Some(at) = self.position(stream) else { return };
        let stage = mem::replace(&mut self.exchanges[at].stage, StreamStage::Answering);
        if let StreamStage::Pending(pending) = stage {
            pending.complete(&mut response, &Rc::clone(&shared.router), &mut shared.services);
            self.write_answer(stream, response, shared);
        }
    }

    /// Begins the streaming response of a pending answer.
    fn finish_streaming(
        &mut self,
        stream: StreamId,
        streaming: Box<StreamingResponse>,
        shared: &mut WorkerShared,
    ) {
        let Some(at) = self.position(stream) else { return };
        let is_head = self.exchanges[at].is_head;
        let admitted = admit(streaming, is_head, &shared.services);
        let admitted = match admitted {
            Ok(streaming) if !is_head => self.admit_body(shared).map(|()| streaming),
            // The head is the answer to HEAD.
            Ok(streaming) => Err(streaming.response),
            Err(response) => Err(response),
        };
        match admitted {
            Ok(mut streaming) => {
                let stage = mem::replace(&mut self.exchanges[at].stage, StreamStage::Answering);
                if let StreamStage::Pending(pending) = stage {
                    let router = Rc::clone(&shared.router);
                    pending.complete(&mut streaming.response, &router, &mut shared.services);
                }
                self.write_body_head(stream, *streaming, shared);
            }
            Err(response) => self.finish_answer(stream, response, shared),
        }
    }

    /// Ends the exchanges whose time is over.
    pub(super) fn time_out_streams(&mut self, config: &HttpConfig, shared: &mut WorkerShared) {
        let now = shared.services.now;
        let late = self.exchanges.iter().filter(|exchange| exchange.deadline(config) <= now);
        let late: Vec<StreamId> = late.map(|exchange| exchange.stream).collect();
        for stream in late {
            let Some(at) = self.position(stream) else { continue };
            match &self.exchanges[at].stage {
                StreamStage::Pending(_) => {
                    let response = Response::text("the answer takes too long\n").with_status(503);
                    self.finish_answer(stream, response, shared);
                }
                StreamStage::Upload(_) => {
                    let response = Response::text("request timeout\n").with_status(408);
                    self.end_upload(stream, Some(response), shared);
                }
                StreamStage::Sending(_) | StreamStage::Answering => {
                    self.reset(stream, ErrorCode::CANCEL, shared);
                }
            }
        }
        self.send_pieces(shared);
    }
}

/// Cuts up to `max` bytes off the body.
fn read_piece(body: &mut ResponseBody, max: usize) -> std::io::Result<Bytes> {
    match body {
        ResponseBody::Bytes(bytes) => Ok(bytes.split_to(bytes.len().min(max))),
        ResponseBody::File(part) => part.read(max).map(Option::unwrap_or_default),
    }
}
