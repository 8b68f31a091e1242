//! Requests on an HTTP/3 connection's streams.

use std::sync::Arc;

use bytes::Bytes;
use sinews_http::h3::{Event, QuicStreamId, RequestTarget};
use sinews_quic::Exchanges;

use super::reset;
use crate::load::failure::ConnectionFailure;
use crate::load::requests::StreamedRequests;
use crate::load::tracker::ThreadState;
use crate::load::traffic::SocketTraffic;
use crate::plan::LoadPlan;
use crate::tally::FailureKind;

/// One connection's requests.
#[derive(Debug)]
pub(crate) struct Http3Requests {
    /// The server's SETTINGS have arrived.
    is_connected: bool,
    pub(super) requests: StreamedRequests<QuicStreamId>,
}

impl Http3Requests {
    pub(crate) fn new() -> Self {
        Self { is_connected: false, requests: StreamedRequests::new() }
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_connected
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
                self.requests.receive_head(stream, head.status(), thread_state);
            }
            Event::Data { stream, data } => self.requests.receive_data(stream, data, thread_state)?,
            Event::End { stream } => self.requests.receive_end(stream, traffic, thread_state)?,
            Event::Reset { stream, code, violation } if self.requests.is_unanswered(stream) => {
                return Err(reset(code, violation));
            }
            _ => {}
        }
        Ok(())
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
        self.requests.fill(|number| {
            let body = request.has_body.then(|| plan.corpus.message(number));
            let length = body.map(|body| body.len().to_string());
            let headers = request.headers.iter().map(|(name, value)| (&**name, &**value));
            let headers = headers.chain(length.as_deref().map(|length| ("content-length", length)));
            let sent = exchanges.send_request(&target, headers, body.is_none());
            let text = "the server accepts no further streams";
            let sent = sent.map_err(|_| ConnectionFailure::new(FailureKind::Closed, text))?;
            if let (Some(stream), Some(body)) = (sent, body) {
                // The stream is open.
                let _ = exchanges.send_data(stream, Bytes::copy_from_slice(body), true);
            }
            Ok(sent)
        })
    }
}
