//! The server's response.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use sinews_proto::handshake::Rejection;
use sinews_proto::http::ResponseHead;

/// The response of a server to the handshake, or of a proxy to CONNECT.
#[derive(Clone, Debug)]
pub struct Response {
    status: StatusCode,
    headers: HeaderMap,
    subprotocol: Option<String>,
    body: Vec<u8>,
    is_http2: bool,
}

impl Response {
    /// Header lines that a `HeaderMap` cannot hold are left out; a parsed head has none.
    pub(crate) fn new<'h>(status: u16, headers: impl Iterator<Item = (&'h str, &'h [u8])>) -> Self {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(value)) {
                map.append(name, value);
            }
        }
        let status = StatusCode::from_u16(status).expect("a parsed head has a status of 100 to 999");
        Self { status, headers: map, subprotocol: None, body: Vec::new(), is_http2: false }
    }

    #[cfg(feature = "http2-client")]
    pub(crate) fn from_http2(head: http::response::Parts) -> Self {
        let http::response::Parts { status, headers, .. } = head;
        Self { status, headers, subprotocol: None, body: Vec::new(), is_http2: true }
    }

    pub(crate) const fn is_http2(&self) -> bool {
        self.is_http2
    }

    pub(crate) fn from_head(head: &ResponseHead<'_>) -> Self {
        Self::new(head.status(), head.headers())
    }

    pub(crate) fn from_rejection(rejection: &Rejection) -> Self {
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

    /// The status: 101 for an accepted handshake, over HTTP/2 2xx.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// The headers, such as `Set-Cookie`, `Location`, `WWW-Authenticate` or `Retry-After`.
    #[must_use]
    pub const fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The subprotocol that the server selected.
    #[must_use]
    pub fn subprotocol(&self) -> Option<&str> {
        self.subprotocol.as_deref()
    }

    /// The body of a rejection, up to [`Connect::rejection_body_max`](super::Connect::rejection_body_max) bytes, with
    /// chunks joined and `Content-Encoding` unchanged. It is truncated if the server is silent for a second, or if
    /// the timeout expires. Empty for an accepted handshake.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The first line of the body, for an error message.
    pub(crate) fn first_line(&self) -> Option<String> {
        const LINE_MAX: usize = 200;
        let text = String::from_utf8_lossy(&self.body);
        let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
        // A server's text must not contain control characters for the reader's terminal.
        Some(line.chars().filter(|c| !c.is_control()).take(LINE_MAX).collect())
    }
}

/// Appends the first line of a rejection's body to a message.
pub(super) fn fmt_line(response: &Response, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match response.first_line() {
        Some(line) => write!(f, ": {line}"),
        None => Ok(()),
    }
}
