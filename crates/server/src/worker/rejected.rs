//! Connection that gets a rejection only.

use sinews_http::{HeadLimits, HeadScanner, HeaderSlots, RequestHead};
use sinews_proto::Time;
use sinews_proto::handshake::accept;
use sinews_session::{Outbound, Resources};

use crate::date::Date;
use crate::metrics::limit::Limit;
use crate::router::Router;

/// The rejection is sent when the request begins to arrive, since clients discard an answer without a request. Then
/// the sending side is closed, and further input is discarded: a reset would overtake the answer.
///
/// If a WebSocket route has a Close for clients beyond the limits, the whole head is awaited.
#[derive(Debug)]
pub(crate) struct RejectedConn {
    pub(crate) outbound: Outbound,
    limit: Limit,
    answered: bool,
    /// The incomplete head.
    head: Vec<u8>,
    scanner: HeadScanner,
}

impl RejectedConn {
    pub(crate) fn new(limit: Limit) -> Self {
        let (outbound, scanner) = (Outbound::default(), HeadScanner::new());
        Self { outbound, limit, answered: false, head: Vec::new(), scanner }
    }

    /// Handles input. Returns whether the answer is complete.
    pub(crate) fn receive(
        &mut self,
        input: &[u8],
        router: &Router,
        limits: &HeadLimits,
        resources: &mut Resources,
        date: &mut Date,
        now: Time,
    ) -> bool {
        if self.answered {
            return true;
        }
        if router.has_overload() {
            self.head.extend_from_slice(input);
            let (head, mut slots) = (std::mem::take(&mut self.head), HeaderSlots::new());
            match self.scanner.parse_request(&head, limits, &mut slots) {
                Ok(None) => {
                    // At most the size of a head.
                    self.head = head;
                    return false;
                }
                Ok(Some(parsed)) if self.close_socket(&parsed, router, resources) => return true,
                Ok(Some(_)) | Err(_) => {}
            }
        }
        self.answered = true;
        let refusal = self.limit.refusal();
        let dated = refusal.clone().with_header("Date", date.at(now));
        self.outbound
            .pending_chain(resources)
            .write(|out| dated.as_ref().unwrap_or(&refusal).write_response(out));
        true
    }

    /// Accepts a WebSocket whose route closes clients beyond the limits, and closes it. Returns whether the request is
    /// a valid handshake of such a route.
    fn close_socket(&mut self, head: &RequestHead<'_>, router: &Router, resources: &mut Resources) -> bool {
        let Some((route, overload)) = router.overload(head) else { return false };
        let Ok(accepted) = accept(head, &route.options) else { return false };
        let mut frames = Vec::new();
        overload.write_frames(resources, &mut frames);
        let chain = self.outbound.pending_chain(resources);
        let written = chain.write(|out| {
            // Without headers of the caller, a handshake of HTTP/1.1 is always written.
            accepted.write_response(&[], out).map(|()| out.extend_from_slice(&frames))
        });
        self.answered = written.is_ok();
        self.answered
    }
}
