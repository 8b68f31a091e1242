//! Limits of a server as a whole, and of each client.

mod config;
mod gate;
mod limit;
mod memory;
mod rate;
mod rejected;

pub use self::config::{Limits, WhenFull};
pub(crate) use self::gate::Gate;
pub use self::limit::Limit;
pub(crate) use self::rate::RateLimit;
pub(crate) use self::rejected::{REJECTING_MAX, RejectedConn};
