//! One WebSocket: its session, its handler and its subscriptions. Nothing here depends on the framing below: the socket
//! gets input chunks, and its session queues output up to a high-water mark.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sinews_engine::{ConnId, Io};
use sinews_proto::{BodyPrefix, CloseCode, Config, Kind, Negotiated, Time};
use sinews_session::{
    Closed, Events, Flow, Fragment, Outbound, Payload, Prepared, Resources, Session, TransportAction, Tx,
};

use crate::handler::{Context, Handler};
use crate::limits::RateLimit;
use crate::metrics::limit::Limit;
use crate::shared::{Services, WorkerShared};
use crate::subscriber::{EndReport, SubscriberState, TopicMessage};
use crate::timer::NEVER;
use crate::topics::{DatagramQueue, DropReason, KeyedDelivery};

/// Negotiated connection that becomes a socket.
pub(crate) struct AcceptedUpgrade {
    pub(crate) negotiated: Negotiated,
    pub(crate) handler: Box<dyn Handler>,
    pub(crate) config: Arc<Config>,
    pub(crate) rate_limit: Option<RateLimit>,
    pub(crate) transport: MessageTransport,
}

impl fmt::Debug for AcceptedUpgrade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcceptedUpgrade").field("negotiated", &self.negotiated).finish_non_exhaustive()
    }
}

/// Transport of a socket's messages.
pub(crate) enum MessageTransport {
    /// The whole connection: a WebSocket, or messages over a plain stream.
    Connection,
    /// A stream in a WebTransport session, beside datagrams.
    Session,
    /// A response's body. The connection may carry another request after it.
    Body { keep_alive: bool, prefix: Option<Box<dyn BodyPrefix>> },
}

/// Session and its handler.
pub(crate) struct WebSocketConn {
    pub(crate) session: Session,
    state: SocketState,
    /// When the loop's timer fires.
    pub(crate) armed: Time,
}

/// A socket's handler and its state beside the session.
struct SocketState {
    handler: Box<dyn Handler>,
    subscriber: SubscriberState,
    /// Rate meter of its messages, if limited.
    meter: Option<Box<RateMeter>>,
}

/// State for a connection's message rate.
struct RateMeter {
    rate_limit: RateLimit,
    /// When its next message is due, in nanoseconds of the loop's time.
    due: u64,
    /// The rate was exceeded, and the connection is closing.
    exceeded: bool,
}

impl WebSocketConn {
    /// Starts an accepted connection's session. Its output follows what is queued in `outbound`.
    pub(crate) fn new(upgrade: AcceptedUpgrade, outbound: Outbound, peer: SocketAddr, now: Time) -> Self {
        let AcceptedUpgrade { negotiated, handler, config, rate_limit, transport } = upgrade;
        let mut session = Session::with_outbound(negotiated, config, now, outbound);
        let has_datagrams = matches!(transport, MessageTransport::Session);
        let keep_alive = match transport {
            MessageTransport::Connection | MessageTransport::Session => None,
            MessageTransport::Body { keep_alive, prefix } => {
                if let Some(prefix) = prefix {
                    session.set_body_prefix(prefix);
                }
                Some(keep_alive)
            }
        };
        let meter = rate_limit.map(|rate_limit| Box::new(RateMeter { rate_limit, due: 0, exceeded: false }));
        let mut subscriber = SubscriberState::new(peer);
        subscriber.keep_alive = keep_alive;
        subscriber.has_datagrams = has_datagrams;
        let state = SocketState { handler, subscriber, meter };
        Self { session, state, armed: NEVER }
    }

    /// Returns whether publications are queued beside the session.
    pub(crate) fn has_backlog(&self) -> bool {
        self.state.subscriber.backlog.is_some()
    }

    /// Returns the queued output bytes, publications included.
    pub(crate) fn buffered(&self) -> usize {
        let waiting = self.state.subscriber.backlog.as_ref().map_or(0, |backlog| backlog.bytes());
        self.session.buffered() + waiting
    }

