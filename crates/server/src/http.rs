//! One connection while it speaks HTTP/1.1.

mod config;
mod write;

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use sinews_proto::handshake::{Refusal, accept};
use sinews_proto::http::{HeadScanner, HeaderSlots, RequestHead, Version};
use sinews_proto::{Config, Negotiated, Time};
use sinews_session::{Flow, Outbound, Resources};

pub use self::config::HttpConfig;
use self::write::write_head;
use crate::chunked::{ChunkError, ChunkedBody};
use crate::date::Date;
use crate::handler::Handler;
use crate::limits::{Gate, Pace};
use crate::metrics::Counters;
use crate::request::{Request, Response};
use crate::router::{Entry, Router, WebSocketRoute, wants_upgrade};
use crate::topics::Topics;

/// What the requests of a thread are answered with.
pub(crate) struct Service<'a> {
    pub(crate) router: &'a Router,
    pub(crate) config: &'a HttpConfig,
    pub(crate) topics: &'a mut Topics,
    pub(crate) resources: &'a mut Resources,
    pub(crate) date: &'a mut Date,
    pub(crate) counters: &'a Counters,
    pub(crate) gate: &'a Gate,
    pub(crate) now: Time,
    pub(crate) stopping: bool,
}

/// The state of one connection.
#[derive(Debug)]
pub(crate) struct Http {
    /// Part of a request.
    buffer: Vec<u8>,
    scanner: HeadScanner,
    /// The head is there: how long it is, and how long it is with its body.
    awaited: Option<(usize, usize)>,
    /// A request whose body comes in chunks.
    upload: Option<Box<Upload>>,
    /// Bytes still to come of a body that nobody wants, whose request is answered.
    unwanted: usize,
    pub(crate) outbound: Outbound,
    pub(crate) paused: bool,
    /// No further request is read: what is queued leaves, then the connection ends.
    pub(crate) ending: bool,
    /// When the request under way began, or its body, or the connection.
    started: Option<Time>,
    /// When bytes came last.
    received: Time,
    /// When an answer was queued, or bytes of one left.
    moved: Time,
    /// When the loop's timer fires.
    pub(crate) armed: Option<Time>,
    pub(crate) peer: SocketAddr,
}

/// A head, and what has come of its body.
#[derive(Debug)]
struct Upload {
    head: Vec<u8>,
    body: ChunkedBody,
    /// The request is answered, and the body passed over.
    unwanted: bool,
}

/// A request became a WebSocket.
pub(crate) struct Upgrade {
    pub(crate) negotiated: Negotiated,
    pub(crate) handler: Box<dyn Handler>,
    pub(crate) config: Arc<Config>,
    pub(crate) pace: Option<Pace>,
}

/// What handling input came to.
pub(crate) enum Handled {
    /// All that can be answered is answered.
    Waiting,
    /// The rest of the input is the WebSocket's.
    Upgraded(Upgrade, Rest),
}

/// Input behind an upgrade.
pub(crate) enum Rest {
    /// What the chunk holds from here on.
    Chunk(usize),
    /// What was kept.
    Kept(Vec<u8>),
}

impl Http {
    pub(crate) fn new(peer: SocketAddr, now: Time) -> Self {
        Self {
            buffer: Vec::new(),
            scanner: HeadScanner::new(),
            awaited: None,
            upload: None,
            unwanted: 0,
            outbound: Outbound::default(),
            paused: false,
            ending: false,
            started: Some(now),
            received: now,
            moved: now,
            armed: None,
            peer,
        }
    }

