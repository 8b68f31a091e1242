//! `wss`, with certificates made for the test.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::servers::{assert_echoes, echo, read_head, serve};
use crate::spawn::spawn;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sinews::client::{ConnectPhase, TlsError};
use sinews::tokio::{Split, Stream};
use sinews::{CloseCode, ConnectError, Message, WebSocket, connect};
use sinews_testkit::TestCertificate;
use sinews_testkit::tls::{server_config, trusting};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::TcpStream;

/// A server for `localhost` that offers these protocols by ALPN, and its certificate.
async fn tls_server(alpn: &[&str]) -> (SocketAddr, CertificateDer<'static>) {
    let made = TestCertificate::new();
    tls_server_with(alpn, made.der(), made.key()).await
}

async fn tls_server_with(
    alpn: &[&str],
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
) -> (SocketAddr, CertificateDer<'static>) {
    let acceptor = acceptor(alpn, certificate.clone(), key);
    let address = serve(move |tcp| {
        let acceptor = acceptor.clone();
        async move {
            if let Ok(tls) = acceptor.accept(tcp).await {
                echo(tls).await;
            }
        }
    })
    .await;
    (address, certificate)
}

fn acceptor(
    alpn: &[&str],
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
) -> tokio_rustls::TlsAcceptor {
    let mut config = server_config(certificate, key);
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    tokio_rustls::TlsAcceptor::from(Arc::new(config))
}

fn url(address: SocketAddr) -> String {
    format!("wss://localhost:{}/", address.port())
}

