/// The HTTP version of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
    /// HTTP/2 (RFC 9113).
    Http2,
    /// HTTP/3 (RFC 9114).
    Http3,
}
