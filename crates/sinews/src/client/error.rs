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

/// The body of a refusal, as far as it fits a message.
pub(super) fn fmt_line(response: &Response, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match response.first_line() {
        Some(line) => write!(f, ": {line}"),
        None => Ok(()),
    }
}

impl std::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Url { error, .. } => Some(error),
            Self::Request(error) => Some(error),
            Self::Config(error) => Some(error),
            Self::Handshake(error) => Some(error),
            Self::Transport { error, .. } => Some(error),
            #[cfg(feature = "url-connect")]
            Self::Resolve { error, .. } | Self::Tcp { error, .. } => Some(error),
            #[cfg(feature = "url-connect")]
            Self::Proxy { error, .. } => Some(error),
            #[cfg(feature = "url-connect")]
            Self::Tls { error, .. } => Some(error),
            #[cfg(feature = "url-connect")]
            Self::Redirect { error, .. } => Some(error),
            Self::Rejected(_) | Self::TimedOut { .. } => None,
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
