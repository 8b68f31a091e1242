//! The settings mechanism: a key schema, and the flags, variables, file and documents that follow from it. The keys
//! themselves are in [`settings`](crate::settings).

pub(crate) mod file;
pub(crate) mod flags;
pub(crate) mod key;
pub(crate) mod network;
pub(crate) mod render;
pub(crate) mod resolver;
pub(crate) mod schema;
pub(crate) mod units;
pub(crate) mod value;
