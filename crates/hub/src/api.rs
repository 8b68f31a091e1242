//! The HTTP API for backends.

pub(crate) mod keys;
pub(crate) mod members;
mod read_topic;
mod record_lines;
pub(crate) mod rpc;
pub(crate) mod streams;
pub(crate) mod topics;
pub(crate) mod v1;
