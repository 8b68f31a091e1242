//! WebSocket for Tokio, axum, hyper and compio, or without a runtime; client and server (RFC 6455, RFC 7692, RFC 8441).
//!
//! What you can rely on has a table each: [when bytes leave](#when-bytes-leave),
//! [what a dropped future means](#cancel-safety), [how a connection ends](#how-a-connection-ends),
//! [who is at fault](#errors), [what is bounded, and by what](guide::limits). Those who come from another library find
//! it in [`guide::migration`].
//!
//! What it is not: a server with routes (that is axum's or hyper's part), a client that reconnects by itself (only the
//! application knows what to resume; a [`Connect`] can be cloned and awaited again), or a protocol on top of WebSocket.
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
//!     let mut ws = sinews::accept(stream).await?;
//!     while let Some(message) = ws.next().await {
//!         let message = message?;
//!         if message.is_data() {
//!             ws.send(message).await?; // the answers to what came together leave together
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
//! let closed = server.await??.expect("it is over");
//! assert_eq!(closed.reason(), "done");
//! # Ok(())
//! # }
//! # #[cfg(not(all(feature = "tokio", feature = "url-connect")))]
//! # fn main() {}
//! ```
//!
//! [`connect`] has a builder's methods (headers, subprotocols, deflate, proxies, redirects, TLS, time), and so has
//! [`accept`] (a callback that sees the request, origins, subprotocols, limits): await them as they are, or set things
//! before. `sinews::axum` is an extractor, `sinews::hyper` upgrades a request of hyper's, and `sinews::compio` has the
//! same on compio, with buffers that go down by value; `sinews::blocking` needs no runtime. What follows is said of
//! Tokio; where another differs, its module says so.
//!
//! # Features
//!
//! They only add: none changes what another one does.
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `tokio` | yes | [`WebSocket`] over anything that is `AsyncRead + AsyncWrite`, client and server |
//! | `deflate` | yes | permessage-deflate (RFC 7692). Off until asked for, as it costs more time than it saves where messages are small |
//! | `url-connect` | yes | `connect(url)`: names, addresses, proxies, redirects. Without it, connect over a stream of your own: `connect(url).over(stream)` |
//! | `rustls` | | `wss://` by rustls, with a configuration of your own; on Tokio with `tokio-rustls` |
//! | `tokio-rustls` | | `rustls` on Tokio: brings the crate of that name |
//! | `rustls-native-roots` | | the same, trusting the certificates of the operating system |
//! | `rustls-webpki-roots` | | the same, trusting Mozilla's, compiled in |
//! | `native-tls` | | `wss://` by the TLS library of the platform, on Tokio |
//! | `hyper` | | `sinews::hyper::upgrade` |
//! | `http2` | | the same for extended CONNECT over HTTP/2 (RFC 8441), also in axum |
//! | `axum` | | `sinews::axum::WebSocketUpgrade`, an extractor |
//! | `compio` | | `sinews::compio`: client and server on compio 0.19 |
//! | `blocking` | | `sinews::blocking`: client and server over `Read + Write`, without a runtime |
//!
//! # Ways to receive and to send
//!
//! | to | take |
//! |---|---|
//! | have messages of your own | [`next`](WebSocket::next): a [`Message`] shares its memory, a clone is a count |
//! | look at messages without a copy | [`next_borrowed`](WebSocket::next_borrowed) |
//! | have a message in your own memory, aligned if need be | [`recv_into`](WebSocket::recv_into); [`next_head`](WebSocket::next_head) tells the length before |
//! | read what is larger than memory | [`next_reader`](WebSocket::next_reader): piece by piece, or as an `AsyncRead` |
//! | send | [`send`](WebSocket::send); [`send_text`](WebSocket::send_text) and [`send_binary`](WebSocket::send_binary) for what is only lent |
//! | send several pieces as one message, without a copy | [`send_vectored`](WebSocket::send_vectored) |
//! | send memory of a type of your own, without a copy | [`Message::from_owner`] |
//! | send what is larger than memory | [`writer`](WebSocket::writer): piece by piece, or as an `AsyncWrite` |
//! | queue without waiting | [`try_send`](WebSocket::try_send) |
//! | queue what was framed once for many connections | [`publish`](WebSocket::publish) |
//! | receive and send on different tasks | [`split`](WebSocket::split), and `reunite` the halves; streams of your own by [`split_locked`](WebSocket::split_locked) |
//! | send from many tasks | a [`Sender`] for each ([`sender`](WebSocket::sender)): a bounded queue that whoever drives the connection empties |
//! | use it where a `Stream` and a `Sink` are wanted | it is both |
//!
//! # When bytes leave
//!
//! A connection has no task of its own: bytes move while one of its methods is being awaited, and then in both
//! directions. **While nothing of a connection is awaited, nothing moves**: no answer, no pong, no deadline.
//!
//! | what | leaves |
//! |---|---|
//! | [`send`](WebSocket::send), when all that came was looked at | at once: it returns when the transport has taken everything that was queued |
//! | [`send`](WebSocket::send), while messages that came together still wait to be read | with the answer to the last of them, in one write for all. It returns at once |
//! | the same, past [`high_water`](Config::high_water), or the second answer to one message and later ones, from 1 ms after the first | everything, before it returns |
//! | [`feed`](WebSocket::feed), [`try_send`](WebSocket::try_send), [`publish`](WebSocket::publish), [`start_close`](WebSocket::start_close) | with whatever comes first of the following |
//! | [`flush`](WebSocket::flush), [`close`](WebSocket::close) | everything, before they return |
//! | [`next`](WebSocket::next) and all that receives, when there is nothing to return | everything, before it waits |
//! | the same, amid messages that came together, from 1 ms after they came | everything. Looked at with the first message behind an answer, then with every 8th: a fast application should not pay for the clock |
//! | what a [`Sender`] was given | in one write with what else waits, while the connection is awaited in `next`, `send` or `flush` |
//! | `send` of the writing half of a [`split`](WebSocket::split) | at once: it does not know what the reader has still to read. `feed` and `flush` join |
//! | the answer to a ping | before `next` shows the ping; if messages that came with it still wait, with the answers to them |
//! | the answer to a Close | before `next` shows the Close |
//! | what [`writer`](WebSocket::writer) was given | past `high_water`, with its `flush`, or with the end of the message |
//!
//! So a loop of `next` and `send` answers fifty messages that came together in one write, without `feed` and `flush`;
//! and an answer never waits for something that may not come. One thing is yours: if you `send` amid a burst and then
//! wait for something else (a database, another connection), the answer waits with you: [`flush`](WebSocket::flush)
//! before that.
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
//!         ws.flush().await?; // more may have come together with this one
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
//! Who only receives gets pings answered, and what was queued leaves. Who only sends gets that too: at the latest every
//! second `send` or `flush`, if nobody has looked for 10 ms, takes what has come, answers pings and a Close, and keeps
//! the first text or binary message for `next`. Behind that it takes nothing more, since memory would have no bound:
//! receive as well where a peer sends more than pings. The halves of a split do the same: who holds the one need not
//! wait for the other.
//!
//! # Broadcasting
//!
//! One message for many connections is a [`Prepared`]: framed once, compressed once for each class of connections, shared
//! by count. Each connection is a task that waits for the next message of its peer and of the broadcast at the same
//! time, and never for a slow peer: [`publish`](WebSocket::publish) queues, and the `next` of the next turn sends.
//! What waits is bounded by [`Config::max_outbound`], where [`Config::overflow`] says what becomes of a consumer that is
//! too slow: the connection ends (the default, and both `publish` and `next` say so at once), the new message is
//! dropped, or the oldest.
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
//! let (prices, _) = tokio::sync::broadcast::channel::<Prepared>(16);
//! let mut news = prices.subscribe();
//! prices.send(Prepared::text("AAA 1.01"))?;
//! # drop(prices);
//! # let server = async move {
//! loop {
//!     tokio::select! {
//!         message = ws.next() => match message.transpose()? {
//!             Some(_) => {} // what the peer says
//!             None => break,
//!         },
//!         price = news.recv() => match price {
//!             Ok(price) => drop(ws.publish(&price)?),
//!             Err(_) => {
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
//! What is half done lives in the connection and never in a future. So any future may be dropped at any point, as
//! `select!` and timeouts do, and no byte is lost, doubled or sent in halves.
//!
//! | a dropped | means |
//! |---|---|
//! | `next`, `next_borrowed`, `next_reader`, `next_head` | nothing: the next call goes on |
//! | `recv_into` | nothing: call again with the same buffer, and it goes on behind what is there. On compio, where the buffer goes by value, that of a dropped call stays with the connection, and the next one copies from it |
//! | `MessageReader::next_chunk`, a read | nothing. A reader that is dropped passes over the rest of its message |
//! | `send`, `send_text`, `send_binary`, `send_vectored`, `feed` | the message is queued whole and leaves with the next call; or, if the call still waited for room, it is not sent at all |
//! | [`Sender::send`] | the message is queued, or not at all; the place in the line is lost |
//! | `flush` | the rest leaves with the next call |
//! | `MessageWriter::write` | up to 64 KiB: whole or not at all. Longer pieces: fragments of 64 KiB, some of them |
//! | `MessageWriter::finish` | the message has ended or is still open; a new [`writer`](WebSocket::writer) goes on with it |
//! | `close` | the Close is queued; call it again, or receive until `None` |
//! | [`accept`], [`connect`] | the handshake ends, and the stream is closed |
//! | `Sink` and `Stream` | as their contracts say; `poll_ready` reserves nothing |
//!
//! # How a connection ends
//!
//! | what happens | `next` gives | [`closed`](WebSocket::closed) has |
//! |---|---|---|
//! | the peer closes | [`Message::Close`], then `None` once the transport has ended | its code and reason, [`Cause::Peer`] |
//! | you close | messages that still come, the peer's `Message::Close`, then `None` | the peer's code and reason, [`Cause::Local`] |
//! | the peer breaks the protocol or a limit | [`Error::Closed`] once, then `None`. It was told by a Close with the code for that | [`Cause::Fault`] |
//! | a wait ends: nothing comes, no pong, nothing is taken, no end | [`Error::Closed`] once, then `None` | [`Cause::Expired`] |
//! | [`max_outbound`](Config::max_outbound) is reached under [`Overflow::Close`] | [`Error::Closed`] once, then `None` | [`Cause::Overflow`] |
//! | the transport ends without a Close | [`Error::Closed`], or [`Error::Io`] with what the system said; then `None` | [`Cause::Ended`] |
//!
//! * [`close`](WebSocket::close) does it all: it sends the Close behind what is queued, drops what still comes, and
//!   waits for the peer's Close and the end of the transport, at most [`close_timeout`](Config::close_timeout).
//! * [`close_now`](WebSocket::close_now) sends the Close and ends the sending side without waiting for the peer: for a
//!   shutdown with many connections, of which some peers are silent. Either half has it too and ends the other half: its
//!   `next` gives `None`, its `send` fails, and [`closed`](WebSocket::closed) has the code and reason of this end with
//!   [`Cause::Local`]. A server with 550 silent clients closes them in 0.1 to 0.4 s so, and in
//!   [`close_timeout`](Config::close_timeout) with `close` (`cargo run --release -p sinews --example shut_down`).
//! * [`start_close`](WebSocket::start_close) only queues the Close. Receive until `None` to have what the peer still
//!   says; or [`flush`](WebSocket::flush).
//! * Sending a [`Message::Close`] is `start_close`, and it leaves as any message does.
//! * Receive until `None`, also behind a `Message::Close`: the end of the transport belongs to it (RFC 6455 section
//!   7.1.1). A socket that is closed while the peer still sends is reset, and a reset can overtake the Close.
//! * Dropping a [`WebSocket`] drops the transport; what was queued and has not left is gone, and the peer sees 1006.
//!
//! # Errors
//!
//! Of an [`Error`], [`Closed`](Error::Closed) and [`Io`](Error::Io) mean that the connection is over,
//! [`Misuse`](Error::Misuse) that a call was not possible, with nothing sent and nothing lost.
//! [`at_fault`](Error::at_fault) tells who must act:
//!
//! | [`AtFault`] | when |
//! |---|---|
//! | [`Peer`](AtFault::Peer) | the protocol or a limit was broken, or the peer was too slow; [`close_code`](Error::close_code) is what it was told |
//! | [`Caller`](AtFault::Caller) | a ping over 125 bytes, a reason over 123, a message inside another, sending behind a Close of your own |
//! | [`Transport`](AtFault::Transport) | the network, or the end of the other program |
//! | [`Nobody`](AtFault::Nobody) | the peer closed in order while you were sending |
//!
//! Handshakes have errors of their own: [`ConnectError`] with the phase and the peer that failed, and with status,
//! headers and body of a refusal; [`AcceptError`] with what the client was told.
//!
//! # Memory and threads
//!
//! A connection that waits owns no buffer: what it receives into, sends from, gathers messages in and (de)compresses
//! with is borrowed from its thread while something is there, and goes back. [`guide::limits`] has the numbers.
//!
//! There is no task, and no lock for a message but in halves over TLS or by `split_locked`, and in halves that have a
//! [`Sender`] too. A
//! `WebSocket<S>` is `Send` where `S` is, and may move from thread to thread between two polls; what it borrows it
//! gives to the thread that it is polled on.
//!
//! # Policies
//!
//! * **Panics** are our bugs. No input and no misuse causes one.
//! * **Unsafe** code is forbidden in this crate.
//! * **Oldest compiler**: Rust 1.89. A newer one is a minor version, never a patch.
//! * **Features** only add, and the public API is compared with a list at each change.
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
#[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
mod handshake_error;
#[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
#[cfg_attr(
    not(any(feature = "tokio", feature = "compio")),
    allow(dead_code, reason = "`blocking` has no messages in pieces")
)]
mod link;
mod message;
#[cfg(any(feature = "tokio", feature = "compio"))]
mod reading;
#[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
mod resources;
#[cfg(any(feature = "tokio", feature = "compio"))]
mod sender;
#[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
pub mod server;
#[cfg(all(feature = "url-connect", any(feature = "tokio", feature = "compio", feature = "blocking")))]
#[cfg_attr(
    not(any(feature = "tokio", feature = "compio")),
    allow(dead_code, reason = "`blocking` makes no TLS")
)]
mod tls;
#[cfg(any(feature = "rustls", feature = "native-tls"))]
mod tls_info;

