//! `sinews::http2`: several client WebSockets on one connection, to servers of hyper and axum, and to scripts of `h2`.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::http2_servers::{Answer, echo, hyper_server, serve_connection, serve_http2, servers, upgrade};
use crate::spawn::spawn;
use futures_util::FutureExt as _;
use sinews::client::{ConnectPhase, HeadLimits, RedirectError};
use sinews::http2::{Http2Connection, Http2Stream, connect};
use sinews::hyper::Upgrade;
use sinews::{Bytes, CloseCode, Config, ConnectError, Error, Message, OriginPolicy, WebSocket};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;

fn url(address: SocketAddr) -> String {
    format!("ws://{address}")
}

async fn assert_echoes(ws: &mut WebSocket<Http2Stream>, text: &str) {
    ws.send(text).await.expect("open");
    assert_eq!(ws.next().await.expect("open").expect("sound"), Message::text(text));
}

#[tokio::test]
async fn several_websockets_share_a_connection() {
    for address in servers().await {
        let connection = connect(url(address)).await.expect("HTTP/2");
        let mut sockets = Vec::new();
        for _ in 0..8 {
            sockets.push(connection.open("/chat").await.expect("opened"));
        }
        let large = "a message beyond every window ".repeat(40_000);
        for ws in &mut sockets {
            ws.feed(large.clone()).await.expect("open");
        }
        for ws in &mut sockets {
            assert_eq!(ws.next().await.expect("open").expect("sound"), Message::text(large.clone()));
        }
        let closed = sockets.pop().expect("eight").close(CloseCode::NORMAL, "done").await.expect("in order");
        assert_eq!(closed.code(), Some(CloseCode::NORMAL));
        for ws in &mut sockets {
            assert_echoes(ws, "still open").await;
        }
        // The WebSockets hold the connection.
        drop(connection);
        assert_echoes(&mut sockets[0], "without a handle").await;
    }
}

#[tokio::test]
async fn settings_of_the_connection_are_the_defaults_of_each_open() {
    let address = serve_http2(
        |_| {},
        |request| {
            let header = |name: &str| {
                let values = request.headers().get_all(name).iter();
                values.map(|value| value.to_str().expect("text")).collect::<Vec<_>>().join("|")
            };
            let head = format!(
                "{} {} {} {} {}",
                request.uri(),
                header("authorization"),
                header("x-trace"),
                header("sec-websocket-protocol"),
                header("sec-websocket-version")
            );
            upgrade(&Upgrade::new().subprotocols(["v2"]), request, |mut ws| async move {
                ws.send(head).await.expect("open");
                echo(ws).await;
            })
        },
    )
    .await;
    let connection =
        connect(format!("ws://user:pass@{address}/ignored")).header("x-trace", "1").subprotocol("v1");
    let connection = connection.await.expect("HTTP/2");
    for _ in 0..2 {
        let opening = connection.open("/a/b?c=d").header("x-trace", "2").subprotocol("v2");
        let (mut ws, response) = opening.open().await.expect("opened");
        assert_eq!((response.status().as_u16(), response.subprotocol()), (200, Some("v2")));
        assert_eq!(ws.subprotocol(), Some("v2"));
        let expected = format!("http://{address}/a/b?c=d Basic dXNlcjpwYXNz 1|2 v1, v2 13");
        assert_eq!(ws.next().await.expect("open").expect("sound"), Message::text(expected));
    }
}

#[cfg(feature = "deflate")]
#[tokio::test]
async fn compression_is_negotiated_for_each_websocket() {
    for address in servers().await {
        let connection = connect(url(address)).await.expect("HTTP/2");
        let mut plain = connection.open("/chat").await.expect("opened");
        let opening = connection.open("/chat").deflate(sinews::DeflateConfig::new());
        let (mut deflated, response) = opening.open().await.expect("opened");
        assert!(response.headers()["sec-websocket-extensions"].to_str().expect("text").contains("deflate"));
        for text in ["again ".repeat(1000), "and again ".repeat(1000)] {
            assert_echoes(&mut deflated, &text).await;
            assert_echoes(&mut plain, &text).await;
        }
    }
}

