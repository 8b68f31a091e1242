//! Requests that the hub sends: their URLs, transport and signature. Hooks, webhooks and key sets use them.

pub(crate) mod addresses;
pub(crate) mod http;
pub(crate) mod options;
