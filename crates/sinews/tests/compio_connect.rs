//! Both sides of the handshake on compio: over a custom transport, by URL, through a proxy, with TLS.
#![cfg(feature = "compio")]

mod on_compio;

use std::time::Duration;

use compio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use on_compio::{run, sockets};
use sinews::compio::{Transport, WebSocket, accept, connect};
use sinews::server::{Reject, Reply};
use sinews::{AcceptError, CloseCode, ConnectError, Message};

async fn echo<S: Transport>(mut socket: WebSocket<S>) {
    while let Some(Ok(message)) = socket.next().await {
        if message.is_data() {
            socket.send(message).await.unwrap();
        }
    }
}

#[test]
fn client_and_server_complete_the_handshake() {
    run(|| async {
        let (one, other) = sockets();
        let serving = async {
            accept(other)
                .subprotocols(["v2", "v1"])
                .on_request(|request| match request.path() {
                    "/chat" => Ok(Reply::new().header("X-Room", "chat")),
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
            let refused = accept(other).on_request(|_| Err(Reject::new(403).body("not you"))).await;
            assert!(matches!(refused, Err(AcceptError::Refused(_))));
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
            let (_, told) = silent.read_to_end(Vec::new()).await.unwrap();
            assert!(told.starts_with(b"HTTP/1.1 408 "));
            drop(silent);
        };
        let accepting = accept(other).timeout(Duration::from_millis(20)).into_future();
        let (refused, ()) = futures_util::join!(accepting, leaving);
        assert!(matches!(refused, Err(AcceptError::TimedOut(_))));
        let (one, _silent) = sockets();
        let error = connect("ws://example.com/").timeout(Duration::from_millis(20)).over(one).await;
        assert!(matches!(error, Err(ConnectError::TimedOut { .. })));
    });
}

#[cfg(feature = "url-connect")]
mod by_url {
    use compio::net::TcpListener;

    use super::*;

    #[test]
    fn connect_opens_a_url() {
        run(|| async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            compio::runtime::spawn(async move {
                let (stream, peer) = listener.accept().await.unwrap();
                echo(accept(stream).peer(peer).await.unwrap()).await;
            })
            .detach();
            let url = format!("ws://localhost:{}/", address.port());
            let mut client = connect(url).no_proxy().await.unwrap();
            client.send("hello").await.unwrap();
            assert_eq!(client.next().await.unwrap().unwrap(), Message::text("hello"));
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
                echo(accept(stream).await.unwrap()).await;
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

        use rustls::pki_types::PrivateKeyDer;
        use sinews::compio::{Stream, TlsStream};

        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let server = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        run(|| async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            compio::runtime::spawn(async move {
                let (stream, _) = listener.accept().await.unwrap();
                let stream = TlsStream::accept(stream, Arc::new(server)).await.unwrap();
                echo(accept(stream).await.unwrap()).await;
            })
            .detach();
            let url = format!("wss://localhost:{}/", address.port());
            let mut client: WebSocket<Stream> = connect(url).tls(client).no_proxy().await.unwrap();
            let much = Message::binary(vec![1; 1 << 20]);
            client.feed(much.clone()).await.unwrap();
            assert!(client.next().await.unwrap().unwrap() == much);
            client.close(CloseCode::NORMAL, "").await.unwrap();
        });
    }
}
