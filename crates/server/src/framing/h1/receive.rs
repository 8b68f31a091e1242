//! Receives requests: heads, bodies, and discarded bodies.

use std::mem;

use sinews_http::{ChunkError, ChunkedBody, HeaderSlots, RequestHead};
use sinews_proto::handshake::Refusal;

use super::answer::AnswerContext;
use super::{H1Conn, HttpStage};
use crate::exchange::{HttpExchange, Outcome, RetainedRequest};
use crate::request::Response;
use crate::router::Router;
use crate::shared::WorkerShared;
use crate::socket::AcceptedUpgrade;

/// A request with the received part of its chunked body.
#[derive(Debug)]
pub(super) struct Upload {
    /// `None` if the request is answered, and the body is discarded.
    request: Option<Box<RetainedRequest>>,
    body: ChunkedBody,
}

impl Upload {
    /// Returns whether the request is answered, and the body is discarded.
    pub(super) fn is_discarded(&self) -> bool {
        self.request.is_none()
    }

    /// Returns the received bytes of the body.
    pub(super) fn body_len(&self) -> usize {
        self.body.bytes().len()
    }

    /// Returns the received bytes of the head and the body.
    pub(super) fn len(&self) -> usize {
        self.request.as_ref().map_or(0, |request| request.len()) + self.body_len()
    }
}

/// Result of handling a piece of input.
pub(super) enum RequestStep {
    /// Number of consumed bytes.
    Used(usize),
    /// More input is needed, or the connection is closing.
    NeedMore,
    /// A WebSocket begins after this number of bytes.
    Upgrade(AcceptedUpgrade, usize),
}

impl H1Conn {
    /// Handles one unit of the input.
    pub(super) fn step(&mut self, input: &[u8], router: &Router, shared: &mut WorkerShared) -> RequestStep {
        match &mut self.stage {
            HttpStage::Head => {
                let mut slots = HeaderSlots::new();
                match self.scanner.parse_request(input, &shared.services.http.head, &mut slots) {
                    Ok(Some(head)) => self.receive_head(input, &head, router, shared),
                    Ok(None) => RequestStep::NeedMore,
                    Err(error) => self.reject(&Refusal::from(error), shared),
                }
            }
            HttpStage::Body { len, .. } => {
                let Some(body) = input.get(..*len) else { return RequestStep::NeedMore };
                if let HttpStage::Body { request, .. } = mem::take(&mut self.stage) {
                    self.with_body(&request, body, router, shared, Self::respond);
                }
                RequestStep::Used(body.len())
            }
            HttpStage::Upload(upload) => {
                let received = upload.body.receive(input);
                if received.is_ok() && !upload.body.is_done() {
                    return RequestStep::Used(input.len());
                }
                match mem::take(&mut self.stage) {
                    HttpStage::Upload(upload) => self.receive_upload(&upload, received, router, shared),
                    _ => RequestStep::NeedMore,
                }
            }
            HttpStage::DiscardBody { left, .. } => {
                let used = input.len().min(*left);
                *left -= used;
                if *left > 0 { RequestStep::Used(used) } else { self.next_request(used, shared) }
            }
            // No input is taken in these stages.
            HttpStage::PendingAnswer(..) | HttpStage::Sending(_) | HttpStage::Streaming(_) => {
                RequestStep::NeedMore
            }
        }
    }

    /// Handles a request whose head is complete.
    fn receive_head(
        &mut self,
        input: &[u8],
        head: &RequestHead<'_>,
        router: &Router,
        shared: &mut WorkerShared,
    ) -> RequestStep {
        let head_len = head.wire_len();
        let behind = &input[head_len..];
        let body_len = usize::try_from(head.content_length().unwrap_or(0)).unwrap_or(usize::MAX);
        let body = behind.get(..body_len).filter(|_| !head.is_chunked());
        let exchange = HttpExchange::new(head, body.unwrap_or(&[]), self.peer, self.started, router);
        if let Some(response) = exchange.before(&mut shared.services) {
            if body.is_none() {
                return self.answer_without_body(&exchange, shared, |h1, shared| {
                    h1.answer(&exchange, response, shared)
                });
            }
            self.answer(&exchange, response, shared);
            return RequestStep::Used(head_len + body_len);
        }
        if let Some(route) = exchange.websocket_route() {
            // A handshake with a body is rejected, so its body is not awaited.
            return self.upgrade(route, &exchange, shared);
        }
        let max_body = shared.services.http.max_body;
        if body_len > max_body {
            (self.closing, self.discards_body) = (true, true);
            self.answer(&exchange, too_large(max_body), shared);
            return RequestStep::NeedMore;
        }
        if body.is_some() {
            self.respond(&exchange, shared);
            return RequestStep::Used(head_len + body_len);
        }
        if exchange.responder().is_none() {
            return self.answer_without_body(&exchange, shared, |h1, shared| h1.respond(&exchange, shared));
        }
        self.expect_body(head, shared);
        self.started = Some(shared.services.now);
        if head.is_chunked() {
            let body = ChunkedBody::new(max_body);
            self.stage = HttpStage::Upload(Box::new(Upload { request: Some(exchange.retain()), body }));
        } else {
            self.stage = HttpStage::Body { request: exchange.retain(), len: body_len };
        }
        RequestStep::Used(head_len)
    }