fn fault(error: ConnectError) -> TlsError {
    match error {
        ConnectError::Tls { error, .. } => error,
        error => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn rustls_carries_messages_of_all_sizes() {
    let (address, certificate) = tls_server(&[]).await;
    let own = certificate.clone();
    let mut ws = connect(url(address)).tls(trusting([certificate])).await.expect("connected");
    assert!(ws.get_ref().is_tls() && matches!(ws.get_ref(), Stream::Rustls(_)));
    assert_eq!(ws.get_ref().tcp().peer_addr().expect("connected").port(), address.port());
    let info = ws.tls_info().expect("encrypted");
    assert_eq!((info.version, info.alpn), (Some("TLSv1.3"), None));
    assert_eq!(info.peer_certificates, [own.to_vec()]);
    assert_echoes(&mut ws).await;
    for len in [0, 1, 16_384, 100_000, 3 << 20] {
        let payload: Vec<u8> = (0..len).map(|at| at as u8).collect();
        ws.send(payload.clone()).await.expect("open");
        assert_eq!(ws.next().await.expect("open").expect("sound"), Message::binary(payload));
    }
    ws.close(CloseCode::NORMAL, "").await.expect("in order");
}

#[tokio::test]
async fn tls_is_made_over_a_socket_of_the_caller() {
    let (address, certificate) = tls_server(&["http/1.1"]).await;
    let tcp = TcpStream::connect(address).await.expect("connected");
    // The URL names the certificate and the request; no name is resolved.
    let connecting = connect("wss://localhost/").tls(trusting([certificate.clone()])).over_tls(tcp);
    let mut ws: WebSocket<Stream> = connecting.await.expect("connected");
    assert!(matches!(ws.get_ref(), Stream::Rustls(_)));
    assert_echoes(&mut ws).await;
    drop(ws);

    // Settings may follow, and the error of the handshake is that of a connection to the URL.
    let tcp = TcpStream::connect(address).await.expect("connected");
    let connecting = connect("wss://example.com/").over_tls(tcp).tls(trusting([certificate]));
    let error = connecting.await.expect_err("another name");
    assert!(matches!(fault(error), TlsError::Handshake(_)));

    // Without TLS, the transport has the same type.
    let plain = serve(|tcp| async move { drop(echo(tcp).await) }).await;
    let tcp = TcpStream::connect(plain).await.expect("connected");
    let mut ws: WebSocket<Stream> = connect("ws://localhost/").over_tls(tcp).await.expect("connected");
    assert!(matches!(ws.get_ref(), Stream::Plain(_)));
    assert_echoes(&mut ws).await;
}

#[tokio::test]
async fn tls_over_a_silent_socket_times_out() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let tcp = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("connected");
    let (_, certificate) = tls_server(&[]).await;
    let connecting =
        connect("wss://localhost/").tls(trusting([certificate])).timeout(Duration::from_millis(50));
    let error = connecting.over_tls(tcp).await.expect_err("no answer");
    assert!(matches!(error, ConnectError::TimedOut { phase: ConnectPhase::Tls, .. }), "{error}");
}

#[tokio::test]
async fn untrusted_certificate_is_rejected() {
    let (address, _) = tls_server(&[]).await;
    let (_, other) = tls_server(&[]).await;
    let error = connect(url(address)).tls(Arc::new(trusting([other]))).await.expect_err("another root");
    assert!(error.to_string().starts_with("TLS with localhost: "), "{error}");
    assert!(matches!(fault(error), TlsError::Handshake(_)));
}

#[tokio::test]
async fn certificate_for_another_name_is_rejected() {
    let (address, certificate) = tls_server(&[]).await;
    let error =
        connect(format!("wss://{address}")).tls(trusting([certificate])).await.expect_err("no such name");
    assert!(error.to_string().contains("not valid for name"), "{error}");
}

#[tokio::test]
async fn server_name_can_differ_from_the_url() {
    let (address, certificate) = tls_server(&[]).await;
    let way = connect(format!("wss://{address}")).tls(trusting([certificate])).server_name("localhost");
    assert_echoes(&mut way.await.expect("connected")).await;
}

#[tokio::test]
async fn server_name_does_not_apply_to_another_origin() {
    let (address, certificate) = tls_server(&[]).await;
    let location = url(address);
    let first = serve(move |mut stream| {
        let answer = format!("HTTP/1.1 307 Elsewhere\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n");
        async move {
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    })
    .await;
    let way = connect(format!("ws://{first}")).tls(trusting([certificate])).server_name("first.example");
    assert_echoes(&mut way.redirects(1).await.expect("the certificate is that of localhost")).await;
}

#[cfg(any(feature = "rustls-native-roots", feature = "rustls-webpki-roots"))]
#[tokio::test]
async fn default_roots_reject_a_self_signed_certificate() {
    let (address, _) = tls_server(&[]).await;
    let error = fault(connect(url(address)).await.expect_err("made for the test"));
    // A machine without roots trusts no certificate either.
    assert!(matches!(error, TlsError::Handshake(_) | TlsError::NoRoots), "{error:?}");
}

#[cfg(feature = "rustls-webpki-roots")]
#[test]
fn default_tls_is_available() {
    sinews::Tls::new().expect("Mozilla's roots are compiled in");
}

#[tokio::test]
async fn alpn_other_than_http1_is_rejected() {
    let (address, certificate) = tls_server(&["h2", "http/1.1"]).await;
    let mut config = trusting([certificate]);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let error = fault(connect(url(address)).tls(config.clone()).await.expect_err("no HTTP/1.1"));
    assert!(matches!(&error, TlsError::Alpn(chosen) if chosen == "h2"), "{error:?}");
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    assert_echoes(&mut connect(url(address)).tls(config).await.expect("connected")).await;
}

#[tokio::test]
async fn tls_against_a_plain_port_names_the_cause() {
    let address = serve(|mut stream| async move {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    })
    .await;
    let (_, certificate) = tls_server(&[]).await;
    let error = connect(url(address)).tls(trusting([certificate])).await.expect_err("no TLS");
    let text = error.to_string();
    assert!(
        text.contains("the server does not speak TLS on this port; ws:// connects without TLS"),
        "{text}"
    );
    assert!(matches!(fault(error), TlsError::Handshake(_)));
}

#[tokio::test]
async fn authority_certificate_as_server_certificate_names_the_cause() {
    let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("sound");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate").der().clone();
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let (address, _) = tls_server_with(&[], certificate.clone(), key).await;
    let error = connect(url(address)).tls(trusting([certificate])).await.expect_err("an authority's");
    let text = error.to_string();
    assert!(
        text.contains("the server presents the certificate of a certificate authority (CA) as its own"),
        "{text}"
    );
    assert!(text.contains("basicConstraints"), "{text}");
}

/// Sends in one task and receives in another, and then echoes with both halves joined.
async fn assert_halves_move<S>(ws: WebSocket<S>)
where
    S: Split<Stream = S, Read: Send, Write: Send> + AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut write, mut read) = ws.split();
    let reading = spawn(async move {
        let message = read.next().await.expect("open").expect("sound");
        (message, read)
    });
    let writing = spawn(async move {
        write.send("in halves").await.expect("open");
        write
    });
    let ((message, read), write) = (reading.await.expect("no panic"), writing.await.expect("no panic"));
    assert_eq!(message, Message::text("in halves"));
    assert_echoes(&mut read.reunite(write).expect("one connection")).await;
}

