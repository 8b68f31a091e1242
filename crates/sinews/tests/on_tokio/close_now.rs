//! A close that does not wait for the peer.

use std::time::Duration;

use sinews::{Cause, CloseCode, Config, Error, Sent};
use sinews_testkit::negotiate;

/// The Close frame of a server, code 1001 and no reason.
const CLOSE: &[u8] = b"\x88\x02\x03\xe9";

/// Closes by the writing half while a task waits for a message. `$read` reads all that the peer receives.
macro_rules! close_by_the_writer {
    ($socket:expr, $spawn:expr, $received:expr) => {{
        let (mut write, mut read) = $socket.split();
        let reading = $spawn(async move { (read.next().await.is_none(), read) });
        write.feed("last").await.unwrap();
        write.close_now(CloseCode::GOING_AWAY, "").await.unwrap();
        assert_eq!($received, [b"\x81\x04last", CLOSE].concat());
        let (is_over, mut read) = reading.await.unwrap();
        assert!(is_over && read.next().await.is_none());
        for closed in [write.closed(), read.closed()] {
            let closed = closed.expect("the halves know the end");
            assert_eq!((closed.cause(), closed.code()), (Cause::Local, Some(CloseCode::GOING_AWAY)));
        }
        write.close_now(CloseCode::NORMAL, "").await.unwrap();
        read.close_now(CloseCode::NORMAL, "").await.unwrap();
        assert!(matches!(write.send("late").await, Err(Error::Closed(_))));
    }};
}

/// Closes by the reading half while the writing half lives.
macro_rules! close_by_the_reader {
    ($socket:expr, $received:expr) => {{
        let (mut write, mut read) = $socket.split();
        write.send("sent").await.unwrap();
        read.close_now(CloseCode::GOING_AWAY, "").await.unwrap();
        assert_eq!($received, [b"\x81\x04sent", CLOSE].concat());
        assert!(read.next().await.is_none());
        let late = write.send("late").await;
        assert!(matches!(&late, Err(Error::Closed(closed)) if closed.cause() == Cause::Local), "{late:?}");
        write.close_now(CloseCode::NORMAL, "").await.unwrap();
    }};
}

#[cfg(feature = "tokio")]
mod tokio_runtime {
    use std::sync::Arc;

