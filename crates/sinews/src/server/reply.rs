//! What an application answers to a request.

use std::future::{Future, Ready, ready};

use sinews_proto::handshake::{HandshakeMisuse, Refusal};

use super::Request;

/// Yes to a request, with what the answer says beside.
///
/// What may not be on the wire, a header with a line break for instance, is found when the answer is written: the
/// client gets a 500 then, and the caller [`AcceptError::Misuse`](super::AcceptError::Misuse).
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Reply {
    pub(super) subprotocol: Option<String>,
    pub(super) headers: Vec<(String, String)>,
}

impl Reply {
    /// Yes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses this subprotocol, one of those that the client [offers](Request::offered_subprotocols). Default: the
    /// first of [`Accept::subprotocols`](super::Accept::subprotocols) that it offers.
    pub fn subprotocol(mut self, name: impl Into<String>) -> Self {
        self.subprotocol = Some(name.into());
        self
    }

    /// Adds a header to the response, `Set-Cookie` for instance. Those that the handshake writes are its own.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

/// No to a request.
///
/// ```
/// use sinews::server::Reject;
///
/// let reject = Reject::new(401).header("WWW-Authenticate", "Bearer").body("no token");
/// ```
///
/// What may not be on the wire, or a status outside of 200 to 599, makes it a 500, and the caller gets
/// [`AcceptError::Misuse`](super::AcceptError::Misuse).
#[derive(Clone, Debug)]
#[must_use]
pub struct Reject(pub(super) Result<Refusal, HandshakeMisuse>);

impl Reject {
    /// No, with this status, 200 to 599.
    pub fn new(status: u16) -> Self {
        Self(Refusal::new(status))
    }

    /// Adds a header.
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        Self(self.0.and_then(|refusal| refusal.with_header(name, value)))
    }

    /// Sets the body. Its type is for a `Content-Type` header to say. Statuses 204 and 304 have none.
    pub fn body(self, body: impl Into<Vec<u8>>) -> Self {
        Self(self.0.map(|refusal| refusal.with_body(body)))
    }
}

impl From<Refusal> for Reject {
    fn from(refusal: Refusal) -> Self {
        Self(Ok(refusal))
    }
}

/// What decides on a sound request of an allowed origin.
pub trait Decide {
    /// Deciding, which may take a while.
    type Deciding: Future<Output = Result<Reply, Reject>>;

    /// Begins to decide.
    fn decide(self, request: &Request) -> Self::Deciding;
}

/// Accepts every sound request of an allowed origin: the default.
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
