//! Which path does what.

use std::fmt;
use std::sync::Arc;

use sinews_proto::handshake::{Refusal, ServerOptions};
use sinews_proto::http::RequestHead;
use sinews_proto::{Config, InvalidConfig};

use crate::handler::Handler;
use crate::limits::Pace;
use crate::metrics::{Metrics, Monitor};
use crate::request::{Request, Response};
use crate::topics::Topics;

/// Paths and what answers there. A path may hold `{name}` for one segment and `{*name}` for the rest.
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
}

/// What answers at one path: by method, and by upgrade.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub(crate) get: Option<Answer>,
    pub(crate) post: Option<Answer>,
    pub(crate) websocket: Option<WebSocketRoute>,
}

/// Answers a plain request.
pub(crate) struct Answer(AnswerFn);

type AnswerFn = Box<dyn Fn(&Request<'_>, &mut Topics) -> Response + Send + Sync>;

impl Answer {
    pub(crate) fn call(&self, request: &Request<'_>, topics: &mut Topics) -> Response {
        (self.0)(request, topics)
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answer")
    }
}

impl Router {
    /// No paths: everything is answered with 404.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Answers GET at `path`, and HEAD with the same head.
    ///
    /// # Panics
    /// If the path is malformed or conflicts with an earlier one: a mistake in the program, found when it
    /// starts.
    #[must_use]
    pub fn get(self, path: &str, answer: impl Fn(&Request<'_>) -> Response + Send + Sync + 'static) -> Self {
        self.with(path, |entry| entry.get = Some(Answer(Box::new(move |request, _| answer(request)))))
    }

    /// Answers POST at `path`, whose body has come whole. The answer may publish.
    ///
    /// # Panics
    /// As [`get`](Self::get).
    #[must_use]
    pub fn post(
        self,
        path: &str,
        answer: impl Fn(&Request<'_>, &mut Topics) -> Response + Send + Sync + 'static,
    ) -> Self {
        self.with(path, |entry| entry.post = Some(Answer(Box::new(answer))))
    }

    /// Upgrades GET at `path` to WebSocket.
    ///
    /// # Panics
    /// As [`get`](Self::get).
    #[must_use]
    pub fn websocket(self, path: &str, route: WebSocketRoute) -> Self {
        self.with(path, |entry| entry.websocket = Some(route))
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

    pub(crate) fn at<'r, 'p>(&'r self, path: &'p str) -> Option<(&'r Entry, matchit::Params<'r, 'p>)> {
        let found = self.paths.at(path).ok()?;
        Some((&self.entries[*found.value], found.params))
    }
}

impl Entry {
    /// The route of a request that becomes a WebSocket, or has to be told that it should. A path that
    /// also has an answer to plain GET becomes one only on demand.
    pub(crate) fn upgrade(&self, head: &RequestHead<'_>) -> Option<&WebSocketRoute> {
        let meant = head.method() == "GET" && (self.get.is_none() || wants_upgrade(head));
        self.websocket.as_ref().filter(|_| meant)
    }

    /// What answers a plain request with this method.
    pub(crate) fn answer(&self, method: &str) -> Option<&Answer> {
        match method {
            "GET" | "HEAD" => self.get.as_ref(),
            "POST" => self.post.as_ref(),
            _ => None,
        }
    }

    /// The methods that are answered here, for `Allow`.
    pub(crate) fn allowed(&self) -> &'static str {
        match (self.get.is_some() || self.websocket.is_some(), self.post.is_some()) {
            (true, true) if self.get.is_some() => "GET, HEAD, POST",
            (true, true) => "GET, POST",
            (true, false) if self.get.is_some() => "GET, HEAD",
            (true, false) => "GET",
            (false, _) => "POST",
        }
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
