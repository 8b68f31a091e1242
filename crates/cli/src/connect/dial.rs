//! Connecting to the server: through the library, or over a Unix socket.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::ServerName;
use sinews::client::{Response, Runtime};
use sinews::http2::Http2Stream;
use sinews::tokio::Tokio;
use sinews::{Config, Connect, DeflateConfig, WebSocket};
use sinews_bench::url::shown_url;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::args::{ConnectArgs, ConnectLimitArgs, ConnectTo};
use super::end::{EndKind, RunEnd};
use super::tls;

/// A connection's transport.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for S {}

/// The parts of a URL that this program uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerUrl {
    pub(crate) secure: bool,
    /// Host without the brackets of an IPv6 address.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) path: String,
    pub(crate) credentials: Option<String>,
}

impl ServerUrl {
    /// # Errors
    /// Returns an error if the host is missing or the port is invalid.
    pub(crate) fn parse(url: &str) -> Result<Self, RunEnd> {
        let fault = |why: &str| RunEnd::failed(format!("{}: {why}", shown_url(url)));
        let (scheme, rest) = url.split_once("://").ok_or_else(|| fault("the scheme must be ws or wss"))?;
        let secure = match scheme.to_ascii_lowercase().as_str() {
            "ws" | "http" => false,
            "wss" | "https" => true,
            _ => return Err(fault("the scheme must be ws or wss (or http or https)")),
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (credentials, place) = match authority.rsplit_once('@') {
            Some((credentials, place)) => (Some(credentials.to_owned()), place),
            None => (None, authority),
        };
        let (host, port) = match place.strip_prefix('[').and_then(|place| place.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':')),
            None => place.split_once(':').map_or((place, None), |(host, port)| (host, Some(port))),
        };
        let port = match port {
            Some(port) => port.parse().map_err(|_| fault("the port must be a number below 65536"))?,
            None if secure => 443,
            None => 80,
        };
        if host.is_empty() {
            return Err(fault("the host is missing or invalid"));
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { secure, host: host.to_owned(), port, path, credentials })
    }

    /// Returns the `Host` header's value.
    pub(crate) fn host_header(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.secure, self.port) {
            (false, 80) | (true, 443) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }
}

/// Builds the library's connection from the options.
///
/// # Errors
/// Returns an error if a file is unreadable or a target is invalid.
pub(crate) fn connect(args: &ConnectArgs, url: &str) -> Result<Connect<Tokio>, RunEnd> {
    with_options(sinews::connect(url), args, url)
}

/// Opens a WebSocket over HTTP/2, on its own connection.
///
/// # Errors
/// Returns an error if connecting fails.
pub(crate) async fn open_http2(
    args: &ConnectArgs,
    url: &str,
) -> Result<(WebSocket<Http2Stream>, Response), RunEnd> {
    let connect = with_options(sinews::http2::connect(url), args, url)?;
    let connection = match &args.dial.unix {
        None => connect.open().await?,
        Some(_) => connect.over(dial(args, url).await?).open().await?,
    };
    Ok(connection.open(ServerUrl::parse(url)?.path).open().await?)
}

fn with_options<R: Runtime>(
    connect: Connect<R>,
    args: &ConnectArgs,
    url: &str,
) -> Result<Connect<R>, RunEnd> {
    let parsed = ServerUrl::parse(url)?;
    let mut connect = connect
        .config(config(&args.limits))
        .timeout(args.limits.connect_timeout.0)
        .redirects(args.request.redirects)
        .subprotocols(args.request.subprotocol.iter().cloned());
    for (name, value) in headers(args) {
        connect = connect.header(name, value);
    }
    if args.request.deflate {
        connect = connect.deflate(DeflateConfig::new());
    }
    if let Some(proxy) = &args.dial.proxy {
        connect = connect.proxy(proxy);
    }
    if args.dial.no_proxy {
        connect = connect.no_proxy();
    }
    for resolve in &args.dial.resolve {
        let address = resolve.address.to_string();
        connect = connect.connect_to(&resolve.host, resolve.port, &address, resolve.port);
    }
    for ConnectTo { from, to } in &args.dial.connect_to {
        let host = |host: &'_ str| if host.is_empty() { parsed.host.clone() } else { host.to_owned() };
        let (from, from_port) = (host(&from.0), from.1.unwrap_or(parsed.port));
        let (to, to_port) = (host(&to.0), to.1.unwrap_or(parsed.port));
        connect = connect.connect_to(&from, from_port, &to, to_port);
    }
    if parsed.secure || args.request.redirects > 0 {
        connect = connect.tls(tls::client(&args.tls)?);
    }
    if let Some(name) = &args.tls.server_name {
        connect = connect.server_name(name);
    }
    Ok(connect)
}

/// Opens only the transport to the server, including TLS.
///
/// # Errors
/// Returns an error if connecting fails.
pub(crate) async fn dial(args: &ConnectArgs, url: &str) -> Result<Box<dyn ByteStream>, RunEnd> {
    match &args.dial.unix {
        None => Ok(Box::new(connect(args, url)?.dial().await?)),
        Some(path) => {
            let limit = args.limits.connect_timeout.0;
            let over = || {
                RunEnd::new(EndKind::TimedOut, format!("{}: no connection within {limit:?}", path.display()))
            };
            timeout(limit, dial_unix(args, url, path)).await.unwrap_or_else(|_| Err(over()))
        }
    }
}

