//! HTTP requests and responses.

mod owned;
mod source;

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use percent_encoding::percent_decode_str;
use sinews_http::{HeaderMap, RequestHead};
use sinews_proto::handshake::Refusal;

pub use self::owned::OwnedRequest;
pub use self::source::BodySource;
pub(crate) use self::source::SourcePart;
use crate::client::TrustedProxies;
use crate::pool::{BlockingPool, JobRejected};
use crate::topics::{Publisher, Topics};

/// HTTP request as a handler sees it, valid during the call ([`to_owned`](Self::to_owned) copies it).
#[derive(Debug)]
pub struct Request<'a> {
    head: &'a RequestHead<'a>,
    params: PathParams<'a>,
    body: &'a [u8],
    peer: SocketAddr,
    subprotocol: Option<&'a str>,
    has_datagrams: bool,
    connect: Option<&'a str>,
    resources: HandlerResources<'a>,
}

/// Path parameters by name, without decoding.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PathParams<'a> {
    /// The path has none.
    None,
    /// Borrowed from the routes and the path.
    Matched(&'a matchit::Params<'a, 'a>),
    /// Of a request that was retained.
    Retained(&'a RetainedParams),
}

/// A route's path parameters.
#[derive(Debug)]
pub(crate) enum RouteParams<'a> {
    /// The path has none.
    None,
    /// Borrowed from the routes and the path.
    Matched(matchit::Params<'a, 'a>),
    /// Of a request that was retained.
    Retained(&'a RetainedParams),
}

impl RouteParams<'_> {
    pub(crate) fn borrow(&self) -> PathParams<'_> {
        match self {
            Self::None => PathParams::None,
            Self::Matched(params) => PathParams::Matched(params),
            Self::Retained(params) => PathParams::Retained(params),
        }
    }
}

/// Owned path parameters: names and values.
pub(crate) type RetainedParams = Vec<(Box<str>, Box<str>)>;

impl<'a> PathParams<'a> {
    fn get(self, name: &str) -> Option<&'a str> {
        match self {
            Self::None => None,
            Self::Matched(params) => params.get(name),
            Self::Retained(params) => {
                params.iter().find(|(known, _)| **known == *name).map(|(_, value)| &**value)
            }
        }
    }

    /// Copies the parameters.
    pub(crate) fn retain(self) -> RetainedParams {
        match self {
            Self::None => RetainedParams::new(),
            Self::Matched(params) => params.iter().map(|(name, value)| (name.into(), value.into())).collect(),
            Self::Retained(params) => params.clone(),
        }
    }
}

/// Resources that a handler may use beside the request.
#[derive(Debug)]
pub(crate) struct HandlerResources<'a> {
    pub(crate) topics: &'a mut Topics,
    pub(crate) pool: &'a BlockingPool,
    pub(crate) elapsed: Duration,
    pub(crate) proxies: &'a TrustedProxies,
    pub(crate) encrypted: bool,
    pub(crate) tag: u8,
}

impl<'a> Request<'a> {
    pub(crate) fn new(
        head: &'a RequestHead<'a>,
        params: PathParams<'a>,
        body: &'a [u8],
        peer: SocketAddr,
        resources: HandlerResources<'a>,
    ) -> Self {
        Self { head, params, body, peer, subprotocol: None, has_datagrams: false, connect: None, resources }
    }

    /// Sets an extended CONNECT request's protocol.
    #[inline]
    pub(crate) fn with_connect(mut self, connect: Option<&'a str>) -> Self {
        self.connect = connect;
        self
    }

    /// Marks the request as an accepted handshake.
    pub(crate) fn accepted(self, subprotocol: Option<&'a str>, has_datagrams: bool) -> Self {
        Self { subprotocol, has_datagrams, ..self }
    }

    /// Hides the body, for hooks that run before it has arrived.
    pub(crate) fn without_body(self) -> Self {
        self.with_body(&[])
    }

    /// Replaces the body.
    pub(crate) fn with_body(self, body: &'a [u8]) -> Self {
        Self { body, ..self }
    }

