//! Writes answers: heads, bodies in pieces, rejections and the answer to an opening handshake.

use std::mem;
use std::rc::Rc;
use std::task::Poll;

use sinews_http::{LAST_CHUNK, RequestHead, Version, write_chunked_head, write_response_head};
use sinews_proto::Negotiated;
use sinews_proto::handshake::Refusal;

use super::receive::RequestStep;
use super::{H1Conn, HttpStage, SentBody};
use crate::answer::LaterAnswer;
use crate::answer::streaming::StreamingResponse;
use crate::exchange::{HttpExchange, SocketHandshake, admit};
use crate::fixed::{BODY_COPY_MAX, FixedResponse};
use crate::request::{Response, ResponseBody};
use crate::router::WebSocketRoute;
use crate::shared::WorkerShared;
use crate::socket::{AcceptedUpgrade, MessageTransport};

/// Parts of a request that determine the framing of its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerContext {
    version: Version,
    /// The method is HEAD.
    is_head: bool,
    /// The connection closes after the answer.
    closes: bool,
}

impl AnswerContext {
    pub(super) fn new(head: &RequestHead<'_>) -> Self {
        // A client that asked for a WebSocket or a tunnel may have sent ahead in it (RFC 9931).
        let wanted_other = head.wants_websocket() || head.method() == "CONNECT";
        let closes = !head.keep_alive() || wanted_other;
        Self { version: head.version(), is_head: head.method() == "HEAD", closes }
    }
}

impl H1Conn {
    /// Polls the future of the answer. Returns whether it is ready.
    pub(crate) fn poll_answer(&mut self, shared: &mut WorkerShared) -> bool {
        let HttpStage::PendingAnswer(pending, _) = &mut self.stage else { return false };
        match pending.poll() {
            Poll::Pending => return false,
            Poll::Ready(LaterAnswer::Response(response)) => self.finish_answer(response, shared),
            Poll::Ready(LaterAnswer::Streaming(streaming)) => self.finish_streaming(streaming, shared),
        }
        true
    }

    /// Handles the timeout of a pending answer.
    pub(super) fn time_out_answer(&mut self, shared: &mut WorkerShared) {
        self.finish_answer(Response::text("the answer takes too long\n").with_status(503), shared);
    }

    fn finish_answer(&mut self, mut response: Response, shared: &mut WorkerShared) {
        if let HttpStage::PendingAnswer(pending, context) = mem::take(&mut self.stage) {
            pending.complete(&mut response, &Rc::clone(&shared.router), &mut shared.services);
            self.write_answer(context, &response, shared);
        }
    }

    /// Begins the streaming response of a pending answer.
    fn finish_streaming(&mut self, streaming: Box<StreamingResponse>, shared: &mut WorkerShared) {
        let HttpStage::PendingAnswer(pending, context) = mem::take(&mut self.stage) else { return };
        let router = Rc::clone(&shared.router);
        match admit(streaming, context.is_head, &shared.services) {
            Ok(mut streaming) => {
                pending.complete(&mut streaming.response, &router, &mut shared.services);
                self.write_body_head(context, *streaming, shared);
            }
            Err(mut response) => {
                pending.complete(&mut response, &router, &mut shared.services);
                self.write_answer(context, &response, shared);
            }
        }
    }

    /// Answers the opening handshake of a WebSocket.
    pub(super) fn upgrade(
        &mut self,
        route: &WebSocketRoute,
        exchange: &HttpExchange<'_>,
        shared: &mut WorkerShared,
    ) -> RequestStep {
        let SocketHandshake { accepted, response, upgrade } =
            match exchange.accept_socket(route, None, &mut shared.services) {
                Ok(handshake) => handshake,
                Err(refusal) => return self.reject_handshake(exchange, refusal, shared),
            };
        let headers: Vec<(&str, &str)> = response.headers.iter().collect();
        let chain = self.outbound.pending_chain(&mut shared.resources);
        if let Err(error) = chain.write(|out| accepted.write_response(&headers, out)) {
            // The connection speaks HTTP/1, so the fault is a header.
            tracing::error!(path = exchange.head.path(), %error, "handshake response has an invalid header");
            if let Ok(refusal) = Refusal::new(500) {
                return self.reject_handshake(exchange, refusal, shared);
            }
            self.closing = true;
            return RequestStep::NeedMore;
        }
        RequestStep::Upgrade(upgrade, exchange.head.wire_len())
    }

