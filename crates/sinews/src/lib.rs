//! WebSocket for Tokio, axum, hyper and compio, client and server.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
#[cfg_attr(
    not(any(feature = "tokio", feature = "compio")),
    allow(dead_code, reason = "`blocking` takes no proxy and follows no redirect")
)]
pub mod client;
#[cfg(feature = "compio")]
mod driver;
mod error;
#[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
#[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "messages in pieces are for Tokio"))]
mod link;
mod message;
#[cfg(feature = "tokio")]
mod reading;
#[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
mod resources;
#[cfg(any(feature = "tokio", feature = "compio"))]
mod sender;
#[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
pub mod server;
#[cfg(all(feature = "url-connect", any(feature = "tokio", feature = "compio", feature = "blocking")))]
#[cfg_attr(
    not(any(feature = "tokio", feature = "compio")),
    allow(dead_code, reason = "`blocking` makes no TLS")
)]
mod tls;

#[cfg(feature = "axum")]
pub mod axum;
#[cfg(feature = "blocking")]
pub mod blocking;
#[cfg(feature = "compio")]
pub mod compio;
#[cfg(feature = "hyper")]
pub mod hyper;
#[cfg(feature = "tokio")]
pub mod tokio;

#[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
pub use self::server::{AcceptError, OriginPolicy};
pub use bytes::Bytes;
pub use error::{AtFault, Error};
pub use message::{CloseFrame, Filled, Message, MessageRef};
#[cfg(any(feature = "tokio", feature = "compio"))]
pub use sender::{SendError, Sender};
#[cfg(feature = "deflate")]
pub use sinews_proto::deflate::{DeflateConfig, DeflateMode, InvalidDeflateConfig};
pub use sinews_proto::{
    CloseCode, Config, Expired, InvalidConfig, Kind, Misuse, Overflow, PeerMisbehaved, PingRate, Role,
};
pub use sinews_session::{Cause, Closed, Sent};
pub use sinews_simd::{Utf8Bytes, Utf8Error};

#[cfg(any(feature = "tokio", feature = "compio", feature = "blocking"))]
pub use client::{Connect, ConnectError};
#[cfg(all(feature = "url-connect", any(feature = "tokio", feature = "compio", feature = "blocking")))]
pub use tls::Tls;

#[cfg(feature = "tokio")]
pub use self::tokio::{WebSocket, accept, connect};
