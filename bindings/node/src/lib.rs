//! The native part of the npm package `sinews`: a WebSocket connection for the JavaScript in `lib`.
//!
//! JavaScript owns the socket. It passes each received chunk to [`NativeConnection::receive`], which unmasks the chunk in
//! place and describes its events as numbers: payloads are views of the chunk. Messages to send are collected in
//! JavaScript and passed in one call, [`NativeConnection::flush`], which returns all queued bytes for one write.
#![deny(unsafe_code)]

mod closed;
mod connection;
mod options;

pub use closed::ClosedInfo;
pub use connection::NativeConnection;
pub use options::{DeflateOptions, LimitOptions};
