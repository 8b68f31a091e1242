//! A close that does not wait for the peer.

use std::time::Duration;

use sinews::{CloseCode, Config, Error};
use sinews_testkit::negotiate;

/// The Close frame of a server, code 1001 and no reason.
const CLOSE: &[u8] = b"\x88\x02\x03\xe9";

#[cfg(feature = "tokio")]
mod tokio_runtime {
    use std::sync::Arc;

    use sinews::tokio::WebSocket;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn close_now_sends_queued_messages_and_close_without_waiting_for_the_peer() {
        let (mut raw, io) = tokio::io::duplex(1 << 16);
        let negotiated = negotiate(None, None).server;
        let mut socket = WebSocket::from_negotiated(io, negotiated, Arc::default(), &[]);
        let began = Instant::now();
        socket.feed("last").await.unwrap();
        socket.close_now(CloseCode::GOING_AWAY, "").await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        let mut received = Vec::new();
        raw.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, [b"\x81\x04last", CLOSE].concat());
        socket.close_now(CloseCode::GOING_AWAY, "").await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn close_now_to_a_peer_that_takes_nothing_ends_after_close_timeout() {
        let (_raw, io) = tokio::io::duplex(1000);
        let negotiated = negotiate(None, None).server;
        let mut socket = WebSocket::from_negotiated(io, negotiated, Arc::default(), &[]);
        let began = Instant::now();
        socket.try_send(vec![0; 2000]).unwrap();
        let error = socket.close_now(CloseCode::GOING_AWAY, "").await.unwrap_err();
        assert!(
            matches!(&error, Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut),
            "{error}"
        );
        assert_eq!(began.elapsed(), Config::default().close_timeout());
    }

    #[tokio::test]
    async fn unread_input_does_not_reset_the_connection_before_the_close_arrives() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut raw = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (io, _) = listener.accept().await.unwrap();
        raw.write_all(&[b"\x82\xfe\x75\x30\0\0\0\0".to_vec(), vec![0; 30_000]].concat()).await.unwrap();
        io.readable().await.unwrap();
        let negotiated = negotiate(None, None).server;
        let mut socket = WebSocket::from_negotiated(io, negotiated, Arc::default(), &[]);
        socket.close_now(CloseCode::GOING_AWAY, "").await.unwrap();
        drop(socket);
        let mut received = Vec::new();
        raw.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, CLOSE);
    }
}

#[cfg(feature = "compio")]
mod compio_runtime {
    use std::sync::Arc;

    use compio::io::AsyncReadExt as _;
    use compio::net::{TcpListener, TcpStream};
    use compio::runtime::Runtime;
    use sinews::compio::WebSocket;

    use super::*;

    #[test]
    fn close_now_sends_queued_messages_and_close_without_waiting_for_the_peer() {
        let Ok(runtime) = Runtime::new() else { return println!("skipped: no runtime") };
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (raw, accepted) = futures_util::join!(TcpStream::connect(address), listener.accept());
            let (mut raw, (io, peer)) = (raw.unwrap(), accepted.unwrap());
            let negotiated = negotiate(None, None).server;
            // A wait for the peer would be noticed.
            let config = Config::default().with_close_timeout(Duration::from_secs(3600));
            let mut socket = WebSocket::from_negotiated(io, negotiated, Arc::new(config), &[]);
            assert_eq!(socket.get_ref().peer_addr().unwrap(), peer);
            socket.get_mut().set_nodelay(true).unwrap();
            assert!(socket.get_ref().nodelay().unwrap());
            socket.feed("last").await.unwrap();
            let close = socket.close_now(CloseCode::GOING_AWAY, "");
            compio::time::timeout(Duration::from_secs(60), close).await.expect("no wait").unwrap();
            drop(socket);
            let received = raw.read_to_end(Vec::new()).await.1;
            assert_eq!(received, [b"\x81\x04last", CLOSE].concat());
        });
    }
}

#[cfg(feature = "blocking")]
mod blocking {
    use std::io::Read as _;
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::sync::Arc;

    use sinews::blocking::WebSocket;

    use super::*;

    #[test]
    fn close_now_sends_queued_messages_and_close_without_waiting_for_the_peer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut raw = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (io, _) = listener.accept().unwrap();
        let negotiated = negotiate(None, None).server;
        let socket = WebSocket::from_negotiated(io, negotiated, Arc::new(Config::default()), &[]);
        let mut socket = socket.with_shutdown(|stream| stream.shutdown(Shutdown::Write));
        socket.feed("last").unwrap();
        socket.close_now(CloseCode::GOING_AWAY, "").unwrap();
        raw.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut received = Vec::new();
        raw.read_to_end(&mut received).unwrap();
        assert_eq!(received, [b"\x81\x04last", CLOSE].concat());
        let _: Result<(), Error> = socket.close_now(CloseCode::GOING_AWAY, "");
    }
}
