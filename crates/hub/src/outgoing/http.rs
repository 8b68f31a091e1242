//! The HTTP client for hooks, webhooks and key sets: connections, TLS, answer limits, and signatures.

use std::fmt::Write as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, HOST, USER_AGENT};
use hyper::http::request::Builder;
use hyper::rt::{Read, Write};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use ring::hmac;
use rustls::client::WantsClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};
use sinews_server::describe_pem_error;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::error::{HubError, HubErrorKind};
use crate::outgoing::addresses::is_public;
use crate::outgoing::dial::{self, NameLookup};
use crate::outgoing::options::HookUrl;

/// How to permit addresses that are not public. Only app webhooks need it.
pub(crate) const PERMIT_PRIVATE: &str = "set webhook_private to permit it";

/// Header with a request's signature.
pub(crate) const SIGNATURE: &str = "sinews-signature";

/// Maximum answer size in bytes.
const ANSWER_MAX: usize = 1 << 20;

/// Time after which an idle connection to the application is not used again: less than common servers' keep-alive time
/// (2 s and more), so that a request seldom meets a connection that the application is closing.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// Idle connections for one URL.
const IDLE_CONNECTIONS_MAX: usize = 64;

/// Failed request.
#[derive(Debug)]
pub(crate) struct HttpError {
    pub(crate) text: String,
    /// The application has not received the request.
    pub(crate) is_unsent: bool,
    /// Another attempt may succeed.
    pub(crate) is_temporary: bool,
}

impl HttpError {
    fn temporary(text: String, is_unsent: bool) -> Self {
        Self { text, is_unsent, is_temporary: true }
    }
}

/// The client for one URL, with its idle connections.
pub(crate) struct HttpClient {
    url: HookUrl,
    tls: Option<TlsConnector>,
    lookup: NameLookup,
    idle: Mutex<Vec<(SendRequest<Full<Bytes>>, Instant)>>,
}

