//! The engine over real loopback sockets. Every application in this process is a [`support::Probe`], which checks the
//! life cycle of each connection in every test. The examples are processes.

mod accepting;
mod appending;
mod closing;
mod connecting;
mod datagrams;
mod examples;
mod large;
mod load;
mod mail;
mod receiving;
#[cfg(target_os = "linux")]
mod ring;
mod sending;
#[cfg(target_os = "linux")]
mod sleeping;
mod stress;
mod support;
mod timers;
