use alloc::borrow::ToOwned as _;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;
use core::{fmt, str};

use super::key::{KeyText, accept_text, key_text};
use super::refusal::{FRAMING_HEADERS, check_header};
use super::server::HANDSHAKE_HEADERS;
use super::{HandshakeMisuse, Negotiated, Role, VERSION, deflate, subprotocol};
use crate::Time;
use crate::deflate::{DeflateConfig, DeflateSetup};
use crate::http::text::{is_authority, is_target, lists_token, push_header};
use crate::http::{HeadError, HeadLimits, HeadScanner, HeaderSlots, ResponseHead, Version};

/// The request of a client, everything but its key.
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
    host: String,
    path: String,
    subprotocols: Vec<String>,
    headers: Vec<(String, String)>,
    deflate: Option<DeflateConfig>,
    limits: HeadLimits,
    timeout: Duration,
}

impl ClientRequest {
    /// A request to this host, `host` or `host:port` (without the port if it is the default of the
    /// scheme, RFC 6455 section 4.1), for this path, query included.
    ///
    /// # Errors
    /// [`HandshakeMisuse::Host`] and [`HandshakeMisuse::Path`] for what may not be on the wire.
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

    /// Offers a subprotocol, behind those added before in preference.
    ///
    /// # Errors
    /// [`HandshakeMisuse::Subprotocol`] if it is no token, [`HandshakeMisuse::SubprotocolList`] if it is
    /// there already or one too many.
    pub fn with_subprotocol(mut self, name: impl Into<String>) -> Result<Self, HandshakeMisuse> {
        subprotocol::add(&mut self.subprotocols, name.into())?;
        Ok(self)
    }

    /// Offers permessage-deflate (RFC 7692). Default: not, since compression costs more time than it
    /// saves where messages are small or the network is near.
    #[must_use]
    pub const fn with_deflate(mut self, config: DeflateConfig) -> Self {
        self.deflate = Some(config);
        self
    }

    /// Adds a header, such as `Origin`, `Cookie` or `Authorization`.
    ///
    /// # Errors
    /// [`HandshakeMisuse::HeaderName`], [`HandshakeMisuse::HeaderValue`], or
    /// [`HandshakeMisuse::ReservedHeader`] for those that the handshake writes itself.
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

    /// What the response may cost us, interim responses included. Default: [`HeadLimits::new`].
    #[must_use]
    pub const fn with_response_limits(mut self, limits: HeadLimits) -> Self {
        self.limits = limits;
        self
    }

    /// How long the whole answer may take to come, after [`start_at`](Self::start_at). Default 10 s, as a server
    /// waits for our head: both are a few packets.
    #[must_use]
    pub const fn with_timeout(mut self, wait: Duration) -> Self {
        self.timeout = wait;
        self
    }

    /// Begins the handshake. The key must be 16 random bytes, new for each connection
    /// (RFC 6455 section 4.1). The caller bounds the wait; [`start_at`](Self::start_at) does it by itself.
    #[must_use]
    pub fn start(self, key: [u8; 16]) -> ClientHandshake {
        let scanner = HeadScanner::new();
        ClientHandshake { request: self, key: key_text(key), scanner, interim: 0, deadline: None }
    }

    /// Begins the handshake as [`start`](Self::start) does, with a
    /// [deadline](ClientHandshake::deadline).
    #[must_use]
    pub fn start_at(self, key: [u8; 16], now: Time) -> ClientHandshake {
        let deadline = Some(now + self.timeout);
        ClientHandshake { deadline, ..self.start(key) }
    }
}

/// A handshake that waits for the answer of the server.
#[derive(Clone, Debug)]
pub struct ClientHandshake {
    request: ClientRequest,
    key: KeyText,
    scanner: HeadScanner,
    /// Bytes of interim responses before the one that counts.
    interim: usize,
    deadline: Option<Time>,
}

impl ClientHandshake {
    /// When [`handle_timeout`](Self::handle_timeout) wants to be called; `None`: never. It does not move: a drip
    /// of bytes gains no time.
    #[must_use]
    pub const fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Ends the wait if it is over at `now`.
    ///
    /// # Errors
    /// [`ClientError::TimedOut`]; the transport is to be closed then.
    pub fn handle_timeout(&self, now: Time) -> Result<(), ClientError> {
        match self.deadline {
            Some(deadline) if deadline <= now => Err(ClientError::TimedOut),
            _ => Ok(()),
        }
    }

