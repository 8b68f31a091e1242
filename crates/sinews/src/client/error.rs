//! Errors of a client's connection attempt.

use std::time::Duration;
use std::{fmt, io};

use sinews_proto::InvalidConfig;
use sinews_proto::handshake::{ClientError, HandshakeMisuse};

#[cfg(feature = "url-connect")]
use super::proxy_error::ProxyError;
use super::response::{Response, fmt_line};
use super::target::UrlError;
use crate::AtFault;
#[cfg(feature = "url-connect")]
use crate::tls::TlsError;

/// An error of a connection attempt, with the place where it failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL is invalid. It is given without name and password.
    Url {
        /// The URL.
        url: String,
        /// The defect.
        error: UrlError,
    },
    /// A header or a subprotocol is not valid on the wire.
    Request(HandshakeMisuse),
    /// This [`Config`](crate::Config) is invalid.
    Config(InvalidConfig),
    /// The name resolves to no address.
    #[cfg(feature = "url-connect")]
    Resolve {
        /// The name, of the server or of the proxy.
        host: String,
        /// The error of the system.
        error: io::Error,
    },
    /// No address could be reached.
    #[cfg(feature = "url-connect")]
    Tcp {
        /// Host and port, of the server or of the proxy, and the address that failed last.
        address: String,
        /// The error of the system.
        error: io::Error,
    },
    /// The proxy cannot be used, or rejects the request.
    #[cfg(feature = "url-connect")]
    Proxy {
        /// The URL of the proxy, without name and password.
        proxy: String,
        /// The reason.
        error: ProxyError,
    },
    /// TLS with the server failed.
    #[cfg(feature = "url-connect")]
    Tls {
        /// The name that the certificate had to match.
        host: String,
        /// The reason.
        error: TlsError,
    },
    /// The server's response has a status other than 101, over HTTP/2 other than 2xx: status, headers and body tell
    /// why. This includes redirects beyond `Connect::redirects`.
    Rejected(Box<Response>),
    /// The server's response is not a valid handshake (RFC 6455 section 4.1).
    Handshake(ClientError),
    /// The server speaks HTTP/2, but offers no WebSockets over it: its SETTINGS_ENABLE_CONNECT_PROTOCOL is not 1 (RFC
    /// 8441 section 3). [`connect`](crate::connect) uses HTTP/1.1.
    #[cfg(feature = "http2-client")]
    NoExtendedConnect {
        /// The server: host and port.
        peer: String,
    },
    /// A redirect of the server is not followed.
    #[cfg(feature = "url-connect")]
    Redirect {
        /// The value of `Location`.
        location: String,
        /// The reason.
        error: RedirectError,
    },
    /// The transport failed, or ended before the response ([`io::ErrorKind::UnexpectedEof`]).
    Transport {
        /// The phase that failed.
        phase: ConnectPhase,
        /// The peer of this phase: host and port.
        peer: String,
        /// The error of the transport.
        error: io::Error,
    },
    /// [`Connect::timeout`](super::Connect::timeout) expired.
    TimedOut {
        /// The phase in progress.
        phase: ConnectPhase,
        /// The peer of this phase: host and port.
        peer: String,
        /// The timeout of the whole attempt.
        timeout: Duration,
    },
}

/// The phase of a connection attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectPhase {
    /// Resolving a name.
    Resolve,
    /// Connecting TCP.
    Connect,
    /// Requesting a tunnel from a proxy.
    Proxy,
    /// The TLS handshake.
    Tls,
    /// The first frames of HTTP/2: preface and settings.
    #[cfg(feature = "http2-client")]
    Http2,
    /// The opening handshake of WebSocket.
    Handshake,
}

/// Why a redirect is not followed.
#[cfg(feature = "url-connect")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RedirectError {
    /// More redirects than [`Connect::redirects`](super::Connect::redirects) allows.
    TooMany(u8),
    /// From `wss` to `ws`, see [`Connect::allow_downgrade`](super::Connect::allow_downgrade).
    Downgrade,
    /// `Location` is missing or not a URL.
    Location(UrlError),
    /// To another origin (scheme, host, port), which a WebSocket on this connection of HTTP/2 cannot reach.
    #[cfg(feature = "http2-client")]
    OtherOrigin,
}

impl ConnectError {
    /// The status of the server's response, if the server rejected the handshake.
    #[must_use]
    pub fn status(&self) -> Option<http::StatusCode> {
        match self {
            Self::Rejected(response) => Some(response.status()),
            _ => None,
        }
    }

