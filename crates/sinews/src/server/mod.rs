//! The server side: a request is accepted as a WebSocket, or rejected.
//!
//! On a stream that has not been read from, `accept` makes the whole handshake:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use sinews::server::{Reject, Reply};
//! use tokio::net::{TcpListener, TcpStream};
//!
//! let listener = TcpListener::bind("127.0.0.1:0").await?;
//! # let address = listener.local_addr()?;
//! # let client = tokio::spawn(async move {
//! #     use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
//! #     let mut stream = TcpStream::connect(address).await?;
//! #     stream.write_all(
//! #         b"GET /chat HTTP/1.1\r\nHost: example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
//! #           Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
//! #           Sec-WebSocket-Protocol: v1.chat\r\n\r\n\x81\x85\x00\x00\x00\x00hello\x88\x80\x00\x00\x00\x00",
//! #     ).await?;
//! #     let mut answer = String::new();
//! #     stream.read_to_string(&mut answer).await.map(|_| ())
//! # });
//! let (stream, peer) = listener.accept().await?;
//! stream.set_nodelay(true)?;
//! let (mut websocket, request) = sinews::accept(stream)
//!     .peer(peer)
//!     .subprotocols(["v2.chat", "v1.chat"])
//!     .on_request(|request| match request.path() {
//!         "/chat" => Ok(Reply::new().with_header("X-Room", "chat")),
//!         _ => Err(Reject::new(404)),
//!     })
//!     .open()
//!     .await?;
//!
//! assert_eq!(websocket.subprotocol(), Some("v1.chat"));
//! assert_eq!(request.peer(), Some(peer));
//! while let Some(message) = websocket.next().await {
//!     let message = message?;
//!     if message.is_data() {
//!         websocket.send(message).await?;
//!     }
//! }
//! # drop(websocket);
//! # let _ = client.await?;
//! # Ok(())
//! # }
//! ```
//!
//! Where another HTTP stack has read the request, see `sinews::hyper` and `sinews::axum`. All of them use
//! [`sinews_proto::handshake::accept`]: rejections and their statuses are the same everywhere.
//!
//! The client gets a response to a rejected request, then our side of the stream ends, and input is read and dropped
//! until the client ends its side. Otherwise the system would reset the connection, and a reset can overtake the
//! response. This takes at most [`Config::close_timeout`](crate::Config::close_timeout) and 256 KiB.

mod builder;
mod error;
mod handshake;
mod reply;
mod request;
mod settings;

pub use builder::Accept;
pub use error::{AcceptError, AcceptPhase};
pub(crate) use handshake::{AcceptedHandshake, Handshake};
pub use reply::{AcceptAll, Decide, OnRequest, OnRequestAsync, Reject, Reply};
pub use request::Request;
pub(crate) use settings::default_config;
#[cfg(feature = "hyper")]
pub(crate) use settings::{AcceptSettings, setters};
#[doc(inline)]
pub use sinews_proto::handshake::{
    HandshakeMisuse, OriginPolicy, Refusal, ServerOptions, accept_key, same_origin,
};
#[doc(inline)]
pub use sinews_proto::http::{HeadError, HeadLimits};

/// Bytes that are read and dropped after a rejection: more than a client can have sent before it reads the response.
pub(crate) const DROPPED_MAX: usize = 256 << 10;
