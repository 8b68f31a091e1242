//! Every limit and wait, with its default; what a connection owns, and what a thread keeps.
//!
//! # Limits and waits of a connection
//!
//! All of them are in one [`Config`](crate::Config), which connections share; each setter gives the reason for its
//! default.
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
//! | setting | default | bounds | past it |
//! |---|---|---|---|
//! | [`max_message`](crate::Config::max_message) | 16 MiB | a message, after inflating | 1009, [`MessageTooBig`](crate::PeerMisbehaved::MessageTooBig) |
//! | [`max_frame`](crate::Config::max_frame) | 16 MiB | what one frame declares; checked before a byte of it is kept | 1009, [`FrameTooBig`](crate::PeerMisbehaved::FrameTooBig) |
//! | [`max_fragments`](crate::Config::max_fragments) | 131,072 | fragments of one message | 1008 |
//! | [`max_empty_fragments`](crate::Config::max_empty_fragments) | 1,024 | empty ones among them | 1008 |
//! | [`ping_rate`](crate::Config::ping_rate) | 64 a second, 256 at once | pings of the peer | 1008, [`PingFlood`](crate::PeerMisbehaved::PingFlood) |
//! | [`ping_interval`](crate::Config::ping_interval) | 25 s | silence of the peer | a ping leaves |
//! | [`pong_timeout`](crate::Config::pong_timeout) | 20 s | silence behind that ping | 1011, [`Expired::Pong`](crate::Expired::Pong) |
//! | [`idle_timeout`](crate::Config::idle_timeout) | 120 s | silence of both sides, where pings are off | 1001, [`Expired::Idle`](crate::Expired::Idle) |
//! | [`high_water`](crate::Config::high_water) | 64 KiB | bytes that wait to leave | senders wait, and nothing is received until half is gone |
//! | [`max_outbound`](crate::Config::max_outbound) | 1 MiB | the same, for those who do not wait ([`try_send`](crate::WebSocket::try_send)) | [`overflow`](crate::Config::overflow): 1008, or the message is dropped |
//! | [`write_timeout`](crate::Config::write_timeout) | 30 s | how long the peer takes nothing | dropped, [`Expired::Write`](crate::Expired::Write) |
//! | [`close_timeout`](crate::Config::close_timeout) | 5 s | the peer's Close and the end of the transport, once our Close has left | dropped, [`Expired::Close`](crate::Expired::Close) |
//!
//! Timeouts end while something of the connection is awaited. Before one is decided, everything that the peer sent in time
//! is read; and where the caller was away when an idle timeout ended, the timeout begins anew.
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
//! // A connection that lives behind a proxy which cuts after 15 s, and whose client may be away for a minute.
//! let config = Config::default()
//!     .with_ping_interval(Some(Duration::from_secs(10)))
//!     .with_pong_timeout(Duration::from_secs(60))
//!     .with_overflow(Overflow::DropNewest);
//! # assert_eq!(config.check(), Ok(()));
//! ```
//!
//! # Limits and waits of a handshake
//!
//! | setting | default | bounds |
//! |---|---|---|
//! | `Connect::timeout` | 20 s | everything together: name, TCP, proxy, TLS, handshake, redirects |
//! | `Connect::redirects` | 0 | redirects that are followed |
//! | `Connect::response_limits` | 16 KiB, 100 lines | the head of the server's answer, and of a proxy's |
//! | `Connect::rejection_body_max` | 64 KiB | what is read of the body of a refusal |
//! | `Accept::timeout` | 10 s | the handshake, from the first wait until the response has left |
//! | `Accept::head_limits` | 16 KiB, 100 lines | the head of the request |
//! | | 256 KiB, `close_timeout` | what is read and dropped behind a refusal, so that no reset overtakes it |
//!
//! Behind hyper and axum the head is theirs, and so are its limits.
//!
//! # What a connection owns
//!
//! | when | it owns |
//! |---|---|
//! | it waits | itself: the struct, the session's state on the heap, a timer; no buffer and no compression context, unless one was negotiated that takes over its window |
//! | part of a frame has come | what has come of it, in memory of that size |
//! | part of a message has come | what has come of it, in memory that grows by doubling; never what was only declared |
//! | more has come than you have read | what has come, 64 KiB at most: it receives no more before you have read that |
//! | you have sent more than the peer takes | up to `high_water` and the message that passed it |
//!
//! A message that you are given has memory of its own size, or, from 16 KiB on, the buffer it was received in: a small
//! message never keeps a large buffer alive.
//!
//! # What a thread keeps
//!
//! Buffers are the thread's, and the connections on it borrow them:
//!
//! | | at most |
//! |---|---|
//! | blocks to receive into, 64 KiB each | 16 |
//! | buffers of what leaves, up to 64 KiB each | 256 |
//! | memory of large messages | 32 MiB |
//!
//! What has not been used for two seconds is freed, by whichever connection of the thread is looked at next. A task
//! that moves to another thread borrows there. There is no lock between threads, and no allocation for a message that
//! fits the buffers that are there, but for the message itself.
