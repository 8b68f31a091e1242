//! WebSocket on compio: buffers go down to the kernel by value and come home by value.
//!
//! ```
//! use compio::net::{TcpListener, TcpStream};
//! use sinews::Message;
//!
//! # let Ok(runtime) = compio::runtime::Runtime::new() else { return Ok(()) };
//! # runtime.block_on(async {
//! let listener = TcpListener::bind("127.0.0.1:0").await?;
//! let address = listener.local_addr()?;
//!
//! compio::runtime::spawn(async move {
//!     let (stream, peer) = listener.accept().await?;
//!     let mut websocket = sinews::compio::accept(stream).peer(peer).await?;
//!     while let Some(message) = websocket.next().await {
//!         let message = message?;
//!         if message.is_data() {
//!             websocket.send(message).await?;
//!         }
//!     }
//!     Ok::<(), Box<dyn std::error::Error>>(())
//! })
//! .detach();
//!
//! let stream = TcpStream::connect(address).await?;
//! let mut client = sinews::compio::connect("ws://localhost/echo").over(stream).await?;
//! client.send("hello").await?;
//! assert_eq!(client.next().await.transpose()?, Some(Message::text("hello")));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which compio
//!
//! compio 0.19, its stable line: `compio-runtime` 0.12, `compio-net` 0.12, `compio-io` 0.10, `compio-driver` 0.12. The
//! next one, 0.20, is a beta and changes traits that this module implements; a program has one line of compio only, as
//! a socket of one is none of the other.
//!
//! # How bytes pass
//!
//! * A connection has at most one receive and one send in flight. Both are kept in the [`WebSocket`] and in no future,
//!   so that every future may be dropped at any point: nothing is lost and nothing is sent twice.
//! * A socket waits for bytes in the runtime's managed buffers, of which a waiting connection holds none. What came is
//!   copied once, into a block of the thread's, and the managed buffer is free again. A managed buffer that came back
//!   full means that more is there, and the next receive takes that into a larger block, without waiting.
//! * The rest of a large message is received into the memory of the message, without a copy.
//! * Sends are vectored: frame heads and small messages from one buffer, large ones where they lie. All answers to
//!   messages that came together leave in one operation. They are ordinary sends and no zero-copy ones: over loopback
//!   those cost more, and over a network nobody has measured them here.
//! * TLS is a step between the connection and its transport: rustls encrypts into the buffers that go down, and decrypts what came (`TlsStream`).
//!
//! * [`recv_into`](WebSocket::recv_into) gives the kernel the memory of the call itself for the larger part of a large
//!   message. That memory belongs to the connection until it comes home, so that such a call may be dropped too.
//!
//! # Memory
//!
//! An idle connection allocates 1.5 KiB, whatever it did before, compio's operation and timer included. A program pays
//! for each connection its task beside that, and for each thread:
//!
//! * the runtime's managed buffers, as far as they were touched. The kernel takes them in turn, so that in the end each
//!   was. A connection takes 4 KiB of one, and all of it only where 4 KiB or more came eight times in a row: number of
//!   buffers × 8 KiB (4 KiB lie on two pages) where messages are small, number × length where they are not;
//! * memory of messages in transit, of which up to 32 MiB are kept for the next ones, and given back when none has used
//!   them for some seconds. What the program's allocator then gives back to the system is its own affair: all
//!   connections that receive progress at the same time, so that there is more of it than on Tokio.
//!
//! Limits and waits are shared by connections that get the same `Arc` of a [`Config`](crate::Config).
//!
//! # The runtime
//!
//! ```
//! use std::num::NonZero;
//!
//! use compio::driver::ProactorBuilder;
//! use compio::runtime::RuntimeBuilder;
//!
//! let mut proactor = ProactorBuilder::new();
//! proactor
//!     // One thread submits, and completions wait for it: less work for the kernel. Off by default; Linux 6.1.
//!     .single_issuer(true)
//!     .defer_taskrun(true)
//!     // Buffers for all connections of the thread that receive in one turn. 8 of 8 KiB by default: a ninth connection
//!     // has to receive twice. 256 of 16 KiB are 4 MiB for each thread at the most; 64 of 4 KiB are 256 KiB, and enough
//!     // where a thread has few connections at work at a time, or messages are small.
//!     .buffer_pool_size(NonZero::<u16>::MIN.saturating_add(255))
//!     .buffer_pool_buffer_len(16 << 10);
//! # if let Ok(runtime) =
//! RuntimeBuilder::new().with_proactor(proactor).build()
//! # { drop(runtime); }
//! # ;
//! ```
//!
//! The feature `compio` turns on compio's `io-uring`. Where the kernel or a container refuses that, as the default
//! profile of Docker does, the runtime cannot be built, unless the program turns on compio's `polling` too; a waiting
//! connection then takes a managed buffer, or 1 KiB where there is none. This module is made for io_uring, and tested
//! there: where it cannot be had, Tokio is the better runtime.
//!
//! Leave `buffer_pool_flag` alone: with 2, incremental buffers, compio 0.19 takes each receive for the beginning of its
//! buffer and hands out bytes that came before.
//!
//! A completed receive holds its managed buffer until the connection is asked for it again. An application that keeps
//! many connections waiting for it should have as many buffers; without one, a receive goes into memory of the
//! connection.

mod accept;
mod bridge;
mod connect;
mod drive;
mod halves;
mod lent;
mod pieces;
mod socket;
mod split;
#[cfg(feature = "url-connect")]
mod stream;
#[cfg(feature = "rustls")]
mod tls;
mod transport;
mod websocket;
mod wire;

pub use self::accept::accept;
pub use self::bridge::SyncBridge;
pub use self::connect::{Compio, connect};
pub use self::pieces::{MessageReader, MessageWriter};
pub use self::split::{ReadHalf, ReuniteError, WriteHalf};
#[cfg(feature = "url-connect")]
pub use self::stream::Stream;
#[cfg(feature = "rustls")]
pub use self::tls::TlsStream;
pub use self::transport::{SocketTransport, Transport};
pub use self::websocket::WebSocket;
