//! The WebSocket protocol without I/O: RFC 6455 and RFC 7692 as a state machine over borrowed bytes.
//!
//! The crate has no socket, no clock and no random number generator: bytes, time and mask keys are
//! arguments. Input is parsed and unmasked in place, and events refer to it by ranges. Output is appended
//! to a buffer of the caller. So one protocol implementation serves every runtime, and a test replays a
//! connection from a seed.
//!
//! ```text
//!                 input: &mut [u8]                      out: &mut Vec<u8>
//!  transport ───────────────────────▶ ┌────────────┐ ───────────────────────▶ transport
//!                                     │ Connection │
//!  application ◀───── Event ───────── └────────────┘ ◀──── send, close ────── application
//!               (ranges of the input,       ▲
//!                or the assembly)           │ now: Time, shared: &mut PerThread
//! ```
//!
//! # The loop
//!
//! 1. A handshake returns a [`Negotiated`], which every [`Connection`] requires.
//! 2. Pass received bytes to [`receive`](Connection::receive), repeatedly with the rest, until it returns
//!    [`Event::NeedMore`]. Keep the unconsumed bytes: part of a frame head or control frame.
//! 3. Answer events with [`send`](Connection::send) and related methods.
//! 4. Call [`write_control`](Connection::write_control), which appends pongs, pings and Close.
//! 5. Send the appended bytes: one send answers the whole burst.
//! 6. Query [`transport`](Connection::transport) for the transport's state, and [`deadline`](Connection::deadline) for
//!    the time of the next [`handle_timeout`](Connection::handle_timeout).
//!
//! The complete loop, over a transport that consists of two byte vectors:
//!
//! ```
//! use std::sync::Arc;
//!
//! use sinews_proto::handshake::{accept, ClientRequest, ClientStep, ServerOptions};
//! use sinews_proto::http::{HeadLimits, HeaderSlots, RequestHead};
//! use sinews_proto::{CloseCode, Config, Connection, Event, Kind, PerThread, PayloadLocation, Time, TransportState};
//!
//! /// Steps 2 to 4: processes all of `wire`, echoing messages into `out`. Returns the received texts.
//! fn turn(
//!     connection: &mut Connection,
//!     wire: &mut Vec<u8>,
//!     shared: &mut PerThread,
//!     out: &mut Vec<u8>,
//!     now: Time,
//! ) -> Result<Vec<String>, Box<dyn std::error::Error>> {
//!     // Buffers incomplete messages; empty between messages.
//!     let mut assembly = Vec::new();
//!     let (mut at, mut texts) = (0, Vec::new());
//!     loop {
//!         let received = connection.receive(&mut wire[at..], &mut assembly, shared, now)?;
//!         let start = at;
//!         at += received.consumed;
//!         match received.event {
//!             Event::NeedMore(_) => break,
//!             Event::Message { kind, at: place } => {
//!                 let payload = match place {
//!                     PayloadLocation::Input(range) => &wire[start..][range],
//!                     PayloadLocation::Assembly => &assembly[..],
//!                 };
//!                 texts.push(String::from_utf8_lossy(payload).into_owned());
//!                 if connection.role() == sinews_proto::Role::Server {
//!                     connection.send(kind, payload, shared, out)?;
//!                 }
//!             }
//!             _ => {} // pings and Close are answered by step 4
//!         }
//!     }
//!     wire.drain(..at);
//!     connection.write_control(shared, out, now);
//!     Ok(texts)
//! }
//!
//! // Step 1: both ends of the handshake.
//! let mut client = ClientRequest::new("example.com", "/")?.start([7; 16]); // random bytes, really
//! let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
//! client.write_request(&mut to_server);
//! let mut slots = HeaderSlots::new();
//! let request = RequestHead::parse(&to_server, &HeadLimits::new(), &mut slots)?;
//! let accepted = accept(&request, &ServerOptions::new()).expect("a valid request");
//! accepted.write_response(&[], &mut to_client)?;
//! let ClientStep::Done(done) = client.read_response(&to_client)? else { panic!("the response is complete") };
//! to_server.clear();
//! to_client.drain(..done.consumed());
//!
//! // One set of limits for many connections; per-thread state; the caller's clock.
//! let config = Arc::new(Config::default().with_max_message(1 << 20));
//! let mut shared = PerThread::new(|| [1, 2, 3, 4]); // unpredictable, really
//! let now = Time::ZERO;
//! let mut server = Connection::new(accepted.negotiated(), config.clone(), now);
//! let mut client = Connection::new(done.negotiated(), config, now);
//!
//! client.send(Kind::Text, "hello".as_bytes(), &mut shared, &mut to_server)?;
//! client.close(CloseCode::NORMAL, "done", now)?;
//! client.write_control(&mut shared, &mut to_server, now);
//!
//! let heard = turn(&mut server, &mut to_server, &mut shared, &mut to_client, now)?;
//! assert_eq!(heard, ["hello"]);
//! let heard = turn(&mut client, &mut to_client, &mut shared, &mut to_server, now)?;
//! assert_eq!(heard, ["hello"]);
//!
//! // Step 6: both Closes are exchanged; the server ends the transport first.
//! assert_eq!(server.transport(), TransportState::Finish);
//! assert_eq!(client.transport(), TransportState::AwaitEnd);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Guarantees
//!
//! * A peer's input never causes a panic, and memory follows the received bytes, never the declared length.
//! * Each peer violation has a variant of [`PeerMisbehaved`], and a Close frame with its code is prepared. Each misuse
//!   by the caller has a variant of [`Misuse`]; it writes no bytes. Incomplete input is not an error.
//! * Events and answers do not depend on how the bytes are split. (A message with more than one violation may be
//!   rejected for any of them.)
//! * Each limit and each timeout is a documented setting of [`Config`] or [`http::HeadLimits`].
//!
//! # Features
//!
//! `deflate` (default): permessage-deflate. `std` (default): vector instructions are selected at run time
//! instead of at compile time. Without both features the crate needs only `core` and `alloc`.
#![cfg_attr(not(any(test, feature = "std")), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod close;
mod config;
mod connection;
pub mod deflate;
mod error;
mod frame;
pub mod handshake;
pub mod http;
mod role;
mod time;

pub use close::{CloseCode, InvalidCloseCode};
pub use config::{Config, InvalidConfig, Overflow, PingRate};
pub use connection::{
    BodyFormat, BodyPrefix, Connection, Event, Kind, PayloadLocation, PerThread, Received, TransportState,
    write_body, write_close, write_prepared,
};
pub use error::{Expired, Misuse, PeerMisbehaved};
pub use frame::CONTROL_MAX as PING_MAX;
pub use handshake::Negotiated;
pub(crate) use handshake::WireFormat;
pub use role::Role;
pub use time::Time;
