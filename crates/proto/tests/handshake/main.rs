//! Black-box tests of the opening handshake: each rule of RFC 6455 section 4, RFC 7692 section 7 and of the
//! underlying HTTP is a test.

mod client;
mod deflate;
mod heads;
mod origin;
mod properties;
mod server;

use sinews_proto::handshake::{Accepted, Refusal, RequestView, ServerOptions, accept};
use sinews_proto::http::{HeadError, HeadLimits, HeadScanner, HeaderSlots, RequestHead, Version};

/// The request of RFC 6455 section 1.2, modified line by line.
#[derive(Clone)]
pub(crate) struct Lines(Vec<String>);

impl Lines {
    pub(crate) fn new() -> Self {
        Self::of(&[
            "GET /chat HTTP/1.1",
            "Host: server.example.com",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Version: 13",
        ])
    }

    pub(crate) fn of(lines: &[&str]) -> Self {
        Self(lines.iter().map(|&line| line.to_owned()).collect())
    }

    pub(crate) fn with(mut self, line: &str) -> Self {
        self.0.push(line.to_owned());
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.0.retain(|line| !line.starts_with(&format!("{name}:")));
        self
    }

    pub(crate) fn replace(self, name: &str, value: &str) -> Self {
        self.without(name).with(&format!("{name}: {value}"))
    }

    pub(crate) fn first(mut self, line: &str) -> Self {
        self.0[0] = line.to_owned();
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0
            .iter()
            .map(|line| format!("{line}\r\n"))
            .collect::<String>()
            .into_bytes()
            .into_iter()
            .chain(*b"\r\n")
            .collect()
    }

    /// Scans, parses and decides like the server.
    pub(crate) fn accept(&self, options: &ServerOptions) -> Result<Accepted, Refusal> {
        let bytes = self.bytes();
        with_head(&bytes, |head| accept(head, options))?
    }

    pub(crate) fn status(&self) -> u16 {
        self.accept(&ServerOptions::new())
            .map_or_else(|refusal| refusal.status(), |accepted| accepted.status())
    }
}

pub(crate) fn with_head<T>(bytes: &[u8], look: impl FnOnce(&RequestHead<'_>) -> T) -> Result<T, HeadError> {
    let limits = HeadLimits::new();
    let end = HeadScanner::new().scan(bytes, &limits)?.ok_or(HeadError::Syntax)?;
    let mut slots = HeaderSlots::new();
    RequestHead::parse(&bytes[..end], &limits, &mut slots).map(|head| look(&head))
}

/// A request as represented by another HTTP stack.
pub(crate) struct ForeignRequest {
    pub(crate) method: &'static str,
    pub(crate) version: Version,
    pub(crate) protocol: Option<&'static str>,
    pub(crate) authority: Option<&'static str>,
    pub(crate) headers: Vec<(&'static str, &'static str)>,
}

impl ForeignRequest {
    pub(crate) fn extended_connect() -> Self {
        Self {
            method: "CONNECT",
            version: Version::Http2,
            protocol: Some("websocket"),
            authority: Some("server.example.com"),
            headers: vec![("sec-websocket-version", "13")],
        }
    }

    /// A valid upgrade except for `Host`.
    pub(crate) fn upgrade() -> Self {
        Self {
            method: "GET",
            version: Version::Http11,
            protocol: None,
            authority: None,
            headers: vec![
                ("upgrade", "websocket"),
                ("connection", "upgrade"),
                ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
                ("sec-websocket-version", "13"),
            ],
        }
    }

    pub(crate) fn accept(&self) -> Result<Accepted, Refusal> {
        let options = ServerOptions::new().with_subprotocol("chat").expect("a token");
        accept(self, &options)
    }
}

impl RequestView for ForeignRequest {
    fn method(&self) -> &str {
        self.method
    }

    fn version(&self) -> Version {
        self.version
    }

    fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.headers.iter().map(|&(name, value)| (name, value.as_bytes()))
    }

    fn protocol(&self) -> Option<&str> {
        self.protocol
    }

    fn authority(&self) -> Option<&str> {
        self.authority
    }
}
