//! The WebSocket protocol without I/O.
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
mod time;

pub use close::CloseCode;
pub use config::{Config, Overflow, PingRate};
pub use connection::{Connection, Event, Kind, PerThread, Place, Received, Transport, write_prepared};
pub use error::{Expired, Misuse, PeerMisbehaved};
pub use handshake::{Negotiated, Role};
pub use time::Time;
