//! Requests that the hub sends: their URLs, client and signature. Hooks, webhooks and key sets use them.

pub(crate) mod addresses;
pub(crate) mod dial;
pub(crate) mod http;
pub(crate) mod options;