async fn dial_unix(args: &ConnectArgs, url: &str, path: &Path) -> Result<Box<dyn ByteStream>, RunEnd> {
    let fault = |error| RunEnd::io(path.display(), &error);
    let socket = UnixStream::connect(path).await.map_err(fault)?;
    let url = ServerUrl::parse(url)?;
    if !url.secure {
        return Ok(Box::new(socket));
    }
    let name = args.tls.server_name.clone().unwrap_or(url.host);
    let name =
        ServerName::try_from(name).map_err(|error| RunEnd::failed(format!("--server-name: {error}")))?;
    let mut config = tls::client(&args.tls)?;
    if args.dial.http2 {
        config.alpn_protocols = vec![b"h2".to_vec()];
    }
    let connector = TlsConnector::from(Arc::new(config));
    Ok(Box::new(connector.connect(name, socket).await.map_err(fault)?))
}

/// Returns headers in addition to the handshake's own, in option order.
pub(crate) fn headers(args: &ConnectArgs) -> Vec<(String, String)> {
    let request = &args.request;
    let mut headers = Vec::new();
    let mut add = |name: &str, value: String| headers.push((name.to_owned(), value));
    if let Some(origin) = &request.origin {
        add("Origin", origin.clone());
    }
    if let Some(token) = &request.bearer {
        add("Authorization", format!("Bearer {token}"));
    }
    if let Some(user) = &request.user {
        add("Authorization", format!("Basic {}", STANDARD.encode(user)));
    }
    headers.extend(request.header.iter().map(|header| (header.name.clone(), header.value.clone())));
    headers
}

/// Returns a connection's limits and timeouts.
pub(crate) fn config(limits: &ConnectLimitArgs) -> Config {
    // The outbound limit matches --max-message: otherwise one large message would close the connection.
    let max = limits.max_message.0;
    Config::default()
        .with_max_message(max as u64)
        .with_max_frame(max as u64)
        .with_max_outbound(max.max(OUTBOUND_MIN))
        .with_ping_interval(limits.ping_interval.0)
        .with_pong_timeout(limits.pong_timeout.0)
        .with_idle_timeout(limits.idle_timeout.0)
        .with_close_timeout(limits.close_timeout.0)
}

/// Minimum outbound limit: the library's default.
const OUTBOUND_MIN: usize = 1 << 20;

/// Returns the maximum time between the decision to close and the connection's end: a blocked send for the library's
/// timeout, plus a missing answer to Close.
pub(crate) fn closing_timeout(limits: &ConnectLimitArgs) -> Duration {
    Config::default().write_timeout() + limits.close_timeout.0
}

/// The response to an accepted handshake.
#[derive(Clone, Debug)]
pub(crate) struct OpenedWebSocket {
    pub(crate) status: u16,
    pub(crate) subprotocol: Option<String>,
    pub(crate) extensions: Option<String>,
}

impl From<Response> for OpenedWebSocket {
    fn from(response: Response) -> Self {
        let extensions = response.headers().get("sec-websocket-extensions");
        Self {
            status: response.status().as_u16(),
            subprotocol: response.subprotocol().map(str::to_owned),
            extensions: extensions.and_then(|value| value.to_str().ok()).map(str::to_owned),
        }
    }
}

/// Describes a server's response.
pub(crate) fn describe(args: &ConnectArgs, url: &str, response: &OpenedWebSocket) -> String {
    let mut message = format!("connected to {}", shown_url(url));
    if args.dial.http2 {
        message += " over HTTP/2";
    }
    if args.dial.http3 {
        message += " over HTTP/3";
    }
    if let Some(subprotocol) = &response.subprotocol {
        message += &format!(", subprotocol {subprotocol}");
    }
    if let Some(extensions) = &response.extensions {
        message += &format!(", {extensions}");
    }
    message
}

/// Warns that an attacker may intercept the connection.
pub(crate) fn warning(args: &ConnectArgs, secure: bool) -> Option<&'static str> {
    (args.tls.insecure && secure).then_some(
        "WARNING: --insecure: the server's certificate is NOT checked; an attacker on the network can read and \
         change all data",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_parse_into_scheme_host_and_port() {
        let url = ServerUrl::parse("WSS://u:p@[::1]:9/a?b").unwrap();
        assert_eq!((url.secure, &*url.host, url.port, &*url.path), (true, "::1", 9, "/a?b"));
        assert_eq!(url.credentials.as_deref(), Some("u:p"));
        assert_eq!(url.host_header(), "[::1]:9");
        let url = ServerUrl::parse("http://a.b?x").unwrap();
        assert_eq!((url.port, &*url.path, &*url.host_header()), (80, "/?x", "a.b"));
        for bad in ["", "a.b", "ftp://a", "ws://", "ws://a:b", "ws://:1"] {
            assert!(ServerUrl::parse(bad).is_err(), "{bad}");
        }
    }
}
