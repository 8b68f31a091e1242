//! Scripted servers on a loopback address.
#![allow(dead_code, unreachable_pub, reason = "each feature needs some of it")]

use std::net::SocketAddr;
use std::sync::Arc;

use sinews::tokio::WebSocket;
use sinews::{Config, Message};
use sinews_proto::deflate::DeflateConfig;
use sinews_proto::handshake::{ServerOptions, accept};
use sinews_proto::http::{HeadLimits, HeaderSlots, RequestHead};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::spawn::spawn;

/// Serves connections in sequence, until the runtime of the test ends.
pub async fn serve<F, R>(mut script: F) -> SocketAddr
where
    F: FnMut(TcpStream) -> R + Send + 'static,
    R: Future<Output = ()> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound");
    spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            script(stream).await;
        }
    });
    address
}

/// An address without a listener: port 1. A free port of the system could become that of another test.
pub async fn nobody() -> SocketAddr {
    ([127, 0, 0, 1], 1).into()
}

/// A head up to its empty line; empty if the client ends the connection earlier.
pub async fn read_head<S: AsyncRead + Unpin>(stream: &mut S) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return String::new() };
        head.push(byte);
    }
    String::from_utf8(head).expect("text")
}

/// The value of a header.
pub fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

/// The response to a request, with the first of these subprotocols that it offers.
pub fn answer(head: &str, subprotocols: &[&str]) -> (Vec<u8>, sinews_proto::Negotiated) {
    let mut slots = HeaderSlots::new();
    let head = RequestHead::parse(head.as_bytes(), &HeadLimits::new(), &mut slots).expect("a sound head");
    let mut options = ServerOptions::new().with_deflate(DeflateConfig::new());
    for name in subprotocols {
        options = options.with_subprotocol(*name).expect("sound");
    }
    let accepted = accept(&head, &options).expect("a sound request");
    let mut response = Vec::new();
    accepted.write_response(&[("Set-Cookie", "seen=1")], &mut response).expect("sound");
    (response, accepted.negotiated())
}

/// Accepts, and echoes until the connection has ended. Returns the request.
pub async fn echo<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) -> String {
    let head = read_head(&mut stream).await;
    if head.is_empty() {
        return head;
    }
    let (response, negotiated) = answer(&head, &["v2", "v1"]);
    stream.write_all(&response).await.expect("the client reads");
    stream.flush().await.expect("the client reads");
    let mut ws = WebSocket::from_negotiated(stream, negotiated, Arc::new(Config::default()), &[]);
    while let Some(Ok(message)) = ws.next().await {
        if let Message::Text(_) | Message::Binary(_) = message {
            ws.send(message).await.expect("the client reads");
        }
    }
    head
}

/// Serves echoes, and sends the request of each connection when it has ended.
pub async fn recording_echo() -> (SocketAddr, mpsc::UnboundedReceiver<String>) {
    let (heads, seen) = mpsc::unbounded_channel();
    let script = move |stream| {
        let heads = heads.clone();
        async move { heads.send(echo(stream).await).expect("the test waits") }
    };
    (serve(script).await, seen)
}

/// Asserts that a message is echoed.
pub async fn assert_echoes<S: AsyncRead + AsyncWrite + Unpin>(ws: &mut WebSocket<S>) {
    ws.send("ahoy").await.expect("open");
    let message = ws.next().await.expect("open").expect("sound");
    assert_eq!(message, Message::text("ahoy"));
}