    /// Returns a WebSocket handshake's negotiated subprotocol: the first of
    /// [`ServerOptions::with_subprotocol`](crate::ServerOptions::with_subprotocol) that the client offers.
    #[must_use]
    pub fn subprotocol(&self) -> Option<&'a str> {
        self.subprotocol
    }

    /// Returns whether the request is for a WebTransport session, whose messages may be sent as datagrams
    /// ([`Context::deliver_datagrams`](crate::Context::deliver_datagrams)).
    #[must_use]
    pub fn has_datagrams(&self) -> bool {
        self.has_datagrams
    }

    /// Returns the protocol of an extended CONNECT request (RFC 8441, RFC 9220): `websocket`, or `webtransport` over
    /// HTTP/3. Its [head](Self::head) has the method GET, so that routes and hooks are the same as for HTTP/1.1; the
    /// access log shows CONNECT.
    #[must_use]
    pub fn protocol(&self) -> Option<&'a str> {
        self.connect
    }

    /// Returns the head: method, target, headers.
    #[must_use]
    pub fn head(&self) -> &'a RequestHead<'a> {
        self.head
    }

    /// Returns the value of the path parameter `{name}`, percent-decoded; `None` if the route has no such parameter
    /// or the value does not decode to UTF-8.
    #[must_use]
    pub fn param(&self, name: &str) -> Option<Cow<'a, str>> {
        decoded(self.params.get(name)?)
    }

    /// Returns a path parameter's value without decoding.
    pub(crate) fn raw_param(&self, name: &str) -> Option<&'a str> {
        self.params.get(name)
    }

    /// Returns the first value of `name` in the query, without decoding. Names are compared decoded, as all query
    /// functions do ([`query_pairs`]).
    #[must_use]
    pub fn query(&self, name: &str) -> Option<&'a str> {
        value_in(self.head.query()?, name)
    }

    /// Returns all values of `name` in the query, decoded: `+` is a space (`application/x-www-form-urlencoded`), and
    /// bytes that are not UTF-8 become U+FFFD.
    pub fn query_values<'n>(&self, name: &'n str) -> impl Iterator<Item = Cow<'a, str>> + use<'a, 'n> {
        let pairs = query_pairs(self.head.query().unwrap_or_default());
        pairs.filter(move |(key, _)| *key == name).map(|(_, value)| form_decoded(value))
    }

    /// Returns a query parameter's value, decoded as by [`query_values`](Self::query_values); `None` without the
    /// parameter, or if the value is not UTF-8 when decoded.
    #[must_use]
    pub fn decoded_query(&self, name: &str) -> Option<Cow<'a, str>> {
        let value = self.query(name)?;
        if !value.contains('+') {
            return decoded(value);
        }
        decoded(&value.replace('+', " ")).map(|text| text.into_owned().into())
    }

    /// Returns the body; empty in a WebSocket handshake.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    /// Returns the peer's address: of the transport connection, or of the client in its PROXY header
    /// ([`Listen::with_proxy_protocol`](crate::Listen::with_proxy_protocol)).
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the time since the request was received, or its body, if it has one. It uses the loop turn's time, so it
    /// is zero for an immediate answer.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.resources.elapsed
    }

    /// Returns the client's address: the peer's, or the address that a trusted proxy passes on
    /// ([`Server::trusted_proxies`](crate::Server::trusted_proxies)). IPv4-mapped IPv6 addresses are returned as
    /// IPv4.
    #[must_use]
    pub fn client(&self) -> IpAddr {
        self.resources.proxies.client(self.head, self.peer)
    }

    /// Returns whether the connection uses TLS, as far as this server knows: a proxy may have terminated it.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.resources.encrypted
    }

    /// Returns the tag of the listener ([`Listen::with_tag`](crate::Listen::with_tag)).
    #[must_use]
    pub fn listener_tag(&self) -> u8 {
        self.resources.tag
    }

    /// Returns this thread's topics, for publishing.
    #[must_use]
    pub fn topics(&mut self) -> &mut Topics {
        self.resources.topics
    }

    /// Returns a handle that publishes from any thread, for answers that complete later.
    #[must_use]
    pub fn publisher(&self) -> Publisher {
        self.resources.topics.publisher()
    }

    /// Returns the server's thread pool for blocking work, which [`Answer::blocking`](crate::Answer::blocking) uses
    /// too.
    #[must_use]
    pub fn pool(&self) -> &'a BlockingPool {
        self.resources.pool
    }

    /// Returns a copy that outlives the call, for answers that complete later.
    #[must_use]
    pub fn to_owned(&self) -> OwnedRequest {
        OwnedRequest::new(self.head, self.params.retain(), self.body, self.peer, self.client())
    }
}

