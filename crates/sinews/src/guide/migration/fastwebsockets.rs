//! From fastwebsockets 0.10, an API of frames.
//!
//! **Keepalive is the main difference.** fastwebsockets has no keepalive; here it is on. The connection sends a ping
//! after 25 s without a byte from its peer, and ends 20 s later if no byte has arrived
//! ([`Expired::Pong`](crate::Expired::Pong)). So a peer that does not read for 45 s, and answers no ping, is
//! disconnected. With pings disabled, the connection ends after 120 s without a byte in either direction
//! ([`Expired::Idle`](crate::Expired::Idle)). This configuration disables both:
//!
//! ```
//! let config = sinews::Config::default().with_ping_interval(None).with_idle_timeout(None);
//! # assert_eq!(config.check(), Ok(()));
//! ```
//!
//! | fastwebsockets | here |
//! |---|---|
//! | `FragmentCollector::new(ws).read_frame()` | [`next`](crate::WebSocket::next): whole messages; text messages are validated |
//! | `read_frame()` with a borrowed payload | [`next_borrowed`](crate::WebSocket::next_borrowed), whose payload may be changed in place |
//! | `read_frame()` of fragments | [`next_reader`](crate::WebSocket::next_reader) |
//! | `write_frame(Frame::text(payload))`, `Frame::binary` | [`send`](crate::WebSocket::send) of a [`Message`](crate::Message), [`send_text`](crate::WebSocket::send_text), [`send_binary`](crate::WebSocket::send_binary) |
//! | `write_frame(Frame::new(false, ..))` | [`writer`](crate::WebSocket::writer) |
//! | `write_frame(Frame::close(code, reason))` | [`close`](crate::WebSocket::close) |
//! | `set_auto_pong`, `set_auto_close` | always on: RFC 6455 requires both |
//! | `set_writev`, `set_writev_threshold` | none: large payloads are sent by reference, small payloads are gathered |
//! | `set_max_message_size` | [`Config::max_message`](crate::Config::max_message), over all fragments |
//! | `set_auto_apply_mask` | always on |
//! | `upgrade::upgrade(&mut request)` | `sinews::hyper::upgrade(&mut request)` |
//! | `upgrade::IncomingUpgrade` | `sinews::axum::WebSocketUpgrade` |
//! | `handshake::client(executor, request, stream)` | [`connect(url)`](crate::connect)`.over(stream)`; no executor, no hyper |
//! | `WebSocket::after_handshake(stream, role)` | [`WebSocket::from_negotiated`](crate::WebSocket::from_negotiated)`(stream, `[`Negotiated::websocket`](crate::Negotiated::websocket)`(role), Arc::default(), &[])` |
//! | `ws.split(..)` and a callback that sends control frames | [`split`](crate::WebSocket::split) without a callback: the connection sends pongs and Close |
//! | `WebSocketError`, with `?` | [`Error`](crate::Error); `?` also converts the errors of `connect` and `accept` into it |
//!
//! ```
//! # #[cfg(feature = "tokio")]
//! # async fn serve(mut ws: sinews::WebSocket<tokio::net::TcpStream>) -> Result<(), sinews::Error> {
//! // Was: loop { let frame = ws.read_frame().await?; match frame.opcode { … } }
//! while let Some(message) = ws.next_borrowed().await {
//!     let mut message = message?;
//!     message.payload_mut().reverse();
//!     let answer = message.payload().to_vec();
//!     ws.send(answer).await?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Futures may be dropped at any point ([the table](crate#cancel-safety)). In fastwebsockets, a `read_frame` or
//! `write_frame` in a `select!` may not.
