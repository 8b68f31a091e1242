//! WebSocket without a runtime: over any [`std::io::Read`] and [`std::io::Write`], for scripts, tests and programs
//! with a thread for each connection.
//!
//! ```
//! use std::net::{Shutdown, TcpListener};
//! use std::thread;
//!
//! use sinews::{CloseCode, Message, blocking};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let address = listener.local_addr()?;
//! let server = thread::spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//!     let (stream, peer) = listener.accept()?;
//!     let (mut ws, request) = blocking::accept(stream).peer(peer).open()?;
//!     assert_eq!(request.path(), "/echo");
//!     while let Some(message) = ws.next() {
//!         let message = message?;
//!         if message.is_data() {
//!             ws.send(message)?;
//!         }
//!     }
//!     Ok(())
//! });
//!
//! let stream = std::net::TcpStream::connect(address)?;
//! let (mut ws, _) = blocking::connect("ws://localhost/echo")
//!     .over(stream)
//!     .open()?;
//! ws.send("hello")?;
//! assert_eq!(ws.next().transpose()?, Some(Message::text("hello")));
//! ws.close(CloseCode::NORMAL, "")?;
//! # server.join().expect("no panic").map_err(|error| error.to_string())?;
//! # Ok(())
//! # }
//! ```
//!
//! With the feature `url-connect`, [`connect`] opens the socket of a URL itself; for `wss` see [TLS](#tls).
//!
//! # When queued bytes leave
//!
//! | bytes | leave |
//! |---|---|
//! | [`send`](WebSocket::send), when all received messages are read | at once |
//! | [`send`](WebSocket::send), amid messages received together | with the reply to the last of them |
//! | [`feed`](WebSocket::feed), [`try_send`](WebSocket::try_send), [`start_close`](WebSocket::start_close) | with the next `flush` or `send`, or before the next read |
//! | the reply to a ping, or to a Close | before the next message is returned, if that arrived later; at the latest before the next read |
//!
//! No read begins while bytes are queued that the stream still accepts.
//!
//! # Time
//!
//! A thread that is blocked in a read or a write can do nothing else. Pings ([`Config::ping_interval`]) and timeouts
//! (`pong_timeout`, `idle_timeout`, `write_timeout`, `close_timeout`) are executed after each read, whether it
//! returned bytes or timed out; `write_timeout` also after a write that timed out. **A stream without a timeout waits
//! forever, sends no ping meanwhile, and does not detect that its peer is gone.** So, wherever the peer is not your
//! own test:
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! # let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
//! # let stream = std::net::TcpStream::connect(listener.local_addr()?)?;
//! use std::time::Duration;
//!
//! stream.set_read_timeout(Some(Duration::from_secs(1)))?;
//! stream.set_write_timeout(Some(Duration::from_secs(1)))?;
//! # Ok(())
//! # }
//! ```
//!
//! A second is short compared with the timeouts above, and costs one system call a second. Set both: after a write
//! that timed out, [`next`](Iterator::next) reads, since the peer may be waiting for just that.
//!
//! A read that times out, or that finds no bytes on a nonblocking stream, returns [`Error::Io`] of the kind
//! [`WouldBlock`](std::io::ErrorKind::WouldBlock), regardless of the system's own error. Nothing is lost, not even in
//! the middle of a frame, and the next call continues where this one stopped:
//!
//! ```
//! # use sinews::{Error, Message, blocking::WebSocket};
//! # fn listen<S: std::io::Read + std::io::Write>(ws: &mut WebSocket<S>) -> Result<(), Error> {
//! while let Some(message) = ws.next() {
//!     match message {
//!         Ok(message) => println!("{message:?}"),
//!         // No input for a second; a ping may have left. Time for other work.
//!         Err(error) if !error.is_fatal() => continue,
//!         Err(error) => return Err(error),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A thread that only sends does not read input, including pings and a Close, and sends no pings, since reading could
//! block: call `next` as well.
//!
//! # One thread
//!
//! Unlike on the runtimes, there are no halves: a `Read + Write` stream has no sides, and the thread that is blocked
//! in a read holds the connection. A thread that both sends and receives sets a read timeout, and sends the messages
//! of a queue of its own whenever [`next`](Iterator::next) returns [`WouldBlock`](std::io::ErrorKind::WouldBlock).
//! Where that is too slow, use a runtime: `WebSocket::split` of Tokio and compio.
//!
//! # TLS
//!
//! With the feature `rustls-native-roots` or `rustls-webpki-roots`, or with `native-tls`, [`connect`] opens `wss` URLs
//! too. The WebSocket has the same type for `ws` and `wss`: `WebSocket<Stream>`.
//!
//! ```no_run
//! # #[cfg(feature = "url-connect")]
//! # fn main() -> Result<(), sinews::Error> {
//! // Needs a server with a certificate, so this example is not run.
//! use std::time::Duration;
//!
//! use sinews::blocking::{Stream, WebSocket, connect};
//!
//! let (mut ws, _): (WebSocket<Stream>, _) = connect("wss://example.com/feed").open()?;
//! ws.get_ref().tcp().set_read_timeout(Some(Duration::from_secs(1)))?;
//! ws.send("hello")?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "url-connect"))]
//! # fn main() {}
//! ```
//!
//! `Connect::tls` takes your own configuration of rustls (feature `rustls`) or connector of native-tls. `over_tls` makes
//! TLS over a `TcpStream` of your own. A server, and a client with another TLS library, passes its TLS stream to
//! [`accept`] or [`over`](crate::Connect), and tells [`with_shutdown`](WebSocket::with_shutdown) how to end it:
//!
//! ```no_run
//! // Needs a certificate, so this example is not run.
//! # #[cfg(feature = "rustls")]
//! # fn serve(config: std::sync::Arc<rustls::ServerConfig>, tcp: std::net::TcpStream) -> Result<(), Box<dyn std::error::Error>> {
//! use std::io::Write as _;
//!
//! use rustls::{ServerConnection, StreamOwned};
//! use sinews::blocking;
//!
//! let stream = StreamOwned::new(ServerConnection::new(config)?, tcp);
//! let (mut ws, _) = blocking::accept(stream).open_with_shutdown(|tls| {
//!     tls.conn.send_close_notify();
//!     tls.flush()
//! })?;
//! ws.send("hello")?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Config::ping_interval`]: crate::Config::ping_interval
//! [`Error::Io`]: crate::Error::Io

mod accept;
mod connect;
mod driver;
#[cfg(feature = "url-connect")]
mod stream;
mod wait;
mod websocket;

pub use self::accept::accept;
pub use self::connect::{Blocking, connect};
#[cfg(feature = "url-connect")]
pub use self::stream::Stream;
pub use self::websocket::WebSocket;
