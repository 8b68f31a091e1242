//! Echo servers on the library, written as its users would write them, for `cargo xtask compare` to measure.
//!
//! Each runs the same loop: it receives a message and calls `send` with it. All set `TCP_NODELAY`, disable
//! compression, and accept messages of up to 64 MiB; all other settings are defaults. WebSockets are echoed
//! on any path.
#![forbid(unsafe_code)]

mod axum;
mod compio;
mod plain_compio;
mod tokio;

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::thread;

use clap::{Parser, ValueEnum};
use sinews::Config;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// An echo server on the library: prints its address and serves until its standard input is closed.
#[derive(Debug, Parser)]
#[command(name = "sinews-library")]
struct Cli {
    driver: Driver,

    /// Threads of Tokio's runtime under axum
    #[arg(long, value_enum, default_value = "one")]
    threads: Threads,

    /// Port on 127.0.0.1; 0 picks a free port
    #[arg(default_value_t = 0)]
    port: u16,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Driver {
    /// Tokio on one thread
    #[value(name = "sinews-tokio")]
    Tokio,
    /// Tokio on two threads
    #[value(name = "sinews-tokio-multi")]
    TokioMulti,
    /// axum
    #[value(name = "sinews-axum")]
    Axum,
    /// compio with one thread, on io_uring
    #[value(name = "sinews-compio")]
    Compio,
    /// A plain TCP echo on compio, without the library
    PlainCompio,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Threads {
    /// Single-threaded runtime
    One,
    /// Multi-threaded runtime, with two threads
    Multi,
}

fn main() -> Result<(), Error> {
    let Cli { driver, threads, port } = Cli::parse();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    match driver {
        Driver::Tokio => tokio::run(address, Threads::One),
        Driver::TokioMulti => tokio::run(address, Threads::Multi),
        Driver::Axum => axum::run(address, threads),
        Driver::Compio => compio::run(address),
        Driver::PlainCompio => plain_compio::run(address),
    }
}

/// Prints the listen address.
fn announce(address: SocketAddr) -> Result<(), Error> {
    println!("{address}");
    Ok(io::stdout().flush()?)
}

/// Exceeds the largest message in all loads.
fn config() -> Config {
    const MESSAGE_MAX: u64 = 64 << 20;
    Config::default().with_max_message(MESSAGE_MAX).with_max_frame(MESSAGE_MAX)
}
