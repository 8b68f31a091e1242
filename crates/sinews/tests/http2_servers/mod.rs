//! Servers of HTTP/2 with WebSockets, by hyper and axum, on a loopback address.
#![allow(dead_code, unreachable_pub, reason = "each test file uses some of it")]

use std::net::SocketAddr;

use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use sinews::hyper::{Upgrade, Upgraded};
use sinews::{Bytes, WebSocket};
use tokio::net::TcpListener;

async fn echo(mut websocket: WebSocket<Upgraded>) {
    while let Some(Ok(message)) = websocket.next().await {
        if message.is_data() && websocket.send(message).await.is_err() {
            break;
        }
    }
}

/// Serves with hyper until the test ends.
pub async fn hyper_server(upgrade: Upgrade, extended_connect: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let answer = move |mut request: Request<Incoming>| {
        let upgraded = upgrade.upgrade(&mut request);
        async move {
            let (response, websocket) = match upgraded {
                Ok(upgraded) => upgraded,
                Err(error) => return Ok(error.to_response()),
            };
            tokio::spawn(async move { echo(websocket.await.expect("upgraded")).await });
            Ok::<Response<Full<Bytes>>, std::convert::Infallible>(response)
        }
    };
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            if extended_connect {
                builder.enable_connect_protocol();
            }
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), service_fn(answer.clone())));
        }
    });
    address
}

/// Serves with `axum::serve` until the test ends.
#[cfg(feature = "axum")]
pub async fn axum_server() -> SocketAddr {
    use sinews::axum::WebSocketUpgrade;
    let answer = |upgrade: WebSocketUpgrade| async move {
        let upgrade = upgrade.protocols(["v2", "v1"]);
        #[cfg(feature = "deflate")]
        let upgrade = upgrade.deflate(sinews::DeflateConfig::new());
        upgrade.on_upgrade(echo)
    };
    let app = axum::Router::new().route("/chat", axum::routing::any(answer));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Servers with the same answers.
pub async fn servers() -> Vec<SocketAddr> {
    let upgrade = Upgrade::new().subprotocols(["v2", "v1"]);
    #[cfg(feature = "deflate")]
    let upgrade = upgrade.deflate(sinews::DeflateConfig::new());
    vec![
        hyper_server(upgrade, true).await,
        #[cfg(feature = "axum")]
        axum_server().await,
    ]
}
