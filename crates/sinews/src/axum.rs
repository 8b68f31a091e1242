//! WebSocket in axum: [`WebSocketUpgrade`], an extractor.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use axum::Router;
//! use axum::response::Response;
//! use axum::routing::any;
//! use sinews::axum::{WebSocket, WebSocketUpgrade};
//!
//! async fn chat(upgrade: WebSocketUpgrade) -> Response {
//!     upgrade.protocols(["v2.chat", "v1.chat"]).max_message_size(1 << 20).on_upgrade(echo)
//! }
//!
//! async fn echo(mut websocket: WebSocket) {
//!     while let Some(Ok(message)) = websocket.next().await {
//!         if message.is_data() && websocket.send(message).await.is_err() {
//!             break;
//!         }
//!     }
//! }
//!
//! let app: Router = Router::new().route("/chat", any(chat));
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! # let address = listener.local_addr()?;
//! # let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
//! # let server =
//! axum::serve(listener, app)
//! # .with_graceful_shutdown(async { let _ = stopped.await; });
//! # let server = tokio::spawn(async move { server.await });
//! # use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
//! # let mut stream = tokio::net::TcpStream::connect(address).await?;
//! # stream.write_all(
//! #     b"GET /chat HTTP/1.1\r\nHost: example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
//! #       Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n\
//! #       \x81\x85\x00\x00\x00\x00hello\x88\x80\x00\x00\x00\x00",
//! # ).await?;
//! # let mut answer = Vec::new();
//! # stream.read_to_end(&mut answer).await?;
//! # assert!(answer.ends_with(b"\x81\x05hello\x88\x00"));
//! # let _ = stop.send(());
//! # server.await??;
//! # Ok(())
//! # }
//! ```
//!
//! # HTTP/2
//!
//! With the feature `http2` here and of axum, the same handler accepts extended CONNECT (RFC 8441) on a route that
//! accepts CONNECT, such as one of `any`. `axum::serve` announces it; a server of your own calls
//! `enable_connect_protocol` of hyper.
//!
//! ```
//! # #[cfg(all(feature = "http2", feature = "http2-client", feature = "url-connect"))]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use axum::Router;
//! # use axum::routing::any;
//! # use sinews::axum::{WebSocket, WebSocketUpgrade};
//! # let echo = async |mut websocket: WebSocket| {
//! #     while let Some(Ok(message)) = websocket.next_data().await {
//! #         websocket.send(message).await.expect("open");
//! #     }
//! # };
//! let chat = async move |upgrade: WebSocketUpgrade| upgrade.on_upgrade(echo);
//! let app: Router = Router::new().route("/chat", any(chat)); // GET and CONNECT
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! let address = listener.local_addr()?;
//! tokio::spawn(async move { axum::serve(listener, app).await });
//!
//! let connection = sinews::http2::connect(format!("ws://{address}")).await?;
//! let mut chat = connection.open("/chat").await?;
//! chat.send("hello").await?;
//! assert_eq!(chat.next().await.transpose()?, Some("hello".into()));
//! # Ok(())
//! # }
//! # #[cfg(not(all(feature = "http2", feature = "http2-client", feature = "url-connect")))]
//! # fn main() {}
//! ```
//!
//! # Differences from `axum::extract::ws`
//!
//! * **Pages of other origins are rejected with 403** unless [`origin`](WebSocketUpgrade::origin) lists them, since a
//!   browser would send the user's cookies along with their requests. Clients other than browsers send no origin, and
//!   are accepted. Behind a proxy that rewrites `Host` no page has the same origin: list the public origin there, or
//!   allow [any](crate::OriginPolicy::any) if the application does not rely on cookies.
//!   [`on_upgrade`](WebSocketUpgrade::on_upgrade) makes the check, as the setting can change until then: your handler
//!   runs before it.
//! * **Requests are validated strictly** by RFC 6455 section 4.2.1: a key that is not 16 bytes or a missing `Host` is
//!   a 400, a request that is not for WebSocket a 426.
//! * **An idle connection is pinged, and closed** if nothing is received; see [`Config`](crate::Config).
//! * [`deflate`](WebSocketUpgrade::deflate) is available.

use std::fmt;
use std::future::Future;

use axum_core::body::Body;
use axum_core::extract::{FromRequestParts, OptionalFromRequestParts};
use axum_core::response::{IntoResponse, Response};
use http::Request;
use http::request::Parts;
use hyper::upgrade::OnUpgrade;

