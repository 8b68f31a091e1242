//! WebSocket routes: handlers, negotiated options, limits, and clients beyond the limits of the server.

use std::fmt;
use std::sync::Arc;

use sinews_proto::handshake::{Refusal, ServerOptions};
use sinews_proto::{CloseCode, Config, write_close};
use sinews_session::{Payload, Prepared, Resources};

use crate::handler::{Context, Handler};
use crate::limits::RateLimit;
use crate::request::Request;

/// WebSocket route: its handlers, negotiated options, and limits.
pub struct WebSocketRoute {
    pub(crate) handler: WebSocketHandlerFn,
    pub(crate) headers: Option<HeadersFn>,
    pub(crate) options: ServerOptions,
    pub(crate) config: Arc<Config>,
    pub(crate) message_rate: Option<RateLimit>,
    pub(crate) overload: Option<Arc<OverloadClose>>,
}

type HeadersFn = Box<dyn Fn(&Request<'_>) -> Vec<(String, String)> + Send + Sync>;

type WebSocketHandlerFn = Box<dyn Fn(&Request<'_>) -> Result<Box<dyn Handler>, Refusal> + Send + Sync>;

impl WebSocketRoute {
    /// Creates a route whose connections are handled by the handler that `handler` makes from each handshake request:
    /// path, headers, and negotiated subprotocol ([`Request::subprotocol`]). The request is valid only during the
    /// call, so the handler copies the parts it needs. `handler` may reject with any status. It runs only for valid
    /// handshakes of an allowed origin.
    pub fn new<H: Handler + 'static>(
        handler: impl Fn(&Request<'_>) -> Result<H, Refusal> + Send + Sync + 'static,
    ) -> Self {
        Self::boxed(move |request| Ok(Box::new(handler(request)?)))
    }

    /// Creates a route as [`new`](Self::new) does, for handlers of several types. `new` would box them again, for each
    /// connection.
    pub fn boxed(
        handler: impl Fn(&Request<'_>) -> Result<Box<dyn Handler>, Refusal> + Send + Sync + 'static,
    ) -> Self {
        Self {
            handler: Box::new(handler),
            headers: None,
            options: ServerOptions::new(),
            config: Arc::new(Config::default()),
            message_rate: None,
            overload: None,
        }
    }

    /// Adds headers to the 101 that opens a connection, such as `Set-Cookie`. Runs after the handler is made. An
    /// invalid header ([`HandshakeMisuse`](sinews_proto::handshake::HandshakeMisuse)) is an error of the server: the
    /// client gets a 500, and the reason is logged.
    #[must_use]
    pub fn with_headers(
        mut self,
        headers: impl Fn(&Request<'_>) -> Vec<(String, String)> + Send + Sync + 'static,
    ) -> Self {
        self.headers = Some(Box::new(headers));
        self
    }

    /// Sets subprotocols, compression, allowed origins. Default: no subprotocol, no compression, pages of the same
    /// origin.
    #[must_use]
    pub fn with_options(mut self, options: ServerOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets limits and timeouts of the connections. Default: [`Config::default`].
    /// [`Server::bind`](crate::Server::bind) rejects invalid settings ([`Config::check`]).
    #[must_use]
    pub fn with_config(mut self, config: Config) -> Self {
        self.config = Arc::new(config);
        self
    }

    /// Limits the messages of each connection per second, with a burst after a pause; each at least 1. Default: no
    /// limit but the handler's pace, since a busy handler's connection is not read. A faster client is closed with
    /// 1008, and its further input is discarded: throttled reads would only fill the buffers in between, and the
    /// client would not change. Pings have a limit of their own ([`Config::ping_rate`](crate::Config::ping_rate)).
    #[must_use]
    pub fn with_message_rate(mut self, per_second: u32, burst: u32) -> Self {
        self.message_rate = Some(RateLimit::new(per_second, burst));
        self
    }

    /// Sets the answer to valid handshakes beyond the [limits](crate::Limits) of connections, handshakes and memory:
    /// they are accepted, sent this text message, and closed with this code. The rejection counts as that of the limit.
    /// Default: 503, or 429 for the limit of an address. A script sees no status of a handshake, but code 1006.
    ///
    /// A connection beyond the limits does not start TLS, so it ends without an answer. Of the WebSockets over HTTP/2
    /// and HTTP/3 beyond the limits of connections, 256 of each thread are open at a time; others get the status.
    ///
    /// # Panics
    /// If the reason has more than 123 bytes: an error of the program, found at startup.
    #[must_use]
    pub fn with_overload_close(mut self, message: impl Into<String>, code: CloseCode, reason: &str) -> Self {
        assert!(write_close(code, reason, &mut Vec::new()).is_ok(), "{reason:?} has more than 123 bytes");
        let message = Prepared::text(message);
        self.overload = Some(Arc::new(OverloadClose { message, code, reason: reason.into() }));
        self
    }
}

/// Answer to a handshake beyond the limits.
#[derive(Debug)]
pub(crate) struct OverloadClose {
    message: Prepared,
    code: CloseCode,
    reason: Box<str>,
}

impl OverloadClose {
    /// Appends the frames behind the response to a handshake.
    pub(crate) fn write_frames(&self, resources: &mut Resources, out: &mut Vec<u8>) {
        self.message.append_frame(resources, out);
        // The length of the reason is known to be valid.
        let _ = write_close(self.code, &self.reason, out);
    }
}

/// Handler of a connection beyond the limits.
pub(crate) struct OverloadHandler(pub(crate) Arc<OverloadClose>);

impl Handler for OverloadHandler {
    fn open(&mut self, cx: &mut Context<'_>) {
        let OverloadClose { message, code, reason } = &*self.0;
        // The connection has just opened: nothing is queued, and no Close was sent.
        let _ = cx.send_prepared(message);
        let _ = cx.close(*code, reason);
    }

    fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {}
}

impl fmt::Debug for WebSocketRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSocketRoute").field("options", &self.options).finish_non_exhaustive()
    }
}
