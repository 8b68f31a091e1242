//! `sinews::axum` with `axum::serve`, over loopback.

use crate::client::{REQUEST, connect};
use crate::spawn::spawn;
use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get};
use sinews::axum::{WebSocket, WebSocketUpgrade};
use sinews::{AcceptError, Message, OriginPolicy};
use sinews_proto::handshake::ClientRequest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// Serves until the test ends, and its runtime with it.
async fn serve(app: Router) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("connected");
    spawn(async move { axum::serve(listener, app).await });
    client
}

fn request(path: &str) -> ClientRequest {
    ClientRequest::new("example.com", path).expect("sound")
}

/// The status of the response to raw bytes, and the rest of it.
async fn answer(app: Router, bytes: &str) -> (u16, String) {
    let mut client = serve(app).await;
    client.write_all(bytes.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.expect("an end");
    (answer[9..12].parse().expect("a status"), answer)
}

async fn echo(mut websocket: WebSocket) {
    while let Some(Ok(message)) = websocket.next().await {
        if message.is_data() && websocket.send(message).await.is_err() {
            break;
        }
    }
}

async fn next(websocket: &mut sinews::WebSocket<TcpStream>) -> Message {
    websocket.next().await.expect("a message").expect("in order")
}

#[tokio::test]
async fn websocket_of_axum_splits_and_its_halves_move_to_other_tasks() {
    async fn echo_in_halves(upgrade: WebSocketUpgrade) -> Response {
        upgrade.on_upgrade(async |websocket| {
            let (mut write, mut read) = websocket.split();
            let (sender, mut queue) = mpsc::channel::<Message>(4);
            let writing = spawn(async move {
                while let Some(message) = queue.recv().await {
                    write.send(message).await.expect("open");
                }
            });
            while let Some(Ok(message)) = read.next().await {
                if message.is_data() {
                    sender.send(message).await.expect("it writes");
                }
            }
            drop(sender);
            writing.await.expect("no panic");
        })
    }
    let app = Router::new().route("/", any(echo_in_halves));
    let (mut client, ..) = connect(serve(app).await, request("/")).await.expect("upgraded");
    client.send("in halves").await.expect("open");
    assert_eq!(next(&mut client).await, Message::text("in halves"));
}

#[cfg(feature = "deflate")]
#[tokio::test]
async fn echo_with_deflate() {
    let app = Router::new().route(
        "/",
        any(|upgrade: WebSocketUpgrade| async {
            upgrade.deflate(sinews::DeflateConfig::new()).on_upgrade(echo)
        }),
    );
    let request = request("/").with_deflate(sinews::DeflateConfig::new());
    let (mut client, _, head) = connect(serve(app).await, request).await.expect("accepted");
    assert!(head.contains("permessage-deflate"), "{head}");
    for text in ["again ".repeat(1000), "and again ".repeat(1000)] {
        client.send(text.clone()).await.expect("sent");
        assert_eq!(next(&mut client).await, Message::text(text));
    }
}

#[tokio::test]
async fn subprotocol_is_selected() {
    async fn chat(upgrade: WebSocketUpgrade) -> Response {
        assert_eq!(upgrade.requested_protocols().collect::<Vec<_>>(), ["v1", "v2"]);
        assert_eq!(upgrade.selected_protocol(), None);
        let upgrade = upgrade.protocols(["v3", "v2", "v1"]);
        assert_eq!(upgrade.selected_protocol(), Some("v2"));
        upgrade.on_upgrade(async |mut websocket: WebSocket| {
            let chosen = websocket.subprotocol().unwrap_or("none").to_owned();
            let _ = websocket.send(chosen).await;
        })
    }
    let client = serve(Router::new().route("/", any(chat))).await;
    let request = request("/").with_subprotocol("v1").expect("a token");
    let request = request.with_subprotocol("v2").expect("a token");
    let (mut client, chosen, _) = connect(client, request).await.expect("accepted");
    assert_eq!(chosen.as_deref(), Some("v2"));
    assert_eq!(next(&mut client).await, Message::text("v2"));
}

#[tokio::test]
async fn large_messages_pass_up_to_the_limit() {
    async fn large(upgrade: WebSocketUpgrade) -> Response {
        upgrade.max_message_size(20 << 20).max_frame_size(20 << 20).on_upgrade(echo)
    }
    let (mut client, ..) =
        connect(serve(Router::new().route("/", any(large))).await, request("/")).await.expect("accepted");
    let payload: Vec<u8> = (0..20 << 20).map(|at: u32| (at % 251) as u8).collect();
    // Both ends would wait for capacity if neither read meanwhile: sending reads aside, and the echo waits.
    client.send(payload.clone()).await.expect("sent");
    assert_eq!(next(&mut client).await.into_bytes(), payload);
    // Whether it is accepted or not.
    let _ = client.send(vec![0; (20 << 20) + 1]).await;
    let Message::Close(Some(close)) = next(&mut client).await else { panic!("the server ends it") };
    assert_eq!(close.code(), sinews::CloseCode::TOO_BIG);
}

#[tokio::test]
async fn layers_and_other_extractors_work_unchanged() {
    #[derive(serde::Deserialize)]
    struct NameQuery {
        name: String,
    }
    async fn room(
        State(greeting): State<&'static str>,
        Path(room): Path<u32>,
        Query(who): Query<NameQuery>,
        upgrade: WebSocketUpgrade,
        headers: HeaderMap,
    ) -> Response {
        assert!(headers.contains_key("sec-websocket-key"), "the request is unchanged");
        upgrade.on_upgrade(async move |mut websocket: WebSocket| {
            let _ = websocket.send(format!("{greeting}, {} in {room}", who.name)).await;
        })
    }
    async fn mark(request: axum::extract::Request, next: Next) -> Response {
        let mut response = next.run(request).await;
        response.headers_mut().insert("x-layer", HeaderValue::from_static("passed"));
        response
    }
    let app = Router::new().route("/rooms/{room}", any(room)).layer(middleware::from_fn(mark));
    let client = serve(app.with_state("hello")).await;
    let (mut client, _, head) = connect(client, request("/rooms/7?name=ann")).await.expect("accepted");
    assert!(head.contains("x-layer: passed"), "{head}");
    assert_eq!(next(&mut client).await, Message::text("hello, ann in 7"));
    let closed = client.next().await;
    assert!(closed.is_none() || closed.is_some_and(|last| last.is_err()), "dropped by the server");
}

#[tokio::test]
async fn rejections_match_those_of_accept() {
    let cases = [
        REQUEST.replace("GET", "POST"),
        REQUEST.replace("Upgrade: websocket\r\n", ""),
        REQUEST.replace("Connection: Upgrade\r\n", ""),
        REQUEST.replace("Version: 13", "Version: 8"),
        REQUEST.replace("dGhlIHNhbXBsZSBub25jZQ==", "short"),
        REQUEST.replace("Host: example.com\r\n", ""),
        REQUEST.replace("Version: 13\r\n", "Version: 13\r\nOrigin: https://elsewhere.example\r\n"),
        REQUEST.replace("Version: 13\r\n", "Version: 13\r\nSec-WebSocket-Protocol: a, a\r\n"),
        REQUEST.replace("Version: 13\r\n", "Version: 13\r\nSec-WebSocket-Extensions: =\r\n"),
    ];
    for bytes in cases {
        let (mut client, server) = tokio::io::duplex(4096);
        client.write_all(bytes.as_bytes()).await.expect("written");
        client.shutdown().await.expect("shut");
        let error = sinews::accept(server).await.expect_err("refused");
        let app =
            Router::new().route("/", any(|upgrade: WebSocketUpgrade| async { upgrade.on_upgrade(echo) }));
        let (status, answer) = answer(app, &bytes).await;
        assert_eq!(Some(status), error.status(), "{bytes}");
        // A missing `Host` is detected by our parser there, and by the handshake here.
        let AcceptError::Rejected(refusal) = &error else { continue };
        assert!(answer.as_bytes().ends_with(refusal.body()), "{answer}");
        for (name, value) in refusal.headers() {
            assert!(answer.to_ascii_lowercase().contains(&format!("{name}: {value}").to_ascii_lowercase()));
        }
    }
}

#[tokio::test]
async fn only_allowed_origins_are_accepted() {
    let foreign = REQUEST.replace("Version: 13\r\n", "Version: 13\r\nOrigin: https://elsewhere.example\r\n");
    let with = |policy: Option<OriginPolicy>, failed: mpsc::UnboundedSender<AcceptError>| {
        let handler = move |upgrade: WebSocketUpgrade| async move {
            let upgrade = match policy {
                Some(policy) => upgrade.origin(policy),
                None => upgrade,
            };
            let upgrade = upgrade.on_failed_upgrade(move |error| drop(failed.send(error)));
            upgrade.on_upgrade(async |_: WebSocket| {})
        };
        Router::new().route("/", any(handler))
    };
    let (result_sender, mut result_receiver) = mpsc::unbounded_channel();
    assert_eq!(answer(with(None, result_sender.clone()), &foreign).await.0, 403);
    let error = result_receiver.recv().await.expect("the callback is called");
    assert_eq!(error.status(), Some(403));
    let listed = OriginPolicy::list(["https://elsewhere.example"]).expect("an origin");
    for policy in [OriginPolicy::any(), listed] {
        let (status, _) = {
            let mut client = serve(with(Some(policy), result_sender.clone())).await;
            client.write_all(foreign.as_bytes()).await.expect("sent");
            let mut answer = Vec::new();
            // The WebSocket is dropped at once.
            client.read_to_end(&mut answer).await.expect("an end");
            (String::from_utf8_lossy(&answer[9..12]).into_owned(), answer)
        };
        assert_eq!(status, "101");
    }
    assert!(result_receiver.try_recv().is_err());
}

#[tokio::test]
async fn failed_upgrade_calls_the_callback() {
    let (result_sender, mut result_receiver) = mpsc::unbounded_channel();
    let (asked, mut was_asked) = mpsc::unbounded_channel();
    let handler = move |upgrade: WebSocketUpgrade| async move {
        let upgrade = upgrade.on_failed_upgrade(move |error| drop(result_sender.send(error)));
        let response = upgrade.on_upgrade(async |_: WebSocket| panic!("no WebSocket"));
        let _ = asked.send(());
        std::future::pending::<()>().await;
        response
    };
    let mut client = serve(Router::new().route("/", any(handler))).await;
    client.write_all(REQUEST.as_bytes()).await.expect("sent");
    was_asked.recv().await.expect("the handler runs");
    drop(client);
    let error = result_receiver.recv().await.expect("the callback is called");
    assert!(matches!(error, AcceptError::Io(..)), "{error:?}");
}

/// hyper hands over the connection regardless of the response.
#[tokio::test]
async fn replaced_response_ends_the_websocket_at_its_first_read() {
    let (result_sender, mut result_receiver) = mpsc::unbounded_channel();
    let handler = move |upgrade: WebSocketUpgrade| async move {
        let failed = result_sender.clone();
        let upgrade = upgrade.on_failed_upgrade(move |_| failed.send(false).expect("the test listens"));
        let _unsent = upgrade.on_upgrade(async move |mut websocket: WebSocket| {
            let _ = result_sender.send(matches!(websocket.next().await, Some(Ok(_))));
        });
        StatusCode::IM_A_TEAPOT
    };
    let mut client = serve(Router::new().route("/", any(handler))).await;
    client.write_all(REQUEST.as_bytes()).await.expect("sent");
    let mut answer = [0; 12];
    client.read_exact(&mut answer).await.expect("a status");
    assert_eq!(&answer, b"HTTP/1.1 418");
    drop(client);
    assert!(!result_receiver.recv().await.expect("called"), "no message arrives");
}

#[tokio::test]
async fn page_and_websocket_share_one_path() {
    async fn either(upgrade: Option<WebSocketUpgrade>) -> Response {
        match upgrade {
            Some(upgrade) => upgrade.on_upgrade(echo),
            None => "a page".into_response(),
        }
    }
    let app = Router::new().route("/", get(either));
    let plain = "GET / HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n";
    let (status, page) = answer(app.clone(), plain).await;
    assert!(status == 200 && page.ends_with("a page"), "{page}");
    // An upgrade to another protocol is ignored, and so is any in HTTP/1.0 (RFC 9110 section 7.8).
    let other = plain.replace("Connection: close", "Connection: Upgrade, close\r\nUpgrade: h2c, websocket2");
    for request in [other, REQUEST.replace("HTTP/1.1", "HTTP/1.0")] {
        let (status, page) = answer(app.clone(), &request).await;
        assert!(status == 200 && page.ends_with("a page"), "{request}: {page}");
    }
    let (status, _) = answer(app.clone(), &REQUEST.replace("Version: 13", "Version: 8")).await;
    assert_eq!(status, 426);
    let listed = REQUEST.replace("Upgrade: websocket", "Upgrade: h2c, WebSocket");
    assert_eq!(answer(app.clone(), &listed.replace("Version: 13", "Version: 8")).await.0, 426);
    let (mut client, ..) = connect(serve(app).await, request("/")).await.expect("accepted");
    client.send("hello").await.expect("sent");
    assert_eq!(next(&mut client).await, Message::text("hello"));
}

#[tokio::test]
async fn invalid_settings_are_a_500() {
    let app = Router::new().route(
        "/",
        any(|upgrade: WebSocketUpgrade| async { upgrade.protocols(["no token"]).on_upgrade(echo) }),
    );
    assert_eq!(answer(app, REQUEST).await.0, 500);
}
