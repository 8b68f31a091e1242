//! Requests that outlive the input of their head.

use std::fmt;
use std::net::SocketAddr;

use sinews_http::{OwnedHead, RequestHead};
use sinews_proto::Time;

use super::{HttpExchange, MatchedRoute, SESSION_PROTOCOL};
use crate::request::{RetainedParams, RouteParams};
use crate::router::Router;

/// Head of a request and its route: for a body that arrives later, and for hooks that run after a later answer. The
/// head is neither parsed nor routed again.
pub(crate) struct RetainedRequest {
    head: OwnedHead,
    /// Index of the route's entry in the router.
    route: Option<usize>,
    params: RetainedParams,
    /// The request is for a session of WebTransport.
    is_session: bool,
}

impl HttpExchange<'_> {
    /// Copies the head and the route.
    pub(crate) fn retain(&self) -> Box<RetainedRequest> {
        Box::new(RetainedRequest {
            head: self.head.to_owned_head(),
            route: self.route.as_ref().map(|route| route.index),
            params: self.params().retain(),
            is_session: self.is_session(),
        })
    }
}

impl RetainedRequest {
    /// Returns the bytes of the head.
    pub(crate) fn len(&self) -> usize {
        self.head.wire_len()
    }

    /// Lends the exchange to `then`, with the body of the request.
    pub(crate) fn with_exchange<T>(
        &self,
        body: &[u8],
        peer: SocketAddr,
        started: Option<Time>,
        router: &Router,
        then: impl FnOnce(&HttpExchange<'_>) -> T,
    ) -> T {
        let head: &RequestHead<'_> = &self.head.head();
        let route = self.route.and_then(|index| {
            let entry = router.entry(index)?;
            Some(MatchedRoute { index, entry, params: RouteParams::Retained(&self.params) })
        });
        let connect = self.is_session.then_some(SESSION_PROTOCOL);
        then(&HttpExchange { head, body, peer, started, connect, router, route })
    }
}

/// Omits the head, which may contain secrets.
impl fmt::Debug for RetainedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetainedRequest").field("route", &self.route).finish_non_exhaustive()
    }
}
