//! Receives requests: heads, and bodies within the windows.

use std::mem;
use std::rc::Rc;

use sinews_http::h2::{Event, RequestFields, StreamId};
use sinews_proto::Time;
use sinews_proto::handshake::Refusal;

use super::{H2Conn, SocketEvent, StreamExchange, StreamStage, StreamUpload};
use crate::exchange::HttpExchange;
use crate::metrics::Http2Fault;
use crate::request::Response;
use crate::shared::WorkerShared;

/// Bodies of incomplete requests of one connection, as a multiple of the maximum body: beyond it, only the window of the
/// oldest one is opened.
const UPLOADS_MAX: usize = 4;

impl H2Conn {
    /// Handles input from `at` on until it is consumed, reads are paused, or a socket is concerned. `None`: no event is
    /// left.
    pub(crate) fn handle(
        &mut self,
        input: &[u8],
        at: &mut usize,
        shared: &mut WorkerShared,
    ) -> Option<SocketEvent> {
        let now = shared.services.now;
        // One buffer for all connections of the thread.
        let mut fields = mem::take(&mut shared.fields);
        let mut found = None;
        while found.is_none() && !self.closing && *at < input.len() {
            let topics = &shared.services.topics;
            let published = topics.has_published() && topics.is_full();
            if published || self.outbound.len() > shared.services.http.high_water {
                self.paused = true;
                break;
            }
            let mut rest = &input[*at..];
            let received = self.machine.receive(&mut rest, &mut fields, now.since(Time::ZERO));
            *at = input.len() - rest.len();
            match received {
                Ok(Some(event)) => found = self.handle_event(event, *at, shared),
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(peer = %self.peer, %error, "HTTP/2 connection failed");
                    shared.services.counters.http2_failed.add(error.code().into());
                    self.exchanges.clear();
                    (self.closing, self.last_progress) = (true, now);
                }
            }
        }
        shared.fields = fields;
        if found.is_none() {
            self.end_input(shared);
        }
        found
    }

    /// Updates the state of the connection after its input.
    fn end_input(&mut self, shared: &mut WorkerShared) {
        let faults = [Http2Fault::Protocol, Http2Fault::RefusedStream];
        for (fault, count) in faults.into_iter().zip(self.machine.take_rejected()) {
            (0..count).for_each(|_| shared.services.counters.http2_reset.add(fault));
        }
        if self.machine.awaits_block() {
            self.block_since.get_or_insert(shared.services.now);
        } else {
            self.block_since = None;
        }
        self.send_pieces(shared);
    }

    /// Handles an event of input that ends at `end`.
    fn handle_event(
        &mut self,
        event: Event<'_>,
        end: usize,
        shared: &mut WorkerShared,
    ) -> Option<SocketEvent> {
        match event {
            Event::Request { stream, head, ends } => self.receive_request(stream, &head, ends, shared),
            Event::HeadTooLarge { stream, ends } => {
                self.open(stream, false, ends, shared.services.now);
                self.reject(stream, 431, "request head is too large\n", shared);
            }
            Event::Data { stream, data, ends } => {
                if self.position(stream).is_none() {
                    return self.socket_data(stream, end - data.len()..end, ends);
                }
                self.receive_data(stream, data, ends, shared);
            }
            Event::Trailers { stream, .. } => {
                if self.position(stream).is_none() {
                    return self.socket_data(stream, end..end, true);
                }
                self.receive_data(stream, &[], true, shared);
            }
            Event::Reset { stream, code, violation } => {
                if let Some(rule) = violation {
                    tracing::debug!(peer = %self.peer, %code, rule, "HTTP/2 stream is reset");
                    shared.services.counters.http2_reset.add(code.into());
                }
                if let Some(at) = self.position(stream) {
                    self.remove(at, shared.services.now);
                }
                return self.socket_of(stream).map(SocketEvent::Reset);
            }
            Event::GoAway { .. } => self.ended = true,
            Event::WindowOpened { stream } => self.windows_opened(stream),
            // Each send looks at the windows.
            _ => {}
        }
        self.opened.take().map(SocketEvent::Opened)
    }

    fn open(&mut self, stream: StreamId, is_head: bool, is_received: bool, now: Time) {
        self.has_request = true;
        let stage = StreamStage::Answering;
        self.exchanges.push(StreamExchange {
            stream,
            is_head,
            is_received,
            started: now,
            progress: now,
            stage,
        });
    }

    /// Handles a request whose head is complete.
    fn receive_request(
        &mut self,
        stream: StreamId,
        fields: &RequestFields<'_>,
        ends: bool,
        shared: &mut WorkerShared,
    ) {
        self.open(stream, fields.method() == "HEAD", ends, shared.services.now);
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
        let exchange =
            HttpExchange::new(&head, &[], self.peer, None, &router).with_connect(fields.protocol());
        if let Some(mut response) = exchange.before(&mut shared.services) {
            if fields.protocol().is_some() && response.status() / 100 == 2 {
                // A status of success would open a tunnel.
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
            return self.respond(stream, &exchange, shared);
        }
        if head.expects_continue() {
            self.send_continue(stream, shared);
        }
        let upload = StreamUpload { request: exchange.retain(), body: Vec::new(), held: 0 };
        if let Some(at) = self.position(stream) {
            self.exchanges[at].stage = StreamStage::Upload(Box::new(upload));
        }
    }

    /// Handles a part of a body. The body of a request that is answered is discarded: its stream will be reset.
    fn receive_data(&mut self, stream: StreamId, data: &[u8], ends: bool, shared: &mut WorkerShared) {
        let Some(at) = self.position(stream) else { return };
        let max_body = shared.services.http.max_body;
        let exchange = &mut self.exchanges[at];
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

    /// Returns consumed bytes to the windows of uploads, within the memory of one connection.
    fn open_windows(&mut self, max_body: usize) {
        let uploads = || {
            self.exchanges.iter().filter_map(|exchange| match &exchange.stage {
                StreamStage::Upload(upload) => Some(upload.body.len()),
                _ => None,
            })
        };
        let is_full = uploads().sum::<usize>() > max_body.saturating_mul(UPLOADS_MAX);
        for exchange in &mut self.exchanges {
            let StreamStage::Upload(upload) = &mut exchange.stage else { continue };
            self.machine.release(exchange.stream, mem::take(&mut upload.held));
            if is_full {
                break;
            }
        }
    }

    /// Ends an upload: answers the request, or rejects it.
    pub(super) fn end_upload(
        &mut self,
        stream: StreamId,
        rejection: Option<Response>,
        shared: &mut WorkerShared,
    ) {
        let Some(at) = self.position(stream) else { return };
        let exchange = &mut self.exchanges[at];
        let StreamStage::Upload(upload) = mem::replace(&mut exchange.stage, StreamStage::Answering) else {
            return;
        };
        let (router, peer, started) = (Rc::clone(&shared.router), self.peer, Some(exchange.started));
        upload.request.with_exchange(&upload.body, peer, started, &router, |exchange| match rejection {
            Some(response) => self.answer(stream, exchange, response, shared),
            None => self.respond(stream, exchange, shared),
        });
        self.open_windows(shared.services.http.max_body);
    }
}

/// Returns whether a connection may carry requests of the scheme (RFC 9113 section 8.3.1). In clear text a proxy that
/// terminates TLS passes `https`. CONNECT has none.
fn is_scheme_of(scheme: Option<&str>, encrypted: bool) -> bool {
    let is = |name: &str| scheme.is_none_or(|scheme| scheme.eq_ignore_ascii_case(name));
    is("https") || !encrypted && is("http")
}

fn too_large(max: usize) -> Response {
    Response::text(format!("request body exceeds {max} bytes\n")).with_status(413)
}
