//! A resumable feed with its client: no event is lost or repeated, wherever the connection breaks.
//!
//! * Every event has a number, one more than the last.
//! * The client stores the number of its last event, and sends it with the request as `Last-Event-ID`, as
//!   browsers do for server-sent events.
//! * The server keeps the newest events in a [log](Feed) and sends the events after that number. If the log
//!   is too short, it answers 410 and the client [reports](FollowError::Gone) that it has to start afresh.
//!
//! [`Backoff`] and [`Follower`] are to be copied, or used as they are; [`Feed`] is the server's part.
#![forbid(unsafe_code)]
#![allow(clippy::exhaustive_structs, reason = "a program: no other crate builds on its types")]

mod backoff;
mod feed;
mod follower;

pub use backoff::Backoff;
pub use feed::Feed;
pub use follower::{Event, FollowError, Follower};
