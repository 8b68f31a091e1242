//! `sinews::hyper` over loopback, served by hyper.

use std::sync::Arc;
use std::time::Duration;

use crate::client::{REQUEST, connect};
use crate::spawn::spawn;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use sinews::hyper::{Upgrade, Upgraded};
use sinews::{AcceptError, Bytes, Config, Message, WebSocket};
use sinews_proto::handshake::ClientRequest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// Server type.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Serve {
    Http1,
    Auto,
    WithoutUpgrades,
    /// Over a stream that is not a `TcpStream`.
    Wrapped,
}

/// Serves one connection. Returns the client's end, and the result of the upgrade.
async fn serve(
    how: Serve,
    upgrade: Upgrade,
) -> (TcpStream, oneshot::Receiver<Result<WebSocket<Upgraded>, AcceptError>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("connected");
    let (stream, _) = listener.accept().await.expect("accepted");
    let (result_sender, result_receiver) = oneshot::channel();
    let result_sender = Arc::new(std::sync::Mutex::new(Some(result_sender)));
    let service = service_fn(move |mut request: Request<Incoming>| {
        let result_sender = result_sender.lock().expect("no panic").take().expect("one request");
        let upgrade = upgrade.clone();
        async move {
            let (mut response, websocket): (Response<Full<Bytes>>, _) = match upgrade.upgrade(&mut request) {
                Ok(upgraded) => upgraded,
                Err(error) => {
                    let response = error.to_response();
                    let _ = result_sender.send(Err(error));
                    return Ok(response);
                }
            };
            response.headers_mut().insert("x-room", "7".parse()?);
            spawn(async move { result_sender.send(websocket.await) });
            Ok::<_, http::header::InvalidHeaderValue>(response)
        }
    });
    spawn(async move {
        let http1 = hyper::server::conn::http1::Builder::new();
        let auto = auto::Builder::new(TokioExecutor::new());
        let io = TokioIo::new(stream);
        match how {
            Serve::Http1 => drop(http1.serve_connection(io, service).with_upgrades().await),
            Serve::Auto => drop(auto.serve_connection_with_upgrades(io, service).await),
            Serve::WithoutUpgrades => drop(http1.serve_connection(io, service).await),
            Serve::Wrapped => {
                let (read, write) = io.into_inner().into_split();
                let io = TokioIo::new(tokio::io::join(read, write));
                drop(http1.serve_connection(io, service).with_upgrades().await);
            }
        }
    });
    (client, result_receiver)
}

#[tokio::test]
async fn websocket_of_hyper_splits_and_its_halves_move_to_other_tasks() {
    for how in [Serve::Http1, Serve::Auto, Serve::Wrapped] {
        let (client, result_receiver) = serve(how, Upgrade::new()).await;
        let request = ClientRequest::new("example.com", "/chat").expect("sound");
        let (mut client, ..) = connect(client, request).await.expect("accepted");
        let server = result_receiver.await.expect("returned").expect("upgraded");
        let (mut write, mut read) = server.split();
        let reading = spawn(async move { (read.next().await, read) });
        let writing = spawn(async move { (write.send("from the writer").await, write) });
        client.send("to the reader").await.expect("open");
        let (message, read) = reading.await.expect("no panic");
        assert_eq!(message.expect("a message").expect("in order"), Message::text("to the reader"), "{how:?}");
        let (sent, write) = writing.await.expect("no panic");
        sent.expect("open");
        let message = client.next().await.expect("a message").expect("in order");
        assert_eq!(message, Message::text("from the writer"), "{how:?}");
        let server = read.reunite(write).expect("halves of one connection");
        assert_eq!(server.get_ref().tcp().is_some(), how != Serve::Wrapped, "{how:?}");
    }
}

