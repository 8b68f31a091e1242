//! On axum.

use std::net::SocketAddr;

use axum::Router;
use axum::response::Response;
use axum::routing::any;
use axum::serve::ListenerExt;
use sinews::axum::WebSocketUpgrade;
use tokio::net::TcpListener;

use crate::tokio::runtime;
use crate::{Error, Threads, announce, config};

pub(crate) fn run(address: SocketAddr, threads: Threads) -> Result<(), Error> {
    runtime(threads)?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        announce(listener.local_addr()?)?;
        // On failure, Nagle's delay stays enabled, which shows in the measurement.
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        Ok(axum::serve(listener, Router::new().route("/{*path}", any(upgrade))).await?)
    })
}

async fn upgrade(upgrade: WebSocketUpgrade) -> Response {
    upgrade.config(config()).on_upgrade(|mut socket| async move {
        while let Some(Ok(message)) = socket.next().await {
            if message.is_data() && socket.send(message).await.is_err() {
                break;
            }
        }
    })
}
