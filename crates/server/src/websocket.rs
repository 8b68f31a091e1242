//! WebSocket state of one connection.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use sinews_engine::{ConnId, Io};
use sinews_proto::{CloseCode, Time};
use sinews_session::{Closed, Events, Fate, Flow, Fragment, Payload, Prepared, Resources, Session, Tx};

use crate::handler::{Context, Handler};
use crate::limits::{Gate, Limit, Pace};
use crate::metrics::Counters;
use crate::shard::NEVER;
use crate::tasks::Tasks;
use crate::topics::backlog::{Backlog, Delivery, is_ready};
use crate::topics::{RuleId, Topics};

/// Session and its handler.
pub(crate) struct WebSocket {
    pub(crate) session: Session,
    handler: Box<dyn Handler>,
    /// Queued publications, if the connection is slow.
    pub(crate) backlog: Option<Box<Backlog>>,
    /// The handler has got `close`.
    told: bool,
    /// The handler has paused reads.
    held: bool,
    /// Rate meter of its messages, if limited.
    meter: Option<Box<Meter>>,
    /// When the loop's timer fires.
    pub(crate) armed: Time,
    peer: SocketAddr,
}

/// State of the message rate of a connection.
struct Meter {
    pace: Pace,
    /// When its next message is due, in nanoseconds of the loop's time.
    due: u64,
    /// The rate was exceeded, and the connection is closing.
    exceeded: bool,
}

/// Resources of the thread for callbacks.
pub(crate) struct Lent<'a> {
    pub(crate) topics: &'a mut Topics,
    pub(crate) resources: &'a mut Resources,
    pub(crate) counters: &'a Counters,
    pub(crate) gate: &'a Gate,
    pub(crate) tasks: &'a Tasks,
    pub(crate) now: Time,
    pub(crate) conn: ConnId,
}

impl WebSocket {
    pub(crate) fn new(
        session: Session,
        handler: Box<dyn Handler>,
        pace: Option<Pace>,
        peer: SocketAddr,
    ) -> Self {
        let meter = pace.map(|pace| Box::new(Meter { pace, due: 0, exceeded: false }));
        Self { session, handler, backlog: None, told: false, held: false, meter, armed: NEVER, peer }
    }

    /// Returns whether reads paused in the middle of the input, and the connection itself can resume.
    pub(crate) fn wants_resume(&self) -> bool {
        self.session.wants_resume() && !self.held
    }

    /// Returns whether the queued output is the last.
    pub(crate) fn has_finished(&self) -> bool {
        self.session.fate() == Fate::Finish
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(crate) fn open(&mut self, lent: &mut Lent<'_>) {
        self.with_context(lent, |handler, cx| handler.open(cx));
    }

    #[inline]
    pub(crate) fn receive(&mut self, chunk: &mut [u8], lent: &mut Lent<'_>) -> Flow {
        let (session, resources, mut events) = self.split(lent);
        session.receive(chunk, resources, events.now, &mut events)
    }

    /// Handles bytes received into the message's own buffer.
    pub(crate) fn receive_appended(&mut self, buffer: Vec<u8>, received: usize, lent: &mut Lent<'_>) -> Flow {
        let (session, resources, mut events) = self.split(lent);
        session.receive_appended(buffer, received, resources, events.now, &mut events)
    }

    pub(crate) fn resume(&mut self, lent: &mut Lent<'_>) -> Flow {
        let (session, resources, mut events) = self.split(lent);
        session.resume(resources, events.now, &mut events)
    }

    /// Handles remaining input, unless the connection itself has paused reads.
    pub(crate) fn go_on(&mut self, io: &mut Io, lent: &mut Lent<'_>) {
        if self.wants_resume() && self.resume(lent) == Flow::Continue {
            io.resume(lent.conn);
        }
    }

    pub(crate) fn drain(&mut self, lent: &mut Lent<'_>) {
        self.work_off(lent);
        if !self.told && !self.session.is_congested() {
            self.with_context(lent, |handler, cx| handler.drain(cx));
        }
    }

    /// Returns the handler's deadline.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if self.told { None } else { self.handler.deadline() }
    }

    /// Handles the expiry of the handler's deadline.
    pub(crate) fn expire(&mut self, lent: &mut Lent<'_>) {
        self.with_context(lent, |handler, cx| handler.expired(cx));
    }

