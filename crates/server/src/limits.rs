//! Limits of a server as a whole, and of each client.

mod config;
mod gate;
mod memory;
mod rate;

pub use self::config::{Limits, WhenFull};
pub(crate) use self::gate::Gate;
pub(crate) use self::rate::RateLimit;

/// Maximum number of connections of one thread that are being rejected with an answer, and of sockets on streams;
/// further ones are closed without one, or get a status. They are beyond the limit, so they must be few.
pub(crate) const REJECTING_MAX: usize = 256;
