//! Answers to requests: immediate, pending, or an upgrade.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sinews_proto::Time;
use sinews_proto::handshake::{Refusal, accept};
use sinews_proto::http::{HeaderSlots, RequestHead, Version};

use super::receive::Step;
use super::write::write_head;
use super::{Http, Service, Stage, Upgrade};
use crate::answer::{Answer, Kind, Later};
use crate::request::{Body, Request, Response};
use crate::router::{Entry, Responder, Router, WebSocketRoute, wants_upgrade};
use crate::tasks::TaskWaker;

/// Request as received so far.
pub(super) struct Asked<'a> {
    /// The bytes of its head.
    pub(super) raw: &'a [u8],
    pub(super) head: &'a RequestHead<'a>,
    entry: Option<&'a Entry>,
    params: matchit::Params<'a, 'a>,
    body: &'a [u8],
}

impl<'a> Asked<'a> {
    pub(super) fn new(raw: &'a [u8], head: &'a RequestHead<'a>, body: &'a [u8], router: &'a Router) -> Self {
        let found = router.at(head.path());
        let (entry, params) =
            found.map_or_else(|| (None, matchit::Params::new()), |(entry, params)| (Some(entry), params));
        Self { raw, head, entry, params, body }
    }

    /// Returns the responder of the request, if the route has one.
    pub(super) fn responder(&self) -> Option<&'a Responder> {
        self.entry?.responder(self.head.method())
    }

    /// Returns the WebSocket route of an upgrade, or of a request that requires one.
    pub(super) fn upgrade(&self) -> Option<&'a WebSocketRoute> {
        self.entry?.upgrade(self.head)
    }
}

/// Request with a pending answer.
pub(super) struct Answering {
    /// Its head, which determines the framing of the answer.
    head: Vec<u8>,
    answer: Later,
    waker: Arc<TaskWaker>,
    pub(super) since: Time,
}

impl Answering {
    fn poll(&mut self) -> Poll<Response> {
        self.waker.polled();
        let waker = Waker::from(Arc::clone(&self.waker));
        self.answer.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

impl fmt::Debug for Answering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answering").field("since", &self.since).finish_non_exhaustive()
    }
}

impl Http {
    /// Answers a complete request, or starts its pending answer.
    pub(super) fn respond(&mut self, asked: &Asked<'_>, service: &mut Service<'_>) {
        let answer = match self.ask(asked, service).0 {
            Kind::Now(response) => return self.answer(asked, response, service),
            Kind::Later(answer) => answer,
            Kind::Blocking(work) => {
                let done = service.tasks.pool().run(work);
                Box::pin(async { done.await.unwrap_or_else(|not_run| not_run.response()) })
            }
        };
        let (head, since) = (asked.raw.to_vec(), service.now);
        self.started.get_or_insert(since);
        let mut answering = Answering { head, answer, waker: service.tasks.waker(service.conn), since };
        match answering.poll() {
            Poll::Ready(response) => self.answer(asked, response, service),
            Poll::Pending => self.stage = Stage::Answering(Box::new(answering)),
        }
    }

    /// Computes the answer to a complete request.
    fn ask(&self, asked: &Asked<'_>, service: &mut Service<'_>) -> Answer {
        let head = asked.head;
        if head.target() == "*" {
            return allow(Response::new(204), &service.router.allowed()).into();
        }
        let Some(entry) = asked.entry else {
            return Response::text("not found\n").with_status(404).into();
        };
        match asked.responder() {
            Some(responder) => responder.call(&mut self.request(asked, service)),
            None if head.method() == "OPTIONS" => allow(Response::new(204), &entry.allowed()).into(),
            None => allow(Response::text("method not allowed\n").with_status(405), &entry.allowed()).into(),
        }
    }

    /// Builds the request that handlers and hooks see.
    fn request<'r>(&self, asked: &'r Asked<'_>, service: &'r mut Service<'_>) -> Request<'r> {
        let elapsed = self.started.map_or(Duration::ZERO, |started| service.now.since(started));
        Request::new(asked.head, &asked.params, asked.body, self.peer, service.beside(elapsed))
    }