#[cfg(feature = "axum")]
pub mod axum;
#[cfg(feature = "blocking")]
pub mod blocking;
#[cfg(feature = "compio")]
pub mod compio;
#[cfg(feature = "hyper")]
pub mod hyper;
#[cfg(feature = "tokio")]
pub mod tokio;

#[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
pub use self::server::{AcceptError, OriginPolicy};
pub use bytes::Bytes;
pub use error::{AtFault, Error};
/// The crate of headers, URIs and status codes, in the version that this API speaks.
#[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
pub use http;
pub use message::{CloseFrame, Filled, Message, MessageHead, MessageRef};
#[cfg(any(feature = "tokio", feature = "compio"))]
pub use sender::{SendError, Sender};
#[cfg(feature = "deflate")]
pub use sinews_proto::deflate::{DeflateConfig, DeflateMode, InvalidDeflateConfig};
pub use sinews_proto::{
    CloseCode, Config, Expired, InvalidConfig, Kind, Misuse, Overflow, PeerMisbehaved, PingRate, Role,
};
pub use sinews_session::{Cause, Closed, Prepared, Sent};
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

/// The example of the README runs too.
#[cfg(all(doctest, feature = "tokio", feature = "url-connect"))]
#[doc = include_str!("../README.md")]
mod readme {}
