//! Connecting: [`Connect`], and its errors.
//!
//! A [URL](ConnectError::Url) names a server, which is reached directly or through a proxy; TCP tries the addresses
//! of its name as RFC 8305 describes, TLS authenticates the server, and the handshake of RFC 6455 section 4.1 ends
//! with a WebSocket or with a [rejection](ConnectError::Rejected) that contains the server's response.
//!
//! ```no_run
//! # #[cfg(feature = "url-connect")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Needs a server, so this example is not run.
//! use sinews::Message;
//!
//! let mut ws = sinews::connect("ws://localhost:9001/echo").subprotocol("v1.echo").await?;
//! ws.send(Message::text("hello")).await?;
//! println!("{:?}", ws.next().await);
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "url-connect"))]
//! # fn main() {}
//! ```
//!
//! The scheme is `ws` or `wss`; `http` and `https` mean the same, as in browsers. Name and password in the URL become
//! Basic authentication (RFC 7617), unless the request has an `Authorization` of its own.

#[cfg(feature = "url-connect")]
mod attempt;
pub(crate) mod body;
mod builder;
pub(crate) mod deadline;
#[cfg(feature = "url-connect")]
pub(crate) mod dial;
mod error;
pub(crate) mod exchange;
#[cfg(feature = "url-connect")]
pub(crate) mod proxy;
#[cfg(feature = "url-connect")]
mod proxy_error;
#[cfg(feature = "url-connect")]
pub(crate) mod race;
#[cfg(feature = "url-connect")]
pub(crate) mod redirect;
mod response;
pub(crate) mod settings;
#[cfg(feature = "url-connect")]
mod socks5;
pub(crate) mod target;
#[cfg(feature = "url-connect")]
mod tunnel;
mod upgrade;

#[cfg(feature = "url-connect")]
pub use builder::OverTls;
#[cfg(feature = "url-connect")]
pub(crate) use builder::over_tls;
pub use builder::{Connect, OverStream, Runtime, UsesTls};
#[cfg(feature = "url-connect")]
pub use error::RedirectError;
pub use error::{ConnectError, ConnectPhase};
#[cfg(feature = "url-connect")]
pub use proxy_error::{ProxyError, SocksReply};
pub use response::Response;
#[doc(inline)]
pub use sinews_proto::handshake::{ClientError, HandshakeMisuse, Rejection};
#[doc(inline)]
pub use sinews_proto::http::{HeadError, HeadLimits};
pub use target::UrlError;

#[cfg(feature = "url-connect")]
pub use crate::tls::TlsError;
