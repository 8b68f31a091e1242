//! HTTP/3: many exchanges and sockets at once on a QUIC connection.
//!
//! ```text
//!   datagrams ─▶ QuicEndpoint: events ─┬▶ RequestStreams: exchanges ─▶ Exchanges of the connection
//!                                      └▶ socket: Session and Handler, of the worker ─▶ Exchanges
//! ```
//!
//! The endpoint lends a connection while it reports an event. State that changes in between, such as a socket's output,
//! waits until the worker asks for the connection at its turn's end.

mod answer;
mod sessions;

use std::net::SocketAddr;
use std::time::Instant;

use sinews_engine::ConnId;
use sinews_http::h3::{Event, H3Code, QuicStreamId};
use sinews_proto::Time;
use sinews_quic::{ConnectionKey, Exchanges};

pub(crate) use self::sessions::{MessageStream, SessionEnd};
use super::streams::{ExchangeTable, OpenedSocket, RequestStreams as _, SocketTable, StreamReset};
use crate::framing::LINGER_STOPPING;
use crate::http::HttpConfig;
use crate::shared::WorkerShared;
use crate::timer::NEVER;

/// One HTTP/3 connection's state.
pub(crate) struct H3Conn {
    /// The connection's endpoint, and its key there.
    pub(crate) listener: usize,
    pub(crate) key: ConnectionKey,
    pub(crate) table: ExchangeTable<QuicStreamId>,
    pub(crate) sockets: SocketTable<QuicStreamId>,
    /// Message streams of WebTransport sessions; each has a socket.
    pub(crate) sessions: Vec<MessageStream>,
    /// Sessions in which the client has opened a stream since the last look.
    has_own_stream: Vec<QuicStreamId>,
    /// Changes to socket streams, in order.
    changes: Vec<SocketChange>,
    /// The connection is listed among those that the worker asks for at its turn's end.
    pub(crate) is_changed: bool,
    /// An answer's future was woken.
    pub(crate) is_woken: bool,
    /// The client was told to send no more requests.
    going_away_since: Option<Time>,
    closing: Option<(H3Code, &'static str)>,
    /// When the first stream was opened whose head has not arrived.
    awaits_head_since: Option<Time>,
    /// When reads have resumed; `None` while they are paused.
    reads_since: Option<Time>,
    /// Streams with unacknowledged content, and frames that were sent.
    unacknowledged: (usize, u64),
    /// When a frame was last sent.
    last_progress: Time,
    /// Bytes that the client has not acknowledged, and bytes for incomplete requests and state.
    pub(crate) memory: (usize, usize),
    /// When the worker looks at the deadline.
    pub(crate) armed: Time,
}

/// A change to a socket's stream.
enum SocketChange {
    Pause(QuicStreamId),
    Resume(QuicStreamId),
    End(QuicStreamId),
    Reset(QuicStreamId, StreamReset),
    EndSession { stream: QuicStreamId, ended: bool, end: SessionEnd },
}

/// Input that concerns a socket.
pub(crate) enum SocketInput<'e> {
    /// The answer to its request is queued.
    Opened(Box<OpenedSocket>),
    /// Bytes, and whether the peer sends no more.
    Data { socket: ConnId, data: &'e [u8], ends: bool },
    /// These sockets' streams are reset. They exist no longer.
    Reset(Vec<ConnId>),
}

/// A connection while its endpoint lends it.
pub(crate) struct H3Streams<'a, 'x> {
    pub(crate) conn: &'a mut H3Conn,
    pub(crate) exchanges: &'a mut Exchanges<'x>,
}

impl H3Conn {
    pub(crate) fn new(conn: ConnId, listener: usize, exchanges: &Exchanges<'_>, now: Time) -> Self {
        let peer: SocketAddr = exchanges.remote_address();
        Self {
            listener,
            key: exchanges.connection(),
            table: ExchangeTable::new(conn, peer, now),
            sockets: SocketTable::new(),
            sessions: Vec::new(),
            has_own_stream: Vec::new(),
            changes: Vec::new(),
            is_changed: false,
            is_woken: false,
            going_away_since: None,
            closing: None,
            awaits_head_since: None,
            reads_since: Some(now),
            unacknowledged: (0, 0),
            last_progress: now,
            memory: (0, 0),
            armed: NEVER,
        }
    }

