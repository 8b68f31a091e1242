//! Routes: paths, methods and hooks.

mod monitoring;
mod websocket;

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU16;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use sinews_http::RequestHead;
use sinews_http::text::is_token;
use sinews_proto::InvalidConfig;

pub use self::websocket::WebSocketRoute;
pub(crate) use self::websocket::{OverloadClose, OverloadHandler};
use crate::answer::Answer;
use crate::fixed::FixedResponse;
use crate::hooks::{Compression, Cors, Hooks, log_access};
use crate::monitor::Monitor;
use crate::request::{Request, Response, RouteParams};

/// A server's routes, by path and method. A path may contain `{name}` for one segment and `{*name}` for the rest, which
/// is at least a byte. If several match, the route with the longest fixed part wins.
///
/// If a path has no answer to the method, the server answers 405, or 204 to OPTIONS, both with `Allow`; an unknown
/// path gets 404.
///
/// ```
/// use sinews_server::{Context, Handler, Payload, Response, Router, WebSocketRoute};
///
/// struct Echo;
///
/// impl Handler for Echo {
///     fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
///         let _ = cx.send_payload(payload);
///     }
/// }
///
/// let router = Router::new()
///     .get("/healthz", |_| Response::text("ok\n"))
///     .websocket("/echo", WebSocketRoute::new(|_| Ok(Echo)));
/// # drop(router);
/// ```
#[derive(Debug, Default)]
pub struct Router {
    /// Maps a path to its index in `entries`.
    paths: matchit::Router<usize>,
    /// The paths without parameters, which match before others: a lookup is one hash.
    fixed_paths: FxHashMap<String, usize>,
    route_paths: Vec<String>,
    entries: Vec<RouteEntry>,
    /// The WebSocket for paths without a route.
    fallback: Option<WebSocketFallback>,
    /// The answer at paths without a route.
    pub(crate) not_found: Option<Responder>,
    /// Request bodies are decoded.
    pub(crate) decodes_bodies: bool,
    monitor: Monitor,
    pub(crate) hooks: Hooks,
}

/// The WebSocket for those paths without a route that a function selects.
struct WebSocketFallback {
    is_meant: Box<dyn Fn(&str) -> bool + Send + Sync>,
    route: WebSocketRoute,
}

impl fmt::Debug for WebSocketFallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSocketFallback").field("route", &self.route).finish_non_exhaustive()
    }
}

