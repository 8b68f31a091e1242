//! HTTP/2: many exchanges and sockets at once on a connection.
//!
//! ```text
//!   input ─▶ H2Connection: events ─┬▶ RequestStreams: exchanges ─▶ frames
//!                                  └▶ socket: Session and Handler, of the worker ─▶ frames
//! ```
//!
//! Control frames are queued by the machine until no send is in flight: a peer that does not read them is disconnected
//! when their queue is full.

mod answer;
mod keepalive;
mod receive;
mod sockets;

use std::mem;
use std::net::SocketAddr;

use bytes::{Buf, BytesMut};
use sinews_engine::ConnId;
use sinews_http::h2::{AbuseLimits, Config, Error, ErrorCode, H2Connection, StreamId};
use sinews_proto::Time;
use sinews_session::{Flow, Outbound};

use self::keepalive::PingState;
pub(crate) use self::sockets::SocketEvent;
use super::streams::{ExchangeTable, RequestStreams as _, SocketTable, StreamExchange, StreamStage};
use crate::framing::{LINGER, LINGER_STOPPING, write_deadline};
use crate::http::HttpConfig;
use crate::metrics::Http2Fault;
use crate::shared::WorkerShared;
use crate::timer::NEVER;

/// State of one HTTP/2 connection.
pub(crate) struct H2Conn {
    machine: H2Connection,
    pub(crate) table: ExchangeTable<StreamId>,
    pub(crate) sockets: SocketTable<StreamId>,
    /// Input that waits while reads are paused.
    buffer: BytesMut,
    pub(crate) outbound: Outbound,
    pub(crate) paused: bool,
    /// The last frame is queued: the connection closes after it.
    closing: bool,
    /// The peer sends no further request.
    ended: bool,
    /// The peer has ended its side, and the windows stop an answer for ever.
    is_stuck: bool,
    /// Start of a graceful stop.
    stopping_since: Option<Time>,
    started: Time,
    /// The incomplete header block, and when it began, or when reads resumed.
    block_since: Option<(u32, Time)>,
    keepalive: PingState,
    /// Time when output was queued, or bytes of it left.
    last_progress: Time,
    /// Time when DATA was queued.
    last_data: Time,
    /// When the loop's timer fires.
    pub(crate) armed: Time,
}

impl H2Conn {
    pub(crate) fn new(conn: ConnId, peer: SocketAddr, shared: &WorkerShared) -> Self {
        let http = &shared.services.http;
        let streams = http.http2_max_streams;
        let config = Config::new().with_head(http.head).with_max_streams(streams);
        let config = config.with_abuse_limits(AbuseLimits::for_streams(streams)).with_extended_connect(true);
        let now = shared.services.now;
        shared.services.counters.http2_connections.add(1);
        Self {
            machine: H2Connection::server(config),
            table: ExchangeTable::new(conn, peer, now),
            sockets: SocketTable::new(),
            buffer: BytesMut::new(),
            outbound: Outbound::default(),
            paused: false,
            closing: false,
            ended: false,
            is_stuck: false,
            stopping_since: None,
            started: now,
            block_since: None,
            keepalive: PingState::new(now),
            last_progress: now,
            last_data: now,
            armed: NEVER,
        }
    }

    /// Returns the bytes of queued output, and of bodies that wait for windows.
    pub(crate) fn queued(&self) -> usize {
        self.outbound.len() + self.table.outgoing()
    }

    /// Returns the bytes of incomplete requests, and of the state of the connection.
    pub(crate) fn incomplete(&self) -> usize {
        self.buffer.capacity() + self.machine.memory() + self.sockets.memory() + self.table.incomplete()
    }

    /// Returns whether the connection has neither exchanges nor sockets.
    fn is_idle(&self) -> bool {
        self.table.exchanges.is_empty() && self.sockets.is_empty()
    }

    /// Returns whether the last frame is queued.
    pub(crate) fn is_finished(&self) -> bool {
        self.closing || self.machine.is_drained() || self.ended && self.is_idle()
    }

    /// Ends input: the peer has closed its side. Answers are finished.
    pub(crate) fn end(&mut self) {
        self.ended = true;
        self.table.exchanges.retain(|exchange| exchange.is_received);
    }