#[tokio::test]
async fn unread_websocket_does_not_stop_the_others() {
    let address = serve_http2(
        |_| {},
        |request| match request.uri().path() {
            "/flood" => upgrade(&Upgrade::new(), request, |mut ws| async move {
                while ws.send(vec![7; 16 << 10]).await.is_ok() {}
            }),
            _ => upgrade(&Upgrade::new(), request, echo),
        },
    )
    .await;
    let connection = connect(url(address)).stream_window(64 << 10).await.expect("HTTP/2");
    let mut floods = Vec::new();
    for _ in 0..4 {
        floods.push(connection.open("/flood").await.expect("opened"));
    }
    let mut ws = connection.open("/").await.expect("opened");
    // More than all windows of HTTP/2's default.
    for _ in 0..8 {
        assert_echoes(&mut ws, &"beside it ".repeat(10_000)).await;
    }
    for flood in &mut floods {
        // More than a window, which reading returns.
        for _ in 0..16 {
            assert_eq!(flood.next().await.expect("open").expect("sound").into_bytes().len(), 16 << 10);
        }
    }
}

#[tokio::test]
async fn sender_waits_for_the_window_of_a_server_that_does_not_read() {
    let (read, reading) = oneshot::channel::<()>();
    let reading = Arc::new(std::sync::Mutex::new(Some(reading)));
    let address = serve_http2(
        |builder| {
            // The unread WebSocket takes only a part of the connection's window.
            builder.initial_stream_window_size(1 << 20).initial_connection_window_size(16 << 20);
        },
        move |request| {
            let reading = reading.lock().expect("no panic").take();
            upgrade(&Upgrade::new(), request, |ws| async move {
                if let Some(reading) = reading {
                    let _ = reading.await;
                }
                echo(ws).await;
            })
        },
    )
    .await;
    let connection = connect(url(address)).await.expect("HTTP/2");
    let mut ws = connection.open("/").await.expect("opened");
    let large = vec![1; 8 << 20];
    {
        let mut sending = Box::pin(ws.send(large.clone()));
        let mut beside = connection.open("/").await.expect("opened");
        for _ in 0..8 {
            assert!((&mut sending).now_or_never().is_none(), "beyond the window and the buffer");
            assert_echoes(&mut beside, "not stopped").await;
        }
        // A dropped future: the message is queued whole.
    }
    read.send(()).expect("the server waits");
    assert_eq!(ws.next().await.expect("open").expect("sound").into_bytes(), large);
}

#[tokio::test]
async fn server_without_the_setting_is_an_error() {
    // Without `enable_connect_protocol`.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    spawn(async move {
        let (stream, _) = listener.accept().await.expect("a client");
        let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
        assert!(connection.accept().await.is_none_or(|request| request.is_err()), "no request");
    });
    let error = connect(url(address)).await.expect_err("no WebSockets");
    assert!(matches!(error, ConnectError::NoExtendedConnect { .. }), "{error:?}");
    assert!(!error.is_transient());
    assert_eq!(
        error.to_string(),
        format!(
            "{address} offers no WebSockets over HTTP/2: SETTINGS_ENABLE_CONNECT_PROTOCOL is not 1 (RFC 8441 section \
             3); connect over HTTP/1.1"
        )
    );
}