/// Response to an HTTP request.
#[derive(Clone, Debug)]
pub struct Response {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: ResponseBody,
}

#[derive(Clone, Debug)]
pub(crate) enum ResponseBody {
    Bytes(Bytes),
    File(FilePart),
    Source(SourcePart),
}

/// Part of an open file.
#[derive(Clone, Debug)]
pub(crate) struct FilePart {
    pub(crate) file: Arc<File>,
    pub(crate) at: u64,
    pub(crate) len: u64,
}

impl FilePart {
    /// Reads the next piece, at most `most` bytes; `None` at the end.
    pub(crate) fn read(&mut self, most: usize) -> io::Result<Option<Bytes>> {
        let count = usize::try_from(self.len).unwrap_or(most).min(most);
        if count == 0 {
            return Ok(None);
        }
        let mut piece = vec![0; count];
        #[cfg(unix)]
        std::os::unix::fs::FileExt::read_exact_at(&*self.file, &mut piece, self.at)?;
        #[cfg(not(unix))]
        {
            use std::io::{Read, Seek, SeekFrom};
            let mut file = &*self.file;
            file.seek(SeekFrom::Start(self.at))?;
            file.read_exact(&mut piece)?;
        }
        self.at += count as u64;
        self.len -= count as u64;
        Ok(Some(piece.into()))
    }
}

impl ResponseBody {
    /// Returns the bytes that are left, if their number is known.
    pub(crate) fn len(&self) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes.len() as u64),
            Self::File(part) => Some(part.len),
            Self::Source(part) => part.len(),
        }
    }

    /// Returns whether no bytes are left.
    pub(crate) fn is_finished(&self) -> bool {
        match self {
            Self::Source(part) => part.is_finished(),
            Self::Bytes(_) | Self::File(_) => self.len() == Some(0),
        }
    }

    /// Cuts up to `max` bytes off the body.
    pub(crate) fn read(&mut self, max: usize) -> io::Result<Bytes> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.split_to(bytes.len().min(max))),
            Self::File(part) => part.read(max).map(Option::unwrap_or_default),
            Self::Source(part) => part.read(max),
        }
    }
}

impl Response {
    /// Creates a response with this status and no body.
    ///
    /// Valid statuses are 200 to 599. Other statuses do not end an exchange for a client, and are sent as 500.
    #[must_use]
    pub fn new(status: u16) -> Self {
        Self {
            status: final_status(status),
            headers: HeaderMap::new(),
            body: ResponseBody::Bytes(Bytes::new()),
        }
    }

    /// Creates a rejection's response.
    pub(crate) fn refused(refusal: &Refusal) -> Self {
        let response = Self::new(refusal.status()).with_body(refusal.body().to_vec());
        refusal
            .headers()
            .fold(response, |response, (name, value)| response.with_header(name.to_owned(), value.to_owned()))
    }

    /// Creates the answer to a handshake, for hooks to add headers: 101, or 200 to extended CONNECT.
    pub(crate) fn accepted(status: u16, headers: Vec<(String, String)>) -> Self {
        Self { status, headers: headers.into_iter().collect(), body: ResponseBody::Bytes(Bytes::new()) }
    }

    /// Creates an HTML response.
    #[must_use]
    pub fn html(body: impl Into<Bytes>) -> Self {
        Self::new(200).with_header("Content-Type", "text/html; charset=utf-8").with_body(body)
    }

    /// Creates a plain text response.
    #[must_use]
    pub fn text(body: impl Into<Bytes>) -> Self {
        Self::new(200).with_header("Content-Type", "text/plain; charset=utf-8").with_body(body)
    }

    /// Creates a JSON response from encoded JSON.
    #[must_use]
    pub fn json(body: impl Into<Bytes>) -> Self {
        Self::new(200).with_header("Content-Type", "application/json").with_body(body)
    }