    /// Resets the requests that wait, once an answer is stuck: the client does not take theirs either.
    fn drop_stuck_requests(&mut self) {
        if !mem::take(&mut self.is_stuck) {
            return;
        }
        let Self { machine, table, .. } = self;
        table.exchanges.retain(|exchange| {
            let waits = matches!(exchange.stage, StreamStage::Waiting(_));
            if waits {
                machine.reset(exchange.stream, ErrorCode::CANCEL);
            }
            !waits
        });
    }

    /// Takes the sockets that cannot send their output any more: the peer has closed its side, so that no window opens.
    pub(crate) fn take_stuck_sockets(&mut self) -> Vec<ConnId> {
        if self.ended { self.sockets.take_blocked() } else { Vec::new() }
    }

    /// Drops all requests and answers of a connection that closes.
    pub(crate) fn drop_answers(&mut self) {
        self.table.drop_answers();
        self.buffer = BytesMut::new();
    }

    /// Starts a graceful stop: GOAWAY, then the open streams are finished.
    pub(crate) fn stop(&mut self, now: Time) {
        self.stopping_since.get_or_insert(now);
        self.machine.shut_down();
    }

    /// Returns whether the completion of a send can wait: no state depends on it.
    pub(crate) fn finish_may_wait(&self) -> bool {
        let is_sending =
            |exchange: &StreamExchange<StreamId>| matches!(exchange.stage, StreamStage::Sending(_));
        !self.paused
            && !self.is_finished()
            && !self.outbound.has_pending()
            && !self.machine.wants_write()
            && !self.table.has_waiting
            && !self.sockets.has_ready()
            && self.sockets.moved.is_empty()
            && !self.table.exchanges.iter().any(is_sending)
    }

    /// Moves control frames to the queue, unless a send is in flight.
    pub(crate) fn queue_control(&mut self, shared: &mut WorkerShared) {
        if self.machine.wants_write() && (self.closing || !self.outbound.is_sending()) {
            let Self { machine, outbound, .. } = self;
            if outbound.is_empty() {
                self.last_progress = shared.services.now;
            }
            outbound.pending_chain(&mut shared.resources).write(|out| machine.write_control(out));
        }
    }

    /// Returns the deadline of the peer or of a pending answer. `reads_paused`: the connection is not read.
    pub(crate) fn deadline(&self, config: &HttpConfig, reads_paused: bool) -> Time {
        let mut first = self.linger_deadline();
        if !self.outbound.is_empty() {
            first = first.min(write_deadline(self.last_progress, self.stopping_since, config));
        }
        if self.closing {
            return first;
        }
        first = first.min(self.block_deadline(config, reads_paused));
        if !self.machine.settings_acknowledged() {
            first = first.min(self.started + config.head_timeout);
        }
        first = first.min(self.ping_deadline(config, reads_paused));
        // An incomplete block has a deadline of its own.
        if self.is_idle() && self.block_since.is_none() {
            return first.min(self.table.idle_deadline(config));
        }
        first.min(self.table.deadline(config, self.stopping_since, |stream| self.shared_progress(stream)))
    }

    /// Returns when the wait for the client's end expires: after the last frame, and during a stop after the last
    /// stream.
    fn linger_deadline(&self) -> Time {
        match self.stopping_since {
            _ if !self.outbound.is_empty() => NEVER,
            Some(since) if self.closing || self.is_idle() => {
                since.max(self.last_progress).max(self.table.idle_since) + LINGER_STOPPING
            }
            None if self.closing => self.last_progress + LINGER,
            _ => NEVER,
        }
    }

    /// Returns the deadline of an incomplete header block.
    fn block_deadline(&self, config: &HttpConfig, reads_paused: bool) -> Time {
        match self.block_since {
            // The rest may have arrived.
            Some((_, since)) if !self.paused && !reads_paused => since + config.head_timeout,
            _ => NEVER,
        }
    }

    /// Returns when a silent peer is pinged, or given up.
    fn ping_deadline(&self, config: &HttpConfig, reads_paused: bool) -> Time {
        // Input that is not read proves nothing.
        if self.is_idle() || self.paused || reads_paused { NEVER } else { self.keepalive.deadline(config) }
    }

    /// Notes received bytes.
    pub(crate) fn note_input(&mut self, now: Time) {
        self.keepalive.note_input(now);
    }

