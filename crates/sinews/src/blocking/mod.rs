//! WebSocket without a runtime: over anything that is [`std::io::Read`] and [`std::io::Write`], for scripts, tests and
//! programs with a thread for each connection.
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
//! With the feature `url-connect`, [`connect`] opens the socket of a `ws` URL itself.
//!
//! # When what is queued leaves
//!
//! | what | leaves |
//! |---|---|
//! | [`send`](WebSocket::send), with nothing more to read among what came | at once |
//! | [`send`](WebSocket::send), amid messages that came together | with the last of the answers to them |
//! | [`feed`](WebSocket::feed), [`try_send`](WebSocket::try_send), [`start_close`](WebSocket::start_close) | with the next `flush` or `send`, or before the next read |
//! | the answer to a ping, or to a Close | before the message behind it is handed out, if that came later; at the latest before the next read |
//!
//! No read begins while anything is queued that the stream still takes.
//!
//! # Time
//!
//! A thread that is blocked in a read or a write can do nothing else. Pings ([`Config::ping_interval`]), and the ends
//! of waits (`pong_timeout`, `idle_timeout`, `write_timeout`, `close_timeout`) are carried out behind each read, whether
//! something came or it timed out; `write_timeout` also behind a write that timed out. **A stream without a timeout waits for ever, sends no ping meanwhile, and does
//! not notice that its peer has gone.** So, wherever the peer is not your own test:
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
//! A second is short beside the waits above, and costs one system call a second. Set both: after a write that timed
//! out, [`next`](Iterator::next) reads, since the peer may be waiting for just that.
//!
//! A read that times out, or that finds nothing on a stream which does not block, comes as [`Error::Io`] of the kind
//! [`WouldBlock`](std::io::ErrorKind::WouldBlock), however the system calls it. Nothing is lost, not in the middle of a
//! frame either, and the next call goes on where this one stood:
//!
//! ```
//! # use sinews::{Error, Message, blocking::WebSocket};
//! # fn listen<S: std::io::Read + std::io::Write>(ws: &mut WebSocket<S>) -> Result<(), Error> {
//! while let Some(message) = ws.next() {
//!     match message {
//!         Ok(message) => println!("{message:?}"),
//!         // Nothing came for a second; a ping may have left. Time for something else.
//!         Err(error) if !error.is_fatal() => continue,
//!         Err(error) => return Err(error),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Who only sends does not see what comes, pings and a Close among it, and sends no pings, since looking could block:
//! call `next` as well.
//!
//! # One thread
//!
//! There are no halves, as the runtimes have them: a `Read + Write` stream has no sides, and the thread that is blocked
//! in a read has the connection. A thread that sends as well as it receives sets a read timeout, and sends what others
//! have left in a queue of its own whenever [`next`](Iterator::next) gives
//! [`WouldBlock`](std::io::ErrorKind::WouldBlock). Where that is too late, use a runtime:
//! `WebSocket::split` of Tokio and compio.
//!
//! # TLS
//!
//! For `wss`, make the TLS stream and go [`over`](crate::Connect) it; rustls, for instance:
//!
//! ```no_run
//! // Needs a server with a certificate, so that this is not run.
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::io::Write as _;
//! use std::net::TcpStream;
//! use std::sync::Arc;
//!
//! use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
//! use sinews::blocking;
//!
//! let roots = RootCertStore::empty(); // Fill it: with `rustls-native-certs`, or `webpki-roots`.
//! let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
//! let tls = ClientConnection::new(Arc::new(config), "example.com".try_into()?)?;
//! let stream = StreamOwned::new(tls, TcpStream::connect("example.com:443")?);
//! let (ws, _) = blocking::connect("wss://example.com/feed").over(stream).open()?;
//! let mut ws = ws.with_shutdown(|stream| {
//!     stream.conn.send_close_notify();
//!     stream.flush()
//! });
//! ws.send("hello")?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Config::ping_interval`]: crate::Config::ping_interval
//! [`Error::Io`]: crate::Error::Io

mod accept;
mod connect;
mod drive;
mod wait;
mod websocket;

pub use self::accept::accept;
pub use self::connect::{Blocking, connect};
pub use self::websocket::WebSocket;
