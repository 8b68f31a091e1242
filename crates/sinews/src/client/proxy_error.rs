//! Errors of proxies.

use std::fmt;

use sinews_proto::http::HeadError;

use super::response::{Response, fmt_line};
use super::target::UrlError;

/// An error of a proxy, or of its settings.
#[derive(Debug)]
#[non_exhaustive]
pub enum ProxyError {
    /// The URL of the proxy is invalid.
    Url(UrlError),
    /// The scheme of its URL is not `http`, `socks5` or `socks5h`.
    Scheme,
    /// The response to CONNECT has a status other than 2xx: status, headers and body tell why.
    Rejected(Box<Response>),
    /// The response to CONNECT is not a head of HTTP/1.x.
    Head(HeadError),
    /// The response is not SOCKS5.
    NotSocks5,
    /// The proxy rejects the credentials, or requires credentials.
    Authentication,
    /// The user name is empty, or user name or password is longer than 255 bytes, the limit of SOCKS5.
    Credentials,
    /// The name of the server is longer than 255 bytes, the limit of SOCKS5.
    NameTooLong,
    /// The proxy rejected the connection.
    Socks(SocksReply),
    /// Bytes were received through the tunnel before a request was sent.
    EarlyBytes,
}

impl From<HeadError> for ProxyError {
    fn from(error: HeadError) -> Self {
        Self::Head(error)
    }
}

impl fmt::Display for ProxyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Url(error) => return write!(f, "bad URL: {error}"),
            Self::Head(error) => return write!(f, "invalid response to CONNECT: {error}"),
            Self::Socks(reply) => return write!(f, "connection rejected: {reply}"),
            Self::Rejected(response) => {
                write!(f, "responded to CONNECT with {}", response.status())?;
                return fmt_line(response, f);
            }
            Self::Scheme => "the scheme must be http, socks5 or socks5h",
            Self::NotSocks5 => "the response is not SOCKS5",
            Self::Authentication => {
                "user name and password are missing or rejected; set them in the proxy's URL, user:password@host"
            }
            Self::Credentials => "SOCKS5 requires a user name of 1 to 255 bytes and a password of at most 255 bytes",
            Self::NameTooLong => "server name exceeds 255 bytes, the limit of SOCKS5",
            Self::EarlyBytes => "bytes received through the tunnel before a request was sent",
        })
    }
}

impl std::error::Error for ProxyError {}

/// The code with which a SOCKS5 proxy rejects a connection (RFC 1928 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocksReply(pub(super) u8);

impl SocksReply {
    /// The code, from 1 on.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }
}

impl fmt::Display for SocksReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            1 => "general failure",
            2 => "not allowed by the rules of the proxy",
            3 => "network unreachable",
            4 => "host unreachable",
            5 => "connection refused",
            6 => "TTL expired",
            7 => "command not supported",
            8 => "address type not supported",
            _ => "unknown code",
        };
        write!(f, "{text} (SOCKS reply {})", self.0)
    }
}