    /// Handles a wakeup. A wakeup of a handler without a waker is ignored.
    pub(crate) fn woken(&mut self, lent: &mut Lent<'_>) {
        if lent.tasks.answers_waker(lent.conn) && !self.told {
            self.with_context(lent, |handler, cx| handler.woken(cx));
        }
    }

    /// Delivers a message of a topic.
    #[inline]
    pub(crate) fn deliver(&mut self, of: (usize, RuleId), message: (&Prepared, u64), lent: &mut Lent<'_>) {
        let mut tx = self.session.tx(lent.resources, lent.now);
        deliver(&mut tx, &mut self.backlog, lent.topics, of, message);
        self.session.after_tx(lent.resources, lent.now);
    }

    /// Sends queued publications, and reports drops to the handler.
    #[cold]
    pub(crate) fn work_off(&mut self, lent: &mut Lent<'_>) {
        let Some(backlog) = &mut self.backlog else { return };
        let (topics, resources, now) = (&mut *lent.topics, &mut *lent.resources, lent.now);
        let overflown = backlog.take_overflown(topics.rules());
        let mut tx = self.session.tx(resources, now);
        if overflown.is_some() {
            backlog.flush(&mut tx, &mut topics.counters);
        } else {
            backlog.refill(&mut tx, &mut topics.counters);
            if backlog.is_empty() {
                topics.replay(backlog, &mut tx, lent.conn);
            }
        }
        self.session.after_tx(resources, now);
        if let Some((code, reason)) = overflown {
            // A connection that is closing already goes on; the reason's length was checked.
            let _ = self.session.close_overflown(code, &reason, resources, now);
        }
        let untold = backlog.take_untold();
        if backlog.is_done() {
            self.backlog = None;
        }
        if !self.told {
            for dropped in &untold {
                self.with_context(lent, |handler, cx| handler.dropped(dropped, cx));
            }
        }
    }

    /// Reports changes of subscriptions to the handler. Changes made by the callback are reported in the next turn,
    /// so that other connections get theirs.
    #[cold]
    pub(crate) fn tell_changes(&mut self, lent: &mut Lent<'_>) {
        for change in lent.topics.take_changes(lent.conn) {
            if !self.told {
                self.with_context(lent, |handler, cx| handler.subscription(&change, cx));
            }
        }
        if lent.topics.has_changes() {
            lent.topics.wake_own();
        }
    }

    /// Moves all queued publications to the session.
    pub(crate) fn flush(&mut self, lent: &mut Lent<'_>) {
        if let Some(backlog) = &mut self.backlog {
            backlog.flush(&mut self.session.tx(lent.resources, lent.now), &mut lent.topics.counters);
        }
    }

    /// Calls the handler's `close`, once, after its subscriptions have ended.
    pub(crate) fn close(&mut self, closed: &Closed, lent: &mut Lent<'_>) {
        lent.topics.unsubscribe_all(lent.conn);
        self.tell_changes(lent);
        lent.counters.websockets_closed.add(closed.cause().into());
        self.told = true;
        self.with_context(lent, |handler, cx| handler.close(closed, cx));
        // A subscription made in `close` would never end.
        lent.topics.unsubscribe_all(lent.conn);
        lent.topics.take_changes(lent.conn);
    }

    fn with_context(&mut self, lent: &mut Lent<'_>, call: impl FnOnce(&mut dyn Handler, &mut Context<'_>)) {
        let tx = self.session.tx(lent.resources, lent.now);
        let (backlog, held) = (&mut self.backlog, &mut self.held);
        let cx = &mut Context::new(tx, lent.topics, backlog, held, lent.tasks, lent.conn, self.peer);
        call(&mut *self.handler, cx);
        self.session.after_tx(lent.resources, lent.now);
    }

    #[inline]
    fn split<'a>(
        &'a mut self,
        lent: &'a mut Lent<'_>,
    ) -> (&'a mut Session, &'a mut Resources, Callbacks<'a>) {
        let Lent { topics, resources, counters, gate, tasks, now, conn } = lent;
        let callbacks = Callbacks {
            handler: &mut *self.handler,
            topics,
            backlog: &mut self.backlog,
            held: &mut self.held,
            tasks,
            counters,
            gate,
            now: *now,
            conn: *conn,
            peer: self.peer,
            told: self.told,
            meter: self.meter.as_deref_mut(),
        };
        (&mut self.session, resources, callbacks)
    }
}

