//! Requests on streams of a connection, --in-flight at a time.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use sinews_http::h3::{Event, QuicStreamId, RequestTarget};
use sinews_quic::Exchanges;

use super::reset;
use crate::load::failure::ConnectionFailure;
use crate::load::tracker::{MessageTracker, ThreadState};
use crate::load::traffic::SocketTraffic;
use crate::plan::{ExpectedBody, LoadPlan};
use crate::tally::FailureKind;

/// The requests of one connection.
#[derive(Debug, Default)]
pub(crate) struct Http3Requests {
    /// SETTINGS of the server have arrived.
    is_connected: bool,
    /// Numbers of messages whose requests are to be sent.
    due: VecDeque<u64>,
    /// Requests without a complete answer, in the order of their streams. The server may answer in any order.
    unanswered: VecDeque<UnansweredRequest>,
    /// The server permits no further stream now.
    is_blocked: bool,
}

#[derive(Debug)]
struct UnansweredRequest {
    stream: QuicStreamId,
    /// Number of its message.
    number: u64,
    /// Received bytes of the body.
    body_at: usize,
    has_head: bool,
}

impl Http3Requests {
    pub(super) fn is_open(&self) -> bool {
        self.is_connected
    }

    fn position(&self, stream: QuicStreamId) -> Option<usize> {
        self.unanswered.binary_search_by_key(&stream, |request| request.stream).ok()
    }

    pub(super) fn receive(
        &mut self,
        event: Event<'_>,
        traffic: &mut [SocketTraffic],
        thread_state: &mut ThreadState,
    ) -> Result<(), ConnectionFailure> {
        match event {
            Event::Settings { .. } => self.is_connected = true,
            Event::Response { stream, head } if head.status() >= 200 => {
                let Some(at) = self.position(stream) else { return Ok(()) };
                self.unanswered[at].has_head = true;
                if head.status() >= 400 {
                    let status = head.status();
                    thread_state.fail(FailureKind::Status, 1, || format!("unexpected status {status}"));
                }
            }
            Event::Data { stream, data } => {
                let Some(at) = self.position(stream) else { return Ok(()) };
                let request = &mut self.unanswered[at];
                let end = request.body_at + data.len();
                let plan = &thread_state.plan;
                let differs = expected(plan, request.number)
                    .is_some_and(|body| body.get(request.body_at..end) != Some(data));
                if differs {
                    let text = "body differs from the expected body";
                    return Err(ConnectionFailure::new(FailureKind::WrongBytes, text));
                }
                request.body_at = end;
            }
            Event::End { stream } => {
                let Some(at) = self.position(stream) else { return Ok(()) };
                let Some(request) = self.unanswered.remove(at) else { return Ok(()) };
                let is_short = expected(&thread_state.plan, request.number)
                    .is_some_and(|body| body.len() != request.body_at);
                if is_short || !request.has_head {
                    let text = "body is shorter than the expected body";
                    return Err(ConnectionFailure::new(FailureKind::WrongBytes, text));
                }
                self.is_blocked = false;
                let Some(traffic) = traffic.first_mut() else { return Ok(()) };
                traffic.tracker.answered(thread_state, request.body_at);
                self.send(&mut traffic.tracker, thread_state);
            }
            Event::Reset { stream, code, violation } if self.position(stream).is_some() => {
                return Err(reset(code, violation));
            }
            _ => {}
        }
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

    /// Sends due requests, as many as the server permits.
    pub(super) fn fill(
        &mut self,
        exchanges: &mut Exchanges<'_>,
        thread_state: &ThreadState,
    ) -> Result<(), ConnectionFailure> {
        let plan: Arc<LoadPlan> = Arc::clone(&thread_state.plan);
        let request = &plan.request;
        let target = RequestTarget::new(&request.method, "https", &plan.target.host, &plan.target.path);
        while let Some(number) = self.due.front().copied() {
            let body = request.has_body.then(|| plan.corpus.message(number));
            let length = body.map(|body| body.len().to_string());
            let headers = request.headers.iter().map(|(name, value)| (&**name, &**value));
            let headers = headers.chain(length.as_deref().map(|length| ("content-length", length)));
            let sent = exchanges.send_request(&target, headers, body.is_none());
            let text = "the server accepts no further streams";
            let sent = sent.map_err(|_| ConnectionFailure::new(FailureKind::Closed, text))?;
            self.is_blocked = sent.is_none();
            let Some(stream) = sent else { return Ok(()) };
            if let Some(body) = body {
                // The stream is open.
                let _ = exchanges.send_data(stream, Bytes::copy_from_slice(body), true);
            }
            self.due.pop_front();
            self.unanswered.push_back(UnansweredRequest { stream, number, body_at: 0, has_head: false });
        }
        Ok(())
    }
}

/// The expected body of an answer.
fn expected(plan: &LoadPlan, number: u64) -> Option<&[u8]> {
    match &plan.request.expect {
        ExpectedBody::Any => None,
        ExpectedBody::Echo => Some(plan.corpus.message(number)),
        ExpectedBody::Exact(body) => Some(body),
    }
}
