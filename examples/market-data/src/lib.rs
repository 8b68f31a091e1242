//! A market feed for any number of clients, each at its own speed.
//!
//! * [`Market`] holds the newest price of each symbol, and changes it by a random walk.
//! * [`Server`] has a thread for each core, each with a compio runtime (io_uring) and its own listener on one
//!   shared port: the kernel distributes the connections, and the threads share only the prices.
//! * A client subscribes, and receives a snapshot, then the changes since its last message. There is no queue
//!   of updates: for a slow client, the newest price of each symbol replaces the older prices.
#![forbid(unsafe_code)]
#![allow(clippy::exhaustive_structs, reason = "a program: no other crate builds on its types")]

mod client;
mod market;
mod server;

pub use client::{Subscribe, Update};
pub use market::{Market, Quote};
pub use server::Server;
