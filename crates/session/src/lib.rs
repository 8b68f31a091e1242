//! One WebSocket connection without a runtime and without a socket.
#![forbid(unsafe_code)]

mod chain;
mod closed;
mod masks;
mod outbound;
mod payload;
mod pool;
mod prepared;
mod session;
mod tx;

pub use chain::Chain;
pub use closed::{Cause, Closed};
pub use outbound::Outbound;
pub use payload::{Fragment, Payload};
pub use prepared::Prepared;
pub use session::{Events, Fate, Flow, Resources, Session};
pub use tx::{Sent, Tx};
