//! Measures the cost of a server's work over loopback: `sinews serve` beside plain TCP echoes and other
//! libraries.
//!
//! Several servers answer the same load in turns. The figure is the server's CPU time per message, from the
//! scheduler's statistics, and the ratios between the servers, taken within one round.
//!
//! ```text
//!            core 1                                     core 0
//!   ┌─────────────────────────┐  masked frames    ┌────────────────────┐
//!   │ load: one thread, polls │ ────────────────► │ one server, the    │  run time of its threads
//!   │ without sleeping        │ ◄──────────────── │ others sleep       │  ÷ messages = the figure
//!   └─────────────────────────┘  echoes           └────────────────────┘
//! ```
//!
//! The plain echoes, one on mio and one on io_uring, are limits: the minimum work of a server. They receive the
//! same number of bytes as masked frames have, and return them unchanged; WebSocket servers return frames without mask.
//! The load is `sinews bench`, as a library (`crates/bench`). Other libraries are in the separate package `sinews-peers`. `docs/book/src/internals/performance.md` has the results and their
//! limits.
#![deny(unsafe_code)]

mod args;
mod bounds;
mod connect;
mod crowd;
mod echo;
mod fanout;
mod generator;
mod hello;
mod http;
mod http2;
mod http3;
mod idle;
mod ingest;
mod keys;
mod load;
mod nginx;
mod plain_mio;
#[cfg(target_os = "linux")]
mod plain_ring;
mod process;
mod programs;
mod report;
mod round;
mod scaling;
mod slow;
mod syscalls;
mod target;
mod tls;

use std::fs;

use clap::Parser;

use crate::args::{Cli, Command};

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let cli = Cli::parse();
    // The servers inherit this limit.
    sinews_engine::raise_descriptor_limit()?;
    match cli.command {
        Some(Command::PlainMio { port }) => plain_mio::run(port),
        #[cfg(target_os = "linux")]
        Some(Command::PlainRing { port }) => plain_ring::run(port),
        #[cfg(not(target_os = "linux"))]
        Some(Command::PlainRing { .. }) => Err("io_uring is a part of Linux".into()),
        Some(Command::Fanout(args)) => fanout::run(&args),
        Some(Command::Crowd(args)) => crowd::run(&args),
        Some(Command::Slow(args)) => slow::run(&args),
        Some(Command::Keys(args)) => keys::run(&args),
        Some(Command::Idle(args)) => idle::run(&args),
        Some(Command::Http(args)) => http::run(&args),
        Some(Command::Http2(args)) => http2::run(&args),
        Some(Command::Http3(args)) => http3::run(&args),
        Some(Command::Hello(args)) => hello::run(&args),
        Some(Command::Ingest(args)) => ingest::run(&args),
        Some(Command::Scaling(args)) => scaling::run(&args),
        Some(Command::Syscalls(args)) => syscalls::run(&args),
        None => echo::run(&cli.echo),
    }
}

/// Pins this process to the load's core, and prints the network settings.
fn prepare_load() -> Result<(), Error> {
    process::pin_load()?;
    let default = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
    println!("Congestion control: the route's, else the system's ({}).", default.trim());
    Ok(())
}