    /// Rejects a handshake, with the headers that hooks add.
    fn reject_handshake(
        &mut self,
        exchange: &HttpExchange<'_>,
        refusal: Refusal,
        shared: &mut WorkerShared,
    ) -> RequestStep {
        let refusal = exchange.complete_refusal(refusal, &mut shared.services);
        self.close_with(&refusal, shared)
    }

    /// Rejects a request. The connection closes after the answer, so that later bytes are not taken for a request.
    pub(super) fn reject(&mut self, refusal: &Refusal, shared: &mut WorkerShared) -> RequestStep {
        shared.services.counters.responded(refusal.status());
        self.close_with(refusal, shared)
    }

    fn close_with(&mut self, refusal: &Refusal, shared: &mut WorkerShared) -> RequestStep {
        let WorkerShared { resources, services, .. } = shared;
        self.closing = true;
        self.last_progress = services.now;
        // RFC 9110 section 6.6.1: a server with a clock dates its answers.
        let dated = refusal.clone().with_header("Date", services.date.at(services.now));
        let chain = self.outbound.pending_chain(resources);
        chain.write(|out| dated.as_ref().unwrap_or(refusal).write_response(out));
        RequestStep::NeedMore
    }

    /// Completes and writes the answer to a request.
    pub(super) fn answer(
        &mut self,
        exchange: &HttpExchange<'_>,
        mut response: Response,
        shared: &mut WorkerShared,
    ) {
        exchange.complete(&mut response, &mut shared.services);
        self.write_answer(AnswerContext::new(exchange.head), &response, shared);
    }

    /// Writes an answer that is encoded already.
    pub(super) fn write_fixed(
        &mut self,
        context: AnswerContext,
        fixed: &FixedResponse,
        shared: &mut WorkerShared,
    ) {
        let WorkerShared { resources, services, .. } = &mut *shared;
        let closes = self.closing || context.closes || services.is_stopping();
        let fixed = fixed.prepared(services.http3_port);
        match fixed.encoded() {
            Some(encoded) if !closes && context.version == Version::Http11 => {
                (self.started, self.last_progress) = (None, services.now);
                let date = services.date.at(services.now);
                let chain = self.outbound.pending_chain(resources);
                chain.write(|out| encoded.write(date, !context.is_head, out));
            }
            _ => self.write_answer(context, fixed.response(), shared),
        }
    }

    fn write_answer(&mut self, context: AnswerContext, response: &Response, shared: &mut WorkerShared) {
        let WorkerShared { resources, services, .. } = &mut *shared;
        let has_length = response.body.len().is_some();
        let is_chunked = !has_length && context.version != Version::Http10;
        // Only the end of the connection ends a body of unknown length for HTTP/1.0.
        self.closing |= context.closes || services.is_stopping() || !has_length && !is_chunked;
        self.started = None;
        self.last_progress = services.now;
        let connection = match (self.closing, context.version) {
            (true, _) => Some("close"),
            // HTTP/1.0 requires the header (RFC 9112 section 9.3).
            (false, Version::Http10) => Some("keep-alive"),
            (false, _) => None,
        };
        let chain = self.outbound.pending_chain(resources);
        let body = (!context.is_head && response.may_have_body()).then_some(&response.body);
        let copied = match body {
            Some(ResponseBody::Bytes(bytes)) if bytes.len() <= BODY_COPY_MAX => &bytes[..],
            _ => &[],
        };
        chain.write(|out| {
            let (status, date, headers) =
                (response.status, services.date.at(services.now), &response.headers);
            if is_chunked && response.may_have_body() {
                write_chunked_head(status, date, headers, connection, out);
            } else {
                write_response_head(status, date, headers, response.content_length(), connection, out);
            }
            out.extend_from_slice(copied);
        });
        match body {
            Some(ResponseBody::Bytes(bytes)) if bytes.len() > BODY_COPY_MAX => {
                chain.push_bytes(bytes.clone())
            }
            Some(body @ (ResponseBody::File(_) | ResponseBody::Source(_))) => {
                self.stage = HttpStage::Sending(Box::new(SentBody { body: body.clone(), is_chunked }));
                self.send_pieces(shared);
            }
            _ => {}
        }
    }

