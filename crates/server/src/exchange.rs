//! One request and its answer: routes, hooks, handlers, later answers, and WebSocket opening handshakes.
//!
//! A connection's framing passes a head and a body, and gets a [`Response`] or a socket. It reads the response's body
//! in pieces, as its window permits ([`ResponseBody`](crate::request::ResponseBody)). Nothing here depends on the
//! framing.

mod pending;
mod retained;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sinews_engine::ConnId;
use sinews_http::{RequestHead, Version};
use sinews_proto::Time;
use sinews_proto::handshake::{Accepted, Refusal, RequestView, accept, accept_session};

pub(crate) use self::pending::{PendingAnswer, PendingSource};
pub(crate) use self::retained::RetainedRequest;
use crate::answer::streaming::StreamingResponse;
use crate::answer::{Answer, AnswerKind, LaterAnswer};
use crate::decode::decode_body;
use crate::fixed::{FixedResponse, announce_http3};
use crate::metrics::limit::Limit;
use crate::request::{PathParams, Request, Response, RouteParams};
use crate::router::{OverloadHandler, Responder, RouteEntry, Router, WebSocketRoute};
use crate::shared::Services;
use crate::socket::{AcceptedUpgrade, MessageTransport};

/// A request with its route, as received so far.
pub(crate) struct HttpExchange<'a> {
    pub(crate) head: &'a RequestHead<'a>,
    body: &'a [u8],
    peer: SocketAddr,
    /// The request's start, if it took more than a turn.
    started: Option<Time>,
    /// The protocol of an extended CONNECT request (RFC 8441), whose head has the method GET.
    connect: Option<&'a str>,
    router: &'a Router,
    route: Option<MatchedRoute<'a>>,
}

/// The protocol of a WebTransport session.
const SESSION_PROTOCOL: &str = "webtransport";

/// A request's route.
struct MatchedRoute<'a> {
    /// The entry's index in the router.
    index: usize,
    entry: &'a RouteEntry,
    params: RouteParams<'a>,
}

/// Answer to a complete request.
pub(crate) enum Outcome<'a> {
    /// To be [completed](HttpExchange::complete).
    Ready(Response),
    /// Complete: no hook sees it, and it is counted.
    Fixed(&'a FixedResponse),
    Pending(Box<PendingAnswer>),
    Streaming(Box<StreamingResponse>),
}

/// Accepted opening handshake, and the headers to add to its answer.
pub(crate) struct SocketHandshake {
    pub(crate) accepted: Accepted,
    pub(crate) response: Response,
    pub(crate) upgrade: AcceptedUpgrade,
}

impl<'a> HttpExchange<'a> {
    /// Finds a request's route.
    pub(crate) fn new(
        head: &'a RequestHead<'a>,
        body: &'a [u8],
        peer: SocketAddr,
        started: Option<Time>,
        router: &'a Router,
    ) -> Self {
        let found = router.find(head.path());
        let route = found.map(|(index, entry, params)| MatchedRoute { index, entry, params });
        Self { head, body, peer, started, connect: None, router, route }
    }

    /// Sets an extended CONNECT request's protocol.
    pub(crate) fn with_connect(mut self, protocol: Option<&'a str>) -> Self {
        self.connect = protocol;
        self
    }

    /// Returns whether the request is for a WebTransport session. Only HTTP/3 framing has them.
    pub(crate) fn is_session(&self) -> bool {
        self.connect == Some(SESSION_PROTOCOL) && self.head.version() == Version::Http3
    }