    /// Reports the queued output's size to the handler.
    #[cold]
    pub(crate) fn report_queue(&mut self, bytes: usize) {
        self.state.handler.queued(bytes);
    }

    /// Returns whether reads paused mid-input, and the connection itself can resume.
    pub(crate) fn wants_resume(&self) -> bool {
        self.session.wants_resume() && !self.state.subscriber.reads_paused
    }

    /// Returns whether the queued output is the last.
    pub(crate) fn has_finished(&self) -> bool {
        self.session.transport_action() == TransportAction::Finish
    }

    /// Returns whether this is a response's body.
    pub(crate) fn is_body(&self) -> bool {
        self.state.subscriber.keep_alive.is_some()
    }

    /// Ends a complete response's body. Returns the queued bytes, and whether the connection takes another request.
    pub(crate) fn finish_body(&mut self, conn: ConnId, shared: &mut WorkerShared) -> (Outbound, bool) {
        let outbound = self.session.finish_body();
        if let Some(closed) = self.session.take_closed() {
            self.close(&closed, conn, shared);
        }
        (outbound, self.state.subscriber.keep_alive == Some(true))
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.state.subscriber.peer()
    }

    pub(crate) fn open(&mut self, conn: ConnId, shared: &mut WorkerShared) {
        self.with_context(conn, shared, |handler, cx| handler.open(cx));
    }

    #[inline]
    pub(crate) fn receive(&mut self, chunk: &mut [u8], conn: ConnId, shared: &mut WorkerShared) -> Flow {
        if let Some(keep_alive) = &mut self.state.subscriber.keep_alive
            && !chunk.is_empty()
        {
            // The next request from a client that does not wait: the response may never end, so it is not kept.
            *keep_alive = false;
        }
        let (session, resources, mut events) = self.split(conn, shared);
        let now = events.services.now;
        session.receive(chunk, resources, now, &mut events)
    }

    /// Returns whether the socket is a WebTransport session.
    pub(crate) fn is_session(&self) -> bool {
        self.state.subscriber.has_datagrams
    }

    /// Returns the publications that leave as datagrams.
    pub(crate) fn datagrams(&mut self) -> Option<&mut DatagramQueue> {
        self.state.subscriber.backlog.as_mut()?.datagrams.as_deref_mut()
    }

    /// Queues a publication that no longer fits into a datagram.
    pub(crate) fn queue_oversized(&mut self, message: &Prepared, shared: &mut WorkerShared) {
        let WorkerShared { resources, services, .. } = shared;
        // A closing connection gets no more messages.
        let queued = self.session.tx(resources, services.now).queue_prepared(message, false).is_ok();
        services.topics.counters.delivered += u64::from(queued);
        self.session.after_tx(resources, services.now);
    }

    /// Handles a client's datagram: a message's kind, and its payload. Returns `false` if it is dropped, since reads
    /// are paused.
    pub(crate) fn receive_datagram(
        &mut self,
        datagram: &mut [u8],
        conn: ConnId,
        shared: &mut WorkerShared,
    ) -> bool {
        let max = self.session.config().max_message();
        let (kind, payload) = match split_datagram(datagram, max) {
            Ok(message) => message,
            Err(fault) => {
                let (code, reason) = fault;
                self.start_close(code, reason, shared);
                return true;
            }
        };
        let (session, resources, mut events) = self.split(conn, shared);
        let now = events.services.now;
        session.receive_datagram(kind, payload, resources, now, &mut events)
    }

    /// Handles bytes received into the message's own buffer.
    pub(crate) fn receive_appended(
        &mut self,
        buffer: Vec<u8>,
        received: usize,
        conn: ConnId,
        shared: &mut WorkerShared,
    ) -> Flow {
        let (session, resources, mut events) = self.split(conn, shared);
        let now = events.services.now;
        session.receive_appended(buffer, received, resources, now, &mut events)
    }

    pub(crate) fn resume(&mut self, conn: ConnId, shared: &mut WorkerShared) -> Flow {
        let (session, resources, mut events) = self.split(conn, shared);
        let now = events.services.now;
        session.resume(resources, now, &mut events)
    }

