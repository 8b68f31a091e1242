//! Requests that wait while the client does not take earlier answers.
//!
//! An answer is built when its request is executed, and the client decides when it takes the answer. So a connection
//! whose queued answers exceed [`max_queued_answers`](crate::HttpConfig::with_max_queued_answers) executes no further
//! request, in the order of streams, until some of them have left. Opening handshakes do not wait: WebSockets have
//! limits of their own. Files count nothing: they are read as windows open. A streaming response counts with its queue.
//! Blocking work puts its result into memory whether the answer is polled or not, so it counts from its start until
//! then, with a [reserve](BLOCKING_RESERVE).

use std::mem;
use std::rc::Rc;

use super::{OpenedSocket, RequestStreams, StreamExchange, StreamReset, StreamStage, StreamUpload};
use crate::exchange::HttpExchange;
use crate::shared::WorkerShared;

/// Part of [`RequestStreams`]: which requests are executed now.
pub(crate) trait WaitingRequests: RequestStreams {
    /// Returns whether the queued answers exceed their limit.
    fn is_full(&mut self, shared: &WorkerShared) -> bool {
        let reserved = self.table().blocking().saturating_mul(BLOCKING_RESERVE);
        self.queued_answers().saturating_add(reserved) > shared.services.http.max_queued_answers
    }

    /// Returns whether a complete request must wait. Requests are executed in order.
    fn must_wait(&mut self, shared: &WorkerShared) -> bool {
        self.table().has_waiting || self.is_full(shared)
    }

    /// Lets a complete request wait. If the requests that wait exceed the limit of queued answers too, it is refused.
    fn wait(&mut self, stream: Self::Id, request: Box<StreamUpload>, shared: &WorkerShared) {
        if self.table().waiting() > shared.services.http.max_queued_answers {
            return self.cancel(stream, StreamReset::Refused, shared);
        }
        if let Some(at) = self.table().position(stream) {
            self.table().exchanges[at].stage = StreamStage::Waiting(request);
            self.table().has_waiting = true;
        }
    }

    /// Refuses the requests that wait: the server stops, and the client does not take the answers before theirs.
    fn refuse_waiting(&mut self, shared: &WorkerShared) {
        let exchanges = self.table().exchanges.iter();
        let waiting = exchanges.filter(|exchange| matches!(exchange.stage, StreamStage::Waiting(_)));
        let streams: Vec<Self::Id> = waiting.map(|exchange| exchange.stream).collect();
        for stream in streams {
            self.cancel(stream, StreamReset::Refused, shared);
        }
    }

    /// Answers a request without a body, or lets it wait.
    fn respond_in_turn(&mut self, stream: Self::Id, exchange: &HttpExchange<'_>, shared: &mut WorkerShared) {
        if !self.must_wait(shared) {
            return self.respond(stream, exchange, shared);
        }
        let request = StreamUpload { request: exchange.retain(), body: Vec::new(), held: 0 };
        self.wait(stream, Box::new(request), shared);
    }

    /// Answers a request whose body is complete.
    fn respond_to_upload(&mut self, stream: Self::Id, request: &StreamUpload, shared: &mut WorkerShared) {
        self.with_request(stream, request, shared, |this, exchange, shared| {
            this.respond(stream, exchange, shared);
        });
    }

    /// Lends the exchange of a retained request to `then`.
    fn with_request(
        &mut self,
        stream: Self::Id,
        request: &StreamUpload,
        shared: &mut WorkerShared,
        then: impl FnOnce(&mut Self, &HttpExchange<'_>, &mut WorkerShared),
    ) {
        let table = self.table();
        let Some(at) = table.position(stream) else { return };
        let (peer, started) = (table.peer, Some(table.exchanges[at].started));
        let router = Rc::clone(&shared.router);
        request.request.with_exchange(&request.body, peer, started, &router, |exchange| {
            then(self, exchange, shared);
        });
    }

    /// Polls the answers whose futures were woken, and executes requests that wait, while queued answers are within
    /// their limit, and until one of the answers opens a socket.
    fn poll_answers(&mut self, shared: &mut WorkerShared) -> Option<Box<OpenedSocket>> {
        loop {
            if let Some(opened) = self.poll_within_limit(shared) {
                return Some(opened);
            }
            self.send_pieces(shared);
            if !self.table().has_waiting || self.is_full(shared) {
                return None;
            }
        }
    }

    /// Does the same, without sending the answers.
    fn poll_within_limit(&mut self, shared: &mut WorkerShared) -> Option<Box<OpenedSocket>> {
        self.table().has_waiting = false;
        let mut at = 0;
        while let Some(exchange) = self.table().exchanges.get(at) {
            let stream = exchange.stream;
            if exchange.can_continue() {
                // The result of blocking work is in memory already.
                if !exchange.is_blocking() && self.must_wait(shared) {
                    self.table().has_waiting = true;
                    at += 1;
                    continue;
                }
                self.continue_exchange(at, shared);
                if let Some(opened) = self.table().opened.take() {
                    // The caller continues with the others.
                    self.table().has_waiting = true;
                    return Some(opened);
                }
            }
            // An exchange that ended is no longer there.
            let exchanges = &self.table().exchanges;
            at += usize::from(exchanges.get(at).is_some_and(|exchange| exchange.stream == stream));
        }
        None
    }

    /// Executes a request that waits, or polls a pending answer.
    fn continue_exchange(&mut self, at: usize, shared: &mut WorkerShared) {
        let exchange = &mut self.table().exchanges[at];
        let stream = exchange.stream;
        if !matches!(exchange.stage, StreamStage::Waiting(_)) {
            return self.poll_answer(stream, shared);
        }
        let stage = mem::replace(&mut exchange.stage, StreamStage::Answering);
        if let StreamStage::Waiting(request) = stage {
            self.respond_to_upload(stream, &request, shared);
            if !request.body.is_empty() {
                self.open_windows(shared.services.http.max_body);
            }
        }
    }
}

impl<S: RequestStreams> WaitingRequests for S {}

/// Assumed memory of an answer that a thread of the pool computes, in bytes. With the default limit of queued answers,
/// the threads work on at most nine requests of a connection.
const BLOCKING_RESERVE: usize = 128 << 10;

impl<I> StreamExchange<I> {
    /// Returns whether the request waits to be executed, or the future of its answer was woken.
    fn can_continue(&self) -> bool {
        match &self.stage {
            StreamStage::Waiting(_) => true,
            StreamStage::Pending(pending) => pending.is_woken(),
            _ => false,
        }
    }

    /// Returns whether a thread of the pool computes the answer, or has done so.
    pub(super) fn is_blocking(&self) -> bool {
        matches!(&self.stage, StreamStage::Pending(pending) if pending.is_blocking)
    }
}