    /// Returns the answer of a before hook, once the head has arrived.
    pub(super) fn before(&self, asked: &Asked<'_>, service: &mut Service<'_>) -> Option<Response> {
        let hooks = &service.router.hooks;
        if !hooks.has_before() {
            return None;
        }
        hooks.before(&mut self.request(asked, service).without_body())
    }

    /// Runs the after hooks on an answer.
    fn after(&self, asked: &Asked<'_>, response: &mut Response, service: &mut Service<'_>) {
        let hooks = &service.router.hooks;
        if hooks.has_after() {
            hooks.after(&self.request(asked, service), response);
        }
    }

    /// Polls the future of the answer. Returns whether it is ready.
    pub(crate) fn poll_answer(&mut self, service: &mut Service<'_>) -> bool {
        let Stage::Answering(answering) = &mut self.stage else { return false };
        let Poll::Ready(response) = answering.poll() else { return false };
        self.finish_answer(response, service);
        true
    }

    /// Handles the timeout of a pending answer.
    pub(super) fn give_up_answer(&mut self, service: &mut Service<'_>) {
        self.finish_answer(Response::text("the answer takes too long\n").with_status(503), service);
    }

    fn finish_answer(&mut self, response: Response, service: &mut Service<'_>) {
        if let Stage::Answering(answering) = mem::take(&mut self.stage) {
            self.asked_again(&answering.head, &[], service, |http, asked, service| {
                http.answer(asked, response, service);
            });
        }
    }

    /// Rebuilds the request of a head that was parsed before.
    pub(super) fn asked_again(
        &mut self,
        raw: &[u8],
        body: &[u8],
        service: &mut Service<'_>,
        then: impl FnOnce(&mut Self, &Asked<'_>, &mut Service<'_>),
    ) {
        let mut slots = HeaderSlots::new();
        match RequestHead::parse(raw, &service.config.head, &mut slots) {
            Ok(head) => {
                then(self, &Asked::new(raw, &head, body, service.router), service);
            }
            // The head was valid when it was first parsed.
            Err(error) => drop(self.refuse(&Refusal::from(error), service)),
        }
    }

    pub(super) fn upgrade(
        &mut self,
        route: &WebSocketRoute,
        asked: &Asked<'_>,
        service: &mut Service<'_>,
    ) -> Step {
        let accepted = match accept(asked.head, &route.options) {
            Ok(accepted) => accepted,
            Err(refusal) => return self.refuse_handshake(asked, refusal, service),
        };
        if let Err(limit) = service.gate.handshake() {
            service.counters.limited.add(limit);
            service.gate.report(limit);
            return self.refuse_handshake(asked, limit.refusal(), service);
        }
        let hooks = &service.router.hooks;
        let request = self.request(asked, service).accepted(accepted.subprotocol());
        let handler = match (route.handler)(&request) {
            Ok(handler) => handler,
            Err(refusal) => return self.refuse_handshake(asked, refusal, service),
        };
        let headers = route.headers.as_ref().map_or_else(Vec::new, |headers| headers(&request));
        let mut response = Response::switching(headers);
        hooks.after(&request, &mut response);
        let headers: Vec<(&str, &str)> =
            response.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        let chain = self.outbound.gathering(service.resources);
        if let Err(error) = chain.write(|out| accepted.write_response(&headers, out)) {
            // The connection speaks HTTP/1, so the fault is a header.
            tracing::error!(path = asked.head.path(), %error, "handshake response has an invalid header");
            if let Ok(refusal) = Refusal::new(500) {
                return self.refuse_handshake(asked, refusal, service);
            }
            self.ending = true;
            return Step::NeedMore;
        }
        let (negotiated, config) = (accepted.negotiated(), Arc::clone(&route.config));
        let upgrade = Upgrade { negotiated, handler, config, pace: route.message_pace };
        Step::Upgrade(upgrade, asked.raw.len())
    }

