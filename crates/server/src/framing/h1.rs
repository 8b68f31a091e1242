//! HTTP/1.1: one exchange at a time on a connection, which may become one socket.

mod answer;
mod receive;

use std::mem;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::{Buf, BytesMut};
use sinews_engine::ConnId;
use sinews_http::HeadScanner;
use sinews_http::h2::PREFACE;
use sinews_proto::Time;
use sinews_proto::handshake::Refusal;
use sinews_session::{Flow, Outbound};

use self::answer::AnswerContext;
use self::receive::{RequestStep, Upload};
use crate::exchange::{PendingAnswer, RetainedRequest};
use crate::framing::{LINGER, LINGER_STOPPING, write_deadline};
use crate::http::HttpConfig;
use crate::request::ResponseBody;
use crate::shared::WorkerShared;
use crate::socket::AcceptedUpgrade;
use crate::timer::NEVER;

/// One HTTP/1.1 connection's state.
#[derive(Debug)]
pub(crate) struct H1Conn {
    conn: ConnId,
    /// Partial request, or pipelined requests.
    buffer: BytesMut,
    scanner: HeadScanner,
    stage: HttpStage,
    pub(crate) outbound: Outbound,
    pub(crate) paused: bool,
    /// No further request is read: queued answers and the current one leave, then the connection closes.
    closing: bool,
    /// It was ended while it was idle.
    ended_idle: bool,
    /// The client may be sending an answered request's body: received bytes extend the wait for its end.
    discards_body: bool,
    /// No request has begun: the first bytes may be the HTTP/2 preface.
    is_first: bool,
    /// Start of the current request, its body, or the connection.
    started: Option<Time>,
    /// When bytes were last received.
    received: Time,
    /// Time when an answer was queued, or answer bytes left.
    last_progress: Time,
    /// When the loop's timer fires.
    pub(crate) armed: Time,
    pub(crate) peer: SocketAddr,
}

/// Meaning of the next input.
#[derive(Debug, Default)]
enum HttpStage {
    /// A request's head.
    #[default]
    Head,
    /// A request's body with `len` bytes, buffered until it is complete.
    Body { request: Box<RetainedRequest>, len: usize },
    /// A chunked body.
    Upload(Box<Upload>),
    /// A body that is discarded, since its request is answered.
    DiscardBody { left: usize, whole: usize },
    /// None: the answer is pending.
    PendingAnswer(Box<PendingAnswer>, AnswerContext),
    /// None: the rest of a file, or a body that is encoded in pieces, is queued.
    Sending(Box<SentBody>),
    /// None: the connection becomes a response's body.
    Streaming(Box<AcceptedUpgrade>),
}

/// The rest of a body that is sent in pieces.
#[derive(Debug)]
pub(crate) struct SentBody {
    body: ResponseBody,
    /// Its length is unknown.
    is_chunked: bool,
}

/// Result of handling input.
pub(crate) enum Handled {
    /// All requests that can be answered are answered.
    Waiting,
    /// The rest of the input belongs to the WebSocket.
    Upgraded(AcceptedUpgrade, Leftover),
}

/// Input after an upgrade.
pub(crate) enum Leftover {
    /// The chunk from this offset on.
    Chunk(usize),
    /// Buffered input.
    Buffered(BytesMut),
}

impl H1Conn {
    /// Continues a connection after a response's body, whose end is in `outbound`.
    pub(crate) fn after_body(
        conn: ConnId,
        peer: SocketAddr,
        outbound: Outbound,
        keep_alive: bool,
        now: Time,
    ) -> Self {
        let new = Self::new(conn, peer, now);
        Self { outbound, closing: !keep_alive, is_first: false, started: None, ..new }
    }

    pub(crate) fn new(conn: ConnId, peer: SocketAddr, now: Time) -> Self {
        Self {
            conn,
            buffer: BytesMut::new(),
            scanner: HeadScanner::new(),
            stage: HttpStage::Head,
            outbound: Outbound::default(),
            paused: false,
            closing: false,
            ended_idle: false,
            discards_body: false,
            is_first: true,
            started: Some(now),
            received: now,
            last_progress: now,
            armed: NEVER,
            peer,
        }
    }

