//! A thread-per-core event loop over TCP sockets: chunks in, chains out.
//!
//! The loop moves bytes without interpreting them. An [`App`] runs on the loop: it borrows each received chunk and
//! issues commands through [`Io`]. Each thread has its own loop, its own application and its own listener, so a
//! message's path shares no state. [`Post`] carries mail between threads.
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
//!        │ execute       close listed connections   ──▶ app.closed       │
//!        │               app.start_send ──▶ one send ──▶ app.finish_send │
//!        └───────────────────────────────────────────────────────────────┘
//! ```
//!
//! * **One send per burst.** Callbacks only record that a connection has bytes to send. At the end of the turn the
//!   loop asks each such connection for all queued bytes and sends them in one system call: fifty answers
//!   to a burst of fifty small messages cost one receive and one send.
//! * **One send per subscriber.** [`Io::broadcast`] sends the same bytes to many connections, without a chain each.
//! * **One owner at a time.** A received chunk is borrowed until the callback returns and lies in the
//!   loop's single buffer. A [`SendChain`] moves into a send by value and back by value, regardless of the result.
//! * **Commands are recorded.** Any callback may close, send on or pause any connection, including its own; no
//!   state changes during the callback. Commands on closed connections are ignored.
//! * **Backpressure is TCP's.** The bytes of a paused connection stay in the kernel; an idle connection owns
//!   no buffer.
//! * **The loop ends only** by [`Io::stop`], or when the last connection closes after
//!   [`Io::stop_accepting`]. A shortage of descriptors pauses accepting and is logged once.
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
//! use sinews_engine::{ConnectionOrigin, App, CloseReason, EngineConfig, ConnId, Engine, Flow, Io, ListenOptions, Listener};
//!
//! /// One connection at a time, for brevity: a real application keeps a queue per connection.
//! #[derive(Default)]
//! struct Echo(Vec<u8>);
//!
//! impl App for Echo {
//!     type Chain = Cursor<Vec<u8>>;
//!     type Mail = ();
//!
//!     fn accepted(&mut self, io: &mut Io, _: ConnId, _: ConnectionOrigin) {
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
//!     fn closed(&mut self, _: &mut Io, _: ConnId, reason: CloseReason) {
//!         assert!(matches!(reason, CloseReason::Finished));
//!     }
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
//! let mut engine = Engine::<Echo>::new(EngineConfig::default(), vec![listener])?;
//! engine.run(&mut Echo::default())?; // until the connection has closed
//! assert_eq!(client.join().unwrap()?, "hello");
//! # std::io::Result::Ok(())
//! ```
//!
//! [`Io::connect`] makes outgoing connections, from any callback. An application that only connects starts
//! in [`App::started`]. The example `client` connects to such an echo server.
//!
//! # Files
//!
//! An [`Append`] writes to an append-only file, [`AppendFile`](sinews_file::AppendFile). On a ring it is an operation of the
//! loop.
//!
//! # Backends
//!
//! | | `io_uring` (Linux 6.7 or newer) | readiness: epoll, kqueue |
//! |---|---|---|
//! | system calls | one per turn | one per turn, one per receive, one per send |
//! | connections | slots of the ring's file table | descriptors of the process |
//! | chunks | of 2 buffers, filled one after the other | the loop's single buffer |
//! | a turn receives | 256 KiB at most ([`EngineConfig::with_ring_buffers`]) | [`EngineConfig::with_receives_per_turn`] chunks per connection |
//!
//! [`BackendChoice::Auto`] uses `io_uring` where the system permits it. Both backends run the same
//! application: chunks are lent, chains are moved, and a connection closes when none of its operations is
//! in flight.
//!
//! A ring belongs to a thread: an engine may be created on any thread, but one thread must run all its
//! turns and should drop it. If another thread drops it, or if the kernel does not complete all operations
//! within four seconds, the memory of the operations in flight is leaked instead of freed.

#![deny(unsafe_code)]

#[cfg(not(unix))]
compile_error!("the engine requires Unix: it relies on the edge-triggered modes of epoll and kqueue");

mod any_backend;
mod app;
mod appending;
mod backend;
#[cfg(target_os = "linux")]
mod calls;
mod close_reason;
mod config;
mod connect;
mod cpu;
mod datagram;
mod descriptors;
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

pub use any_backend::check_io_uring;
pub use app::{App, ConnectionOrigin, Flow, LargeBuffer, SendChain};
pub use appending::Append;
pub use close_reason::CloseReason;
pub use config::{BackendChoice, EngineConfig, InvalidEngineConfig, UnknownBackend};
pub use connect::{ConnectOptions, Remote};
pub use datagram::{DatagramBatch, DatagramSocket, ReceivedDatagram};
pub use descriptors::raise_descriptor_limit;
pub use engine::{Engine, NextTurn};
pub use io::Io;
pub use listener::{ListenOptions, Listener};
pub use mail::Post;
pub use slots::ConnId;
pub use spare::release_free_memory;
pub use stats::{Counter, Stats, StatsReader};
