//! Sockets on compio.
#![cfg(feature = "compio")]

#[macro_use]
mod support;

mod absence;
mod bridge;
mod busy;
mod connect;
#[path = "../each_runtime/mod.rs"]
mod each_runtime;
mod pieces;
mod sockets;
#[cfg(feature = "rustls")]
mod tls;
mod vectored;
