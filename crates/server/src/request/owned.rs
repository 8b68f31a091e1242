//! Owned copy of a request.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use sinews_http::RequestHead;

use super::{RetainedParams, decoded, value_in};

/// Owned copy of a [`Request`](crate::Request), for an answer that completes later. It may move to another thread.
#[derive(Clone)]
pub struct OwnedRequest {
    method: Box<str>,
    target: Box<str>,
    path: Box<str>,
    query: Option<Box<str>>,
    headers: Vec<(Box<str>, Bytes)>,
    params: RetainedParams,
    body: Bytes,
    peer: SocketAddr,
    client: IpAddr,
}

impl OwnedRequest {
    pub(super) fn new(
        head: &RequestHead<'_>,
        params: RetainedParams,
        body: &[u8],
        peer: SocketAddr,
        client: IpAddr,
    ) -> Self {
        Self {
            method: head.method().into(),
            target: head.target().into(),
            path: head.path().into(),
            query: head.query().map(Box::from),
            headers: head
                .headers()
                .map(|(name, value)| (name.into(), Bytes::copy_from_slice(value)))
                .collect(),
            params,
            body: Bytes::copy_from_slice(body),
            peer,
            client,
        }
    }

    /// Returns the method, case-sensitive.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.method
    }

    /// Returns the request target as received.
    #[must_use]
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Returns the path, still percent-encoded.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the values of each header line with this name, in any case, in order.
    pub fn header(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.headers
            .iter()
            .filter(move |(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| &**value)
    }

    /// Returns a path parameter, as [`Request::param`](crate::Request::param).
    #[must_use]
    pub fn param(&self, name: &str) -> Option<Cow<'_, str>> {
        decoded(self.params.iter().find(|(known, _)| **known == *name).map(|(_, value)| &**value)?)
    }

    /// Returns a query value, as [`Request::query`](crate::Request::query).
    #[must_use]
    pub fn query(&self, name: &str) -> Option<&str> {
        value_in(self.query.as_deref()?, name)
    }

    /// Returns the body. Clones share its bytes.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Returns the peer's address.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the client's address, as [`Request::client`](crate::Request::client).
    #[must_use]
    pub fn client(&self) -> IpAddr {
        self.client
    }
}

/// Omits the headers, which may contain secrets.
impl fmt::Debug for OwnedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("OwnedRequest");
        out.field("method", &self.method).field("target", &self.target).field("peer", &self.peer);
        out.finish_non_exhaustive()
    }
}
