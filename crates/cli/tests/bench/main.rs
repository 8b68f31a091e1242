//! `sinews bench` as it is started: against our own server, and against servers that stall, lie and break off.

mod compare;
mod durable;
mod faults;
mod loads;
mod shown;
mod support;
mod terminal;
