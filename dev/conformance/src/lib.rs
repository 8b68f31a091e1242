//! What a WebSocket engine must get right, as data.
//!
//! * [`autobahn`] holds the case families of the Autobahn suite, to be run in memory against a machine of
//!   either role, cut in any way.
//! * [`http`] holds requests, sound and not, with what a server must answer them with.
//! * [`standards`] holds every line of the project's list of rules and known faults, each with the tests
//!   that hold us to it.
//!
//! The tests themselves are in the `tests` folder, and in the programs `http-subject` and `http-cases`, a server and who
//! asks it: they are all this crate is for.
#![forbid(unsafe_code)]
#![allow(clippy::exhaustive_enums, clippy::exhaustive_structs, reason = "tests spell these out")]

pub mod autobahn;
mod case;
pub mod http;
pub mod standards;

pub use case::{Case, Setup};