    fn is_idle(&self) -> bool {
        self.table.exchanges.is_empty() && self.sockets.is_empty()
    }

    /// Returns whether the connection has neither requests nor unacknowledged answers.
    fn is_finished(&self) -> bool {
        self.is_idle() && self.unacknowledged.0 == 0
    }

    /// Returns the deadline for the client or for a pending answer.
    pub(crate) fn deadline(&self, config: &HttpConfig) -> Time {
        let first = self.head_deadline(config).min(self.sockets.due);
        if !self.is_idle() {
            return first.min(self.table.deadline(config, self.going_away_since, |_| Time::ZERO));
        }
        let rest = if let Some(since) = self.going_away_since {
            // The client is told that the server stops, and has no request.
            since.max(self.last_progress).max(self.table.idle_since) + LINGER_STOPPING
        } else if self.is_finished() {
            self.table.idle_deadline(config)
        } else {
            // An answer's end waits for the client.
            self.last_progress + config.write_timeout
        };
        first.min(rest)
    }

    /// Returns the first head's deadline.
    fn head_deadline(&self, config: &HttpConfig) -> Time {
        match (self.awaits_head_since, self.reads_since) {
            // A head may arrive while reads are paused.
            (Some(opened), Some(reads)) => opened.max(reads) + config.head_timeout,
            _ => NEVER,
        }
    }

    /// Notes whether reads are paused.
    pub(crate) fn note_reads(&mut self, are_paused: bool, now: Time) {
        self.reads_since = if are_paused { None } else { self.reads_since.or(Some(now)) };
    }

    /// Closes the connection when it is lent next.
    pub(crate) fn close(&mut self, code: H3Code, reason: &'static str) {
        self.closing.get_or_insert((code, reason));
    }

    /// Returns a socket's consumed bytes to its stream's window.
    pub(crate) fn resume_stream(&mut self, stream: QuicStreamId) {
        self.changes.push(SocketChange::Resume(stream));
    }

    /// Notes that the client has taken bytes from a stream. `is_blocked`: others wait.
    pub(crate) fn note_writable(&mut self, stream: QuicStreamId, is_blocked: bool, now: Time) {
        if !is_blocked {
            self.sockets.unblock(Some(stream));
        }
        if let Some(at) = self.table.position(stream) {
            self.table.exchanges[at].progress = now;
        }
    }

    /// Keeps a socket's window closed.
    pub(crate) fn pause_stream(&mut self, stream: QuicStreamId) {
        self.changes.push(SocketChange::Pause(stream));
    }

    /// Ends a socket's stream, behind all that is queued.
    pub(crate) fn end_stream(&mut self, stream: QuicStreamId) {
        self.changes.push(SocketChange::End(stream));
    }

    /// Removes a socket, and resets its stream unless it has ended.
    pub(crate) fn remove_socket(&mut self, stream: QuicStreamId, reset: StreamReset, now: Time) {
        self.changes.push(SocketChange::Reset(stream, reset));
        self.sockets.remove(stream);
        self.table.idle_since = now;
    }

    /// Returns whether socket state waits for the connection.
    pub(crate) fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }
}

