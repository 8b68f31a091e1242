use alloc::borrow::{Cow, ToOwned as _};
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;
use core::{fmt, str};

use super::headers::{HANDSHAKE_HEADERS, VERSION};
use super::key::{KeyText, accept_text, key_text};
use super::refusal::{FRAMING_HEADERS, check_header};
use super::{HandshakeMisuse, Negotiated, Role, deflate, subprotocol};
use crate::Time;
use crate::deflate::{DeflateConfig, DeflateSetup};
use crate::http::{HeadError, HeadLimits, HeadScanner, HeaderSlots, ResponseHead, Version};
use sinews_http::text::{is_authority, is_target, lists_token, push_header};

/// The request of a client, without its key.
///
/// ```
/// use sinews_proto::deflate::DeflateConfig;
/// use sinews_proto::handshake::ClientRequest;
///
/// let request = ClientRequest::new("example.com:8080", "/chat?room=7")?
///     .with_subprotocol("v1.chat")?
///     .with_deflate(DeflateConfig::new())
///     .with_header("Authorization", "Bearer 1234")?;
/// assert!(ClientRequest::new("example.com", "/a\r\nX: y").is_err());
/// # Ok::<(), sinews_proto::handshake::HandshakeMisuse>(())
/// ```
#[derive(Clone, Debug)]
pub struct ClientRequest {
    pub(super) host: String,
    pub(super) path: String,
    subprotocols: Vec<String>,
    pub(super) headers: Vec<(String, String)>,
    deflate: Option<DeflateConfig>,
    limits: HeadLimits,
    timeout: Duration,
}

impl ClientRequest {
    /// Creates a request to a host, `host` or `host:port` (without the port if it is the default of the
    /// scheme, RFC 6455 section 4.1), for a path, including the query.
    ///
    /// # Errors
    /// [`HandshakeMisuse::Host`] and [`HandshakeMisuse::Path`] for values that may not be on the wire.
    pub fn new(host: impl Into<String>, path: impl Into<String>) -> Result<Self, HandshakeMisuse> {
        let (host, path) = (host.into(), path.into());
        if host.is_empty() || !is_authority(host.as_bytes()) {
            return Err(HandshakeMisuse::Host);
        }
        if !path.starts_with('/') || !is_target(path.as_bytes()) {
            return Err(HandshakeMisuse::Path);
        }
        Ok(Self {
            host,
            path,
            subprotocols: Vec::new(),
            headers: Vec::new(),
            deflate: None,
            limits: HeadLimits::new(),
            timeout: Duration::from_secs(10),
        })
    }

    /// Offers a subprotocol, with lower preference than earlier ones.
    ///
    /// # Errors
    /// [`HandshakeMisuse::Subprotocol`] if it is not a token, [`HandshakeMisuse::SubprotocolList`] if it is
    /// a duplicate or exceeds the limit.
    pub fn with_subprotocol(mut self, name: impl Into<String>) -> Result<Self, HandshakeMisuse> {
        subprotocol::add(&mut self.subprotocols, name.into())?;
        Ok(self)
    }

    /// Offers permessage-deflate (RFC 7692). Default: off, since compression costs more time than it saves
    /// for small messages or on a fast network.
    #[must_use]
    pub const fn with_deflate(mut self, config: DeflateConfig) -> Self {
        self.deflate = Some(config);
        self
    }