#[tokio::test]
async fn server_of_another_protocol_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    spawn(async move {
        for answer in ["HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", ""] {
            let (mut stream, _) = listener.accept().await.expect("a client");
            stream.write_all(answer.as_bytes()).await.expect("the client reads");
            stream.shutdown().await.expect("the client reads");
            // A socket that is closed with unread input is reset.
            while stream.read_u8().await.is_ok() {}
        }
        std::future::pending::<()>().await;
    });
    for reason in ["the server does not speak HTTP/2 on this port: ", ""] {
        let error = connect(url(address)).await.expect_err("no HTTP/2");
        assert!(matches!(error, ConnectError::Transport { phase: ConnectPhase::Http2, .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.starts_with(&format!("HTTP/2 setup with {address}: {reason}")), "{text}");
    }
    // The listener accepts, and nobody answers.
    let error = connect(url(address)).timeout(Duration::from_millis(500)).await.expect_err("no HTTP/2");
    assert!(matches!(error, ConnectError::TimedOut { phase: ConnectPhase::Http2, .. }), "{error:?}");
}

#[tokio::test]
async fn rejection_has_status_headers_and_body_and_the_connection_continues() {
    let settings = Upgrade::new().origin(OriginPolicy::list(["https://example.com"]).expect("an origin"));
    let connection = connect(url(hyper_server(settings).await)).await.expect("HTTP/2");
    let error =
        connection.open("/").header("origin", "https://elsewhere.example").await.expect_err("refused");
    let ConnectError::Rejected(response) = &error else { panic!("{error:?}") };
    assert_eq!(response.status(), 403);
    assert!(!response.body().is_empty());
    assert!(error.to_string().starts_with("the server answered 403 Forbidden instead of 200: "), "{error}");
    let cut = connection.open("/").header("origin", "https://elsewhere.example").rejection_body_max(3);
    let Err(ConnectError::Rejected(response)) = cut.await else { panic!("refused") };
    assert_eq!(response.body().len(), 3);
    assert_echoes(&mut connection.open("/").await.expect("opened"), "hello").await;
    for (opening, expected) in [
        (connection.open("no slash"), "bad request: "),
        (connection.open("/a b"), "bad request: "),
        (connection.open("/#fragment"), "bad request: "),
        (connection.open("/").header("keep-alive", "5"), "bad request: "),
        (connection.open("/").subprotocol("no token"), "bad request: "),
    ] {
        let error = opening.await.expect_err("invalid");
        assert!(error.to_string().starts_with(expected), "{error}");
    }
    assert_echoes(&mut connection.open("/").await.expect("opened"), "hello").await;
}

#[tokio::test]
async fn head_of_the_response_is_limited() {
    let address = serve_http2(
        |_| {},
        |request| {
            let (lines, bytes) = request.uri().path()[1..].split_once('/').expect("two numbers");
            let (lines, bytes) = (lines.parse().expect("a number"), bytes.parse().expect("a number"));
            let mut answer = upgrade(&Upgrade::new(), request, echo);
            for line in 0..lines {
                let name = hyper::header::HeaderName::try_from(format!("x-{line}")).expect("a name");
                answer.headers_mut().insert(name, "v".repeat(bytes).parse().expect("a value"));
            }
            answer
        },
    )
    .await;
    let connection = connect(url(address)).await.expect("HTTP/2");
    let limits = HeadLimits::new().with_max_headers(10).with_max_bytes(1000);
    for (path, limits, expected) in [
        ("/8/1", limits, None),
        ("/11/1", limits, Some("too many header lines")),
        ("/8/60", limits, None),
        ("/8/200", limits, Some("head too large")),
        ("/101/1", HeadLimits::new(), Some("too many header lines")),
        ("/1/17000", HeadLimits::new(), Some("head too large")),
    ] {
        match (connection.open(path).response_limits(limits).await, expected) {
            (Ok(mut ws), None) => assert_echoes(&mut ws, path).await,
            (Err(error), Some(expected)) => {
                assert_eq!(error.to_string(), format!("handshake: bad response: {expected}"), "{path}");
                assert!(!error.is_transient());
            }
            (result, expected) => panic!("{path}: {result:?} in place of {expected:?}"),
        }
    }
    assert_echoes(&mut connection.open("/1/1").await.expect("opened"), "hello").await;
    // A head far beyond the limits of the connection is not stored.
    let error = connection.open("/1/24000").await.expect_err("too large");
    let expected = format!(
        "WebSocket handshake with {address}: a malformed response, or one whose head exceeds Connect::response_limits \
         of the connection: "
    );
    assert!(error.to_string().starts_with(&expected), "{error}");
    let connection = connect(url(address)).response_limits(limits).await.expect("HTTP/2");
    let error = connection.open("/8/200").response_limits(HeadLimits::new()).await.expect_err("too large");
    assert!(error.to_string().starts_with(&expected), "{error}");
    assert_echoes(&mut connection.open("/1/1").await.expect("opened"), "hello").await;
}

#[tokio::test]
async fn response_with_content_is_no_websocket() {
    let (near, far) = tokio::io::duplex(64 << 10);
    spawn(async move {
        let mut builder = h2::server::Builder::new();
        let mut connection =
            builder.enable_connect_protocol().handshake::<_, Bytes>(far).await.expect("HTTP/2");
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            let mut response = hyper::Response::new(());
            if request.uri().path() == "/length" {
                response.headers_mut().insert("content-length", "5".parse().expect("sound"));
            }
            let mut stream = respond.send_response(response, request.uri().path() == "/end").expect("open");
            if request.uri().path() == "/length" {
                stream.send_data(Bytes::from_static(b"hello"), true).expect("open");
            }
        }
    });
    let connection = connect("ws://example.com").over(near).await.expect("HTTP/2");
    for path in ["/end", "/length", "/end"] {
        let error = connection.open(path).await.expect_err("content");
        assert_eq!(
            error.to_string(),
            "handshake: the server answered 2xx with content or with the end of the stream, not with a WebSocket"
        );
        assert!(!error.is_transient());
    }
}