    /// Writes the head of a streaming response. Its body follows, except after HEAD.
    pub(super) fn start_body(
        &mut self,
        exchange: &HttpExchange<'_>,
        mut streaming: StreamingResponse,
        shared: &mut WorkerShared,
    ) {
        exchange.complete(&mut streaming.response, &mut shared.services);
        self.write_body_head(AnswerContext::new(exchange.head), streaming, shared);
    }

    fn write_body_head(
        &mut self,
        context: AnswerContext,
        streaming: StreamingResponse,
        shared: &mut WorkerShared,
    ) {
        let StreamingResponse { response, format, handler, config, prefix } = streaming;
        let WorkerShared { resources, services, .. } = shared;
        // Only the end of the connection ends a body for HTTP/1.0.
        let chunked = context.version != Version::Http10;
        self.closing |= context.closes || services.is_stopping() || !chunked;
        self.started = None;
        self.last_progress = services.now;
        let connection = self.closing.then_some("close");
        let chain = self.outbound.pending_chain(resources);
        chain.write(|out| {
            let (status, date, headers) =
                (response.status, services.date.at(services.now), &response.headers);
            if chunked {
                write_chunked_head(status, date, headers, connection, out);
            } else {
                write_response_head(status, date, headers, None, connection, out);
            }
        });
        if !context.is_head {
            let negotiated = Negotiated::response_body(format, chunked);
            let transport = MessageTransport::Body { keep_alive: !self.closing, prefix };
            let upgrade = AcceptedUpgrade { negotiated, handler, config, rate_limit: None, transport };
            self.stage = HttpStage::Streaming(Box::new(upgrade));
        }
    }

    /// Queues more of a file, or of a body that is encoded in pieces, up to the high-water mark.
    pub(crate) fn send_pieces(&mut self, shared: &mut WorkerShared) {
        while let HttpStage::Sending(sent) = &mut self.stage
            && self.outbound.len() < PIECE
        {
            let SentBody { body, is_chunked } = &mut **sent;
            let is_chunked = *is_chunked;
            match body.read(PIECE) {
                Ok(piece) if piece.is_empty() => {
                    if is_chunked {
                        let chain = self.outbound.pending_chain(&mut shared.resources);
                        chain.write(|out| out.extend_from_slice(LAST_CHUNK));
                    }
                    self.stage = HttpStage::Head;
                }
                Ok(piece) => {
                    self.last_progress = shared.services.now;
                    let chain = self.outbound.pending_chain(&mut shared.resources);
                    if is_chunked {
                        chain.write(|out| out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes()));
                        chain.push_bytes(piece);
                        chain.write(|out| out.extend_from_slice(b"\r\n"));
                    } else {
                        chain.push_bytes(piece);
                    }
                }
                // The close of the connection tells the peer that the body is incomplete.
                Err(error) => {
                    tracing::error!(%error, "failed to read the body; the response is incomplete");
                    (self.stage, self.closing) = (HttpStage::Head, true);
                }
            }
        }
    }
}

/// Read size of a file, and limit of its queued bytes: about the capacity of a socket, and a short delay for other
/// connections.
const PIECE: usize = 128 << 10;
