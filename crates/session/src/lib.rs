//! One WebSocket connection without a runtime and without a socket: buffers, operations in flight,
//! deadlines.
//!
//! Every driver needs the same work between a protocol machine ([`sinews_proto::Connection`]) and a socket:
//! keep incomplete frames, assemble fragmented messages, borrow and return buffers, answer a burst with one
//! send, pause reads for a slow peer, close in the right order. [`Session`] implements this work once.
//!
//! ```text
//!             receive(chunk)                       start_send() → Chain
//!   driver ──────────────────▶ ┌─────────────────┐ ─────────────────────▶ driver
//!             Flow: go on, or  │     Session     │ ◀───────────────────── progressed, finish_send
//!           ◀── pause ──────── │ ┌─────────────┐ │
//!                              │ │ Connection  │ │ ── Events: Payload, Tx ─▶ application
//!                              └─┴─────────────┴─┘
//!                     transport_action(), deadline(), take_closed()
//! ```
//!
//! # The loop
//!
//! 1. Pass received bytes to [`receive`](Session::receive). After [`Flow::Pause`], stop until
//!    [`wants_resume`](Session::wants_resume) returns `true`, then call [`resume`](Session::resume).
//! 2. After a burst of input, [`start_send`](Session::start_send) returns everything queued as one [`Chain`].
//!    Return the chain with [`finish_send`](Session::finish_send). At most one send is in flight.
//! 3. [`transport_action`](Session::transport_action) tells how to treat the transport, [`deadline`](Session::deadline) when to call
//!    [`handle_timeout`](Session::handle_timeout), [`take_closed`](Session::take_closed) how the connection ended.
//!
//! ```
//! use std::io::IoSlice;
//! use std::sync::Arc;
//!
//! use sinews_proto::handshake::{accept, ServerOptions};
//! use sinews_proto::http::{HeadLimits, HeaderSlots, RequestHead};
//! use sinews_proto::{Config, Time};
//! use sinews_session::{Events, Flow, Payload, Resources, Session, Tx};
//!
//! struct Echo;
//!
//! impl Events for Echo {
//!     fn message(&mut self, payload: Payload<'_>, tx: &mut Tx<'_>) {
//!         // Fails only while closing, when no answer can be sent.
//!         let _ = tx.send_payload(payload);
//!     }
//! }
//!
//! let request = b"GET / HTTP/1.1\r\nHost: example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
//!     Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
//! let mut slots = HeaderSlots::new();
//! let head = RequestHead::parse(request, &HeadLimits::new(), &mut slots)?;
//! let accepted = accept(&head, &ServerOptions::new()).expect("a valid request");
//!
//! // One per thread; one set of limits for many connections.
//! let mut resources = Resources::new();
//! let mut session = Session::new(accepted.negotiated(), Arc::new(Config::default()), Time::ZERO);
//!
//! // One receive delivers two and a half frames.
//! let mut chunk = *b"\x81\x82\0\0\0\0hi\x81\x82\0\0\0\0yo\x81";
//! let flow = session.receive(&mut chunk, &mut resources, Time::ZERO, &mut Echo);
//! assert_eq!(flow, Flow::Continue);
//!
//! // One send carries both answers.
//! let mut chain = session.start_send().expect("two answers are queued");
//! let mut slices = [IoSlice::new(&[]); 4];
//! assert_eq!(chain.slices(&mut slices), 1);
//! assert_eq!(&*slices[0], b"\x81\x02hi\x81\x02yo");
//! chain.advance(8);
//! session.finish_send(chain, &mut resources, Time::ZERO);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Memory
//!
//! An idle session owns no buffer. Outbound chains and assembly buffers are borrowed from [`Resources`], the thread's
//! pool, and returned after use. An incomplete message takes little more memory than its received bytes. Up to 130
//! bytes of an incomplete head stay with the session.
#![forbid(unsafe_code)]

mod chain;
mod closed;
mod deferred;
mod events;
mod masks;
mod outbound;
mod parts;
mod payload;
mod pool;
mod prepared;
mod resources;
mod session;
mod stored_buffer;
mod traffic;
mod tx;

pub use chain::Chain;
pub use closed::{Cause, Closed};
pub use events::{Events, Flow, PullResult, ReceivedEvent};
pub use outbound::Outbound;
pub use payload::{Fragment, Payload};
pub use prepared::Prepared;
pub use resources::Resources;
pub use session::{Session, TransportAction};
pub use traffic::Traffic;
pub use tx::{Sent, Tx};
