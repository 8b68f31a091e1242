//! `sinews::http2` over TLS, with certificates made for the test.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::http2_servers::{echo, serve_connection, upgrade};
use crate::spawn::spawn;
use rustls::pki_types::CertificateDer;
use sinews::client::TlsError;
use sinews::http2::connect;
use sinews::hyper::Upgrade;
use sinews::{ConnectError, Message};
use sinews_testkit::{TestCertificate, tls};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// A server for `localhost` that offers these protocols by ALPN, and its certificate.
async fn server(alpn: &[&str]) -> (SocketAddr, CertificateDer<'static>) {
    let made = TestCertificate::new();
    let (certificate, mut config) = (made.der(), made.server_config());
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            spawn(async move {
                let Ok(tls) = acceptor.accept(tcp).await else { return };
                serve_connection(tls, |_| {}, |request| upgrade(&Upgrade::new(), request, echo)).await;
            });
        }
    });
    (address, certificate)
}

/// Trusts the certificate, and offers what HTTP/2 cannot use.
fn trusting(certificate: CertificateDer<'static>) -> rustls::ClientConfig {
    let mut config = tls::trusting([certificate]);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

fn url(address: SocketAddr) -> String {
    format!("wss://localhost:{}", address.port())
}

#[tokio::test]
async fn websockets_over_tls_share_a_connection_that_alpn_selects() {
    let (address, certificate) = server(&["http/1.1", "h2"]).await;
    let connection = connect(url(address)).tls(trusting(certificate)).await.expect("HTTP/2");
    let tls = connection.tls_info().expect("encrypted");
    assert_eq!((tls.alpn.as_deref(), tls.peer_certificates.len()), (Some(&b"h2"[..]), 1));
    for _ in 0..3 {
        let mut ws = connection.open("/").await.expect("opened");
        for text in ["hello".to_owned(), "many records ".repeat(50_000)] {
            ws.send(text.clone()).await.expect("open");
            assert_eq!(ws.next().await.expect("open").expect("sound"), Message::text(text));
        }
    }
}

#[tokio::test]
async fn server_that_selects_no_http2_is_an_error() {
    for alpn in [&["http/1.1"][..], &[]] {
        let (address, certificate) = server(alpn).await;
        let error = connect(url(address)).tls(trusting(certificate)).await.expect_err("no HTTP/2");
        assert!(matches!(error, ConnectError::Tls { error: TlsError::Http2, .. }), "{alpn:?}: {error:?}");
        let text = error.to_string();
        assert!(text.ends_with("does not select HTTP/2 (h2) by ALPN; connect over HTTP/1.1"), "{text}");
    }
}

#[tokio::test]
async fn untrusted_server_is_an_error_before_http2() {
    let (address, _) = server(&["h2"]).await;
    let (_, other) = server(&["h2"]).await;
    let error = connect(url(address)).tls(trusting(other)).await.expect_err("untrusted");
    assert!(matches!(error, ConnectError::Tls { error: TlsError::Handshake(_), .. }), "{error:?}");
}

#[cfg(feature = "native-tls")]
#[tokio::test]
async fn native_tls_is_rejected_before_a_connection_is_made() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let native = sinews::Tls::native().expect("the library of the platform");
    let error = connect(url(address)).tls(native).await.expect_err("no HTTP/2");
    assert!(matches!(error, ConnectError::Tls { error: TlsError::Setup(_), .. }), "{error:?}");
    assert!(error.to_string().contains("HTTP/2 needs rustls (feature tokio-rustls)"), "{error}");
    let accepted = tokio::time::timeout(std::time::Duration::from_millis(50), listener.accept()).await;
    assert!(accepted.is_err(), "the server sees no connection");
}