    /// Appends the whole request.
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
        push_header(out, "Sec-WebSocket-Version", VERSION);
        if !request.subprotocols.is_empty() {
            push_header(out, "Sec-WebSocket-Protocol", &request.subprotocols.join(", "));
        }
        if let Some(config) = &request.deflate {
            push_header(out, "Sec-WebSocket-Extensions", &deflate::offer(config));
        }
        for (name, value) in &request.headers {
            push_header(out, name, value);
        }
        out.extend_from_slice(b"\r\n");
    }

    /// Reads the answer. `received` begins with the first byte that the server sent, at each call, and
    /// only what was added is looked at. Bytes behind the head, which may be frames already, are left:
    /// [`Established::consumed`] says where they begin.
    ///
    /// Interim responses are passed over (RFC 9110 section 15.2). Redirects are not followed.
    ///
    /// # Errors
    /// Any [`ClientError`]; the transport is to be closed then.
    pub fn read_response(&mut self, received: &[u8]) -> Result<ClientStep, ClientError> {
        loop {
            // What interim responses took is gone from the limit, so that there is an end to them.
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

    /// RFC 6455 section 4.1, the list at its end.
    fn check(&self, head: &ResponseHead<'_>, consumed: usize) -> Result<Established, ClientError> {
        if head.version() != Version::Http11 {
            return Err(ClientError::Version);
        }
        if !only(head, "upgrade").is_some_and(|value| value.eq_ignore_ascii_case(b"websocket")) {
            return Err(ClientError::Upgrade);
        }
        if !lists_token(head.header("connection"), "upgrade") {
            return Err(ClientError::Connection);
        }
        if only(head, "sec-websocket-accept") != Some(&accept_text(&self.key)) {
            return Err(ClientError::Accept);
        }
        let subprotocol = match head.header("sec-websocket-protocol").next() {
            None => None,
            Some(_) => Some(self.offered_subprotocol(head).ok_or(ClientError::Subprotocol)?.to_owned()),
        };
        let deflate = match head.header("sec-websocket-extensions").next() {
            None => None,
            Some(_) => Some(self.offered_deflate(head).ok_or(ClientError::Extensions)?),
        };
        Ok(Established { consumed, subprotocol, negotiated: Negotiated::new(Role::Client, deflate) })
    }

    fn offered_subprotocol(&self, head: &ResponseHead<'_>) -> Option<&str> {
        let chosen = only(head, "sec-websocket-protocol")?;
        self.request.subprotocols.iter().map(String::as_str).find(|offer| offer.as_bytes() == chosen)
    }

    fn offered_deflate(&self, head: &ResponseHead<'_>) -> Option<DeflateSetup> {
        // One line in an answer (RFC 6455 section 11.3.2).
        let line = only(head, "sec-websocket-extensions")?;
        let config = self.request.deflate.as_ref();
        let params = deflate::check([line].into_iter(), config).ok()?;
        config.map(|config| DeflateSetup::new(Role::Client, params, config))
    }
}

fn only<'h>(head: &ResponseHead<'h>, name: &str) -> Option<&'h [u8]> {
    let mut values = head.header(name);
    let first = values.next()?;
    values.next().is_none().then_some(first)
}

/// How far the handshake is.
#[derive(Clone, Debug)]
#[allow(clippy::exhaustive_enums, reason = "a wait or an end")]
pub enum ClientStep {
    /// The head is not complete: call again with more behind the same bytes.
    NeedMore,
    /// The server agreed.
    Done(Established),
}

/// A handshake that succeeded.
#[derive(Clone, Debug)]
pub struct Established {
    consumed: usize,
    subprotocol: Option<String>,
    negotiated: Negotiated,
}

impl Established {
    /// Bytes of the answer. What was received behind them belongs to the connection.
    #[must_use]
    pub const fn consumed(&self) -> usize {
        self.consumed
    }

    /// What was agreed on: the ticket into a connection.
    #[must_use]
    pub const fn negotiated(&self) -> Negotiated {
        self.negotiated
    }

    /// The subprotocol that the server chose among those offered. A browser fails the connection if it
    /// offered some and none was chosen; here that is for the application to say.
    #[must_use]
    pub fn subprotocol(&self) -> Option<&str> {
        self.subprotocol.as_deref()
    }
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientError {
    /// The answer is not a head of HTTP/1.x, or larger than the
    /// [limits](ClientRequest::with_response_limits).
    Head(HeadError),
    /// No whole answer came within [`ClientRequest::with_timeout`].
    TimedOut,
    /// The server answered with another status than 101: a refusal, or a redirect.
    Status(Rejection),
    /// A 101 over HTTP/1.0, which has no such status.
    Version,
    /// `Upgrade` is not `websocket`, exactly once.
    Upgrade,
    /// `Connection` does not name `Upgrade`.
    Connection,
    /// `Sec-WebSocket-Accept` is not the answer to our key, exactly once: no WebSocket server, or a cache.
    Accept,
    /// A subprotocol that was not offered, or several.
    Subprotocol,
    /// An extension that was not offered, or with parameters that the offer does not allow or that we
    /// cannot meet.
    Extensions,
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
            Self::TimedOut => "no answer to the handshake in time",
            Self::Version => "101 over HTTP/1.0",
            Self::Upgrade => "Upgrade in the response is not websocket",
            Self::Connection => "Connection in the response does not name Upgrade",
            Self::Accept => "Sec-WebSocket-Accept does not match the key",
            Self::Subprotocol => "the server chose a subprotocol that was not offered",
            Self::Extensions => "the server chose extensions that were not offered so",
        };
        f.write_str(text)
    }
}

impl core::error::Error for ClientError {}

/// An answer with another status than 101.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    status: u16,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
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

    /// All headers in order; values without the spaces around them.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.as_slice()))
    }

    /// The value of the first line with this name, in any case: `location`, `www-authenticate`.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// What has come of the body with the end of the head, as it was sent (`Transfer-Encoding` is not
    /// undone). More may follow on the transport.
    #[must_use]
    pub fn body_start(&self) -> &[u8] {
        &self.body
    }
}