#[tokio::test]
async fn upgrade_works_with_each_server_type() {
    for how in [Serve::Http1, Serve::Auto, Serve::Wrapped] {
        let upgrade =
            Upgrade::new().subprotocols(["v2", "v1"]).config(Config::default().with_max_message(64));
        let (client, result_receiver) = serve(how, upgrade).await;
        let request = ClientRequest::new("example.com", "/chat").expect("sound");
        let request = request.with_subprotocol("v1").expect("a token");
        let (mut client, _, head) = connect(client, request).await.expect("accepted");
        assert!(head.contains("x-room: 7"), "added headers are sent: {head}");

        let mut server = result_receiver.await.expect("returned").expect("upgraded");
        assert_eq!(server.subprotocol(), Some("v1"));
        assert_eq!(server.get_ref().tcp().is_some(), how != Serve::Wrapped, "{how:?}");
        if let Some(tcp) = server.get_ref().tcp() {
            assert!(tcp.nodelay().expect("an option"));
        }
        for text in ["one", "two"] {
            client.feed(text).await.expect("room");
        }
        client.flush().await.expect("sent");
        for text in ["one", "two"] {
            assert_eq!(server.next().await.expect("a message").expect("in order"), Message::text(text));
            server.send(text).await.expect("sent");
        }
        for text in ["one", "two"] {
            assert_eq!(client.next().await.expect("a message").expect("in order"), Message::text(text));
        }
        client.send(vec![0; 65]).await.expect("sent");
        let client = async move { while client.next().await.is_some() {} };
        let (end, ()) = tokio::join!(server.next(), client);
        let error = end.expect("an end").expect_err("above the limit that was set");
        assert_eq!(error.close_code(), Some(sinews::CloseCode::TOO_BIG));
    }
}

#[tokio::test]
async fn frames_behind_the_request_are_not_lost() {
    for how in [Serve::Http1, Serve::Auto, Serve::Wrapped] {
        let (mut client, result_receiver) = serve(how, Upgrade::new()).await;
        let mut bytes = REQUEST.as_bytes().to_vec();
        bytes.extend_from_slice(b"\x81\x85\x00\x00\x00\x00hello\x88\x80\x00\x00\x00\x00");
        client.write_all(&bytes).await.expect("sent");
        let mut server = result_receiver.await.expect("returned").expect("upgraded");
        let first = server.next().await.expect("a message").expect("in order");
        assert_eq!(first, Message::text("hello"), "{how:?}");
    }
}

#[tokio::test]
async fn invalid_requests_get_the_matching_status() {
    let cases = [
        (REQUEST.replace("GET", "POST"), 405),
        (REQUEST.replace("Upgrade: websocket\r\n", ""), 426),
        (REQUEST.replace("Version: 13", "Version: 8"), 426),
        (REQUEST.replace("dGhlIHNhbXBsZSBub25jZQ==", "short"), 400),
        (REQUEST.replace("Host: example.com\r\n", ""), 400),
        (REQUEST.replace("Version: 13\r\n", "Version: 13\r\nOrigin: https://elsewhere.example\r\n"), 403),
    ];
    for (bytes, status) in cases {
        let (mut client, result_receiver) = serve(Serve::Http1, Upgrade::new()).await;
        client.write_all(bytes.as_bytes()).await.expect("sent");
        let error = result_receiver.await.expect("returned").expect_err("refused");
        assert_eq!(error.status(), Some(status), "{bytes}");
        // The connection ends, since the client may have sent frames.
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("an end");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        let AcceptError::Rejected(refusal) = error else { panic!("{error:?}") };
        assert!(answer.as_bytes().ends_with(refusal.body()), "{answer}");
    }
}

#[tokio::test]
async fn connection_without_upgrades_and_invalid_settings_are_a_500() {
    let (mut client, result_receiver) = serve(Serve::WithoutUpgrades, Upgrade::new()).await;
    client.write_all(REQUEST.as_bytes()).await.expect("sent");
    // hyper returns a future that fails, or none.
    assert!(result_receiver.await.expect("returned").is_err());

    let (mut client, result_receiver) = serve(Serve::Http1, Upgrade::new().subprotocols(["no token"])).await;
    client.write_all(REQUEST.as_bytes()).await.expect("sent");
    let error = result_receiver.await.expect("returned").expect_err("misuse");
    assert!(matches!(error, AcceptError::Misuse(_)) && error.status() == Some(500), "{error:?}");

    let idle = Config::default().with_idle_timeout(Some(Duration::ZERO));
    let mut request = Request::new(());
    let upgraded = Upgrade::new().config(idle).upgrade::<_, ()>(&mut request);
    assert!(matches!(upgraded, Err(AcceptError::Config(_))));
}

