//! A WebSocket over HTTP/3 (RFC 9220), on its own connection.

use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sinews::{DeflateConfig, WebSocket};
use sinews_bench::url::shown_url;
use sinews_proto::handshake::{ClientError, ClientRequest, ExtendedConnect, HandshakeMisuse};
use sinews_quic::{Http3Tunnel, TunnelRequest, TunnelResponse};
use tokio::io::{DuplexStream, duplex};
use tokio::net::lookup_host;
use tokio::time::timeout;

use super::args::ConnectArgs;
use super::dial::{self, OpenedWebSocket, ServerUrl};
use super::end::{EndKind, RunEnd, print_error};
use super::tls;

/// Opens a WebSocket. A task moves its bytes; it ends with the WebSocket.
///
/// # Errors
/// Returns an error if connecting fails, or the server rejects the handshake.
pub(crate) async fn open(
    args: &ConnectArgs,
    url: &str,
) -> Result<(WebSocket<DuplexStream>, OpenedWebSocket), RunEnd> {
    let parsed = ServerUrl::parse(url)?;
    if !parsed.secure {
        return Err(RunEnd::failed(format!("{}: --http3 needs a wss:// or https:// URL", shown_url(url))));
    }
    let invalid = |error: &dyn std::fmt::Display| RunEnd::failed(format!("{}: {error}", shown_url(url)));
    let connect = request(args, &parsed).map_err(|error| invalid(&error))?;
    let mut request = TunnelRequest::websocket(connect.authority(), connect.path());
    for (name, value) in connect.headers() {
        request = request.with_header(name, value);
    }
    let limit = args.limits.connect_timeout.0;
    let name = args.tls.server_name.as_deref().unwrap_or(&parsed.host);
    let tls = tls::client(&args.tls)?;
    let opened = timeout(limit, async {
        let server = resolve(args, &parsed).await?;
        Http3Tunnel::open(server, name, tls, request).await
    });
    let opened = opened.await.map_err(|_| {
        let text = format!("{}: no WebSocket over HTTP/3 within {limit:?}", shown_url(url));
        RunEnd::new(EndKind::TimedOut, text)
    })?;
    let (response, tunnel) = opened.map_err(|error| {
        let kind = match error.kind() {
            std::io::ErrorKind::Unsupported => EndKind::Rejected,
            std::io::ErrorKind::TimedOut => EndKind::TimedOut,
            _ => EndKind::Failed,
        };
        RunEnd::new(kind, format!("{} over HTTP/3: {error}", shown_url(url)))
    })?;
    let headers = response.headers.iter().map(|(name, value)| (&**name, &**value));
    let established = connect.read_response(response.status, headers);
    let established = established.map_err(|error| rejected(&error, &response))?;
    let opened = OpenedWebSocket {
        status: response.status,
        subprotocol: established.subprotocol().map(str::to_owned),
        extensions: header(&response, "sec-websocket-extensions"),
    };
    let (near, far) = duplex(BUFFER);
    tokio::spawn(async move {
        if let Err(error) = tunnel.relay(far).await {
            print_error(&format!("HTTP/3: {error}"));
        }
    });
    let config = Arc::new(dial::config(&args.limits));
    Ok((WebSocket::from_negotiated(near, established.negotiated(), config, &[]), opened))
}

fn request(args: &ConnectArgs, url: &ServerUrl) -> Result<ExtendedConnect, HandshakeMisuse> {
    let mut request = ClientRequest::new(url.host_header(), url.path.as_str())?;
    let headers = dial::headers(args);
    if let Some(credentials) = &url.credentials
        && !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization"))
    {
        let value = format!("Basic {}", STANDARD.encode(credentials));
        request = request.with_header("Authorization", value)?;
    }
    for (name, value) in headers {
        request = request.with_header(name, value)?;
    }
    for name in &args.request.subprotocol {
        request = request.with_subprotocol(name.as_str())?;
    }
    if args.request.deflate {
        request = request.with_deflate(DeflateConfig::new());
    }
    request.extended_connect()
}

/// Returns the server's address: from --resolve, or the first that its name has.
async fn resolve(args: &ConnectArgs, url: &ServerUrl) -> std::io::Result<SocketAddr> {
    let mut rules = args.dial.resolve.iter();
    if let Some(rule) = rules.find(|rule| rule.host.eq_ignore_ascii_case(&url.host) && rule.port == url.port)
    {
        return Ok((rule.address, url.port).into());
    }
    let mut found = lookup_host((url.host.as_str(), url.port)).await?;
    found.next().ok_or_else(|| std::io::Error::other("the name has no address"))
}

fn header(response: &TunnelResponse, name: &str) -> Option<String> {
    let (_, value) = response.headers.iter().find(|(found, _)| found == name)?;
    String::from_utf8(value.clone()).ok()
}

fn rejected(error: &ClientError, response: &TunnelResponse) -> RunEnd {
    let body = String::from_utf8_lossy(&response.body);
    let body = body.trim();
    let text = if body.is_empty() { error.to_string() } else { format!("{error}: {body}") };
    RunEnd::new(EndKind::Rejected, text)
}

/// Bytes between the WebSocket and its task.
const BUFFER: usize = 64 << 10;
