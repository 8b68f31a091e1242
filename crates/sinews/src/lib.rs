//! WebSocket for Tokio, axum, hyper and compio, or without a runtime; client and server (RFC 6455, RFC 7692, RFC 8441).
//!
//! Depend on the crate by path (`sinews = { path = "…/crates/sinews" }`) until the first release.
//!
//! Each guarantee has a table: [when bytes leave](#when-bytes-leave), [the effect of a dropped
//! future](#cancel-safety), [how a connection ends](#how-a-connection-ends), [which side is at fault](#errors),
//! [limits and their defaults](guide::limits). [`guide::migration`] maps the APIs of other libraries to this one.
//!
//! Out of scope are a server with routes (use axum, hyper or the crate `sinews-server`) and protocols on top of
//! WebSocket. A client that reconnects by itself is out of scope too: only the application knows the state to resume.
//! A [`Connect`] can be cloned and awaited again.
//!
//! # A server and a client
//!
//! ```
//! # #[cfg(all(feature = "tokio", feature = "url-connect"))]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! use sinews::{CloseCode, Message};
//! use tokio::net::TcpListener;
//!
//! let listener = TcpListener::bind("127.0.0.1:0").await?;
//! let address = listener.local_addr()?;
//!
//! let server = tokio::spawn(async move {
//!     let (stream, _) = listener.accept().await?;
//!     stream.set_nodelay(true)?; // otherwise a small message may wait for a delayed ACK: 40 ms on Linux
//!     let mut ws = sinews::accept(stream).await?;
//!     while let Some(message) = ws.next().await {
//!         let message = message?;
//!         if message.is_data() {
//!             ws.send(message).await?; // replies to messages received together leave in one write
//!         }
//!     }
//!     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(ws.closed().cloned())
//! });
//!
//! let mut ws = sinews::connect(format!("ws://{address}/echo")).await?;
//! ws.send("hello").await?;
//! assert_eq!(ws.next().await.transpose()?, Some(Message::text("hello")));
//! let closed = ws.close(CloseCode::NORMAL, "done").await?;
//! assert_eq!(closed.code(), Some(CloseCode::NORMAL));
//!
//! let closed = server.await??.expect("connection is closed");
//! assert_eq!(closed.reason(), "done");
//! # Ok(())
//! # }
//! # #[cfg(not(all(feature = "tokio", feature = "url-connect")))]
//! # fn main() {}
//! ```
//!
//! [`connect`] and [`accept`] return builders: set options, then await. [`connect`] has headers, subprotocols,
//! deflate, proxies, redirects, TLS and timeouts; [`accept`] has a request callback, origins, subprotocols and
//! limits. `sinews::axum` is an extractor, `sinews::hyper` upgrades a hyper request, `sinews::compio` is the same API
//! on compio with owned buffers, and `sinews::blocking` needs no runtime. This page describes Tokio; each module
//! states its differences.
//!
//! # Features
//!
//! Features are additive, with one exception: the default TLS of `wss://` (`Tls::new`). With `rustls-native-roots` or
//! `rustls-webpki-roots` it is rustls, even if `native-tls` is enabled; with both, both sets of roots are trusted. On
//! Tokio, rustls also needs `tokio-rustls`. Without it, `native-tls` serves `wss://`; without both, the connect fails
//! with `TlsError::Unavailable`. Cargo unifies the features of a program: pass `Connect::tls` to fix the library and
//! its roots.
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `tokio` | yes | [`WebSocket`] over anything that is `AsyncRead + AsyncWrite`, client and server |
//! | `deflate` | yes | permessage-deflate (RFC 7692). Disabled until configured: for small messages it costs more time than it saves |
//! | `url-connect` | yes | `connect(url)`: name resolution, TCP, proxies, redirects. Without it, connect over your own stream: `connect(url).over(stream)` |
//! | `rustls` | | `wss://` by rustls on compio and blocking, with your own configuration; on Tokio use `tokio-rustls` |
//! | `tokio-rustls` | | `rustls` on Tokio: adds the `tokio-rustls` crate |
//! | `rustls-native-roots` | | `rustls`, trusting the certificates of the operating system |
//! | `rustls-webpki-roots` | | `rustls`, trusting Mozilla's certificates, compiled in |
//! | `native-tls` | | `wss://` by the TLS library of the platform, on Tokio and blocking |
//! | `hyper` | | `sinews::hyper::upgrade` |
//! | `http2` | | `hyper` with extended CONNECT over HTTP/2 (RFC 8441), also for axum |
//! | `http2-client` | | `sinews::http2`: several client WebSockets on one connection of HTTP/2, on Tokio |
//! | `axum` | | `sinews::axum::WebSocketUpgrade`, an extractor |
//! | `compio` | | `sinews::compio`: client and server on compio 0.19 |
//! | `blocking` | | `sinews::blocking`: client and server over `Read + Write`, without a runtime |
//!
//! # Ways to receive and to send
//!
//! | task | method |
//! |---|---|
//! | receive owned messages | [`next`](WebSocket::next): a [`Message`] is reference-counted and cheap to clone |
//! | inspect messages without a copy | [`next_borrowed`](WebSocket::next_borrowed) |
//! | receive into your own memory, aligned if needed | [`recv_into`](WebSocket::recv_into); [`next_head`](WebSocket::next_head) returns the length first |
//! | receive a message larger than memory | [`next_reader`](WebSocket::next_reader): in chunks, or as an `AsyncRead` |
//! | send | [`send`](WebSocket::send); [`send_text`](WebSocket::send_text) and [`send_binary`](WebSocket::send_binary) for borrowed payloads |
//! | send several buffers as one message, without a copy | [`send_vectored`](WebSocket::send_vectored) |
//! | send memory of your own type, without a copy | [`Message::from_owner`] |
//! | send a message larger than memory | [`writer`](WebSocket::writer): in chunks, or as an `AsyncWrite` |
//! | queue without waiting | [`try_send`](WebSocket::try_send) |
//! | queue a message that is framed once for many connections | [`publish`](WebSocket::publish), [`Sender::publish`] |
//! | receive and send on different tasks | [`split`](WebSocket::split), and `reunite` the halves; for your own streams [`split_locked`](WebSocket::split_locked) |
//! | send from many tasks | a [`Sender`] for each ([`sender`](WebSocket::sender)): a bounded queue, emptied by the task that drives the connection |
//! | use a `Stream` and a `Sink` | `WebSocket` implements both |
//!
//! # When bytes leave
//!
//! A connection has no task of its own, except one of HTTP/2 (`sinews::http2`), whose task sends what its WebSockets
//! have written. Bytes move while one of its methods is awaited, and then in both directions.
//! **While no method of a connection is awaited, nothing moves**: no reply and no pong leaves, and no timeout expires.
//!
//! A *burst* in this table is the messages that one receive returned together.
//!
//! | source | bytes that leave, and when |
//! |---|---|
//! | [`send`](WebSocket::send), when all received messages are read | at once: it returns when the transport has taken everything that was queued |
//! | [`send`](WebSocket::send), while messages of a burst are unread | with the reply to the last of them, in one write for all. `send` returns as soon as the message is queued |
//! | the same, if the queue exceeds [`high_water`](Config::high_water), or for further replies to one message from 1 ms after its first reply | everything, before it returns |
//! | [`feed`](WebSocket::feed), [`try_send`](WebSocket::try_send), [`publish`](WebSocket::publish), [`start_close`](WebSocket::start_close) | with the next `send`, `flush`, `close` or receive method, by the rows of this table |
//! | [`flush`](WebSocket::flush), [`close`](WebSocket::close) | everything, before they return |
//! | [`next`](WebSocket::next) and every other receive method, when no message is available | everything, before it waits |
//! | the same, inside a burst, from 1 ms after its arrival | everything. The time is checked with the first message after a reply, then with every 8th: reading the clock per message would slow a fast application |
//! | messages of a [`Sender`] | in one write with the other queued messages, while the connection is awaited in `next`, `send` or `flush` |
//! | `send` of the writing half of a [`split`](WebSocket::split) | at once: the half does not know the unread input of the reader. Use `feed` and `flush` to coalesce |
//! | the pong for a ping | before `next` returns the ping; if messages of the burst are unread, with the replies to them |
//! | the reply to a Close | before `next` returns the Close |
//! | data of a [`writer`](WebSocket::writer) | past `high_water`, with its `flush`, or with the end of the message |
//!
//! So a loop of `next` and `send` replies to a burst of fifty messages in one write, without `feed` and `flush`. A
//! reply never waits for input that may not arrive. One case needs care: if you `send` inside a burst and then await
//! something else (a database, another connection), the reply waits too. Call [`flush`](WebSocket::flush) first.
//!
//! ```
//! # #[cfg(feature = "tokio")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # async fn slow_query(_: &str) -> String { String::new() }
//! # use std::sync::Arc;
//! # use sinews::{Message, WebSocket};
//! # let agreed = sinews_testkit::negotiate(None, None);
//! # let (near, far) = tokio::io::duplex(4096);
//! # let mut ws = WebSocket::from_negotiated(near, agreed.server, Arc::default(), &[]);
//! # let mut client = WebSocket::from_negotiated(far, agreed.client, Arc::default(), &[]);
//! # client.feed("a").await?;
//! # client.feed("b").await?;
//! # client.start_close(sinews::CloseCode::NORMAL, "")?;
//! # client.flush().await?;
//! while let Some(message) = ws.next().await {
//!     if let Message::Text(query) = message? {
//!         ws.send("working on it").await?;
//!         ws.flush().await?; // further messages may have arrived together with this one
//!         ws.send(slow_query(&query).await).await?;
//!     }
//! }
//! # for expected in ["working on it", "", "working on it", ""] {
//! #     assert_eq!(client.next().await.transpose()?, Some(Message::text(expected)));
//! # }
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "tokio"))]
//! # fn main() {}
//! ```
//!
//! A task that only receives also answers pings and sends queued messages. A task that only sends also receives: if no
//! input was read for 10 ms, one of the next two calls of `send` or `flush` reads input. It answers pings and a Close,
//! and stores the first text or binary message for `next`. It reads nothing after that message, since memory would be
//! unbounded: call `next` too if a peer sends more than pings. The halves of a split behave the same: neither half
//! depends on the other to make progress.
//!
//! # Broadcasting
//!
//! A [`Prepared`] is one message for many connections. It is reference-counted, framed once, and compressed once for
//! all connections with the same compression parameters. Each connection is a task that waits at the same time for a
//! message of its peer and for a message of the broadcast. It never waits for a slow peer:
//! [`publish`](WebSocket::publish) queues, and the next call of `next` sends. [`Config::max_outbound`] bounds the
//! queue, and [`Config::overflow`] sets the action for a slow consumer: close the connection, drop the new message, or
//! drop the oldest. Closing is the default; both `publish` and `next` report it at once.
//!
//! ```
//! # #[cfg(feature = "tokio")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use std::sync::Arc;
//! # use sinews::{Message, Prepared, WebSocket};
//! # let agreed = sinews_testkit::negotiate(None, None);
//! # let (near, far) = tokio::io::duplex(4096);
//! # let mut ws = WebSocket::from_negotiated(near, agreed.server, Arc::default(), &[]);
//! # let mut client = WebSocket::from_negotiated(far, agreed.client, Arc::default(), &[]);
//! use tokio::sync::broadcast::{channel, error::RecvError};
//!
//! let (prices, _) = channel::<Prepared>(16);
//! let mut news = prices.subscribe();
//! prices.send(Prepared::text("AAA 1.01"))?;
//! # drop(prices);
//! # let server = async move {
//! loop {
//!     tokio::select! {
//!         message = ws.next() => match message.transpose()? {
//!             Some(_) => {} // a message of the peer
//!             None => break,
//!         },
//!         price = news.recv() => match price {
//!             Ok(price) => _ = ws.publish(&price)?, // backpressure: `overflow` decides
//!             Err(RecvError::Lagged(_)) => {} // beyond the channel's capacity: continue with the oldest retained price
//!             Err(RecvError::Closed) => {
//!                 ws.close(sinews::CloseCode::GOING_AWAY, "no more prices").await?;
//!                 break;
//!             }
//!         },
//!     }
//! }
//! # Ok::<(), sinews::Error>(())
//! # };
//! # let client = async move {
//! #     assert_eq!(client.next_data().await.transpose()?, Some(Message::text("AAA 1.01")));
//! #     drop(client.close(sinews::CloseCode::NORMAL, "").await?);
//! #     Ok::<(), sinews::Error>(())
//! # };
//! # let (served, heard) = tokio::join!(server, client);
//! # served?;
//! # heard?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "tokio"))]
//! # fn main() {}
//! ```
//!
//! # Cancel-safety
//!
//! Partial progress is stored in the connection and never in a future. So a future may be dropped at any point, as
//! `select!` and timeouts do. No byte is lost or duplicated, and no message is truncated, with the two exceptions of
//! `MessageWriter` in this table.
//!
//! | dropped future | effect |
//! |---|---|
//! | `next`, `next_borrowed`, `next_reader`, `next_head` | none: the next call continues |
//! | `recv_into` | none: call again with the same buffer, and it continues after the bytes already received. On compio, where the buffer is passed by value, the connection keeps the buffer of a dropped call, and the next call copies from it |
//! | `MessageReader::next_chunk`, a read | none. A dropped reader skips the rest of its message |
//! | `send`, `send_text`, `send_binary`, `send_vectored`, `feed` | the message is queued whole and leaves with the next call; or, if the call still waited for capacity, it is not sent at all |
//! | [`Sender::send`] | the message is not queued, and is dropped with the future; the position in the queue is lost |
//! | `flush` | the rest leaves with the next call |
//! | `MessageWriter::write` | a chunk of up to 64 KiB is queued whole or not at all. Of a longer chunk, some of its 64 KiB fragments are queued |
//! | `MessageWriter::finish` | if [`is_mid_message`](WebSocket::is_mid_message) returns `true`, the message is open, and a new [`writer`](WebSocket::writer) continues it. If it returns `false` after at least one chunk, the end is queued. For a message without chunks, `false` does not tell whether the empty message is queued: use the shutdown of the writer, which is cancel-safe |
//! | `close` | the Close is queued; call it again, or receive until `None` |
//! | [`accept`], [`connect`] | the handshake is aborted, and the stream is closed |
//! | `Sink` and `Stream` | as documented for these traits; `poll_ready` reserves no capacity. If the queue is full, `start_send` returns [`Misuse::QueueFull`], or applies [`Overflow::Close`] |
//!
//! # How a connection ends
//!
//! | event | `next` returns | [`closed`](WebSocket::closed) has |
//! |---|---|---|
//! | the peer closes | [`Message::Close`], then `None` once the transport has ended, or at once with [`end_at_close`](Config::end_at_close) | its code and reason, [`Cause::Peer`] |
//! | you close | messages that still arrive, the peer's `Message::Close`, then `None` | the peer's code and reason, [`Cause::Local`] |
//! | the peer violates the protocol or a limit | [`Error::Closed`] once, then `None`. The peer gets a Close with the matching code | [`Cause::Fault`] |
//! | a timeout expires: no input, no pong, no write progress, or no end of the transport | [`Error::Closed`] once, then `None` | [`Cause::Expired`] |
//! | [`max_outbound`](Config::max_outbound) is reached under [`Overflow::Close`] | [`Error::Closed`] once, then `None` | [`Cause::Overflow`] |
//! | the transport ends without a Close | [`Error::Closed`], or [`Error::Io`] with the error of the system; then `None` | [`Cause::Ended`] |
//!
//! * [`close`](WebSocket::close) does the whole closing handshake. It sends the Close after the queued messages, and
//!   drops messages that still arrive. Then it waits for the peer's Close and the end of the transport, at most
//!   [`close_timeout`](Config::close_timeout).
//! * [`close_now`](WebSocket::close_now) sends the Close and shuts down the sending side without waiting for the peer.
//!   It is for a shutdown with many connections, if some peers are silent. Either half of a split has this method and
//!   ends the other half: its `next` returns `None`, its `send` fails, and [`closed`](WebSocket::closed) has the code
//!   and reason of this end with [`Cause::Local`]. A server with 550 silent clients closes them in 0.1 to 0.4 s this
//!   way, and in [`close_timeout`](Config::close_timeout) with `close` (`cargo run --release -p sinews --example
//!   shut_down`).
//! * [`start_close`](WebSocket::start_close) only queues the Close. Receive until `None` to get the remaining
//!   messages of the peer; or call [`flush`](WebSocket::flush).
//! * Sending a [`Message::Close`] is the same as `start_close`; the Close leaves as any message does.
//! * Receive until `None`, also after a `Message::Close`: the closing handshake includes the end of the transport (RFC
//!   6455 section 7.1.1). A socket that is closed while the peer still sends is reset, and a reset can overtake the
//!   Close.
//! * A peer that keeps the transport open delays that `None` for up to [`close_timeout`](Config::close_timeout), and so the
//!   code behind a receive loop. [`Config::with_end_at_close`] ends the connection once both Closes are exchanged; or
//!   leave the loop at `Message::Close`, whose reply has left by then.
//! * Dropping a [`WebSocket`] drops the transport; queued bytes that have not left are lost, and the peer sees 1006.
//!
//! # Errors
//!
//! The variants [`Closed`](Error::Closed) and [`Io`](Error::Io) of [`Error`] mean that the connection has ended.
//! [`Misuse`](Error::Misuse) means that a call was invalid: no data was sent and no data was lost.
//! [`at_fault`](Error::at_fault) names the side that must act:
//!
//! | [`AtFault`] | when |
//! |---|---|
//! | [`Peer`](AtFault::Peer) | the peer violated the protocol or a limit, or was too slow; [`close_code`](Error::close_code) is the code sent to it |
//! | [`Caller`](AtFault::Caller) | a ping over 125 bytes, a reason over 123, a message inside another, sending after your own Close |
//! | [`Transport`](AtFault::Transport) | the network failed, or the peer's process ended |
//! | [`Nobody`](AtFault::Nobody) | the peer sent a Close while you were sending, with any code. 1002, 1007 or 1009 may mean that this side is at fault: [`Closed`] has the code |
//!
//! Handshakes have their own errors, which `?` converts into [`Error`]. [`ConnectError`] has the phase and the peer that failed, and for a rejection the
//! status, headers and body. [`AcceptError::status`] is the status that the client got; with the feature `hyper`, `AcceptError::to_response` makes
//! the response.
//!
//! # Memory and threads
//!
//! An idle connection owns no buffer. A connection of HTTP/2 has buffers, which its WebSockets share. While data is in
//! flight, a connection borrows memory of the thread to receive, send, assemble and (de)compress messages.
//! [`guide::limits`] has the numbers.
//!
//! There is no background task, except the one of a connection of HTTP/2 (`sinews::http2`). Messages take no lock,
//! except in halves over TLS, in halves by `split_locked`, in halves with a [`Sender`], and over HTTP/2. A
//! `WebSocket<S>` is `Send` where `S` is, and may move from thread to thread between two polls; it returns buffers to
//! the thread that polls it.
//!
//! # Policies
//!
//! * **Panics** are bugs. No input of a peer and no misuse of the API causes a panic. The runtime is a condition: Tokio
//!   panics if a connection needs its timers or its sockets and the runtime was built without `enable_time` or
//!   `enable_io`; `#[tokio::main]` and `enable_all` have both.
//! * **Unsafe** code is forbidden in this crate.
//! * **Oldest compiler**: Rust 1.89. Raising it is a minor version, never a patch.
//! * **Features** are additive ([one exception](#features)), and the public API is compared with a list at each change.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
#[cfg_attr(
    not(any(feature = "tokio", feature = "compio")),
    allow(dead_code, reason = "`blocking` takes no proxy and follows no redirect")
)]
pub mod client;
#[cfg(any(feature = "tokio", feature = "compio"))]
mod driver;
mod error;
pub mod guide;
#[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
mod handshake_error;
#[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
#[cfg_attr(
    not(any(feature = "tokio", feature = "compio")),
    allow(dead_code, reason = "`blocking` has no messages in pieces")
)]
mod link;
mod message;
#[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
mod methods;
#[cfg(any(feature = "tokio", feature = "compio"))]
mod reading;
#[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
mod resources;
#[cfg(any(feature = "tokio", feature = "compio"))]
mod sender;
#[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
pub mod server;
#[cfg(all(feature = "url-connect", any(feature = "tokio", feature = "compio", feature = "blocking")))]
mod tls;
#[cfg(any(feature = "rustls", feature = "native-tls"))]
mod tls_info;

