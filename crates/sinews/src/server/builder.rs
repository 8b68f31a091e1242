//! Everything that can be set before a handshake.

use std::future::Future;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::time::Duration;

use sinews_proto::http::HeadLimits;

use super::handshake::Handshake;
use super::reply::{AcceptAll, Decide, OnRequest, OnRequestAsync};
use super::settings::{Settings, setters};
use super::{Reject, Reply, Request};

/// A stream on which a client is to begin a WebSocket, and what it is told.
///
/// Await it for the WebSocket, or [`open`](Self::open) it to have the request too. `R` is the runtime, `D` what
/// decides on the request.
#[derive(Debug)]
#[must_use = "nothing is accepted until it is awaited"]
pub struct Accept<S, R, D = AcceptAll> {
    pub(crate) stream: S,
    pub(crate) decide: D,
    pub(crate) handshake: Handshake,
    runtime: PhantomData<fn() -> R>,
}

impl<S, R> Accept<S, R> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, decide: AcceptAll, handshake: Handshake::new(), runtime: PhantomData }
    }
}

impl<S, R, D> Accept<S, R, D> {
    /// Asks this function for each request that is sound and of an allowed origin. It sees the whole request, and
    /// says yes, with a subprotocol and headers if need be, or no, with a status, headers and a body. Default: yes.
    ///
    /// ```
    /// use sinews::server::{Reject, Reply};
    ///
    /// # let (_client, stream) = tokio::io::duplex(64);
    /// let accept = sinews::accept(stream).on_request(|request| {
    ///     if request.path() != "/chat" {
    ///         return Err(Reject::new(404).body("no such room"));
    ///     }
    ///     let session = request.cookie("session").ok_or(Reject::new(401))?;
    ///     Ok(Reply::new().header("Set-Cookie", format!("session={session}; Secure; HttpOnly")))
    /// });
    /// # drop(accept);
    /// ```
    pub fn on_request<F>(self, decide: F) -> Accept<S, R, OnRequest<F>>
    where
        F: FnOnce(&Request) -> Result<Reply, Reject>,
    {
        self.with(OnRequest(decide))
    }

    /// As [`on_request`](Self::on_request), by a function that may wait: for a database that knows tokens, for
    /// instance. What it takes counts towards [`timeout`](Self::timeout).
    ///
    /// ```
    /// use sinews::server::{Reject, Reply};
    ///
    /// # async fn knows(token: &str) -> bool { token == "1234" }
    /// # let (_client, stream) = tokio::io::duplex(64);
    /// let accept = sinews::accept(stream).on_request_async(|request| async move {
    ///     let token = request.query_value("token").ok_or(Reject::new(401))?;
    ///     if knows(&token).await { Ok(Reply::new()) } else { Err(Reject::new(403)) }
    /// });
    /// # drop(accept);
    /// ```
    pub fn on_request_async<F, Fut>(self, decide: F) -> Accept<S, R, OnRequestAsync<F>>
    where
        F: FnOnce(Request) -> Fut,
        Fut: Future<Output = Result<Reply, Reject>>,
    {
        self.with(OnRequestAsync(decide))
    }

    fn with<E: Decide>(self, decide: E) -> Accept<S, R, E> {
        let Self { stream, handshake, runtime, .. } = self;
        Accept { stream, decide, handshake, runtime }
    }

    /// The address of the client, for [`Request::peer`]. Default: none, since a stream may not have one.
    pub fn peer(mut self, address: SocketAddr) -> Self {
        self.handshake.peer = Some(address);
        self
    }

    /// How long the handshake may take, from the first wait until the response has left. Default 10 s: both heads
    /// are a few packets, and a drip of bytes gains no time.
    pub fn timeout(mut self, wait: Duration) -> Self {
        self.handshake.timeout = wait;
        self
    }

    /// What a request may cost: bytes and header lines. Default: [`HeadLimits::new`], 16 KiB and 100 lines.
    pub fn head_limits(mut self, limits: HeadLimits) -> Self {
        self.handshake.limits = limits;
        self
    }
}

/// What is negotiated.
impl<S, R, D> Accept<S, R, D> {
    setters!(subprotocols);

    fn settings_mut(&mut self) -> &mut Settings {
        &mut self.handshake.settings
    }
}
