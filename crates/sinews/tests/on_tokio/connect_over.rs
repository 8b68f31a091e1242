//! The handshake over a custom stream, which needs no feature except `tokio`.

use std::future::IntoFuture as _;
use std::time::Duration;

use crate::servers::{assert_echoes, echo, header, read_head};
use crate::spawn::spawn;
use sinews::client::ConnectPhase;
use sinews::{CloseCode, Config, ConnectError, connect};
use tokio::io::AsyncWriteExt as _;

#[tokio::test(start_paused = true)]
async fn rejection_without_an_end_returns_after_a_second_of_silence() {
    let (client, mut server) = tokio::io::duplex(1024);
    let opening = spawn(connect("ws://example.com/").over(client).into_future());
    read_head(&mut server).await;
    server.write_all(b"HTTP/1.1 503 Service Unavailable\r\n\r\nlater").await.expect("the client reads");
    let start = tokio::time::Instant::now();
    let error = opening.await.expect("no panic").expect_err("refused");
    assert!(matches!(&error, ConnectError::Rejected(response) if response.body() == b"later"), "{error:?}");
    assert_eq!(start.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn silent_server_times_out() {
    let (client, server) = tokio::io::duplex(1024);
    let opening = connect("ws://example.com/").timeout(Duration::from_secs(3)).over(client);
    let start = tokio::time::Instant::now();
    let error = opening.await.expect_err("no answer");
    assert!(error.is_timeout() && start.elapsed() >= Duration::from_secs(3));
    assert_eq!(
        error.to_string(),
        "WebSocket handshake with example.com:80 exceeded the timeout of 3s (Connect::timeout)"
    );
    assert!(matches!(error, ConnectError::TimedOut { phase: ConnectPhase::Handshake, .. }));
    drop(server);

    // Single bytes do not extend the timeout.
    let (client, mut server) = tokio::io::duplex(1024);
    let opening = spawn(connect("ws://example.com/").over(client).into_future());
    let start = tokio::time::Instant::now();
    while server.write_all(b"H").await.is_ok() {
        tokio::time::sleep(Duration::from_millis(1900)).await;
    }
    assert!(opening.await.expect("no panic").expect_err("no answer").is_timeout());
    assert!(start.elapsed() < Duration::from_secs(22));
}

#[tokio::test]
async fn custom_stream_needs_no_socket() {
    let (client, server) = tokio::io::duplex(1024);
    let echo = spawn(echo(server));
    let opening = connect("wss://example.com/chat").subprotocol("v1").config(Config::default()).over(client);
    let (mut ws, response) = opening.open().await.expect("connected");
    assert_eq!(response.subprotocol(), Some("v1"));
    assert_echoes(&mut ws).await;
    ws.close(CloseCode::NORMAL, "").await.expect("in order");
    assert_eq!(header(&echo.await.expect("no panic"), "host"), Some("example.com"));
}
