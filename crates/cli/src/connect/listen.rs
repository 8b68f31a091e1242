//! Server mode: the same conversation with connecting clients.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ServerConfig;
use sinews::server::Reply;
use sinews::{Config, DeflateConfig, OriginPolicy};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Duration, timeout};
use tokio_rustls::TlsAcceptor;

use super::args::ConnectArgs;
use super::conversation::{ConnectionEvent, drive};
use super::dial::{self, ByteStream};
use super::end::RunEnd;
use super::entry::{EntryKind, RecordEntry};
use super::tls;

/// TLS handshake timeout; the WebSocket handshake has the library's 10 s.
const TLS_WAIT: Duration = Duration::from_secs(10);
/// Pause after a failed accept, usually due to a lack of file descriptors: other connections may close meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts clients.
pub(crate) struct ConnectListener {
    listener: TcpListener,
    pub(crate) address: SocketAddr,
    settings: Arc<AcceptConfig>,
    clients: Arc<Semaphore>,
    once: bool,
}

/// Settings for each client.
struct AcceptConfig {
    tls: Option<Arc<ServerConfig>>,
    config: Arc<Config>,
    subprotocols: Vec<String>,
    headers: Vec<(String, String)>,
    deflate: bool,
    echo: bool,
    events: mpsc::Sender<ConnectionEvent>,
}

impl ConnectListener {
    /// # Errors
    /// Returns an error if the address or the certificate cannot be used.
    pub(crate) async fn bind(
        args: &ConnectArgs,
        address: SocketAddr,
        events: mpsc::Sender<ConnectionEvent>,
    ) -> Result<Self, RunEnd> {
        let fault = |error| RunEnd::io(address, &error);
        let listener = TcpListener::bind(address).await.map_err(fault)?;
        let address = listener.local_addr().map_err(fault)?;
        let settings = AcceptConfig {
            tls: tls::server(&args.tls)?,
            config: Arc::new(dial::config(&args.limits)),
            subprotocols: args.request.subprotocol.clone(),
            headers: dial::headers(args),
            deflate: args.request.deflate,
            echo: args.server.echo,
            events,
        };
        let clients = if args.server.once { 1 } else { args.server.max_clients };
        let clients = Arc::new(Semaphore::new(clients as usize));
        Ok(Self { listener, address, settings: Arc::new(settings), clients, once: args.server.once })
    }

    /// Returns the listener's URL.
    pub(crate) fn url(&self) -> String {
        format!("{}://{}/", if self.settings.tls.is_some() { "wss" } else { "ws" }, self.address)
    }

    /// Accepts clients until the program exits.
    pub(crate) fn start(self) {
        tokio::spawn(async move {
            let mut next = 1;
            loop {
                let Ok((stream, peer)) = self.listener.accept().await else {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                };
                let Ok(permit) = self.clients.clone().try_acquire_owned() else {
                    tokio::spawn(reject(stream));
                    continue;
                };
                let settings = self.settings.clone();
                let id = next;
                next += 1;
                // A failed connection returns its permit; with `--once` the connection keeps it.
                let forget = self.once;
                tokio::spawn(async move { settings.admit(id, stream, peer, permit, forget).await });
            }
        });
    }
}

impl AcceptConfig {
    async fn admit(
        self: Arc<Self>,
        id: u32,
        stream: TcpStream,
        peer: SocketAddr,
        permit: OwnedSemaphorePermit,
        once: bool,
    ) {
        // Failure to set this option is harmless.
        let _ = stream.set_nodelay(true);
        let opened = match &self.tls {
            None => self.open(id, stream, peer).await,
            Some(config) => match timeout(TLS_WAIT, TlsAcceptor::from(config.clone()).accept(stream)).await {
                Ok(Ok(stream)) => self.open(id, stream, peer).await,
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("TLS handshake timed out".to_owned()),
            },
        };
        match opened {
            Err(message) => {
                let _ = self.events.send(ConnectionEvent::Failed(format!("{peer}: {message}"))).await;
            }
            Ok(sender) if once => {
                permit.forget();
                drop(sender);
            }
            Ok(sender) => {
                sender.closed().await;
                drop(permit);
            }
        }
    }

    async fn open<S: ByteStream + 'static>(
        &self,
        id: u32,
        stream: S,
        peer: SocketAddr,
    ) -> Result<sinews::Sender, String> {
        // A local test server accepts any origin.
        let mut accept = sinews::accept(stream)
            .peer(peer)
            .config(self.config.clone())
            .origin(OriginPolicy::any())
            .subprotocols(self.subprotocols.iter().cloned());
        if self.deflate {
            accept = accept.deflate(DeflateConfig::new());
        }
        let headers = self.headers.clone();
        let accept = accept.on_request(move |_| {
            Ok(headers.into_iter().fold(Reply::new(), |reply, (name, value)| reply.with_header(name, value)))
        });
        let (mut ws, request) = accept.open().await.map_err(|error| error.to_string())?;
        let subprotocol = ws.subprotocol().map(str::to_owned);
        let mut message = format!("#{id} {peer} asks for {}", request.target());
        if let Some(subprotocol) = &subprotocol {
            message += &format!(", subprotocol {subprotocol}");
        }
        let url = Some(request.target().to_owned());
        let entry = RecordEntry {
            kind: EntryKind::Open,
            peer: Some(id),
            url,
            status: Some(101),
            subprotocol,
            ..RecordEntry::default()
        };
        // Report the connection before its messages.
        let sender = ws.sender();
        let opened = ConnectionEvent::Opened(id, sender.clone(), Box::new(entry), message);
        if self.events.send(opened).await.is_ok() {
            drive(id, ws, self.events.clone(), self.echo);
        }
        Ok(sender)
    }
}

/// Rejects a connection above `--max-clients`.
async fn reject(mut stream: TcpStream) {
    let answer = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let _ = timeout(TLS_WAIT, async {
        stream.write_all(answer).await?;
        stream.shutdown().await?;
        // Drain the client's data: otherwise a reset could overtake the response.
        let mut sink = tokio::io::sink();
        tokio::io::copy(&mut tokio::io::AsyncReadExt::take(stream, 64 << 10), &mut sink).await
    })
    .await;
}
