//! The client protocols: one module for each.

pub(crate) mod binary;
pub(crate) mod datagrams;
pub(crate) mod echo;
pub(crate) mod events;
pub(crate) mod json;
#[cfg(feature = "pusher")]
pub(crate) mod pusher;
pub(crate) mod raw;
