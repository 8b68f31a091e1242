//! Answers of handlers: a response, a future or blocking work that produces one.

pub(crate) mod streaming;

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use crate::answer::streaming::StreamingResponse;
use crate::request::Response;

/// Answer to a plain request: a finished [`Response`], a [`StreamingResponse`], a future, or blocking work.
///
/// Until the answer is ready, further requests on its connection wait, so that answers leave in the order of the
/// requests. Other connections are not affected. An answer has to be ready within
/// [`HttpConfig::with_response_timeout`](crate::HttpConfig::with_response_timeout), and is cancelled when the
/// connection closes.
///
/// ```
/// use sinews_server::{Answer, Response, Router};
///
/// let router = Router::new()
///     .get("/now", |_| Response::text("at once\n"))
///     .get("/later", |request| {
///         let request = request.to_owned();
///         Answer::later(async move { Response::text(format!("{} is ready\n", request.path())) })
///     })
///     .get("/slow", |_| {
///         Answer::blocking(|| match std::fs::read_to_string("/etc/hostname") {
///             Ok(name) => Response::text(name),
///             Err(_) => Response::new(404),
///         })
///     });
/// # drop(router);
/// ```
pub struct Answer(pub(crate) AnswerKind);

pub(crate) enum AnswerKind {
    Now(Response),
    Later(AnswerFuture),
    Blocking(BlockingWork),
    Streaming(Box<StreamingResponse>),
}

/// The output of a later answer.
pub(crate) enum LaterAnswer {
    Response(Response),
    Streaming(Box<StreamingResponse>),
}

pub(crate) type AnswerFuture = Pin<Box<dyn Future<Output = LaterAnswer>>>;

pub(crate) type BlockingWork = Box<dyn FnOnce() -> Response + Send>;

impl Answer {
    /// Answers with the output of this future. It runs on the thread of its connection, between callbacks, and need
    /// not be `Send`; it may be woken from any thread. No runtime is included: spawn work that needs Tokio's reactor
    /// on a Tokio runtime, and await its result here. The future must not block: it would delay all other connections
    /// of the thread.
    ///
    /// On timeout the client is answered with 503. The future is dropped on timeout and when its connection closes.
    #[must_use]
    pub fn later(response: impl Future<Output = Response> + 'static) -> Self {
        Self(AnswerKind::Later(Box::pin(async move { LaterAnswer::Response(response.await) })))
    }

    /// Answers with the output of this future, as [`later`](Self::later) does: a streaming response, or instead a
    /// response with an error.
    #[must_use]
    pub fn later_streaming(
        answer: impl Future<Output = Result<StreamingResponse, Response>> + 'static,
    ) -> Self {
        Self(AnswerKind::Later(Box::pin(async move {
            match answer.await {
                Ok(streaming) => LaterAnswer::Streaming(Box::new(streaming)),
                Err(response) => LaterAnswer::Response(response),
            }
        })))
    }

    /// Answers with the result of work that may block. It runs on a thread of the server's
    /// [pool](crate::Server::blocking). If the pool's queue is full, the client is answered with 503 and
    /// `Retry-After`. If the connection closes before the work has begun, it does not run.
    #[must_use]
    pub fn blocking(work: impl FnOnce() -> Response + Send + 'static) -> Self {
        Self(AnswerKind::Blocking(Box::new(work)))
    }
}

impl From<Response> for Answer {
    fn from(response: Response) -> Self {
        Self(AnswerKind::Now(response))
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            AnswerKind::Now(response) => f.debug_tuple("Now").field(response).finish(),
            AnswerKind::Later(_) => f.write_str("Later"),
            AnswerKind::Blocking(_) => f.write_str("Blocking"),
            AnswerKind::Streaming(streaming) => streaming.fmt(f),
        }
    }
}
