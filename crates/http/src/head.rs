use core::{fmt, str};

use crate::error::HeadError;
use crate::h1::framing::BodyFraming;
use crate::h1::parse::{RequestParts, ResponseParts, parse_request, parse_response};
use crate::limits::HeadLimits;
use crate::lines::{HeaderLine, HeaderSlots};
use crate::owned::OwnedHead;
use crate::text::is_authority;
use crate::version::Version;

/// The head of an HTTP/1.x request, borrowed from its bytes.
///
/// A parsed head has valid framing: a request line in one of the four forms, exactly one `Host` if HTTP/1.1 requires
/// it, and at most one declaration of the body's length.
#[derive(Clone, Copy)]
pub struct RequestHead<'b> {
    bytes: &'b [u8],
    lines: &'b [HeaderLine],
    parts: RequestParts,
    method: &'b str,
    target: &'b str,
    path: &'b str,
    query: Option<&'b str>,
    framing: BodyFraming,
}

impl<'h> RequestHead<'h> {
    /// Parses a head delimited by [`HeadScanner`](crate::HeadScanner). Bytes after the head are allowed and
    /// ignored.
    ///
    /// # Errors
    /// Any [`HeadError`]; an incomplete head is [`HeadError::Syntax`], since the scanner is responsible for
    /// waiting.
    pub fn parse(head: &'h [u8], limits: &HeadLimits, slots: &'h mut HeaderSlots) -> Result<Self, HeadError> {
        let parts = parse_request(head, limits, slots)?;
        Self::new(head, parts, slots.lines())
    }

    /// Checks the meaning of a head whose grammar is valid.
    pub(crate) fn new(
        bytes: &'h [u8],
        parts: RequestParts,
        lines: &'h [HeaderLine],
    ) -> Result<Self, HeadError> {
        let method = method(bytes, parts.method);
        let target = text(bytes, parts.target);
        if !fits_method(target, method) {
            return Err(HeadError::Target);
        }
        let framing = BodyFraming::from_request(parts.version, bytes, lines)?;
        Ok(Self::assemble(bytes, parts, lines, method, target, framing))
    }

    /// Assembles a head from the parts of a valid one.
    pub(crate) fn from_parts(
        bytes: &'h [u8],
        parts: RequestParts,
        lines: &'h [HeaderLine],
        framing: BodyFraming,
    ) -> Self {
        let method = method(bytes, parts.method);
        let target = text(bytes, parts.target);
        Self::assemble(bytes, parts, lines, method, target, framing)
    }

    fn assemble(
        bytes: &'h [u8],
        parts: RequestParts,
        lines: &'h [HeaderLine],
        method: &'h str,
        target: &'h str,
        framing: BodyFraming,
    ) -> Self {
        let (path, query) = split_target(target);
        Self { bytes, lines, parts, method, target, path, query, framing }
    }

    pub(crate) const fn framing(&self) -> BodyFraming {
        self.framing
    }

    /// Copies the head.
    #[must_use]
    pub fn to_owned_head(&self) -> OwnedHead {
        OwnedHead::new(&self.bytes[..self.parts.wire_len], self.parts, self.lines, self.framing)
    }

    /// The method, case-sensitive.
    #[must_use]
    pub const fn method(&self) -> &'h str {
        self.method
    }

    /// The request target, unchanged.
    #[must_use]
    pub const fn target(&self) -> &'h str {
        self.target
    }

    /// The path, percent-encoding untouched; `/` if a target in absolute form has none.
    #[must_use]
    pub const fn path(&self) -> &'h str {
        self.path
    }

    /// The query: the part after the first `?` of the target.
    #[must_use]
    pub const fn query(&self) -> Option<&'h str> {
        self.query
    }

    /// The requested host: the authority of a target in absolute form, else `Host` (RFC 9112 section
    /// 3.2.2).
    #[must_use]
    pub fn authority(&self) -> Option<&'h str> {
        if let Some((authority, _)) = split_absolute(self.target) {
            return Some(authority);
        }
        self.header("host").next().and_then(|host| str::from_utf8(host).ok())
    }

    /// HTTP/1.0 or HTTP/1.1.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.parts.version
    }

    /// All headers in order; values without surrounding spaces.
    pub fn headers(&self) -> impl Iterator<Item = (&'h str, &'h [u8])> + use<'h> {
        headers(self.bytes, self.lines)
    }

    /// The values of all lines with this name, case-insensitive, in order.
    pub fn header<'n>(&self, name: &'n str) -> impl Iterator<Item = &'h [u8]> + use<'h, 'n> {
        named(self.bytes, self.lines, name)
    }

    /// The head's length in bytes, including its empty line.
    #[must_use]
    pub const fn wire_len(&self) -> usize {
        self.parts.wire_len
    }

    /// The body's declared length. A request without one that [is not chunked](Self::is_chunked) has no body (RFC 9112
    /// section 6.3).
    #[must_use]
    pub const fn content_length(&self) -> Option<u64> {
        self.framing.content_length
    }

    /// Whether the body is chunked (RFC 9112 section 7.1).
    #[must_use]
    pub const fn is_chunked(&self) -> bool {
        self.framing.chunked
    }

    /// Whether the client accepts another response on this connection (RFC 9112 section 9.3).
    #[must_use]
    pub const fn keep_alive(&self) -> bool {
        self.framing.keep_alive
    }

    /// Whether the client asks to change to WebSocket. Other protocols in `Upgrade` are ignored, as the whole header is in HTTP/1.0
    /// (RFC 9110 section 7.8).
    #[must_use]
    pub const fn wants_websocket(&self) -> bool {
        self.framing.websocket
    }

    /// Whether the client waits for 100 (Continue) before it sends the body (RFC 9110 section 10.1.1).
    #[must_use]
    pub const fn expects_continue(&self) -> bool {
        self.framing.expects_continue
    }
}

