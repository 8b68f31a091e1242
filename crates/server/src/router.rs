//! Which path does what.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use sinews_proto::handshake::{Refusal, ServerOptions};
use sinews_proto::http::RequestHead;
use sinews_proto::{Config, InvalidConfig};

use crate::answer::Answer;
use crate::chunked::is_token;
use crate::files::{Files, REST};
use crate::handler::Handler;
use crate::hooks::{Compression, Cors, Hooks, log_access};
use crate::limits::Pace;
use crate::metrics::{Metrics, Monitor};
use crate::request::{Request, Response};

/// Paths and what answers there, by method. A path may hold `{name}` for one segment and `{*name}` for the rest,
/// which is at least a byte. Where several match, the one that is fixed for longer wins.
///
/// A path that is there but does not answer the method is answered with 405, and OPTIONS with 204, both with
/// `Allow`; a path that is not there with 404.
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
    /// Finds the place of a path in `entries`.
    paths: matchit::Router<usize>,
    places: Vec<String>,
    entries: Vec<Entry>,
    monitor: Monitor,
    pub(crate) hooks: Hooks,
}

/// What answers at one path: by method, and by upgrade.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    /// In the order in which they were given.
    answers: Vec<(Cow<'static, str>, Responder)>,
    /// Answers every method that has no answer of its own.
    any: Option<Responder>,
    pub(crate) websocket: Option<WebSocketRoute>,
}

/// Answers a plain request.
pub(crate) struct Responder(RespondFn);

