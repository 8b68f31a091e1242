//! Longer texts: limits in numbers, and how to come from another library. There is no code in here.
//!
//! * [`limits`]: every limit and wait with its default; memory, and what threads share
//! * [`migration`]: from tokio-tungstenite, sockudo-ws, fastwebsockets, `axum::extract::ws` and compio-ws

pub mod limits;
pub mod migration;
