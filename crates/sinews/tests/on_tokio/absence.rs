//! Timeouts of a connection that its task does not poll for a while, on Tokio with a paused clock.

use std::time::Duration;

use crate::spawn::spawn;
use crate::support::{poll_once, server_and_raw};
use sinews::tokio::WebSocket;
use sinews::{Cause, CloseCode, Config, Error, Expired, Message, Role};
use sinews_testkit::Frame;
#[cfg(feature = "hyper")]
use sinews_testkit::split_frames;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};
use tokio::time::{Instant, advance, sleep};

const IDLE: Duration = Duration::from_secs(120);

fn without_pings() -> Config {
    Config::default().with_ping_interval(None)
}

fn expired(end: Option<Result<Message, Error>>) -> Expired {
    match end {
        Some(Err(Error::Closed(closed))) => match closed.cause() {
            Cause::Expired(wait) => wait,
            cause => panic!("{cause:?}"),
        },
        end => panic!("{end:?}"),
    }
}

/// Sends a request and replies to it after a while.
async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(socket: &mut WebSocket<S>, raw: &mut DuplexStream) {
    socket.send("request").await.unwrap();
    let reply = async {
        sleep(Duration::from_secs(1)).await;
        raw.write_all(&Frame::text("reply").encode(Role::Client)).await.unwrap();
    };
    let (message, ()) = tokio::join!(socket.next_data(), reply);
    assert_eq!(message.unwrap().unwrap(), Message::text("reply"));
}