/// One path's responders: by method, and for upgrades.
#[derive(Debug, Default)]
pub(crate) struct RouteEntry {
    /// In registration order.
    answers: Vec<(Cow<'static, str>, Responder)>,
    /// Responder to methods without their own.
    any: Option<Responder>,
    pub(crate) websocket: Option<WebSocketRoute>,
}

/// Answers a plain request.
pub(crate) enum Responder {
    Function(RespondFn),
    /// The same response each time.
    Fixed(Box<FixedResponse>),
}

type RespondFn = Box<dyn Fn(&mut Request<'_>) -> Answer + Send + Sync>;

impl Responder {
    fn new<A: Into<Answer>>(respond: impl Fn(&mut Request<'_>) -> A + Send + Sync + 'static) -> Self {
        Self::Function(Box::new(move |request| respond(request).into()))
    }

    pub(crate) fn call(&self, request: &mut Request<'_>) -> Answer {
        match self {
            Self::Function(respond) => respond(request),
            Self::Fixed(fixed) => fixed.response().clone().into(),
        }
    }

    /// Returns the response, if it is the same each time.
    pub(crate) fn fixed(&self) -> Option<&FixedResponse> {
        match self {
            Self::Function(_) => None,
            Self::Fixed(fixed) => Some(fixed),
        }
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Responder")
    }
}

impl Router {
    /// Creates a router without routes: every request is answered with 404.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Answers this method at `path`; method names are case-sensitive. The handler runs when the whole body has
    /// arrived, and may publish ([`Request::topics`]). It returns a [`Response`](crate::Response), or an [`Answer`]
    /// that completes later. A later registration for the same method replaces an earlier one.
    ///
    /// # Panics
    /// If the path is malformed or conflicts with an earlier one, or the method is no token: program errors, found at
    /// startup.
    #[must_use]
    pub fn route<A: Into<Answer>>(
        self,
        method: impl Into<Cow<'static, str>>,
        path: &str,
        answer: impl Fn(&mut Request<'_>) -> A + Send + Sync + 'static,
    ) -> Self {
        let method = method.into();
        assert!(
            is_token(method.as_bytes()),
            "route {path}: method {method:?} is not a token (RFC 9110 section 5.6.2)"
        );
        self.with(path, |entry| entry.set(method, Responder::new(answer)))
    }

    /// Answers GET at `path`, and HEAD with the same head unless HEAD has its own answer.
    ///
    /// # Panics
    /// As [`route`](Self::route).
    #[must_use]
    pub fn get<A: Into<Answer>>(
        self,
        path: &str,
        answer: impl Fn(&mut Request<'_>) -> A + Send + Sync + 'static,
    ) -> Self {
        self.route("GET", path, answer)
    }

    /// Answers GET at `path` with the same response each time, and HEAD with its head unless HEAD has its own answer.
    /// The response is encoded once: an answer is a copy with the current date, unless a [hook](Self::after) changes
    /// it. Use it for health checks, small pages and redirects.
    ///
    /// ```
    /// use sinews_server::{Response, Router};
    ///
    /// let moved = Response::new(301).with_header("Location", "/chat");
    /// let router = Router::new().fixed("/robots.txt", Response::text("User-agent: *\n")).fixed("/", moved);
    /// # drop(router);
    /// ```
    ///
    /// # Panics
    /// As [`route`](Self::route).
    #[must_use]
    pub fn fixed(self, path: &str, response: Response) -> Self {
        let fixed = Responder::Fixed(Box::new(FixedResponse::new(response)));
        self.with(path, |entry| entry.set("GET".into(), fixed))
    }

    /// Answers POST at `path`.
    ///
    /// # Panics
    /// As [`route`](Self::route).
    #[must_use]
    pub fn post<A: Into<Answer>>(
        self,
        path: &str,
        answer: impl Fn(&mut Request<'_>) -> A + Send + Sync + 'static,
    ) -> Self {
        self.route("POST", path, answer)
    }

    /// Answers PUT at `path`.
    ///
    /// # Panics
    /// As [`route`](Self::route).
    #[must_use]
    pub fn put<A: Into<Answer>>(
        self,
        path: &str,
        answer: impl Fn(&mut Request<'_>) -> A + Send + Sync + 'static,
    ) -> Self {
        self.route("PUT", path, answer)
    }

    /// Answers PATCH at `path`.
    ///
    /// # Panics
    /// As [`route`](Self::route).
    #[must_use]
    pub fn patch<A: Into<Answer>>(
        self,
        path: &str,
        answer: impl Fn(&mut Request<'_>) -> A + Send + Sync + 'static,
    ) -> Self {
        self.route("PATCH", path, answer)
    }

    /// Answers DELETE at `path`.
    ///
    /// # Panics
    /// As [`route`](Self::route).
    #[must_use]
    pub fn delete<A: Into<Answer>>(
        self,
        path: &str,
        answer: impl Fn(&mut Request<'_>) -> A + Send + Sync + 'static,
    ) -> Self {
        self.route("DELETE", path, answer)
    }

    /// Answers OPTIONS at `path`. Without this route the server answers 204 with the allowed methods in `Allow`.
    ///
    /// # Panics
    /// As [`route`](Self::route).
    #[must_use]
    pub fn options<A: Into<Answer>>(
        self,
        path: &str,
        answer: impl Fn(&mut Request<'_>) -> A + Send + Sync + 'static,
    ) -> Self {
        self.route("OPTIONS", path, answer)
    }

    /// Answers every method at `path` without its own route, OPTIONS included.
    ///
    /// # Panics
    /// As [`route`](Self::route).
    #[must_use]
    pub fn any<A: Into<Answer>>(
        self,
        path: &str,
        answer: impl Fn(&mut Request<'_>) -> A + Send + Sync + 'static,
    ) -> Self {
        self.with(path, |entry| entry.any = Some(Responder::new(answer)))
    }

    /// Upgrades GET at `path` to WebSocket.
    ///
    /// # Panics
    /// As [`get`](Self::get).
    #[must_use]
    pub fn websocket(self, path: &str, route: WebSocketRoute) -> Self {
        self.with(path, |entry| entry.websocket = Some(route))
    }

    /// Upgrades GET to WebSocket at paths without a route for which `is_meant` returns true, such as misspelled ones: a
    /// script sees no handshake status, but a Close code. A later registration replaces an earlier one.
    #[must_use]
    pub fn websocket_fallback(
        mut self,
        is_meant: impl Fn(&str) -> bool + Send + Sync + 'static,
        route: WebSocketRoute,
    ) -> Self {
        self.fallback = Some(WebSocketFallback { is_meant: Box::new(is_meant), route });
        self
    }

    /// Answers every method at paths without a route, in place of a plain 404. A later registration replaces an earlier
    /// one.
    #[must_use]
    pub fn not_found<A: Into<Answer>>(
        mut self,
        answer: impl Fn(&mut Request<'_>) -> A + Send + Sync + 'static,
    ) -> Self {
        self.not_found = Some(Responder::new(answer));
        self
    }

    /// Runs `hook` before the route, for requests whose path begins with the segments of `prefix`; `/` matches every
    /// path. It runs for paths without a route and for WebSocket handshakes, too. If it returns a response, that is the
    /// answer; with `None` the request goes on to the next hook, in registration order, and then to its route.
    ///
    /// The hook runs when the head has arrived and sees no body, so that clients are not asked to send an unwanted
    /// body. The path is compared percent-decoded, and also without empty segments and dots: no path spelling bypasses
    /// a hook.
    ///
    /// ```
    /// use sinews_server::{Response, Router};
    ///
    /// let router = Router::new()
    ///     .before("/admin", |request| {
    ///         let token = request.head().header("authorization").next();
    ///         // Production code compares in constant time.
    ///         (token != Some(b"Bearer secret"))
    ///             .then(|| Response::new(401).with_header("WWW-Authenticate", "Bearer"))
    ///     })
    ///     .get("/admin/users", |_| Response::json("[]"));
    /// # drop(router);
    /// ```
    ///
    /// # Panics
    /// If the prefix does not begin with `/`, or has parameters.
    #[must_use]
    pub fn before(
        mut self,
        prefix: &str,
        hook: impl Fn(&mut Request<'_>) -> Option<Response> + Send + Sync + 'static,
    ) -> Self {
        self.hooks.add_before(prefix, false, hook);
        self
    }

    /// Runs `hook` on each answer to a request below `prefix` before it is sent, including answers by hooks and by the
    /// server: to add headers, or to log. The request's body is available only for immediate answers.
    ///
    /// The answer to a handshake has status 101, or the rejection's status, and only added headers take effect. Answers
    /// to unreadable requests (400, 408, 431) are excluded.
    ///
    /// # Panics
    /// As [`before`](Self::before).
    #[must_use]
    pub fn after(
        mut self,
        prefix: &str,
        hook: impl Fn(&Request<'_>, &mut Response) + Send + Sync + 'static,
    ) -> Self {
        self.hooks.add_after(prefix, false, hook);
        self
    }

    /// Allows pages from other origins to read answers below `prefix`. WebSocket handshakes have [their own
    /// policy](crate::ServerOptions::with_origin).
    ///
    /// # Panics
    /// As [`before`](Self::before).
    #[must_use]
    pub fn cors(self, prefix: &str, cors: Cors) -> Self {
        let cors = Arc::new(cors);
        let preflight = Arc::clone(&cors);
        self.before(prefix, move |request| preflight.before(request))
            .after(prefix, move |request, response| cors.after(request, response))
    }

    /// Runs a [`before`](Self::before) hook and an [`after`](Self::after) hook for requests with the header `Origin`
    /// only, which browsers add to requests from pages. Unlike [`cors`](Self::cors), the rules may change while the
    /// server runs: call [`Cors::before`] and [`Cors::after`] on the current rules. Answers to other requests get no
    /// `Vary: Origin`: do not use it for answers that caches may store.
    ///
    /// # Panics
    /// As [`before`](Self::before).
    #[must_use]
    pub fn cross_origin(
        mut self,
        prefix: &str,
        before: impl Fn(&mut Request<'_>) -> Option<Response> + Send + Sync + 'static,
        after: impl Fn(&Request<'_>, &mut Response) + Send + Sync + 'static,
    ) -> Self {
        self.hooks.add_before(prefix, true, before);
        self.hooks.add_after(prefix, true, after);
        self
    }

    /// Compresses answers below `prefix`.
    ///
    /// # Panics
    /// As [`before`](Self::before).
    #[must_use]
    pub fn compress(self, prefix: &str, compression: Compression) -> Self {
        self.after(prefix, move |request, response| compression.after(request, response))
    }

    /// Decodes request bodies by `Content-Encoding`: handlers get the content. The codings are gzip and deflate;
    /// `identity` is none. Decoded content has a body's limit
    /// ([`HttpConfig::with_max_body`](crate::HttpConfig::with_max_body)), else the answer is 413. Unknown codings are
    /// answered with 415 and `Accept-Encoding` (RFC 7694). Default: bodies are not decoded.
    #[must_use]
    pub fn decode_bodies(mut self) -> Self {
        self.decodes_bodies = true;
        self
    }

    /// Logs each answer below `prefix`, at level info to the target `sinews_server::access`: the peer, the
    /// [client](Request::client), the request's method, target and version, the status, the body's bytes and the
    /// duration. A WebSocket over HTTP/2 or HTTP/3, and a WebTransport session, have the method CONNECT, and their
    /// [protocol](Request::protocol). Query parameter values with credentials, such as `token`, `access_token` or
    /// `password`, are logged as `***`. Register it after hooks that change answers to log the final answer.
    ///
    /// # Panics
    /// As [`before`](Self::before).
    #[must_use]
    pub fn access_log(self, prefix: &str) -> Self {
        self.after(prefix, |request, response| log_access(request, response))
    }

    /// Returns a monitor for the metrics of the server with these routes.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        self.monitor.clone()
    }

    /// Returns the routes' paths, each with the methods that it allows, in registration order.
    ///
    /// ```
    /// use sinews_server::{Response, Router};
    ///
    /// let router = Router::new().post("/notes", |_| Response::new(201));
    /// assert_eq!(router.routes().collect::<Vec<_>>(), [("/notes", vec!["OPTIONS", "POST"])]);
    /// ```
    pub fn routes(&self) -> impl Iterator<Item = (&str, Vec<&str>)> {
        let allowed = self.entries.iter().map(RouteEntry::allowed);
        self.route_paths.iter().map(String::as_str).zip(allowed)
    }

    fn with(mut self, path: &str, change: impl FnOnce(&mut RouteEntry)) -> Self {
        let index = match self.route_paths.iter().position(|known| known == path) {
            Some(index) => index,
            None => {
                let index = self.entries.len();
                if let Err(conflict) = self.paths.insert(path, index) {
                    panic!("route {path}: {conflict}");
                }
                if !path.contains(['{', '}']) {
                    self.fixed_paths.insert(path.to_owned(), index);
                }
                self.route_paths.push(path.to_owned());
                self.entries.push(RouteEntry::default());
                index
            }
        };
        change(&mut self.entries[index]);
        self
    }

    /// Checks every route's settings; returns an invalid route's path and the fault.
    pub(crate) fn check(&self) -> Result<(), (&str, InvalidConfig)> {
        for (path, entry) in self.route_paths.iter().zip(&self.entries) {
            if let Some(route) = &entry.websocket {
                route.config.check().map_err(|fault| (&**path, fault))?;
            }
        }
        let fallback = self.fallback.as_ref().map(|fallback| fallback.route.config.check());
        fallback.unwrap_or(Ok(())).map_err(|fault| ("*", fault))
    }

    /// Prepares the fixed responses for connections whose answers announce HTTP/3 on a port (RFC 7838).
    pub(crate) fn announce_http3(&mut self, port: NonZeroU16) {
        for answer in self.entries.iter_mut().flat_map(RouteEntry::responders_mut) {
            if let Responder::Fixed(fixed) = answer {
                fixed.announce_http3(port);
            }
        }
    }

    /// Returns all routes' methods, for `OPTIONS *` (RFC 9110 section 9.3.7).
    pub(crate) fn allowed(&self) -> Vec<&str> {
        let mut allowed: Vec<&str> = self.entries.iter().flat_map(RouteEntry::allowed).collect();
        allowed.sort_unstable();
        allowed.dedup();
        allowed
    }

    /// Finds a path's route, with its entry's index.
    pub(crate) fn find<'a>(&'a self, path: &'a str) -> Option<(usize, &'a RouteEntry, RouteParams<'a>)> {
        if let Some(&index) = self.fixed_paths.get(path) {
            return Some((index, self.entry(index)?, RouteParams::None));
        }
        let found = self.paths.at(path).ok()?;
        Some((*found.value, self.entry(*found.value)?, RouteParams::Matched(found.params)))
    }

    /// Returns the WebSocket for a path without a route.
    pub(crate) fn fallback(&self, path: &str) -> Option<&WebSocketRoute> {
        let fallback = self.fallback.as_ref().filter(|fallback| (fallback.is_meant)(path))?;
        Some(&fallback.route)
    }

    /// Returns the answer to a handshake beyond the limits, if a route has one.
    pub(crate) fn overload<'a>(
        &'a self,
        head: &RequestHead<'_>,
    ) -> Option<(&'a WebSocketRoute, &'a OverloadClose)> {
        let (index, ..) = self.find(head.path())?;
        let route = self.entry(index)?.upgrade(head)?;
        Some((route, route.overload.as_deref()?))
    }

    /// Returns whether a route answers handshakes beyond the limits.
    pub(crate) fn has_overload(&self) -> bool {
        let routes = self.entries.iter().filter_map(|entry| entry.websocket.as_ref());
        routes.into_iter().any(|route| route.overload.is_some())
    }

    /// Returns the entry with this index.
    pub(crate) fn entry(&self, index: usize) -> Option<&RouteEntry> {
        self.entries.get(index)
    }
}

impl RouteEntry {
    fn responders_mut(&mut self) -> impl Iterator<Item = &mut Responder> {
        self.answers.iter_mut().map(|(_, answer)| answer).chain(&mut self.any)
    }

    fn set(&mut self, method: Cow<'static, str>, answer: Responder) {
        match self.answers.iter_mut().find(|(known, _)| *known == method) {
            Some((_, known)) => *known = answer,
            None => self.answers.push((method, answer)),
        }
    }

    fn responder_for(&self, method: &str) -> Option<&Responder> {
        self.answers.iter().find(|(known, _)| known == method).map(|(_, answer)| answer)
    }

    /// Returns the route for a request that becomes a WebSocket, or that lacks a required upgrade. A path with a plain
    /// GET route upgrades only on request.
    pub(crate) fn upgrade(&self, head: &RequestHead<'_>) -> Option<&WebSocketRoute> {
        let route = self.websocket.as_ref().filter(|_| head.method() == "GET")?;
        (head.wants_websocket() || self.responder("GET").is_none()).then_some(route)
    }

    /// Returns the responder to a plain request with this method.
    pub(crate) fn responder(&self, method: &str) -> Option<&Responder> {
        let of_get = || self.responder_for("GET").filter(|_| method == "HEAD");
        self.responder_for(method).or_else(of_get).or(self.any.as_ref())
    }

    /// Returns this path's methods, for `Allow` (RFC 9110 section 10.2.1).
    pub(crate) fn allowed(&self) -> Vec<&str> {
        let mut allowed: Vec<&str> = self.answers.iter().map(|(method, _)| &**method).collect();
        if self.websocket.is_some() && !allowed.contains(&"GET") {
            allowed.push("GET");
        }
        if self.responder_for("GET").is_some() && !allowed.contains(&"HEAD") {
            allowed.push("HEAD");
        }
        if !allowed.contains(&"OPTIONS") {
            allowed.push("OPTIONS");
        }
        allowed.sort_unstable();
        allowed
    }
}