/// Returns the value of `Sinews-Signature`: the time, and the HMAC-SHA256 of the time, a dot and the body.
pub(crate) fn signature(key: &hmac::Key, body: &[u8]) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut context = hmac::Context::with_key(key);
    context.update(now.to_string().as_bytes());
    context.update(b".");
    context.update(body);
    let mut text = format!("t={now},v1=");
    for byte in context.sign().as_ref() {
        // Writing to a string never fails.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// TLS that trusts these certificates; `None` for those that the system trusts.
///
/// # Errors
/// No certificate is trusted.
pub(crate) fn tls_connector(roots: Option<&[CertificateDer<'static>]>) -> Result<TlsConnector, HubError> {
    client_config(roots).map(|config| TlsConnector::from(Arc::new(config)))
}

/// Reads the certificates in a PEM text.
///
/// # Errors
/// The text has no certificate, or an invalid one.
pub(crate) fn trusted_certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, HubError> {
    let fault = |text: String| HubError::new(HubErrorKind::Certificates, text);
    let roots: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let roots = roots.map_err(|error| fault(describe_pem_error(&error)))?;
    if roots.is_empty() {
        return Err(fault("no certificate in PEM".to_owned()));
    }
    Ok(roots)
}

/// Creates the options of TLS that trusts these certificates; `None` for those that the system trusts.
///
/// # Errors
/// No certificate is trusted.
pub(crate) fn client_config(roots: Option<&[CertificateDer<'static>]>) -> Result<ClientConfig, HubError> {
    Ok(client_config_builder(roots)?.with_no_client_auth())
}

/// Creates the options of [`client_config`] up to the client's own certificate.
///
/// # Errors
/// No certificate is trusted.
pub(crate) fn client_config_builder(
    roots: Option<&[CertificateDer<'static>]>,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, HubError> {
    let fault = |error: rustls::Error| HubError::caused(HubErrorKind::Certificates, error);
    let mut store = RootCertStore::empty();
    match roots {
        Some(roots) => {
            for root in roots {
                store.add(root.clone()).map_err(fault)?;
            }
        }
        None => {
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if store.is_empty() {
                let text = "the system has no trusted certificates";
                return Err(HubError::new(HubErrorKind::Certificates, text));
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(fault)?;
    Ok(config.with_root_certificates(store))
}

/// The types of answers: JSON, and key sets (RFC 7517 section 8.5.2).
const ACCEPTED: &str = "application/json, application/jwk-set+json";

impl HttpClient {
    /// Creates a client for a URL, with the TLS that it needs if its scheme is `https`.
    pub(crate) fn new(url: HookUrl, tls: Option<TlsConnector>) -> Self {
        // An IPv6 address has brackets.
        let HookUrl { host, port, .. } = &url;
        let name = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        Self { url, tls, lookup: NameLookup::new(name), idle: Mutex::default() }
    }

    /// Creates a client that trusts these certificates; `None` for those that the system trusts.
    ///
    /// # Errors
    /// No certificate is trusted.
    pub(crate) fn trusting(
        url: HookUrl,
        roots: Option<&[CertificateDer<'static>]>,
    ) -> Result<Self, HubError> {
        let tls = url.is_tls.then(|| tls_connector(roots)).transpose()?;
        Ok(Self::new(url, tls))
    }

    /// Sends a request as [`send`](Self::send) does, and waits for the answer this long.
    pub(crate) async fn send_within(
        &self,
        limit: Duration,
        method: Method,
        body: Bytes,
        headers: impl FnOnce(Builder) -> Builder,
    ) -> Result<(u16, Bytes), HttpError> {
        let late = |_| Err(HttpError::temporary(format!("no answer within {limit:?}"), false));
        timeout(limit, self.send(method, body, headers)).await.unwrap_or_else(late)
    }

    /// Sends a request; returns the answer's status and body, of at most 1 MiB. Redirects are not followed. `headers`
    /// adds to the headers of all requests when there is a connection.
    pub(crate) async fn send(
        &self,
        method: Method,
        body: Bytes,
        headers: impl FnOnce(Builder) -> Builder,
    ) -> Result<(u16, Bytes), HttpError> {
        let mut sender = match self.take_idle() {
            Some(sender) => sender,
            None => self.connect().await.map_err(|text| HttpError::temporary(text, true))?,
        };
        let request = headers(self.request(method)).body(Full::new(body));
        let invalid = |error: hyper::http::Error| HttpError {
            text: error.to_string(),
            is_unsent: true,
            is_temporary: false,
        };
        let fault = |error: hyper::Error| HttpError::temporary(error.to_string(), error.is_canceled());
        let answer = sender.send_request(request.map_err(invalid)?).await.map_err(fault)?;
        let status = answer.status().as_u16();
        let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
        let body = body.map_err(|error| HttpError::temporary(format!("answer: {error}"), false))?;
        self.return_idle(sender);
        Ok((status, body.to_bytes()))
    }

    /// Begins a request to the URL. All answers are JSON; without `Accept`, frameworks answer errors by pages or
    /// redirects.
    fn request(&self, method: Method) -> Builder {
        Request::builder()
            .method(method)
            .uri(self.url.path.clone())
            .header(HOST, self.url.authority.clone())
            .header(USER_AGENT, concat!("sinews/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, ACCEPTED)
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let HookUrl { host, port, .. } = &self.url;
        let stream = self.connect_tcp().await;
        let stream = stream.map_err(|error| format!("connect to {host}:{port}: {error}"))?;
        // Requests are small, and each is one write.
        let _ = stream.set_nodelay(true);
        if !self.url.is_tls {
            return start(TokioIo::new(stream)).await;
        }
        let tls = self.tls.as_ref().ok_or("TLS is not prepared; retry")?;
        let name = ServerName::try_from(host.clone()).map_err(|error| error.to_string())?;
        let stream = tls.connect(name, stream).await.map_err(|error| format!("TLS with {host}: {error}"))?;
        start(TokioIo::new(stream)).await
    }

    async fn connect_tcp(&self) -> io::Result<TcpStream> {
        let mut permitted = self.lookup.addresses().await?;
        // The addresses that were checked are those that are used: a name may have others a moment later.
        permitted.retain(|address| !self.url.is_public_only || is_public(address.ip()));
        if permitted.is_empty() && self.url.is_public_only {
            return Err(io::Error::other(format!("no address is public: {PERMIT_PRIVATE}")));
        }
        let targets = permitted.into_iter().map(|address| ((), address)).collect();
        dial::connect(targets).await.map(|((), stream)| stream)
    }

    fn take_idle(&self) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = self.idle.lock();
        idle.retain(|(sender, since)| since.elapsed() < IDLE_MAX && !sender.is_closed());
        // A connection that has not read the end of its answer is not ready.
        let at = idle.iter().rposition(|(sender, _)| sender.is_ready())?;
        Some(idle.swap_remove(at).0)
    }

    fn return_idle(&self, sender: SendRequest<Full<Bytes>>) {
        let mut idle = self.idle.lock();
        if !sender.is_closed() && idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push((sender, Instant::now()));
        }
    }
}

/// Starts HTTP on a stream. The connection ends when its sender is dropped.
async fn start<T>(stream: T) -> Result<SendRequest<Full<Bytes>>, String>
where
    T: Read + Write + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(stream).await.map_err(|error| error.to_string())?;
    let connection: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
        // Its requests report the error.
        let _ = connection.await;
    });
    tokio::spawn(connection);
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::TcpListener;

    use super::*;

    /// The requests of hooks, webhooks and key sets begin with these headers.
    #[test]
    fn requests_accept_json_and_key_sets_only() {
        let client = HttpClient::new(HookUrl::parse("url", "http://localhost/hook").unwrap(), None);
        for method in [Method::GET, Method::POST] {
            let request = client.request(method).body(()).unwrap();
            let accepted: Vec<_> = request.headers().get_all(ACCEPT).iter().collect();
            assert_eq!(accepted, ["application/json, application/jwk-set+json"]);
        }
    }

    /// Regression: a webhook reaches services of the server's own network (pusher.md 10.8).
    #[test]
    fn pusher_10_8_name_of_a_local_address_is_not_connected_to() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://localhost:{}/", listener.local_addr().unwrap().port());
        let parse = || HookUrl::parse("url", &url).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let connect = |url| runtime.block_on(HttpClient::new(url, None).connect()).map(drop);
        let text = connect(parse().public_only("url").unwrap()).unwrap_err();
        assert!(text.ends_with("no address is public: set webhook_private to permit it"), "{text}");
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "no connection");
        assert_eq!(connect(parse()), Ok(()));
        // A client may be connected before the listener has its connection.
        let end = Instant::now() + Duration::from_secs(60);
        while let Err(error) = listener.accept() {
            assert!(error.kind() == ErrorKind::WouldBlock && Instant::now() < end, "{error}");
            std::thread::yield_now();
        }
    }
}
