//! A market whose prices any number of clients follow, each as fast as it can.
//!
//! * [`Market`] holds the newest price of each symbol, and what changes it: a random walk.
//! * [`Server`] has a thread for each core, with a compio runtime (io_uring) and a listener of its own on one port: the
//!   kernel spreads the connections, and nothing moves between threads but prices.
//! * A client subscribes, gets a snapshot, then what has changed since the last message it took. There is no queue of
//!   updates to fill: for a client that is slow, the newest price of each symbol takes the place of those before it.
#![forbid(unsafe_code)]
#![allow(clippy::exhaustive_structs, reason = "a program, whose types nobody else builds on")]

mod client;
mod market;
mod server;

pub use client::{Subscribe, Update};
pub use market::{Market, Quote};
pub use server::Server;