#[tokio::test]
async fn redirects_are_followed_within_the_origin() {
    let address = serve_http2(
        |_| {},
        |request| {
            let location = match request.uri().path() {
                "/old" => "new?x=1",
                "/away" => "ws://elsewhere.example/",
                "/loop" => "/loop",
                "/new" => return upgrade(&Upgrade::new(), request, echo),
                path => panic!("{path}"),
            };
            let mut answer = Answer::default();
            *answer.status_mut() = hyper::StatusCode::TEMPORARY_REDIRECT;
            answer.headers_mut().insert("location", location.parse().expect("sound"));
            answer
        },
    )
    .await;
    let connection = connect(url(address)).redirects(2).await.expect("HTTP/2");
    assert_echoes(&mut connection.open("/old").await.expect("followed"), "hello").await;
    for (path, expected) in [("/away", RedirectError::OtherOrigin), ("/loop", RedirectError::TooMany(2))] {
        let error = connection.open(path).await.expect_err("not followed");
        let ConnectError::Redirect { error, .. } = error else { panic!("{error:?}") };
        assert_eq!(error, expected);
    }
    let without = connect(url(address)).await.expect("HTTP/2");
    assert_eq!(
        without.open("/old").await.expect_err("not followed").status().map(|it| it.as_u16()),
        Some(307)
    );
}

#[tokio::test]
async fn open_beyond_the_limit_of_streams_waits_and_may_be_dropped() {
    let address = serve_http2(
        |builder| {
            builder.max_concurrent_streams(2);
        },
        |request| upgrade(&Upgrade::new(), request, echo),
    )
    .await;
    let connection = connect(url(address)).await.expect("HTTP/2");
    assert_eq!(connection.max_websockets(), 2);
    let mut first = connection.open("/").await.expect("opened");
    let mut second = connection.open("/").await.expect("opened");
    for _ in 0..4 {
        let error = connection.open("/").timeout(Duration::from_millis(20)).await.expect_err("no stream");
        assert!(matches!(error, ConnectError::TimedOut { phase: ConnectPhase::Handshake, .. }), "{error:?}");
        let mut dropped = Box::pin(connection.open("/").open());
        assert!((&mut dropped).now_or_never().is_none());
    }
    assert_echoes(&mut first, "not stopped").await;
    let opening = spawn(connection.open("/").into_future());
    assert_echoes(&mut second, "not stopped either").await;
    first.close(CloseCode::NORMAL, "").await.expect("in order");
    drop(first);
    let mut third = opening.await.expect("no panic").expect("opened, once a stream is free");
    assert_echoes(&mut third, "in its place").await;
    // A dropped WebSocket frees its stream.
    drop(second);
    assert_echoes(&mut connection.open("/").await.expect("opened"), "again").await;
}

#[tokio::test]
async fn halves_of_a_split_run_on_tasks_of_their_own() {
    let connection = connect(url(hyper_server(Upgrade::new()).await)).await.expect("HTTP/2");
    let (mut write, mut read) = connection.open("/").await.expect("opened").split();
    let payload = vec![9; 1 << 20];
    let sent = payload.clone();
    let writing = spawn(async move {
        for _ in 0..4 {
            write.send(sent.clone()).await.expect("open");
        }
        write
    });
    for _ in 0..4 {
        assert_eq!(read.next().await.expect("open").expect("sound").into_bytes(), payload);
    }
    let mut ws = read.reunite(writing.await.expect("no panic")).expect("one connection");
    assert_echoes(&mut ws, "whole again").await;
}

