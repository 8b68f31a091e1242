//! From `axum::extract::ws`: change the import. `sinews::axum` has its types and `close_code` under the same names.
//!
//! ```toml
//! # Was: axum = { version = "0.8", features = ["ws"] }
//! axum = "0.8"
//! sinews = { path = "…/crates/sinews", features = ["axum"] }
//! ```
//!
//! **Keepalive is the main difference.** `axum::extract::ws` has no keepalive; here it is on. The connection sends a
//! ping after 25 s without a byte from its peer, and ends 20 s later if no byte has arrived
//! ([`Expired::Pong`](crate::Expired::Pong)). So a peer that does not read for 45 s, and answers no ping, is
//! disconnected. With pings disabled, the connection ends after 120 s without a byte in either direction
//! ([`Expired::Idle`](crate::Expired::Idle)). This configuration disables both:
//!
//! ```
//! let config = sinews::Config::default().with_ping_interval(None).with_idle_timeout(None);
//! # assert_eq!(config.check(), Ok(()));
//! ```
//!
//! ```
//! # #[cfg(feature = "axum")]
//! # mod app {
//! // Was: use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
//! use axum::response::Response;
//! use sinews::axum::{Message, WebSocket, WebSocketUpgrade};
//!
//! async fn handler(upgrade: WebSocketUpgrade) -> Response {
//!     upgrade.protocols(["v1.chat"]).on_upgrade(handle)
//! }
//!
//! async fn handle(mut socket: WebSocket) {
//!     while let Some(Ok(message)) = socket.next().await {
//!         if let Message::Text(text) = message
//!             && socket.send(Message::Text(text)).await.is_err()
//!         {
//!             return;
//!         }
//!     }
//! }
//! # pub fn app() -> axum::Router { axum::Router::new().route("/", axum::routing::any(handler)) }
//! # }
//! # #[cfg(feature = "axum")]
//! # drop(app::app());
//! ```
//!
//! | axum | `sinews::axum` |
//! |---|---|
//! | `WebSocketUpgrade`, also as `Option` | the same name |
//! | `protocols`, `requested_protocols`, `selected_protocol`, `on_failed_upgrade`, `on_upgrade` | the same |
//! | `set_selected_protocol` | `protocols` with that protocol |
//! | `max_message_size` (64 MiB), `max_frame_size` (16 MiB) | the same names; 16 MiB is the default of both |
//! | `read_buffer_size`, `write_buffer_size`, `max_write_buffer_size` | `config(…)`: connections have no buffers of their own; [`high_water`](crate::Config::high_water), [`max_outbound`](crate::Config::max_outbound) |
//! | `accept_unmasked_frames` | none: see [tungstenite](super::tungstenite#websocketconfig) |
//! | | `deflate(…)`, `origin(…)`, `options(…)` |
//! | `socket.recv().await` | [`next().await`](crate::WebSocket::next) |
//! | `socket.send(message).await` | the same; replies to messages received together leave together |
//! | `Message::Text(Utf8Bytes)`, …, `Message::Close(Option<CloseFrame>)` | the same variants; [`CloseFrame { code, reason }`](crate::CloseFrame) with a `CloseCode` and a `Box<str>`, which `"text".into()` and `utf8_bytes.into()` make |
//! | `close_code::NORMAL`, and the others | `sinews::axum::close_code::NORMAL`, or [`CloseCode::NORMAL`](crate::CloseCode::NORMAL). For `STATUS` (1005) send `Message::Close(None)`; `ABNORMAL` (1006) is never sent |
//! | `CloseCode`, a `u16` | [`CloseCode`](crate::CloseCode), a type of its own: `CloseCode::new(4000)` returns an `Option`, `CloseCode::try_from(4000)?` an error, `u16::from(code)` the number |
//! | `message.into_data()`, `to_text()?` | the same. `into_text()` is for text messages: any other message is the error |
//! | `let (sink, stream) = socket.split()` of `futures_util` | `let (write, read) = socket.split()`, also over TLS and HTTP/2 |
//! | `socket.protocol()` | [`subprotocol()`](crate::WebSocket::subprotocol) |
//! | `use futures_util::{SinkExt, StreamExt}` | not needed; the compiler names unused imports |
//! | `axum::Error`, with `?` | [`Error`](crate::Error); `?` also converts [`ConnectError`](crate::ConnectError) and [`AcceptError`](crate::AcceptError) into it |
//! | the loop ends with the Close | it ends with the transport, at most [`close_timeout`](crate::Config::close_timeout) later: see [the end of a receive loop](super#the-end-of-a-receive-loop) |
//!
//! Layers and other extractors work as before. The documentation of `sinews::axum` lists the differences in the
//! handshake: origins are checked, and requests are validated strictly.
