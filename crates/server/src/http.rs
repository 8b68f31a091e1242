//! HTTP/1.1 state of one connection.

mod answer;
mod config;
mod receive;
mod write;

use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use sinews_engine::ConnId;
use sinews_proto::handshake::Refusal;
use sinews_proto::http::HeadScanner;
use sinews_proto::{Config, Negotiated, Time};
use sinews_session::{Flow, Outbound, Resources};

use self::answer::Answering;
pub use self::config::HttpConfig;
use self::receive::{Step, Upload};
use crate::client::TrustedProxies;
use crate::date::Date;
use crate::handler::Handler;
use crate::limits::{Gate, Pace};
use crate::metrics::Counters;
use crate::request::{Beside, FilePart};
use crate::router::Router;
use crate::shard::NEVER;
use crate::tasks::Tasks;
use crate::topics::Topics;

/// Shared state of a thread that requests are answered with.
pub(crate) struct Service<'a> {
    pub(crate) router: &'a Router,
    pub(crate) config: &'a HttpConfig,
    pub(crate) topics: &'a mut Topics,
    pub(crate) tasks: &'a Tasks,
    pub(crate) resources: &'a mut Resources,
    pub(crate) date: &'a mut Date,
    pub(crate) counters: &'a Counters,
    pub(crate) gate: &'a Gate,
    pub(crate) proxies: &'a TrustedProxies,
    pub(crate) now: Time,
    pub(crate) conn: ConnId,
    pub(crate) stopping: bool,
}

impl Service<'_> {
    /// Returns the part that a handler may use.
    fn beside(&mut self, elapsed: Duration) -> Beside<'_> {
        Beside { topics: self.topics, pool: self.tasks.pool(), elapsed, proxies: self.proxies }
    }
}

/// State of one connection.
#[derive(Debug)]
pub(crate) struct Http {
    /// Partial request, or pipelined requests.
    buffer: BytesMut,
    scanner: HeadScanner,
    stage: Stage,
    pub(crate) outbound: Outbound,
    pub(crate) paused: bool,
    /// No further request is read: queued answers and the current one leave, then the connection closes.
    ending: bool,
    /// Start of the current request, of its body, or of the connection.
    started: Option<Time>,
    /// Time of the last received bytes.
    received: Time,
    /// Time when an answer was queued, or bytes of an answer left.
    moved: Time,
    /// When the loop's timer fires.
    pub(crate) armed: Time,
    pub(crate) peer: SocketAddr,
}

/// Meaning of the next input.
#[derive(Debug, Default)]
enum Stage {
    /// The head of a request.
    #[default]
    Head,
    /// The body of a request, buffered after its head.
    Body { head: usize, whole: usize },
    /// A chunked body.
    Upload(Box<Upload>),
    /// A body that is discarded, since its request is answered.
    Unwanted { left: usize, whole: usize },
    /// None: the answer is pending.
    Answering(Box<Answering>),
    /// None: the rest of a file is queued.
    Sending(Box<FilePart>),
}

/// Request that becomes a WebSocket.
pub(crate) struct Upgrade {
    pub(crate) negotiated: Negotiated,
    pub(crate) handler: Box<dyn Handler>,
    pub(crate) config: Arc<Config>,
    pub(crate) pace: Option<Pace>,
}

/// Result of handling input.
pub(crate) enum Handled {
    /// All requests that can be answered are answered.
    Waiting,
    /// The rest of the input belongs to the WebSocket.
    Upgraded(Upgrade, Rest),
}

/// Input after an upgrade.
pub(crate) enum Rest {
    /// The chunk from this offset on.
    Chunk(usize),
    /// Buffered input.
    Kept(BytesMut),
}

impl Http {
    pub(crate) fn new(peer: SocketAddr, now: Time) -> Self {
        Self {
            buffer: BytesMut::new(),
            scanner: HeadScanner::new(),
            stage: Stage::Head,
            outbound: Outbound::default(),
            paused: false,
            ending: false,
            started: Some(now),
            received: now,
            moved: now,
            armed: NEVER,
            peer,
        }
    }

