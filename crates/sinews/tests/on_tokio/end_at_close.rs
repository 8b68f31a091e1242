//! The end of a connection whose peer keeps the transport open after the Closes, on Tokio with a paused clock.

use std::sync::Arc;
use std::time::Duration;

use sinews::tokio::WebSocket;
use sinews::{Cause, CloseCode, Config, Message, Negotiated, Role};
use sinews_testkit::Frame;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// The end of the transport within this time would not be noticed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3600);

/// Bound of each test, below [`CLOSE_TIMEOUT`].
const BOUND: Duration = Duration::from_secs(60);

fn config(ends: bool) -> Arc<Config> {
    Arc::new(Config::default().with_close_timeout(CLOSE_TIMEOUT).with_end_at_close(ends))
}

/// A connection of this role, and its raw peer.
async fn connected(role: Role, ends: bool) -> (WebSocket<TcpStream>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let raw = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("connected");
    let (stream, _) = listener.accept().await.expect("accepted");
    (WebSocket::from_negotiated(stream, Negotiated::websocket(role), config(ends), &[]), raw)
}

fn peer(role: Role) -> Role {
    match role {
        Role::Server => Role::Client,
        Role::Client => Role::Server,
    }
}

fn close_of_the_peer(role: Role) -> Vec<u8> {
    Frame::close(1000, "done").encode(peer(role))
}

#[tokio::test]
async fn receiver_ends_at_the_close_of_a_peer_that_keeps_tcp_open() {
    for role in [Role::Server, Role::Client] {
        let (mut ws, mut raw) = connected(role, true).await;
        raw.write_all(&close_of_the_peer(role)).await.expect("open");
        let ended = async {
            assert!(ws.next().await.expect("a Close").expect("sound").is_close());
            assert!(ws.next().await.is_none());
        };
        tokio::time::timeout(BOUND, ended).await.expect("no wait for the end of TCP");
        assert_eq!(ws.closed().expect("ended").cause(), Cause::Peer);
        // The reply has left, and the sending side has ended.
        let mut answer = Vec::new();
        raw.read_to_end(&mut answer).await.expect("no reset");
        assert_eq!(answer[0], 0x88);
    }
}

#[tokio::test]
async fn closer_ends_with_the_answer_of_a_peer_that_keeps_tcp_open() {
    for role in [Role::Server, Role::Client] {
        let (mut ws, mut raw) = connected(role, true).await;
        raw.write_all(&Frame::text("late").encode(peer(role))).await.expect("open");
        raw.write_all(&close_of_the_peer(role)).await.expect("open");
        let closing = ws.close(CloseCode::NORMAL, "");
        let closed = tokio::time::timeout(BOUND, closing).await.expect("no wait for the end of TCP");
        assert!(closed.expect("in order").is_orderly());
    }
}

#[tokio::test]
async fn reading_half_ends_at_the_close_of_a_peer_that_keeps_tcp_open() {
    for role in [Role::Server, Role::Client] {
        let (ws, mut raw) = connected(role, true).await;
        let (mut write, mut read) = ws.split();
        write.send("hello").await.expect("open");
        raw.write_all(&close_of_the_peer(role)).await.expect("open");
        let ended = async { while read.next().await.transpose().expect("sound").is_some() {} };
        tokio::time::timeout(BOUND, ended).await.expect("no wait for the end of TCP");
        let mut answer = Vec::new();
        raw.read_to_end(&mut answer).await.expect("no reset");
        assert!(answer.len() > 7, "the message and the Close: {answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn receiver_waits_for_the_end_of_the_transport_by_default() {
    for role in [Role::Server, Role::Client] {
        let (raw, near) = tokio::io::duplex(1024);
        let (mut raw, negotiated) = (raw, Negotiated::websocket(role));
        let mut ws = WebSocket::from_negotiated(near, negotiated, config(false), &[]);
        raw.write_all(&close_of_the_peer(role)).await.expect("open");
        assert!(ws.next().await.expect("a Close").expect("sound").is_close());
        let start = Instant::now();
        assert!(ws.next().await.is_none());
        assert!(start.elapsed() >= CLOSE_TIMEOUT, "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn faulty_peer_is_still_drained() {
    let (mut raw, near) = tokio::io::duplex(1024);
    let mut ws = WebSocket::from_negotiated(near, Negotiated::websocket(Role::Server), config(true), &[]);
    raw.write_all(&[0xf1, 0x80, 0, 0, 0, 0]).await.expect("open");
    let start = Instant::now();
    assert!(ws.next().await.expect("an end").is_err());
    assert!(start.elapsed() >= CLOSE_TIMEOUT, "a reset could overtake the Close");
}

#[tokio::test]
async fn raw_socket_is_a_websocket_without_a_handshake() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("connected");
    let (server, _) = listener.accept().await.expect("accepted");
    let mut client =
        WebSocket::from_negotiated(client, Negotiated::websocket(Role::Client), Arc::default(), &[]);
    let early = Frame::text("early").encode(Role::Client);
    let mut server =
        WebSocket::from_negotiated(server, Negotiated::websocket(Role::Server), Arc::default(), &early);
    assert_eq!(server.next().await.expect("open").expect("sound"), Message::text("early"));
    client.send("hello").await.expect("open");
    assert_eq!(server.next().await.expect("open").expect("sound"), Message::text("hello"));
    server.send(vec![1; 100_000]).await.expect("open");
    assert_eq!(client.next().await.expect("open").expect("sound").len(), 100_000);
    let ending = async move { while server.next().await.transpose().expect("sound").is_some() {} };
    let (closed, ()) = tokio::join!(client.close(CloseCode::NORMAL, ""), ending);
    assert!(closed.expect("in order").is_orderly());
}
