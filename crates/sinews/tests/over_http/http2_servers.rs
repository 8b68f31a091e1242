//! Servers of HTTP/2 with WebSockets, by hyper and axum, on a loopback address.
#![allow(dead_code, unreachable_pub, reason = "each feature needs some of it")]

use std::convert::Infallible;
use std::net::SocketAddr;

use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use sinews::hyper::{Upgrade, Upgraded};
use sinews::{Bytes, WebSocket};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;

use crate::spawn::spawn;

pub type Answer = Response<Full<Bytes>>;

pub async fn echo(mut websocket: WebSocket<Upgraded>) {
    while let Some(Ok(message)) = websocket.next().await {
        if message.is_data() && websocket.send(message).await.is_err() {
            break;
        }
    }
}

/// Accepts the request and runs the script with the WebSocket, or answers with the rejection.
pub fn upgrade<Fut: Future<Output = ()> + Send + 'static>(
    upgrade: &Upgrade,
    mut request: Request<Incoming>,
    script: impl FnOnce(WebSocket<Upgraded>) -> Fut + Send + 'static,
) -> Answer {
    match upgrade.upgrade(&mut request) {
        Ok((response, websocket)) => {
            spawn(async move { script(websocket.await.expect("upgraded")).await });
            response
        }
        Err(error) => error.to_response(),
    }
}

/// Serves one connection.
pub async fn serve_connection<S, F>(stream: S, change: fn(&mut Builder<TokioExecutor>), answer: F)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>) -> Answer + Clone + Send + 'static,
{
    let mut builder = Builder::new(TokioExecutor::new());
    builder.enable_connect_protocol();
    change(&mut builder);
    let service = service_fn(move |request| std::future::ready(Ok::<_, Infallible>(answer(request))));
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

/// Serves with hyper until the test ends.
pub async fn serve_http2<F>(change: fn(&mut Builder<TokioExecutor>), answer: F) -> SocketAddr
where
    F: Fn(Request<Incoming>) -> Answer + Clone + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            spawn(serve_connection(stream, change, answer.clone()));
        }
    });
    address
}

/// Echoes with hyper.
pub async fn hyper_server(settings: Upgrade) -> SocketAddr {
    serve_http2(|_| {}, move |request| upgrade(&settings, request, echo)).await
}

/// Echoes with `axum::serve`.
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
    spawn(async move { axum::serve(listener, app).await });
    address
}

/// Servers with the same answers.
pub async fn servers() -> Vec<SocketAddr> {
    let upgrade = Upgrade::new().subprotocols(["v2", "v1"]);
    #[cfg(feature = "deflate")]
    let upgrade = upgrade.deflate(sinews::DeflateConfig::new());
    vec![
        hyper_server(upgrade).await,
        #[cfg(feature = "axum")]
        axum_server().await,
    ]
}
