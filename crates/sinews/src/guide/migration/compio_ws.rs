//! From compio-ws 0.4.
//!
//! ```toml
//! # Was: compio-ws = { version = "0.4", features = ["rustls-native-certs"] }
//! sinews = { path = "…/crates/sinews", default-features = false, features = ["compio", "rustls-native-roots"] }
//! ```
//!
//! **Keepalive is the main difference.** compio-ws has no keepalive; here it is on. The connection sends a ping
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
//! ```
//! # #[cfg(feature = "compio")]
//! // Was: let mut ws = compio_ws::accept_async(stream).await?; loop { match ws.read().await { … } }
//! async fn serve(stream: compio::net::TcpStream) -> Result<(), Box<dyn std::error::Error>> {
//!     let mut ws = sinews::compio::accept(stream).await?;
//!     while let Some(message) = ws.next().await {
//!         let message = message?;
//!         if message.is_data() {
//!             ws.send(message).await?;
//!         }
//!     }
//!     Ok(())
//! }
//! # #[cfg(feature = "compio")]
//! # let _ = serve;
//! ```
//!
//! | compio-ws | `sinews::compio` |
//! |---|---|
//! | `accept_async(stream)`, `accept_hdr_async(stream, callback)` | `accept(stream)`, `accept(stream).on_request(callback)` |
//! | `connect_async(url)`, `client_async(request, stream)` | `connect(url)`, `connect(url).over(stream)` |
//! | `client_async_tls(request, tcp)` | `connect(url).over_tls(tcp)`, or `connect(url)`; TLS uses rustls |
//! | `WebSocketStream<S>` | `WebSocket<S>` |
//! | `read().await`, which ends with `Error::ConnectionClosed` | `next().await`, which ends with `None` |
//! | `send`, `flush` | the same, except for [when it leaves](crate#when-bytes-leave) |
//! | `close(frame)` | `close(code, reason)`, which waits for the peer and returns how the connection ended; `close_now(code, reason)` does not wait for the peer |
//! | `get_ref`, `get_mut` | the same names; under TLS they return the socket below, and `tls_info` returns certificate, ALPN and version |
//! | `Config::websocket_config` | [`Config`](crate::Config), as [for tungstenite](super::tungstenite#websocketconfig) |
//! | `Config::with_buffer_sizes(base, limit)` | none: the thread's buffers, and [`max_message`](crate::Config::max_message) |
//! | `disable_nagle` | `connect(url).nodelay(…)`, on by default |
//! | a message copied into your own buffer | `next_head()` returns its length, `recv_into(buffer)` receives it there |
//! | a message assembled from several buffers | `send_vectored(kind, (head, (payload,)))`, which returns the buffers |
//! | a connection shared by two tasks | `split()` |
//!
//! compio-ws uses the messages and errors of tungstenite: see [the table of messages](super::tungstenite#types)
//! and [the table of errors](super::tungstenite#errors). `?` converts the errors of `connect` and `accept` into
//! [`Error`](crate::Error).
//! `sinews::compio` documents the required version of compio and the setup of the runtime.
//!
//! For another synchronous library on compio there is `sinews::compio::SyncBridge`.
