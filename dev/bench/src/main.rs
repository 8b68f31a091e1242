//! Plain TCP echoes, which are limits for servers' figures, and the measurement of keyed topics.
//!
//! The plain echoes, one on mio and one on io_uring, do a server's minimum work: they return the received bytes. `cargo
//! xtask compare` and `sinews bench compare` measure them beside `sinews serve`, the library (`dev/bench/library`) and
//! other libraries (`dev/bench/peers`). `docs/book/src/internals/performance.md` has the results and their limits.
#![deny(unsafe_code)]

mod keys;
mod plain_mio;
#[cfg(target_os = "linux")]
mod plain_ring;

use clap::{Parser, Subcommand};

use crate::keys::KeysArgs;

type Error = Box<dyn std::error::Error>;

/// Plain TCP echoes, and the measurement of keyed topics.
#[derive(Debug, Parser)]
#[command(name = "sinews-loopback")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The plain echo on mio: prints its address and serves until its standard input is closed.
    PlainMio {
        /// Port on 127.0.0.1; 0 picks a free port
        #[arg(default_value_t = 0)]
        port: u16,
    },
    /// The plain echo on io_uring: prints its address and serves until its standard input is closed.
    PlainRing {
        /// Port on 127.0.0.1; 0 picks a free port
        #[arg(default_value_t = 0)]
        port: u16,
    },
    /// Keys of a topic with many subscribers, some of them slow: memory, CPU time, and the age of received values.
    Keys(KeysArgs),
}

fn main() -> Result<(), Error> {
    let command = Cli::parse().command;
    sinews_engine::raise_descriptor_limit()?;
    match command {
        Command::PlainMio { port } => plain_mio::run(port),
        #[cfg(target_os = "linux")]
        Command::PlainRing { port } => plain_ring::run(port),
        #[cfg(not(target_os = "linux"))]
        Command::PlainRing { .. } => Err("io_uring is a part of Linux".into()),
        Command::Keys(args) => keys::run(&args),
    }
}
