//! What a handler answers with: a response, or who will make one.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use crate::request::Response;

/// What a plain request is answered with: a [`Response`] that is there, or one that comes later.
///
/// While an answer is awaited, further requests on its connection wait, so that answers leave in the order of the
/// requests; other connections do not. It is awaited for
/// [`HttpConfig::with_handler_timeout`](crate::HttpConfig::with_handler_timeout) at most, and given up when the
/// connection closes.
///
/// ```
/// use sinews_server::{Answer, Response, Router};
///
/// let router = Router::new()
///     .get("/now", |_| Response::text("at once\n"))
///     .get("/later", |request| {
///         let request = request.to_owned();
///         Answer::later(async move { Response::text(format!("{} is there\n", request.path())) })
///     })
///     .get("/slow", |_| {
///         Answer::blocking(|| match std::fs::read_to_string("/etc/hostname") {
///             Ok(name) => Response::text(name),
///             Err(_) => Response::new(404),
///         })
///     });
/// # drop(router);
/// ```
pub struct Answer(pub(crate) Kind);

pub(crate) enum Kind {
    Now(Response),
    Later(Later),
    Blocking(Work),
}

pub(crate) type Later = Pin<Box<dyn Future<Output = Response>>>;

pub(crate) type Work = Box<dyn FnOnce() -> Response + Send>;

impl Answer {
    /// What this future comes to. It runs on the thread of its connection, between callbacks, and need not be
    /// `Send`; who wakes it may be on any thread. No runtime comes with it: what needs Tokio's reactor is spawned
    /// there, and its end awaited here. It must not block: other connections wait meanwhile.
    ///
    /// When its time is up, the client is answered with 503. Then, and when its connection closes, it is dropped.
    #[must_use]
    pub fn later(response: impl Future<Output = Response> + 'static) -> Self {
        Self(Kind::Later(Box::pin(response)))
    }

    /// What this comes to on a thread where it may block, one of the server's
    /// [pool](crate::Server::blocking). If the pool has no place left, the client is answered with 503 and
    /// `Retry-After`. If its connection closes before it has begun, it is not run.
    #[must_use]
    pub fn blocking(work: impl FnOnce() -> Response + Send + 'static) -> Self {
        Self(Kind::Blocking(Box::new(work)))
    }
}

impl From<Response> for Answer {
    fn from(response: Response) -> Self {
        Self(Kind::Now(response))
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Now(response) => f.debug_tuple("Now").field(response).finish(),
            Kind::Later(_) => f.write_str("Later"),
            Kind::Blocking(_) => f.write_str("Blocking"),
        }
    }
}