    /// Whether a retry may succeed without a change: no address could be reached, the transport failed (also during the
    /// TLS handshake), the timeout expired, or the server has a temporary error (5xx) or asks for a retry (408, 425, 429; see
    /// [`retry_after`](Self::retry_after)). A retry does not help for invalid requests, other rejections, redirects
    /// that are not followed, responses that are not a WebSocket handshake, and untrusted TLS.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Rejected(response) => has_trouble(response.status()),
            #[cfg(feature = "url-connect")]
            Self::Proxy { error: ProxyError::Rejected(response), .. } => has_trouble(response.status()),
            // The proxy could not reach the server, rejected the request, or failed otherwise.
            #[cfg(feature = "url-connect")]
            Self::Proxy { error: ProxyError::Socks(reply), .. } => matches!(reply.code(), 1 | 3..=6),
            #[cfg(feature = "url-connect")]
            Self::Resolve { .. } | Self::Tcp { .. } => true,
            Self::Transport { .. } | Self::TimedOut { .. } => true,
            #[cfg(feature = "url-connect")]
            Self::Tls { error: TlsError::Handshake(error), .. } => is_of_transport(error),
            _ => false,
        }
    }

    /// The time to wait before a retry, as the server requests: the seconds of `Retry-After` (RFC 9110 section
    /// 10.2.3).
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let Self::Rejected(response) = self else { return None };
        let seconds = response.headers().get("retry-after")?.to_str().ok()?.trim().parse().ok()?;
        Some(Duration::from_secs(seconds))
    }

    /// The side that must act. [`AtFault::Transport`] includes the path: names, addresses, proxies and timeouts.
    #[must_use]
    pub fn at_fault(&self) -> AtFault {
        match self {
            Self::Url { .. } | Self::Request(_) | Self::Config(_) => AtFault::Caller,
            Self::Rejected(_) | Self::Handshake(_) => AtFault::Peer,
            #[cfg(feature = "http2-client")]
            Self::NoExtendedConnect { .. } => AtFault::Peer,
            #[cfg(feature = "url-connect")]
            Self::Redirect { .. } => AtFault::Peer,
            #[cfg(feature = "url-connect")]
            Self::Proxy { error: ProxyError::Url(_) | ProxyError::Scheme, .. } => AtFault::Caller,
            #[cfg(feature = "url-connect")]
            Self::Tls { error: TlsError::Handshake(error), .. } if !is_of_transport(error) => AtFault::Peer,
            #[cfg(feature = "url-connect")]
            Self::Tls { error: TlsError::Handshake(_), .. } => AtFault::Transport,
            #[cfg(feature = "url-connect")]
            Self::Tls { error, .. } if error.is_of_server() => AtFault::Peer,
            #[cfg(feature = "url-connect")]
            Self::Tls { .. } => AtFault::Caller,
            #[cfg(feature = "url-connect")]
            Self::Resolve { .. } | Self::Tcp { .. } | Self::Proxy { .. } => AtFault::Transport,
            Self::Transport { .. } | Self::TimedOut { .. } => AtFault::Transport,
        }
    }

    /// Whether the timeout expired.
    #[must_use]
    pub const fn is_timeout(&self) -> bool {
        matches!(self, Self::TimedOut { .. })
    }
}

