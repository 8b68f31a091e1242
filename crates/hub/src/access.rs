//! Who may do what: tokens and API keys, rights, revocations, topic namespaces, and request hosts and origins.

pub mod auth;
pub(crate) mod hosts;
pub(crate) mod namespaces;
pub(crate) mod topic_description;
