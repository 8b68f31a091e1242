//! Promises that are the same on each runtime. Each runtime's tests compile these files with a `support` module of their own:
//! how a test runs, its connections, raw peers and tasks.

pub(crate) mod close_now;
mod halves;
mod heads;
mod messages;
