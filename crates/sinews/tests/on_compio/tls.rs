//! TLS on compio: both directions at once, cancellation, and ends that may be truncation.

use std::io::Write as _;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::support::{poll_once, run, sockets, turn};
use compio::io::AsyncWriteExt as _;
use compio::net::UnixStream;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};
use sinews::compio::{TlsStream, WebSocket};
use sinews::{AtFault, Cause, CloseCode, Config, Message};
use sinews_testkit::{TestCertificate, negotiate};

fn configs() -> (Arc<ClientConfig>, Arc<ServerConfig>) {
    let certificate = TestCertificate::new();
    (Arc::new(certificate.client_config()), Arc::new(certificate.server_config()))
}

fn name() -> ServerName<'static> {
    ServerName::try_from("localhost").unwrap()
}

type End = WebSocket<TlsStream<UnixStream>>;

async fn pair_with(config: &Config) -> (End, End) {
    let (client, server) = configs();
    let (one, other) = sockets();
    let (one, other) =
        futures_util::join!(TlsStream::connect(one, client, name()), TlsStream::accept(other, server));
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!(other.connection().protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
    let agreed = negotiate(None, None);
    let config = Arc::new(config.clone());
    (
        WebSocket::from_negotiated(one, agreed.client, config.clone(), &[]),
        WebSocket::from_negotiated(other, agreed.server, config, &[]),
    )
}

#[test]
fn messages_pass_and_the_connection_closes() {
    run(|| async {
        let (mut client, mut server) = pair_with(&Config::default()).await;
        let (info, of_client) = (client.tls_info().unwrap(), server.tls_info().unwrap());
        assert_eq!((info.version, info.peer_certificates.len()), (Some("TLSv1.3"), 1));
        assert_eq!((of_client.version, of_client.peer_certificates.len()), (Some("TLSv1.3"), 0));
        assert!(client.get_ref().peer_addr().is_ok());
        let server = compio::runtime::spawn(async move {
            while let Some(message) = server.next().await {
                let message = message.unwrap();
                if message.is_data() {
                    server.send(message).await.unwrap();
                }
            }
            server
        });
        for n in [0, 1, 125, 16_384, 70_000, 16 << 20] {
            let message = Message::binary(vec![n as u8; n]);
            client.feed(message.clone()).await.unwrap();
            assert!(client.next().await.unwrap().unwrap() == message, "{n}");
        }
        let closed = client.close(CloseCode::NORMAL, "enough").await.unwrap();
        assert_eq!((closed.status(), closed.cause()), (1000, Cause::Local));
        drop(client);
        assert_eq!(server.await.unwrap().closed().unwrap().cause(), Cause::Peer);
    });
}

/// A receive in flight does not delay a send.
#[test]
fn large_sends_in_both_directions_do_not_deadlock() {
    run(|| async {
        let config = Config::default().with_high_water(8 << 20).with_max_outbound(16 << 20);
        let (mut one, mut other) = pair_with(&config).await;
        let much = Message::binary(vec![7; 4 << 20]);
        let first = async {
            assert!(poll_once(one.next()).is_pending());
            one.send(much.clone()).await.unwrap();
            assert!(one.next().await.unwrap().unwrap() == much);
        };
        let second = async {
            assert!(poll_once(other.next()).is_pending());
            other.send(much.clone()).await.unwrap();
            assert!(other.next().await.unwrap().unwrap() == much);
        };
        futures_util::join!(first, second);
    });
}

#[test]
fn dropped_futures_lose_nothing() {
    run(|| async {
        let config = Config::default().with_high_water(1 << 20).with_max_outbound(4 << 20);
        let (mut client, mut server) = pair_with(&config).await;
        let mut heard = 0;
        for n in 0..200_usize {
            let _ = poll_once(client.send(vec![n as u8; n * 50]));
            if n % 4 == 0 {
                turn().await;
            }
            while let Poll::Ready(message) = poll_once(server.next()) {
                assert_eq!(message.unwrap().unwrap(), Message::binary(vec![heard as u8; heard * 50]));
                heard += 1;
            }
        }
        let flushing = async { client.flush().await.unwrap() };
        let hearing = async {
            while heard < 200 {
                assert_eq!(
                    server.next().await.unwrap().unwrap(),
                    Message::binary(vec![heard as u8; heard * 50])
                );
                heard += 1;
            }
        };
        futures_util::join!(flushing, hearing);
    });
}

#[test]
fn end_without_close_notify_is_an_error() {
    run(|| async {
        let (mut client, server) = pair_with(&Config::default()).await;
        drop(server);
        let error = client.next().await.unwrap().unwrap_err();
        assert_eq!(error.at_fault(), AtFault::Transport);
        assert!(client.next().await.is_none());
    });
}

#[test]
fn server_with_another_name_is_rejected_with_an_alert() {
    run(|| async {
        let (client, server) = configs();
        let (one, other) = sockets();
        let wrong = ServerName::try_from("example.com").unwrap();
        let (one, other) =
            futures_util::join!(TlsStream::connect(one, client, wrong), TlsStream::accept(other, server));
        assert_eq!(one.unwrap_err().kind(), std::io::ErrorKind::InvalidData);
        let error = other.unwrap_err();
        assert!(error.to_string().contains("BadCertificate"), "{error}");
    });
}

#[test]
fn non_tls_bytes_are_rejected() {
    run(|| async {
        let (_, server) = configs();
        let (mut raw, other) = sockets();
        raw.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let rejected = TlsStream::accept(other, server).await.unwrap_err();
        assert_eq!(rejected.kind(), std::io::ErrorKind::InvalidData);
    });
}

/// Bytes behind close_notify are ignored, regardless of their number.
#[test]
fn bytes_behind_close_notify_are_ignored() {
    let (client, server) = configs();
    let (mut peer, other) = std::os::unix::net::UnixStream::pair().unwrap();
    let peer = std::thread::spawn(move || {
        let mut session = rustls::ClientConnection::new(client, name()).unwrap();
        while session.is_handshaking() {
            session.complete_io(&mut peer).unwrap();
        }
        session.send_close_notify();
        let mut last = Vec::new();
        session.write_tls(&mut last).unwrap();
        last.resize(40_000, 0x17);
        peer.write_all(&last).unwrap();
        peer
    });
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        run(|| async move {
            let other = UnixStream::from_std(other).unwrap();
            let stream = TlsStream::accept(other, server).await.unwrap();
            let negotiated = negotiate(None, None).server;
            let mut server = WebSocket::from_negotiated(stream, negotiated, Arc::default(), &[]);
            assert!(matches!(server.next().await, Some(Err(_))), "a Close was to come first");
        });
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(60)).expect("the thread goes on");
    drop(peer.join());
}
