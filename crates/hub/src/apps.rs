//! Pusher apps: their keys, limits and channels, the event encoding, and what the server keeps for them. Webhooks and
//! the configuration use them; [`protocol::pusher`](crate::protocol::pusher) serves their clients.

pub(crate) mod app;
pub(crate) mod budget;
pub(crate) mod cache;
pub(crate) mod channel;
pub(crate) mod encode;
pub(crate) mod encoding;
pub(crate) mod live;
pub(crate) mod metrics;
pub(crate) mod position;
pub(crate) mod report;
pub(crate) mod signature;
pub(crate) mod socket_ids;
#[cfg_attr(not(feature = "webhooks"), path = "apps/webhook/absent.rs")]
pub(crate) mod webhook;
