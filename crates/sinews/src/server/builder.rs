//! Settings of a server handshake.

use std::future::Future;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::time::Duration;

use sinews_proto::http::HeadLimits;

use super::handshake::Handshake;
use super::reply::{AcceptAll, Decide, OnRequest, OnRequestAsync};
use super::settings::{AcceptSettings, setters};
use super::{Reject, Reply, Request};

/// A server handshake on a stream, with its settings.
///
/// Await it for the WebSocket, or [`open`](Self::open) it to get the request too. `R` is the runtime, `D` the
/// decision on the request.
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
    /// Calls this function for each valid request of an allowed origin. It gets the whole request, and accepts it,
    /// optionally with a subprotocol and headers, or rejects it with a status, headers and a body. Default: accept.
    ///
    /// ```
    /// use sinews::server::{Reject, Reply};
    ///
    /// # let (_client, stream) = tokio::io::duplex(64);
    /// let accept = sinews::accept(stream).on_request(|request| {
    ///     if request.path() != "/chat" {
    ///         return Err(Reject::new(404).with_body("no such room"));
    ///     }
    ///     let session = request.cookie("session").ok_or(Reject::new(401))?;
    ///     Ok(Reply::new().with_header("Set-Cookie", format!("session={session}; Secure; HttpOnly")))
    /// });
    /// # drop(accept);
    /// ```
    pub fn on_request<F>(self, decide: F) -> Accept<S, R, OnRequest<F>>
    where
        F: FnOnce(&Request) -> Result<Reply, Reject>,
    {
        self.with(OnRequest(decide))
    }

    /// As [`on_request`](Self::on_request), with an async function, for example to look up tokens in a database. Its
    /// time counts towards [`timeout`](Self::timeout).
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

    /// Sets the address of the client for [`Request::peer`]. Default: none, since a stream may have no address.
    pub fn peer(mut self, address: SocketAddr) -> Self {
        self.handshake.peer = Some(address);
        self
    }

    /// Sets the timeout of the handshake, from the first poll until the response has left. Default 10 s: both heads
    /// are a few packets, and a slow sender gains no time.
    pub fn timeout(mut self, wait: Duration) -> Self {
        self.handshake.timeout = wait;
        self
    }

    /// Limits the request head: bytes and header lines. Default: [`HeadLimits::new`], 16 KiB and 100 lines.
    pub fn head_limits(mut self, limits: HeadLimits) -> Self {
        self.handshake.limits = limits;
        self
    }
}

/// Negotiation.
impl<S, R, D> Accept<S, R, D> {
    setters!(subprotocols);

    fn settings_mut(&mut self) -> &mut AcceptSettings {
        &mut self.handshake.settings
    }
}