type RespondFn = Box<dyn Fn(&mut Request<'_>) -> Answer + Send + Sync>;

impl Responder {
    fn new<A: Into<Answer>>(respond: impl Fn(&mut Request<'_>) -> A + Send + Sync + 'static) -> Self {
        Self(Box::new(move |request| respond(request).into()))
    }

    pub(crate) fn call(&self, request: &mut Request<'_>) -> Answer {
        (self.0)(request)
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Responder")
    }
}

impl Router {
    /// No paths: everything is answered with 404.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Answers this method at `path`; names of methods are case-sensitive. The answer is asked for when the body has
    /// come whole, and may publish ([`Request::topics`]). It is a [`Response`](crate::Response), or an [`Answer`] that
    /// comes later. A later answer to the same method takes the place of an
    /// earlier one.
    ///
    /// # Panics
    /// If the path is malformed or conflicts with an earlier one, or the method is no token: mistakes in the
    /// program, found when it starts.
    #[must_use]
    pub fn route<A: Into<Answer>>(
        self,
        method: impl Into<Cow<'static, str>>,
        path: &str,
        answer: impl Fn(&mut Request<'_>) -> A + Send + Sync + 'static,
    ) -> Self {
        let method = method.into();
        assert!(
            !method.is_empty() && method.bytes().all(is_token),
            "route {path}: {method:?} is no method (RFC 9110 section 5.6.2)"
        );
        self.with(path, |entry| entry.set(method, Responder::new(answer)))
    }

    /// Answers GET at `path`, and HEAD with the same head unless that has an answer of its own.
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

    /// Answers OPTIONS at `path`. Without it the server does: 204, and what is allowed there in `Allow`.
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

    /// Answers every method at `path` that has no answer of its own there, OPTIONS included.
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

    /// Answers GET and HEAD below `prefix` with the files of a directory; `/` as prefix is everything that has no
    /// route of its own.
    ///
    /// # Panics
    /// As [`route`](Self::route).
    #[must_use]
    pub fn files(self, prefix: &str, files: Files) -> Self {
        let prefix = prefix.trim_end_matches('/');
        let files = Arc::new(files);
        let in_root = Arc::clone(&files);
        let router =
            if prefix.is_empty() { self } else { self.get(prefix, |request| Files::answer_prefix(request)) };
        router
            .get(&format!("{prefix}/"), move |request| in_root.answer(request))
            .get(&format!("{prefix}/{{*{REST}}}"), move |request| files.answer(request))
    }

    /// Upgrades GET at `path` to WebSocket.
    ///
    /// # Panics
    /// As [`get`](Self::get).
    #[must_use]
    pub fn websocket(self, path: &str, route: WebSocketRoute) -> Self {
        self.with(path, |entry| entry.websocket = Some(route))
    }

    /// Asks `hook` before whatever answers a request whose path begins with the segments of `prefix`, `/` being all,
    /// with a route or without, handshakes of WebSockets too. What it answers is the answer; with `None` the request
    /// goes on to the next hook, in the order in which they were given, and then to its route.
    ///
    /// It is asked once the head is there and sees no body, so that nobody is told to send one that nobody wants. The
    /// path is compared percent-decoded, and also without empty segments and dots: however a path is written, no
    /// reading of it gets around a hook.
    ///
    /// ```
    /// use sinews_server::{Response, Router};
    ///
    /// let router = Router::new()
    ///     .before("/admin", |request| {
    ///         let token = request.head().header("authorization").next();
    ///         // A real one compares in constant time.
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
        self.hooks.add_before(prefix, hook);
        self
    }

    /// Shows `hook` each answer to a request below `prefix` before it is sent, whoever made it: to add headers, or to
    /// take note. The request's body is there only for answers that were made at once.
    ///
    /// Of a handshake, the answer has status 101, or that of the refusal, and only headers that are added count.
    /// What no request could be read of (400, 408, 431) is not shown.
    ///
    /// # Panics
    /// As [`before`](Self::before).
    #[must_use]
    pub fn after(
        mut self,
        prefix: &str,
        hook: impl Fn(&Request<'_>, &mut Response) + Send + Sync + 'static,
    ) -> Self {
        self.hooks.add_after(prefix, hook);
        self
    }

    /// Lets pages of other origins use what is below `prefix`. Handshakes of WebSockets have
    /// [a policy of their own](crate::ServerOptions::with_origin).
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

    /// Compresses answers below `prefix`.
    ///
    /// # Panics
    /// As [`before`](Self::before).
    #[must_use]
    pub fn compress(self, prefix: &str, compression: Compression) -> Self {
        self.after(prefix, move |request, response| compression.after(request, response))
    }

    /// Logs each answer below `prefix`, at level info to the target `sinews_server::access`: the peer, the
    /// [client](Request::client), method and target of the request, the status, the bytes of the body and how long it
    /// took. Values of query parameters that name a credential, such as `token`, `access_token` or `password`, are
    /// logged as `***`. Given behind the hooks that change answers, it logs what they made of them.
    ///
    /// # Panics
    /// As [`before`](Self::before).
    #[must_use]
    pub fn access_log(self, prefix: &str) -> Self {
        self.after(prefix, |request, response| log_access(request, response))
    }

    /// Answers GET at `path` with the server's metrics, as Prometheus reads them ([`Metrics::to_text`]). Whoever may
    /// read them sees how much the server has to do and what its clients do wrong, but nothing of what they say: a
    /// public server answers at a path that its proxy does not pass on.
    ///
    /// # Panics
    /// As [`get`](Self::get).
    #[must_use]
    pub fn metrics(self, path: &str) -> Self {
        let monitor = self.monitor();
        self.get(path, move |_| {
            let text = monitor.metrics().to_text();
            Response::new(200).with_header("Content-Type", Metrics::CONTENT_TYPE).with_body(text)
        })
    }

    /// Answers GET at `path` with 200 as long as the thread that serves the connection turns: whether to start the
    /// process anew.
    ///
    /// # Panics
    /// As [`get`](Self::get).
    #[must_use]
    pub fn healthz(self, path: &str) -> Self {
        self.get(path, |_| Response::text("ok\n").with_header("Cache-Control", "no-store"))
    }

    /// Answers GET at `path` with 200 if the server should be sent new clients, else with 503 and the reason
    /// ([`Monitor::ready`]): for the health checks of whatever stands in front of it.
    ///
    /// # Panics
    /// As [`get`](Self::get).
    #[must_use]
    pub fn readyz(self, path: &str) -> Self {
        let monitor = self.monitor();
        self.get(path, move |_| {
            let response = match monitor.ready() {
                Ok(()) => Response::text("ready\n"),
                Err(why) => Response::text(format!("{why}\n")).with_status(503),
            };
            response.with_header("Cache-Control", "no-store")
        })
    }

    /// Reads the metrics of the server that these routes will be served by.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        self.monitor.clone()
    }

    fn with(mut self, path: &str, change: impl FnOnce(&mut Entry)) -> Self {
        let place = match self.places.iter().position(|known| known == path) {
            Some(place) => place,
            None => {
                let place = self.entries.len();
                if let Err(conflict) = self.paths.insert(path, place) {
                    panic!("route {path}: {conflict}");
                }
                self.places.push(path.to_owned());
                self.entries.push(Entry::default());
                place
            }
        };
        change(&mut self.entries[place]);
        self
    }

    /// Whether every route's settings make sense; the path of one that does not, and why.
    pub(crate) fn check(&self) -> Result<(), (&str, InvalidConfig)> {
        for (path, entry) in self.places.iter().zip(&self.entries) {
            if let Some(route) = &entry.websocket {
                route.config.check().map_err(|fault| (&**path, fault))?;
            }
        }
        Ok(())
    }

    /// The methods that are answered anywhere, for `OPTIONS *` (RFC 9110 section 9.3.7).
    pub(crate) fn allowed(&self) -> Vec<&str> {
        let mut allowed: Vec<&str> = self.entries.iter().flat_map(Entry::allowed).collect();
        allowed.sort_unstable();
        allowed.dedup();
        allowed
    }

    pub(crate) fn at<'r, 'p>(&'r self, path: &'p str) -> Option<(&'r Entry, matchit::Params<'r, 'p>)> {
        let found = self.paths.at(path).ok()?;
        Some((&self.entries[*found.value], found.params))
    }
}

impl Entry {
    fn set(&mut self, method: Cow<'static, str>, answer: Responder) {
        match self.answers.iter_mut().find(|(known, _)| *known == method) {
            Some((_, known)) => *known = answer,
            None => self.answers.push((method, answer)),
        }
    }

    fn of(&self, method: &str) -> Option<&Responder> {
        self.answers.iter().find(|(known, _)| known == method).map(|(_, answer)| answer)
    }

    /// The route of a request that becomes a WebSocket, or has to be told that it should. A path that
    /// also has an answer to plain GET becomes one only on demand.
    pub(crate) fn upgrade(&self, head: &RequestHead<'_>) -> Option<&WebSocketRoute> {
        let route = self.websocket.as_ref().filter(|_| head.method() == "GET")?;
        (wants_upgrade(head) || self.responder("GET").is_none()).then_some(route)
    }

    /// What answers a plain request with this method.
    pub(crate) fn responder(&self, method: &str) -> Option<&Responder> {
        let of_get = || self.of("GET").filter(|_| method == "HEAD");
        self.of(method).or_else(of_get).or(self.any.as_ref())
    }

    /// The methods that are answered here, for `Allow` (RFC 9110 section 10.2.1).
    pub(crate) fn allowed(&self) -> Vec<&str> {
        let mut allowed: Vec<&str> = self.answers.iter().map(|(method, _)| &**method).collect();
        if self.websocket.is_some() && !allowed.contains(&"GET") {
            allowed.push("GET");
        }
        if self.of("GET").is_some() && !allowed.contains(&"HEAD") {
            allowed.push("HEAD");
        }
        if !allowed.contains(&"OPTIONS") {
            allowed.push("OPTIONS");
        }
        allowed.sort_unstable();
        allowed
    }
}

/// Whether the client wants to leave HTTP.
pub(crate) fn wants_upgrade(head: &RequestHead<'_>) -> bool {
    head.header("upgrade").next().is_some()
}

/// A WebSocket route: who handles its connections, what is negotiated, and their limits.
pub struct WebSocketRoute {
    pub(crate) handler: HandlerFn,
    pub(crate) headers: Option<HeadersFn>,
    pub(crate) options: ServerOptions,
    pub(crate) config: Arc<Config>,
    pub(crate) message_pace: Option<Pace>,
}

type HeadersFn = Box<dyn Fn(&Request<'_>) -> Vec<(String, String)> + Send + Sync>;

type HandlerFn = Box<dyn Fn(&Request<'_>) -> Result<Box<dyn Handler>, Refusal> + Send + Sync>;

impl WebSocketRoute {
    /// A route whose connections are handled by what `handler` makes of each handshake request: path, headers,
    /// and what was negotiated ([`Request::subprotocol`]). The request is gone afterwards, so the handler keeps
    /// of it what it needs. It may refuse with any status. It is asked after the request was found to be a sound handshake of an
    /// allowed origin.
    pub fn new<H: Handler + 'static>(
        handler: impl Fn(&Request<'_>) -> Result<H, Refusal> + Send + Sync + 'static,
    ) -> Self {
        Self {
            handler: Box::new(move |request| Ok(Box::new(handler(request)?))),
            headers: None,
            options: ServerOptions::new(),
            config: Arc::new(Config::default()),
            message_pace: None,
        }
    }

    /// Further headers of the 101 that opens a connection, such as `Set-Cookie`. Asked once the handler is made.
    /// One that may not be there ([`HandshakeMisuse`](sinews_proto::handshake::HandshakeMisuse)) is our side's
    /// mistake: the client gets a 500 and the log the reason.
    #[must_use]
    pub fn with_headers(
        mut self,
        headers: impl Fn(&Request<'_>) -> Vec<(String, String)> + Send + Sync + 'static,
    ) -> Self {
        self.headers = Some(Box::new(headers));
        self
    }

    /// Subprotocols, compression, allowed origins. Default: no subprotocol, no compression, pages of the
    /// same origin.
    #[must_use]
    pub fn with_options(mut self, options: ServerOptions) -> Self {
        self.options = options;
        self
    }

    /// Limits and waits of the connections. Default: [`Config::default`]. [`Server::bind`](crate::Server::bind)
    /// refuses what makes no sense ([`Config::check`]).
    #[must_use]
    pub fn with_config(mut self, config: Config) -> Self {
        self.config = Arc::new(config);
        self
    }

    /// Messages that each connection may send in a second, and how many of them at once after a pause; each at least
    /// one. Default: no limit but the handler's own pace, since one that is busy is not received from. A client that
    /// is faster is closed with 1008, and what else it has sent is passed over: to hold it back instead would only
    /// fill the buffers between, and leave the client as it is. Pings have a limit of their own
    /// ([`Config::ping_rate`](crate::Config::ping_rate)).
    #[must_use]
    pub fn with_message_rate(mut self, per_second: u32, burst: u32) -> Self {
        self.message_pace = Some(Pace::new(per_second, burst));
        self
    }
}

impl fmt::Debug for WebSocketRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSocketRoute").field("options", &self.options).finish_non_exhaustive()
    }
}