#[tokio::test]
async fn close_of_the_server_reaches_the_client() {
    let address = serve_http2(
        |_| {},
        |request| {
            upgrade(&Upgrade::new(), request, |mut ws| async move {
                let _ = ws.send("last").await;
                let _ = ws.close(CloseCode::GOING_AWAY, "restart").await;
            })
        },
    )
    .await;
    let connection = connect(url(address)).await.expect("HTTP/2");
    let mut ws = connection.open("/").await.expect("opened");
    assert_eq!(ws.next().await.expect("open").expect("sound"), Message::text("last"));
    let Some(Ok(Message::Close(Some(close)))) = ws.next().await else { panic!("a Close") };
    assert_eq!((close.code(), close.reason()), (CloseCode::GOING_AWAY, "restart"));
    assert!(ws.next().await.is_none());
    assert_eq!(ws.closed().and_then(sinews::Closed::code), Some(CloseCode::GOING_AWAY));
}

/// Receives one message from each WebSocket.
async fn receiving_server() -> (SocketAddr, UnboundedReceiver<Option<Message>>) {
    let (sender, received) = unbounded_channel();
    let address = serve_http2(
        |_| {},
        move |request| {
            let sender = sender.clone();
            upgrade(&Upgrade::new(), request, |mut ws| async move {
                let message = ws.next().await;
                sender.send(message.and_then(Result::ok)).expect("the test receives");
            })
        },
    );
    (address.await, received)
}

#[tokio::test]
async fn dropped_websocket_sends_what_was_sent_before() {
    let (address, mut received) = receiving_server().await;
    let connection = connect(url(address)).await.expect("HTTP/2");
    // In one frame of HTTP/2, in several, and beyond the window.
    for length in [3, 200, 40 << 10, 300 << 10] {
        let message = Message::binary(vec![7; length]);
        for _ in 0..8 {
            let mut ws = connection.open("/").await.expect("opened");
            ws.send(message.clone()).await.expect("open");
            drop(ws);
            assert!(received.recv().await.expect("a server") == Some(message.clone()), "{length}");
        }
    }
    // The connection is dropped as well.
    let mut ws = connection.open("/").await.expect("opened");
    ws.send("bye").await.expect("open");
    drop((ws, connection));
    assert_eq!(received.recv().await.expect("a server"), Some(Message::text("bye")));
}

#[test]
fn sent_message_leaves_although_the_runtime_ends() {
    let server = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let server = server.expect("a runtime");
    let (address, mut received) = server.block_on(receiving_server());
    let client = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    client.block_on(async {
        let connection = connect(url(address)).await.expect("HTTP/2");
        let mut ws = connection.open("/").await.expect("opened");
        ws.send("bye").await.expect("open");
    });
    drop(client);
    assert_eq!(server.block_on(received.recv()).expect("a server"), Some(Message::text("bye")));
}

#[tokio::test]
async fn reply_to_a_close_leaves_although_the_websocket_is_dropped() {
    let (sender, mut ends) = unbounded_channel();
    let address = serve_http2(
        |_| {},
        move |request| {
            let sender = sender.clone();
            upgrade(&Upgrade::new(), request, |mut ws| async move {
                let closed = ws.close(CloseCode::GOING_AWAY, "restart").await;
                sender.send(closed.map(|closed| closed.code())).expect("the test receives");
            })
        },
    )
    .await;
    let connection = connect(url(address)).await.expect("HTTP/2");
    for _ in 0..8 {
        let mut ws = connection.open("/").await.expect("opened");
        while let Some(Ok(message)) = ws.next().await {
            if let Message::Close(_) = message {
                break;
            }
        }
        drop(ws);
        let closed = ends.recv().await.expect("a server").expect("in order");
        assert_eq!(closed, Some(CloseCode::GOING_AWAY));
    }
}

#[tokio::test]
async fn websocket_whose_send_is_not_polled_does_not_stop_the_others() {
    let (read, reading) = tokio::sync::watch::channel(false);
    let address = serve_http2(
        |builder| {
            builder.initial_connection_window_size(65_535).initial_stream_window_size(1 << 20);
        },
        move |request| {
            let mut reading = (request.uri().path() == "/late").then(|| reading.clone());
            upgrade(&Upgrade::new(), request, |ws| async move {
                if let Some(reading) = &mut reading {
                    let _ = reading.wait_for(|is_reading| *is_reading).await;
                }
                echo(ws).await;
            })
        },
    )
    .await;
    let connection = connect(url(address)).await.expect("HTTP/2");
    let mut late = connection.open("/late").await.expect("opened");
    let mut stopped = connection.open("/").await.expect("opened");
    let mut ws = connection.open("/").await.expect("opened");
    // The whole window of the connection.
    late.feed(vec![1; 100_000]).await.expect("open");
    assert!(late.flush().now_or_never().is_none());
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
    stopped.feed(vec![1; 200_000]).await.expect("open");
    assert!(stopped.flush().now_or_never().is_none());
    read.send(true).expect("the server waits");
    assert_eq!(late.next().await.expect("open").expect("sound").into_bytes().len(), 100_000);
    for _ in 0..8 {
        assert_echoes(&mut ws, &"beside it ".repeat(10_000)).await;
    }
    assert_eq!(stopped.next().await.expect("open").expect("sound").into_bytes().len(), 200_000);
}

