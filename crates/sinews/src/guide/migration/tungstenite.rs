//! From tokio-tungstenite 0.30.
//!
//! ```toml
//! # Was: tokio-tungstenite = { version = "0.30", features = ["rustls-tls-webpki-roots"] }
//! sinews = { path = "…/crates/sinews", features = ["tokio-rustls", "rustls-webpki-roots"] }
//! ```
//!
//! | feature of tokio-tungstenite | here |
//! |---|---|
//! | `connect`, `handshake` (default) | `url-connect`, `tokio` (default) |
//! | `native-tls` | `native-tls` |
//! | `rustls-tls-native-roots` | `tokio-rustls` and `rustls-native-roots` |
//! | `rustls-tls-webpki-roots` | `tokio-rustls` and `rustls-webpki-roots` |
//! | `native-tls-vendored` | the feature `vendored` of the crate `native-tls`, in your own manifest |
//! | `url` | none: `connect` takes a `url::Url` too |
//!
//! **Keepalive is the main difference.** tokio-tungstenite has no keepalive; here it is on. The connection sends a ping
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
//! `async_tungstenite::tokio` names its functions as tokio-tungstenite does: its programs move by the same rows.
//!
//! The types correspond: a stream of messages that is also a sink, with reference-counted text and binary. This code
//!
//! ```text
//! use futures_util::{SinkExt, StreamExt};
//! use tokio_tungstenite::{accept_async, tungstenite::Message};
//!
//! let mut ws = accept_async(stream).await?;
//! while let Some(msg) = ws.next().await {
//!     let msg = msg?;
//!     if msg.is_text() || msg.is_binary() {
//!         ws.send(msg).await?;
//!     }
//! }
//! ```
//!
//! becomes
//!
//! ```
//! # async fn serve(stream: tokio::net::TcpStream) -> Result<(), Box<dyn std::error::Error>> {
//! stream.set_nodelay(true)?; // recommended, as before: `accept` changes no option of the socket
//! let mut ws = sinews::accept(stream).await?;
//! while let Some(msg) = ws.next().await {
//!     let msg = msg?;
//!     if msg.is_text() || msg.is_binary() {
//!         ws.send(msg).await?;
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! `next` and `send` are methods of the connection itself, so that the extension traits need no import. If the traits
//! are imported, the connection's own methods take precedence.
//!
//! # Functions
//!
//! | tokio-tungstenite | here |
//! |---|---|
//! | `connect_async(url)` | [`connect(url).await`](crate::connect) returns the connection; `connect(url).open().await` also returns the response |
//! | `connect_async(request)` with headers, also from `into_client_request()` | `connect(url).header(name, value)` |
//! | `Sec-WebSocket-Protocol` by hand | `connect(url).subprotocol(name)`; [`subprotocol`](crate::WebSocket::subprotocol) returns the server's choice |
//! | `connect_async_with_config(url, config, disable_nagle)` | `connect(url).config(config)`; `TCP_NODELAY` is on, `nodelay(false)` turns it off |
//! | `connect_async_tls_with_config(.., connector)` | `connect(url).tls(config)` |
//! | `client_async(request, stream)` | `connect(url).over(stream)`; for a stream that is not `Send` and `'static`, `connect(url).over(stream).open()` |
//! | `client_async_tls(request, tcp)`, `client_async_tls_with_config` | `connect(url).over_tls(tcp)`: TLS if the URL is `wss`. For a TLS stream of your own: `over(stream)` |
//! | `accept_async(stream)` | [`accept(stream).await`](crate::accept) |
//! | `accept_async_with_config` | `accept(stream).config(config)` |
//! | `accept_hdr_async(stream, callback)` | `accept(stream).on_request(callback)`, or `on_request_async` |
//! | `WebSocketStream::from_raw_socket(stream, role, config)` | [`WebSocket::from_negotiated`](crate::WebSocket::from_negotiated)`(stream, `[`Negotiated::websocket`](crate::Negotiated::websocket)`(role), config, &[])`, with an `Arc<Config>`: `Arc::default()` for the default |
//! | `from_partially_read(stream, part, role, config)` | the same with `&part` |
//! | `handshake::derive_accept_key(key)` | `sinews::hyper::upgrade`, which writes the response too; or [`server::accept_key`](crate::server::accept_key), which returns `None` for an invalid key |
//! | `&Request` of a callback: `uri().path()`, `uri().query()`, `headers().get(name)` | [`&server::Request`](crate::server::Request): `path()`, `query()`, `header(name)`; `headers()` iterates over names as `&str` and values as `&[u8]` |
//! | `Response` of a callback, with `headers_mut().append(..)` | [`Reply::new()`](crate::server::Reply)`.with_header(name, value)`; the callback has no second argument |
//! | `ErrorResponse` of a callback | [`Reject::new(status)`](crate::server::Reject) |
//!
//! ```
//! use sinews::server::{Reject, Reply};
//!
//! # async fn serve(stream: tokio::net::TcpStream) -> Result<(), Box<dyn std::error::Error>> {
//! // Was: accept_hdr_async(stream, |request: &Request, response: Response| { … })
//! let ws = sinews::accept(stream)
//!     .subprotocols(["v2.chat", "v1.chat"])
//!     .on_request(|request| match (request.path(), request.header("authorization")) {
//!         ("/chat", Some("Bearer 1234")) => Ok(Reply::new().with_header("X-Room", "lobby")),
//!         ("/chat", _) => Err(Reject::new(401)),
//!         _ => Err(Reject::new(404).with_body("no such page")),
//!     })
//!     .await?;
//! # drop(ws);
//! # Ok(())
//! # }
//! ```
//!
//! # Types
//!
//! | tungstenite | here |
//! |---|---|
//! | `WebSocketStream<MaybeTlsStream<TcpStream>>` | `WebSocket<sinews::tokio::Stream>`; `get_ref().tcp()` is the socket |
//! | `WebSocketStream<S>` | [`WebSocket<S>`](crate::WebSocket) |
//! | `handshake::client::Response`, an `http::Response` | [`client::Response`](crate::client::Response): `status()`, `headers()`, `body()` |
//! | `Message::Text(Utf8Bytes)`, `Binary(Bytes)`, `Ping(Bytes)`, `Pong(Bytes)`, `Close(Option<CloseFrame>)` | the same variants of [`Message`](crate::Message) |
//! | `Message::Frame(frame)` | none: [`writer`](crate::WebSocket::writer) sends fragments, [`next_reader`](crate::WebSocket::next_reader) receives them |
//! | `msg.to_text()?`, `msg.into_data()`, `msg.is_ping()`, `msg.to_string()` | the same. [`as_text()`](crate::Message::as_text) is for text messages only, [`into_bytes()`](crate::Message::into_bytes) never copies |
//! | `msg.into_text()?` | [`into_text()`](crate::Message::into_text) of a text message; any other message is the error |
//! | `Utf8Bytes` | [`Utf8Bytes`](crate::Utf8Bytes) |
//! | `CloseFrame { code, reason }` | [`CloseFrame`](crate::CloseFrame), or `CloseFrame::new(code, reason)`; the reason is a `Box<str>`, which `"text".into()` and `utf8_bytes.into()` make |
//! | `CloseCode::from(4000)` | [`CloseCode::new`](crate::CloseCode::new)`(4000)` returns an `Option`, `CloseCode::try_from(4000)?` an error: not each number is a code |
//! | `CloseCode::Normal`, `Away`, `Policy`, `Library(4000)` | [`CloseCode::NORMAL`](crate::CloseCode::NORMAL), `GOING_AWAY`, `POLICY`, `CloseCode::new(4000)`; `u16::from(code)` is the number |
//! | `WebSocketConfig` | [`Config`](crate::Config) |
//! | `Role` | [`Role`](crate::Role) |
//!
//! ```
//! use sinews::{CloseCode, CloseFrame, Message};
//!
//! fn describe(msg: Message) -> String {
//!     match msg {
//!         Message::Text(text) => format!("text {text}"),
//!         Message::Binary(bytes) => format!("{} bytes", bytes.len()),
//!         Message::Ping(_) | Message::Pong(_) => "keepalive".into(),
//!         Message::Close(Some(CloseFrame { code, reason })) => format!("closed with {code}: {reason}"),
//!         Message::Close(None) => "closed".into(),
//!     }
//! }
//!
//! assert_eq!(describe(Message::text("a")), "text a");
//! assert_eq!(describe(Message::binary(vec![1, 2])), "2 bytes");
//! let frame = CloseFrame { code: CloseCode::GOING_AWAY, reason: "restart".into() };
//! assert_eq!(describe(Message::Close(Some(frame))), "closed with 1001: restart");
//! ```
//!
//! # Methods
//!
//! | tokio-tungstenite | here |
//! |---|---|
//! | `ws.next().await` | the same |
//! | `ws.send(msg).await` | the same, except for [when it leaves](crate#when-bytes-leave) |
//! | `ws.feed(msg).await`, `ws.flush().await` | the same; `send` coalesces without them |
//! | `ws.close(None).await`, `sink.close().await` of `SinkExt` | `ws.close(CloseCode::NORMAL, "").await`, also of a half |
//! | `ws.close(frame).await` | [`ws.close(code, reason).await`](crate::WebSocket::close), which also waits for the peer and returns how the connection ended; [`close_now`](crate::WebSocket::close_now) does not wait for the peer |
//! | `let (sink, stream) = ws.split()` of `futures_util` | `let (write, read) = ws.split()`, in the same order: [halves](crate::WebSocket::split) without a lock per message over TCP, and with a lock over TLS. For streams of other crates, such as `TokioIo<Upgraded>`, and your own: [`split_locked`](crate::WebSocket::split_locked). `StreamExt::split(ws)` works too |
//! | `sink.reunite(stream)?` | [`read.reunite(write)?`](crate::tokio::ReadHalf::reunite) |
//! | a channel, and a task that forwards from it to the sink | [`ws.sender()`](crate::WebSocket::sender): cloneable handles of a bounded queue |
//! | `ws.get_ref()`, `get_mut()`, `get_config()` | `get_ref()`, `get_mut()`, `config()` |
//!
//! ```
//! # async fn work(ws: sinews::WebSocket<tokio::net::TcpStream>) -> Result<(), Box<dyn std::error::Error>> {
//! // Was: let (tx, rx) = mpsc::channel(64); tokio::spawn(ReceiverStream::new(rx).map(Ok).forward(sink));
//! let (mut write, mut read) = ws.split();
//! let ticker = write.sender();
//! tokio::spawn(async move {
//!     let mut every = tokio::time::interval(std::time::Duration::from_secs(1));
//!     while ticker.send("tick").await.is_ok() {
//!         every.tick().await;
//!     }
//! });
//! write.send("hello").await?;
//! while let Some(message) = read.next().await {
//!     println!("{:?}", message?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # `WebSocketConfig`
//!
//! | field | default there | here |
//! |---|---|---|
//! | `max_message_size` | 64 MiB | [`max_message`](crate::Config::max_message), 16 MiB |
//! | `max_frame_size` | 16 MiB | [`max_frame`](crate::Config::max_frame), 16 MiB |
//! | `read_buffer_size` | 128 KiB for each connection | none: a connection that reads borrows a 64 KiB block of its thread. An idle connection has no buffer, so there is no size to set |
//! | `write_buffer_size` | 128 KiB | [`high_water`](crate::Config::high_water), 64 KiB; writes do not wait for it to fill |
//! | `max_write_buffer_size` | unlimited | [`max_outbound`](crate::Config::max_outbound), 1 MiB, with a policy: [`overflow`](crate::Config::overflow) |
//! | `accept_unmasked_frames` | no | none: a server must close a connection that receives an unmasked frame (RFC 6455 section 5.1). Masking prevents scripts in browsers from sending chosen bytes through proxies (section 10.3). So no setting disables the check |
//!
//! # Errors
//!
//! | tungstenite | here |
//! |---|---|
//! | `Error` and `Result`, for `?` from each call | [`Error`](crate::Error) and [`Result`](crate::Result). `connect` returns a [`ConnectError`](crate::ConnectError) and `accept` an [`AcceptError`](crate::AcceptError), which `?` converts into it |
//! | your own error type with `From<tungstenite::Error>` | `From<sinews::Error>`, and `.map_err(sinews::Error::from)?` behind `connect` and `accept`: see [one error](super#one-error-for-) |
//! | `Error::ConnectionClosed \| Error::Protocol(_) \| Error::Utf8(_)` in one pattern | `Error::Closed(_)` |
//! | `ConnectionClosed` | none: `next` returns `None`, `send` returns [`Error::Closed`](crate::Error::Closed) |
//! | `AlreadyClosed` | `Error::Closed`; after your own Close [`Misuse::Closing`](crate::Misuse::Closing) |
//! | `Io` | [`Error::Io`](crate::Error::Io) |
//! | `Protocol`, `Utf8` | `Error::Closed` with [`Cause::Fault`](crate::Cause::Fault), which names the violation |
//! | `Protocol(ResetWithoutClosingHandshake)` | `Error::Closed` with [`Cause::Ended`](crate::Cause::Ended) |
//! | `Capacity` | `Cause::Fault` with [`MessageTooBig`](crate::PeerMisbehaved::MessageTooBig) or [`FrameTooBig`](crate::PeerMisbehaved::FrameTooBig) |
//! | `WriteBufferFull(msg)` | `send` waits instead; for [`try_send`](crate::WebSocket::try_send) the [`Overflow`](crate::Overflow) policy applies |
//! | `Url`, `Tls`, `Http(response)`, `HttpFormat` | [`Error::Connect`](crate::Error::Connect) with a [`ConnectError`](crate::ConnectError), which has `status()`; [`Error::Accept`](crate::Error::Accept) of a server |
//!
//! ```
//! use sinews::{AtFault, Error};
//!
//! fn log(error: &Error) -> String {
//!     match error.at_fault() {
//!         AtFault::Nobody | AtFault::Transport => format!("gone: {error}"),
//!         AtFault::Peer => format!("the client misbehaves: {error}"),
//!         _ => format!("our bug: {error}"),
//!     }
//! }
//! # assert_eq!(log(&Error::Io(std::io::ErrorKind::BrokenPipe.into())), "gone: transport: broken pipe");
//! ```
//!
//! # Differences in behavior
//!
//! * **`send` coalesces.** In tungstenite each `send` is a write and a flush. Here the replies to messages received
//!   together leave in one write, without `feed`. `SinkExt::send`, for instance after `StreamExt::split`, is documented
//!   as `feed` and `flush`, so it writes each time.
//! * **Pongs are sent automatically.** In tungstenite they wait for the next read, write or flush. Here every awaited
//!   method sends them, even if you only send.
//! * **Futures may be dropped.** `next` and `send` in a `select!` lose no data: see [the table](crate#cancel-safety).
//! * **A normal close is not an error.** `None` follows `Message::Close`; [`closed`](crate::WebSocket::closed) has
//!   code, reason and side.
//! * **A peer that keeps TCP open delays `None`** by up to 5 s: see [the end of a receive
//!   loop](super#the-end-of-a-receive-loop).
//! * **A handshake has a timeout**: 10 s for [`accept`](crate::accept()), 20 s for [`connect`](crate::connect()). With
//!   `sinews::hyper` and `sinews::axum`, that of hyper applies.
//! * **Bytes after the handshake are kept**, so that a client may send at once.
//! * **Compression**: `connect(url).deflate(DeflateConfig::new())`, `accept(stream).deflate(…)`. It is off by default. See
//!   `DeflateConfig`.
