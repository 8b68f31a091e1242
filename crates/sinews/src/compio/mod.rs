//! WebSocket on compio: the kernel gets buffers by value and returns them by value.
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
//!     stream.set_nodelay(true)?;
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
//! # Supported compio version
//!
//! compio 0.19, its stable line: `compio-runtime` 0.12, `compio-net` 0.12, `compio-io` 0.10, `compio-driver` 0.12.
//! Version 0.20 is a beta and changes traits that this module implements. A program must use a single version of
//! compio, as sockets of two versions are different types.
//!
//! # How bytes flow
//!
//! * A connection has at most one receive and one send in flight. The [`WebSocket`] owns both, and no future does, so
//!   that every future may be dropped at any point: nothing is lost and nothing is sent twice.
//! * A socket waits for bytes in the runtime's managed buffers, of which a waiting connection holds none. Received
//!   bytes are copied once, into a block of the thread, and the managed buffer is free again. A full managed buffer
//!   means that more data is available, and the next receive reads it into a larger block, without waiting.
//! * The rest of a large message is received into the memory of the message, without a copy.
//! * Sends are vectored: frame headers and small messages from one buffer, large messages where they lie. All replies
//!   to messages received together leave in one operation. They are ordinary sends, not zero-copy: over loopback
//!   zero-copy costs more, and over a network it is not measured here.
//! * TLS is a layer between the connection and its transport: rustls encrypts into the send buffers, and decrypts
//!   received bytes (`TlsStream`).
//!
//! * [`recv_into`](WebSocket::recv_into) passes the memory of the call itself to the kernel for the larger part of a
//!   large message. That memory belongs to the connection until the operation completes, so that such a call may be
//!   dropped too.
//!
//! # Memory
//!
//! An idle connection allocates 1.5 KiB, regardless of its history, including compio's operation and timer. In
//! addition, a program has the task of each connection, and for each thread:
//!
//! * the runtime's managed buffers, as far as they were touched. The kernel uses them in turn, so that in the end
//!   each is touched. A connection uses 4 KiB of a buffer, and all of it only after eight receives in a row of 4 KiB
//!   or more: number of buffers × 8 KiB (4 KiB lie on two pages) where messages are small, number × length where they
//!   are large;
//! * memory of messages in transit. Up to 32 MiB are kept for reuse, and freed after some seconds without use.
//!   Whether the program's allocator returns this memory to the system depends on the allocator: all receiving
//!   connections progress at the same time, so that there is more of it than on Tokio.
//!
//! Connections with the same `Arc` of a [`Config`](crate::Config) share limits and timeouts.
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
//!     // Single issuer with deferred completions: less work for the kernel. Off by default; Linux 6.1.
//!     .single_issuer(true)
//!     .defer_taskrun(true)
//!     // Buffers for all connections of the thread that receive in one turn. Default 8 of 8 KiB: a ninth
//!     // connection has to receive twice. 256 of 16 KiB are at most 4 MiB for each thread; 64 of 4 KiB are 256 KiB,
//!     // and enough where few connections of a thread are active at a time, or messages are small.
//!     .buffer_pool_size(NonZero::<u16>::MIN.saturating_add(255))
//!     .buffer_pool_buffer_len(16 << 10);
//! # if let Ok(runtime) =
//! RuntimeBuilder::new().with_proactor(proactor).build()
//! # { drop(runtime); }
//! # ;
//! ```
//!
//! The feature `compio` enables compio's `io-uring`. Where the kernel or a container forbids it, as the default
//! profile of Docker does, the runtime cannot be built, unless the program enables compio's `polling` too; a waiting
//! connection then uses a managed buffer, or 1 KiB if none is free. This module is designed for io_uring, and tested
//! with it: where it is not available, Tokio is the better runtime.
//!
//! Do not change `buffer_pool_flag`: with 2, incremental buffers, compio 0.19 treats each receive as the beginning of
//! its buffer and returns earlier bytes.
//!
//! A completed receive holds its managed buffer until the connection is polled again. An application that leaves many
//! connections unpolled should have as many buffers; without a free buffer, a receive goes into memory of the
//! connection.

mod accept;
mod app_buffer;
mod app_memory;
mod bridge;
mod connect;
mod driver;
mod halves;
mod pieces;
mod recv_into;
mod socket;
mod split;
#[cfg(feature = "url-connect")]
mod stream;
#[cfg(feature = "rustls")]
mod tls;
mod transport;
mod transport_io;
mod websocket;

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
