//! A close that does not wait for the peer, on Tokio.

use std::sync::Arc;
use std::time::Duration;

use crate::each_runtime::close_now::CLOSE;
use futures_util::FutureExt as _;
use sinews::tokio::WebSocket;
use sinews::{CloseCode, Config, Error, Sent};
use sinews_testkit::negotiate;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

fn socket<S: AsyncRead + AsyncWrite + Unpin>(io: S) -> WebSocket<S> {
    WebSocket::from_negotiated(io, negotiate(None, None).server, Arc::default(), &[])
}

async fn received_by(mut raw: impl AsyncRead + Unpin) -> Vec<u8> {
    let mut received = Vec::new();
    raw.read_to_end(&mut received).await.unwrap();
    received
}

#[tokio::test(start_paused = true)]
async fn close_now_of_a_half_to_a_peer_that_takes_nothing_ends_both_after_close_timeout() {
    for by_writer in [true, false] {
        let (_raw, io) = tokio::io::duplex(1000);
        let (mut write, mut read) = socket(io).split();
        let began = Instant::now();
        assert_eq!(write.try_send(vec![0; 2000]).unwrap(), Sent::Queued);
        // Half of it has left, the rest waits.
        assert!(tokio::time::timeout(Duration::ZERO, write.flush()).await.is_err());
        let closed = match by_writer {
            true => write.close_now(CloseCode::GOING_AWAY, "").await,
            false => read.close_now(CloseCode::GOING_AWAY, "").await,
        };
        let timed_out = std::io::ErrorKind::TimedOut;
        assert!(matches!(&closed, Err(Error::Io(error)) if error.kind() == timed_out), "{closed:?}");
        assert!(began.elapsed() - Config::default().close_timeout() < Duration::from_millis(2));
        assert!(read.next().await.is_none());
        assert!(write.send("late").await.is_err());
    }
}

/// A socket that is closed with unread input is reset, and a reset may overtake the Close.
#[tokio::test]
async fn close_now_of_either_half_drops_received_input() {
    for by_writer in [true, false] {
        let (mut raw, io) = tokio::io::duplex(1024);
        raw.write_all(&[b"\x82\xfe\x03\xf8\0\0\0\0".to_vec(), vec![0; 1016]].concat()).await.unwrap();
        assert!(raw.write(b"\x89").now_or_never().is_none(), "the transport is full");
        let (mut write, mut read) = socket(io).split();
        match by_writer {
            true => write.close_now(CloseCode::GOING_AWAY, "").await.unwrap(),
            false => read.close_now(CloseCode::GOING_AWAY, "").await.unwrap(),
        }
        assert!(raw.write(b"\x89").now_or_never().is_some(), "the input was read");
        assert_eq!(received_by(raw).await, CLOSE);
    }
}

#[tokio::test(start_paused = true)]
async fn close_now_to_a_peer_that_takes_nothing_ends_after_close_timeout() {
    let (_raw, io) = tokio::io::duplex(1000);
    let mut socket = socket(io);
    let began = Instant::now();
    assert_eq!(socket.try_send(vec![0; 2000]).unwrap(), Sent::Queued);
    let error = socket.close_now(CloseCode::GOING_AWAY, "").await.unwrap_err();
    assert!(matches!(&error, Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut), "{error}");
    assert_eq!(began.elapsed(), Config::default().close_timeout());
}

#[tokio::test]
async fn unread_input_does_not_reset_the_connection_before_the_close_arrives() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut raw = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (io, _) = listener.accept().await.unwrap();
    raw.write_all(&[b"\x82\xfe\x75\x30\0\0\0\0".to_vec(), vec![0; 30_000]].concat()).await.unwrap();
    io.readable().await.unwrap();
    let mut socket = socket(io);
    socket.close_now(CloseCode::GOING_AWAY, "").await.unwrap();
    drop(socket);
    assert_eq!(received_by(raw).await, CLOSE);
}
