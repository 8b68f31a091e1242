//! Client WebSockets over HTTP/2 (RFC 8441), on Tokio: several on one connection.
//!
//! [`connect`] makes the connection: with the path, TLS and proxy settings of [`Connect`](crate::Connect), and with
//! `h2` by ALPN (`wss`) or by prior knowledge (`ws`). [`Http2Connection::open`] opens a WebSocket on a stream of it.
//! Each `open` begins with the settings of `connect` for the handshake: the headers and subprotocols of the connection
//! are sent with every `open`, before its own, and its compression, limits and timeout replace those of the connection.
//!
//! ```
//! # #[cfg(all(feature = "http2", feature = "url-connect"))]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use http_body_util::Full;
//! # use hyper::service::service_fn;
//! # use hyper_util::rt::{TokioExecutor, TokioIo};
//! # let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! # let address = listener.local_addr()?;
//! # let server = tokio::spawn(async move {
//! #     let (stream, _) = listener.accept().await?;
//! #     let answer = async |mut request: hyper::Request<hyper::body::Incoming>| {
//! #         let upgraded = sinews::hyper::upgrade(&mut request);
//! #         let (response, websocket): (hyper::Response<Full<sinews::Bytes>>, _) = upgraded?;
//! #         tokio::spawn(async move {
//! #             let mut websocket = websocket.await.expect("upgraded");
//! #             while let Some(Ok(message)) = websocket.next_data().await {
//! #                 websocket.send(message).await.expect("open");
//! #             }
//! #         });
//! #         Ok::<_, sinews::AcceptError>(response)
//! #     };
//! #     let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
//! #     server.enable_connect_protocol();
//! #     let served = server.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
//! #     served.map_err(std::io::Error::other)
//! # });
//! let connection = sinews::http2::connect(format!("ws://{address}")).await?;
//! let mut prices = connection.open("/prices").await?;
//! let mut news = connection.open("/news?topic=sports").header("x-trace", "7").await?;
//! prices.send("AAA").await?;
//! news.send("hello").await?;
//! assert_eq!(news.next().await.transpose()?, Some("hello".into()));
//! assert_eq!(prices.next().await.transpose()?, Some("AAA".into()));
//! # prices.close(sinews::CloseCode::NORMAL, "").await?;
//! # news.close(sinews::CloseCode::NORMAL, "").await?;
//! # drop((prices, news, connection));
//! # server.await??;
//! # Ok(())
//! # }
//! # #[cfg(not(all(feature = "http2", feature = "url-connect")))]
//! # fn main() {}
//! ```
//!
//! # Differences from a WebSocket over HTTP/1.1
//!
//! * **A task** of the connection moves bytes between the socket and the streams. It ends, and the socket with it, once
//!   all clones of the [`Http2Connection`] and all its WebSockets are dropped; if the server takes no more data, at most
//!   [`Config::close_timeout`](crate::Config::close_timeout) of the connection later.
//! * **Backpressure** is that of each stream: the server sends at most
//!   [`stream_window`](crate::Connect::stream_window) bytes to a WebSocket that is not read, and other WebSockets go
//!   on. Up to 64 KiB of outbound data per WebSocket is buffered, in addition to
//!   [`Config::max_outbound`](crate::Config::max_outbound). A WebSocket also sends within the window that the server
//!   gives the whole connection: if the server returns that window as its application reads, one WebSocket that the
//!   server does not read can stop the sends of all.
//! * **The server limits the streams** of a connection ([`Http2Connection::max_websockets`]). An `open` beyond the
//!   limit waits until a WebSocket closes, or until [`Connect::timeout`](crate::Connect::timeout).
//! * **A dropped WebSocket** resets its stream once what it wrote has left, after `close_timeout` at the latest. What it
//!   only queued ([`feed`](crate::WebSocket::feed)) is lost, as over HTTP/1.1. A dropped future of `open` resets its
//!   stream too, and leaves the connection as it was.
//! * **A lost connection** ends all its WebSockets. [`Http2Connection::is_closed`] says when an `open` needs a new one.
//! * **Redirects** are followed within the origin only: another origin needs a connection of its own.
//! * There is no 101: the [`Response`](crate::client::Response) of an accepted handshake has the status 200.

mod connection;
mod driver;
mod open;
mod payload;
mod stream;

pub use self::connection::{Http2, Http2Connection, connect};
pub use self::open::Http2Open;
pub use self::stream::{Http2ReadSide, Http2Stream, Http2WriteSide};
