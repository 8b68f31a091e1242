//! Echo servers on the library, as its users would write them: what `sinews-loopback` measures.
//!
//! Each is the same loop: a message comes, `send` is called with it. All have `TCP_NODELAY`, no compression, and take
//! messages of 64 MiB; everything else is the default. WebSockets are echoed on any path.
#![forbid(unsafe_code)]

mod axum;
mod compio;
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

    /// Port on 127.0.0.1; 0 takes a free one
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
    /// compio, which is one thread, on io_uring
    #[value(name = "sinews-compio")]
    Compio,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Threads {
    /// The runtime of one thread
    One,
    /// The runtime of many, with two
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
    }
}

/// Says where the server listens.
fn announce(address: SocketAddr) -> Result<(), Error> {
    println!("{address}");
    Ok(io::stdout().flush()?)
}

/// Above the largest message of any load.
fn config() -> Config {
    const MESSAGE_MAX: u64 = 64 << 20;
    Config::default().with_max_message(MESSAGE_MAX).with_max_frame(MESSAGE_MAX)
}
