//! WebSocket on hyper: [`upgrade`] responds to a request and returns the WebSocket that follows.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use http_body_util::Full;
//! use hyper::body::Incoming;
//! use hyper::service::service_fn;
//! use hyper::{Request, Response};
//! use hyper_util::rt::TokioIo;
//! use sinews::Bytes;
//!
//! async fn answer(mut request: Request<Incoming>) -> Result<Response<Full<Bytes>>, sinews::Error> {
//!     let (response, websocket) = match sinews::hyper::upgrade(&mut request) {
//!         Ok(upgraded) => upgraded,
//!         Err(error) => return Ok(error.to_response()),
//!     };
//!     // The WebSocket opens once the response has left, thus after this function returns.
//!     tokio::spawn(async move {
//!         let mut websocket = websocket.await?;
//!         while let Some(message) = websocket.next().await {
//!             let message = message?;
//!             if message.is_data() {
//!                 websocket.send(message).await?;
//!             }
//!         }
//!         Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//!     });
//!     Ok(response)
//! }
//!
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! # let address = listener.local_addr()?;
//! # let client = tokio::spawn(async move {
//! #     use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
//! #     let mut stream = tokio::net::TcpStream::connect(address).await?;
//! #     stream.write_all(
//! #         b"GET / HTTP/1.1\r\nHost: example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
//! #           Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n\
//! #           \x81\x85\x00\x00\x00\x00hello\x88\x80\x00\x00\x00\x00",
//! #     ).await?;
//! #     let mut answer = Vec::new();
//! #     stream.read_to_end(&mut answer).await.map(|_| answer)
//! # });
//! let (stream, _) = listener.accept().await?;
//! hyper::server::conn::http1::Builder::new()
//!     .serve_connection(TokioIo::new(stream), service_fn(answer))
//!     .with_upgrades() // required for any protocol upgrade
//!     .await?;
//! # assert!(client.await??.ends_with(b"\x81\x05hello\x88\x00"));
//! # Ok(())
//! # }
//! ```
//!
//! hyper limits the size of a head. It limits the time to receive one ([`header_read_timeout`], by default 30 s) only if
//! the builder has a timer (`.timer(TokioTimer::new())` of `hyper-util`). `axum::serve` sets none, so a client may take
//! any time for its head there. The timeout of [`accept`](crate::accept) does not apply here.
//!
//! # HTTP/2
//!
//! With the feature `http2`, the same call accepts extended CONNECT (RFC 8441), and answers it with 200: serve with
//! [`enable_connect_protocol`], since clients send no such request to a server without it. One connection carries
//! several WebSockets, each with the window of its stream as backpressure. Without that feature, requests over HTTP/2
//! are rejected with 400. The client here is `sinews::http2`:
//!
//! ```
//! # #[cfg(all(feature = "http2", feature = "http2-client", feature = "url-connect"))]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use http_body_util::Full;
//! # use hyper::body::Incoming;
//! # use hyper::service::service_fn;
//! # use hyper::{Request, Response};
//! # use sinews::Bytes;
//! use hyper::server::conn::http2;
//! use hyper_util::rt::{TokioExecutor, TokioIo};
//!
//! # async fn answer(mut request: Request<Incoming>) -> Result<Response<Full<Bytes>>, sinews::AcceptError> {
//! #     let (response, websocket) = sinews::hyper::upgrade(&mut request)?;
//! #     tokio::spawn(async move {
//! #         let mut websocket = websocket.await.expect("upgraded");
//! #         while let Some(Ok(message)) = websocket.next_data().await {
//! #             websocket.send(message).await.expect("open");
//! #         }
//! #     });
//! #     Ok(response)
//! # }
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! # let address = listener.local_addr()?;
//! # tokio::spawn(async move {
//! let (stream, _) = listener.accept().await?;
//! http2::Builder::new(TokioExecutor::new())
//!     .enable_connect_protocol() // required for WebSocket
//!     .serve_connection(TokioIo::new(stream), service_fn(answer)) // as above
//!     .await
//! #     .map_err(std::io::Error::other)
//! # });
//!
//! let connection = sinews::http2::connect(format!("ws://{address}")).await?;
//! let (mut first, mut second) = (connection.open("/").await?, connection.open("/").await?);
//! first.send("hello").await?;
//! second.send("also").await?;
//! assert_eq!(second.next().await.transpose()?, Some("also".into()));
//! assert_eq!(first.next().await.transpose()?, Some("hello".into()));
//! # Ok(())
//! # }
//! # #[cfg(not(all(feature = "http2", feature = "http2-client", feature = "url-connect")))]
//! # fn main() {}
//! ```
//!
//! [`header_read_timeout`]: hyper::server::conn::http1::Builder::header_read_timeout
//! [`enable_connect_protocol`]: https://docs.rs/hyper/latest/hyper/server/conn/http2/struct.Builder.html#method.enable_connect_protocol

