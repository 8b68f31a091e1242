//! Requests on an HTTP/2 or HTTP/3 connection's streams, --in-flight at a time.

use std::collections::VecDeque;

use super::failure::ConnectionFailure;
use super::tracker::{MessageTracker, ThreadState};
use super::traffic::SocketTraffic;
use crate::plan::{ExpectedBody, LoadPlan};
use crate::tally::FailureKind;

/// One connection's requests; `S` identifies a stream.
#[derive(Debug)]
pub(super) struct StreamedRequests<S> {
    /// Numbers of messages whose requests are to be sent.
    due: VecDeque<u64>,
    /// Requests without a complete answer, in stream order. The server may answer in any order.
    unanswered: VecDeque<UnansweredRequest<S>>,
    /// The server permits no further stream now.
    is_blocked: bool,
}

#[derive(Debug)]
struct UnansweredRequest<S> {
    stream: S,
    /// Its message's number.
    number: u64,
    /// The body's received bytes.
    body_at: usize,
    has_head: bool,
}

impl<S: Copy + Ord> StreamedRequests<S> {
    pub(super) fn new() -> Self {
        Self { due: VecDeque::new(), unanswered: VecDeque::new(), is_blocked: false }
    }

    fn position(&self, stream: S) -> Option<usize> {
        self.unanswered.binary_search_by_key(&stream, |request| request.stream).ok()
    }

    /// Whether the answer on a stream is incomplete.
    pub(super) fn is_unanswered(&self, stream: S) -> bool {
        self.position(stream).is_some()
    }

    pub(super) fn receive_head(&mut self, stream: S, status: u16, thread_state: &mut ThreadState) {
        let Some(at) = self.position(stream) else { return };
        self.unanswered[at].has_head = true;
        if status >= 400 {
            thread_state.fail(FailureKind::Status, 1, || format!("unexpected status {status}"));
        }
    }

    pub(super) fn receive_data(
        &mut self,
        stream: S,
        data: &[u8],
        thread_state: &ThreadState,
    ) -> Result<(), ConnectionFailure> {
        let Some(at) = self.position(stream) else { return Ok(()) };
        let request = &mut self.unanswered[at];
        let end = request.body_at + data.len();
        let differs = expected(&thread_state.plan, request.number)
            .is_some_and(|body| body.get(request.body_at..end) != Some(data));
        if differs {
            let text = "body differs from the expected body";
            return Err(ConnectionFailure::new(FailureKind::WrongBytes, text));
        }
        request.body_at = end;
        Ok(())
    }

    /// Counts a complete answer, and takes the next message.
    pub(super) fn receive_end(
        &mut self,
        stream: S,
        traffic: &mut [SocketTraffic],
        thread_state: &mut ThreadState,
    ) -> Result<(), ConnectionFailure> {
        let Some(at) = self.position(stream) else { return Ok(()) };
        let Some(request) = self.unanswered.remove(at) else { return Ok(()) };
        let is_short =
            expected(&thread_state.plan, request.number).is_some_and(|body| body.len() != request.body_at);
        if is_short || !request.has_head {
            let text = "body is shorter than the expected body";
            return Err(ConnectionFailure::new(FailureKind::WrongBytes, text));
        }
        self.is_blocked = false;
        let Some(traffic) = traffic.first_mut() else { return Ok(()) };
        traffic.tracker.answered(thread_state, request.body_at);
        self.send(&mut traffic.tracker, thread_state);
        Ok(())
    }

    /// Takes messages as far as allowed.
    pub(super) fn send(&mut self, tracker: &mut MessageTracker, thread_state: &mut ThreadState) {
        while let Some(number) = tracker.take(thread_state) {
            let len = if thread_state.plan.request.has_body {
                thread_state.plan.corpus.message(number).len()
            } else {
                0
            };
            tracker.sent_bytes(thread_state, len);
            self.due.push_back(number);
        }
    }

    pub(super) fn wants_send(&self) -> bool {
        !self.due.is_empty() && !self.is_blocked
    }

    /// Calls `send` with each due message's number. It returns the request's stream, or `None` if the server permits no
    /// further stream now.
    pub(super) fn fill<E>(&mut self, mut send: impl FnMut(u64) -> Result<Option<S>, E>) -> Result<(), E> {
        while let Some(number) = self.due.front().copied() {
            let sent = send(number)?;
            self.is_blocked = sent.is_none();
            let Some(stream) = sent else { break };
            self.due.pop_front();
            self.unanswered.push_back(UnansweredRequest { stream, number, body_at: 0, has_head: false });
        }
        Ok(())
    }
}

/// An answer's expected body.
fn expected(plan: &LoadPlan, number: u64) -> Option<&[u8]> {
    match &plan.request.expect {
        ExpectedBody::Any => None,
        ExpectedBody::Echo => Some(plan.corpus.message(number)),
        ExpectedBody::Exact(body) => Some(body),
    }
}