/// Answers two requests by `h2`, then calls back with their streams.
async fn script<Fut: Future<Output = ()> + Send>(
    script: impl FnOnce(h2::server::Connection<tokio::net::TcpStream, Bytes>, [h2::SendStream<Bytes>; 2]) -> Fut
    + Send
    + 'static,
) -> (Http2Connection, [WebSocket<Http2Stream>; 2]) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    spawn(async move {
        let (stream, _) = listener.accept().await.expect("a client");
        let mut builder = h2::server::Builder::new();
        let mut connection = builder.enable_connect_protocol().handshake(stream).await.expect("HTTP/2");
        let mut streams = Vec::new();
        while streams.len() < 2 {
            let (request, mut respond) = connection.accept().await.expect("open").expect("a request");
            assert_eq!(
                request.extensions().get::<h2::ext::Protocol>().map(|it| it.as_str()),
                Some("websocket")
            );
            streams.push(respond.send_response(hyper::Response::new(()), false).expect("open"));
            // Its input is dropped at the end of the script.
            std::mem::forget(request);
        }
        script(connection, streams.try_into().expect("two")).await;
    });
    let connection = connect(url(address)).await.expect("HTTP/2");
    let first = connection.open("/").await.expect("opened");
    let second = connection.open("/").await.expect("opened");
    (connection, [first, second])
}

/// Receives nothing while it is paused.
struct Paused(tokio::io::DuplexStream, Arc<AtomicBool>);

