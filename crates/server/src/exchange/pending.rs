//! Answers that complete later.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use sinews_engine::ConnId;
use sinews_proto::Time;

use super::{HttpExchange, Outcome, RetainedRequest};
use crate::answer::{AnswerFuture, LaterAnswer};
use crate::fixed::announce_http3;
use crate::request::Response;
use crate::router::Router;
use crate::shared::Services;
use crate::tasks::TaskWaker;

/// Future of an answer, and the parts of its request that the answer needs.
pub(crate) struct PendingAnswer {
    future: AnswerFuture,
    waker: Arc<TaskWaker>,
    /// When the request was complete.
    pub(crate) since: Time,
    /// A thread of the pool computes the answer.
    pub(crate) is_blocking: bool,
    /// Start of the request.
    started: Time,
    /// The request without its body, and its peer, if a hook sees the answer.
    request: Option<(Box<RetainedRequest>, SocketAddr)>,
}

/// The future of an answer that completes later.
pub(crate) struct PendingSource {
    pub(super) answer: AnswerFuture,
    /// A thread of the pool computes the answer.
    pub(super) is_blocking: bool,
}

impl PendingAnswer {
    /// Polls the future for the first time. Most of the request is copied only if the answer is pending.
    pub(super) fn start(
        exchange: &HttpExchange<'_>,
        PendingSource { answer: future, is_blocking }: PendingSource,
        conn: ConnId,
        services: &Services,
    ) -> Outcome<'static> {
        let since = services.now;
        let (waker, started) = (services.tasks.waker(conn), exchange.started.unwrap_or(since));
        let mut pending = Self { future, waker, since, is_blocking, started, request: None };
        match pending.poll() {
            Poll::Ready(LaterAnswer::Response(response)) => return Outcome::Ready(response),
            Poll::Ready(LaterAnswer::Streaming(streaming)) => {
                return exchange.admit_streaming(streaming, services);
            }
            Poll::Pending => {}
        }
        let hooked = exchange.router.hooks.has_after(exchange.head);
        pending.request = hooked.then(|| (exchange.retain(), exchange.peer));
        Outcome::Pending(Box::new(pending))
    }

    /// Returns whether the future was woken since its last poll.
    pub(crate) fn is_woken(&self) -> bool {
        self.waker.is_woken()
    }

    pub(crate) fn poll(&mut self) -> Poll<LaterAnswer> {
        self.waker.polled();
        let waker = Waker::from(Arc::clone(&self.waker));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    /// Runs the after hooks on the answer and counts it.
    pub(crate) fn complete(&self, response: &mut Response, router: &Router, services: &mut Services) {
        let Some((request, peer)) = &self.request else {
            announce_http3(response, services.http3_port);
            return services.counters.responded(response.status);
        };
        request.with_exchange(&[], *peer, Some(self.started), router, |exchange| {
            exchange.complete(response, services);
        });
    }
}

impl fmt::Debug for PendingAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingAnswer").field("since", &self.since).finish_non_exhaustive()
    }
}
