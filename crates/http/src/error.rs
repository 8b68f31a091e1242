use core::fmt;

/// The reason for rejecting a head. Each ends the connection, since the start of the next request is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeadError {
    /// The head exceeds [`HeadLimits::max_bytes`](crate::HeadLimits::max_bytes).
    TooLarge,
    /// The first line alone exceeds that limit.
    FirstLineTooLong,
    /// More header lines than [`HeadLimits::max_headers`](crate::HeadLimits::max_headers).
    TooManyHeaders,
    /// A line feed without a carriage return before it (RFC 9112 section 2.2).
    BareLineFeed,
    /// A line or a byte that violates the RFC 9112 grammar, including folded lines.
    Syntax,
    /// The request target has none of the four forms in RFC 9112 section 3.2, or does not fit the method.
    Target,
    /// Neither HTTP/1.0 nor HTTP/1.1.
    Version,
    /// `Host` missing in HTTP/1.1, repeated, or not an authority (RFC 9112 section 3.2).
    Host,
    /// `Content-Length` is not one plain decimal number (RFC 9112 section 6.3).
    ContentLength,
    /// `Transfer-Encoding` does not end in `chunked`, is sent with HTTP/1.0 or together with
    /// `Content-Length` (RFC 9112 section 6.1).
    TransferEncoding,
    /// A transfer coding other than `chunked` (RFC 9112 section 6.1).
    UnknownTransferCoding,
}

impl HeadError {
    /// The response's status code for a request with this error.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            // RFC 6585 section 5 covers both the total size and a single field.
            Self::TooLarge | Self::TooManyHeaders => 431,
            Self::FirstLineTooLong => 414,
            Self::UnknownTransferCoding => 501,
            Self::Version => 505,
            Self::BareLineFeed
            | Self::Syntax
            | Self::Target
            | Self::Host
            | Self::ContentLength
            | Self::TransferEncoding => 400,
        }
    }

    /// A short text for a response body or a log.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::TooLarge => "head too large",
            Self::FirstLineTooLong => "first line too long",
            Self::TooManyHeaders => "too many header lines",
            Self::BareLineFeed => "line feed without carriage return",
            Self::Syntax => "malformed head",
            Self::Target => "malformed request target",
            Self::Version => "unsupported HTTP version",
            Self::Host => "Host missing, repeated or malformed",
            Self::ContentLength => "malformed Content-Length",
            Self::TransferEncoding => "malformed Transfer-Encoding",
            Self::UnknownTransferCoding => "unknown transfer coding",
        }
    }
}

impl fmt::Display for HeadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl core::error::Error for HeadError {}
