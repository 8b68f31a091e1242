//! Sockets on compio.
#![cfg(feature = "compio")]

mod absence;
mod bridge;
mod busy;
mod connect;
mod pieces;
mod sockets;
mod support;
#[cfg(feature = "rustls")]
mod tls;
mod vectored;
