//! `wss` of `sinews::blocking`, with certificates made for the test.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;
use rustls::{ServerConnection, StreamOwned};
use sinews::blocking::{Stream, WebSocket, accept, connect};
use sinews::client::{ConnectPhase, TlsError};
use sinews::{CloseCode, ConnectError, Message, Tls};
use sinews_testkit::TestCertificate;
#[cfg(feature = "rustls")]
use sinews_testkit::tls::trusting;

/// Bounds a read of a socket whose peer is in error.
const BOUND: Duration = Duration::from_secs(60);

/// A server for `localhost` that echoes over TLS, a thread for each connection, and its certificate.
fn tls_server() -> (SocketAddr, CertificateDer<'static>) {
    let made = TestCertificate::new();
    let (certificate, config) = (made.der(), Arc::new(made.server_config()));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for tcp in listener.incoming() {
            let (tcp, config) = (tcp.expect("a client"), config.clone());
            tcp.set_read_timeout(Some(BOUND)).expect("a socket");
            thread::spawn(move || {
                let tls = StreamOwned::new(ServerConnection::new(config).expect("a configuration"), tcp);
                if let Ok((ws, _)) = accept(tls).open() {
                    echo(ws);
                }
            });
        }
    });
    (address, certificate)
}

fn echo<S: Read + Write>(mut ws: WebSocket<S>) {
    while let Some(Ok(message)) = ws.next() {
        if message.is_data() {
            ws.send(message).expect("open");
        }
    }
}

fn plain_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        let (tcp, _) = listener.accept().expect("a client");
        echo(accept(tcp).open().expect("a WebSocket").0);
    });
    address
}

/// The enabled libraries, each trusting the certificate.
fn libraries(certificate: &CertificateDer<'static>) -> Vec<Tls> {
    let mut libraries: Vec<Tls> = Vec::new();
    #[cfg(feature = "rustls")]
    libraries.push(trusting([certificate.clone()]).into());
    #[cfg(feature = "native-tls")]
    {
        let root = native_tls::Certificate::from_der(certificate).expect("a certificate");
        let connector = native_tls::TlsConnector::builder().add_root_certificate(root).build();
        libraries.push(connector.expect("a connector").into());
    }
    libraries
}

fn assert_echoes(ws: &mut WebSocket<Stream>) {
    for len in [0, 1, 16_384, 100_000, 3 << 20] {
        let payload: Vec<u8> = (0..len).map(|at| at as u8).collect();
        ws.send(payload.clone()).expect("open");
        assert_eq!(ws.next().expect("open").expect("sound"), Message::binary(payload));
    }
}

fn fault(error: ConnectError) -> TlsError {
    match error {
        ConnectError::Tls { error, .. } => error,
        error => panic!("{error:?}"),
    }
}

#[test]
fn ws_and_wss_have_one_stream_type() {
    let (address, certificate) = tls_server();
    let plain = plain_server();
    for tls in libraries(&certificate) {
        let (mut ws, response): (WebSocket<Stream>, _) =
            connect(format!("wss://localhost:{}/", address.port())).tls(tls).open().expect("connected");
        assert_eq!(response.status(), 101);
        assert!(ws.get_ref().is_tls());
        assert_eq!(ws.get_ref().tcp().peer_addr().expect("connected").port(), address.port());
        assert_eq!(ws.get_ref().tcp().read_timeout().expect("a socket"), None);
        assert!(ws.get_ref().tcp().nodelay().expect("a socket"));
        assert_eq!(ws.tls_info().expect("encrypted").peer_certificates, [certificate.to_vec()]);
        assert_echoes(&mut ws);
        ws.close(CloseCode::NORMAL, "").expect("in order");
    }
    let (mut ws, _): (WebSocket<Stream>, _) = connect(format!("ws://{plain}/")).open().expect("connected");
    assert!(!ws.get_ref().is_tls() && ws.tls_info().is_none());
    assert_echoes(&mut ws);
    ws.close(CloseCode::NORMAL, "").expect("in order");
}