    fn entry(&self) -> Option<&'a RouteEntry> {
        self.route.as_ref().map(|route| route.entry)
    }

    fn params(&self) -> PathParams<'_> {
        self.route.as_ref().map_or(PathParams::None, |route| route.params.borrow())
    }

    /// Returns the request's responder, if the route has one.
    pub(crate) fn responder(&self) -> Option<&'a Responder> {
        self.entry()?.responder(self.head.method())
    }

    /// Returns the WebSocket route for an upgrade or an extended CONNECT, or for a request that requires one.
    pub(crate) fn websocket_route(&self) -> Option<&'a WebSocketRoute> {
        let Some(entry) = self.entry() else {
            let is_handshake = self.connect == Some("websocket")
                || (self.head.method() == "GET" && self.head.wants_websocket());
            return self.router.fallback(self.head.path()).filter(|_| is_handshake);
        };
        if self.connect.is_some() { entry.websocket.as_ref() } else { entry.upgrade(self.head) }
    }

    /// Returns a before hook's answer, once the head has arrived.
    pub(crate) fn before(&self, services: &mut Services) -> Option<Response> {
        let hooks = &self.router.hooks;
        if !hooks.has_before() {
            return None;
        }
        hooks.before(&mut self.request(services).without_body())
    }

    /// Answers a complete request, or starts its pending answer.
    pub(crate) fn respond(&self, conn: ConnId, services: &mut Services) -> Outcome<'a> {
        if let Some(fixed) = self.responder().and_then(Responder::fixed)
            && !self.router.hooks.has_after(self.head)
        {
            services.counters.responded(fixed.response().status);
            return Outcome::Fixed(fixed);
        }
        let source = match self.dispatch(services).0 {
            AnswerKind::Now(response) => return Outcome::Ready(response),
            AnswerKind::Later(answer) => PendingSource { answer, is_blocking: false },
            AnswerKind::Blocking(work) => {
                let done = services.tasks.pool().run(work);
                let done = async { done.await.unwrap_or_else(|rejected| rejected.response()) };
                let answer = Box::pin(async { LaterAnswer::Response(done.await) });
                PendingSource { answer, is_blocking: true }
            }
            AnswerKind::Streaming(streaming) => return self.admit_streaming(streaming, services),
        };
        PendingAnswer::start(self, source, conn, services)
    }

    /// Admits a streaming response by the limits of WebSockets.
    fn admit_streaming(&self, streaming: Box<StreamingResponse>, services: &Services) -> Outcome<'static> {
        match admit(streaming, self.head.method() == "HEAD", services) {
            Ok(streaming) => Outcome::Streaming(streaming),
            Err(response) => Outcome::Ready(response),
        }
    }

    /// Runs the after hooks on an answer and counts it.
    pub(crate) fn complete(&self, response: &mut Response, services: &mut Services) {
        self.after(response, services);
        services.counters.responded(response.status);
    }

    /// Negotiates a WebSocket opening handshake, and creates its handler. `limit` is an exceeded connection limit,
    /// which is counted.
    pub(crate) fn accept_socket(
        &self,
        route: &WebSocketRoute,
        limit: Option<Limit>,
        services: &mut Services,
    ) -> Result<SocketHandshake, Refusal> {
        let handshake = HandshakeRequest { head: self.head, connect: self.connect };
        let (accepted, transport) = if self.is_session() {
            (accept_session(&handshake, &route.options)?, MessageTransport::Session)
        } else {
            (accept(&handshake, &route.options)?, MessageTransport::Connection)
        };
        let limit = limit.or_else(|| services.admit_handshake().err());
        let overload =
            limit.map(|limit| route.overload.clone().ok_or_else(|| limit.refusal())).transpose()?;
        let request = self.request(services).accepted(accepted.subprotocol(), self.is_session());
        let handler = match overload {
            Some(overload) => Box::new(OverloadHandler(overload)),
            None => (route.handler)(&request)?,
        };
        let headers = route.headers.as_ref().map_or_else(Vec::new, |headers| headers(&request));
        let mut response = Response::accepted(accepted.status(), headers);
        self.router.hooks.after(&request, &mut response);
        announce_http3(&mut response, services.http3_port);
        let (negotiated, config) = (accepted.negotiated(), Arc::clone(&route.config));
        let rate_limit = route.message_rate;
        let upgrade = AcceptedUpgrade { negotiated, handler, config, rate_limit, transport };
        Ok(SocketHandshake { accepted, response, upgrade })
    }

    /// Returns the answer to extended CONNECT for a path without a WebSocket. A success status would open a tunnel, so
    /// no responder is called.
    pub(crate) fn reject_connect(&self) -> Response {
        let is_known = self.connect == Some("websocket") || self.is_session();
        match self.entry().filter(|_| is_known) {
            Some(entry) => {
                let response = Response::text("no WebSocket has this path\n").with_status(405);
                allow(response, &entry.allowed())
            }
            None if is_known => Response::text("not found\n").with_status(404),
            None => Response::text("unknown :protocol\n").with_status(501),
        }
    }

    /// Counts a rejected handshake, and adds headers from hooks to its answer.
    pub(crate) fn complete_refusal(&self, mut refusal: Refusal, services: &mut Services) -> Refusal {
        services.counters.handshake_rejected(refusal.status());
        let mut added = Response::new(refusal.status());
        self.after(&mut added, services);
        for (name, value) in added.headers.iter() {
            match refusal.clone().with_header(name, value) {
                Ok(with) => refusal = with,
                Err(error) => tracing::error!(%error, "handshake rejection has an invalid header"),
            }
        }
        refusal
    }

    /// Computes the answer to a complete request.
    fn dispatch(&self, services: &mut Services) -> Answer {
        let head = self.head;
        if head.target() == "*" {
            return allow(Response::new(204), &self.router.allowed()).into();
        }
        let Some(entry) = self.entry() else {
            return match &self.router.not_found {
                Some(responder) => responder.call(&mut self.request(services)),
                None => Response::text("not found\n").with_status(404).into(),
            };
        };
        match self.responder() {
            Some(responder) if self.router.decodes_bodies => {
                match decode_body(head, self.body, services.http.max_body) {
                    Ok(body) => responder.call(&mut self.request(services).with_body(&body)),
                    Err(response) => response.into(),
                }
            }
            Some(responder) => responder.call(&mut self.request(services)),
            None if head.method() == "OPTIONS" => allow(Response::new(204), &entry.allowed()).into(),
            None => allow(Response::text("method not allowed\n").with_status(405), &entry.allowed()).into(),
        }
    }

    /// Builds the request that handlers and hooks see.
    fn request<'r>(&'r self, services: &'r mut Services) -> Request<'r> {
        let elapsed = self.started.map_or(Duration::ZERO, |started| services.now.since(started));
        let resources = services.handler_resources(elapsed);
        Request::new(self.head, self.params(), self.body, self.peer, resources).with_connect(self.connect)
    }

    fn after(&self, response: &mut Response, services: &mut Services) {
        let hooks = &self.router.hooks;
        if hooks.has_after(self.head) {
            hooks.after(&self.request(services), response);
        }
        announce_http3(response, services.http3_port);
    }
}

