//! Who may do what: tokens and API keys, rights, revocations, namespaces of topics, and the hosts and origins of requests.

pub mod auth;
pub(crate) mod hosts;
pub(crate) mod namespaces;