    /// Whether nothing is under way: no part of a request, no answer that waits to leave.
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_part() && self.outbound.is_empty()
    }

    /// Bytes of memory that hold what has come of a request that is not whole.
    pub(crate) fn incomplete(&self) -> usize {
        self.buffer.capacity() + self.upload.as_ref().map_or(0, |upload| upload.body.bytes().len())
    }

    /// Whether part of a request has come.
    fn has_part(&self) -> bool {
        !self.buffer.is_empty() || self.upload.is_some() || self.unwanted > 0
    }

    /// Whether what comes belongs to the body of a request.
    fn is_in_body(&self) -> bool {
        self.awaited.is_some() || self.upload.is_some() || self.unwanted > 0
    }

    /// Whether what comes belongs to a request that is answered.
    fn is_answered(&self) -> bool {
        self.unwanted > 0 || self.upload.as_ref().is_some_and(|upload| upload.unwanted)
    }

    /// When waiting for the peer ends.
    pub(crate) fn deadline(&self, config: &HttpConfig) -> Time {
        match self.started {
            _ if self.ending || !self.outbound.is_empty() => self.moved + config.write_timeout,
            Some(started) if self.is_in_body() => {
                // It may have been told to go on only then.
                let idle = self.received.max(self.moved) + config.body_idle_timeout;
                idle.min(started + config.body_timeout)
            }
            // Counted from the first byte: a drip of bytes gains nothing.
            Some(started) => started + config.head_timeout,
            None => self.moved + config.keep_alive_timeout,
        }
    }

    /// Whether more may be received.
    pub(crate) fn flow(&self) -> Flow {
        if self.paused { Flow::Pause } else { Flow::Continue }
    }

    /// Bytes of an answer have left.
    pub(crate) fn moved(&mut self, now: Time) {
        self.moved = now;
    }

    pub(crate) fn receive(&mut self, chunk: &[u8], service: &mut Service<'_>) -> Handled {
        if self.ending {
            return Handled::Waiting;
        }
        self.received = service.now;
        if !self.buffer.is_empty() || self.paused {
            self.buffer.extend_from_slice(chunk);
            return if self.paused { Handled::Waiting } else { self.resume(service) };
        }
        match self.handle(chunk, service) {
            (used, None) => {
                self.keep(&chunk[used..], service.now);
                Handled::Waiting
            }
            (used, Some(upgrade)) => Handled::Upgraded(upgrade, Rest::Chunk(used)),
        }
    }

    /// Goes on with what is in the buffer.
    pub(crate) fn resume(&mut self, service: &mut Service<'_>) -> Handled {
        self.paused = false;
        let mut buffer = std::mem::take(&mut self.buffer);
        match self.handle(&buffer, service) {
            (0, None) if !self.ending => {
                self.buffer = buffer;
                Handled::Waiting
            }
            (used, None) => {
                self.keep(&buffer[used..], service.now);
                Handled::Waiting
            }
            (used, Some(upgrade)) => Handled::Upgraded(upgrade, Rest::Kept(buffer.split_off(used))),
        }
    }

    /// Keeps the beginning of a request.
    fn keep(&mut self, rest: &[u8], now: Time) {
        if !rest.is_empty() && !self.ending {
            self.buffer.extend_from_slice(rest);
            self.started.get_or_insert(now);
        }
    }

    /// Answers requests until the input is used up, an answer ends the connection, too much waits to
    /// leave, or one is an upgrade. Answers how many bytes are done with.
    fn handle(&mut self, input: &[u8], service: &mut Service<'_>) -> (usize, Option<Upgrade>) {
        let mut at = 0;
        while at < input.len() && !self.ending {
            let published = service.topics.has_published() && service.topics.is_full();
            if published || self.outbound.len() > service.config.high_water {
                self.paused = true;
                break;
            }
            let step = match self.upload.take() {
                Some(upload) => self.receive_upload(upload, &input[at..], service),
                None if self.unwanted > 0 => self.receive_unwanted(&input[at..], service),
                None => self.receive_request(&input[at..], service),
            };
            match step {
                Step::Used(used) => at += used,
                Step::NeedMore => break,
                Step::Upgrade(upgrade, used) => return (at + used, Some(upgrade)),
            }
        }
        (at, None)
    }

    /// One request from its first byte on.
    fn receive_request(&mut self, input: &[u8], service: &mut Service<'_>) -> Step {
        let (head, whole) = match self.awaited {
            Some(awaited) => awaited,
            None => match self.scanner.scan(input, &service.config.head) {
                Ok(Some(head)) => (head, head),
                Ok(None) => return Step::NeedMore,
                Err(error) => return self.refuse(&Refusal::from(error), service),
            },
        };
        if whole > input.len() {
            return Step::NeedMore;
        }
        self.request(input, head, service)
    }

    /// One request, whose head is there.
    fn request(&mut self, input: &[u8], head_len: usize, service: &mut Service<'_>) -> Step {
        let mut slots = HeaderSlots::new();
        let head = match RequestHead::parse(&input[..head_len], &service.config.head, &mut slots) {
            Ok(head) => head,
            Err(error) => return self.refuse(&Refusal::from(error), service),
        };
        let found = service.router.at(head.path());
        if let Some((entry, params)) = &found
            && let Some(route) = entry.upgrade(&head)
        {
            // One with a body is refused, so its body need not come.
            return self.upgrade(route, &head, params, service);
        }
        let body_len = usize::try_from(head.content_length().unwrap_or(0)).unwrap_or(usize::MAX);
        if body_len > service.config.max_body {
            return self.refuse_body(&head, &too_large(service.config.max_body), service);
        }
        let whole = head_len.saturating_add(body_len);
        let is_there = !head.is_chunked() && input.len() >= whole;
        let is_wanted = found.as_ref().is_some_and(|(entry, _)| entry.answer(head.method()).is_some());
        if !is_there && !is_wanted {
            let refusal = self.respond(&head, found, &[], service);
            return self.pass_over(&head, head_len, &refusal, service);
        }
        if !is_there {
            self.expect_body(&head, service);
        }
        if head.is_chunked() {
            self.started = Some(service.now);
            let (head, body) = (input[..head_len].to_vec(), ChunkedBody::new(service.config.max_body));
            self.upload = Some(Box::new(Upload { head, body, unwanted: false }));
            return Step::Used(head_len);
        }
        if input.len() < whole {
            self.started = Some(service.now);
            self.awaited = Some((head_len, whole));
            return Step::NeedMore;
        }
        self.awaited = None;
        let response = self.respond(&head, found, &input[head_len..whole], service);
        self.answer(&head, &response, service);
        Step::Used(whole)
    }

    /// More of a body in chunks.
    fn receive_upload(&mut self, mut upload: Box<Upload>, input: &[u8], service: &mut Service<'_>) -> Step {
        let received = upload.body.receive(input);
        if received.is_ok() && !upload.body.is_done() {
            self.upload = Some(upload);
            return Step::Used(input.len());
        }
        if upload.unwanted {
            return match received {
                Ok(used) => self.passed_over(used, service),
                // Where the next request would begin is unknown.
                Err(_) => self.end(service),
            };
        }
        let mut slots = HeaderSlots::new();
        let head = match RequestHead::parse(&upload.head, &service.config.head, &mut slots) {
            Ok(head) => head,
            Err(error) => return self.refuse(&Refusal::from(error), service),
        };
        let refusal = match received {
            Ok(used) => {
                let response =
                    self.respond(&head, service.router.at(head.path()), upload.body.bytes(), service);
                self.answer(&head, &response, service);
                return Step::Used(used);
            }
            Err(ChunkError::TooLarge) => too_large(service.config.max_body),
            Err(ChunkError::Malformed) => Response::text("malformed chunk\n").with_status(400),
            Err(ChunkError::TooMuchBeside) => Response::text("too much beside the chunks\n").with_status(413),
        };
        self.refuse_body(&head, &refusal, service)
    }

    /// Answers a request whose head says enough, before its body has come. A short body is passed over, so
    /// that the connection can go on; otherwise it ends (RFC 9112 sections 9.3 and 9.6). It ends too where the
    /// client asked for leave to send the body: without it, it may send one or not (RFC 9110 section 10.1.1).
    fn pass_over(
        &mut self,
        head: &RequestHead<'_>,
        head_len: usize,
        refusal: &Response,
        service: &mut Service<'_>,
    ) -> Step {
        let len = head.content_length().unwrap_or(0);
        if len > UNWANTED_BODY_MAX as u64 || expects_leave(head) {
            return self.refuse_body(head, refusal, service);
        }
        self.answer(head, refusal, service);
        self.started = Some(service.now);
        if head.is_chunked() {
            let body = ChunkedBody::new(UNWANTED_BODY_MAX);
            self.upload = Some(Box::new(Upload { head: Vec::new(), body, unwanted: true }));
        } else {
            self.unwanted = len as usize;
        }
        Step::Used(head_len)
    }

    /// More of a body that nobody wants.
    fn receive_unwanted(&mut self, input: &[u8], service: &Service<'_>) -> Step {
        let used = self.unwanted.min(input.len());
        self.unwanted -= used;
        if self.unwanted > 0 { Step::Used(used) } else { self.passed_over(used, service) }
    }

    /// The next request may come.
    fn passed_over(&mut self, used: usize, service: &Service<'_>) -> Step {
        self.started = None;
        self.moved = service.now;
        Step::Used(used)
    }

    /// What is queued leaves, then the connection ends.
    fn end(&mut self, service: &Service<'_>) -> Step {
        self.ending = true;
        self.moved = service.now;
        Step::NeedMore
    }

    /// What a whole request is answered with.
    fn respond(
        &self,
        head: &RequestHead<'_>,
        found: Option<(&Entry, matchit::Params<'_, '_>)>,
        body: &[u8],
        service: &mut Service<'_>,
    ) -> Response {
        if head.target() == "*" {
            return allow(Response::new(204), &service.router.allowed());
        }
        let Some((entry, params)) = found else {
            return Response::text("not found\n").with_status(404);
        };
        match entry.answer(head.method()) {
            Some(answer) => answer.call(&mut Request::new(head, &params, body, self.peer, service.topics)),
            None if head.method() == "OPTIONS" => allow(Response::new(204), &entry.allowed()),
            None => allow(Response::text("method not allowed\n").with_status(405), &entry.allowed()),
        }
    }

    /// The client may be waiting for leave to send its body (RFC 9110 section 10.1.1).
    fn expect_body(&mut self, head: &RequestHead<'_>, service: &mut Service<'_>) {
        if expects_leave(head) {
            self.moved = service.now;
            let chain = self.outbound.gathering(service.resources);
            chain.write(|out| out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n"));
        }
    }

    fn upgrade(
        &mut self,
        route: &WebSocketRoute,
        head: &RequestHead<'_>,
        params: &matchit::Params<'_, '_>,
        service: &mut Service<'_>,
    ) -> Step {
        let accepted = match accept(head, &route.options) {
            Ok(accepted) => accepted,
            Err(refusal) => return self.refuse_handshake(&refusal, service),
        };
        if let Err(limit) = service.gate.handshake() {
            service.counters.limited.add(limit);
            service.gate.report(limit);
            return self.refuse_handshake(&limit.refusal(), service);
        }
        let request = Request::new(head, params, &[], self.peer, service.topics);
        let request = request.accepted(accepted.subprotocol());
        let handler = match (route.handler)(&request) {
            Ok(handler) => handler,
            Err(refusal) => return self.refuse_handshake(&refusal, service),
        };
        let headers = route.headers.as_ref().map_or_else(Vec::new, |headers| headers(&request));
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        let chain = self.outbound.gathering(service.resources);
        if let Err(error) = chain.write(|out| accepted.write_response(&headers, out)) {
            // This is HTTP/1, so it is a header.
            tracing::error!(path = head.path(), %error, "the route's headers cannot be sent");
            return match Refusal::new(500) {
                Ok(refusal) => self.refuse_handshake(&refusal, service),
                Err(_) => self.end(service),
            };
        }
        let (negotiated, config) = (accepted.negotiated(), Arc::clone(&route.config));
        Step::Upgrade(Upgrade { negotiated, handler, config, pace: route.message_pace }, head.wire_len())
    }

    fn refuse_handshake(&mut self, refusal: &Refusal, service: &mut Service<'_>) -> Step {
        service.counters.handshake_refused(refusal.status());
        self.end_with(refusal, service)
    }

    /// Refuses a request: the connection ends behind the answer, so that nothing that follows is taken
    /// for a request.
    fn refuse(&mut self, refusal: &Refusal, service: &mut Service<'_>) -> Step {
        service.counters.responded(refusal.status());
        self.end_with(refusal, service)
    }

    fn end_with(&mut self, refusal: &Refusal, service: &mut Service<'_>) -> Step {
        self.ending = true;
        self.moved = service.now;
        // RFC 9110 section 6.6.1: a server with a clock dates what it answers.
        let dated = refusal.clone().with_header("Date", service.date.at(service.now));
        let chain = self.outbound.gathering(service.resources);
        chain.write(|out| dated.as_ref().unwrap_or(refusal).write_response(out));
        Step::NeedMore
    }

    /// Answers a request whose body is not taken; it is not read either, so the connection ends.
    fn refuse_body(
        &mut self,
        head: &RequestHead<'_>,
        response: &Response,
        service: &mut Service<'_>,
    ) -> Step {
        self.ending = true;
        self.answer(head, response, service);
        Step::NeedMore
    }

    fn answer(&mut self, head: &RequestHead<'_>, response: &Response, service: &mut Service<'_>) {
        service.counters.responded(response.status);
        // A client that wanted to switch may have sent ahead in another protocol (RFC 9931).
        let wanted_other = wants_upgrade(head) || head.method() == "CONNECT";
        self.ending |= !head.keep_alive() || wanted_other || service.stopping;
        self.started = None;
        self.moved = service.now;
        let connection = match (self.ending, head.version()) {
            (true, _) => Some("close"),
            // There it has to be said (RFC 9112 section 9.3).
            (false, Version::Http10) => Some("keep-alive"),
            (false, _) => None,
        };
        let chain = self.outbound.gathering(service.resources);
        let none = head.method() == "HEAD" || !response.may_have_body();
        let body = if none { Bytes::new() } else { response.body.clone() };
        let copied = body.len() <= BODY_COPY_MAX;
        chain.write(|out| {
            write_head(response, connection, service.date.at(service.now), out);
            if copied {
                out.extend_from_slice(&body);
            }
        });
        if !copied {
            chain.push_bytes(body);
        }
    }

    /// The wait is over. Answers whether the connection is to be closed at once.
    pub(crate) fn time_out(&mut self, service: &mut Service<'_>) -> bool {
        let owed_nothing = self.ending || !self.outbound.is_empty() || self.is_answered() || !self.has_part();
        if !owed_nothing {
            (self.buffer, self.upload) = (Vec::new(), None);
            let timeout = Refusal::new(408).map(|refusal| refusal.with_body("request timeout\n"));
            if let Ok(timeout) = timeout {
                self.refuse(&timeout, service);
            }
        }
        owed_nothing
    }
}

/// What handling a piece of input came to.
enum Step {
    /// So many bytes are done with.
    Used(usize),
    /// Nothing can be done before more has come, or the connection is ending.
    NeedMore,
    /// A WebSocket begins behind so many bytes.
    Upgrade(Upgrade, usize),
}

/// Bodies up to this size are copied behind their head.
const BODY_COPY_MAX: usize = 4 << 10;

/// Bodies up to this size are read to no end so that the connection can go on: cheaper than a new one.
const UNWANTED_BODY_MAX: usize = 64 << 10;

/// Whether the client waits for leave to send the body (RFC 9110 section 10.1.1).
fn expects_leave(head: &RequestHead<'_>) -> bool {
    head.version() != Version::Http10
        && head.header("expect").any(|value| value.eq_ignore_ascii_case(b"100-continue"))
}

/// RFC 9110 section 10.2.1.
fn allow(response: Response, methods: &[&str]) -> Response {
    response.with_header("Allow", methods.join(", "))
}

fn too_large(max: usize) -> Response {
    Response::text(format!("the body may have {max} bytes\n")).with_status(413)
}
