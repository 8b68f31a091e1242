//! From compio-ws 0.4.
//!
//! **Keepalive first.** compio-ws has none, and here it is on: a connection is pinged after 25 s without a byte from its peer,
//! and ends 20 s later if nothing comes in answer ([`Expired::Pong`](crate::Expired::Pong)); without pings it ends after
//! 120 s in which nothing is sent or received ([`Expired::Idle`](crate::Expired::Idle)). So a peer that does not read its
//! connection for 45 s, and thus answers no ping, is disconnected. This configuration switches both off:
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
//! | `client_async_tls(request, stream)` | `connect(url)`; TLS is made by rustls |
//! | `WebSocketStream<S>` | `WebSocket<S>` |
//! | `read().await`, whose end is `Error::ConnectionClosed` | `next().await`, whose end is `None` |
//! | `send`, `flush` | the same, but for [when it leaves](crate#when-bytes-leave) |
//! | `close(frame)` | `close(code, reason)`, which waits for the peer and answers how it ended; `close_now(code, reason)` does not wait for the peer |
//! | `get_ref`, `get_mut` | the same names; under TLS they give the socket below, and `tls_info` tells certificate, ALPN and version |
//! | `Config::websocket_config` | [`Config`](crate::Config), as [for tungstenite](super::tungstenite#websocketconfig) |
//! | `Config::with_buffer_sizes(base, limit)` | none: the thread's buffers, and [`max_message`](crate::Config::max_message) |
//! | `disable_nagle` | `connect(url).nodelay(…)`, on by default |
//! | a message copied into a buffer of your own | `next_head()` tells its length, `recv_into(buffer)` receives it there |
//! | a message put together from several buffers | `send_vectored(kind, (head, (payload,)))`, which gives them back |
//! | a connection shared by two tasks | `split()` |
//!
//! Messages and errors are tungstenite's there: see [that table](super::tungstenite#types). Which compio it has to be,
//! and how the runtime is set up best, says `sinews::compio`.
//!
//! For another synchronous library on compio there is `sinews::compio::SyncBridge`.