mod respond;
mod upgraded;
mod view;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use hyper::upgrade::OnUpgrade;
use sinews_proto::{Config, Negotiated};

pub use self::upgraded::Upgraded;
pub(crate) use self::view::HttpRequestView;
use crate::WebSocket;
use crate::server::{AcceptError, AcceptPhase, AcceptSettings, setters};

/// Responds to a WebSocket request: returns the response, and the future of the WebSocket, which opens once the
/// response has left. [`Upgrade`] has settings.
///
/// # Errors
/// [`AcceptError::Rejected`] for a request that cannot be upgraded, and [`AcceptError::NotUpgradable`] for a
/// connection that cannot be. [`AcceptError::to_response`] makes the response.
pub fn upgrade<B, R: Default>(request: &mut Request<B>) -> Result<(Response<R>, UpgradeFut), AcceptError> {
    Upgrade::new().upgrade(request)
}

/// Settings of an upgrade.
///
/// ```
/// use sinews::{Config, OriginPolicy};
///
/// # fn answer(mut request: http::Request<()>) -> Result<(), Box<dyn std::error::Error>> {
/// let (response, websocket) = sinews::hyper::Upgrade::new()
///     .subprotocols(["v2.chat", "v1.chat"])
///     .origin(OriginPolicy::list(["https://example.com"])?)
///     .config(Config::default().with_max_message(1 << 20))
///     .upgrade::<_, String>(&mut request)?;
/// # let _ = (response, websocket);
/// # Ok(())
/// # }
/// # assert!(answer(http::Request::new(())).is_err());
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Upgrade {
    settings: AcceptSettings,
}

impl Upgrade {
    /// Creates settings without subprotocols and compression, for pages of the same origin, with default limits.
    pub fn new() -> Self {
        Self::default()
    }

    setters!(subprotocols);

    fn settings_mut(&mut self) -> &mut AcceptSettings {
        &mut self.settings
    }

    /// Responds to a request, as [`upgrade`]. You may add headers to the response.
    ///
    /// # Errors
    /// As [`upgrade`]; and [`AcceptError::Misuse`] and [`AcceptError::Config`] for invalid settings.
    pub fn upgrade<B, R: Default>(
        &self,
        request: &mut Request<B>,
    ) -> Result<(Response<R>, UpgradeFut), AcceptError> {
        start(&self.settings, request)
    }
}

pub(crate) fn start<B, R: Default>(
    settings: &AcceptSettings,
    request: &mut Request<B>,
) -> Result<(Response<R>, UpgradeFut), AcceptError> {
    let accepted = settings.accept(&HttpRequestView::new(request), None)?;
    let on = request.extensions_mut().remove::<OnUpgrade>().ok_or(AcceptError::NotUpgradable)?;
    let upgrading = UpgradeFut {
        on,
        negotiated: accepted.negotiated(),
        config: Arc::clone(settings.config()),
        subprotocol: accepted.subprotocol().map(str::to_owned),
    };
    Ok((respond::accepted(&accepted), upgrading))
}

/// Resolves to the WebSocket once the response has left, or to an error if the connection broke before. hyper ends
/// the wait with the connection.
///
/// hyper does not check which response it sent. If a layer replaces the response, with a 500 for instance, a
/// WebSocket may still be returned once that exchange has completed: it ends with its first read, or, if the client
/// stays connected, by [`Config::pong_timeout`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct UpgradeFut {
    on: OnUpgrade,
    negotiated: Negotiated,
    config: Arc<Config>,
    subprotocol: Option<String>,
}

impl UpgradeFut {
    /// The subprotocol that was chosen.
    #[must_use]
    pub fn subprotocol(&self) -> Option<&str> {
        self.subprotocol.as_deref()
    }
}

impl Future for UpgradeFut {
    type Output = Result<WebSocket<Upgraded>, AcceptError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let upgraded = match ready!(Pin::new(&mut self.on).poll(cx)) {
            Ok(upgraded) => upgraded,
            Err(error) => {
                return Poll::Ready(Err(AcceptError::Io(AcceptPhase::Response, io::Error::other(error))));
            }
        };
        let (io, received) = Upgraded::new(upgraded);
        let websocket = WebSocket::from_negotiated(io, self.negotiated, Arc::clone(&self.config), &received);
        Poll::Ready(Ok(websocket.with_subprotocol(self.subprotocol.as_deref())))
    }
}