    /// Adds a header, such as `Origin`, `Cookie` or `Authorization`.
    ///
    /// # Errors
    /// [`HandshakeMisuse::HeaderName`], [`HandshakeMisuse::HeaderValue`], or
    /// [`HandshakeMisuse::ReservedHeader`] for headers that the handshake writes itself.
    pub fn with_header(
        mut self,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> Result<Self, HandshakeMisuse> {
        let (name, value) = (name.into(), value.into());
        check_header(&name, &value, &FRAMING_HEADERS)?;
        check_header(&name, &value, &HANDSHAKE_HEADERS)?;
        self.headers.push((name, value));
        Ok(self)
    }

    /// Limits of the response, including interim responses. Default: [`HeadLimits::new`].
    #[must_use]
    pub const fn with_response_limits(mut self, limits: HeadLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Timeout for the complete response, after [`start_at`](Self::start_at). Default 10 s, like the
    /// timeout of a server for the request head: both are a few packets.
    #[must_use]
    pub const fn with_timeout(mut self, wait: Duration) -> Self {
        self.timeout = wait;
        self
    }

    /// Starts the handshake. The key must be 16 random bytes, new for each connection (RFC 6455 section
    /// 4.1). The caller enforces the timeout; [`start_at`](Self::start_at) does so itself.
    #[must_use]
    pub fn start(self, key: [u8; 16]) -> ClientHandshake {
        let scanner = HeadScanner::new();
        ClientHandshake { request: self, key: key_text(key), scanner, interim: 0, deadline: None }
    }

    /// Starts the handshake like [`start`](Self::start), with a [deadline](ClientHandshake::deadline).
    #[must_use]
    pub fn start_at(self, key: [u8; 16], now: Time) -> ClientHandshake {
        let deadline = Some(now + self.timeout);
        ClientHandshake { deadline, ..self.start(key) }
    }

    /// The headers that negotiate, and those that were added.
    pub(super) fn offers(&self) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
        let subprotocols = (!self.subprotocols.is_empty()).then(|| self.subprotocols.join(", ").into());
        let deflate = self.deflate.as_ref().map(|config| deflate::offer(config).into());
        let added = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str().into()));
        let version = [("Sec-WebSocket-Version", VERSION.into())].into_iter();
        version
            .chain(subprotocols.map(|names| ("Sec-WebSocket-Protocol", names)))
            .chain(deflate.map(|offer| ("Sec-WebSocket-Extensions", offer)))
            .chain(added)
    }

    /// Checks the server's choices: the `Sec-WebSocket-Protocol` and `Sec-WebSocket-Extensions` lines.
    pub(super) fn negotiate(
        &self,
        subprotocol: ResponseLines<'_>,
        extensions: ResponseLines<'_>,
        consumed: usize,
    ) -> Result<Established, ClientError> {
        let subprotocol = match subprotocol {
            ResponseLines::None => None,
            ResponseLines::One(chosen) => {
                let mut offers = self.subprotocols.iter();
                let offered = offers.find(|offer| offer.as_bytes() == chosen);
                Some(offered.ok_or(ClientError::Subprotocol)?.clone())
            }
            ResponseLines::Several => return Err(ClientError::Subprotocol),
        };
        let deflate = match extensions {
            ResponseLines::None => None,
            // One line in a response (RFC 6455 section 11.3.2).
            ResponseLines::One(line) => Some(self.offered_deflate(line).ok_or(ClientError::Extensions)?),
            ResponseLines::Several => return Err(ClientError::Extensions),
        };
        Ok(Established { consumed, subprotocol, negotiated: Negotiated::new(Role::Client, deflate) })
    }

    fn offered_deflate(&self, line: &[u8]) -> Option<DeflateSetup> {
        let config = self.deflate.as_ref();
        let params = deflate::check([line].into_iter(), config).ok()?;
        config.map(|config| DeflateSetup::new(Role::Client, params, config))
    }
}

/// A handshake that waits for the response of the server.
#[derive(Clone, Debug)]
pub struct ClientHandshake {
    request: ClientRequest,
    key: KeyText,
    scanner: HeadScanner,
    /// Bytes of interim responses before the final response.
    interim: usize,
    deadline: Option<Time>,
}

impl ClientHandshake {
    /// Time at which to call [`handle_timeout`](Self::handle_timeout); `None`: never. It is fixed: slowly
    /// arriving bytes do not extend it.
    #[must_use]
    pub const fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Fails the handshake if its timeout has expired at `now`.
    ///
    /// # Errors
    /// [`ClientError::TimedOut`]; the transport must then be closed.
    pub fn handle_timeout(&self, now: Time) -> Result<(), ClientError> {
        match self.deadline {
            Some(deadline) if deadline <= now => Err(ClientError::TimedOut),
            _ => Ok(()),
        }
    }