    /// Returns whether the connection is idle: no partial request, no pending or queued answer.
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_part() && self.outbound.is_empty()
    }

    /// Returns whether the connection has received no bytes yet.
    pub(crate) fn is_new(&self) -> bool {
        self.is_idle() && self.started.is_some()
    }

    /// Returns the memory of an incomplete request, in bytes.
    pub(crate) fn incomplete(&self) -> usize {
        let upload = if let Stage::Upload(upload) = &self.stage { upload.len() } else { 0 };
        self.buffer.capacity() + upload
    }

    /// Returns whether a request has arrived in part, or its answer is pending.
    fn has_part(&self) -> bool {
        !self.buffer.is_empty() || !matches!(self.stage, Stage::Head)
    }

    /// Returns whether the next input belongs to a request that is answered already.
    fn is_answered(&self) -> bool {
        match &self.stage {
            Stage::Unwanted { .. } | Stage::Sending(_) => true,
            Stage::Upload(upload) => upload.unwanted,
            Stage::Head | Stage::Body { .. } | Stage::Answering(_) => false,
        }
    }

    /// Returns whether an answer is pending: later requests wait.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.stage, Stage::Answering(_) | Stage::Sending(_))
    }

    /// Returns whether the last answer is queued.
    pub(crate) fn is_over(&self) -> bool {
        self.ending && !self.is_busy()
    }

    /// Ends input: the peer has closed its side, or no further request is read. The current request is finished.
    pub(crate) fn end(&mut self) {
        self.ending = true;
    }

    /// Returns whether the completion of a send can wait: no state depends on it.
    pub(crate) fn finish_may_wait(&self) -> bool {
        !self.paused && !self.ending && !self.is_busy() && !self.outbound.has_gathered()
    }

    /// Returns the deadline of the peer or of a pending answer.
    pub(crate) fn deadline(&self, config: &HttpConfig) -> Time {
        let written = self.moved + config.write_timeout;
        match (&self.stage, self.started) {
            (Stage::Answering(answering), _) => {
                let answered = answering.since + config.handler_timeout;
                if self.outbound.is_empty() { answered } else { answered.min(written) }
            }
            (Stage::Sending(_), _) => written,
            _ if self.ending || !self.outbound.is_empty() => written,
            // Counted from the first byte: a slow drip of bytes does not extend it.
            (Stage::Head, Some(started)) => started + config.head_timeout,
            (Stage::Head, None) => self.moved + config.keep_alive_timeout,
            (Stage::Body { head, .. }, _) => {
                self.body_deadline(self.buffer.len().saturating_sub(*head), config)
            }
            (Stage::Upload(upload), _) => self.body_deadline(upload.len(), config),
            (Stage::Unwanted { left, whole }, _) => self.body_deadline(whole - left, config),
        }
    }

    /// Returns the deadline of a body of which `bytes` have arrived.
    fn body_deadline(&self, bytes: usize, config: &HttpConfig) -> Time {
        // The client may have waited for 100 (Continue) until `moved`.
        let idle = self.received.max(self.moved) + config.body_idle_timeout;
        idle.min(config.upload_deadline(self.started.unwrap_or(self.received), bytes))
    }

    /// Returns whether to receive more.
    pub(crate) fn flow(&self) -> Flow {
        if self.paused { Flow::Pause } else { Flow::Continue }
    }

    /// Bytes of an answer have left.
    pub(crate) fn moved(&mut self, now: Time) {
        self.moved = now;
    }

    pub(crate) fn receive(&mut self, chunk: &[u8], service: &mut Service<'_>) -> Handled {
        if self.ending {
            return Handled::Waiting;
        }
        self.received = service.now;
        // At most one chunk is received while an answer is pending. A peer that sends none is still received from,
        // so that its close is noticed.
        self.paused |= self.is_busy();
        if !self.buffer.is_empty() || self.paused {
            self.buffer.extend_from_slice(chunk);
            return if self.paused { Handled::Waiting } else { self.resume(service) };
        }
        match self.handle(chunk, service) {
            (used, None) => {
                self.keep(&chunk[used..], service.now);
                Handled::Waiting
            }
            (used, Some(upgrade)) => Handled::Upgraded(upgrade, Rest::Chunk(used)),
        }
    }

    /// Handles buffered input.
    pub(crate) fn resume(&mut self, service: &mut Service<'_>) -> Handled {
        self.paused = false;
        let mut buffer = mem::take(&mut self.buffer);
        let (used, upgrade) = self.handle(&buffer, service);
        buffer.advance(used);
        if let Some(upgrade) = upgrade {
            return Handled::Upgraded(upgrade, Rest::Kept(buffer));
        }
        if !buffer.is_empty() && !self.ending {
            self.buffer = buffer;
            self.started.get_or_insert(service.now);
        }
        Handled::Waiting
    }

    /// Buffers the beginning of a request.
    fn keep(&mut self, rest: &[u8], now: Time) {
        if !rest.is_empty() && !self.ending {
            self.buffer.extend_from_slice(rest);
            self.started.get_or_insert(now);
        }
    }

    /// Answers requests until the input is consumed, an answer ends the connection or is pending, the outbound queue
    /// is above its high-water mark, or a request is an upgrade. Returns the number of consumed bytes.
    fn handle(&mut self, input: &[u8], service: &mut Service<'_>) -> (usize, Option<Upgrade>) {
        let mut at = 0;
        while at < input.len() && !self.ending {
            let published = service.topics.has_published() && service.topics.is_full();
            if published || self.is_busy() || self.outbound.len() > service.config.high_water {
                self.paused = true;
                break;
            }
            match self.step(&input[at..], service) {
                Step::Used(used) => at += used,
                Step::NeedMore => break,
                Step::Upgrade(upgrade, used) => return (at + used, Some(upgrade)),
            }
        }
        (at, None)
    }

    /// Handles a timeout. Returns whether the connection closes at once.
    pub(crate) fn time_out(&mut self, service: &mut Service<'_>) -> bool {
        if let Stage::Answering(answering) = &self.stage {
            if answering.since + service.config.handler_timeout > service.now {
                // The peer takes no bytes of earlier answers.
                return true;
            }
            self.give_up_answer(service);
            return false;
        }
        let owed_nothing = self.ending || !self.outbound.is_empty() || self.is_answered() || !self.has_part();
        if !owed_nothing {
            (self.buffer, self.stage) = (BytesMut::new(), Stage::Head);
            let timeout = Refusal::new(408).map(|refusal| refusal.with_body("request timeout\n"));
            if let Ok(timeout) = timeout {
                self.refuse(&timeout, service);
            }
        }
        owed_nothing
    }
}
