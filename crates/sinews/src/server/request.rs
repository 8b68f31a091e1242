//! The request of a client.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use sinews_proto::handshake::RequestView;
use sinews_proto::http::{RequestHead, Version};

/// The request for a WebSocket, as the client sent it. Cloning increments a reference count.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// # use tokio::io::AsyncWriteExt as _;
/// let (mut client, server) = tokio::io::duplex(4096);
/// client.write_all(
///     b"GET /rooms/7?token=a%20b HTTP/1.1\r\nHost: example.com\r\nUpgrade: websocket\r\n\
///       Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
///       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nCookie: a=1; session=xyz\r\n\r\n",
/// ).await?;
///
/// let (_websocket, request) = sinews::accept(server).open().await?;
/// assert_eq!((request.path(), request.query()), ("/rooms/7", Some("token=a%20b")));
/// assert_eq!(request.query_value("token").as_deref(), Some("a b"));
/// assert_eq!(request.header("host"), Some("example.com"));
/// assert_eq!(request.cookie("session"), Some("xyz"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Request(Arc<Inner>);

struct Inner {
    method: Box<str>,
    target: Box<str>,
    path: Box<str>,
    query: Option<Box<str>>,
    authority: Option<Box<str>>,
    version: Version,
    peer: Option<SocketAddr>,
    /// Names and values, concatenated.
    text: Vec<u8>,
    /// End offsets of each name and value.
    ends: Vec<(usize, usize)>,
}

impl Request {
    pub(super) fn new(head: &RequestHead<'_>, peer: Option<SocketAddr>) -> Self {
        let mut text = Vec::with_capacity(head.wire_len());
        let mut ends = Vec::new();
        for (name, value) in head.headers() {
            text.extend_from_slice(name.as_bytes());
            let name_end = text.len();
            text.extend_from_slice(value);
            ends.push((name_end, text.len()));
        }
        Self(Arc::new(Inner {
            method: head.method().into(),
            target: head.target().into(),
            path: head.path().into(),
            query: head.query().map(Into::into),
            authority: head.authority().map(Into::into),
            version: head.version(),
            peer,
            text,
            ends,
        }))
    }

    /// The method, case-sensitive: `GET`.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.0.method
    }

    /// The request target as received.
    #[must_use]
    pub fn target(&self) -> &str {
        &self.0.target
    }

    /// The path, still percent-encoded.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.0.path
    }

    /// The text behind the first `?` of the target, as received.
    #[must_use]
    pub fn query(&self) -> Option<&str> {
        self.0.query.as_deref()
    }

    /// The first value of this name in the query, form-decoded: `+` and `%20` are spaces. `None` also for a value
    /// that does not decode to UTF-8. Pages cannot add headers to a WebSocket, so that they pass tokens here.
    #[must_use]
    pub fn query_value(&self, name: &str) -> Option<Cow<'_, str>> {
        let pairs = self.query()?.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let mut values = pairs.filter(|(key, _)| decoded(key).is_some_and(|key| key == name));
        decoded(values.next()?.1)
    }

    /// The value of `Host`: `host` or `host:port`.
    #[must_use]
    pub fn authority(&self) -> Option<&str> {
        self.0.authority.as_deref()
    }

    /// The address of the client, if it was [set](super::Accept::peer).
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.0.peer
    }

    /// All headers in order, repeated ones included; names as received, values without surrounding spaces.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let starts = std::iter::once(0).chain(self.0.ends.iter().map(|&(_, end)| end));
        starts.zip(&self.0.ends).map(|(start, &(name_end, end))| {
            let name = std::str::from_utf8(&self.0.text[start..name_end]);
            (name.expect("a parsed name is a token, which is ASCII"), &self.0.text[name_end..end])
        })
    }

    /// The value of the first header with this name, in any case; `None` also if it is not UTF-8.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.header_values(name).next()?).ok()
    }

    /// The values of all headers with this name, in any case, in order.
    pub fn header_values(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        RequestView::header(self, name)
    }

    /// The cookies in order, as name and value (RFC 6265 section 4.2.1); quotes around a value are part of it.
    pub fn cookies(&self) -> impl Iterator<Item = (&str, &str)> {
        let lines = self.header_values("cookie").filter_map(|line| std::str::from_utf8(line).ok());
        let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, value)| (name.trim(), value.trim()))
    }

    /// The value of the first cookie with this name.
    #[must_use]
    pub fn cookie(&self, name: &str) -> Option<&str> {
        self.cookies().find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    /// The subprotocols that the client offers, in its order of preference.
    pub fn offered_subprotocols(&self) -> impl Iterator<Item = &str> {
        let lines = self.header_values("sec-websocket-protocol");
        let lines = lines.filter_map(|line| std::str::from_utf8(line).ok());
        lines.flat_map(|line| line.split(',')).map(str::trim).filter(|name| !name.is_empty())
    }
}

/// Decodes a name or a value of a query.
fn decoded(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('+') {
        return percent_decode_str(text).decode_utf8().ok();
    }
    let spaced = text.replace('+', " ");
    Some(Cow::Owned(percent_decode_str(&spaced).decode_utf8().ok()?.into_owned()))
}

impl RequestView for Request {
    fn method(&self) -> &str {
        Self::method(self)
    }

    fn version(&self) -> Version {
        self.0.version
    }

    fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        Self::headers(self)
    }

    fn authority(&self) -> Option<&str> {
        Self::authority(self)
    }
}

/// Shows the request line and the names of the headers; header values may be secrets.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers().map(|(name, _)| name).collect();
        f.debug_struct("Request")
            .field("method", &self.0.method)
            .field("path", &self.0.path)
            .field("peer", &self.0.peer)
            .field("headers", &names)
            .finish_non_exhaustive()
    }
}
