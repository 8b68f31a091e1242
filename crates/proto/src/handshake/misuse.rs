use core::fmt;

/// Our caller gave something that may not be written into a head. Nothing was written.
///
/// What reaches a head from configuration or from user input is checked here, so that no carriage return
/// or line feed in it can start a header, or a request, of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HandshakeMisuse {
    /// The name of a header is not a token.
    HeaderName,
    /// The value of a header holds a control byte.
    HeaderValue,
    /// A header that the handshake itself writes, such as `Connection` or `Sec-WebSocket-Accept`.
    ReservedHeader,
    /// A subprotocol is not a token.
    Subprotocol,
    /// A subprotocol is given twice, or more are given than
    /// [`ServerOptions::SUBPROTOCOLS_MAX`](super::ServerOptions::SUBPROTOCOLS_MAX).
    SubprotocolList,
    /// A host is empty or holds what an authority may not.
    Host,
    /// A path does not begin with `/`, or holds a space, a control byte, a fragment or anything beyond
    /// ASCII.
    Path,
    /// An origin is not `scheme://authority` (RFC 6454 section 6.2).
    Origin,
    /// The status of a refusal is not within 200 to 599.
    Status,
    /// The request came over HTTP/2 or HTTP/3: its answer is no HTTP/1.1 text. Its
    /// [status](super::Accepted::status) and [headers](super::Accepted::headers) go to that stack.
    NotHttp1,
}

impl fmt::Display for HandshakeMisuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HeaderName => "header name is not a token",
            Self::HeaderValue => "header value holds a control byte",
            Self::ReservedHeader => "header belongs to the handshake",
            Self::Subprotocol => "subprotocol is not a token",
            Self::SubprotocolList => "subprotocols repeated or too many",
            Self::Host => "invalid host",
            Self::Path => "invalid path",
            Self::Origin => "invalid origin",
            Self::Status => "status is not within 200 to 599",
            Self::NotHttp1 => "the answer to extended CONNECT is not HTTP/1.1 text",
        })
    }
}

impl core::error::Error for HandshakeMisuse {}
