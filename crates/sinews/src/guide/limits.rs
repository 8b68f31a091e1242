//! Every limit and timeout with its default, and the memory of a connection and of a thread.
//!
//! # Limits and timeouts of a connection
//!
//! All of them are fields of one [`Config`](crate::Config), which connections share. Each setter documents the reason
//! for its default. *Silence* means that no byte arrives.
//!
//! ```
//! use std::time::Duration;
//!
//! let config = sinews::Config::default()
//!     .with_max_message(1 << 20)
//!     .with_idle_timeout(Some(Duration::from_secs(60)))
//!     .with_ping_interval(Some(Duration::from_secs(20)));
//! assert_eq!(config.check(), Ok(()));
//! ```
//!
//! | setting | default | limits | action beyond it |
//! |---|---|---|---|
//! | [`max_message`](crate::Config::max_message) | 16 MiB | a message, after inflating | 1009, [`MessageTooBig`](crate::PeerMisbehaved::MessageTooBig) |
//! | [`max_frame`](crate::Config::max_frame) | 16 MiB | declared length of a frame; checked before a byte of it is stored | 1009, [`FrameTooBig`](crate::PeerMisbehaved::FrameTooBig) |
//! | [`max_fragments`](crate::Config::max_fragments) | 131,072 | fragments of one message | 1008 |
//! | [`max_empty_fragments`](crate::Config::max_empty_fragments) | 1,024 | empty fragments of one message | 1008 |
//! | [`ping_rate`](crate::Config::ping_rate) | 64 a second, 256 at once | pings of the peer | 1008, [`PingFlood`](crate::PeerMisbehaved::PingFlood) |
//! | [`ping_interval`](crate::Config::ping_interval) | 25 s | silence of the peer | a ping is sent |
//! | [`pong_timeout`](crate::Config::pong_timeout) | 20 s | silence after that ping | 1011, [`Expired::Pong`](crate::Expired::Pong) |
//! | [`idle_timeout`](crate::Config::idle_timeout) | 120 s | time without a byte of the peer and without a message to it, also while pings are on. It is meant for connections without pings: set it longer than `ping_interval` and `pong_timeout` together | 1001, [`Expired::Idle`](crate::Expired::Idle) |
//! | [`high_water`](crate::Config::high_water) | 64 KiB | queued outbound bytes | `send`, `feed` and [`Sender`](crate::Sender) wait until the queue has fallen to half of it, or below `max_outbound` if that is less. A new pong replaces a queued one |
//! | [`max_outbound`](crate::Config::max_outbound) | 1 MiB | queued outbound bytes | for [`try_send`](crate::WebSocket::try_send) and [`publish`](crate::WebSocket::publish), [`overflow`](crate::Config::overflow) applies: 1008, or a message is dropped. Other send methods wait |
//! | [`write_timeout`](crate::Config::write_timeout) | 30 s | time during which the peer reads no output | dropped, [`Expired::Write`](crate::Expired::Write) |
//! | [`close_timeout`](crate::Config::close_timeout) | 5 s | time until the peer's Close and the end of the transport, once our Close has left | dropped, [`Expired::Close`](crate::Expired::Close) |
//! | [`end_at_close`](crate::Config::end_at_close) | no | the wait for the end of the transport, once both Closes are exchanged: yes ends it at once | none |
//!
//! A number in the last column is the code of the Close; *dropped* means that the transport is closed without a Close.
//! Timeouts expire only while a method of the connection is awaited. Before a timeout takes effect, all input that the
//! peer sent in time is read. If no method was awaited when an idle timeout expired, the timeout restarts.
//!
//! ```
//! # use std::time::Duration;
//! # use sinews::{Config, Overflow, PingRate};
//! # let config = Config::default();
//! # assert_eq!((config.max_message(), config.max_frame()), (16 << 20, 16 << 20));
//! # assert_eq!((config.max_fragments(), config.max_empty_fragments()), (131_072, 1_024));
//! # assert_eq!(config.ping_rate(), PingRate { per_second: 64, burst: 256 });
//! # assert_eq!(config.ping_interval(), Some(Duration::from_secs(25)));
//! # assert_eq!(config.pong_timeout(), Duration::from_secs(20));
//! # assert_eq!(config.idle_timeout(), Some(Duration::from_secs(120)));
//! # assert_eq!((config.high_water(), config.max_outbound()), (64 << 10, 1 << 20));
//! # assert_eq!(config.write_timeout(), Duration::from_secs(30));
//! # assert_eq!(config.close_timeout(), Duration::from_secs(5));
//! # assert!(!config.end_at_close());
//! // A proxy cuts the connection after 15 s of silence, and the client may be unreachable for a minute.
//! let config = Config::default()
//!     .with_ping_interval(Some(Duration::from_secs(10)))
//!     .with_pong_timeout(Duration::from_secs(60))
//!     .with_overflow(Overflow::DropNewest);
//! # assert_eq!(config.check(), Ok(()));
//! ```
//!
//! # Limits and timeouts of a handshake
//!
//! | setting | default | limits |
//! |---|---|---|
//! | `Connect::timeout` | 20 s | the whole attempt: name resolution, TCP, proxy, TLS, handshake, redirects |
//! | `Connect::redirects` | 0 | followed redirects |
//! | `Connect::response_limits` | 16 KiB, 100 lines | the head of the server's response, and of a proxy's |
//! | `Connect::rejection_body_max` | 64 KiB | bytes read of the body of a rejection |
//! | `Connect::stream_window` | 256 KiB | over HTTP/2: received bytes of one WebSocket that is not read. Up to 64 KiB of outbound data per WebSocket is buffered |
//! | `Accept::timeout` | 10 s | the handshake, from the first poll until the response has left |
//! | `Accept::head_limits` | 16 KiB, 100 lines | the head of the request |
//! | | 256 KiB, `close_timeout` | input read and dropped after a rejection, so that no reset overtakes it |
//!
//! With hyper and axum, hyper reads the head, and its limits apply. It limits the time only if its builder has a timer,
//! which `axum::serve` does not set.
//!
//! # Memory of a connection
//!
//! | state | memory |
//! |---|---|
//! | idle | the struct, the session's state on the heap, a timer; no buffer, and no compression context, unless context takeover was negotiated |
//! | part of a frame received | the received part, in memory of that size |
//! | part of a message received | the received part, in memory that grows by doubling; never the declared length |
//! | more received than you have read | memory of the size of the received bytes up to 2 KiB of them, beyond it a block of 64 KiB: the connection receives no more until you have read them |
//! | the same, over HTTP/2 | also up to `stream_window`, and 256 bytes for each frame of HTTP/2 with less than 256 bytes. At 256 MiB of the latter the connection ends with ENHANCE_YOUR_CALM |
//! | more sent than the peer reads | up to `high_water` plus one message; with `try_send` and `publish`, up to `max_outbound` plus one message. Meanwhile a waiting receive method reads input, and a waiting send method reads at most one message |
//!
//! A received message has memory of its own size. From 16 KiB on, it has its receive buffer instead. So a small message
//! never keeps a large buffer alive.
//!
//! # Memory of a thread
//!
//! Buffers belong to the thread, and its connections borrow them. The thread keeps unused ones for reuse, up to these
//! limits, which do not bound the buffers in use:
//!
//! | | kept for reuse, at most |
//! |---|---|
//! | blocks to receive into, 64 KiB each | 16 |
//! | send buffers, up to 64 KiB each | 256 |
//! | memory of large messages | 32 MiB |
//!
//! The next poll of any connection of the thread frees memory that was unused for two seconds. A task that moves to
//! another thread borrows from that thread. There is no lock between threads. A message that fits into existing buffers
//! causes no allocation except the message itself.