use crate::hyper::{self as ours, HttpRequestView, Upgraded};
use crate::server::{AcceptError, AcceptSettings, OriginPolicy, setters};
/// The types of the library under the names of `axum::extract::ws`, so that a program changes only the path.
pub use crate::{CloseCode, CloseFrame, Message, Utf8Bytes};

/// The close codes under the names of `axum::extract::ws::close_code`. 1005 and 1006, which are `STATUS` and
/// `ABNORMAL` there, never appear in a Close frame: a Close without a code is `Message::Close(None)`.
pub mod close_code {
    use crate::CloseCode;

    /// 1000, [`CloseCode::NORMAL`].
    pub const NORMAL: CloseCode = CloseCode::NORMAL;
    /// 1001, [`CloseCode::GOING_AWAY`].
    pub const AWAY: CloseCode = CloseCode::GOING_AWAY;
    /// 1002, [`CloseCode::PROTOCOL`].
    pub const PROTOCOL: CloseCode = CloseCode::PROTOCOL;
    /// 1003, [`CloseCode::UNSUPPORTED`].
    pub const UNSUPPORTED: CloseCode = CloseCode::UNSUPPORTED;
    /// 1007, [`CloseCode::INVALID_DATA`].
    pub const INVALID: CloseCode = CloseCode::INVALID_DATA;
    /// 1008, [`CloseCode::POLICY`].
    pub const POLICY: CloseCode = CloseCode::POLICY;
    /// 1009, [`CloseCode::TOO_BIG`].
    pub const SIZE: CloseCode = CloseCode::TOO_BIG;
    /// 1010, [`CloseCode::MANDATORY_EXTENSION`].
    pub const EXTENSION: CloseCode = CloseCode::MANDATORY_EXTENSION;
    /// 1011, [`CloseCode::INTERNAL`].
    pub const ERROR: CloseCode = CloseCode::INTERNAL;
    /// 1012, [`CloseCode::SERVICE_RESTART`].
    pub const RESTART: CloseCode = CloseCode::SERVICE_RESTART;
    /// 1013, [`CloseCode::TRY_AGAIN_LATER`].
    pub const AGAIN: CloseCode = CloseCode::TRY_AGAIN_LATER;
}

/// A WebSocket of axum.
pub type WebSocket = crate::WebSocket<Upgraded>;

/// Extracts a WebSocket request; [`on_upgrade`](Self::on_upgrade) accepts it.
///
/// For HTTP/1.1 the route must accept GET, for HTTP/2 CONNECT (with the feature `http2`, here and of axum): `any` has
/// both. An `Option<WebSocketUpgrade>` is `None` for a request that does not ask for a WebSocket, so that one
/// path can serve a page and a WebSocket.
#[must_use = "the request is not answered until `on_upgrade` is called and its response returned"]
pub struct WebSocketUpgrade<F = DefaultOnFailedUpgrade> {
    /// The request as the handshake needs it, and hyper's upgrade future.
    request: Request<()>,
    settings: AcceptSettings,
    on_failed_upgrade: F,
}

impl<F> WebSocketUpgrade<F> {
    setters!(protocols);

    fn settings_mut(&mut self) -> &mut AcceptSettings {
        &mut self.settings
    }

    /// Sets the maximum size of a message in bytes ([`Config::max_message`](crate::Config::max_message)). Default 16
    /// MiB. For larger messages also raise [`max_frame_size`](Self::max_frame_size): a message may be a single frame.
    pub fn max_message_size(mut self, bytes: usize) -> Self {
        self.settings.change_config(|config| config.with_max_message(bytes as u64));
        self
    }

    /// Sets the maximum size of a frame in bytes ([`Config::max_frame`](crate::Config::max_frame)). Default 16 MiB.
    pub fn max_frame_size(mut self, bytes: usize) -> Self {
        self.settings.change_config(|config| config.with_max_frame(bytes as u64));
        self
    }

    /// The subprotocols that the client offers, in its order of preference.
    pub fn requested_protocols(&self) -> impl Iterator<Item = &str> {
        let lines = self.request.headers().get_all(http::header::SEC_WEBSOCKET_PROTOCOL).iter();
        let lines = lines.filter_map(|line| line.to_str().ok());
        lines.flat_map(|line| line.split(',')).map(str::trim).filter(|name| !name.is_empty())
    }

    /// The first of the [`protocols`](Self::protocols) set so far that the client offers; `None` if the client offers
    /// none of them, or if the request is to be rejected.
    #[must_use]
    pub fn selected_protocol(&self) -> Option<&str> {
        self.settings.subprotocol(&HttpRequestView::new(&self.request))
    }

