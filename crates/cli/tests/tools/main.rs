//! `sinews bench` and `sinews connect` as processes.

mod bench;
mod connect;
#[allow(dead_code, reason = "the tests of the server use the rest")]
#[path = "../shared/directory.rs"]
mod directory;
#[path = "../program/ports.rs"]
mod ports;
mod trust;
