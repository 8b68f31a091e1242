//! The native part of the npm package `sinews`: a WebSocket connection for the JavaScript in `lib`.
//!
//! JavaScript owns the socket. It passes each received chunk to [`receive`], which unmasks the chunk in place and describes
//! its events as numbers: payloads are views of the chunk. Messages to send are collected in memory that both share, and
//! enter in one call, [`flush`], which writes all queued bytes into such memory for one write.
#![deny(unsafe_code)]

mod closed;
mod connection;
mod kinds;
mod memory;
mod options;
mod poller;
mod server;
mod thread;
mod uv;
mod watch;

pub use closed::ClosedInfo;

pub use connection::*;
pub use kinds::*;
pub use memory::{share, share_slab};
pub use options::{DeflateOptions, LimitOptions};
pub use poller::{FAILED, Poller};
pub use server::{NativeServer, ServerOptions};
