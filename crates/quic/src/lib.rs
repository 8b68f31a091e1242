//! HTTP/3 over QUIC without sockets, for one worker: datagrams and time in, datagrams and events out.
//!
//! A driver passes each received datagram to [`QuicEndpoint::receive`], calls [`QuicEndpoint::expire`] at
//! [`QuicEndpoint::next_timeout`], and then sends the datagrams of [`QuicEndpoint::transmit`]. The events of HTTP/3 go to an
//! [`Http3App`], which answers through an [`Exchanges`]. An endpoint accepts connections ([`QuicEndpoint::new`]), or opens
//! them ([`QuicEndpoint::client`], [`QuicEndpoint::connect`], [`Exchanges::send_request`]).
//!
//! A connection identifier names its worker and the generation of its process, so that a datagram that the kernel gave to
//! another worker is passed on: [`ConnectionRoutes::of`].
//!
//! # Features
//!
//! `tokio`: `Http3Tunnel`, a WebSocket's stream of a client with a socket of its own.
#![forbid(unsafe_code)]

mod app;
mod budget;
mod connection;
mod endpoint;
mod exchanges;
mod handshakes;
mod ids;
mod limits;
mod links;
mod memory;
#[cfg(feature = "tokio")]
mod tunnel;
mod window;

pub use app::{Http3App, LinkEnd};
pub use endpoint::{Outgoing, QuicEndpoint};
pub use exchanges::{ConnectionKey, DatagramSend, Exchanges};
pub use ids::{ConnectionRoutes, WorkerRoute};
pub use limits::{QuicConnectError, QuicLimits, QuicSetupError};
#[cfg(feature = "tokio")]
pub use tunnel::{Http3Tunnel, TunnelRequest, TunnelResponse};