    /// Sets a callback for a failed upgrade: the connection broke before the response was sent, the origin is not
    /// allowed, or a setting is invalid. Default: no action.
    pub fn on_failed_upgrade<C: FnOnce(AcceptError) + Send + 'static>(
        self,
        callback: C,
    ) -> WebSocketUpgrade<C> {
        let Self { request, settings, .. } = self;
        WebSocketUpgrade { request, settings, on_failed_upgrade: callback }
    }

    /// Responds to the request, and calls back with the WebSocket once the response has left, in a task of its own.
    ///
    /// A callback that returns drops the WebSocket: the peer sees 1006 unless the callback has called
    /// [`close`](crate::WebSocket::close). The graceful shutdown of `axum::serve` does not wait for these tasks: pass them
    /// a signal of your own, and [`close`](crate::WebSocket::close) on it.
    pub fn on_upgrade<C, Fut>(mut self, callback: C) -> Response
    where
        C: FnOnce(WebSocket) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
        F: OnFailedUpgrade,
    {
        let (response, upgrading) = match ours::start(&self.settings, &mut self.request) {
            Ok(started) => started,
            Err(error) => {
                let response = error.to_response::<Body>();
                self.on_failed_upgrade.call(error);
                return response;
            }
        };
        let on_failed_upgrade = self.on_failed_upgrade;
        tokio::spawn(async move {
            match upgrading.await {
                Ok(websocket) => callback(websocket).await,
                Err(error) => on_failed_upgrade.call(error),
            }
        });
        response
    }
}

/// Omits the headers of the request: their values may be secrets.
impl<F> fmt::Debug for WebSocketUpgrade<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSocketUpgrade")
            .field("path", &self.request.uri().path())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Handler of a failed upgrade: any function of the error.
pub trait OnFailedUpgrade: Send + 'static {
    /// Handles the error.
    fn call(self, error: AcceptError);
}

impl<F: FnOnce(AcceptError) + Send + 'static> OnFailedUpgrade for F {
    fn call(self, error: AcceptError) {
        self(error);
    }
}

/// Ignores the error.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct DefaultOnFailedUpgrade;

impl OnFailedUpgrade for DefaultOnFailedUpgrade {
    fn call(self, _: AcceptError) {}
}

/// The rejection is [`AcceptError::Rejected`], or [`AcceptError::NotUpgradable`] if another extractor took the
/// connection.
impl<S: Send + Sync> FromRequestParts<S> for WebSocketUpgrade {
    type Rejection = AcceptError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, AcceptError> {
        let mut request = Request::new(());
        *request.method_mut() = parts.method.clone();
        *request.uri_mut() = parts.uri.clone();
        *request.version_mut() = parts.version;
        *request.headers_mut() = parts.headers.clone();
        #[cfg(feature = "http2")]
        if let Some(protocol) = parts.extensions.get::<::hyper::ext::Protocol>() {
            request.extensions_mut().insert(protocol.clone());
        }
        let any_origin = {
            let mut settings = AcceptSettings::default();
            settings.change(|options| Ok(options.with_origin(OriginPolicy::any())));
            settings
        };
        any_origin.accept(&HttpRequestView::new(&request), None)?;
        let on = parts.extensions.remove::<OnUpgrade>().ok_or(AcceptError::NotUpgradable)?;
        request.extensions_mut().insert(on);
        Ok(Self { request, settings: AcceptSettings::default(), on_failed_upgrade: DefaultOnFailedUpgrade })
    }
}

impl<S: Send + Sync> OptionalFromRequestParts<S> for WebSocketUpgrade {
    type Rejection = AcceptError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Option<Self>, AcceptError> {
        // Other protocols, and the header in HTTP/1.0, are ignored (RFC 9110 section 7.8).
        let lines = parts.headers.get_all(http::header::UPGRADE).iter();
        let mut protocols = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
        let upgrades = parts.version == http::Version::HTTP_11
            && protocols.any(|protocol| protocol.trim_ascii().eq_ignore_ascii_case(b"websocket"));
        if !upgrades && parts.method != http::Method::CONNECT {
            return Ok(None);
        }
        <Self as FromRequestParts<S>>::from_request_parts(parts, state).await.map(Some)
    }
}

impl IntoResponse for AcceptError {
    fn into_response(self) -> Response {
        self.to_response::<Body>()
    }
}
