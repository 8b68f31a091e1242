//! What the server answered.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use sinews_proto::handshake::Rejection;
use sinews_proto::http::ResponseHead;

/// The answer of a server to the handshake, or of a proxy to the wish for a tunnel.
#[derive(Clone, Debug)]
pub struct Response {
    status: StatusCode,
    headers: HeaderMap,
    subprotocol: Option<String>,
    body: Vec<u8>,
}

impl Response {
    /// Lines that a map of headers cannot hold are left out; a head that was parsed has none.
    pub(crate) fn new<'h>(status: u16, headers: impl Iterator<Item = (&'h str, &'h [u8])>) -> Self {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(value)) {
                map.append(name, value);
            }
        }
        // A status has three digits, or its head would not have been parsed.
        let status = StatusCode::from_u16(status).unwrap_or_default();
        Self { status, headers: map, subprotocol: None, body: Vec::new() }
    }

    pub(crate) fn of_head(head: &ResponseHead<'_>) -> Self {
        Self::new(head.status(), head.headers())
    }

    pub(crate) fn of_rejection(rejection: &Rejection) -> Self {
        Self::new(rejection.status(), rejection.headers())
    }

    pub(crate) fn with_subprotocol(mut self, subprotocol: Option<&str>) -> Self {
        self.subprotocol = subprotocol.map(str::to_owned);
        self
    }

    pub(crate) fn with_body(mut self, body: Vec<u8>) -> Self {
        self.body = body;
        self
    }

    /// The status: 101 where there is a connection.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// The headers, such as `Set-Cookie`, `Location`, `WWW-Authenticate` or `Retry-After`.
    #[must_use]
    pub const fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The subprotocol that the server chose among those offered.
    #[must_use]
    pub fn subprotocol(&self) -> Option<&str> {
        self.subprotocol.as_deref()
    }

    /// The body of a refusal, up to [`Connect::rejection_body_max`](super::Connect::rejection_body_max) bytes, chunks put
    /// together, `Content-Encoding` left as it is. What did not come before the server fell silent for a second, or
    /// before the time was over, is missing. Empty behind a 101.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The first line of the body, for a message.
    pub(crate) fn first_line(&self) -> Option<String> {
        const LINE_MAX: usize = 200;
        let text = String::from_utf8_lossy(&self.body);
        let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
        // A server's text must not move the cursor of whoever reads a log.
        Some(line.chars().filter(|c| !c.is_control()).take(LINE_MAX).collect())
    }
}
