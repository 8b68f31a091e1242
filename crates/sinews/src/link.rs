//! A connection of the library without its transport: the logic that all drivers share.
//!
//! A driver, which knows no opcode or close code, fills [`Link::take_buffer`] and sends the output of
//! [`Link::next_send`]. The parts of a [`Link`]: [`state`] with its invariants, [`inbound`], [`outbound`],
//! [`lifecycle`], and [`halves`] of a split connection.

#[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "only connections on Tokio are split"))]
mod halves;
mod inbound;
mod lifecycle;
#[cfg(not(any(feature = "tokio", feature = "compio")))]
mod no_inbox;
mod outbound;
#[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "only connections on Tokio are split"))]
mod pair;
mod state;

#[cfg(any(feature = "tokio", feature = "compio"))]
pub(crate) use self::inbound::BorrowedMessage;
pub(crate) use self::inbound::ReceiveBuffer;
pub(crate) use self::lifecycle::NextStep;
pub(crate) use self::outbound::accepted;
#[cfg(any(feature = "tokio", feature = "compio"))]
pub(crate) use self::outbound::started;
#[cfg(feature = "tokio")]
pub(crate) use self::pair::{HalfSide, Pair};
#[cfg(any(feature = "tokio", feature = "compio"))]
pub(crate) use self::state::ConnectionInfo;
pub(crate) use self::state::Link;
