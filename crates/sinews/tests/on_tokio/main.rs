//! Sockets on Tokio, and what all runtimes share.
#![cfg(feature = "tokio")]

mod absence;
mod accept;
mod close_now;
mod common;
#[cfg(feature = "url-connect")]
mod connect;
mod connect_over;
mod end_at_close;
mod errors;
mod full_queue;
#[cfg(feature = "compio")]
mod halves;
mod one_sided;
mod pieces;
#[cfg(feature = "url-connect")]
mod proxy;
mod recv_into;
mod sender;
mod servers;
mod split;
#[cfg(feature = "tokio-rustls")]
mod tls;
mod values;
mod vectored;
mod websocket;
