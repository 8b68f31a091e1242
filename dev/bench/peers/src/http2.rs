//! axum and hyper over HTTP/2 with TLS. `axum::serve` has no TLS, so hyper's server drives axum's router, as axum's
//! examples do.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::axum::{Echo, routes};
use crate::hyper::answer;
use crate::tokio::runtime;
use crate::{Error, Threads, announce};

/// Certificate and key in PEM.
#[derive(Clone, Copy)]
pub(crate) struct TlsFiles<'a> {
    pub(crate) certificate: &'a Path,
    pub(crate) key: &'a Path,
}

/// WebSockets by extended CONNECT (RFC 8441).
pub(crate) fn axum(address: SocketAddr, threads: Threads, tls: TlsFiles<'_>) -> Result<(), Error> {
    let service = TowerToHyperService::new(routes(Echo::Send));
    run(address, threads, tls, move |stream| {
        let mut server = http2::Builder::new(TokioExecutor::new());
        server.enable_connect_protocol();
        server.serve_connection(TokioIo::new(stream), service.clone())
    })
}

/// Requests only.
pub(crate) fn hyper(address: SocketAddr, threads: Threads, tls: TlsFiles<'_>) -> Result<(), Error> {
    run(address, threads, tls, |stream| {
        let service = service_fn(async |request| Ok::<_, Infallible>(answer(&request)));
        http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service)
    })
}

/// Accepts forever; each connection is a task.
fn run<F>(
    address: SocketAddr,
    threads: Threads,
    TlsFiles { certificate, key }: TlsFiles<'_>,
    serve: impl Fn(TlsStream<TcpStream>) -> F + Clone + Send + 'static,
) -> Result<(), Error>
where
    F: Future<Output = hyper::Result<()>> + Send,
{
    let certificates = CertificateDer::pem_file_iter(certificate)?.collect::<Result<Vec<_>, _>>()?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(certificates, PrivateKeyDer::from_pem_file(key)?)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    runtime(threads)?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        announce(listener.local_addr()?)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let (acceptor, serve) = (acceptor.clone(), serve.clone());
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    // The result of a connection is irrelevant here.
                    let _ = serve(stream).await;
                }
            });
        }
    })
}
