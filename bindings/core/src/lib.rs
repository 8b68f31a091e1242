//! A WebSocket connection for an interpreter: one thread, that with the event loop.
//!
//! The interpreter owns the socket. It passes received bytes to [`Connection::receive`], which writes all their events
//! into one [`Batch`]: the interpreter crosses into this code once for a burst, and once more for the write with its
//! handlers' messages. No thread and no runtime is involved, and no call waits.
//!
//! ```
//! use std::sync::Arc;
//!
//! use sinews_bindings::{Batch, Connection, EventKind};
//! use sinews_proto::{Config, Kind, Negotiated, Role};
//!
//! let mut client = Connection::new(Negotiated::websocket(Role::Client), Arc::new(Config::default()));
//! let mut server = Connection::new(Negotiated::websocket(Role::Server), Arc::new(Config::default()));
//! for text in ["one", "two"] {
//!     assert!(client.send(Kind::Text, text.as_bytes()).is_ok());
//! }
//! let mut bytes = client.start_write().expect("two messages wait").concat();
//! client.finish_write();
//!
//! let mut batch = Batch::new();
//! server.receive(&mut bytes, &mut batch);
//! let texts: Vec<_> = batch.events().map(|event| (event.kind, batch.payload(event, &bytes))).collect();
//! assert_eq!(texts, [(EventKind::Text, &b"one"[..]), (EventKind::Text, b"two")]);
//! ```
#![forbid(unsafe_code)]

mod batch;
mod connection;
mod handshake;
#[cfg(feature = "server")]
pub mod server;
pub mod socket;

pub use batch::{Batch, BatchEvent, EventKind};
pub use connection::Connection;
pub use handshake::{negotiate_client, negotiate_server};
