//! Topics with history: retained messages, their memory, and replay for late subscribers.

pub(crate) mod append;
pub(crate) mod epochs;
mod eviction;
pub(crate) mod log;
pub(crate) mod policy;
pub(crate) mod progress;
mod replay;
pub(crate) mod store;
