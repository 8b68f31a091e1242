//! From sockudo-ws 3.1.
//!
//! **Keepalive has other times.** The connection sends a ping after 25 s without a byte from its peer, and ends 20 s
//! later if no byte has arrived ([`Expired::Pong`](crate::Expired::Pong)). In sockudo-ws the times are 30 s and 10 s.
//! This configuration disables keepalive:
//!
//! ```
//! let config = sinews::Config::default().with_ping_interval(None).with_idle_timeout(None);
//! # assert_eq!(config.check(), Ok(()));
//! ```
//!
//! | sockudo-ws | here |
//! |---|---|
//! | `WebSocketStream::server(stream, config)` after your own handshake | [`accept(stream)`](crate::accept) does the handshake, with timeout and origin check. Without it: [`WebSocket::from_negotiated`](crate::WebSocket::from_negotiated) with [`Negotiated::websocket(role)`](crate::Negotiated::websocket) |
//! | `WebSocketServer::<Http1>::new(config).accept(stream)` | `accept(stream).config(config)` |
//! | `WebSocketServer::protocols(names)` | `accept(stream).subprotocols(names)` |
//! | `WebSocketServer::<Http2>::serve` | `sinews::hyper::upgrade` with the feature `http2` |
//! | `WebSocketClient::<Http1>::connect_to_url(url, protocol)` | [`connect(url)`](crate::connect)`.subprotocol(name)`, also through proxies and with redirects |
//! | `WebSocketClient::connect(stream, ..)` | `connect(url).over(stream)`, and `over_tls(tcp)` for TLS over a `TcpStream` |
//! | `axum_integration::WebSocketUpgrade` | `sinews::axum::WebSocketUpgrade` |
//! | `CompressedWebSocketStream`, its own type | the same [`WebSocket`](crate::WebSocket); `.deflate(DeflateConfig::new())` before the handshake |
//! | `Message::Text(Bytes)` | [`Message::Text(Utf8Bytes)`](crate::Message::Text): valid UTF-8, `as_str` is free |
//! | `Message::Close(Option<CloseReason>)`, code a `u16` | [`CloseFrame`](crate::CloseFrame) with a [`CloseCode`](crate::CloseCode) |
//! | `let (reader, writer) = ws.split()` | `let (write, read) = ws.split()`, [in reverse order](crate::WebSocket::split) |
//! | `send_text(impl Into<String>)`, `send_binary(Bytes)` | [`send_text(&str)`](crate::WebSocket::send_text), [`send_binary(&[u8])`](crate::WebSocket::send_binary), copied once; [`send`](crate::WebSocket::send) takes owned messages without a copy |
//! | `CompioWebSocketStream` | `sinews::compio::WebSocket`, with `sinews::compio::connect` and `accept` |
//! | `close(code, reason)` | [`close`](crate::WebSocket::close), which waits for the peer and returns how the connection ended |
//! | `is_backpressured()`, water marks | [`try_send`](crate::WebSocket::try_send) returns [`Sent::Backpressure`](crate::Sent::Backpressure) beyond [`high_water`](crate::Config::high_water) |
//! | `init_clock()` | not needed |
//!
//! # `Config`
//!
//! | sockudo-ws | default there | here |
//! |---|---|---|
//! | `max_message_size` | 64 MiB | [`max_message`](crate::Config::max_message), 16 MiB |
//! | `max_frame_size` | 16 MiB | [`max_frame`](crate::Config::max_frame), 16 MiB |
//! | `validate_text_utf8` | yes | always |
//! | `write_buffer_size`, `write_coalescing` | 16 KiB, yes | none: replies are coalesced automatically |
//! | `max_backpressure` | 1 MiB | [`high_water`](crate::Config::high_water) for senders that wait, [`max_outbound`](crate::Config::max_outbound) for senders that do not |
//! | `idle_timeout` (seconds, 0 is off) | 120 | [`idle_timeout`](crate::Config::idle_timeout), `None` is off |
//! | `auto_ping`, `ping_interval` | yes, 30 | [`ping_interval`](crate::Config::ping_interval), 25 s, `None` is off |
//! | `pong_timeout`, with a code and a reason | 10, 1001 | [`pong_timeout`](crate::Config::pong_timeout), 20 s, 1011; the cause is typed: [`Expired::Pong`](crate::Expired::Pong) |
//! | `close_timeout` | 5 | [`close_timeout`](crate::Config::close_timeout), 5 s |
//! | `compression` | off | `.deflate(…)` on both sides |
//!
//! ```
//! use std::time::Duration;
//!
//! // Was: Config::builder().max_message_size(1 << 20).idle_timeout(60).build()
//! let config = sinews::Config::default()
//!     .with_max_message(1 << 20)
//!     .with_idle_timeout(Some(Duration::from_secs(60)));
//! # assert_eq!(config.check(), Ok(()));
//! ```
//!
//! # Errors
//!
//! | sockudo-ws | here |
//! |---|---|
//! | `Io`, `ConnectionReset` | [`Error::Io`](crate::Error::Io) |
//! | `InvalidFrame`, `InvalidUtf8`, `Protocol`, `InvalidCloseCode`, `Compression` | [`Cause::Fault`](crate::Cause::Fault), one value for each violation |
//! | `MessageTooLarge`, `FrameTooLarge` | [`MessageTooBig`](crate::PeerMisbehaved::MessageTooBig), [`FrameTooBig`](crate::PeerMisbehaved::FrameTooBig) |
//! | `ConnectionClosed`, `Closed(reason)` | `None` from `next`; [`closed`](crate::WebSocket::closed) has code, reason and side |
//! | `HeartbeatTimeout`, `IdleTimeout` | [`Cause::Expired`](crate::Cause::Expired) |
//! | `BufferFull` | [`Overflow`](crate::Overflow), or `send` waits |
//! | `InvalidHttp`, `HandshakeFailed` | [`AcceptError`](crate::AcceptError), [`ConnectError`](crate::ConnectError); `?` converts both into [`Error`](crate::Error) |
//!
//! # Differences in behavior
//!
//! * `send` in a loop with `next` coalesces the replies to messages received together; `feed` and `flush` at "batch
//!   boundaries" are not needed.
//! * While a send waits for the peer, the connection still answers pings, and timeouts still expire.
//! * One type has all functions: a reader, a writer and a compressed stream make the same checks.
