//! HTTP/3 over QUIC without sockets, for one worker: datagrams and time in, datagrams and events out.
//!
//! A driver passes each received datagram to [`QuicEndpoint::receive`], calls [`QuicEndpoint::expire`] at
//! [`QuicEndpoint::next_timeout`], and then sends the datagrams from [`QuicEndpoint::transmit`]. HTTP/3 events go to an
//! [`Http3App`], which answers through an [`Exchanges`]. An endpoint accepts connections ([`QuicEndpoint::new`]), or
//! opens them ([`QuicEndpoint::client`], [`QuicEndpoint::connect`], [`Exchanges::send_request`]).
//!
//! A connection identifier names its worker and the generation of its process, so that a datagram that the kernel gave to
//! another worker is passed on: [`ConnectionRoutes::route`].
//!
//! # Features
//!
//! * `quinn`: QUIC itself. Without it an endpoint cannot be created ([`QuicSetupError::NotBuilt`], [`IS_BUILT`]);
//!   programs on this crate compile all the same, without the QUIC crates.
//! * `tokio`: `Http3Tunnel`, a WebSocket's stream for a client with its own socket.
#![forbid(unsafe_code)]
// Limits and routes are read by QUIC only.
#![cfg_attr(not(feature = "quinn"), allow(dead_code))]

#[cfg(not(feature = "quinn"))]
mod absent;
mod app;
#[cfg(feature = "quinn")]
mod budget;
#[cfg(feature = "quinn")]
mod config;
#[cfg(feature = "quinn")]
mod congestion;
#[cfg(feature = "quinn")]
mod connection;
#[cfg(feature = "quinn")]
mod endpoint;
#[cfg(feature = "quinn")]
mod exchanges;
#[cfg(feature = "quinn")]
mod handshakes;
mod ids;
mod limits;
#[cfg(feature = "quinn")]
mod links;
#[cfg(feature = "quinn")]
mod memory;
#[cfg(feature = "tokio")]
mod tunnel;
#[cfg(feature = "quinn")]
mod window;

#[cfg(not(feature = "quinn"))]
pub use absent::{AbsentEndpoint as QuicEndpoint, AbsentExchanges as Exchanges, AbsentKey as ConnectionKey};
pub use app::{DatagramSend, Http3App, LinkEnd, Outgoing};
#[cfg(feature = "quinn")]
pub use endpoint::QuicEndpoint;
#[cfg(feature = "quinn")]
pub use exchanges::{ConnectionKey, Exchanges};
pub use ids::{ConnectionRoutes, WorkerRoute};
pub use limits::{QuicConnectError, QuicLimits, QuicSetupError};
#[cfg(feature = "tokio")]
pub use tunnel::{Http3Tunnel, TunnelRequest, TunnelResponse};

/// Whether this build has QUIC: the feature `quinn`.
pub const IS_BUILT: bool = cfg!(feature = "quinn");
