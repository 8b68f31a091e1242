//! Why there is no connection.

use std::time::Duration;
use std::{fmt, io};

use sinews_proto::InvalidConfig;
use sinews_proto::handshake::{ClientError, HandshakeMisuse};

use super::response::Response;
use super::target::UrlError;
#[cfg(feature = "url-connect")]
use super::{ProxyError, TlsError};

/// Why there is no connection, and where it failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL leads nowhere. It is given without name and password.
    Url {
        /// The URL.
        url: String,
        /// What is wrong with it.
        error: UrlError,
    },
    /// A header or a subprotocol may not be sent so.
    Request(HandshakeMisuse),
    /// No connection can work with this [`Config`](crate::Config).
    Config(InvalidConfig),
    /// The name has no address.
    #[cfg(feature = "url-connect")]
    Resolve {
        /// The name, of the server or of the proxy.
        host: String,
        /// What the system says.
        error: io::Error,
    },
    /// No address could be reached.
    #[cfg(feature = "url-connect")]
    Tcp {
        /// Host and port, of the server or of the proxy, and the address that failed last.
        address: String,
        /// What the system says.
        error: io::Error,
    },
    /// The proxy cannot be used, or refuses.
    #[cfg(feature = "url-connect")]
    Proxy {
        /// The URL of the proxy, without name and password.
        proxy: String,
        /// Why.
        error: ProxyError,
    },
    /// The server and we have not come to terms about TLS.
    #[cfg(feature = "url-connect")]
    Tls {
        /// The name that the server had to prove.
        host: String,
        /// Why.
        error: TlsError,
    },
    /// The server answered with another status than 101: status, headers and body say why. A redirect that is not to
    /// be followed (`Connect::redirects`) is one, too.
    Rejected(Box<Response>),
    /// The server's answer is no valid handshake (RFC 6455 section 4.1).
    Handshake(ClientError),
    /// The server sends us elsewhere, and there we do not go.
    #[cfg(feature = "url-connect")]
    Redirect {
        /// The value of `Location`.
        location: String,
        /// Why not.
        error: RedirectError,
    },
    /// The transport failed, or ended before there was an answer ([`io::ErrorKind::UnexpectedEof`]).
    Transport {
        /// What was under way.
        phase: Phase,
        /// With whom: host and port.
        peer: String,
        /// How it failed.
        error: io::Error,
    },
    /// [`Connect::timeout`](super::Connect::timeout) was over.
    TimedOut {
        /// What was under way.
        phase: Phase,
        /// With whom: host and port.
        peer: String,
        /// The whole time that there was.
        timeout: Duration,
    },
}

/// What a connection goes through before it is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// The address of a name is looked up.
    Resolve,
    /// TCP connects.
    Connect,
    /// A proxy is asked for a tunnel.
    Proxy,
    /// The handshake of TLS.
    Tls,
    /// The opening handshake of WebSocket.
    Handshake,
}

/// Why a redirect is not followed.
#[cfg(feature = "url-connect")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RedirectError {
    /// One more than [`Connect::redirects`](super::Connect::redirects) allows.
    TooMany(u8),
    /// From `wss` to `ws`, see [`Connect::allow_downgrade`](super::Connect::allow_downgrade).
    Downgrade,
    /// `Location` is missing, or no URL.
    Location(UrlError),
}

impl ConnectError {
    /// The status of the server's refusal, if it was one.
    #[must_use]
    pub fn status(&self) -> Option<http::StatusCode> {
        match self {
            Self::Rejected(response) => Some(response.status()),
            _ => None,
        }
    }

    /// Whether another attempt may come to something without anybody doing anything about it: nobody could be reached,
    /// the transport failed, the time was over, or the server has trouble of its own (5xx) or asks for another attempt
    /// (408, 425, 429; see [`retry_after`](Self::retry_after)). Not so: what we have asked for wrongly, other refusals,
    /// redirects that are not followed, and answers that are no WebSocket handshake or no TLS that we trust.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Rejected(response) => has_trouble(response.status()),
            #[cfg(feature = "url-connect")]
            Self::Proxy { error: ProxyError::Refused(response), .. } => has_trouble(response.status()),
            // Unreachable, refused there, or whatever else the proxy has met on the way.
            #[cfg(feature = "url-connect")]
            Self::Proxy { error: ProxyError::Socks(reply), .. } => matches!(reply.code(), 1 | 3..=6),
            #[cfg(feature = "url-connect")]
            Self::Resolve { .. } | Self::Tcp { .. } => true,
            Self::Transport { .. } | Self::TimedOut { .. } => true,
            _ => false,
        }
    }

    /// How long a server that refuses wants us to wait: the seconds of `Retry-After` (RFC 9110 section 10.2.3).
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let Self::Rejected(response) = self else { return None };
        let seconds = response.headers().get("retry-after")?.to_str().ok()?.trim().parse().ok()?;
        Some(Duration::from_secs(seconds))
    }

    /// Whether the time was over.
    #[must_use]
    pub const fn is_timeout(&self) -> bool {
        matches!(self, Self::TimedOut { .. })
    }
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
                write!(f, "the server answered {} instead of 101", response.status())?;
                fmt_line(response, f)
            }
            Self::Handshake(error) => write!(f, "handshake: {error}"),
            #[cfg(feature = "url-connect")]
            Self::Redirect { location, error } => write!(f, "redirect to {location:?}: {error}"),
            Self::Transport { phase, peer, error } => write!(f, "{phase} {peer}: {error}"),
            Self::TimedOut { phase, peer, timeout } => {
                write!(f, "{phase} {peer} was not done when the timeout of {timeout:?} was over")?;
                f.write_str(" (Connect::timeout)")
            }
        }
    }
}

/// Whether a server that answers so may answer otherwise next time.
fn has_trouble(status: http::StatusCode) -> bool {
    status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429)
}

/// The body of a refusal, as far as it fits a message.
pub(super) fn fmt_line(response: &Response, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match response.first_line() {
        Some(line) => write!(f, ": {line}"),
        None => Ok(()),
    }
}

impl std::error::Error for ConnectError {
    /// The cause behind the one that [`Display`](fmt::Display) has named already.
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

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resolve => "looking up",
            Self::Connect => "TCP to",
            Self::Proxy => "asking the proxy",
            Self::Tls => "TLS handshake with",
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
    fn what_may_pass_is_told_from_what_will_not() {
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
        assert!(failed(Phase::Handshake).is_transient());
        assert!(!ConnectError::Handshake(ClientError::Accept).is_transient());
    }

    #[test]
    fn a_server_says_in_seconds_when_to_come_again() {
        assert_eq!(rejected(503, "7").retry_after(), Some(Duration::from_secs(7)));
        assert_eq!(rejected(429, " 0 ").retry_after(), Some(Duration::ZERO));
        for no_number in ["", "-1", "1.5", "Sun, 22 Nov 2026 08:49:37 GMT"] {
            assert_eq!(rejected(503, no_number).retry_after(), None, "{no_number}");
        }
    }
}