/// Admits a streaming response by the limits of WebSockets.
///
/// # Errors
/// The response to send instead.
pub(crate) fn admit(
    streaming: Box<StreamingResponse>,
    is_head: bool,
    services: &Services,
) -> Result<Box<StreamingResponse>, Response> {
    if is_head {
        return Ok(streaming);
    }
    if let Err(error) = streaming.config.check() {
        tracing::error!(%error, "streaming response has invalid settings");
        return Err(Response::text("invalid settings\n").with_status(500));
    }
    if let Err(limit) = services.gate.handshake() {
        services.count_limit(limit);
        return Err(limit.response());
    }
    Ok(streaming)
}

/// An opening handshake's request, by an upgrade or by extended CONNECT.
struct HandshakeRequest<'a> {
    head: &'a RequestHead<'a>,
    connect: Option<&'a str>,
}

impl RequestView for HandshakeRequest<'_> {
    fn method(&self) -> &str {
        if self.connect.is_some() { "CONNECT" } else { self.head.method() }
    }

    fn version(&self) -> Version {
        self.head.version()
    }

    fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.head.headers()
    }

    fn protocol(&self) -> Option<&str> {
        self.connect
    }

    fn authority(&self) -> Option<&str> {
        self.head.authority()
    }
}

/// Adds `Allow` (RFC 9110 section 10.2.1).
fn allow(response: Response, methods: &[&str]) -> Response {
    response.with_header("Allow", methods.join(", "))
}