#[tokio::test(start_paused = true)]
async fn reply_to_a_request_after_idle_timeout_is_delivered() {
    for config in [Config::default(), without_pings()] {
        for away in [IDLE, IDLE + Duration::from_millis(1), IDLE * 10] {
            let (mut socket, mut raw) = server_and_raw(&config);
            for _ in 0..3 {
                exchange(&mut socket, &mut raw).await;
                advance(away).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn reply_to_the_second_of_two_requests_after_idle_timeout_is_delivered() {
    let (mut socket, mut raw) = server_and_raw(&without_pings());
    exchange(&mut socket, &mut raw).await;
    advance(IDLE * 2).await;
    socket.send("first").await.unwrap();
    socket.send("second").await.unwrap();
    exchange(&mut socket, &mut raw).await;
}

#[tokio::test(start_paused = true)]
async fn message_sent_to_a_silent_peer_restarts_idle_timeout() {
    let (mut socket, mut raw) = server_and_raw(&without_pings());
    let waited = tokio::time::timeout(IDLE - Duration::from_secs(1), socket.next()).await;
    assert!(waited.is_err(), "no input");
    socket.send("request").await.unwrap();
    let began = Instant::now();
    let reply = async {
        sleep(IDLE / 2).await;
        raw.write_all(&Frame::text("reply").encode(Role::Client)).await.unwrap();
    };
    let (message, ()) = tokio::join!(socket.next(), reply);
    assert_eq!(message.unwrap().unwrap(), Message::text("reply"));
    socket.send("request").await.unwrap();
    assert_eq!(expired(socket.next().await), Expired::Idle);
    assert_eq!(began.elapsed().as_secs(), (IDLE + IDLE / 2).as_secs());
}

#[tokio::test(start_paused = true)]
async fn caller_that_returns_waits_idle_timeout_again() {
    let (mut socket, _raw) = server_and_raw(&without_pings());
    assert!(poll_once(socket.next()).is_pending());
    advance(IDLE * 3).await;
    let began = Instant::now();
    assert_eq!(expired(socket.next().await), Expired::Idle);
    assert_eq!(began.elapsed().as_secs(), IDLE.as_secs());
}

#[tokio::test(start_paused = true)]
async fn caller_that_polls_often_notices_idle_timeout() {
    let (mut socket, _raw) = server_and_raw(&without_pings());
    let began = Instant::now();
    let end = loop {
        match poll_once(socket.next()) {
            std::task::Poll::Ready(end) => break end,
            std::task::Poll::Pending => sleep(Duration::from_millis(16)).await,
        }
    };
    assert_eq!(expired(end), Expired::Idle);
    assert_eq!(began.elapsed().as_secs(), IDLE.as_secs());
}

#[tokio::test(start_paused = true)]
async fn pong_received_during_absence_is_read_before_pong_timeout_is_decided() {
    let config = Config::default().with_idle_timeout(None);
    let (mut socket, mut raw) = server_and_raw(&config);
    let mut ping = [0; 6];
    tokio::select! {
        end = socket.next() => panic!("{end:?}"),
        read = raw.read_exact(&mut ping) => assert_eq!(read.unwrap(), 6),
    }
    raw.write_all(&Frame::pong(&ping[2..]).encode(Role::Client)).await.unwrap();
    advance(IDLE).await;
    socket.send("first").await.unwrap();
    exchange(&mut socket, &mut raw).await;
}

#[tokio::test(start_paused = true)]
async fn dead_peer_is_found_by_pong_timeout_after_absence() {
    let (mut socket, _raw) = server_and_raw(&Config::default());
    advance(IDLE * 2).await;
    let began = Instant::now();
    assert_eq!(expired(socket.next().await), Expired::Pong);
    assert_eq!(began.elapsed().as_secs(), 20);
}

#[tokio::test(start_paused = true)]
async fn bytes_the_peer_takes_during_absence_restart_write_timeout() {
    let (raw, io) = tokio::io::duplex(1000);
    let agreed = sinews_testkit::negotiate(None, None).server;
    let mut socket = WebSocket::from_negotiated(io, agreed, std::sync::Arc::new(without_pings()), &[]);
    let mut raw = raw;
    assert!(poll_once(socket.send(vec![0; 1500])).is_pending());
    raw.read_exact(&mut [0; 1000]).await.unwrap();
    advance(IDLE).await;
    socket.flush().await.unwrap();
    raw.read_exact(&mut [0; 504]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn messages_received_before_close_timeout_are_read_after_absence() {
    let (mut socket, mut raw) = server_and_raw(&Config::default());
    socket.start_close(CloseCode::NORMAL, "").unwrap();
    socket.flush().await.unwrap();
    const MESSAGES: usize = 20;
    for _ in 0..MESSAGES {
        raw.write_all(&Frame::binary(vec![7; 30_000]).encode(Role::Client)).await.unwrap();
    }
    raw.write_all(&Frame::close(1000, "").encode(Role::Client)).await.unwrap();
    drop(raw);
    advance(Duration::from_secs(6)).await;
    let mut messages = 0;
    while let Some(message) = socket.next_data().await {
        message.unwrap();
        messages += 1;
    }
    assert_eq!(messages, MESSAGES);
    assert_eq!(socket.closed().unwrap().cause(), Cause::Local);
}

#[tokio::test(start_paused = true)]
async fn half_that_reads_after_idle_timeout_gets_the_reply() {
    for config in [Config::default(), without_pings()] {
        let (socket, mut raw) = server_and_raw(&config);
        let (mut write, mut read) = socket.split();
        assert!(poll_once(read.next()).is_pending());
        for _ in 0..3 {
            advance(IDLE * 2).await;
            write.send("first").await.unwrap();
            write.send("request").await.unwrap();
            let reply = async {
                sleep(Duration::from_secs(1)).await;
                raw.write_all(&Frame::text("reply").encode(Role::Client)).await.unwrap();
            };
            let (message, ()) = tokio::join!(read.next(), reply);
            assert_eq!(message.unwrap().unwrap(), Message::text("reply"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn message_of_the_writing_half_restarts_idle_timeout_of_the_reading_half() {
    let (socket, _raw) = server_and_raw(&without_pings());
    let (mut write, mut read) = socket.split();
    let began = Instant::now();
    let reading = spawn(async move { read.next().await });
    sleep(IDLE / 2).await;
    write.send("request").await.unwrap();
    assert_eq!(expired(reading.await.unwrap()), Expired::Idle);
    assert_eq!(began.elapsed().as_secs(), (IDLE / 2 + IDLE).as_secs());
}

/// The handshake of a client, by hand.
#[cfg(feature = "hyper")]
const REQUEST: &str = "GET / HTTP/1.1\r\nHost: example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

/// A client that replies to each message after a second.
#[cfg(feature = "hyper")]
async fn answer_requests(mut raw: DuplexStream, requests: usize) {
    raw.write_all(REQUEST.as_bytes()).await.unwrap();
    let mut received = Vec::new();
    while !received.ends_with(b"\r\n\r\n") {
        received.push(raw.read_u8().await.unwrap());
    }
    for _ in 0..requests {
        let request = async {
            let mut frame = Vec::new();
            while !split_frames(&frame).0.iter().any(|frame| frame.opcode == 1) {
                frame.push(raw.read_u8().await.unwrap());
            }
        };
        request.await;
        sleep(Duration::from_secs(1)).await;
        raw.write_all(&Frame::text("reply").encode(Role::Client)).await.unwrap();
    }
    let _ = raw.read_to_end(&mut Vec::new()).await;
}

/// Sends two requests, with more than the idle timeout in between.
#[cfg(feature = "hyper")]
async fn ask_twice<S: AsyncRead + AsyncWrite + Unpin>(mut socket: WebSocket<S>) {
    for _ in 0..2 {
        socket.send("request").await.unwrap();
        assert_eq!(socket.next_data().await.unwrap().unwrap(), Message::text("reply"));
        sleep(IDLE * 2).await;
    }
}

#[cfg(feature = "hyper")]
#[tokio::test(start_paused = true)]
async fn reply_after_idle_timeout_is_delivered_over_hyper() {
    use http_body_util::Full;
    use hyper::service::service_fn;

    for config in [Config::default(), without_pings()] {
        let (raw, io) = tokio::io::duplex(1 << 16);
        let (result_sender, result_receiver) = tokio::sync::oneshot::channel();
        let result_sender = std::sync::Mutex::new(Some(result_sender));
        let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
            let upgrade = sinews::hyper::Upgrade::new().config(config.clone());
            let (response, socket) = upgrade.upgrade::<_, Full<sinews::Bytes>>(&mut request).unwrap();
            let result_sender = result_sender.lock().unwrap().take().unwrap();
            spawn(async move {
                ask_twice(socket.await.unwrap()).await;
                result_sender.send(()).unwrap();
            });
            async move { Ok::<_, std::convert::Infallible>(response) }
        });
        let io = hyper_util::rt::TokioIo::new(io);
        let server = hyper::server::conn::http1::Builder::new().serve_connection(io, service);
        spawn(server.with_upgrades());
        spawn(answer_requests(raw, 2));
        result_receiver.await.expect("both replies");
    }
}

#[cfg(feature = "axum")]
#[tokio::test(start_paused = true)]
async fn reply_after_idle_timeout_is_delivered_over_axum() {
    /// Accepts one connection in memory.
    struct Once(Option<DuplexStream>);

    impl axum::serve::Listener for Once {
        type Io = DuplexStream;
        type Addr = ();

        async fn accept(&mut self) -> (DuplexStream, ()) {
            match self.0.take() {
                Some(io) => (io, ()),
                None => std::future::pending().await,
            }
        }

        fn local_addr(&self) -> std::io::Result<()> {
            Ok(())
        }
    }

    for config in [Config::default(), without_pings()] {
        let (raw, io) = tokio::io::duplex(1 << 16);
        let (result_sender, mut result_receiver) = tokio::sync::mpsc::channel(1);
        let handler = move |upgrade: sinews::axum::WebSocketUpgrade| async move {
            upgrade.config(config).on_upgrade(move |socket| async move {
                ask_twice(socket).await;
                result_sender.send(()).await.unwrap();
            })
        };
        let app = axum::Router::new().route("/", axum::routing::any(handler));
        spawn(async move { axum::serve(Once(Some(io)), app).await });
        spawn(answer_requests(raw, 2));
        let result_receiver = tokio::time::timeout(IDLE * 10, result_receiver.recv()).await;
        result_receiver.expect("in time").expect("both replies");
    }
}