/// Echoes by halves, each in a task of its own.
#[cfg(any(feature = "hyper", feature = "native-tls"))]
async fn echo_in_halves<S>(ws: WebSocket<S>)
where
    S: Split<Stream = S, Read: Send, Write: Send> + AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut write, mut read) = ws.split();
    let (sender, mut queue) = tokio::sync::mpsc::channel::<Message>(4);
    spawn(async move {
        while let Some(message) = queue.recv().await {
            write.send(message).await.expect("open");
        }
    });
    spawn(async move {
        while let Some(Ok(message)) = read.next_data().await {
            sender.send(message).await.expect("it writes");
        }
    });
}

#[tokio::test]
async fn connection_over_tls_splits_and_its_halves_move_to_other_tasks() {
    let (address, certificate) = tls_server(&[]).await;
    assert_halves_move(connect(url(address)).tls(trusting([certificate])).await.expect("connected")).await;
}

/// axum's WebSocket has the same type.
#[cfg(feature = "hyper")]
#[tokio::test]
async fn websocket_of_hyper_over_tls_splits_and_its_halves_move_to_other_tasks() {
    use http_body_util::Full;
    use hyper::body::Incoming;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;

    async fn upgrade(
        mut request: hyper::Request<Incoming>,
    ) -> Result<hyper::Response<Full<sinews::Bytes>>, sinews::AcceptError> {
        let (response, websocket) = sinews::hyper::upgrade(&mut request)?;
        spawn(async move {
            let ws = websocket.await.expect("upgraded");
            assert!(ws.get_ref().tcp().is_none(), "TLS lies in between");
            echo_in_halves(ws).await;
        });
        Ok(response)
    }
    let made = TestCertificate::new();
    let certificate = made.der();
    let acceptor = acceptor(&["http/1.1"], certificate.clone(), made.key());
    let address = serve(move |tcp| {
        let acceptor = acceptor.clone();
        async move {
            let io = TokioIo::new(acceptor.accept(tcp).await.expect("TLS"));
            let http1 = hyper::server::conn::http1::Builder::new();
            http1.serve_connection(io, service_fn(upgrade)).with_upgrades().await.expect("served");
        }
    })
    .await;
    assert_halves_move(connect(url(address)).tls(trusting([certificate])).await.expect("connected")).await;
}

/// A listener of axum whose connections are TLS.
#[cfg(feature = "axum")]
struct TlsListener(tokio::net::TcpListener, tokio_rustls::TlsAcceptor);

