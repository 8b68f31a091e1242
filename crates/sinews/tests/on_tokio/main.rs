//! Sockets on Tokio, and what all runtimes share.
#![cfg(feature = "tokio")]

#[macro_use]
mod support;

mod absence;
mod accept;
mod close_now;
#[cfg(feature = "url-connect")]
mod connect;
mod connect_over;
#[path = "../each_runtime/mod.rs"]
mod each_runtime;
mod end_at_close;
mod errors;
mod full_queue;
mod one_sided;
mod pieces;
#[cfg(feature = "url-connect")]
mod proxy;
mod recv_into;
mod sender;
mod servers;
mod spawn;
mod split;
#[cfg(feature = "tokio-rustls")]
mod tls;
mod values;
mod vectored;
mod websocket;
