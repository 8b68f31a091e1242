//! Echo servers on other libraries, written as their users would write them: `cargo xtask compare` measures them
//! beside ours.
//!
//! Each is the library's own loop: it receives a message and calls `send` with it. All run with
//! `TCP_NODELAY`, without compression, and accept messages of up to 64 MiB; all other settings are the
//! library's defaults. WebSockets are echoed on any path. Built only with the feature `peers`.
//!
//! Each also has the fastest form in the library's documentation, or else its source: answers to messages
//! that arrived together are gathered and written at once. Each library's module describes its form.
#![forbid(unsafe_code)]

mod actix;
mod axum;
mod compio;
mod feed;
mod http2;
mod hyper;
mod ingest;
mod tokio;

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;

use clap::{Parser, ValueEnum};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// An echo server on another library: prints its address and serves until its standard input is closed.
#[derive(Debug, Parser)]
#[command(name = "sinews-peers")]
struct Cli {
    peer: Peer,

    /// Threads of Tokio's runtime, for servers on Tokio
    #[arg(long, value_enum, default_value = "one")]
    threads: Threads,

    /// Address of Kafka, for servers that write to it
    #[arg(long, default_value = "127.0.0.1:19092")]
    kafka: String,

    /// Topic of the messages
    #[arg(long, default_value = "ingest")]
    topic: String,

    /// Certificate of servers with TLS, in PEM
    #[arg(long, default_value = "certificate.pem")]
    certificate: PathBuf,

    /// Its key
    #[arg(long, default_value = "key.pem")]
    key: PathBuf,

    /// Port on 127.0.0.1; 0 picks a free port
    #[arg(default_value_t = 0)]
    port: u16,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Threads {
    /// Single-threaded runtime
    One,
    /// Multi-threaded runtime, with two threads
    Multi,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Peer {
    TokioTungstenite,
    /// On Tokio with `feed`, and one flush for messages that arrived together
    TokioTungsteniteFeed,
    /// On Tokio with `feed` and a read buffer of 4 KiB
    #[value(name = "tokio-tungstenite-feed-4k")]
    TokioTungsteniteFeed4k,
    Fastwebsockets,
    /// With a write buffer that is flushed when no further message has arrived
    FastwebsocketsBuffered,
    TokioWebsockets,
    /// On Tokio with `feed`, and one flush for messages that arrived together
    TokioWebsocketsFeed,
    /// On Tokio
    Sockudo,
    /// On Tokio, with `feed`
    SockudoFeed,
    /// On compio
    SockudoCompio,
    /// On compio, with the best flags for its ring
    SockudoCompioTuned,
    CompioWs,
    /// With `feed`, one flush for messages that arrived together, and the best flags for its ring
    CompioWsFeed,
    /// With `feed`, the best flags for its ring, and a read buffer of 4 KiB
    #[value(name = "compio-ws-feed-4k")]
    CompioWsFeed4k,
    /// tungstenite over the library's `SyncBridge`
    TungsteniteBridge,
    /// Also `GET /healthz`, `GET /hello` and topics
    Axum,
    /// With `feed`, and one flush for messages that arrived together
    AxumFeed,
    /// With `feed` and a read buffer of 4 KiB
    #[value(name = "axum-feed-4k")]
    AxumFeed4k,
    /// `GET /healthz` and `GET /hello`
    Hyper,
    /// `GET /hello` alone
    ActixWeb,
    /// axum over HTTP/2 with TLS
    AxumHttp2,
    /// hyper over HTTP/2 with TLS
    HyperHttp2,
    /// hyper on Tokio: each `POST` becomes one message of Kafka
    KafkaHyper,
    /// hyper on compio: each `POST` becomes one message of Kafka
    KafkaHyperCompio,
}

fn main() -> Result<(), Error> {
    let Cli { peer, threads, kafka, topic, certificate, key, port } = Cli::parse();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    if matches!(peer, Peer::KafkaHyper | Peer::KafkaHyperCompio) {
        ingest::connect(&kafka, &topic)?;
    }
    let tls = http2::TlsFiles { certificate: &certificate, key: &key };
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
        Peer::AxumHttp2 => http2::axum(address, threads, tls),
        Peer::HyperHttp2 => http2::hyper(address, threads, tls),
        Peer::KafkaHyper => tokio::run(address, threads, ingest::tokio),
        Peer::KafkaHyperCompio => compio::run(address, compio::Ring::Tuned, ingest::compio),
    }
}

/// Prints the listen address.
fn announce(address: SocketAddr) -> Result<(), Error> {
    println!("{address}");
    Ok(io::stdout().flush()?)
}

/// Response body for `GET /hello`, as plain text.
const HELLO: &str = "Hello, world!";

/// Exceeds the largest message in all loads.
const MESSAGE_MAX: usize = 64 << 20;

/// tungstenite's default; its documentation recommends it for heavy reads.
const READ_BUFFER: usize = 128 << 10;

/// Its documentation recommends this for many connections. It also has the lowest cost for small messages,
/// since the library zeroes the buffer before each read.
const READ_LITTLE: usize = 4 << 10;