    /// Sets the status, as [`new`](Self::new) does.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = final_status(status);
        self
    }

    /// Sets the body. The server writes its length. Statuses 204 and 304 have no body (RFC 9110 section 6.4.1): it is
    /// omitted.
    #[must_use]
    pub fn with_body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = ResponseBody::Bytes(body.into());
        self
    }

    /// Sets a body that is encoded piece by piece as the client takes it, as [`with_body`](Self::with_body) does. It is
    /// not [compressed](crate::Compression).
    #[must_use]
    pub fn with_source(mut self, source: impl BodySource + 'static) -> Self {
        self.body = ResponseBody::Source(SourcePart::new(source));
        self
    }

    /// Returns the status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Returns the values of each header with this name, in any case, in order. Headers that the server writes itself
    /// are not included.
    pub fn header(&self, name: &str) -> impl Iterator<Item = &str> {
        self.headers.get(name)
    }

    /// Returns the body's length in bytes, if it is known: a [source](BodySource)'s length may be unknown.
    #[must_use]
    pub fn body_len(&self) -> Option<u64> {
        self.body.len()
    }

    /// Adds a header, as [`with_header`](Self::with_header) does.
    pub fn add_header(&mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Cow<'static, str>>) {
        self.headers.append(name, value);
    }

    /// Replaces all headers with this name.
    pub fn set_header(&mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Cow<'static, str>>) {
        self.headers.set(name, value);
    }

    /// Adds to `Vary`.
    pub(crate) fn vary(&mut self, names: &str) {
        let known: Vec<&str> = self.header("vary").collect();
        if !known.iter().any(|list| list.split(',').any(|name| name.trim().eq_ignore_ascii_case(names))) {
            let all = known.into_iter().chain([names]).collect::<Vec<_>>().join(", ");
            self.set_header("Vary", all);
        }
    }

    pub(crate) fn with_content(mut self, body: ResponseBody) -> Self {
        self.body = body;
        self
    }

    /// Adds a header. An invalid header, for example with a line break, is omitted from the response. So are headers
    /// that the server writes itself: `Connection`, `Content-Length`, `Date`, `Transfer-Encoding`.
    #[must_use]
    pub fn with_header(
        mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<Cow<'static, str>>,
    ) -> Self {
        self.headers.append(name, value);
        self
    }

    pub(crate) fn with_header_if(
        self,
        condition: bool,
        name: &'static str,
        value: impl FnOnce() -> Cow<'static, str>,
    ) -> Self {
        if condition { self.with_header(name, value()) } else { self }
    }

    /// Returns the value of `Content-Length`, unless the status forbids a body, or its length is unknown.
    pub(crate) fn content_length(&self) -> Option<u64> {
        self.body.len().filter(|_| self.may_have_body())
    }

    pub(crate) fn may_have_body(&self) -> bool {
        !matches!(self.status, 204 | 304)
    }
}

fn final_status(status: u16) -> u16 {
    if (200..=599).contains(&status) { status } else { 500 }
}

/// Percent-decodes, if the result is UTF-8.
fn decoded(text: &str) -> Option<Cow<'_, str>> {
    percent_decode_str(text).decode_utf8().ok()
}

impl JobRejected {
    /// Returns the response for the client: 503 with a one-second `Retry-After`.
    #[must_use]
    pub fn response(self) -> Response {
        Response::text("too much to do\n").with_status(503).with_header("Retry-After", "1")
    }
}

/// Decodes a name or a value in a query: `+` is a space, and bytes that are not UTF-8 become U+FFFD.
fn form_decoded(text: &str) -> Cow<'_, str> {
    if !text.contains('+') {
        return percent_decode_str(text).decode_utf8_lossy();
    }
    let spaced = text.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8_lossy().into_owned().into()
}

/// Splits a query into names and values, in order. Names are decoded as values are by [`Request::query_values`]:
/// `tok%65n` is `token` for a client, so it must not be another parameter here. Values are not decoded.
///
/// ```
/// let pairs: Vec<_> = sinews_server::query_pairs("tok%65n=a%20b&x").collect();
/// assert_eq!(pairs, [("token".into(), "a%20b"), ("x".into(), "")]);
/// ```
pub fn query_pairs(query: &str) -> impl Iterator<Item = (Cow<'_, str>, &str)> {
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.map(|(name, value)| (form_decoded(name), value))
}

/// Returns the first value of `name` in a query.
fn value_in<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query_pairs(query).find(|(key, _)| *key == name).map(|(_, value)| value)
}
