//! From tungstenite 0.30 without a runtime: to `sinews::blocking`.
//!
//! ```toml
//! # Was: tungstenite = { version = "0.30", features = ["rustls-tls-webpki-roots"] }
//! sinews = { path = "…/crates/sinews", default-features = false, features = ["blocking", "rustls-webpki-roots"] }
//! ```
//!
//! | feature of tungstenite | here |
//! |---|---|
//! | (default) | `blocking`; `url-connect` for `connect(url)`, which the features of this table include |
//! | `native-tls` | `native-tls` |
//! | `rustls-tls-native-roots`, `rustls-tls-webpki-roots` | `rustls-native-roots`, `rustls-webpki-roots` |
//! | `native-tls-vendored` | the feature `vendored` of the crate `native-tls`, in your own manifest |
//!
//! This code
//!
//! ```text
//! use tungstenite::{connect, Message, WebSocket, stream::MaybeTlsStream};
//!
//! let (mut socket, response): (WebSocket<MaybeTlsStream<TcpStream>>, _) = connect("wss://example.com/feed")?;
//! socket.send(Message::Text("hello".into()))?;
//! loop {
//!     println!("{}", socket.read()?);
//! }
//! ```
//!
//! becomes
//!
//! ```no_run
//! # #[cfg(all(feature = "blocking", feature = "url-connect"))]
//! # fn main() -> Result<(), sinews::Error> {
//! # // Needs a server with a certificate, so this example is not run.
//! use sinews::Message;
//! use sinews::blocking::{Stream, WebSocket, connect};
//!
//! let (mut socket, response): (WebSocket<Stream>, _) = connect("wss://example.com/feed").open()?;
//! socket.send(Message::Text("hello".into()))?;
//! for message in &mut socket {
//!     println!("{}", message?);
//! }
//! # drop(response);
//! # Ok(())
//! # }
//! # #[cfg(not(all(feature = "blocking", feature = "url-connect")))]
//! # fn main() {}
//! ```
//!
//! # Functions and methods
//!
//! | tungstenite | `sinews::blocking` |
//! |---|---|
//! | `connect(url)?` | `connect(url).open()?`, with the same pair of WebSocket and response; a `url::Url` is a URL too |
//! | `connect(request)?` with headers | `connect(url).header(name, value).open()?`, `subprotocol(name)` |
//! | `connect_with_config(url, config, max_redirects)` | `connect(url).config(config).open()`; redirects are not followed |
//! | `client(request, stream)?` | `connect(url).over(stream).open()?` |
//! | `client_tls(request, tcp)?`, `client_tls_with_config` | `connect(url).over_tls(tcp).open()?`, with `tls(config)` |
//! | `accept(stream)?`, `accept_hdr(stream, callback)?` | `accept(stream).open()?`, `accept(stream).on_request(callback).open()?`; `open` also returns the request |
//! | `WebSocket::from_raw_socket(stream, role, config)` | `WebSocket::from_negotiated(stream, `[`Negotiated::websocket`](crate::Negotiated::websocket)`(role), Arc::default(), &[])` |
//! | `socket.read()?` | `socket.next()`, of `Iterator`: `Some(Ok(message))`, `Some(Err(error))`, and `None` in place of `Error::ConnectionClosed`. In a loop: `let Some(message) = socket.next() else { break };` |
//! | `socket.send(message)?` | the same, except for when it leaves: see `sinews::blocking` |
//! | `socket.write(message)?`, `socket.flush()?` | `feed(message)?`, `flush()?` |
//! | `socket.close(None)?`, then `read` until the end | `socket.close(CloseCode::NORMAL, "")?`, which waits for the end: with a peer that never answers, forever, unless [a read times out](#differences-in-behavior) |
//! | `socket.close(None)?` alone | `socket.start_close(CloseCode::NORMAL, "")?`, then `socket.flush()?` |
//! | `socket.get_ref()`, `get_mut()`, `get_config()` | `get_ref()`, `get_mut()`, `config()` |
//! | `can_read()`, `can_write()` | `closed().is_none()` |
//! | answers to `Message::Ping` | sent automatically; your own pongs do no harm |
//! | `read_message`, `write_message`, `write_pending` of old versions | `next`, `send`, `flush` |
//!
//! # Types
//!
//! | tungstenite | here |
//! |---|---|
//! | `WebSocket<MaybeTlsStream<TcpStream>>` | `blocking::WebSocket<blocking::Stream>`: TCP, rustls or native-tls, by the URL |
//! | `match socket.get_ref() { MaybeTlsStream::Plain(tcp) => .., Rustls(tls) => .. }` | `socket.get_ref().tcp()` is the `TcpStream` of each variant, for timeouts |
//! | `tcp.set_nonblocking(true)`, and `Error::Io` of the kind `WouldBlock` | the same: [`is_fatal`](crate::Error::is_fatal) is false |
//! | `handshake::client::Response`, an `http::Response` | `sinews::client::Response`: `status()`, `headers()`, `body()` |
//! | `Message`, `CloseFrame`, `CloseCode`, `Utf8Bytes` | see [that table](super::tungstenite#types) |
//! | `WebSocketConfig` | [`Config`](crate::Config): see [that table](super::tungstenite#websocketconfig) |
//! | `Error`, `HandshakeError` | [`Error`](crate::Error), for `?` from `open`, `next` and `send`; see [that table](super::tungstenite#errors), also for your own error types |
//!
//! # Differences in behavior
//!
//! * **Set a read timeout on the socket.** Keepalive and timeouts are executed after each read, and a read without a
//!   timeout waits forever: see the section "Time" of `sinews::blocking`. An expired read timeout is an error that is
//!   not fatal, so the loop continues:
//!
//! ```
//! # #[cfg(all(feature = "blocking", feature = "url-connect"))]
//! # fn receive(mut socket: sinews::blocking::WebSocket<sinews::blocking::Stream>) -> Result<(), sinews::Error> {
//! use std::time::Duration;
//!
//! socket.get_ref().tcp().set_read_timeout(Some(Duration::from_secs(1)))?;
//! for message in &mut socket {
//!     match message {
//!         Ok(message) => println!("{message}"),
//!         Err(error) if !error.is_fatal() => {} // no message for a second; a ping may have left
//!         Err(error) => return Err(error),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! * **The handshake has a timeout**, also for TLS: 20 s for `connect` ([`Connect::timeout`](crate::Connect::timeout)).
//! * **`TCP_NODELAY` is on** for sockets that `connect` opens; `nodelay` is a setting on the runtimes.
//! * **Proxies and redirects** need a runtime.
