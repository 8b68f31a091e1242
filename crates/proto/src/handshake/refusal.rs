use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::HandshakeMisuse;
use crate::http::HeadError;
use sinews_http::reason_phrase;
use sinews_http::text::{is_field_value, is_token, push_header};

/// The response that rejects a WebSocket request: from [`accept`](super::accept), or the application's own.
///
/// Over HTTP/1.1 it ends the connection: bytes that the client sent in the expectation of a successful
/// switch must not be read as its next request (RFC 9931).
///
/// ```
/// use sinews_proto::handshake::Refusal;
///
/// let moved = Refusal::new(307)?.with_header("Location", "wss://eu.example.com/chat")?;
/// let mut out = Vec::new();
/// moved.write_response(&mut out);
/// assert!(out.starts_with(b"HTTP/1.1 307 Temporary Redirect\r\nConnection: close\r\n"));
/// # Ok::<(), sinews_proto::handshake::HandshakeMisuse>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    status: u16,
    headers: Vec<(Cow<'static, str>, Cow<'static, str>)>,
    body: Cow<'static, [u8]>,
}

impl Refusal {
    /// Creates a rejection with this status, without headers and body.
    ///
    /// # Errors
    /// [`HandshakeMisuse::Status`] unless the status is within 200 to 599.
    pub const fn new(status: u16) -> Result<Self, HandshakeMisuse> {
        if status < 200 || status > 599 {
            return Err(HandshakeMisuse::Status);
        }
        Ok(Self::plain(status))
    }

    /// Adds a header.
    ///
    /// # Errors
    /// [`HandshakeMisuse::HeaderName`] and [`HandshakeMisuse::HeaderValue`] for values that may not be on
    /// the wire; [`HandshakeMisuse::ReservedHeader`] for `Connection`, `Content-Length` and
    /// `Transfer-Encoding`, which are reserved.
    pub fn with_header(
        mut self,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> Result<Self, HandshakeMisuse> {
        let (name, value) = (name.into(), value.into());
        check_header(&name, &value, &FRAMING_HEADERS)?;
        self.headers.push((name.into(), value.into()));
        Ok(self)
    }

    /// Sets the body. Declare its type with a `Content-Type` header. Statuses 204 and 304 have no body (RFC
    /// 9110 section 6.4.1): it is omitted.
    #[must_use]
    pub fn with_body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Cow::Owned(body.into());
        self
    }

    /// The status code.
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// The headers, without `Connection` and `Content-Length`.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().map(|(name, value)| (name.as_ref(), value.as_ref()))
    }

    /// The value of `Connection` for HTTP/1.1. It contains `Upgrade` if that header is set, since that
    /// header is hop-by-hop (RFC 9110 section 7.8). HTTP/2 and HTTP/3 have no such header.
    #[must_use]
    pub fn connection(&self) -> &'static str {
        let names_upgrade = self.headers().any(|(name, _)| name.eq_ignore_ascii_case("upgrade"));
        if names_upgrade { "Upgrade, close" } else { "close" }
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        if self.has_body() { &self.body } else { &[] }
    }

    /// Appends the complete HTTP/1.1 response.
    pub fn write_response(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(
            format!("HTTP/1.1 {} {}\r\n", self.status, reason_phrase(self.status)).as_bytes(),
        );
        push_header(out, "Connection", self.connection());
        for (name, value) in self.headers() {
            push_header(out, name, value);
        }
        if self.has_body() {
            push_header(out, "Content-Length", &format!("{}", self.body.len()));
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(self.body());
    }

    const fn has_body(&self) -> bool {
        !matches!(self.status, 204 | 304)
    }

    const fn plain(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Cow::Borrowed(&[]) }
    }

    /// A rejection by this crate, with a line of text as its body.
    pub(super) fn with_reason(status: u16, reason: &'static str) -> Self {
        let mut refusal = Self::plain(status).and("Content-Type", "text/plain; charset=utf-8");
        refusal.body = Cow::Borrowed(reason.as_bytes());
        refusal
    }

    /// Adds a header known to be valid.
    pub(super) fn and(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The response to HEAD has no body (RFC 9110 section 9.3.2).
    pub(super) fn without_body(mut self) -> Self {
        self.body = Cow::Borrowed(&[]);
        self
    }
}

impl From<HeadError> for Refusal {
    fn from(error: HeadError) -> Self {
        Self::with_reason(error.status(), error.reason())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused with status {}", self.status)?;
        match core::str::from_utf8(self.body()) {
            Ok(text) if !text.is_empty() => write!(f, ": {text}"),
            _ => Ok(()),
        }
    }
}

impl core::error::Error for Refusal {}

/// Headers that delimit a response; a duplicate permits smuggling.
pub(super) const FRAMING_HEADERS: [&str; 3] = ["Connection", "Content-Length", "Transfer-Encoding"];

/// Checks whether a header of the caller may be written.
pub(super) fn check_header(name: &str, value: &str, reserved: &[&str]) -> Result<(), HandshakeMisuse> {
    if !is_token(name.as_bytes()) {
        return Err(HandshakeMisuse::HeaderName);
    }
    if !is_field_value(value.as_bytes()) {
        return Err(HandshakeMisuse::HeaderValue);
    }
    if reserved.iter().any(|reserved| name.eq_ignore_ascii_case(reserved)) {
        return Err(HandshakeMisuse::ReservedHeader);
    }
    Ok(())
}