    /// Notes that reads have resumed.
    pub(crate) fn note_resumed(&mut self, now: Time) {
        self.keepalive.note_input(now);
        self.block_since = self.block_since.map(|(block, _)| (block, now));
    }

    /// Handles a timeout. Returns whether the connection closes at once.
    pub(crate) fn time_out(&mut self, reads_paused: bool, shared: &mut WorkerShared) -> bool {
        let (config, now) = (std::sync::Arc::clone(&shared.services.http), shared.services.now);
        let has_output = !self.outbound.is_empty();
        let written = write_deadline(self.last_progress, self.stopping_since, &config);
        if has_output && written <= now || self.linger_deadline() <= now {
            return true;
        }
        if self.ping_deadline(&config, reads_paused) <= now {
            if !self.keepalive.start_ping(now) {
                tracing::debug!(peer = %self.table.peer, "HTTP/2 connection does not answer a ping");
                shared.services.counters.http2_failed.add(Http2Fault::PingTimeout);
                return true;
            }
            self.machine.ping(KEEPALIVE_PING);
        }
        let unacknowledged = !self.machine.settings_acknowledged();
        if self.block_deadline(&config, reads_paused) <= now {
            self.close(ErrorCode::ENHANCE_YOUR_CALM, shared);
        } else if unacknowledged && self.started + config.head_timeout <= now {
            self.close(ErrorCode::SETTINGS_TIMEOUT, shared);
        } else if self.is_idle() && self.block_since.is_none() {
            self.close(ErrorCode::NO_ERROR, shared);
        } else {
            self.time_out_streams(shared);
        }
        false
    }

    /// Ends the connection if its machine has failed outside of input: a call found the queue of control frames full.
    pub(crate) fn note_failure(&mut self, shared: &WorkerShared) {
        if let Some(error) = self.machine.error().filter(|_| !self.closing) {
            self.fail(error, shared);
        }
    }

    /// Ends the connection after an error of its machine, which has queued GOAWAY. Its streams exist no longer.
    fn fail(&mut self, error: Error, shared: &WorkerShared) {
        tracing::debug!(peer = %self.table.peer, %error, "HTTP/2 connection failed");
        shared.services.counters.http2_failed.add(error.code().into());
        self.table.exchanges.clear();
        (self.closing, self.last_progress) = (true, shared.services.now);
    }

    /// Ends the connection with GOAWAY.
    fn close(&mut self, code: ErrorCode, shared: &WorkerShared) {
        if code != ErrorCode::NO_ERROR {
            shared.services.counters.http2_failed.add(code.into());
        }
        self.machine.shut_down_now(code);
        self.table.exchanges.clear();
        self.closing = true;
        self.last_progress = shared.services.now;
    }

    /// Returns whether to receive more.
    pub(crate) fn flow(&self) -> Flow {
        if self.paused { Flow::Pause } else { Flow::Continue }
    }

    /// Bytes of output have left.
    pub(crate) fn note_progress(&mut self, now: Time) {
        self.last_progress = now;
        let is_queued = self.machine.wants_write() || !self.outbound.is_empty();
        self.keepalive.note_progress(now, is_queued);
    }

    /// Buffers input while earlier input waits. Returns whether it did.
    pub(crate) fn buffer_input(&mut self, chunk: &[u8]) -> bool {
        let waits = self.paused || !self.buffer.is_empty();
        if waits && !self.closing {
            self.buffer.extend_from_slice(chunk);
        }
        waits || self.closing
    }

    /// Keeps the input that was not handled.
    pub(crate) fn buffer_rest(&mut self, rest: &[u8]) {
        if !self.closing && !rest.is_empty() {
            self.buffer.extend_from_slice(rest);
        }
    }

    /// Takes the buffered input. Return its rest by [`put_buffer`](Self::put_buffer).
    pub(crate) fn take_buffer(&mut self) -> BytesMut {
        self.paused = false;
        mem::take(&mut self.buffer)
    }

    pub(crate) fn put_buffer(&mut self, mut buffer: BytesMut, used: usize) {
        buffer.advance(used);
        if !buffer.is_empty() && !self.closing {
            self.buffer = buffer;
        }
    }
}

/// Content of the pings that find lost peers.
const KEEPALIVE_PING: [u8; 8] = *b"keepaliv";

/// Limit of the queued bytes of bodies and sockets: about the capacity of a socket.
const QUEUED_MAX: usize = 128 << 10;
