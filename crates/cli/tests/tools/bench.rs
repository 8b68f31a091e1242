//! `sinews bench` as a process: against this project's server, and against servers that stall, corrupt and
//! disconnect.

mod compare;
mod durable;
mod faults;
mod http2;
mod http3;
mod loads;
mod shown;
mod support;
mod terminal;