/// Whether the transport failed, and not the protocol above it: an error of the system, or one that has it as a source.
#[cfg(feature = "url-connect")]
fn is_of_transport(error: &io::Error) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, HostUnreachable, NetworkDown,
        NetworkUnreachable, NotConnected, TimedOut, UnexpectedEof,
    };
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if matches!(
            kind,
            Some(
                BrokenPipe
                    | ConnectionAborted
                    | ConnectionRefused
                    | ConnectionReset
                    | HostUnreachable
                    | NetworkDown
                    | NetworkUnreachable
                    | NotConnected
                    | TimedOut
                    | UnexpectedEof
            )
        ) {
            return true;
        }
        cause = error.source();
    }
    false
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url { url, error } => write!(f, "bad URL {url:?}: {error}"),
            Self::Request(misuse) => write!(f, "bad request: {misuse}"),
            Self::Config(invalid) => write!(f, "bad configuration: {invalid}"),
            #[cfg(feature = "url-connect")]
            Self::Resolve { host, error } => write!(f, "no address for {host}: {error}"),
            #[cfg(feature = "url-connect")]
            Self::Tcp { address, error } => write!(f, "cannot connect to {address}: {error}"),
            #[cfg(feature = "url-connect")]
            Self::Proxy { proxy, error } => write!(f, "proxy {proxy}: {error}"),
            #[cfg(feature = "url-connect")]
            Self::Tls { host, error } => write!(f, "TLS with {host}: {error}"),
            Self::Rejected(response) => {
                // Over HTTP/2 there is no 101.
                let expected = if response.is_http2() { "200" } else { "101" };
                write!(f, "the server answered {} instead of {expected}", response.status())?;
                fmt_line(response, f)
            }
            Self::Handshake(error) => write!(f, "handshake: {error}"),
            #[cfg(feature = "http2-client")]
            Self::NoExtendedConnect { peer } => write!(
                f,
                "{peer} offers no WebSockets over HTTP/2: SETTINGS_ENABLE_CONNECT_PROTOCOL is not 1 (RFC 8441 \
                 section 3); connect over HTTP/1.1"
            ),
            #[cfg(feature = "url-connect")]
            Self::Redirect { location, error } => write!(f, "redirect to {location:?}: {error}"),
            Self::Transport { phase, peer, error } => write!(f, "{phase} {peer}: {error}"),
            Self::TimedOut { phase, peer, timeout } => {
                write!(f, "{phase} {peer} exceeded the timeout of {timeout:?} (Connect::timeout)")
            }
        }
    }
}

/// Whether a server with this status may respond differently to a retry.
fn has_trouble(status: http::StatusCode) -> bool {
    status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429)
}

impl std::error::Error for ConnectError {
    /// The source behind the error that [`Display`](fmt::Display) already includes.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Transport { error, .. } => error.source(),
            #[cfg(feature = "url-connect")]
            Self::Resolve { error, .. } | Self::Tcp { error, .. } => error.source(),
            #[cfg(feature = "url-connect")]
            Self::Tls { error, .. } => error.source(),
            _ => None,
        }
    }
}

impl From<HandshakeMisuse> for ConnectError {
    fn from(misuse: HandshakeMisuse) -> Self {
        Self::Request(misuse)
    }
}

impl fmt::Display for ConnectPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resolve => "resolving",
            Self::Connect => "TCP to",
            Self::Proxy => "tunnel through proxy",
            Self::Tls => "TLS handshake with",
            #[cfg(feature = "http2-client")]
            Self::Http2 => "HTTP/2 setup with",
            Self::Handshake => "WebSocket handshake with",
        })
    }
}

#[cfg(feature = "url-connect")]
impl fmt::Display for RedirectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany(max) => write!(f, "more than {max} redirects (Connect::redirects)"),
            Self::Downgrade => {
                f.write_str("from wss to ws, which is not encrypted (Connect::allow_downgrade)")
            }
            Self::Location(error) => error.fmt(f),
            #[cfg(feature = "http2-client")]
            Self::OtherOrigin => f.write_str("another origin needs a connection of its own"),
        }
    }
}

#[cfg(feature = "url-connect")]
impl std::error::Error for RedirectError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(status: u16, retry_after: &str) -> ConnectError {
        let headers = [("Retry-After", retry_after.as_bytes())];
        ConnectError::Rejected(Box::new(Response::new(status, headers.into_iter())))
    }

    #[test]
    fn transient_errors_are_distinguished_from_permanent_errors() {
        for status in [408, 425, 429, 500, 502, 503, 504] {
            assert!(rejected(status, "1").is_transient(), "{status}");
        }
        for status in [200, 301, 400, 401, 403, 404, 410, 426] {
            assert!(!rejected(status, "1").is_transient(), "{status}");
        }
        let failed = |phase| ConnectError::Transport {
            phase,
            peer: "a:80".to_owned(),
            error: io::ErrorKind::ConnectionReset.into(),
        };
        assert!(failed(ConnectPhase::Handshake).is_transient());
        assert!(!ConnectError::Handshake(ClientError::Accept).is_transient());
    }

    #[test]
    fn retry_after_is_parsed_in_seconds() {
        assert_eq!(rejected(503, "7").retry_after(), Some(Duration::from_secs(7)));
        assert_eq!(rejected(429, " 0 ").retry_after(), Some(Duration::ZERO));
        for no_number in ["", "-1", "1.5", "Sun, 22 Nov 2026 08:49:37 GMT"] {
            assert_eq!(rejected(503, no_number).retry_after(), None, "{no_number}");
        }
    }
}
