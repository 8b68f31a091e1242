//! Extended CONNECT (RFC 8441) of a client of hyper, answered under hyper and axum.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::http2_servers::servers;
use crate::spawn::spawn;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::client::conn::http2::SendRequest;
use hyper::ext::Protocol;
use hyper_util::rt::{TokioExecutor, TokioIo};
use sinews::{Bytes, Config, Message, WebSocket};
use sinews_proto::handshake::{ClientRequest, Established, ExtendedConnect};
use tokio::net::TcpStream;

async fn client(address: SocketAddr) -> SendRequest<Full<Bytes>> {
    let io = TokioIo::new(TcpStream::connect(address).await.expect("connected"));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.expect("HTTP/2");
    spawn(connection);
    sender.ready().await.expect("ready");
    sender
}

/// An extended CONNECT to `/chat` with these headers.
fn connect(protocol: &'static str, headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let mut request = Request::connect("http://example.com/chat");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut request = request.body(Full::default()).expect("sound");
    request.extensions_mut().insert(Protocol::from_static(protocol));
    request
}

/// Opens a WebSocket by a request of `sinews-proto`.
async fn open(
    sender: &mut SendRequest<Full<Bytes>>,
    request: &ExtendedConnect,
) -> (WebSocket<TokioIo<hyper::upgrade::Upgraded>>, Established) {
    let headers: Vec<_> = request.headers().map(|(name, value)| (name, value.into_owned())).collect();
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let response = sender.send_request(connect("websocket", &headers)).await.expect("answered");
    assert!(!response.headers().contains_key("sec-websocket-accept"));
    let fields = response.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let established = request.read_response(response.status().as_u16(), fields).expect("accepted");
    let io = TokioIo::new(hyper::upgrade::on(response).await.expect("a stream"));
    let websocket =
        WebSocket::from_negotiated(io, established.negotiated(), Arc::new(Config::default()), &[]);
    (websocket, established)
}

fn request() -> ClientRequest {
    ClientRequest::new("example.com", "/chat").expect("sound")
}

#[tokio::test]
async fn websockets_of_one_connection_negotiate_and_echo_each_for_itself() {
    for address in servers().await {
        let mut sender = client(address).await;
        let plain = request().extended_connect().expect("sound");
        let (mut first, established) = open(&mut sender, &plain).await;
        assert_eq!(established.subprotocol(), None);
        let offers = request().with_subprotocol("v1").and_then(|request| request.with_subprotocol("v2"));
        let (mut second, established) =
            open(&mut sender, &offers.expect("tokens").extended_connect().expect("sound")).await;
        assert_eq!(established.subprotocol(), Some("v2"), "the server's order of preference");
        for text in ["one".to_owned(), "two ".repeat(100_000)] {
            first.send(text.clone()).await.expect("open");
            second.send(format!("{text}!")).await.expect("open");
            assert_eq!(second.next().await.expect("open").expect("sound"), Message::text(format!("{text}!")));
            assert_eq!(first.next().await.expect("open").expect("sound"), Message::text(text));
        }
        first.close(sinews::CloseCode::NORMAL, "done").await.expect("in order");
        second.send("still open").await.expect("open");
        assert_eq!(second.next().await.expect("open").expect("sound"), Message::text("still open"));
    }
}

#[cfg(feature = "deflate")]
#[tokio::test]
async fn deflate_is_negotiated_for_each_stream() {
    for address in servers().await {
        let mut sender = client(address).await;
        let offer = request().with_deflate(sinews::DeflateConfig::new()).extended_connect().expect("sound");
        let (mut first, established) = open(&mut sender, &offer).await;
        assert!(established.negotiated().deflate().is_some());
        let (mut second, _) = open(&mut sender, &offer).await;
        for text in ["again ".repeat(1000), "and again ".repeat(1000)] {
            for websocket in [&mut first, &mut second] {
                websocket.send(text.clone()).await.expect("open");
                assert_eq!(
                    websocket.next().await.expect("open").expect("sound"),
                    Message::text(text.clone())
                );
            }
        }
    }
}

#[tokio::test]
async fn invalid_requests_over_http2_get_the_matching_status() {
    let version = ("sec-websocket-version", "13");
    let cases = [
        (
            connect("websocket", &[("sec-websocket-version", "12")]),
            400,
            Some(("sec-websocket-version", "13")),
        ),
        (connect("websocket", &[]), 400, None),
        (connect("connect-udp", &[version]), 501, None),
        (connect("websocket", &[version, ("origin", "http://elsewhere.example")]), 403, None),
        (connect("websocket", &[version, ("sec-websocket-extensions", "=")]), 400, None),
        (connect("websocket", &[version, ("sec-websocket-protocol", "a, a")]), 400, None),
    ];
    for address in servers().await {
        for (request, status, header) in &cases {
            let mut sender = client(address).await;
            let response = sender.send_request(request.clone()).await.expect("answered");
            assert_eq!(response.status(), *status, "{request:?}");
            if let Some((name, value)) = header {
                assert_eq!(response.headers()[*name], *value);
            }
            let body = response.into_body().collect().await.expect("the whole body").to_bytes();
            assert!(!body.is_empty(), "{request:?}");
            // The connection serves on.
            let (mut websocket, _) =
                open(&mut sender, &self::request().extended_connect().expect("sound")).await;
            websocket.send("hello").await.expect("open");
            assert_eq!(websocket.next().await.expect("open").expect("sound"), Message::text("hello"));
        }
    }
}
