//! The pseudo-header fields in a client's request (RFC 9113 section 8.3.1, RFC 9114 section 4.3.1).

/// Method and target of a client's request.
#[derive(Clone, Copy, Debug)]
pub struct RequestTarget<'a> {
    method: &'a str,
    scheme: &'a str,
    authority: &'a str,
    path: &'a str,
    protocol: Option<&'a str>,
}

impl<'a> RequestTarget<'a> {
    /// Creates a request's target. The caller has validated its parts.
    #[must_use]
    pub const fn new(method: &'a str, scheme: &'a str, authority: &'a str, path: &'a str) -> Self {
        Self { method, scheme, authority, path, protocol: None }
    }

    /// Creates an extended CONNECT request's target (RFC 8441 section 4, RFC 9220 section 3): `websocket`,
    /// `webtransport`. The scheme is `https`.
    #[must_use]
    pub const fn connect(protocol: &'a str, authority: &'a str, path: &'a str) -> Self {
        Self { method: "CONNECT", scheme: "https", authority, path, protocol: Some(protocol) }
    }

    /// Sets the scheme: `http` on an HTTP/2 connection without TLS.
    #[must_use]
    pub const fn with_scheme(mut self, scheme: &'a str) -> Self {
        self.scheme = scheme;
        self
    }

    pub(crate) const fn protocol(&self) -> Option<&'a str> {
        self.protocol
    }

    pub(crate) fn is_method(&self, method: &str) -> bool {
        self.method == method
    }

    /// Passes the pseudo-header fields on.
    pub(crate) fn for_each_field(&self, mut encode: impl FnMut(&[u8], &[u8])) {
        encode(b":method", self.method.as_bytes());
        if let Some(protocol) = self.protocol {
            encode(b":protocol", protocol.as_bytes());
        }
        encode(b":scheme", self.scheme.as_bytes());
        encode(b":authority", self.authority.as_bytes());
        encode(b":path", self.path.as_bytes());
    }
}