    /// Returns whether the connection is idle: no partial request, no pending or queued answer.
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_partial_request() && self.outbound.is_empty()
    }

    /// Returns whether the connection has received no bytes yet.
    pub(crate) fn is_new(&self) -> bool {
        self.is_idle() && self.started.is_some()
    }

    /// Returns an incomplete request's memory, in bytes.
    pub(crate) fn incomplete(&self) -> usize {
        let retained = match &self.stage {
            HttpStage::Body { request, .. } => request.len(),
            HttpStage::Upload(upload) => upload.len(),
            _ => 0,
        };
        self.buffer.capacity() + retained
    }

    /// Returns whether a request has arrived in part, or its answer is pending.
    fn has_partial_request(&self) -> bool {
        !self.buffer.is_empty() || !matches!(self.stage, HttpStage::Head)
    }

    /// Returns whether the next input belongs to a request that is answered already.
    fn is_answered(&self) -> bool {
        match &self.stage {
            HttpStage::DiscardBody { .. } | HttpStage::Sending(_) | HttpStage::Streaming(_) => true,
            HttpStage::Upload(upload) => upload.is_discarded(),
            HttpStage::Head | HttpStage::Body { .. } | HttpStage::PendingAnswer(..) => false,
        }
    }

    /// Returns whether an answer is pending: later requests wait.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.stage, HttpStage::PendingAnswer(..) | HttpStage::Sending(_) | HttpStage::Streaming(_))
    }

    /// Returns whether the last answer is queued.
    pub(crate) fn is_finished(&self) -> bool {
        self.closing && !self.is_busy()
    }

    /// Ends input: the peer has closed its side, or no further request is read. The current request is finished.
    pub(crate) fn end(&mut self) {
        self.closing = true;
    }

    /// Ends an idle connection. A connection whose last answer has just left waits for the peer's end instead: a reset
    /// could overtake the answer.
    pub(crate) fn end_idle(&mut self) {
        self.ended_idle |= !self.closing;
        self.closing = true;
    }

    /// Returns whether the connection was ended while it was idle: nothing is in flight.
    pub(crate) fn has_ended_idle(&self) -> bool {
        self.ended_idle
    }

    /// Returns whether a send's completion can wait: no state depends on it.
    pub(crate) fn finish_may_wait(&self) -> bool {
        !self.paused && !self.closing && !self.is_busy() && !self.outbound.has_pending()
    }

    /// Returns the deadline for the peer or for a pending answer. `stopping`: since when the server stops.
    pub(crate) fn deadline(&self, config: &HttpConfig, stopping: Option<Time>) -> Time {
        let written = write_deadline(self.last_progress, stopping, config);
        match (&self.stage, self.started) {
            (HttpStage::PendingAnswer(pending, _), _) => {
                let answered = pending.since + config.response_timeout;
                if self.outbound.is_empty() { answered } else { answered.min(written) }
            }
            (HttpStage::Sending(_) | HttpStage::Streaming(_), _) => written,
            _ if self.closing && self.outbound.is_empty() => self.linger_deadline(config, stopping.is_some()),
            _ if self.closing || !self.outbound.is_empty() => written,
            // Counted from the first byte: bytes that drip slowly do not extend it.
            (HttpStage::Head, Some(started)) => started + config.head_timeout,
            (HttpStage::Head, None) => self.last_progress + config.keep_alive_timeout,
            (HttpStage::Body { .. }, _) => self.body_deadline(self.buffer.len(), config),
            (HttpStage::Upload(upload), _) => self.body_deadline(upload.body_len(), config),
            (HttpStage::DiscardBody { left, whole }, _) => self.body_deadline(whole - left, config),
        }
    }

    /// Returns when the wait for the client's end expires, after the last answer.
    fn linger_deadline(&self, config: &HttpConfig, stopping: bool) -> Time {
        if stopping {
            return self.last_progress + LINGER_STOPPING;
        }
        let received = if self.discards_body { self.received } else { self.last_progress };
        let expires = self.last_progress.max(received) + LINGER;
        expires.min(self.last_progress + config.write_timeout)
    }

    /// Returns the deadline for a body with `bytes` received so far.
    fn body_deadline(&self, bytes: usize, config: &HttpConfig) -> Time {
        // The client may have waited for 100 (Continue) until `last_progress`.
        let idle = self.received.max(self.last_progress) + config.body_idle_timeout;
        idle.min(config.upload_deadline(self.started.unwrap_or(self.received), bytes))
    }

    /// Returns whether to receive more.
    pub(crate) fn flow(&self) -> Flow {
        if self.paused { Flow::Pause } else { Flow::Continue }
    }

    /// Notes that answer bytes have left.
    pub(crate) fn note_progress(&mut self, now: Time) {
        self.last_progress = now;
    }

    /// Returns whether the connection begins with the HTTP/2 preface.
    pub(crate) fn begins_http2(&mut self, chunk: &[u8]) -> bool {
        if !self.is_first {
            return false;
        }
        // The first line: HTTP/1.1 has no method `PRI`.
        let line = &PREFACE[..16];
        let begin = self.buffer.iter().chain(chunk).take(line.len());
        let received = begin.clone().count();
        let is_equal = begin.eq(&line[..received]);
        self.is_first = is_equal && received < line.len();
        is_equal && received == line.len()
    }

    /// Takes the connection's buffered beginning.
    pub(crate) fn take_buffer(&mut self) -> BytesMut {
        mem::take(&mut self.buffer)
    }

    pub(crate) fn receive(&mut self, chunk: &[u8], shared: &mut WorkerShared) -> Handled {
        self.received = shared.services.now;
        if self.closing {
            return Handled::Waiting;
        }
        // At most one chunk is received while an answer is pending. A peer that sends none is still received from,
        // so that its close is noticed.
        self.paused |= self.is_busy();
        if !self.buffer.is_empty() || self.paused {
            self.buffer.extend_from_slice(chunk);
            return if self.paused { Handled::Waiting } else { self.resume(shared) };
        }
        match self.handle(chunk, shared) {
            (used, None) => {
                self.buffer_rest(&chunk[used..], shared.services.now);
                Handled::Waiting
            }
            (used, Some(upgrade)) => Handled::Upgraded(upgrade, Leftover::Chunk(used)),
        }
    }

    /// Handles buffered input.
    pub(crate) fn resume(&mut self, shared: &mut WorkerShared) -> Handled {
        self.paused = false;
        let mut buffer = mem::take(&mut self.buffer);
        let (used, upgrade) = self.handle(&buffer, shared);
        buffer.advance(used);
        if let Some(upgrade) = upgrade {
            return Handled::Upgraded(upgrade, Leftover::Buffered(buffer));
        }
        if !buffer.is_empty() && !self.closing {
            self.buffer = buffer;
            self.started.get_or_insert(shared.services.now);
        }
        Handled::Waiting
    }

    /// Buffers a request's beginning.
    fn buffer_rest(&mut self, rest: &[u8], now: Time) {
        if !rest.is_empty() && !self.closing {
            self.buffer.extend_from_slice(rest);
            self.started.get_or_insert(now);
        }
    }

    /// Answers requests until the input is consumed, an answer ends the connection or is pending, the outbound queue is
    /// above its high-water mark, or a request is an upgrade. Returns the consumed byte count.
    fn handle(&mut self, input: &[u8], shared: &mut WorkerShared) -> (usize, Option<AcceptedUpgrade>) {
        let router = Rc::clone(&shared.router);
        let mut at = 0;
        while at < input.len() && !self.closing {
            let topics = &shared.services.topics;
            let published = topics.has_published() && topics.is_full();
            if published || self.is_busy() || self.outbound.len() > shared.services.http.high_water {
                self.paused = true;
                break;
            }
            match self.step(&input[at..], &router, shared) {
                RequestStep::Used(used) => {
                    at += used;
                    if let Some(upgrade) = self.take_streaming() {
                        return (at, Some(upgrade));
                    }
                }
                RequestStep::NeedMore => break,
                RequestStep::Upgrade(upgrade, used) => return (at + used, Some(upgrade)),
            }
        }
        (at, None)
    }

    /// Takes the body of a pending answer that streams, with the input behind its request.
    pub(crate) fn take_body(&mut self) -> Option<(AcceptedUpgrade, Leftover)> {
        let upgrade = self.take_streaming()?;
        Some((upgrade, Leftover::Buffered(self.take_buffer())))
    }

    /// Takes the body of a response whose head is queued.
    fn take_streaming(&mut self) -> Option<AcceptedUpgrade> {
        match mem::take(&mut self.stage) {
            HttpStage::Streaming(upgrade) => Some(*upgrade),
            stage => {
                self.stage = stage;
                None
            }
        }
    }

    /// Handles a timeout. Returns whether the connection closes at once.
    pub(crate) fn time_out(&mut self, shared: &mut WorkerShared) -> bool {
        if let HttpStage::PendingAnswer(pending, _) = &self.stage {
            if pending.since + shared.services.http.response_timeout > shared.services.now {
                // The peer takes no bytes from earlier answers.
                return true;
            }
            self.time_out_answer(shared);
            return false;
        }
        let owed_nothing =
            self.closing || !self.outbound.is_empty() || self.is_answered() || !self.has_partial_request();
        if !owed_nothing {
            (self.buffer, self.stage) = (BytesMut::new(), HttpStage::Head);
            let timeout = Refusal::new(408).map(|refusal| refusal.with_body("request timeout\n"));
            if let Ok(timeout) = timeout {
                self.reject(&timeout, shared);
            }
        }
        owed_nothing
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Other clients have no listener while the server stops.
    #[test]
    fn stop_gives_a_client_at_most_a_second() {
        let (config, second) = (HttpConfig::default(), Duration::from_secs(1));
        let [early, progress, late] = [1, 2, 3].map(|seconds| Time::ZERO + second * seconds);
        // It takes no answer bytes.
        assert_eq!(write_deadline(progress, None, &config), progress + config.write_timeout);
        assert_eq!(write_deadline(progress, Some(early), &config), progress + second);
        assert_eq!(write_deadline(progress, Some(late), &config), late + second);
        // It has all answers, and does not end its side.
        let mut conn = H1Conn::new(ConnId::from_bits(1), ([127, 0, 0, 1], 1).into(), progress);
        conn.closing = true;
        assert_eq!(conn.deadline(&config, None), progress + LINGER);
        assert_eq!(conn.deadline(&config, Some(early)), progress + second);
    }
}