#[cfg(feature = "axum")]
pub mod axum;
#[cfg(feature = "blocking")]
pub mod blocking;
#[cfg(feature = "compio")]
pub mod compio;
#[cfg(feature = "http2-client")]
pub mod http2;
#[cfg(feature = "hyper")]
pub mod hyper;
#[cfg(feature = "tokio")]
pub mod tokio;

#[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
pub use self::server::{AcceptError, OriginPolicy};
pub use bytes::Bytes;
pub use error::{AtFault, Error, Result};
/// The `http` crate (headers, URIs, status codes), in the version that this API uses.
#[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
pub use http;
pub use message::{CloseFrame, Filled, Message, MessageHead, MessageRef};
#[cfg(any(feature = "tokio", feature = "compio"))]
pub use sender::{SendError, Sender};
#[cfg(feature = "deflate")]
#[doc(inline)]
pub use sinews_proto::deflate::{DeflateConfig, DeflateMode, InvalidDeflateConfig};
#[doc(inline)]
pub use sinews_proto::{
    CloseCode, Config, Expired, InvalidCloseCode, InvalidConfig, Kind, Misuse, Negotiated, Overflow,
    PeerMisbehaved, PingRate, Role,
};
#[doc(inline)]
pub use sinews_session::{Cause, Closed, Prepared, Sent};
#[doc(inline)]
pub use sinews_simd::{Utf8Bytes, Utf8Error};

#[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
pub use client::{Connect, ConnectError};
#[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
pub use handshake_error::HandshakeError;
#[cfg(all(feature = "url-connect", any(feature = "tokio", feature = "compio", feature = "blocking")))]
pub use tls::Tls;
#[cfg(any(feature = "rustls", feature = "native-tls"))]
pub use tls_info::{TlsInfo, TlsTransport};

#[cfg(feature = "tokio")]
pub use self::tokio::{WebSocket, accept, connect};

/// Runs the example of the README as a doctest.
#[cfg(all(doctest, feature = "tokio", feature = "url-connect"))]
#[doc = include_str!("../README.md")]
mod readme {}