    /// Handles remaining input, unless the connection itself has paused reads.
    pub(crate) fn continue_reads(&mut self, io: &mut Io, conn: ConnId, shared: &mut WorkerShared) {
        if self.wants_resume() && self.resume(conn, shared) == Flow::Continue {
            io.resume(conn);
        }
    }

    pub(crate) fn drain(&mut self, conn: ConnId, shared: &mut WorkerShared) {
        self.drain_backlog(conn, shared);
        if !self.state.subscriber.close_reported() && !self.session.is_congested() {
            self.with_context(conn, shared, |handler, cx| handler.drain(cx));
        }
    }

    /// Returns the handler's deadline.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if self.state.subscriber.close_reported() { None } else { self.state.handler.deadline() }
    }

    /// Handles the handler's expired deadline.
    pub(crate) fn expire(&mut self, conn: ConnId, shared: &mut WorkerShared) {
        self.with_context(conn, shared, |handler, cx| handler.expired(cx));
    }

    /// Handles a wakeup. A wakeup for a handler without a waker is ignored.
    pub(crate) fn woken(&mut self, conn: ConnId, shared: &mut WorkerShared) {
        if shared.services.tasks.acknowledge_wakeup(conn) && !self.state.subscriber.close_reported() {
            self.with_context(conn, shared, |handler, cx| handler.woken(cx));
        }
    }

    /// Returns whether a run is sent past the queue ([`Session::take_run`]).
    #[inline]
    pub(crate) fn take_run(&mut self, len: usize, now: Time) -> bool {
        !self.has_backlog() && self.session.take_run(len, now)
    }

    /// Delivers a topic's message.
    #[inline]
    pub(crate) fn deliver(&mut self, message: TopicMessage<'_>, shared: &mut WorkerShared) {
        let WorkerShared { resources, services, .. } = shared;
        let mut tx = self.session.tx(resources, services.now);
        self.state.subscriber.deliver(&mut tx, &mut services.topics, message);
        self.session.after_tx(resources, services.now);
    }

    /// Delivers a key update.
    pub(crate) fn send_keys(&mut self, update: &KeyedDelivery, shared: &mut WorkerShared) {
        let WorkerShared { resources, services, .. } = shared;
        let mut tx = self.session.tx(resources, services.now);
        self.state.subscriber.send_keys(&mut tx, &mut services.topics, update);
        self.session.after_tx(resources, services.now);
    }

    /// Sends queued publications, and reports drops to the handler.
    #[cold]
    pub(crate) fn drain_backlog(&mut self, conn: ConnId, shared: &mut WorkerShared) {
        let dropped = self.session.take_dropped();
        if dropped > 0 {
            let backlog = self.state.subscriber.backlog.get_or_insert_default();
            backlog.note_drop(None, DropReason::Oldest, dropped.into(), 0);
        }
        // First: after the refill, the queue has no capacity for the handler's reports.
        self.report_drops(conn, shared);
        let Some(backlog) = &mut self.state.subscriber.backlog else { return };
        let WorkerShared { resources, services, .. } = &mut *shared;
        let (topics, now) = (&mut services.topics, services.now);
        let overflowed = backlog.take_overflowed(topics.rules());
        let mut tx = self.session.tx(resources, now);
        if overflowed.is_some() {
            backlog.flush(&mut tx, &mut topics.counters);
        } else {
            backlog.refill(&mut tx, &mut topics.counters);
            if backlog.is_empty() {
                topics.replay(backlog, &mut tx, conn);
                topics.read_keys(backlog, &mut tx, conn);
            }
        }
        self.session.after_tx(resources, now);
        if let Some((code, reason)) = overflowed {
            // A connection that is closing already goes on; the reason's length was checked.
            let _ = self.session.close_for_overflow(code, &reason, resources, now);
        }
        self.report_drops(conn, shared);
        if self.state.subscriber.backlog.as_ref().is_some_and(|backlog| backlog.is_done()) {
            self.state.subscriber.backlog = None;
        }
    }

    /// Reports drops to the handler. Reports that the handler has postponed follow when the queue has capacity.
    fn report_drops(&mut self, conn: ConnId, shared: &mut WorkerShared) {
        let close_reported = self.state.subscriber.close_reported();
        let Some(backlog) = &mut self.state.subscriber.backlog else { return };
        let tx = self.session.tx(&mut shared.resources, shared.services.now);
        let has_capacity = close_reported || tx.has_capacity();
        let reports = backlog.take_unreported(has_capacity);
        if close_reported || reports.is_empty() {
            return;
        }
        backlog.set_reporting(true);
        for dropped in &reports {
            self.with_context(conn, shared, |handler, cx| handler.dropped(dropped, cx));
        }
        if let Some(backlog) = &mut self.state.subscriber.backlog {
            backlog.set_reporting(false);
        }
    }

    /// Moves all queued publications to the session.
    fn flush(&mut self, shared: &mut WorkerShared) {
        let WorkerShared { resources, services, .. } = shared;
        if let Some(backlog) = &mut self.state.subscriber.backlog {
            backlog.flush(&mut self.session.tx(resources, services.now), &mut services.topics.counters);
        }
    }

    /// Starts the closing handshake of a server that stops, after all queued publications.
    pub(crate) fn go_away(&mut self, shared: &mut WorkerShared) {
        self.flush(shared);
        let (code, reason) = self.state.handler.stop_code();
        self.start_close(code, reason, shared);
    }

    /// Closes the server's message stream in a session whose client has opened one.
    pub(crate) fn close_replaced(&mut self, shared: &mut WorkerShared) {
        self.start_close(CloseCode::NORMAL, "the client has opened a stream", shared);
    }

    /// Starts the closing handshake, unless the connection is closing already.
    fn start_close(&mut self, code: CloseCode, reason: &str, shared: &mut WorkerShared) {
        let WorkerShared { resources, services, .. } = shared;
        let _ = self.session.tx(resources, services.now).close(code, reason);
        self.session.after_tx(resources, services.now);
    }

    /// Reports the connection's end to the handler, or first the peer's Close that the handler has to answer.
    #[inline]
    pub(crate) fn report_end(&mut self, conn: ConnId, shared: &mut WorkerShared) {
        if self.session.has_closed() {
            self.report_closed(conn, shared);
        }
    }

    fn report_closed(&mut self, conn: ConnId, shared: &mut WorkerShared) {
        if let Some(closed) = self.session.unanswered().cloned()
            && self.state.subscriber.end_report == EndReport::None
        {
            self.state.subscriber.end_report = EndReport::Ending;
            self.with_context(conn, shared, |handler, cx| handler.ending(&closed, cx));
        }
        if self.session.unanswered().is_none()
            && let Some(closed) = self.session.take_closed()
        {
            self.close(&closed, conn, shared);
        }
    }

    /// Calls the handler's `close`, once, after its subscriptions have ended.
    pub(crate) fn close(&mut self, closed: &Closed, conn: ConnId, shared: &mut WorkerShared) {
        shared.services.topics.unsubscribe_all(conn);
        let counters = &shared.services.counters;
        let ends = if self.is_body() { &counters.streaming_closed } else { &counters.websockets_closed };
        ends.add(closed.cause().into());
        self.state.subscriber.end_report = EndReport::Closed;
        self.with_context(conn, shared, |handler, cx| handler.close(closed, cx));
        // A subscription made in `close` would never end.
        shared.services.topics.unsubscribe_all(conn);
    }

    fn with_context(
        &mut self,
        conn: ConnId,
        shared: &mut WorkerShared,
        call: impl FnOnce(&mut dyn Handler, &mut Context<'_>),
    ) {
        let WorkerShared { resources, services, .. } = shared;
        let SocketState { handler, subscriber, .. } = &mut self.state;
        let tx = self.session.tx(resources, services.now);
        call(&mut **handler, &mut Context::new(tx, &mut services.topics, &services.tasks, subscriber, conn));
        self.session.after_tx(resources, services.now);
    }

    #[inline]
    fn split<'a>(
        &'a mut self,
        conn: ConnId,
        shared: &'a mut WorkerShared,
    ) -> (&'a mut Session, &'a mut Resources, SocketEvents<'a>) {
        let WorkerShared { resources, services, .. } = shared;
        (&mut self.session, resources, SocketEvents { state: &mut self.state, services, conn })
    }
}

