//! A thread-per-core event loop over TCP sockets: chunks in, chains out.
//!
//! The loop moves bytes and knows nothing about them. What lives on it is an [`App`]; it is lent each chunk
//! that arrives, and gives its commands through [`Io`]. Each thread has a loop, an application and a listener
//! of its own, so nothing is shared on the way of a message; [`Post`] carries mail between threads.
//!
//! # A turn
//!
//! ```text
//!        ┌───────────────────────────────────────────────────────────────┐
//!        │ wait          one system call for all sockets, timers, mail   │
//!        ├───────────────────────────────────────────────────────────────┤
//!        │ deliver       recv ──▶ app.received(chunk) ──▶ io.send(conn)  │
//!        │               accept ──▶ app.accepted          only recorded  │
//!        │               app.mail(burst) · app.timer                     │
//!        ├───────────────────────────────────────────────────────────────┤
//!        │ carry out     close what is to be closed ──▶ app.closed       │
//!        │               app.start_send ──▶ one send ──▶ app.finish_send │
//!        └───────────────────────────────────────────────────────────────┘
//! ```
//!
//! * **One send per burst.** Callbacks only say that there is something to send. At the end of the turn
//!   each such connection is asked for everything it has, and that leaves in one system call: fifty answers
//!   to fifty small messages that came together cost one receive and one send.
//! * **Owned by one side at a time.** A received chunk is lent until the callback returns and lies in the
//!   loop's one buffer. A [`Chain`] enters a send by value and comes home by value, however the send ends.
//! * **Commands are only recorded.** Any callback may close, send on or pause any connection, itself
//!   included; nothing changes under its feet. Commands on a connection that has gone are ignored.
//! * **Backpressure is TCP's.** A paused connection leaves its bytes in the kernel; an idle connection owns
//!   no buffer.
//! * **Nothing ends the loop** but [`Io::stop`], or the last connection closing after
//!   [`Io::stop_accepting`]. Shortage of descriptors pauses accepting, and is logged once.
//!
//! # Life of a connection
//!
//! ```text
//! accepted ─▶ received* ─▶ ended? ─▶ closed          exactly one closed for each accepted
//! connect ─▶ connected? ─▶ the same                  and for each Io::connect
//!             start_send ─▶ progressed* ─▶ finish_send   for each chain, at most one at a time
//! ```
//!
//! # An echo server
//!
//! ```
//! use std::io::{Cursor, Read, Write};
//! use std::net::TcpStream;
//! use sinews_engine::{Accepted, App, Closed, Config, ConnId, Engine, Flow, Io, ListenOptions, Listener};
//!
//! /// One connection at a time, to keep it short: a real application keeps a queue for each.
//! #[derive(Default)]
//! struct Echo(Vec<u8>);
//!
//! impl App for Echo {
//!     type Chain = Cursor<Vec<u8>>;
//!     type Mail = ();
//!
//!     fn accepted(&mut self, io: &mut Io, _: ConnId, _: Accepted) {
//!         io.stop_accepting();
//!     }
//!     fn received(&mut self, io: &mut Io, conn: ConnId, chunk: &mut [u8]) -> Flow {
//!         self.0.extend_from_slice(chunk);
//!         io.send(conn);
//!         Flow::Continue
//!     }
//!     fn ended(&mut self, io: &mut Io, conn: ConnId) {
//!         io.shutdown(conn);
//!     }
//!     fn start_send(&mut self, _: ConnId) -> Option<Self::Chain> {
//!         (!self.0.is_empty()).then(|| Cursor::new(std::mem::take(&mut self.0)))
//!     }
//!     fn finish_send(&mut self, _: &mut Io, _: ConnId, _: Self::Chain, _: bool) {}
//!     fn closed(&mut self, _: &mut Io, _: ConnId, why: Closed) {
//!         assert!(matches!(why, Closed::Finished));
//!     }
//!     fn mail(&mut self, _: &mut Io, _: &mut Vec<()>) {}
//! }
//!
//! let listener = Listener::bind(([127, 0, 0, 1], 0).into(), &ListenOptions::default())?;
//! let address = listener.local_addr()?;
//! let client = std::thread::spawn(move || {
//!     let mut stream = TcpStream::connect(address)?;
//!     stream.write_all(b"hello")?;
//!     stream.shutdown(std::net::Shutdown::Write)?;
//!     let mut echo = String::new();
//!     stream.read_to_string(&mut echo)?;
//!     std::io::Result::Ok(echo)
//! });
//! let mut engine = Engine::<Echo>::new(Config::default(), vec![listener])?;
//! engine.run(&mut Echo::default())?; // until that connection has closed
//! assert_eq!(client.join().unwrap()?, "hello");
//! # std::io::Result::Ok(())
//! ```
//!
//! Connections are made by [`Io::connect`], from any callback; a loop that only connects begins in
//! [`App::started`]. The example `client` asks such an echo server.
//!
//! # Files
//!
//! An [`Append`] writes to an [`AppendFile`](sinews_file::AppendFile) of the crate `sinews-file`. On a ring it is an operation of
//! the loop.
//!
//! # Backends
//!
//! | | `io_uring` (Linux 6.7 or newer) | readiness: epoll, kqueue |
//! |---|---|---|
//! | system calls | one a turn | one a turn, one a receive, one a send |
//! | connections | places of the ring's own table | descriptors of the process |
//! | chunks | of 2 buffers, filled one after the other | the loop's one buffer |
//! | a turn receives | 256 KiB at most ([`Config::ring_buffers`]) | [`Config::receives_per_turn`] chunks a connection |
//!
//! [`BackendChoice::Auto`] takes `io_uring` where the system permits it. Both serve the same application: a
//! chunk is lent, a chain is handed over, and a connection closes when nothing of it is with the kernel.
//!
//! A ring belongs to a thread: an engine may be made anywhere, but all its turns are run by one thread, and
//! it is best dropped there. Elsewhere, or if the kernel does not let go within four seconds, it leaves the
//! memory of operations in flight to the kernel rather than free it.

#![deny(unsafe_code)]

#[cfg(not(unix))]
compile_error!("the engine runs on Unix: it relies on edges as epoll and kqueue report them");

mod app;
mod appending;
mod backend;
mod config;
mod connect;
mod cpu;
mod engine;
mod io;
mod listener;
mod mail;
mod poll;
#[cfg(target_os = "linux")]
mod ring;
mod shortage;
mod slots;
mod spare;
mod stats;
mod wheel;

pub use app::{Accepted, App, Chain, Closed, Flow, Large};
pub use appending::Append;
pub use backend::check_io_uring;
pub use config::{BackendChoice, Config, InvalidConfig, UnknownBackend};
pub use connect::{ConnectOptions, Remote};
pub use engine::Engine;
pub use io::Io;
pub use listener::{ListenOptions, Listener};
pub use mail::Post;
pub use slots::ConnId;
pub use spare::give_back_free_memory;
pub use stats::{Counter, Stats, Watch};
