//! Messages over a plain stream, for a listener that serves nothing else.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use sinews_proto::{Config, InvalidConfig, Negotiated, Role};

use crate::handler::Handler;
use crate::http::Upgrade;
use crate::limits::Pace;

/// Who handles the connections of a listener that speaks no HTTP: each message, in both directions, stands behind its
/// length, four bytes with the lowest first ([`Listen::with_messages`](crate::Listen::with_messages)).
///
/// The [`Handler`] is the one of a WebSocket, and so is everything around it: threads, limits, backpressure, wakers,
/// topics, the stop. Every message is [binary](crate::Kind::Binary), whatever kind it is sent as. There are no pings,
/// and no Close: either side ends the stream, between messages, and a client that ends its side hears no more answers
/// than were sent before. Messages cannot be sent in fragments
/// ([`Misuse::Prefixed`](crate::Misuse::Prefixed)).
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
    handler: HandlerFn,
    config: Arc<Config>,
    pace: Option<Pace>,
}

type HandlerFn = Box<dyn Fn(SocketAddr) -> Box<dyn Handler> + Send + Sync>;

impl MessageRoute {
    /// Connections are handled by what `handler` makes for the address of each peer.
    pub fn new<H: Handler + 'static>(handler: impl Fn(SocketAddr) -> H + Send + Sync + 'static) -> Self {
        let config = Config::default().with_ping_interval(None);
        Self { handler: Box::new(move |peer| Box::new(handler(peer))), config: Arc::new(config), pace: None }
    }

    /// Limits and waits of the connections. Pings, frames and fragments there are none, so settings of these do
    /// nothing: of a peer that is gone without a word only
    /// [`idle_timeout`](Config::with_idle_timeout) and [`write_timeout`](Config::with_write_timeout) know. Default:
    /// [`Config::default`].
    #[must_use]
    pub fn with_config(mut self, config: Config) -> Self {
        let max = config.max_message();
        self.config = Arc::new(config.with_max_frame(max).with_ping_interval(None));
        self
    }

    /// As [`WebSocketRoute::with_message_rate`](crate::WebSocketRoute::with_message_rate).
    #[must_use]
    pub fn with_message_rate(mut self, per_second: u32, burst: u32) -> Self {
        self.pace = Some(Pace::new(per_second, burst));
        self
    }

    pub(crate) fn check(&self) -> Result<(), InvalidConfig> {
        self.config.check()
    }

    /// What a connection becomes as soon as it is there.
    pub(crate) fn upgrade(&self, peer: SocketAddr) -> Upgrade {
        let (negotiated, config) = (Negotiated::prefixed(Role::Server), Arc::clone(&self.config));
        Upgrade { negotiated, handler: (self.handler)(peer), config, pace: self.pace }
    }
}

impl fmt::Debug for MessageRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageRoute").field("config", &self.config).finish_non_exhaustive()
    }
}
