//! A feed that can be resumed, and a client that does so: nothing is lost and nothing comes twice, wherever the
//! connection breaks.
//!
//! * Every event has a number, one more than the last.
//! * The client remembers the number of the last event that it has seen, and sends it with the request as
//!   `Last-Event-ID`, as browsers do for server-sent events.
//! * The server keeps the newest events in a [log](Feed) and sends what comes behind that number; if the log is too
//!   short for that, it answers 410 and the client [knows](FollowError::Gone) that it has to start afresh.
//!
//! [`Backoff`] and [`Follower`] are to be copied, or used as they are; [`Feed`] is the server's part.
#![forbid(unsafe_code)]
#![allow(clippy::exhaustive_structs, reason = "a program, whose types nobody else builds on")]

mod backoff;
mod feed;
mod follower;

pub use backoff::Backoff;
pub use feed::Feed;
pub use follower::{Event, FollowError, Follower};
