//! Building blocks for the workspace's tests: two ends in memory, a link that cuts bytes by a seed, a manual clock, a
//! peer that sends arbitrary bytes, and inputs that have triggered faults in other projects.
//!
//! Nothing here opens a socket, reads a clock or draws a random number, except for the last of these: a failure
//! repeats.
//!
//! * [`Pair`] joins two [`Machine`]s, each a whole [`SessionEnd`] or a bare [`ConnectionEnd`].
//! * [`Probe`] puts a machine in either role against hand-made [`Frame`]s and reads the answers with a [`Reader`] that
//!   shares no code with the machine.
//! * [`BodyReader`] reads streaming responses and Server-Sent Events.
//! * [`RawSocket`] is a blocking WebSocket client on a transport.
//! * [`corpora`] holds the inputs.
//! * `TestCertificate` has rustls settings, with the feature `tls`.
//! * [`CountingAllocator`] counts a test's memory.
//! * [`RealBroker`] runs a broker with a configuration from the documentation.
//! * [`until`] and its variants wait for other threads and processes.
//! * [`serve_http`] answers requests from a program under test.
//! * [`ServeProcess`] runs the server as a process.
//!
//! ```
//! use sinews_proto::{Config, Kind, Role};
//! use sinews_testkit::{Chunks, Frame, Probe, Reply, negotiate_plain};
//!
//! let mut probe = Probe::session(negotiate_plain(Role::Server), Config::default());
//! probe.send_frame(&Frame::text("half").fin(false), Chunks::OneByte);
//! probe.send_frame(&Frame::continuation(" and half"), Chunks::OneByte);
//! assert_eq!(probe.take_replies(), [Reply::Message(Kind::Text, b"half and half".to_vec())]);
//! ```
#![deny(unsafe_code)]
#![allow(clippy::exhaustive_enums, clippy::exhaustive_structs, reason = "tests spell these out")]

mod allocator;
mod body;
mod chunks;
mod codec;
pub mod corpora;
mod frame;
mod handshake;
mod http_server;
#[cfg(feature = "json")]
mod json;
mod machine;
mod pair;
mod probe;
pub mod process;
mod raw_socket;
mod reader;
mod real_broker;
mod rng;
#[cfg(feature = "tls")]
pub mod tls;
mod wait;

pub use allocator::{
    AllocationCounts, CountingAllocator, exclude_this_thread, idle_live_bytes, live_bytes, measure,
    measure_alone,
};
pub use body::{BodyReader, SseEvent};
pub use chunks::{Chunks, Cutter};
pub use codec::Codec;
pub use frame::{Frame, Length, wire};
pub use handshake::{Agreed, negotiate, negotiate_offer, negotiate_plain, read_answer, request_with_offer};
#[cfg(feature = "tls")]
pub use http_server::serve_https;
pub use http_server::{HttpAnswer, HttpRequest, serve_http};
#[cfg(feature = "json")]
pub use json::assert_fields;
pub use machine::{App, ConnectionEnd, Heard, Machine, SessionEnd};
pub use pair::Pair;
pub use probe::Probe;
pub use process::ServeProcess;
pub use raw_socket::{RawSocket, exchange, handshake, last_get, read_head};
pub use reader::{RawFrame, Reader, Reply, split_frames};
pub use real_broker::{RealBroker, documented};
pub use rng::{Rng, noise};
#[cfg(feature = "tls")]
pub use tls::TestCertificate;
pub use wait::{TIMEOUT, until, until_equal, until_some};

use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Polls a future once, then drops it.
pub fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}
