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
//! * **Idle connections are pinged** after 25 s and end if nothing comes; see [`limits`](super::limits). Your own timer
//!   for pings can go.
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
