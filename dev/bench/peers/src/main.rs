//! Echo servers on other libraries, as their users would write them: what `sinews-loopback` measures beside
//! ours.
//!
//! Each is the library's own loop: a message comes, `send` is called with it. All run on one thread with
//! `TCP_NODELAY`, without compression, and take messages of 16 MiB; everything else is the library's default.
//! WebSockets are echoed on any path. Built only with the feature `peers`.
#![forbid(unsafe_code)]

mod axum;
mod compio;
mod hyper;
mod tokio;

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::thread;

use clap::{Parser, ValueEnum};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// An echo server on another library: prints its address and serves until its standard input is closed.
#[derive(Debug, Parser)]
#[command(name = "sinews-peers")]
struct Cli {
    peer: Peer,

    /// Port on 127.0.0.1; 0 takes a free one
    #[arg(default_value_t = 0)]
    port: u16,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Peer {
    TokioTungstenite,
    Fastwebsockets,
    TokioWebsockets,
    /// On Tokio
    Sockudo,
    /// On compio
    SockudoCompio,
    CompioWs,
    /// tungstenite over the library's `SyncBridge`
    TungsteniteBridge,
    /// Also `GET /healthz` and topics
    Axum,
    /// `GET /healthz` alone
    Hyper,
}

fn main() -> Result<(), Error> {
    let Cli { peer, port } = Cli::parse();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    match peer {
        Peer::TokioTungstenite => tokio::run(address, tokio::tungstenite),
        Peer::Fastwebsockets => tokio::run(address, hyper::fastwebsockets),
        Peer::TokioWebsockets => tokio::run(address, tokio::websockets),
        Peer::Sockudo => tokio::run(address, tokio::sockudo),
        Peer::SockudoCompio => compio::run(address, compio::sockudo),
        Peer::CompioWs => compio::run(address, compio::compio_ws),
        Peer::TungsteniteBridge => compio::run(address, compio::tungstenite),
        Peer::Axum => axum::run(address),
        Peer::Hyper => tokio::run(address, hyper::healthz),
    }
}

/// Says where the server listens.
fn announce(address: SocketAddr) -> Result<(), Error> {
    println!("{address}");
    Ok(io::stdout().flush()?)
}

/// Above the largest message of any load.
const MESSAGE_MAX: usize = 64 << 20;