impl AsyncRead for Paused {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match this.1.load(Ordering::Relaxed) {
            true => Poll::Pending,
            false => Pin::new(&mut this.0).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Paused {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn many_dropped_websockets_leave_the_connection_open() {
    let (near, far) = tokio::io::duplex(4 << 20);
    let (dropped, mut are_dropped) = oneshot::channel();
    let frame = Bytes::from_static(b"\x81\x02ok");
    spawn(async move {
        let is_paused = Arc::new(AtomicBool::new(false));
        let mut builder = h2::server::Builder::new();
        let handshake = builder.enable_connect_protocol().handshake(Paused(far, is_paused.clone()));
        let mut connection = handshake.await.expect("HTTP/2");
        let mut streams = Vec::new();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            let mut stream = respond.send_response(hyper::Response::new(()), false).expect("open");
            stream.send_data(frame.clone(), false).expect("open");
            streams.push((request, stream));
            if streams.len() != 200 {
                continue;
            }
            // The resets arrive once all this data is sent.
            is_paused.store(true, Ordering::Relaxed);
            tokio::select! {
                _ = &mut are_dropped => {}
                _ = connection.accept() => panic!("a request"),
            }
            for _ in 0..20 {
                for (_, stream) in &mut streams {
                    stream.send_data(frame.clone(), false).expect("open");
                }
                for _ in 0..10 {
                    assert!(connection.accept().now_or_never().is_none(), "a request");
                    tokio::task::yield_now().await;
                }
            }
            is_paused.store(false, Ordering::Relaxed);
        }
    });
    let connection = connect("ws://example.com").over(near).await.expect("HTTP/2");
    let mut sockets = Vec::new();
    for _ in 0..200 {
        sockets.push(connection.open("/").await.expect("opened"));
    }
    drop(sockets);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    dropped.send(()).expect("the server waits");
    for _ in 0..3 {
        let mut ws = connection.open("/").await.expect("opened");
        assert_eq!(ws.next().await.expect("open").expect("sound"), Message::text("ok"));
    }
}

/// A frame without its payload.
fn frame_head(length: u32, kind: u8, flags: u8, stream: u32) -> Vec<u8> {
    [&length.to_be_bytes()[1..], &[kind, flags], &stream.to_be_bytes()].concat()
}

#[tokio::test]
async fn memory_of_small_frames_is_limited() {
    const FRAMES: usize = (256 << 20) / 255;
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const GOAWAY: u8 = 7;
    let (near, mut far) = tokio::io::duplex(1 << 20);
    let server = spawn(async move {
        far.read_exact(&mut [0; 24]).await.expect("a preface");
        // SETTINGS_ENABLE_CONNECT_PROTOCOL.
        let settings = [&frame_head(6, SETTINGS, 0, 0)[..], &[0, 8, 0, 0, 0, 1]].concat();
        far.write_all(&settings).await.expect("open");
        loop {
            let mut head = [0; 9];
            far.read_exact(&mut head).await.expect("open");
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            far.read_exact(&mut payload).await.expect("open");
            match (head[3], head[4]) {
                (PING, 0) => {
                    far.write_all(&[frame_head(8, PING, 1, 0), payload].concat()).await.expect("open");
                }
                (HEADERS, _) => {
                    // `:status` 200 of the static table, then one byte in each frame.
                    far.write_all(&[&frame_head(1, HEADERS, 4, 1)[..], &[0x88]].concat())
                        .await
                        .expect("open");
                    let data = [&frame_head(1, DATA, 0, 1)[..], &[0]].concat().repeat(1000);
                    for _ in 0..FRAMES / 1000 + 1 {
                        if far.write_all(&data).await.is_err() {
                            break;
                        }
                    }
                }
                (GOAWAY, _) => return payload,
                _ => {}
            }
        }
    });
    let connection = connect("ws://example.com").stream_window(4 << 20).over(near).await.expect("HTTP/2");
    let _unread = connection.open("/").await.expect("opened");
    let goaway = tokio::time::timeout(Duration::from_secs(60), server).await;
    let goaway = goaway.expect("an end").expect("no panic");
    assert_eq!(goaway[4..8], [0, 0, 0, 11], "ENHANCE_YOUR_CALM");
    assert!(connection.is_closed());
}

#[tokio::test(start_paused = true)]
async fn dropped_websocket_waits_for_the_window_until_the_close_timeout() {
    let (near, far) = tokio::io::duplex(1 << 20);
    let (reset, is_reset) = oneshot::channel();
    spawn(async move {
        let mut builder = h2::server::Builder::new();
        let mut connection =
            builder.enable_connect_protocol().handshake::<_, Bytes>(far).await.expect("HTTP/2");
        let (_request, mut respond) = connection.accept().await.expect("open").expect("a request");
        let mut stream = respond.send_response(hyper::Response::new(()), false).expect("open");
        spawn(async move {
            let reason = std::future::poll_fn(|cx| stream.poll_reset(cx)).await.expect("open");
            reset.send(reason).expect("the test waits");
        });
        // Its windows are never returned.
        assert!(connection.accept().await.is_none(), "no further request");
    });
    let connection = connect("ws://example.com").over(near).await.expect("HTTP/2");
    let mut ws = connection.open("/").await.expect("opened");
    ws.feed(vec![1; 100_000]).await.expect("open");
    assert!(ws.flush().now_or_never().is_none(), "beyond the window");
    drop(ws);
    let dropped_at = tokio::time::Instant::now();
    assert_eq!(is_reset.await.expect("the server runs"), h2::Reason::CANCEL);
    let waited = dropped_at.elapsed();
    assert!(waited >= Config::default().close_timeout(), "{waited:?}");
    assert!(waited < Config::default().close_timeout() * 2, "{waited:?}");
    assert!(!connection.is_closed());
}

#[tokio::test(start_paused = true)]
async fn connection_whose_server_does_not_read_ends_at_the_close_timeout() {
    let (near, far) = tokio::io::duplex(16 << 10);
    let (opened, is_open) = oneshot::channel::<()>();
    spawn(async move {
        let mut builder = h2::server::Builder::new();
        let mut connection =
            builder.enable_connect_protocol().handshake::<_, Bytes>(far).await.expect("HTTP/2");
        let (_request, mut respond) = connection.accept().await.expect("open").expect("a request");
        let _stream = respond.send_response(hyper::Response::new(()), false).expect("open");
        tokio::select! {
            _ = is_open => {}
            _ = connection.accept() => panic!("no further request"),
        }
        std::future::pending::<()>().await;
    });
    let is_paused = Arc::new(AtomicBool::new(false));
    let transport = Arc::downgrade(&is_paused);
    let near = Paused(near, is_paused);
    let connection = connect("ws://example.com").over(near).await.expect("HTTP/2");
    let mut ws = connection.open("/").await.expect("opened");
    opened.send(()).expect("the server waits");
    tokio::task::yield_now().await;
    ws.feed(vec![1; 60_000]).await.expect("open");
    assert!(ws.flush().now_or_never().is_none(), "beyond the buffer of the transport");
    drop((ws, connection));
    tokio::time::sleep(Config::default().close_timeout() / 2).await;
    assert_eq!(transport.strong_count(), 1);
    tokio::time::sleep(Config::default().close_timeout()).await;
    assert_eq!(transport.strong_count(), 0);
}

#[tokio::test]
async fn goaway_closes_the_connection_for_further_opens_only() {
    let (connection, [mut first, second]) = script(|mut connection, [mut first, second]| async move {
        connection.graceful_shutdown();
        assert!(connection.accept().now_or_never().is_none());
        first.send_data(Bytes::from_static(b"\x81\x02ok"), false).expect("open");
        while connection.accept().await.is_some() {}
        drop(second);
    })
    .await;
    assert_eq!(first.next().await.expect("open").expect("sound"), Message::text("ok"));
    assert!(connection.is_closed());
    let error = connection.open("/").await.expect_err("closed");
    assert!(matches!(error, ConnectError::Transport { phase: ConnectPhase::Handshake, .. }), "{error:?}");
    first.send("open").await.expect("open");
    drop((first, second));
}

#[tokio::test]
async fn reset_of_one_stream_is_an_error_of_its_websocket_only() {
    let (_connection, [mut first, mut second]) =
        script(|mut connection, [mut first, mut second]| async move {
            first.send_reset(h2::Reason::CANCEL);
            second.send_data(Bytes::from_static(b"\x81\x02ok"), false).expect("open");
            while connection.accept().await.is_some() {}
        })
        .await;
    let Some(Err(Error::Io(error))) = first.next().await else { panic!("a reset") };
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
    assert!(first.next().await.is_none());
    assert_eq!(second.next().await.expect("open").expect("sound"), Message::text("ok"));
}

#[tokio::test]
async fn end_of_a_stream_without_a_close_is_abnormal() {
    let (_connection, [mut first, _second]) = script(|mut connection, [mut first, second]| async move {
        first.send_data(Bytes::from_static(b"\x81\x02ok"), true).expect("open");
        while connection.accept().await.is_some() {}
        drop(second);
    })
    .await;
    assert_eq!(first.next().await.expect("open").expect("sound"), Message::text("ok"));
    assert!(matches!(first.next().await, Some(Err(Error::Closed(_)))));
    assert!(first.next().await.is_none());
}

#[tokio::test]
async fn lost_connection_ends_all_its_websockets_and_further_opens() {
    let (connection, [mut first, mut second]) = script(|mut connection, _streams| async move {
        assert!(connection.accept().await.is_some(), "the third request, which is not answered");
    })
    .await;
    assert!(!connection.is_closed());
    let error = connection.open("/").await.expect_err("lost");
    assert!(matches!(error, ConnectError::Transport { phase: ConnectPhase::Handshake, .. }), "{error:?}");
    assert!(error.is_transient());
    for ws in [&mut first, &mut second] {
        assert!(matches!(ws.next().await, Some(Err(_))));
        assert!(ws.next().await.is_none());
    }
    assert!(connection.open("/").await.is_err());
    assert!(connection.is_closed());
}

#[tokio::test]
async fn connection_is_made_over_a_stream_of_the_caller() {
    let (near, far) = tokio::io::duplex(1 << 10);
    spawn(serve_connection(
        far,
        |_| {},
        |request| {
            assert_eq!(request.uri(), "https://example.com/chat");
            upgrade(&Upgrade::new(), request, echo)
        },
    ));
    let connection = connect("wss://example.com").over(near).await.expect("HTTP/2");
    assert_echoes(&mut connection.open("/chat").await.expect("opened"), "over a pipe").await;
    assert_eq!(format!("{connection:?}"), "Http2Connection { server: \"example.com:443\", .. }");
}
