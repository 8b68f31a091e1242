//! Tests on compio, over a pair of sockets.
#![allow(dead_code, unreachable_pub, reason = "each feature needs some of it")]

use std::sync::Arc;
use std::time::Duration;

use compio::net::UnixStream;
use compio::runtime::Runtime;
use sinews::compio::WebSocket;
use sinews_testkit::negotiate;

/// Runs on compio; prints a note on machines without io_uring.
pub fn run<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    match Runtime::new() {
        Ok(runtime) => runtime.block_on(async {
            compio::time::timeout(Duration::from_secs(60), test()).await.expect("bounded in time");
        }),
        Err(error) => println!("skipped: no runtime: {error}"),
    }
}

pub type End = WebSocket<UnixStream>;

pub fn sockets() -> (UnixStream, UnixStream) {
    let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
    (UnixStream::from_std(one).unwrap(), UnixStream::from_std(other).unwrap())
}

/// A client and its server.
pub fn pair() -> (End, End) {
    let agreed = negotiate(None, None);
    let (client, server) = sockets();
    (
        WebSocket::from_negotiated(client, agreed.client, Arc::default(), &[]),
        WebSocket::from_negotiated(server, agreed.server, Arc::default(), &[]),
    )
}

/// A server against a raw peer.
pub fn server_and_raw() -> (End, UnixStream) {
    let (raw, server) = sockets();
    (WebSocket::from_negotiated(server, negotiate(None, None).server, Arc::default(), &[]), raw)
}