    /// Appends the complete request.
    pub fn write_request(&self, out: &mut Vec<u8>) {
        let request = &self.request;
        for part in ["GET ", &request.path, " HTTP/1.1\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
        push_header(out, "Host", &request.host);
        push_header(out, "Upgrade", "websocket");
        push_header(out, "Connection", "Upgrade");
        // Base64 is ASCII.
        push_header(out, "Sec-WebSocket-Key", str::from_utf8(&self.key).expect("base64 is ASCII"));
        for (name, value) in request.offers() {
            push_header(out, name, &value);
        }
        out.extend_from_slice(b"\r\n");
    }

    /// Reads the response. `received` begins with the first byte of the server at each call, and only added
    /// bytes are examined. Bytes after the head, which may already be frames, are ignored:
    /// [`Established::consumed`] is their offset.
    ///
    /// Interim responses are skipped (RFC 9110 section 15.2). Redirects are not followed.
    ///
    /// # Errors
    /// Any [`ClientError`]; the transport must then be closed.
    pub fn read_response(&mut self, received: &[u8]) -> Result<ClientStep, ClientError> {
        loop {
            // Interim responses count towards the limit, so their number is bounded.
            let limits = self.request.limits;
            let left = limits.max_bytes().saturating_sub(self.interim);
            let left = limits.with_max_bytes(u32::try_from(left).unwrap_or(u32::MAX));
            let response = received.get(self.interim..).unwrap_or_default();
            let Some(len) = self.scanner.scan(response, &left)? else {
                return Ok(ClientStep::NeedMore);
            };
            let mut slots = HeaderSlots::new();
            let head = ResponseHead::parse(&response[..len], &limits, &mut slots)?;
            match head.status() {
                101 => return self.check(&head, self.interim + len).map(ClientStep::Done),
                100..=199 => self.interim += len,
                _ => return Err(ClientError::Status(Rejection::new(&head, &response[len..]))),
            }
        }
    }

    /// Checks the list at the end of RFC 6455 section 4.1.
    fn check(&self, head: &ResponseHead<'_>, consumed: usize) -> Result<Established, ClientError> {
        if head.version() != Version::Http11 {
            return Err(ClientError::Version);
        }
        let is_websocket = |value: &[u8]| value.eq_ignore_ascii_case(b"websocket");
        if !only(head.header("upgrade")).is(is_websocket) {
            return Err(ClientError::Upgrade);
        }
        if !lists_token(head.header("connection"), "upgrade") {
            return Err(ClientError::Connection);
        }
        if !only(head.header("sec-websocket-accept")).is(|value| value == accept_text(&self.key)) {
            return Err(ClientError::Accept);
        }
        let subprotocol = only(head.header("sec-websocket-protocol"));
        self.request.negotiate(subprotocol, only(head.header("sec-websocket-extensions")), consumed)
    }
}

/// The lines of one header in a response.
#[derive(Clone, Copy, Default)]
pub(super) enum ResponseLines<'h> {
    #[default]
    None,
    One(&'h [u8]),
    Several,
}

impl<'h> ResponseLines<'h> {
    pub(super) fn add(&mut self, value: &'h [u8]) {
        *self = match self {
            Self::None => Self::One(value),
            Self::One(_) | Self::Several => Self::Several,
        };
    }

    fn is(&self, expected: impl FnOnce(&[u8]) -> bool) -> bool {
        matches!(self, Self::One(value) if expected(value))
    }
}

fn only<'h>(values: impl Iterator<Item = &'h [u8]>) -> ResponseLines<'h> {
    let mut lines = ResponseLines::None;
    values.for_each(|value| lines.add(value));
    lines
}

