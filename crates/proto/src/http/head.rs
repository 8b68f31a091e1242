use core::str;

use super::framing::Framing;
use super::text::{is_authority, is_target};
use super::{HeadError, HeadLimits, Version};

/// Header slots for one head, on the caller's stack. Pipelined heads in the same buffer can use them one
/// after the other.
#[derive(Debug)]
pub struct HeaderSlots<'b> {
    slots: [httparse::Header<'b>; HeadLimits::HEADERS_MAX],
}

impl HeaderSlots<'_> {
    /// Empty slots.
    #[must_use]
    pub const fn new() -> Self {
        Self { slots: [httparse::EMPTY_HEADER; HeadLimits::HEADERS_MAX] }
    }
}

impl Default for HeaderSlots<'_> {
    fn default() -> Self {
        Self::new()
    }
}

/// The head of an HTTP/1.x request, borrowed from its bytes.
///
/// The framing of a parsed head is valid: a request line in one of the four forms, exactly one `Host` if
/// HTTP/1.1 requires it, and at most one declaration of the body's length.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'b> {
    method: &'b str,
    target: &'b str,
    version: Version,
    headers: &'b [httparse::Header<'b>],
    framing: Framing,
    wire_len: usize,
}

impl<'h> RequestHead<'h> {
    /// Parses a head delimited by [`HeadScanner`](super::HeadScanner). Bytes after the head are allowed and
    /// ignored.
    ///
    /// # Errors
    /// Any [`HeadError`]; an incomplete head is [`HeadError::Syntax`], since the scanner is responsible for
    /// waiting.
    pub fn parse<'b: 'h>(
        head: &'b [u8],
        limits: &HeadLimits,
        slots: &'h mut HeaderSlots<'b>,
    ) -> Result<Self, HeadError> {
        if is_empty(head) {
            return Err(HeadError::Syntax);
        }
        let mut request = httparse::Request::new(&mut slots.slots[..limits.max_headers()]);
        let wire_len = match request.parse(head) {
            Ok(httparse::Status::Complete(len)) => len,
            Ok(httparse::Status::Partial) => return Err(HeadError::Syntax),
            Err(httparse::Error::Version) if !names_a_version(head) => return Err(HeadError::Syntax),
            Err(error) => return Err(error.into()),
        };
        let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version)
        else {
            return Err(HeadError::Syntax);
        };
        if !fits_method(target, method) {
            return Err(HeadError::Target);
        }
        let version = version(minor);
        let headers: &[httparse::Header<'_>] = request.headers;
        let framing = Framing::of_request(version, headers)?;
        Ok(Self { method, target, version, headers, framing, wire_len })
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
    pub fn path(&self) -> &'h str {
        let target = self.origin_form();
        let path = target.split_once('?').map_or(target, |(path, _)| path);
        if path.is_empty() { "/" } else { path }
    }

    /// The query: the part after the first `?` of the target.
    #[must_use]
    pub fn query(&self) -> Option<&'h str> {
        self.origin_form().split_once('?').map(|(_, query)| query)
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
        self.version
    }

    /// All headers in order; values without surrounding spaces.
    pub fn headers(&self) -> impl Iterator<Item = (&'h str, &'h [u8])> + use<'h> {
        self.headers.iter().map(|header| (header.name, header.value))
    }

    /// The values of all lines with this name, case-insensitive, in order.
    pub fn header<'n>(&self, name: &'n str) -> impl Iterator<Item = &'h [u8]> + use<'h, 'n> {
        named(self.headers, name)
    }

    /// Length of the head in bytes, including its empty line.
    #[must_use]
    pub const fn wire_len(&self) -> usize {
        self.wire_len
    }

    /// The declared length of the body. A request without one that [is not chunked](Self::is_chunked) has
    /// no body (RFC 9112 section 6.3).
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

    fn origin_form(&self) -> &'h str {
        split_absolute(self.target).map_or(self.target, |(_, rest)| rest)
    }
}

/// The head of an HTTP/1.x response, borrowed from its bytes.
#[derive(Clone, Copy, Debug)]
pub struct ResponseHead<'b> {
    status: u16,
    version: Version,
    headers: &'b [httparse::Header<'b>],
    wire_len: usize,
}

impl<'h> ResponseHead<'h> {
    /// Parses a head delimited by [`HeadScanner`](super::HeadScanner). Bytes after the head are allowed and
    /// ignored.
    ///
    /// # Errors
    /// [`HeadError::Syntax`], [`HeadError::Version`] or [`HeadError::TooManyHeaders`].
    pub fn parse<'b: 'h>(
        head: &'b [u8],
        limits: &HeadLimits,
        slots: &'h mut HeaderSlots<'b>,
    ) -> Result<Self, HeadError> {
        if is_empty(head) {
            return Err(HeadError::Syntax);
        }
        let mut response = httparse::Response::new(&mut slots.slots[..limits.max_headers()]);
        let httparse::Status::Complete(wire_len) = response.parse(head)? else {
            return Err(HeadError::Syntax);
        };
        let (Some(status @ 100..=999), Some(minor)) = (response.code, response.version) else {
            return Err(HeadError::Syntax);
        };
        Ok(Self { status, version: version(minor), headers: response.headers, wire_len })
    }

    /// The status code, three digits.
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// HTTP/1.0 or HTTP/1.1.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// All headers in order; values without surrounding spaces.
    pub fn headers(&self) -> impl Iterator<Item = (&'h str, &'h [u8])> + use<'h> {
        self.headers.iter().map(|header| (header.name, header.value))
    }

    /// The values of all lines with this name, case-insensitive, in order.
    pub fn header<'n>(&self, name: &'n str) -> impl Iterator<Item = &'h [u8]> + use<'h, 'n> {
        named(self.headers, name)
    }

    /// Length of the head in bytes, including its empty line.
    #[must_use]
    pub const fn wire_len(&self) -> usize {
        self.wire_len
    }
}

/// Whether the head consists of empty lines. The parser skips any number of them and would continue with
/// the bytes after the head.
fn is_empty(head: &[u8]) -> bool {
    head.starts_with(b"\r\n\r\n")
}

fn named<'h, 'n>(
    headers: &'h [httparse::Header<'h>],
    name: &'n str,
) -> impl Iterator<Item = &'h [u8]> + use<'h, 'n> {
    headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
}

const fn version(minor: u8) -> Version {
    if minor == 0 { Version::Http10 } else { Version::Http11 }
}

/// Checks the four forms of RFC 9112 section 3.2, each with its methods.
fn fits_method(target: &str, method: &str) -> bool {
    if !is_target(target.as_bytes()) {
        return false;
    }
    match method {
        "CONNECT" => names_a_port(target),
        "OPTIONS" if target == "*" => true,
        _ => target.starts_with('/') || split_absolute(target).is_some(),
    }
}

/// Splits a target in absolute form into authority and rest.
fn split_absolute(target: &str) -> Option<(&str, &str)> {
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

/// Distinguishes a request line of another version (505) from an invalid line (400).
fn names_a_version(head: &[u8]) -> bool {
    let head = head.strip_prefix(b"\r\n").unwrap_or(head);
    let line = head.split(|&byte| byte == b'\r').next().unwrap_or(head);
    let mut words = line.split(|&byte| byte == b' ');
    let (Some([_, ..]), Some([_, ..]), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return false;
    };
    matches!(version, [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
        if major.is_ascii_digit() && minor.is_ascii_digit())
}