/// Delivers a message of a topic with a rule, and its sequence, to one connection: at once, unless the connection is
/// slow.
#[inline]
pub(crate) fn deliver(
    tx: &mut Tx<'_>,
    backlog: &mut Option<Box<Backlog>>,
    topics: &mut Topics,
    (topic, rule): (usize, RuleId),
    (message, sequence): (&Prepared, u64),
) {
    if backlog.is_none() && is_ready(tx, rule) {
        // A closing connection gets no more messages.
        let queued = tx.queue_prepared(message, rule != RuleId::NONE).is_ok();
        topics.counters.delivered += u64::from(queued);
    } else {
        deliver_slowly(tx, backlog, topics, (topic, rule), (message, sequence));
    }
}

#[cold]
fn deliver_slowly(
    tx: &mut Tx<'_>,
    backlog: &mut Option<Box<Backlog>>,
    topics: &mut Topics,
    (topic, rule): (usize, RuleId),
    (message, sequence): (&Prepared, u64),
) {
    // A connection may have a backlog without being slow.
    if backlog.as_ref().is_none_or(|backlog| backlog.is_empty()) && is_ready(tx, rule) {
        let queued = tx.queue_prepared(message, rule != RuleId::NONE).is_ok();
        topics.counters.delivered += u64::from(queued);
        return;
    }
    let Some((name, rules, counters)) = topics.policy(topic) else { return };
    let delivery = Delivery { rule, topic: name, message, sequence };
    backlog.get_or_insert_default().offer(tx, delivery, rules, counters);
}

/// Passes a session's events to the handler.
struct Callbacks<'a> {
    handler: &'a mut dyn Handler,
    topics: &'a mut Topics,
    backlog: &'a mut Option<Box<Backlog>>,
    held: &'a mut bool,
    tasks: &'a Tasks,
    counters: &'a Counters,
    gate: &'a Gate,
    now: Time,
    conn: ConnId,
    peer: SocketAddr,
    told: bool,
    meter: Option<&'a mut Meter>,
}

impl Callbacks<'_> {
    #[inline]
    fn context<'a>(&'a mut self, tx: &'a mut Tx<'_>) -> (&'a mut dyn Handler, Context<'a>) {
        let (topics, backlog, held) = (&mut *self.topics, &mut *self.backlog, &mut *self.held);
        let cx = Context::new(tx.reborrow(), topics, backlog, held, self.tasks, self.conn, self.peer);
        (&mut *self.handler, cx)
    }

    /// Returns whether to discard a message, or a piece of one, since the client exceeds its rate. The first
    /// discarded message closes the connection.
    #[inline]
    fn passes_over(&mut self, first: bool, tx: &mut Tx<'_>) -> bool {
        let Some(meter) = &mut self.meter else { return false };
        if meter.exceeded || !first {
            return meter.exceeded;
        }
        let now = u64::try_from(self.now.since(Time::ZERO).as_nanos()).unwrap_or(u64::MAX);
        match meter.pace.take(meter.due, now) {
            Some(due) => meter.due = due,
            None => {
                meter.exceeded = true;
                self.counters.limited.add(Limit::Messages);
                self.gate.report(Limit::Messages);
                // A connection that is closing already goes on.
                let _ = tx.close(CloseCode::POLICY, "too many messages");
            }
        }
        meter.exceeded
    }
}

impl Events for Callbacks<'_> {
    #[inline]
    fn message(&mut self, payload: Payload<'_>, tx: &mut Tx<'_>) {
        self.counters.received(payload.len());
        if self.passes_over(true, tx) {
            return;
        }
        // After a timeout has ended the connection, messages may arrive until the peer's Close.
        if !self.told {
            let (handler, mut cx) = self.context(tx);
            handler.message(payload, &mut cx);
        }
    }

    fn fragment(&mut self, fragment: Fragment<'_>, tx: &mut Tx<'_>) {
        if fragment.last {
            self.counters.received(fragment.bytes.len());
        } else {
            self.counters.received_piece(fragment.bytes.len());
        }
        if self.passes_over(fragment.first, tx) {
            return;
        }
        if !self.told {
            let (handler, mut cx) = self.context(tx);
            handler.fragment(fragment, &mut cx);
        }
    }

    fn pong(&mut self, payload: &[u8], answers: Option<Duration>, tx: &mut Tx<'_>) {
        if !self.told {
            let (handler, mut cx) = self.context(tx);
            handler.pong(payload, answers, &mut cx);
        }
    }

    #[inline]
    fn pauses(&self) -> bool {
        *self.held || self.topics.has_published() && self.topics.is_full()
    }
}