/// Progress of the handshake.
#[derive(Clone, Debug)]
#[allow(clippy::exhaustive_enums, reason = "a wait or an end")]
pub enum ClientStep {
    /// The head is incomplete: call again with more bytes after the same bytes.
    NeedMore,
    /// The server accepted.
    Done(Established),
}

/// A successful handshake.
#[derive(Clone, Debug)]
pub struct Established {
    consumed: usize,
    subprotocol: Option<String>,
    negotiated: Negotiated,
}

impl Established {
    /// Length of the response in bytes; later bytes belong to the connection. 0 for a response to
    /// [`ExtendedConnect`](super::ExtendedConnect), whose stream has no others.
    #[must_use]
    pub const fn consumed(&self) -> usize {
        self.consumed
    }

    /// The negotiated parameters for [`Connection::new`](crate::Connection::new).
    #[must_use]
    pub const fn negotiated(&self) -> Negotiated {
        self.negotiated
    }

    /// The subprotocol that the server chose from the offer. A browser fails the connection if the server
    /// chooses none of the offered subprotocols; here the application decides.
    #[must_use]
    pub fn subprotocol(&self) -> Option<&str> {
        self.subprotocol.as_deref()
    }
}

/// The reason for a failed handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientError {
    /// The response is not a head of HTTP/1.x, or exceeds the
    /// [limits](ClientRequest::with_response_limits).
    Head(HeadError),
    /// No complete response arrived within [`ClientRequest::with_timeout`].
    TimedOut,
    /// The server answered with a status other than 101, or 2xx for
    /// [`ExtendedConnect`](super::ExtendedConnect): a rejection, or a redirect.
    Status(Rejection),
    /// A 101 over HTTP/1.0, which does not define it.
    Version,
    /// `Upgrade` is not exactly one `websocket`.
    Upgrade,
    /// `Connection` does not contain `Upgrade`.
    Connection,
    /// `Sec-WebSocket-Accept` is not exactly one answer to the key: not a WebSocket server, or a cache.
    Accept,
    /// A subprotocol that was not offered, or several.
    Subprotocol,
    /// An extension that was not offered, or with parameters that the offer does not allow or that this end
    /// cannot support.
    Extensions,
    /// A 2xx for [`ExtendedConnect`](super::ExtendedConnect) that declares content, or ends the stream: the server
    /// answered it as a request of another kind.
    Content,
}

impl From<HeadError> for ClientError {
    fn from(error: HeadError) -> Self {
        Self::Head(error)
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Head(error) => return write!(f, "bad response: {error}"),
            Self::Status(rejection) => {
                return write!(f, "the server answered with status {}", rejection.status);
            }
            Self::TimedOut => "no complete handshake response within the timeout",
            Self::Version => "101 over HTTP/1.0",
            Self::Upgrade => "Upgrade in the response is not websocket",
            Self::Connection => "Connection in the response does not name Upgrade",
            Self::Accept => "Sec-WebSocket-Accept does not match the key",
            Self::Subprotocol => "the server chose a subprotocol that was not offered",
            Self::Extensions => "the server chose extensions or parameters that were not offered",
            Self::Content => {
                "the server answered 2xx with content or with the end of the stream, not with a WebSocket"
            }
        };
        f.write_str(text)
    }
}

impl core::error::Error for ClientError {}

/// A response with a status other than 101.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, Vec<u8>)>,
    pub(super) body: Vec<u8>,
}

impl Rejection {
    fn new(head: &ResponseHead<'_>, body: &[u8]) -> Self {
        let headers = head.headers().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self { status: head.status(), headers, body: body.to_owned() }
    }

    /// The status code.
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// All headers in order; values without surrounding spaces.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.as_slice()))
    }

    /// The value of the first line with this name, case-insensitive: `location`, `www-authenticate`.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The part of the body that was received with the head, unchanged (`Transfer-Encoding` is not
    /// decoded). More may follow on the transport.
    #[must_use]
    pub fn body_start(&self) -> &[u8] {
        &self.body
    }
}
