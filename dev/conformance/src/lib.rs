//! Requirements on a WebSocket engine, as data.
//!
//! * [`autobahn`] holds the Autobahn suite's case families, to be run in memory against a machine in either role, cut
//!   in any way.
//! * [`http`] holds valid and invalid requests, with a server's expected answers.
//!
//! `STANDARDS.md` beside the sources has every rule and known fault, each with the tests that verify it.
//!
//! The tests are in the `tests` folder, and in the programs `http-subject`, a server, and `http-cases`, its
//! client. This crate has no other purpose.
#![forbid(unsafe_code)]
#![allow(clippy::exhaustive_enums, clippy::exhaustive_structs, reason = "tests spell these out")]

pub mod autobahn;
mod case;
pub mod http;
pub mod proxy;

pub use case::{Case, Setup};
