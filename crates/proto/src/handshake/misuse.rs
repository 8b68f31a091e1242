use core::fmt;

/// The caller passed a value that may not be written into a head. No bytes were written.
///
/// Values from configuration or user input are validated here, so that no carriage return or line feed in
/// them can inject a header or a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HandshakeMisuse {
    /// The name of a header is not a token.
    HeaderName,
    /// The value of a header contains a control byte.
    HeaderValue,
    /// A header that the handshake writes itself, such as `Connection` or `Sec-WebSocket-Accept`.
    ReservedHeader,
    /// A subprotocol is not a token.
    Subprotocol,
    /// A subprotocol is repeated, or their number exceeds
    /// [`ServerOptions::SUBPROTOCOLS_MAX`](super::ServerOptions::SUBPROTOCOLS_MAX).
    SubprotocolList,
    /// A host is empty or contains a byte that is invalid in an authority.
    Host,
    /// A path does not begin with `/`, or contains a space, a control byte, a fragment or a byte beyond
    /// ASCII.
    Path,
    /// An origin is not `scheme://authority` (RFC 6454 section 6.2).
    Origin,
    /// The status of a rejection is not within 200 to 599.
    Status,
    /// The request arrived over HTTP/2 or HTTP/3: its response is not HTTP/1.1 text. Pass its
    /// [status](super::Accepted::status) and [headers](super::Accepted::headers) to that stack.
    NotHttp1,
}

impl fmt::Display for HandshakeMisuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HeaderName => "header name is not a token",
            Self::HeaderValue => "header value contains a control byte",
            Self::ReservedHeader => "header is reserved for the handshake",
            Self::Subprotocol => "subprotocol is not a token",
            Self::SubprotocolList => "subprotocols repeated or too many",
            Self::Host => "invalid host",
            Self::Path => "invalid path",
            Self::Origin => "invalid origin",
            Self::Status => "status is not within 200 to 599",
            Self::NotHttp1 => "the response to extended CONNECT is not HTTP/1.1 text",
        })
    }
}

impl core::error::Error for HandshakeMisuse {}
