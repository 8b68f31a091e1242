//! The application's decision on a request.

use std::future::{Future, Ready, ready};

use sinews_proto::handshake::{HandshakeMisuse, Refusal};

use super::Request;

/// Accepts a request, with additions to the response.
///
/// A value that is not valid on the wire, such as a header with a line break, is detected when the response is
/// written: the client then gets a 500, and the caller [`AcceptError::Misuse`](super::AcceptError::Misuse).
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Reply {
    pub(super) subprotocol: Option<String>,
    pub(super) headers: Vec<(String, String)>,
}

impl Reply {
    /// Creates a reply without additions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Selects this subprotocol, which the client must [offer](Request::offered_subprotocols). Default: the first of
    /// [`Accept::subprotocols`](super::Accept::subprotocols) that the client offers.
    pub fn with_subprotocol(mut self, name: impl Into<String>) -> Self {
        self.subprotocol = Some(name.into());
        self
    }

    /// Adds a header to the response, such as `Set-Cookie`. Headers that the handshake writes itself are not allowed.
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

/// Rejects a request.
///
/// ```
/// use sinews::server::Reject;
///
/// let reject = Reject::new(401).with_header("WWW-Authenticate", "Bearer").with_body("no token");
/// ```
///
/// A value that is not valid on the wire, or a status outside of 200 to 599, results in a 500, and the caller gets
/// [`AcceptError::Misuse`](super::AcceptError::Misuse).
#[derive(Clone, Debug)]
#[must_use]
pub struct Reject(pub(super) Result<Refusal, HandshakeMisuse>);

impl Reject {
    /// Creates a rejection with this status, 200 to 599.
    pub fn new(status: u16) -> Self {
        Self(Refusal::new(status))
    }

    /// Adds a header.
    pub fn with_header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        Self(self.0.and_then(|refusal| refusal.with_header(name, value)))
    }

    /// Sets the body. Set its type with a `Content-Type` header. Statuses 204 and 304 have no body.
    pub fn with_body(self, body: impl Into<Vec<u8>>) -> Self {
        Self(self.0.map(|refusal| refusal.with_body(body)))
    }
}

impl From<Refusal> for Reject {
    fn from(refusal: Refusal) -> Self {
        Self(Ok(refusal))
    }
}

/// Decides on a valid request of an allowed origin.
pub trait Decide {
    /// The decision, which may take a while.
    type Deciding: Future<Output = Result<Reply, Reject>>;

    /// Begins to decide.
    fn decide(self, request: &Request) -> Self::Deciding;
}

/// Accepts every valid request of an allowed origin: the default.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct AcceptAll;

impl Decide for AcceptAll {
    type Deciding = Ready<Result<Reply, Reject>>;

    fn decide(self, _: &Request) -> Self::Deciding {
        ready(Ok(Reply::new()))
    }
}

/// Decides by a function ([`Accept::on_request`](super::Accept::on_request)).
#[derive(Clone, Copy, Debug)]
pub struct OnRequest<F>(pub(super) F);

impl<F: FnOnce(&Request) -> Result<Reply, Reject>> Decide for OnRequest<F> {
    type Deciding = Ready<Result<Reply, Reject>>;

    fn decide(self, request: &Request) -> Self::Deciding {
        ready((self.0)(request))
    }
}

/// Decides by an async function ([`Accept::on_request_async`](super::Accept::on_request_async)).
#[derive(Clone, Copy, Debug)]
pub struct OnRequestAsync<F>(pub(super) F);

impl<F, Fut> Decide for OnRequestAsync<F>
where
    F: FnOnce(Request) -> Fut,
    Fut: Future<Output = Result<Reply, Reject>>,
{
    type Deciding = Fut;

    fn decide(self, request: &Request) -> Self::Deciding {
        (self.0)(request.clone())
    }
}
