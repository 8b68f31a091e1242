//! `sinews bench` as a process: against this project's server, and against servers that stall, corrupt and
//! disconnect.

mod compare;
#[path = "../shared/directory.rs"]
mod directory;
mod durable;
mod faults;
mod http2;
mod http3;
mod loads;
#[path = "../program/ports.rs"]
mod ports;
mod shown;
mod support;
mod terminal;
