//! The server's side: a request comes, and becomes a WebSocket or does not.
//!
//! On a stream that nobody has read from, `accept` makes the whole handshake:
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
//! let (mut websocket, request) = sinews::accept(stream)
//!     .peer(peer)
//!     .subprotocols(["v2.chat", "v1.chat"])
//!     .on_request(|request| match request.path() {
//!         "/chat" => Ok(Reply::new().header("X-Room", "chat")),
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
//! Where another HTTP stack has read the request, see `sinews::hyper` and `sinews::axum`. All of them decide by one
//! function, [`sinews_proto::handshake::accept`]: what is refused, and with which status, is the same everywhere.
//!
//! A request that is refused is answered, then our side of the stream ends, and what the client still sends is read
//! and dropped until it ends its side: otherwise the system would answer it with a reset, which can overtake the
//! response. That takes at most [`Config::close_timeout`](crate::Config::close_timeout) and 256 KiB.

mod builder;
mod error;
mod handshake;
mod reply;
mod request;
mod settings;

pub use builder::Accept;
pub use error::{AcceptError, Phase};
pub(crate) use handshake::{Handshake, Opened};
pub use reply::{AcceptAll, Decide, OnRequest, OnRequestAsync, Reject, Reply};
pub use request::Request;
pub(crate) use settings::default_config;
#[cfg(feature = "hyper")]
pub(crate) use settings::{Settings, setters};
pub use sinews_proto::handshake::{HandshakeMisuse, OriginPolicy, Refusal, ServerOptions, same_origin};
pub use sinews_proto::http::{HeadError, HeadLimits};

/// Bytes that are read and dropped behind a refusal: more than a client can have sent before it reads the answer.
pub(crate) const DROPPED_MAX: usize = 256 << 10;