/// Returns the kind and the payload of a datagram's message.
///
/// # Errors
/// The code and the reason to close the session with.
fn split_datagram(datagram: &mut [u8], max: u64) -> Result<(Kind, &mut [u8]), (CloseCode, &'static str)> {
    let (kind, payload) = match datagram.split_first_mut() {
        Some((1, payload)) => (Kind::Text, payload),
        Some((2, payload)) => (Kind::Binary, payload),
        _ => return Err((CloseCode::PROTOCOL, "datagram does not begin with the kind of a message")),
    };
    if payload.len() as u64 > max {
        return Err((CloseCode::TOO_BIG, "message is too big"));
    }
    if kind == Kind::Text && std::str::from_utf8(payload).is_err() {
        return Err((CloseCode::INVALID_DATA, "text is not valid UTF-8"));
    }
    Ok((kind, payload))
}

/// Passes a session's events to the handler.
struct SocketEvents<'a> {
    state: &'a mut SocketState,
    services: &'a mut Services,
    conn: ConnId,
}

impl SocketEvents<'_> {
    #[inline]
    fn context<'a>(&'a mut self, tx: &'a mut Tx<'_>) -> (&'a mut dyn Handler, Context<'a>) {
        let Services { topics, tasks, .. } = &mut *self.services;
        let SocketState { handler, subscriber, .. } = &mut *self.state;
        (&mut **handler, Context::new(tx.reborrow(), topics, tasks, subscriber, self.conn))
    }

    /// Returns whether to discard a message, or a message piece, since the client exceeds its rate. The first discarded
    /// message closes the connection.
    #[inline]
    fn exceeds_rate(&mut self, first: bool, tx: &mut Tx<'_>) -> bool {
        let Some(meter) = &mut self.state.meter else { return false };
        if meter.exceeded || !first {
            return meter.exceeded;
        }
        let now = u64::try_from(self.services.now.since(Time::ZERO).as_nanos()).unwrap_or(u64::MAX);
        match meter.rate_limit.take(meter.due, now) {
            Some(due) => meter.due = due,
            None => {
                meter.exceeded = true;
                self.services.count_limit(Limit::Messages);
                // A connection that is closing already goes on.
                let _ = tx.close(CloseCode::POLICY, "too many messages");
            }
        }
        meter.exceeded
    }
}