/// The head of an HTTP/1.x response, borrowed from its bytes.
#[derive(Clone, Copy)]
pub struct ResponseHead<'b> {
    bytes: &'b [u8],
    lines: &'b [HeaderLine],
    parts: ResponseParts,
}

impl<'h> ResponseHead<'h> {
    /// Parses a head delimited by [`HeadScanner`](crate::HeadScanner). Bytes after the head are allowed and
    /// ignored.
    ///
    /// # Errors
    /// [`HeadError::Syntax`], [`HeadError::Version`] or [`HeadError::TooManyHeaders`].
    pub fn parse(head: &'h [u8], limits: &HeadLimits, slots: &'h mut HeaderSlots) -> Result<Self, HeadError> {
        let parts = parse_response(head, limits, slots)?;
        if parts.status < 100 {
            return Err(HeadError::Syntax);
        }
        Ok(Self { bytes: head, lines: slots.lines(), parts })
    }

    /// The status code, three digits.
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.parts.status
    }

    /// HTTP/1.0 or HTTP/1.1.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.parts.version
    }

    /// All headers in order; values without surrounding spaces.
    pub fn headers(&self) -> impl Iterator<Item = (&'h str, &'h [u8])> + use<'h> {
        headers(self.bytes, self.lines)
    }

    /// The values of all lines with this name, case-insensitive, in order.
    pub fn header<'n>(&self, name: &'n str) -> impl Iterator<Item = &'h [u8]> + use<'h, 'n> {
        named(self.bytes, self.lines, name)
    }

    /// The head's length in bytes, including its empty line.
    #[must_use]
    pub const fn wire_len(&self) -> usize {
        self.parts.wire_len
    }
}

impl fmt::Debug for RequestHead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("RequestHead");
        out.field("method", &self.method).field("target", &self.target).field("version", &self.version());
        out.finish_non_exhaustive()
    }
}

impl fmt::Debug for ResponseHead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseHead").field("status", &self.status()).finish_non_exhaustive()
    }
}

fn headers<'h>(
    bytes: &'h [u8],
    lines: &'h [HeaderLine],
) -> impl Iterator<Item = (&'h str, &'h [u8])> + use<'h> {
    // A name is a token, which is ASCII.
    lines.iter().map(|line| (str::from_utf8(line.name(bytes)).unwrap_or_default(), line.value(bytes)))
}

fn named<'h, 'n>(
    bytes: &'h [u8],
    lines: &'h [HeaderLine],
    name: &'n str,
) -> impl Iterator<Item = &'h [u8]> + use<'h, 'n> {
    lines.iter().filter_map(move |line| line.value_of(bytes, name))
}

/// Returns a method. Common methods need no validation of their text.
fn method(bytes: &[u8], range: [usize; 2]) -> &str {
    match &bytes[range[0]..range[1]] {
        b"GET" => "GET",
        b"POST" => "POST",
        _ => text(bytes, range),
    }
}

/// Returns a method or a target, which are ASCII.
fn text(bytes: &[u8], [start, end]: [usize; 2]) -> &str {
    str::from_utf8(&bytes[start..end]).unwrap_or_default()
}

/// Checks the four forms in RFC 9112 section 3.2, each with its methods.
fn fits_method(target: &str, method: &str) -> bool {
    match method {
        "CONNECT" => names_a_port(target),
        "OPTIONS" if target == "*" => true,
        _ => target.starts_with('/') || split_absolute(target).is_some(),
    }
}

/// Splits a target into path and query.
fn split_target(target: &str) -> (&str, Option<&str>) {
    let origin_form = match split_absolute(target) {
        Some((_, rest)) => rest,
        None => target,
    };
    match origin_form.bytes().position(|byte| byte == b'?') {
        Some(0) => ("/", Some(&origin_form[1..])),
        Some(at) => (&origin_form[..at], Some(&origin_form[at + 1..])),
        None if origin_form.is_empty() => ("/", None),
        None => (origin_form, None),
    }
}

/// Splits a target in absolute form into authority and rest.
fn split_absolute(target: &str) -> Option<(&str, &str)> {
    if target.starts_with('/') {
        return None;
    }
    let (scheme, rest) = target.split_once("://")?;
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return None;
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    // A URL without a host is invalid (RFC 9110 section 4.2.1).
    let has_host = !authority.is_empty() && !authority.starts_with(':');
    (has_host && is_authority(authority.as_bytes())).then_some((authority, rest))
}

/// Whether a target in authority form has a host and a port (RFC 9110 section 9.3.6).
fn names_a_port(target: &str) -> bool {
    let is_whole = target.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
    });
    is_whole && is_authority(target.as_bytes())
}
