//! Echoes messages, as a route of axum: `echo-axum [ADDRESS]`, by default on `127.0.0.1:8080`.
#![forbid(unsafe_code)]

use std::env;
use std::error::Error;

use axum::Router;
use axum::response::Response;
use axum::routing::any;
use axum::serve::ListenerExt as _;
use sinews::DeflateConfig;
use sinews::axum::{WebSocket, WebSocketUpgrade};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let listener = TcpListener::bind(&address).await?;
    println!("listening on {}", listener.local_addr()?);
    let listener = listener.tap_io(|tcp| {
        if let Err(error) = tcp.set_nodelay(true) {
            println!("TCP_NODELAY: {error}");
        }
    });
    Ok(axum::serve(listener, Router::new().route("/", any(upgrade))).await?)
}

async fn upgrade(upgrade: WebSocketUpgrade) -> Response {
    upgrade.deflate(DeflateConfig::new()).on_upgrade(async |ws| {
        if let Err(error) = echo(ws).await {
            println!("{error}");
        }
    })
}

async fn echo(mut ws: WebSocket) -> Result<(), sinews::Error> {
    while let Some(message) = ws.next().await {
        let message = message?;
        if message.is_data() {
            ws.send(message).await?;
        }
    }
    Ok(())
}