    /// Rejects a handshake, with the headers that hooks add.
    fn refuse_handshake(
        &mut self,
        asked: &Asked<'_>,
        mut refusal: Refusal,
        service: &mut Service<'_>,
    ) -> Step {
        service.counters.handshake_refused(refusal.status());
        let mut added = Response::new(refusal.status());
        self.after(asked, &mut added, service);
        for (name, value) in added.headers {
            match refusal.clone().with_header(name, value) {
                Ok(with) => refusal = with,
                Err(error) => tracing::error!(%error, "handshake rejection has an invalid header"),
            }
        }
        self.end_with(&refusal, service)
    }

    /// Rejects a request. The connection closes after the answer, so that later bytes are not taken for a request.
    pub(super) fn refuse(&mut self, refusal: &Refusal, service: &mut Service<'_>) -> Step {
        service.counters.responded(refusal.status());
        self.end_with(refusal, service)
    }

    fn end_with(&mut self, refusal: &Refusal, service: &mut Service<'_>) -> Step {
        self.ending = true;
        self.moved = service.now;
        // RFC 9110 section 6.6.1: a server with a clock dates its answers.
        let dated = refusal.clone().with_header("Date", service.date.at(service.now));
        let chain = self.outbound.gathering(service.resources);
        chain.write(|out| dated.as_ref().unwrap_or(refusal).write_response(out));
        Step::NeedMore
    }

    pub(super) fn answer(&mut self, asked: &Asked<'_>, mut response: Response, service: &mut Service<'_>) {
        self.after(asked, &mut response, service);
        service.counters.responded(response.status);
        let head = asked.head;
        // A client that asked to switch protocols may have sent ahead in the new one (RFC 9931).
        let wanted_other = wants_upgrade(head) || head.method() == "CONNECT";
        self.ending |= !head.keep_alive() || wanted_other || service.stopping;
        self.started = None;
        self.moved = service.now;
        let connection = match (self.ending, head.version()) {
            (true, _) => Some("close"),
            // HTTP/1.0 requires the header (RFC 9112 section 9.3).
            (false, Version::Http10) => Some("keep-alive"),
            (false, _) => None,
        };
        let chain = self.outbound.gathering(service.resources);
        let body = (head.method() != "HEAD" && response.may_have_body()).then_some(&response.body);
        let copied = match body {
            Some(Body::Bytes(bytes)) if bytes.len() <= BODY_COPY_MAX => &bytes[..],
            _ => &[],
        };
        chain.write(|out| {
            write_head(&response, connection, service.date.at(service.now), out);
            out.extend_from_slice(copied);
        });
        match body {
            Some(Body::Bytes(bytes)) if bytes.len() > BODY_COPY_MAX => chain.push_bytes(bytes.clone()),
            Some(Body::File(part)) => {
                self.stage = Stage::Sending(Box::new(part.clone()));
                self.send_pieces(service);
            }
            _ => {}
        }
    }

    /// Queues more of a file, up to the high-water mark.
    pub(crate) fn send_pieces(&mut self, service: &mut Service<'_>) {
        while let Stage::Sending(part) = &mut self.stage
            && self.outbound.len() < PIECE
        {
            match part.read(PIECE) {
                Ok(Some(piece)) => {
                    self.moved = service.now;
                    self.outbound.gathering(service.resources).push_bytes(piece);
                }
                Ok(None) => self.stage = Stage::Head,
                // The close of the connection tells the peer that the body is incomplete.
                Err(error) => {
                    tracing::error!(%error, "failed to read file; the response is incomplete");
                    (self.stage, self.ending) = (Stage::Head, true);
                }
            }
        }
    }
}

/// Adds `Allow` (RFC 9110 section 10.2.1).
fn allow(response: Response, methods: &[&str]) -> Response {
    response.with_header("Allow", methods.join(", "))
}

/// Bodies up to this size are copied after their head.
const BODY_COPY_MAX: usize = 4 << 10;

/// Read size of a file, and limit of its queued bytes: about the capacity of a socket, and a short delay for other
/// connections.
const PIECE: usize = 128 << 10;
