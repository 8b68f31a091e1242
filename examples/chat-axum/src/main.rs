//! # chat-axum
//!
//! A chat with rooms, names, presence and history.
//!
//! ```sh
//! cargo run -p chat-axum                       # http://127.0.0.1:3000/
//! cargo run -p chat-axum -- 0.0.0.0:8080
//! ```
//!
//! Open the page twice, or connect from a terminal with any WebSocket client:
//!
//! ```text
//! ws://127.0.0.1:3000/rooms/lobby?name=Ada
//! > {"say": "Hello"}
//! ```
//!
//! `/healthz` returns the number of rooms and people. Ctrl-C closes all connections with 1001; the pages
//! reconnect when the server runs again. `RUST_LOG=chat_axum=debug` logs joins and leaves.
//!
//! Behind a proxy that changes `Host`, set the public origin in `Options::origins`; otherwise no page may
//! connect.
#![forbid(unsafe_code)]

use std::error::Error;

use chat_axum::Options;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let filter: Targets = std::env::var("RUST_LOG").as_deref().unwrap_or("info").parse()?;
    tracing_subscriber::registry().with(tracing_subscriber::fmt::layer()).with(filter).init();
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = TcpListener::bind(&address).await?;
    tracing::info!("open http://{}/", listener.local_addr()?);
    let mut terminate = signal(SignalKind::terminate())?;
    let shutdown = async move {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        tracing::info!("stopping");
    };
    Ok(chat_axum::serve(listener, Options::default(), shutdown).await?)
}
