//! The decisions on stream requests, from their heads to their answers.

use std::mem;
use std::rc::Rc;
use std::task::Poll;

use sinews_http::h2::RequestFields;
use sinews_proto::handshake::{Accepted, Refusal};
use sinews_proto::{Negotiated, Time};
use sinews_session::{Chain, Resources};

use super::{
    ExchangeTable, OpenedSocket, OutgoingBody, SentFrame, SocketSlot, SocketTable, StreamKey, StreamReset,
    StreamStage, StreamUpload, WaitingRequests as _,
};
use crate::answer::LaterAnswer;
use crate::answer::streaming::StreamingResponse;
use crate::exchange::{HttpExchange, Outcome, RetainedRequest, SocketHandshake, admit};
use crate::limits::REJECTING_MAX;
use crate::metrics::limit::Limit;
use crate::request::Response;
use crate::router::WebSocketRoute;
use crate::shared::WorkerShared;
use crate::socket::{AcceptedUpgrade, MessageTransport};

/// Bodies of one connection's incomplete requests, as a multiple of the maximum body: beyond it, only the oldest one's
/// window is opened.
const UPLOADS_MAX: usize = 4;

/// A connection whose streams carry requests. The framing writes; all else is decided here.
pub(crate) trait RequestStreams: Sized {
    type Id: Copy + Ord + Into<StreamKey>;

    fn table(&mut self) -> &mut ExchangeTable<Self::Id>;