impl H3Streams<'_, '_> {
    /// Handles an event.
    pub(crate) fn handle_event<'e>(
        &mut self,
        event: Event<'e>,
        shared: &mut WorkerShared,
    ) -> Option<SocketInput<'e>> {
        match event {
            Event::Request { stream, head } => self.receive_request(stream, &head, false, shared),
            Event::HeadTooLarge { stream } => self.reject_head(stream, false, shared),
            Event::Data { stream, data } => {
                if let Some(socket) = self.conn.sockets.get(stream) {
                    self.conn.note_input(stream);
                    return Some(SocketInput::Data { socket, data, ends: false });
                }
                self.receive_data(stream, data, false, shared);
            }
            Event::End { stream } => {
                if let Some(socket) = self.conn.sockets.get(stream) {
                    return Some(SocketInput::Data { socket, data: &[], ends: true });
                }
                self.receive_data(stream, &[], true, shared);
            }
            Event::Reset { stream, code, violation } => {
                if let Some(rule) = violation {
                    tracing::debug!(peer = %self.conn.table.peer, %code, rule, "HTTP/3 stream is reset");
                    shared.services.counters.http3_reset.add(1);
                }
                self.remove_reset(stream, shared);
                // A violation on its request's stream ends a session, too.
                let sockets = match self.conn.sockets.get(stream) {
                    Some(socket) => vec![socket],
                    None => self.conn.closed_session(stream),
                };
                return Some(SocketInput::Reset(sockets));
            }
            Event::SessionStream { stream, session } => self.accept_message_stream(stream, session, shared),
            Event::SessionClosed { session, .. } => {
                return Some(SocketInput::Reset(self.conn.closed_session(session)));
            }
            // The content's end follows trailers.
            _ => {}
        }
        self.conn.table.opened.take().map(SocketInput::Opened)
    }

    /// Executes changes to socket streams.
    pub(crate) fn execute_changes(&mut self) {
        for change in std::mem::take(&mut self.conn.changes) {
            match change {
                SocketChange::Pause(stream) => self.exchanges.pause_reads(stream),
                SocketChange::Resume(stream) => self.exchanges.resume_reads(stream),
                SocketChange::End(stream) if self.conn.carries_messages(stream) => {
                    self.exchanges.send_bytes(stream, bytes::Bytes::new(), true);
                }
                SocketChange::End(stream) => {
                    // A stream that exists no longer has ended.
                    let _ = self.exchanges.send_data(stream, bytes::Bytes::new(), true);
                }
                SocketChange::Reset(stream, reset) => self.reset_stream(stream, reset),
                SocketChange::EndSession { stream, ended, end } => self.end_session(stream, ended, end),
            }
        }
    }

    /// Handles timeouts.
    pub(crate) fn expire(&mut self, shared: &mut WorkerShared) {
        let (config, now) = (std::sync::Arc::clone(&shared.services.http), shared.services.now);
        if self.conn.head_deadline(&config) <= now {
            let opened_by = self.exchanges.now().checked_sub(config.head_timeout);
            if let Some(opened_by) = opened_by {
                self.exchanges.expire_heads(opened_by);
            }
            self.note_heads(shared);
        }
        if self.conn.deadline(&config) > now {
            return;
        }
        if self.conn.is_idle() && self.conn.going_away_since.is_some() {
            // `finish` closes the connection, once it knows what this turn has queued.
        } else if self.conn.is_finished() {
            self.conn.close(H3Code::H3_NO_ERROR, "connection is idle");
        } else if self.conn.is_idle() {
            self.conn.close(H3Code::H3_EXCESSIVE_LOAD, "client takes no bytes of an answer");
        } else {
            self.time_out_streams(shared);
        }
    }

    fn note_heads(&mut self, shared: &WorkerShared) {
        let opened = self.exchanges.awaits_head_since();
        let since_epoch = |at: Instant| Time::ZERO + at.saturating_duration_since(shared.services.epoch);
        self.conn.awaits_head_since = opened.map(since_epoch);
    }

    /// Updates the connection's state after its events, and closes it at its end.
    pub(crate) fn finish(&mut self, shared: &WorkerShared) {
        self.note_heads(shared);
        let Self { conn, exchanges } = self;
        let now = shared.services.now;
        let rejected = exchanges.take_rejected();
        shared.services.counters.http3_reset.add(rejected.into());
        let unacknowledged = exchanges.unacknowledged();
        if unacknowledged != conn.unacknowledged {
            if unacknowledged.0 == 0 {
                conn.table.idle_since = now;
            }
            (conn.unacknowledged, conn.last_progress) = (unacknowledged, now);
        }
        if shared.services.is_stopping() {
            if conn.going_away_since.replace(conn.going_away_since.unwrap_or(now)).is_none() {
                exchanges.shut_down();
            }
            // Requests that cross the announcement are served.
            let is_over = conn.is_idle() && conn.deadline(&shared.services.http) <= now;
            if is_over || conn.is_finished() && exchanges.is_drained() {
                conn.close(H3Code::H3_NO_ERROR, "server stops");
            }
        }
        if let Some((code, reason)) = conn.closing {
            exchanges.close(code, reason);
        }
        let sessions: usize = conn.sessions.iter().map(MessageStream::memory).sum();
        let state = exchanges.memory() + conn.sockets.memory() + conn.table.incomplete() + sessions;
        conn.memory = (exchanges.retained() + conn.table.outgoing(), state);
    }
}