    use futures_util::FutureExt as _;
    use sinews::tokio::WebSocket;
    use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn close_now_sends_queued_messages_and_close_without_waiting_for_the_peer() {
        let (raw, io) = tokio::io::duplex(1 << 16);
        let mut socket = socket(io);
        let began = Instant::now();
        socket.feed("last").await.unwrap();
        socket.close_now(CloseCode::GOING_AWAY, "").await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert_eq!(received_by(raw).await, [b"\x81\x04last", CLOSE].concat());
        socket.close_now(CloseCode::GOING_AWAY, "").await.unwrap();
        let closed = socket.closed().expect("it has ended");
        assert_eq!((closed.cause(), closed.status()), (Cause::Local, 1001));
        assert!(socket.next().await.is_none());
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    fn socket<S: AsyncRead + AsyncWrite + Unpin>(io: S) -> WebSocket<S> {
        WebSocket::from_negotiated(io, negotiate(None, None).server, Arc::default(), &[])
    }

    async fn received_by(mut raw: impl AsyncRead + Unpin) -> Vec<u8> {
        let mut received = Vec::new();
        raw.read_to_end(&mut received).await.unwrap();
        received
    }

    #[tokio::test(start_paused = true)]
    async fn close_now_of_the_write_half_ends_a_waiting_read_half() {
        let (raw, io) = tokio::io::duplex(1 << 16);
        let began = Instant::now();
        close_by_the_writer!(socket(io), tokio::spawn, received_by(raw).await);
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn close_now_of_the_read_half_ends_the_write_half() {
        let (raw, io) = tokio::io::duplex(1 << 16);
        let began = Instant::now();
        close_by_the_reader!(socket(io), received_by(raw).await);
        assert_eq!(began.elapsed(), Duration::ZERO);
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
        let mut socket = socket(io);
        socket.close_now(CloseCode::GOING_AWAY, "").await.unwrap();
        drop(socket);
        assert_eq!(received_by(raw).await, CLOSE);
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

    /// A server's connection with long timeouts, so that a wait for the peer is detected, and the peer's end.
    async fn pair() -> (WebSocket<TcpStream>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (raw, accepted) = futures_util::join!(TcpStream::connect(address), listener.accept());
        let config = Config::default().with_close_timeout(Duration::from_secs(3600));
        let negotiated = negotiate(None, None).server;
        let socket = WebSocket::from_negotiated(accepted.unwrap().0, negotiated, Arc::new(config), &[]);
        (socket, raw.unwrap())
    }

    async fn received_by(mut raw: TcpStream) -> Vec<u8> {
        raw.read_to_end(Vec::new()).await.1
    }

    /// Runs a test that must not wait for the peer.
    fn run(test: impl Future<Output = ()>) {
        let Ok(runtime) = Runtime::new() else { return println!("skipped: no runtime") };
        runtime.block_on(async {
            compio::time::timeout(Duration::from_secs(60), test).await.expect("no wait for the peer");
        });
    }

    #[test]
    fn close_now_sends_queued_messages_and_close_without_waiting_for_the_peer() {
        run(async {
            let (mut socket, raw) = pair().await;
            assert_eq!(socket.get_ref().peer_addr().unwrap(), raw.local_addr().unwrap());
            socket.get_mut().set_nodelay(true).unwrap();
            assert!(socket.get_ref().nodelay().unwrap());
            socket.feed("last").await.unwrap();
            socket.close_now(CloseCode::GOING_AWAY, "").await.unwrap();
            assert_eq!(socket.closed().map(|closed| closed.status()), Some(1001));
            assert!(socket.next().await.is_none());
            drop(socket);
            assert_eq!(received_by(raw).await, [b"\x81\x04last", CLOSE].concat());
        });
    }

    #[test]
    fn close_now_of_the_write_half_ends_a_waiting_read_half() {
        run(async {
            let (socket, raw) = pair().await;
            close_by_the_writer!(socket, compio::runtime::spawn, received_by(raw).await);
        });
    }

    #[test]
    fn close_now_of_the_read_half_ends_the_write_half() {
        run(async {
            let (socket, raw) = pair().await;
            close_by_the_reader!(socket, received_by(raw).await);
        });
    }

    #[test]
    fn close_now_of_the_write_half_ends_a_receive_into_memory_of_the_caller() {
        run(async {
            let (socket, _raw) = pair().await;
            let (mut write, mut read) = socket.split();
            let reading = compio::runtime::spawn(async move {
                let (received, buffer) = read.recv_into(Vec::with_capacity(1 << 20)).await;
                (received.is_none(), buffer.capacity())
            });
            write.close_now(CloseCode::GOING_AWAY, "").await.unwrap();
            assert_eq!(reading.await.unwrap(), (true, 1 << 20));
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
        io.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let negotiated = negotiate(None, None).server;
        let socket = WebSocket::from_negotiated(io, negotiated, Arc::new(Config::default()), &[]);
        let mut socket = socket.with_shutdown(|stream| stream.shutdown(Shutdown::Write));
        socket.feed("last").unwrap();
        socket.close_now(CloseCode::GOING_AWAY, "").unwrap();
        raw.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut received = Vec::new();
        raw.read_to_end(&mut received).unwrap();
        assert_eq!(received, [b"\x81\x04last", CLOSE].concat());
        assert_eq!(socket.closed().map(|closed| closed.status()), Some(1001));
        assert!(socket.next().is_none());
        let _: Result<(), Error> = socket.close_now(CloseCode::GOING_AWAY, "");
    }
}
