//! Migration from another library: corresponding names, and differences in behavior.
//!
//! * [`tungstenite`]: tokio-tungstenite 0.30
//! * [`sockudo`]: sockudo-ws 3.1
//! * [`fastwebsockets`]: fastwebsockets 0.10
//! * [`axum`]: `axum::extract::ws` of axum 0.8
//! * [`compio_ws`]: compio-ws 0.4
//!
//! Four differences apply to all of them:
//!
//! * **Keepalive is on.** The connection sends a ping after 25 s without a byte from its peer. It ends 20 s later if
//!   no byte has arrived. So a peer that does not read for 45 s is disconnected. Remove your own timer for pings.
//!   `Config::default().with_ping_interval(None).with_idle_timeout(None)` disables keepalive; see
//!   [`limits`](super::limits).
//! * **A server rejects pages of other origins** with 403 unless they are listed
//!   ([`OriginPolicy`](crate::OriginPolicy)): browsers send the user's cookies for the pages of any origin. Clients
//!   other than browsers send no origin, and are accepted.
//! * **Messages are limited to 16 MiB** by default.
//! * **Receive calls answer a Close and end the transport**: receive until `None`.

pub mod axum;
pub mod compio_ws;
pub mod fastwebsockets;
pub mod sockudo;
pub mod tungstenite;
