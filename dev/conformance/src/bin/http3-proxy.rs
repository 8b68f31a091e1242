//! Passes HTTP/1.1 WebSocket clients on to an HTTP/3 server: each handshake becomes an extended CONNECT (RFC 9220) on
//! its own connection, and the WebSocket's bytes pass unchanged. Suites that speak HTTP/1.1 only test a server over
//! HTTP/3 this way. `http3-proxy SERVER CERTIFICATE` prints its address.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use sinews_conformance::proxy::{Error, ProxiedHandshake};
use sinews_quic::{Http3Tunnel, TunnelRequest};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: http3-proxy SERVER CERTIFICATE";
    let (server, certificate) = (arguments.next().ok_or(usage)?.parse()?, arguments.next().ok_or(usage)?);
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(certificate)? {
        roots.add(certificate?)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve(server, tls))
}

async fn serve(server: SocketAddr, tls: rustls::ClientConfig) -> Result<(), Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        let (client, _) = listener.accept().await?;
        client.set_nodelay(true)?;
        let tls = tls.clone();
        tokio::spawn(async move {
            if let Err(error) = pass(client, server, tls).await {
                println!("{error}");
            }
        });
    }
}

/// Passes one client on.
async fn pass(mut client: TcpStream, server: SocketAddr, tls: rustls::ClientConfig) -> Result<(), Error> {
    let handshake = ProxiedHandshake::read(&mut client).await?;
    let mut request = TunnelRequest::websocket(server.to_string(), &handshake.target);
    for (name, value) in &handshake.headers {
        request = request.with_header(*name, value);
    }
    let opened = timeout(OPEN_TIME, Http3Tunnel::open(server, "localhost", tls, request)).await;
    let (response, tunnel) = opened.map_err(|_| "the server does not answer a handshake")??;
    let headers = response.headers.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
    client.write_all(&handshake.response(response.status, headers)).await?;
    if response.is_accepted() {
        // A tunnel reset is a TCP reset: dropping the client's socket ends it.
        let _ = tunnel.relay(ClientStream { first: handshake.behind, client }).await;
    }
    Ok(())
}

/// A client whose first bytes have been received.
struct ClientStream {
    first: Bytes,
    client: TcpStream,
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.client).poll_read(cx, buf);
        }
        let count = self.first.len().min(buf.remaining());
        buf.put_slice(&self.first[..count]);
        self.first.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.client).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.client).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.client).poll_shutdown(cx)
    }
}

const OPEN_TIME: Duration = Duration::from_secs(60);
