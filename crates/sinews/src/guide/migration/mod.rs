//! Coming from another library: what is called how, and what behaves otherwise.
//!
//! * [`tungstenite`]: tokio-tungstenite 0.30
//! * [`sockudo`]: sockudo-ws 3.1
//! * [`fastwebsockets`]: fastwebsockets 0.10
//! * [`axum`]: `axum::extract::ws` of axum 0.8
//! * [`compio_ws`]: compio-ws 0.4
//!
//! Four things are the same for all:
//!
//! * **Keepalive is on.** A connection is pinged after 25 s without a byte from its peer, and ends after 45 s if nothing
//!   comes in answer: a peer that does not read for that long is disconnected. Your own timer for pings can go.
//!   `Config::default().with_ping_interval(None).with_idle_timeout(None)` switches it off; see
//!   [`limits`](super::limits).
//! * **A server refuses pages of other origins** with 403 unless they are listed
//!   ([`OriginPolicy`](crate::OriginPolicy)): browsers send the user's cookies along whichever page asks. Programs,
//!   which name no origin, pass.
//! * **Messages are 16 MiB at most** unless you say otherwise.
//! * **A Close is answered, and the transport ended, by whoever receives**: go on until `None`.

pub mod axum;
pub mod compio_ws;
pub mod fastwebsockets;
pub mod sockudo;
pub mod tungstenite;