#[cfg(feature = "axum")]
impl axum::serve::Listener for TlsListener {
    type Io = tokio_rustls::server::TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        let (tcp, peer) = self.0.accept().await.expect("a connection");
        (self.1.accept(tcp).await.expect("TLS"), peer)
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn websocket_of_axum_over_tls_splits_and_its_halves_move_to_other_tasks() {
    async fn upgrade(upgrade: sinews::axum::WebSocketUpgrade) -> axum::response::Response {
        upgrade.on_upgrade(async |ws| {
            assert!(ws.get_ref().tcp().is_none(), "TLS lies in between");
            echo_in_halves(ws).await;
        })
    }
    let made = TestCertificate::new();
    let certificate = made.der();
    let acceptor = acceptor(&["http/1.1"], certificate.clone(), made.key());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound");
    let app = axum::Router::new().route("/", axum::routing::any(upgrade));
    spawn(async move { axum::serve(TlsListener(listener, acceptor), app).await });
    assert_halves_move(connect(url(address)).tls(trusting([certificate])).await.expect("connected")).await;
}

/// The halves of each stream that this library gives move to other tasks.
#[test]
fn halves_of_each_stream_are_send() {
    fn movable<S: Split<Stream = S>>()
    where
        sinews::tokio::WriteHalf<S>: Send + 'static,
        sinews::tokio::ReadHalf<S>: Send + 'static,
    {
    }
    movable::<Stream>();
    movable::<TcpStream>();
    #[cfg(unix)]
    movable::<tokio::net::UnixStream>();
    movable::<tokio_rustls::client::TlsStream<TcpStream>>();
    movable::<tokio_rustls::server::TlsStream<TcpStream>>();
    movable::<tokio_rustls::TlsStream<TcpStream>>();
    #[cfg(feature = "native-tls")]
    movable::<tokio_native_tls::TlsStream<TcpStream>>();
    #[cfg(feature = "hyper")]
    movable::<sinews::hyper::Upgraded>();
    #[cfg(feature = "hyper")]
    movable::<hyper_util::rt::TokioIo<hyper::upgrade::Upgraded>>();
}

#[cfg(feature = "native-tls")]
#[tokio::test]
async fn both_ends_over_native_tls_split_and_their_halves_move_to_other_tasks() {
    let made = TestCertificate::new();
    let identity = native_tls::Identity::from_pkcs8(made.pem().as_bytes(), made.key_pem().as_bytes());
    let acceptor = native_tls::TlsAcceptor::new(identity.expect("a certificate and its key"));
    let acceptor = tokio_native_tls::TlsAcceptor::from(acceptor.expect("an acceptor"));
    let address = serve(move |tcp| {
        let acceptor = acceptor.clone();
        async move {
            let tls = acceptor.accept(tcp).await.expect("TLS");
            echo_in_halves(sinews::accept(tls).await.expect("upgraded")).await;
        }
    })
    .await;
    let root = native_tls::Certificate::from_der(&made.der()).expect("a certificate");
    let connector = native_tls::TlsConnector::builder().add_root_certificate(root).build();
    let ws = connect(url(address)).tls(connector.expect("a connector")).await.expect("connected");
    assert!(matches!(ws.get_ref(), Stream::NativeTls(_)));
    assert_halves_move(ws).await;
}

/// A simulated clock would pass the timeout whenever the kernel is not done with the connection at once.
#[tokio::test]
async fn silent_server_times_out() {
    let (_, certificate) = tls_server(&[]).await;
    let address = serve(|stream| async move {
        let (_stream, forever) = (stream, std::future::pending::<()>());
        forever.await;
    })
    .await;
    let way =
        connect(format!("wss://{address}")).tls(trusting([certificate])).timeout(Duration::from_millis(500));
    let error = way.await.expect_err("no answer");
    assert!(matches!(error, ConnectError::TimedOut { phase: ConnectPhase::Tls, .. }), "{error:?}");
}

#[tokio::test]
async fn tls_works_through_a_tunnel() {
    let (address, certificate) = tls_server(&[]).await;
    let proxy = serve(move |mut stream| async move {
        let head = read_head(&mut stream).await;
        assert!(head.starts_with("CONNECT localhost:443 "), "{head}");
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.expect("the client reads");
        let mut server = TcpStream::connect(address).await.expect("a listener");
        let _ = copy_bidirectional(&mut stream, &mut server).await;
    })
    .await;
    let way = connect("wss://localhost/").proxy(proxy.to_string()).tls(trusting([certificate]));
    assert_echoes(&mut way.await.expect("connected")).await;
}

#[cfg(feature = "native-tls")]
#[tokio::test]
async fn native_tls_connects_and_rejects_like_rustls() {
    let (address, certificate) = tls_server(&[]).await;
    let root = native_tls::Certificate::from_der(&certificate).expect("a certificate");
    let connector =
        native_tls::TlsConnector::builder().add_root_certificate(root).build().expect("a connector");
    let mut ws = connect(url(address)).tls(connector).await.expect("connected");
    assert!(matches!(ws.get_ref(), Stream::NativeTls(_)));
    assert_echoes(&mut ws).await;
    ws.send(vec![7; 1 << 20]).await.expect("open");
    assert_eq!(ws.next().await.expect("open").expect("sound"), Message::binary(vec![7; 1 << 20]));
    ws.close(CloseCode::NORMAL, "").await.expect("in order");

    let error = connect(url(address)).tls(sinews::Tls::native().expect("a connector")).await;
    assert!(matches!(fault(error.expect_err("made for the test")), TlsError::Handshake(_)));
}

#[tokio::test]
async fn transport_that_ends_within_the_tls_handshake_is_transient() {
    for reset in [false, true] {
        let address = serve(move |tcp| async move {
            if reset {
                tcp.set_zero_linger().expect("a socket");
            }
            drop(tcp);
        })
        .await;
        let error = connect(format!("wss://localhost:{}/", address.port())).await.expect_err("no TLS");
        assert!(matches!(&error, ConnectError::Tls { error: TlsError::Handshake(_), .. }), "{error}");
        assert!(error.is_transient(), "{error}");
    }
    let (address, _) = tls_server(&[]).await;
    let error = connect(format!("wss://localhost:{}/", address.port())).await.expect_err("not trusted");
    assert!(matches!(&error, ConnectError::Tls { error: TlsError::Handshake(_), .. }), "{error}");
    assert!(!error.is_transient(), "{error}");
}
