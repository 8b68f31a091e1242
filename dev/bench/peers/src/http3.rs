//! HTTP/3 servers on quinn. hyper has no HTTP/3: its project has the crate `h3`, which `h3-quinn` joins with quinn.
//!
//! `h3` rejects `:protocol` `websocket`. sockudo-ws, which uses it, therefore takes `webtransport` in its place. Each runs on one
//! thread, prints its address, and serves until its standard input is closed.
#![forbid(unsafe_code)]

use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use bytes::Bytes;
use clap::{Parser, ValueEnum};
use futures_util::{SinkExt as _, StreamExt as _};
use http::header::CONTENT_TYPE;
use http::{Response, StatusCode};
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Endpoint, ServerConfig};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sockudo_ws::{Config, Http3, Message, WebSocketServer};
use tokio::runtime::{Builder, Runtime};
use web_transport_quinn::{Request, ServerBuilder};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// A server of HTTP/3 on another library.
#[derive(Debug, Parser)]
#[command(name = "sinews-peers-http3")]
struct Cli {
    peer: Peer,

    /// Certificate in PEM
    #[arg(long)]
    certificate: PathBuf,

    /// Its key
    #[arg(long)]
    key: PathBuf,

    /// Port on 127.0.0.1; 0 picks a free port
    #[arg(default_value_t = 0)]
    port: u16,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Peer {
    /// `GET /hello` on h3 and quinn
    H3Quinn,
    /// WebSockets of sockudo-ws, on h3 and quinn
    Sockudo,
    /// Sessions of web-transport-quinn
    WebTransportQuinn,
}

fn main() -> Result<(), Error> {
    let Cli { peer, certificate, key, port } = Cli::parse();
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    match peer {
        Peer::H3Quinn => requests(address, &certificate, &key),
        Peer::Sockudo => sockudo(address, &certificate, &key),
        Peer::WebTransportQuinn => sessions(address, &certificate, &key),
    }
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Prints the listen address.
fn announce(address: SocketAddr) -> Result<(), Error> {
    println!("{address}");
    Ok(io::stdout().flush()?)
}

/// `GET /hello` on h3-quinn, as in the examples of `h3`.
fn requests(address: SocketAddr, certificate: &Path, key: &Path) -> Result<(), Error> {
    let tls = QuicServerConfig::try_from(tls(certificate, key)?)?;
    runtime()?.block_on(async {
        let endpoint = Endpoint::server(ServerConfig::with_crypto(Arc::new(tls)), address)?;
        announce(endpoint.local_addr()?)?;
        while let Some(incoming) = endpoint.accept().await {
            tokio::spawn(async {
                // The result of a connection is irrelevant here.
                let _ = serve(incoming).await;
            });
        }
        Ok(())
    })
}

async fn serve(incoming: quinn::Incoming) -> Result<(), Error> {
    let connection = h3_quinn::Connection::new(incoming.await?);
    let mut http = h3::server::Connection::<_, Bytes>::new(connection).await?;
    while let Some(resolver) = http.accept().await? {
        tokio::spawn(async {
            let (request, mut stream) = resolver.resolve_request().await?;
            let is_known = request.uri().path() == "/hello";
            let response = Response::builder().header(CONTENT_TYPE, "text/plain; charset=utf-8");
            let status = if is_known { StatusCode::OK } else { StatusCode::NOT_FOUND };
            stream.send_response(response.status(status).body(())?).await?;
            stream.send_data(Bytes::from_static(HELLO.as_bytes())).await?;
            stream.finish().await?;
            Ok::<_, Error>(())
        });
    }
    Ok(())
}

/// WebSockets on sockudo-ws, as in its example.
fn sockudo(address: SocketAddr, certificate: &Path, key: &Path) -> Result<(), Error> {
    // It takes a configuration only, and quinn needs the process-wide provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = Config::builder().max_payload_length(MESSAGE_MAX).build();
    let tls = tls(certificate, key)?;
    runtime()?.block_on(async {
        let server = WebSocketServer::<Http3>::bind(address, tls, config).await?;
        announce(server.local_addr()?)?;
        let serve = server.serve(|mut socket, _| async move {
            while let Some(Ok(message)) = socket.next().await {
                let is_data = matches!(message, Message::Text(_) | Message::Binary(_));
                if is_data && socket.send(message).await.is_err() {
                    return;
                }
            }
        });
        Ok(serve.await?)
    })
}

/// WebTransport sessions on web-transport-quinn: each echoes the bytes from a stream that the server opens. Echoing the
/// bytes echoes the messages.
fn sessions(address: SocketAddr, certificate: &Path, key: &Path) -> Result<(), Error> {
    let (chain, key) = read_certificate(certificate, key)?;
    runtime()?.block_on(async {
        let mut server = ServerBuilder::new().with_addr(address).with_certificate(chain, key)?;
        announce(server.local_addr()?)?;
        while let Some(request) = server.accept().await {
            tokio::spawn(async {
                // The result of a session is irrelevant here.
                let _ = echo_session(request).await;
            });
        }
        Ok(())
    })
}

async fn echo_session(request: Request) -> Result<(), Error> {
    let session = request.ok().await?;
    let (mut output, mut input) = session.open_bi().await?;
    while let Some(chunk) = input.read_chunk(usize::MAX, true).await? {
        output.write_chunk(chunk.bytes).await?;
    }
    Ok(())
}

type Certificate = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn read_certificate(certificate: &Path, key: &Path) -> Result<Certificate, Error> {
    let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<Vec<_>, _>>()?;
    Ok((chain, PrivateKeyDer::from_pem_file(key)?))
}

fn tls(certificate: &Path, key: &Path) -> Result<rustls::ServerConfig, Error> {
    let (chain, key) = read_certificate(certificate, key)?;
    let mut config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h3".to_vec()];
    Ok(config)
}

/// Response body for `GET /hello`, as plain text.
const HELLO: &str = "Hello, world!";

/// Exceeds the largest message in all loads.
const MESSAGE_MAX: usize = 64 << 20;