impl Events for SocketEvents<'_> {
    #[inline]
    fn message(&mut self, payload: Payload<'_>, tx: &mut Tx<'_>) {
        self.services.counters.received(payload.len());
        if self.exceeds_rate(true, tx) {
            return;
        }
        // After a timeout has ended the connection, messages may arrive until the peer's Close.
        if !self.state.subscriber.close_reported() {
            let (handler, mut cx) = self.context(tx);
            handler.message(payload, &mut cx);
        }
    }

    fn fragment(&mut self, fragment: Fragment<'_>, tx: &mut Tx<'_>) {
        if fragment.last {
            self.services.counters.received(fragment.bytes.len());
        } else {
            self.services.counters.received_piece(fragment.bytes.len());
        }
        if self.exceeds_rate(fragment.first, tx) {
            return;
        }
        if !self.state.subscriber.close_reported() {
            let (handler, mut cx) = self.context(tx);
            handler.fragment(fragment, &mut cx);
        }
    }

    fn pong(&mut self, payload: &[u8], answers: Option<Duration>, tx: &mut Tx<'_>) {
        if !self.state.subscriber.close_reported() {
            let (handler, mut cx) = self.context(tx);
            handler.pong(payload, answers, &mut cx);
        }
    }

    #[inline]
    fn pauses(&self) -> bool {
        let topics = &self.services.topics;
        self.state.subscriber.reads_paused || topics.has_published() && topics.is_full()
    }
}