    /// Handles the end of a chunked body, or its error.
    fn receive_upload(
        &mut self,
        upload: &Upload,
        received: Result<usize, ChunkError>,
        router: &Router,
        shared: &mut WorkerShared,
    ) -> RequestStep {
        let Some(request) = &upload.request else {
            return self.end_discarded(received, shared);
        };
        let refusal = match received {
            Ok(used) => {
                self.with_body(request, upload.body.bytes(), router, shared, Self::respond);
                return RequestStep::Used(used);
            }
            Err(ChunkError::TooLarge) => too_large(shared.services.http.max_body),
            Err(ChunkError::Malformed) => Response::text("malformed chunk\n").with_status(400),
            Err(ChunkError::TooMuchOverhead) => {
                let limit = ChunkedBody::OVERHEAD_MAX;
                Response::text(format!("chunk extensions and trailers exceed {limit} bytes\n"))
                    .with_status(413)
            }
        };
        (self.closing, self.discards_body) = (true, true);
        self.with_body(request, &[], router, shared, |h1, exchange, shared| {
            h1.answer(exchange, refusal, shared);
        });
        RequestStep::NeedMore
    }

    /// Handles the end of a discarded chunked body.
    fn end_discarded(&mut self, received: Result<usize, ChunkError>, shared: &WorkerShared) -> RequestStep {
        match received {
            Ok(used) => self.next_request(used, shared),
            // The start of the next request is unknown.
            Err(_) => {
                (self.closing, self.discards_body) = (true, true);
                self.last_progress = shared.services.now;
                RequestStep::NeedMore
            }
        }
    }

    /// Resumes the exchange of a request whose body arrived after its head.
    fn with_body(
        &mut self,
        request: &RetainedRequest,
        body: &[u8],
        router: &Router,
        shared: &mut WorkerShared,
        then: impl FnOnce(&mut Self, &HttpExchange<'_>, &mut WorkerShared),
    ) {
        let (peer, started) = (self.peer, self.started);
        request.with_exchange(body, peer, started, router, |exchange| then(self, exchange, shared));
    }

    /// Answers a complete request, or starts its pending answer.
    fn respond(&mut self, exchange: &HttpExchange<'_>, shared: &mut WorkerShared) {
        match exchange.respond(self.conn, &mut shared.services) {
            Outcome::Ready(response) => self.answer(exchange, response, shared),
            Outcome::Streaming(streaming) => self.start_body(exchange, *streaming, shared),
            Outcome::Fixed(fixed) => self.write_fixed(AnswerContext::new(exchange.head), fixed, shared),
            Outcome::Pending(pending) => {
                self.started.get_or_insert(pending.since);
                self.stage = HttpStage::PendingAnswer(pending, AnswerContext::new(exchange.head));
            }
        }
    }

    /// Answers a request by its head, before its body has arrived. A short body is discarded, so that the connection
    /// stays open. Otherwise the connection closes (RFC 9112 sections 9.3 and 9.6). It closes too if the client sent
    /// `Expect: 100-continue`: without the 100 it may send the body or not (RFC 9110 section 10.1.1).
    fn answer_without_body(
        &mut self,
        exchange: &HttpExchange<'_>,
        shared: &mut WorkerShared,
        respond: impl FnOnce(&mut Self, &mut WorkerShared),
    ) -> RequestStep {
        let len = exchange.head.content_length().unwrap_or(0);
        self.closing |= len > DISCARDED_BODY_MAX as u64 || exchange.head.expects_continue();
        self.discards_body = self.closing;
        respond(self, shared);
        if self.closing {
            return RequestStep::NeedMore;
        }
        self.started = Some(shared.services.now);
        self.stage = if exchange.head.is_chunked() {
            let body = ChunkedBody::new(DISCARDED_BODY_MAX);
            HttpStage::Upload(Box::new(Upload { request: None, body }))
        } else {
            HttpStage::DiscardBody { left: len as usize, whole: len as usize }
        };
        RequestStep::Used(exchange.head.wire_len())
    }

    /// Continues with the next request.
    fn next_request(&mut self, used: usize, shared: &WorkerShared) -> RequestStep {
        self.stage = HttpStage::Head;
        self.started = None;
        self.last_progress = shared.services.now;
        RequestStep::Used(used)
    }

    /// Sends 100 (Continue) if the client waits for it (RFC 9110 section 10.1.1).
    fn expect_body(&mut self, head: &RequestHead<'_>, shared: &mut WorkerShared) {
        if head.expects_continue() {
            self.last_progress = shared.services.now;
            let chain = self.outbound.pending_chain(&mut shared.resources);
            chain.write(|out| out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n"));
        }
    }
}

/// Bodies up to this size are read and discarded to keep the connection: cheaper than a new connection.
const DISCARDED_BODY_MAX: usize = 64 << 10;

fn too_large(max: usize) -> Response {
    Response::text(format!("request body exceeds {max} bytes\n")).with_status(413)
}
