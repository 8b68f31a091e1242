//! Receives events of the machine.

use std::mem;

use sinews_http::h2::Event;
use sinews_proto::Time;

use super::{H2Conn, SocketEvent};
use crate::framing::streams::RequestStreams as _;
use crate::metrics::Http2Fault;
use crate::shared::WorkerShared;

impl H2Conn {
    /// Handles input from `at` on until it is consumed, reads are paused, or a socket is concerned. `None`: no event is
    /// left.
    pub(crate) fn handle(
        &mut self,
        input: &[u8],
        at: &mut usize,
        shared: &mut WorkerShared,
    ) -> Option<SocketEvent> {
        let now = shared.services.now;
        // One buffer for all connections of the thread.
        let mut fields = mem::take(&mut shared.fields);
        let mut found = None;
        while found.is_none() && !self.closing && *at < input.len() {
            let topics = &shared.services.topics;
            let published = topics.has_published() && topics.is_full();
            if published || self.outbound.len() > shared.services.http.high_water {
                self.paused = true;
                break;
            }
            let mut rest = &input[*at..];
            let received = self.machine.receive(&mut rest, &mut fields, now.since(Time::ZERO));
            *at = input.len() - rest.len();
            match received {
                Ok(Some(event)) => found = self.handle_event(event, *at, shared),
                Ok(None) => break,
                Err(error) => self.fail(error, shared),
            }
        }
        shared.fields = fields;
        if found.is_none() {
            self.end_input(shared);
        }
        found
    }

    /// Updates the state of the connection after its input.
    fn end_input(&mut self, shared: &mut WorkerShared) {
        let faults = [Http2Fault::Protocol, Http2Fault::RefusedStream];
        for (fault, count) in faults.into_iter().zip(self.machine.take_rejected()) {
            (0..count).for_each(|_| shared.services.counters.http2_reset.add(fault));
        }
        let partial = self.machine.partial_block();
        if self.block_since.map(|(block, _)| block) != partial {
            self.block_since = partial.map(|block| (block, shared.services.now));
        }
        self.send_pieces(shared);
    }

    /// Handles an event of input that ends at `end`.
    fn handle_event(
        &mut self,
        event: Event<'_>,
        end: usize,
        shared: &mut WorkerShared,
    ) -> Option<SocketEvent> {
        match event {
            Event::Request { stream, head, ends } => self.receive_request(stream, &head, ends, shared),
            Event::HeadTooLarge { stream, ends } => {
                self.reject_head(stream, ends, shared);
            }
            Event::Data { stream, data, ends } => {
                if self.table.position(stream).is_none() {
                    return self.socket_data(stream, end - data.len()..end, ends);
                }
                self.receive_data(stream, data, ends, shared);
            }
            Event::Trailers { stream, .. } => {
                if self.table.position(stream).is_none() {
                    return self.socket_data(stream, end..end, true);
                }
                self.receive_data(stream, &[], true, shared);
            }
            Event::Reset { stream, code, violation } => {
                if let Some(rule) = violation {
                    tracing::debug!(peer = %self.table.peer, %code, rule, "HTTP/2 stream is reset");
                    shared.services.counters.http2_reset.add(code.into());
                }
                self.remove_reset(stream, shared);
                return self.sockets.get(stream).map(SocketEvent::Reset);
            }
            Event::GoAway { .. } => self.ended = true,
            Event::WindowOpened { stream } => self.sockets.unblock(stream),
            // Each send looks at the windows.
            _ => {}
        }
        self.table.opened.take().map(SocketEvent::Opened)
    }
}