    /// Queues a head. `ends`: the answer has no content. Returns whether the stream is open.
    fn queue_head<'f>(
        &mut self,
        stream: Self::Id,
        status: u16,
        fields: impl Iterator<Item = (&'f str, &'f str)>,
        ends: bool,
        resources: &mut Resources,
        now: Time,
    ) -> bool;

    /// Ends a stream early; a complete answer before it stays valid.
    fn reset_stream(&mut self, stream: Self::Id, reset: StreamReset);

    /// Returns consumed bytes to a stream's window.
    fn release(&mut self, stream: Self::Id, bytes: usize);

    /// Notes that a stream's window stays closed until the next [`release`](Self::release).
    fn hold(&mut self, _: Self::Id) {}

    /// Opens the stream for the messages of a WebTransport session whose request is accepted. `None`: the session has
    /// ended.
    fn open_session(&mut self, _: Self::Id, _: Box<RetainedRequest>) -> Option<Self::Id> {
        None
    }

    fn sockets(&mut self) -> &mut SocketTable<Self::Id>;

    /// Returns the memory, in bytes, for answers whose streams have not taken them.
    fn queued_answers(&mut self) -> usize;

    /// Returns whether more socket and body bytes may be queued.
    fn has_capacity(&self) -> bool;

    /// Queues a part of a socket's output. `ends`: the stream ends after the chain. `None`: a window is closed, and the
    /// socket is marked ready when it opens. An error: the stream exists no longer.
    fn send_chain(
        &mut self,
        stream: Self::Id,
        chain: &mut Chain,
        ends: bool,
        shared: &mut WorkerShared,
    ) -> Result<Option<SentFrame>, ()>;

    /// Queues a part from the next body. Returns `false` if windows stop all of them.
    fn send_next_body(&mut self, shared: &mut WorkerShared) -> bool;

    /// Returns when the output last progressed that a stream's body waits for, beside its own.
    fn shared_progress(&self, _: Self::Id) -> Time {
        Time::ZERO
    }

    /// Queues more from the bodies.
    fn send_pieces(&mut self, shared: &mut WorkerShared);

    /// Removes an exchange and resets its stream.
    fn cancel(&mut self, stream: Self::Id, reset: StreamReset, shared: &WorkerShared) {
        self.reset_stream(stream, reset);
        if let Some(at) = self.table().position(stream) {
            self.table().remove(at, shared.services.now);
        }
    }

    /// Handles a request whose head is complete.
    fn receive_request(
        &mut self,
        stream: Self::Id,
        fields: &RequestFields<'_>,
        ends: bool,
        shared: &mut WorkerShared,
    ) {
        self.table().open(stream, fields.method() == "HEAD", ends, shared.services.now);
        if !is_scheme_of(fields.scheme(), shared.services.encrypted) {
            return self.reject(stream, 421, "the scheme is not that of the connection\n", shared);
        }
        let owned = match fields.to_owned_head() {
            Ok(owned) => owned,
            Err(error) => {
                let refusal = Refusal::from(error);
                shared.services.counters.responded(refusal.status());
                return self.write_answer(stream, Response::refused(&refusal), shared);
            }
        };
        let (head, router) = (owned.head(), Rc::clone(&shared.router));
        let peer = self.table().peer;
        let exchange = HttpExchange::new(&head, &[], peer, None, &router).with_connect(fields.protocol());
        if let Some(mut response) = exchange.before(&mut shared.services) {
            if fields.protocol().is_some() && response.status() / 100 == 2 {
                // A success status would open a tunnel.
                response = response.with_status(403);
            }
            return self.answer(stream, &exchange, response, shared);
        }
        if let Some(route) = exchange.websocket_route() {
            return self.connect(stream, route, &exchange, shared);
        }
        if fields.protocol().is_some() {
            return self.answer(stream, &exchange, exchange.reject_connect(), shared);
        }
        let max_body = shared.services.http.max_body;
        if fields.content_length().is_some_and(|length| length > max_body as u64) {
            return self.answer(stream, &exchange, too_large(max_body), shared);
        }
        if ends || exchange.responder().is_none() {
            return self.respond_in_turn(stream, &exchange, shared);
        }
        if head.expects_continue() {
            // The stream was opened by the same event.
            let WorkerShared { resources, services, .. } = shared;
            let _ = self.queue_head(stream, 100, std::iter::empty(), false, resources, services.now);
        }
        let upload = StreamUpload { request: exchange.retain(), body: Vec::new(), held: 0 };
        if let Some(at) = self.table().position(stream) {
            self.table().exchanges[at].stage = StreamStage::Upload(Box::new(upload));
        }
    }

    /// Handles a body part. An answered request's body is discarded: its stream will be reset.
    fn receive_data(&mut self, stream: Self::Id, data: &[u8], ends: bool, shared: &mut WorkerShared) {
        let table = self.table();
        let Some(at) = table.position(stream) else { return };
        let max_body = shared.services.http.max_body;
        let exchange = &mut table.exchanges[at];
        exchange.is_received |= ends;
        let StreamStage::Upload(upload) = &mut exchange.stage else { return };
        exchange.progress = shared.services.now;
        if upload.body.len() + data.len() > max_body {
            return self.end_upload(stream, Some(too_large(max_body)), shared);
        }
        upload.body.extend_from_slice(data);
        if ends {
            return self.end_upload(stream, None, shared);
        }
        upload.held += data.len();
        self.open_windows(max_body);
    }

    /// Returns consumed bytes to upload windows, within one connection's memory.
    fn open_windows(&mut self, max_body: usize) {
        let uploads = self.table().exchanges.iter().filter_map(|exchange| match &exchange.stage {
            StreamStage::Upload(upload) | StreamStage::Waiting(upload) => Some(upload.body.len()),
            _ => None,
        });
        let is_full = uploads.sum::<usize>() > max_body.saturating_mul(UPLOADS_MAX);
        let mut is_first = true;
        for at in 0..self.table().exchanges.len() {
            let exchange = &mut self.table().exchanges[at];
            let stream = exchange.stream;
            let StreamStage::Upload(upload) = &mut exchange.stage else { continue };
            if is_first || !is_full {
                let held = mem::take(&mut upload.held);
                self.release(stream, held);
            } else if upload.held > 0 {
                self.hold(stream);
            }
            is_first = false;
        }
    }

    /// Removes the exchange of a stream that is reset. Other streams' uploads may continue in its place.
    fn remove_reset(&mut self, stream: Self::Id, shared: &WorkerShared) {
        let table = self.table();
        let Some(at) = table.position(stream) else { return };
        let is_upload = matches!(table.exchanges[at].stage, StreamStage::Upload(_) | StreamStage::Waiting(_));
        table.remove(at, shared.services.now);
        if is_upload {
            self.open_windows(shared.services.http.max_body);
        }
    }

    /// Ends an upload: answers the request, or rejects it.
    fn end_upload(&mut self, stream: Self::Id, rejection: Option<Response>, shared: &mut WorkerShared) {
        let table = self.table();
        let Some(at) = table.position(stream) else { return };
        let stage = mem::replace(&mut table.exchanges[at].stage, StreamStage::Answering);
        let StreamStage::Upload(upload) = stage else { return };
        match rejection {
            Some(response) => self.with_request(stream, &upload, shared, |this, exchange, shared| {
                this.answer(stream, exchange, response, shared);
            }),
            None if self.must_wait(shared) => self.wait(stream, upload, shared),
            None => self.respond_to_upload(stream, &upload, shared),
        }
        self.open_windows(shared.services.http.max_body);
    }

    /// Answers a complete request, or starts its pending answer.
    fn respond(&mut self, stream: Self::Id, exchange: &HttpExchange<'_>, shared: &mut WorkerShared) {
        let conn = self.table().conn;
        match exchange.respond(conn, &mut shared.services) {
            Outcome::Ready(response) => self.answer(stream, exchange, response, shared),
            Outcome::Fixed(fixed) => {
                let response = fixed.prepared(shared.services.http3_port).response();
                self.write_answer(stream, response.clone(), shared);
            }
            Outcome::Pending(pending) => {
                if let Some(at) = self.table().position(stream) {
                    self.table().exchanges[at].stage = StreamStage::Pending(pending);
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
    fn answer(
        &mut self,
        stream: Self::Id,
        exchange: &HttpExchange<'_>,
        mut response: Response,
        shared: &mut WorkerShared,
    ) {
        exchange.complete(&mut response, &mut shared.services);
        self.write_answer(stream, response, shared);
    }

    /// Rejects a request that no hook sees.
    fn reject(&mut self, stream: Self::Id, status: u16, text: &'static str, shared: &mut WorkerShared) {
        shared.services.counters.responded(status);
        self.write_answer(stream, Response::text(text).with_status(status), shared);
    }

    /// Rejects a request whose head exceeds a limit.
    fn reject_head(&mut self, stream: Self::Id, ends: bool, shared: &mut WorkerShared) {
        self.table().open(stream, false, ends, shared.services.now);
        self.reject(stream, 431, "request head is too large\n", shared);
    }

    /// Writes an answer's head. Its body follows as the windows permit.
    fn write_answer(&mut self, stream: Self::Id, response: Response, shared: &mut WorkerShared) {
        let Some(at) = self.table().position(stream) else { return };
        let is_head = self.table().exchanges[at].is_head;
        let has_body = !is_head && response.may_have_body() && !response.body.is_finished();
        let written = self.write_head(stream, &response, response.content_length(), !has_body, shared);
        let exchange = &mut self.table().exchanges[at];
        exchange.progress = shared.services.now;
        let is_received = exchange.is_received;
        if written && has_body {
            exchange.stage = StreamStage::Sending(OutgoingBody::new(response.body));
            return;
        }
        if !is_received {
            self.reset_stream(stream, StreamReset::Unneeded);
        }
        self.table().remove(at, shared.services.now);
    }

    /// Queues a response's head. Returns whether the stream is open.
    fn write_head(
        &mut self,
        stream: Self::Id,
        response: &Response,
        length: Option<u64>,
        ends: bool,
        shared: &mut WorkerShared,
    ) -> bool {
        let WorkerShared { resources, services, .. } = shared;
        let length = length.map(|length| length.to_string());
        let now = services.now;
        let own = [("date", Some(services.date.at(now))), ("content-length", length.as_deref())];
        let own = own.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let added = response.headers.iter().filter(|(name, _)| {
            !name.eq_ignore_ascii_case("date") && !name.eq_ignore_ascii_case("content-length")
        });
        self.queue_head(stream, response.status, own.chain(added), ends, resources, now)
    }

    /// Polls a stream's pending answer.
    fn poll_answer(&mut self, stream: Self::Id, shared: &mut WorkerShared) {
        let Some(at) = self.table().position(stream) else { return };
        let StreamStage::Pending(pending) = &mut self.table().exchanges[at].stage else { return };
        match pending.poll() {
            Poll::Ready(LaterAnswer::Response(response)) => self.finish_answer(stream, response, shared),
            Poll::Ready(LaterAnswer::Streaming(streaming)) => {
                self.finish_streaming(stream, streaming, shared)
            }
            Poll::Pending => {}
        }
    }

    fn finish_answer(&mut self, stream: Self::Id, mut response: Response, shared: &mut WorkerShared) {
        let Some(at) = self.table().position(stream) else { return };
        let stage = mem::replace(&mut self.table().exchanges[at].stage, StreamStage::Answering);
        if let StreamStage::Pending(pending) = stage {
            pending.complete(&mut response, &Rc::clone(&shared.router), &mut shared.services);
            self.write_answer(stream, response, shared);
        }
    }

    /// Begins a pending answer's streaming response.
    fn finish_streaming(
        &mut self,
        stream: Self::Id,
        streaming: Box<StreamingResponse>,
        shared: &mut WorkerShared,
    ) {
        let Some(at) = self.table().position(stream) else { return };
        let is_head = self.table().exchanges[at].is_head;
        let admitted = admit(streaming, is_head, &shared.services);
        let admitted = match admitted {
            Ok(streaming) if !is_head => {
                self.take_slot(shared).map(|slot| (streaming, slot)).map_err(Limit::response)
            }
            // The head is the answer to HEAD.
            Ok(streaming) => Err(streaming.response),
            Err(response) => Err(response),
        };
        match admitted {
            Ok((mut streaming, slot)) => {
                let stage = mem::replace(&mut self.table().exchanges[at].stage, StreamStage::Answering);
                if let StreamStage::Pending(pending) = stage {
                    let router = Rc::clone(&shared.router);
                    pending.complete(&mut streaming.response, &router, &mut shared.services);
                }
                self.write_body_head(stream, *streaming, slot, shared);
            }
            Err(response) => self.finish_answer(stream, response, shared),
        }
    }

    /// Ends the exchanges whose time is over.
    fn time_out_streams(&mut self, shared: &mut WorkerShared) {
        let now = shared.services.now;
        let (config, stopping) = (&shared.services.http, shared.services.stopping_since);
        let mut late = Vec::new();
        for at in 0..self.table().exchanges.len() {
            let stream = self.table().exchanges[at].stream;
            let shared = self.shared_progress(stream);
            if self.table().exchanges[at].deadline(config, stopping, |_| shared) <= now {
                late.push(stream);
            }
        }
        for stream in late {
            let Some(at) = self.table().position(stream) else { continue };
            match &self.table().exchanges[at].stage {
                StreamStage::Pending(_) => {
                    let response = Response::text("the answer takes too long\n").with_status(503);
                    self.finish_answer(stream, response, shared);
                }
                StreamStage::Upload(_) => {
                    let response = Response::text("request timeout\n").with_status(408);
                    self.end_upload(stream, Some(response), shared);
                }
                // Waiting requests have no deadline.
                StreamStage::Sending(_) | StreamStage::Answering | StreamStage::Waiting(_) => {
                    self.cancel(stream, StreamReset::Cancelled, shared);
                    if stopping.is_some() {
                        self.refuse_waiting(shared);
                    }
                }
            }
        }
        self.send_pieces(shared);
    }

    /// Answers a WebSocket opening handshake.
    fn connect(
        &mut self,
        stream: Self::Id,
        route: &WebSocketRoute,
        exchange: &HttpExchange<'_>,
        shared: &mut WorkerShared,
    ) {
        match self.accept_socket(route, exchange, shared) {
            Ok((SocketHandshake { accepted, response, upgrade }, slot)) => {
                let session = exchange.is_session().then(|| exchange.retain());
                let response = accepted_head(&accepted, response);
                self.open_body(stream, &response, upgrade, slot, session, shared);
            }
            Err(refusal) => self.refuse(stream, exchange, refusal, shared),
        }
    }

    /// Takes a slot for a socket, and creates its handler.
    fn accept_socket(
        &mut self,
        route: &WebSocketRoute,
        exchange: &HttpExchange<'_>,
        shared: &mut WorkerShared,
    ) -> Result<(SocketHandshake, SocketSlot), Refusal> {
        let (slot, limit) = match self.take_slot(shared) {
            Ok(slot) => (slot, None),
            Err(limit) if route.overload.is_some() && shared.rejected_sockets < REJECTING_MAX => {
                shared.rejected_sockets += 1;
                (SocketSlot::Rejected, Some(limit))
            }
            Err(limit) => return Err(limit.refusal()),
        };
        let handshake = exchange.accept_socket(route, limit, &mut shared.services).and_then(check_headers);
        handshake.map(|handshake| (handshake, slot)).inspect_err(|_| self.return_slot(slot, shared))
    }

    /// Rejects a handshake.
    fn refuse(
        &mut self,
        stream: Self::Id,
        exchange: &HttpExchange<'_>,
        refusal: Refusal,
        shared: &mut WorkerShared,
    ) {
        let refusal = exchange.complete_refusal(refusal, &mut shared.services);
        self.write_answer(stream, Response::refused(&refusal), shared);
    }

    /// Takes a slot for a socket.
    ///
    /// # Errors
    /// The limit that rejects it, which is counted.
    fn take_slot(&mut self, shared: &WorkerShared) -> Result<SocketSlot, Limit> {
        let table = self.table();
        if !mem::replace(&mut table.is_slot_taken, true) {
            return Ok(SocketSlot::Connection);
        }
        let admitted = shared.services.gate.admit(table.peer.ip());
        admitted.inspect_err(|limit| shared.services.count_limit(*limit)).map(|()| SocketSlot::Own)
    }

    /// Returns the slot of a socket that is not opened.
    fn return_slot(&mut self, slot: SocketSlot, shared: &mut WorkerShared) {
        let table = self.table();
        match slot {
            SocketSlot::Connection => table.is_slot_taken = false,
            SocketSlot::Own => shared.services.gate.release(table.peer.ip()),
            SocketSlot::Rejected => shared.rejected_sockets -= 1,
        }
    }

    /// Starts a streaming response.
    fn stream_body(
        &mut self,
        stream: Self::Id,
        exchange: &HttpExchange<'_>,
        mut streaming: StreamingResponse,
        shared: &mut WorkerShared,
    ) {
        let slot = match self.take_slot(shared) {
            Ok(slot) => slot,
            Err(limit) => return self.answer(stream, exchange, limit.response(), shared),
        };
        exchange.complete(&mut streaming.response, &mut shared.services);
        self.write_body_head(stream, streaming, slot, shared);
    }

    /// Queues the head of a streaming response that is complete and admitted.
    fn write_body_head(
        &mut self,
        stream: Self::Id,
        streaming: StreamingResponse,
        slot: SocketSlot,
        shared: &mut WorkerShared,
    ) {
        let StreamingResponse { response, format, handler, config, prefix } = streaming;
        // The stream's end is the body's end.
        let negotiated = Negotiated::response_body(format, false);
        let transport = MessageTransport::Body { keep_alive: false, prefix };
        let upgrade = AcceptedUpgrade { negotiated, handler, config, rate_limit: None, transport };
        self.open_body(stream, &response, upgrade, slot, None, shared);
    }

    /// Queues the head of an answer whose content is the output of a socket. `session`: the request for a session.
    fn open_body(
        &mut self,
        stream: Self::Id,
        response: &Response,
        upgrade: AcceptedUpgrade,
        slot: SocketSlot,
        session: Option<Box<RetainedRequest>>,
        shared: &mut WorkerShared,
    ) {
        let Some(at) = self.table().position(stream) else { return self.return_slot(slot, shared) };
        let ends = self.table().exchanges[at].is_received;
        self.table().exchanges.remove(at);
        if !self.write_head(stream, response, None, false, shared) {
            self.return_slot(slot, shared);
            return self.reset_stream(stream, StreamReset::Internal);
        }
        // The end of a session's request is the session's end, with its own event.
        let ends = ends && session.is_none();
        let carrier = match session {
            Some(request) => self.open_session(stream, request),
            None => Some(stream),
        };
        let Some(carrier) = carrier else { return self.return_slot(slot, shared) };
        let opened = OpenedSocket { stream: carrier.into(), upgrade, ends, slot };
        self.table().opened = Some(Box::new(opened));
    }
}

/// Checks the headers that a route and its hooks add to the answer.
fn check_headers(handshake: SocketHandshake) -> Result<SocketHandshake, Refusal> {
    let headers: Vec<(&str, &str)> = handshake.response.headers.iter().collect();
    if let Err(error) = Accepted::check_headers(&headers) {
        tracing::error!(%error, "handshake response has an invalid header");
        return Err(Refusal::new(500).unwrap_or_else(|_| unreachable!("500 is a valid status")));
    }
    Ok(handshake)
}

/// Adds an accepted handshake's headers.
fn accepted_head(accepted: &Accepted, added: Response) -> Response {
    let mut response = Response::new(accepted.status());
    for (name, value) in accepted.headers() {
        response.add_header(name, value.to_owned());
    }
    added.headers.iter().for_each(|(name, value)| response.add_header(name.to_owned(), value.to_owned()));
    response
}

/// Returns whether a connection may carry requests with the scheme (RFC 9113 section 8.3.1). In clear text a proxy that
/// terminates TLS passes `https`. CONNECT has none.
fn is_scheme_of(scheme: Option<&str>, encrypted: bool) -> bool {
    let is = |name: &str| scheme.is_none_or(|scheme| scheme.eq_ignore_ascii_case(name));
    is("https") || !encrypted && is("http")
}

fn too_large(max: usize) -> Response {
    Response::text(format!("request body exceeds {max} bytes\n")).with_status(413)
}
