//! Both sides of the handshake on compio: over a custom transport, by URL, through a proxy, with TLS.

use std::time::Duration;

use crate::support::{echo, run, sockets};
use compio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use sinews::compio::{Transport, WebSocket, accept, connect};
use sinews::server::{Reject, Reply};
use sinews::{AcceptError, CloseCode, ConnectError, Message};

#[test]
fn client_and_server_complete_the_handshake() {
    run(|| async {
        let (one, other) = sockets();
        let serving = async {
            accept(other)
                .subprotocols(["v2", "v1"])
                .on_request(|request| match request.path() {
                    "/chat" => Ok(Reply::new().with_header("X-Room", "chat")),
                    _ => Err(Reject::new(404)),
                })
                .open()
                .await
                .unwrap()
        };
        let asking = async {
            connect("ws://example.com/chat?room=7").subprotocol("v1").over(one).open().await.unwrap()
        };
        let ((server, request), (mut client, response)) = futures_util::join!(serving, asking);
        assert_eq!((server.subprotocol(), client.subprotocol()), (Some("v1"), Some("v1")));
        assert_eq!(request.query_value("room").as_deref(), Some("7"));
        assert_eq!(response.headers()["x-room"], "chat");
        compio::runtime::spawn(echo(server)).detach();
        client.send("hello").await.unwrap();
        assert_eq!(client.next().await.unwrap().unwrap(), Message::text("hello"));
        client.close(CloseCode::NORMAL, "").await.unwrap();
    });
}

/// Frames come with the request, in one packet.
#[test]
fn bytes_behind_the_request_are_not_lost() {
    run(|| async {
        let (mut raw, other) = sockets();
        raw.write_all(
            "GET / HTTP/1.1\r\nHost: example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n\
             \u{1}\u{0}",
        )
        .await
        .unwrap();
        let mut server = accept(other).await.unwrap();
        // An unmasked fragment, which a client may not send: it must be detected.
        let leaving = async {
            raw.read_to_end(Vec::new()).await.unwrap();
            drop(raw);
        };
        let (seen, ()) = futures_util::join!(server.next(), leaving);
        assert!(seen.unwrap().is_err());
    });
}

#[test]
fn rejected_request_gets_a_response_and_is_closed() {
    run(|| async {
        let (one, other) = sockets();
        let serving = async {
            let rejected = accept(other).on_request(|_| Err(Reject::new(403).with_body("not you"))).await;
            assert!(matches!(rejected, Err(AcceptError::Rejected(_))));
        };
        let asking = async {
            let error = connect("ws://example.com/").over(one).await.unwrap_err();
            let ConnectError::Rejected(response) = error else { panic!("{error}") };
            assert_eq!((response.status().as_u16(), response.body()), (403, &b"not you"[..]));
        };
        futures_util::join!(serving, asking);
    });
}

#[test]
fn silent_peers_time_out() {
    run(|| async {
        let (mut silent, other) = sockets();
        let leaving = async {
            let (_, response) = silent.read_to_end(Vec::new()).await.unwrap();
            assert!(response.starts_with(b"HTTP/1.1 408 "));
            drop(silent);
        };
        let accepting = accept(other).timeout(Duration::from_millis(20)).into_future();
        let (rejected, ()) = futures_util::join!(accepting, leaving);
        assert!(matches!(rejected, Err(AcceptError::TimedOut(_))));
        let (one, _silent) = sockets();
        let error = connect("ws://example.com/").timeout(Duration::from_millis(20)).over(one).await;
        assert!(matches!(error, Err(ConnectError::TimedOut { .. })));
    });
}

#[cfg(feature = "url-connect")]
mod by_url {
    use compio::net::{TcpListener, TcpStream};

    use super::*;

    /// Sends in one task of the runtime and receives in another, and then echoes with both halves joined.
    async fn assert_halves_move<S: Transport>(socket: WebSocket<S>) {
        let (mut write, mut read) = socket.split();
        let reading = compio::runtime::spawn(async move { (read.next().await, read) });
        let writing = compio::runtime::spawn(async move { (write.send("in halves").await, write) });
        let (message, read) = reading.await.unwrap();
        assert_eq!(message.unwrap().unwrap(), Message::text("in halves"));
        let (sent, write) = writing.await.unwrap();
        sent.unwrap();
        let mut socket = read.reunite(write).expect("halves of one connection");
        socket.send("whole").await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("whole"));
    }

    #[test]
    fn connect_opens_a_url() {
        run(|| async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            compio::runtime::spawn(async move {
                let (stream, peer) = listener.accept().await.unwrap();
                let _ = echo(accept(stream).peer(peer).await.unwrap()).await;
            })
            .detach();
            let url = format!("ws://localhost:{}/", address.port());
            let mut client = connect(url).no_proxy().await.unwrap();
            client.send("hello").await.unwrap();
            assert_eq!(client.next().await.unwrap().unwrap(), Message::text("hello"));
            assert_halves_move(client).await;
        });
    }

    #[test]
    fn connect_without_a_listener_is_a_tcp_error() {
        run(|| async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            listener.close().await.unwrap();
            let error = connect(format!("ws://{address}/")).no_proxy().await.unwrap_err();
            assert!(matches!(&error, ConnectError::Tcp { .. }), "{error}");
        });
    }

    #[test]
    fn connect_through_a_proxy() {
        run(|| async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            compio::runtime::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.extend(stream.read_exact([0]).await.unwrap().1);
                }
                assert!(head.starts_with(b"CONNECT example.com:80 HTTP/1.1\r\n"));
                stream.write_all("HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                let _ = echo(accept(stream).await.unwrap()).await;
            })
            .detach();
            let connecting = connect("ws://example.com/").proxy(format!("http://{address}"));
            let mut client = connecting.await.unwrap();
            client.send("hello").await.unwrap();
            assert_eq!(client.next().await.unwrap().unwrap(), Message::text("hello"));
        });
    }

    #[cfg(feature = "rustls")]
    #[test]
    fn connect_to_wss_uses_tls() {
        use std::sync::Arc;

        use sinews::compio::{Stream, TlsStream};
        use sinews_testkit::TestCertificate;

        let certificate = TestCertificate::new();
        let (client, server) = (certificate.client_config(), certificate.server_config());
        run(|| async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (server, other_client) = (Arc::new(server), client.clone());
            compio::runtime::spawn(async move {
                for _ in 0..2 {
                    let (stream, _) = listener.accept().await.unwrap();
                    let stream = TlsStream::accept(stream, server.clone()).await.unwrap();
                    let _ = echo(accept(stream).await.unwrap()).await;
                }
            })
            .detach();
            let url = format!("wss://localhost:{}/", address.port());
            let mut client: WebSocket<Stream> = connect(url).tls(client).no_proxy().await.unwrap();
            let much = Message::binary(vec![1; 1 << 20]);
            client.feed(much.clone()).await.unwrap();
            assert!(client.next().await.unwrap().unwrap() == much);
            client.close(CloseCode::NORMAL, "").await.unwrap();

            let url = format!("wss://localhost:{}/", address.port());
            let tcp = TcpStream::connect(address).await.unwrap();
            let client: WebSocket<Stream> = connect(url).tls(other_client).over_tls(tcp).await.unwrap();
            assert_eq!(client.tls_info().unwrap().version, Some("TLSv1.3"));
            assert_halves_move(client).await;
        });
    }
}
