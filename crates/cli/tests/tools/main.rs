//! `sinews bench` and `sinews connect` as processes.

mod bench;
mod connect;
#[path = "../shared/directory.rs"]
mod directory;
#[path = "../program/ports.rs"]
mod ports;
mod trust;