#[test]
fn read_timeout_of_the_socket_applies_over_tls() {
    let (address, certificate) = tls_server();
    for tls in libraries(&certificate) {
        let url = format!("wss://localhost:{}/", address.port());
        let (mut ws, _) = connect(url).tls(tls).open().expect("connected");
        ws.get_ref().tcp().set_read_timeout(Some(Duration::from_millis(20))).expect("a socket");
        let waits = ws.next().expect("open").expect_err("no message");
        assert!(!waits.is_fatal(), "{waits}");
        ws.send("hello").expect("open");
        let reply = loop {
            match ws.next().expect("open") {
                Ok(message) => break message,
                Err(error) => assert!(!error.is_fatal(), "{error}"),
            }
        };
        assert_eq!(reply, Message::text("hello"));
    }
}

#[test]
fn tls_is_made_over_a_socket_of_the_caller() {
    let (address, certificate) = tls_server();
    for tls in libraries(&certificate) {
        let tcp = TcpStream::connect(address).expect("connected");
        tcp.set_read_timeout(Some(BOUND)).expect("a socket");
        let opened = connect("wss://example.com/").tls(tls).server_name("localhost").over_tls(tcp).open();
        let (mut ws, _) = opened.expect("connected");
        assert_eq!(ws.get_ref().tcp().read_timeout().expect("a socket"), Some(BOUND), "as before");
        assert_echoes(&mut ws);
    }
}

#[test]
fn untrusted_certificate_is_rejected() {
    let (address, certificate) = tls_server();
    let (_, other) = tls_server();
    for (tls, own) in libraries(&other).into_iter().zip(libraries(&certificate)) {
        let url = format!("wss://localhost:{}/", address.port());
        let error = connect(url).tls(tls).open().expect_err("another root");
        assert!(error.to_string().starts_with("TLS with localhost: "), "{error}");
        assert!(matches!(fault(error), TlsError::Handshake(_)));
        let error = connect(format!("wss://{address}/")).tls(own).open().expect_err("another name");
        assert!(matches!(fault(error), TlsError::Handshake(_)));
    }
}

#[test]
fn server_without_tls_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let (_, certificate) = tls_server();
    let attempts = libraries(&certificate);
    let count = attempts.len();
    let serving = thread::spawn(move || {
        for _ in 0..count {
            let (mut tcp, _) = listener.accept().expect("a client");
            let _ = tcp.read(&mut [0; 1024]);
            tcp.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").expect("written");
        }
    });
    for tls in attempts {
        let error = connect(format!("wss://localhost:{}/", address.port())).tls(tls).open();
        let error = error.expect_err("no TLS").to_string();
        assert!(error.contains("does not speak TLS on this port"), "{error}");
    }
    serving.join().expect("no panic");
}

/// A server that sends a byte of its handshake now and then does not extend the timeout.
#[test]
fn timeout_includes_the_tls_handshake() {
    let (_, certificate) = tls_server();
    for (at, tls) in libraries(&certificate).into_iter().enumerate() {
        for drips in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("an address");
            let serving = thread::spawn(move || {
                let (mut tcp, _) = listener.accept().expect("a client");
                // The head of a handshake record of 16,000 bytes, and its content.
                let record = [0x16, 3, 3, 0x3e, 0x80, 2, 0, 0x3e, 0x7c];
                for byte in
                    record.into_iter().chain(std::iter::repeat(0)).take(if drips { 10_000 } else { 0 })
                {
                    if tcp.write_all(&[byte]).is_err() {
                        return;
                    }
                    thread::sleep(Duration::from_millis(5));
                }
                // Until the client leaves.
                let _ = tcp.read_to_end(&mut Vec::new());
            });
            let start = Instant::now();
            let url = format!("wss://localhost:{}/", address.port());
            let attempt = connect(url).tls(tls.clone()).timeout(Duration::from_millis(200));
            let error = attempt.open().expect_err("no handshake");
            assert!(
                matches!(error, ConnectError::TimedOut { phase: ConnectPhase::Tls, .. }),
                "library {at}, {drips}: {error}"
            );
            assert!(start.elapsed() >= Duration::from_millis(200) && start.elapsed() < BOUND / 2);
            serving.join().expect("no panic");
        }
    }
}
