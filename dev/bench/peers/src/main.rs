//! Echo servers on other libraries, as their users would write them: what `sinews-loopback` measures beside
//! ours.
//!
//! Each is the library's own loop: a message comes, `send` is called with it. All run with `TCP_NODELAY`, without
//! compression, and take messages of 64 MiB; everything else is the library's default. WebSockets are echoed on any
//! path. Built only with the feature `peers`.
//!
//! Beside it stands what the library's documentation, or else its source, shows to be the fastest: answers to what
//! came together are gathered, and written at once. Each says in its module how.
#![forbid(unsafe_code)]

mod actix;
mod axum;
mod compio;
mod feed;
mod hyper;
mod ingest;
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

    /// Threads of Tokio's runtime, for what runs on it
    #[arg(long, value_enum, default_value = "one")]
    threads: Threads,

    /// Where Kafka is, for what writes to it
    #[arg(long, default_value = "127.0.0.1:19092")]
    kafka: String,

    /// The topic there
    #[arg(long, default_value = "ingest")]
    topic: String,

    /// Port on 127.0.0.1; 0 takes a free one
    #[arg(default_value_t = 0)]
    port: u16,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Threads {
    /// The runtime of one thread
    One,
    /// The runtime of many, with two
    Multi,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Peer {
    TokioTungstenite,
    /// `feed`, and a flush for all that came together
    TokioTungsteniteFeed,
    /// The same, with 4 KiB to read into
    #[value(name = "tokio-tungstenite-feed-4k")]
    TokioTungsteniteFeed4k,
    Fastwebsockets,
    /// Through a buffer that is flushed when nothing more has come
    FastwebsocketsBuffered,
    TokioWebsockets,
    /// `feed`, and a flush for all that came together
    TokioWebsocketsFeed,
    /// On Tokio
    Sockudo,
    /// On Tokio, with `feed`
    SockudoFeed,
    /// On compio
    SockudoCompio,
    /// On compio with a ring of its best flags
    SockudoCompioTuned,
    CompioWs,
    /// `feed`, and a flush for all that came together; a ring of its best flags
    CompioWsFeed,
    /// The same, with 4 KiB to read into
    #[value(name = "compio-ws-feed-4k")]
    CompioWsFeed4k,
    /// tungstenite over the library's `SyncBridge`
    TungsteniteBridge,
    /// Also `GET /healthz`, `GET /hello` and topics
    Axum,
    /// `feed`, and a flush for all that came together
    AxumFeed,
    /// The same, with 4 KiB to read into
    #[value(name = "axum-feed-4k")]
    AxumFeed4k,
    /// `GET /healthz` and `GET /hello`
    Hyper,
    /// `GET /hello` alone
    ActixWeb,
    /// hyper on Tokio: each `POST` becomes one message of Kafka
    KafkaHyper,
    /// The same on compio
    KafkaHyperCompio,
}

fn main() -> Result<(), Error> {
    let Cli { peer, threads, kafka, topic, port } = Cli::parse();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    if matches!(peer, Peer::KafkaHyper | Peer::KafkaHyperCompio) {
        ingest::connect(&kafka, &topic)?;
    }
    match peer {
        Peer::TokioTungstenite => tokio::run(address, threads, tokio::tungstenite),
        Peer::TokioTungsteniteFeed => tokio::run(address, threads, tokio::tungstenite_feed::<READ_BUFFER>),
        Peer::TokioTungsteniteFeed4k => tokio::run(address, threads, tokio::tungstenite_feed::<READ_LITTLE>),
        Peer::Fastwebsockets => tokio::run(address, threads, hyper::fastwebsockets),
        Peer::FastwebsocketsBuffered => tokio::run(address, threads, hyper::fastwebsockets_buffered),
        Peer::TokioWebsockets => tokio::run(address, threads, tokio::websockets),
        Peer::TokioWebsocketsFeed => tokio::run(address, threads, tokio::websockets_feed),
        Peer::Sockudo => tokio::run(address, threads, tokio::sockudo),
        Peer::SockudoFeed => tokio::run(address, threads, tokio::sockudo_feed),
        Peer::SockudoCompio => compio::run(address, compio::Ring::Default, compio::sockudo),
        Peer::SockudoCompioTuned => compio::run(address, compio::Ring::Tuned, compio::sockudo),
        Peer::CompioWs => compio::run(address, compio::Ring::Default, compio::compio_ws),
        Peer::CompioWsFeed => {
            compio::run(address, compio::Ring::Tuned, compio::compio_ws_feed::<READ_BUFFER>)
        }
        Peer::CompioWsFeed4k => {
            compio::run(address, compio::Ring::Tuned, compio::compio_ws_feed::<READ_LITTLE>)
        }
        Peer::TungsteniteBridge => compio::run(address, compio::Ring::Default, compio::tungstenite),
        Peer::Axum => axum::run(address, threads, axum::Echo::Send),
        Peer::AxumFeed => axum::run(address, threads, axum::Echo::Feed { read_buffer: READ_BUFFER }),
        Peer::AxumFeed4k => axum::run(address, threads, axum::Echo::Feed { read_buffer: READ_LITTLE }),
        Peer::Hyper => tokio::run(address, threads, hyper::requests),
        Peer::ActixWeb => actix::run(address, threads),
        Peer::KafkaHyper => tokio::run(address, threads, ingest::tokio),
        Peer::KafkaHyperCompio => compio::run(address, compio::Ring::Tuned, ingest::compio),
    }
}

/// Says where the server listens.
fn announce(address: SocketAddr) -> Result<(), Error> {
    println!("{address}");
    Ok(io::stdout().flush()?)
}

/// What `GET /hello` is answered with, as plain text.
const HELLO: &str = "Hello, world!";

/// Above the largest message of any load.
const MESSAGE_MAX: usize = 64 << 20;

/// tungstenite's default, and what its documentation says is for much to read.
const READ_BUFFER: usize = 128 << 10;

/// What its documentation says is for many connections. It is also what costs least where messages are small, since
/// the buffer is filled with zeros before each read.
const READ_LITTLE: usize = 4 << 10;
