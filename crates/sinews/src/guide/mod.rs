//! Guides: limits with their defaults, and migration from other libraries.
//!
//! * [`limits`]: every limit and timeout with its default; memory of connections and threads
//! * [`migration`]: from tokio-tungstenite, tungstenite, sockudo-ws, fastwebsockets, `axum::extract::ws` and compio-ws

pub mod limits;
pub mod migration;