#[test]
fn request_not_from_hyper_cannot_be_upgraded() {
    let request = Request::builder()
        .header("host", "example.com")
        .header("upgrade", "websocket")
        .header("connection", "upgrade")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    let mut request = request.body(()).expect("sound");
    let upgraded = sinews::hyper::upgrade::<_, ()>(&mut request);
    assert!(matches!(upgraded, Err(AcceptError::NotUpgradable)));
}

#[cfg(not(feature = "http2"))]
#[test]
fn http2_without_its_feature_is_rejected() {
    let request = Request::connect("https://example.com/chat").version(http::Version::HTTP_2);
    let mut request = request.header("sec-websocket-version", "13").body(()).expect("sound");
    let error = sinews::hyper::upgrade::<_, ()>(&mut request).expect_err("refused");
    assert_eq!(error.status(), Some(400));
}

#[cfg(feature = "http2")]
#[tokio::test]
async fn extended_connect_becomes_a_websocket() {
    use hyper::ext::Protocol;
    use hyper::upgrade;
    use sinews_proto::handshake::ServerOptions;

    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("connected");
    let (stream, _) = listener.accept().await.expect("accepted");
    let service = service_fn(|mut request: Request<Incoming>| async move {
        let options = ServerOptions::new().with_subprotocol("v1").expect("a token");
        let (response, websocket) = match Upgrade::new().options(options).upgrade(&mut request) {
            Ok(upgraded) => upgraded,
            Err(error) => return Ok(error.to_response()),
        };
        spawn(async move {
            let mut websocket = websocket.await.expect("upgraded");
            assert!(websocket.get_ref().tcp().is_none());
            while let Some(message) = websocket.next().await {
                let message = message.expect("in order");
                if message.is_data() {
                    websocket.send(message).await.expect("sent");
                }
            }
        });
        Ok::<Response<Full<Bytes>>, std::convert::Infallible>(response)
    });
    spawn(async move {
        let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        builder.enable_connect_protocol();
        builder.serve_connection(TokioIo::new(stream), service).await
    });

    let io = TokioIo::new(client);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.expect("HTTP/2");
    spawn(connection);
    let request = |origin: &str| {
        let mut request = Request::connect("http://example.com/chat")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-protocol", "v1")
            .header("origin", origin)
            .body(Full::<Bytes>::default())
            .expect("sound");
        request.extensions_mut().insert(Protocol::from_static("websocket"));
        request
    };
    sender.ready().await.expect("ready");
    let response = sender.send_request(request("http://elsewhere.example")).await.expect("answered");
    assert_eq!(response.status(), 403);
    let response = sender.send_request(request("http://example.com")).await.expect("answered");
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["sec-websocket-protocol"], "v1");
    assert!(!response.headers().contains_key("sec-websocket-accept"));

    let mut stream = TokioIo::new(upgrade::on(response).await.expect("a stream"));
    stream.write_all(b"\x81\x85\x00\x00\x00\x00hello\x88\x80\x00\x00\x00\x00").await.expect("sent");
    let mut frames = [0; 9];
    stream.read_exact(&mut frames).await.expect("echo and Close");
    assert_eq!(&frames, b"\x81\x05hello\x88\x00");
}

#[test]
fn header_values_beyond_ascii_reach_the_client() {
    let rejected = sinews::server::Refusal::new(403).expect("a status");
    let rejected = rejected.with_header("X-Reason", "größer").expect("a value");
    let response: Response<Full<Bytes>> = AcceptError::Rejected(rejected).to_response();
    assert_eq!(response.headers()["x-reason"].as_bytes(), "größer".as_bytes());
}
