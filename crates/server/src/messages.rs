//! Messages over a plain stream, for a listener without HTTP.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use sinews_proto::{Config, InvalidConfig, Negotiated, Role};

use crate::handler::Handler;
use crate::limits::RateLimit;
use crate::socket::{AcceptedUpgrade, MessageTransport};

/// Handlers of a listener without HTTP. Each message, in both directions, follows its length: four bytes,
/// little-endian ([`Listen::with_messages`](crate::Listen::with_messages)).
///
/// The [`Handler`] and its environment are as for a WebSocket: threads, limits, backpressure, wakers, topics, stop.
/// Every message is [binary](crate::Kind::Binary), regardless of its kind. There are no pings, and no Close: either
/// side ends the stream between messages. A client that ends its side receives only answers that were sent before.
/// Messages cannot be sent in fragments ([`Misuse::Prefixed`](crate::Misuse::Prefixed)).
///
/// ```
/// use sinews_server::{Context, Handler, Listen, MessageRoute, Payload, Router, Server};
///
/// struct Echo;
///
/// impl Handler for Echo {
///     fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
///         let _ = cx.send_payload(payload);
///     }
/// }
///
/// let listen = Listen::tcp("127.0.0.1:0".parse()?).with_messages(MessageRoute::new(|_peer| Echo));
/// let server = Server::new(Router::new()).threads(1).listen_on(listen).bind()?;
/// # drop(server);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MessageRoute {
    handler: MessageHandlerFn,
    config: Arc<Config>,
    rate_limit: Option<RateLimit>,
}

type MessageHandlerFn = Box<dyn Fn(SocketAddr) -> Box<dyn Handler> + Send + Sync>;

impl MessageRoute {
    /// Creates a route that handles each connection with the handler that `handler` makes for its peer address.
    pub fn new<H: Handler + 'static>(handler: impl Fn(SocketAddr) -> H + Send + Sync + 'static) -> Self {
        let config = Config::default().with_ping_interval(None);
        Self {
            handler: Box::new(move |peer| Box::new(handler(peer))),
            config: Arc::new(config),
            rate_limit: None,
        }
    }

    /// Sets limits and timeouts of the connections. Settings of pings, frames and fragments have no effect, since
    /// there are none; only [`idle_timeout`](Config::with_idle_timeout) and
    /// [`write_timeout`](Config::with_write_timeout) detect a lost peer. Default: [`Config::default`].
    #[must_use]
    pub fn with_config(mut self, config: Config) -> Self {
        let max = config.max_message();
        self.config = Arc::new(config.with_max_frame(max).with_ping_interval(None));
        self
    }

    /// Limits the message rate as [`WebSocketRoute::with_message_rate`](crate::WebSocketRoute::with_message_rate)
    /// does.
    #[must_use]
    pub fn with_message_rate(mut self, per_second: u32, burst: u32) -> Self {
        self.rate_limit = Some(RateLimit::new(per_second, burst));
        self
    }

    pub(crate) fn check(&self) -> Result<(), InvalidConfig> {
        self.config.check()
    }

    /// Returns the upgrade of a new connection.
    pub(crate) fn upgrade(&self, peer: SocketAddr) -> AcceptedUpgrade {
        let (negotiated, config) = (Negotiated::prefixed(Role::Server), Arc::clone(&self.config));
        let (handler, rate_limit) = ((self.handler)(peer), self.rate_limit);
        AcceptedUpgrade { negotiated, handler, config, rate_limit, transport: MessageTransport::Connection }
    }
}

impl fmt::Debug for MessageRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageRoute").field("config", &self.config).finish_non_exhaustive()
    }
}
