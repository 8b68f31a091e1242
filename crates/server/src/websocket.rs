//! One connection while it is a WebSocket.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use sinews_engine::ConnId;
use sinews_proto::{CloseCode, Time};
use sinews_session::{Closed, Events, Fate, Flow, Fragment, Payload, Prepared, Resources, Session, Tx};

use crate::handler::{Context, Handler};
use crate::limits::{Gate, Limit, Pace};
use crate::metrics::Counters;
use crate::topics::Topics;

/// A session and who handles it.
pub(crate) struct WebSocket {
    pub(crate) session: Session,
    handler: Box<dyn Handler>,
    /// The handler has been told that it is over.
    told: bool,
    /// Counts its messages, if their rate is limited.
    meter: Option<Box<Meter>>,
    /// When the loop's timer fires.
    pub(crate) armed: Option<Time>,
    peer: SocketAddr,
}

/// How far a connection is ahead of the rate that its messages may have.
struct Meter {
    pace: Pace,
    /// When its next message is due, in nanoseconds of the loop's time.
    due: u64,
    /// It was too fast, and is being closed.
    exceeded: bool,
}

/// What callbacks need of their thread.
pub(crate) struct Lent<'a> {
    pub(crate) topics: &'a mut Topics,
    pub(crate) resources: &'a mut Resources,
    pub(crate) counters: &'a Counters,
    pub(crate) gate: &'a Gate,
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
        Self { session, handler, told: false, meter, armed: None, peer }
    }

    /// Whether nothing follows what is queued.
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

    /// The message's own buffer is back, with so many bytes received into it.
    pub(crate) fn receive_appended(&mut self, buffer: Vec<u8>, received: usize, lent: &mut Lent<'_>) -> Flow {
        let (session, resources, mut events) = self.split(lent);
        session.receive_appended(buffer, received, resources, events.now, &mut events)
    }

    pub(crate) fn resume(&mut self, lent: &mut Lent<'_>) -> Flow {
        let (session, resources, mut events) = self.split(lent);
        session.resume(resources, events.now, &mut events)
    }

    pub(crate) fn drain(&mut self, lent: &mut Lent<'_>) {
        if !self.told {
            self.with_context(lent, |handler, cx| handler.drain(cx));
        }
    }

    /// When the handler wants to be told.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if self.told { None } else { self.handler.deadline() }
    }

    /// The handler's deadline has passed.
    pub(crate) fn expire(&mut self, lent: &mut Lent<'_>) {
        self.with_context(lent, |handler, cx| handler.expired(cx));
    }

    /// A message of a topic.
    #[inline]
    pub(crate) fn deliver(&mut self, message: &Prepared, resources: &mut Resources, now: Time) {
        // One that is closing gets no more; the policy has dealt with one that is too slow.
        let _ = self.session.tx(resources, now).send_prepared(message);
        self.session.after_tx(resources, now);
    }

    /// Tells the handler that it is over, once. Its subscriptions go first.
    pub(crate) fn close(&mut self, closed: &Closed, lent: &mut Lent<'_>) {
        lent.topics.unsubscribe_all(lent.conn);
        lent.counters.websockets_closed.add(closed.cause().into());
        self.told = true;
        self.with_context(lent, |handler, cx| handler.close(closed, cx));
        // A subscription made while closing would never end.
        lent.topics.unsubscribe_all(lent.conn);
    }

    fn with_context(&mut self, lent: &mut Lent<'_>, call: impl FnOnce(&mut dyn Handler, &mut Context<'_>)) {
        let tx = self.session.tx(lent.resources, lent.now);
        call(&mut *self.handler, &mut Context::new(tx, lent.topics, lent.conn, self.peer));
        self.session.after_tx(lent.resources, lent.now);
    }

    #[inline]
    fn split<'a>(
        &'a mut self,
        lent: &'a mut Lent<'_>,
    ) -> (&'a mut Session, &'a mut Resources, Callbacks<'a>) {
        let Lent { topics, resources, counters, gate, now, conn } = lent;
        let callbacks = Callbacks {
            handler: &mut *self.handler,
            topics,
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

/// Carries a session's events to the handler.
struct Callbacks<'a> {
    handler: &'a mut dyn Handler,
    topics: &'a mut Topics,
    counters: &'a Counters,
    gate: &'a Gate,
    now: Time,
    conn: ConnId,
    peer: SocketAddr,
    told: bool,
    meter: Option<&'a mut Meter>,
}

impl Callbacks<'_> {
    /// Whether a message, or a piece of one, is to be passed over, since the client is faster than it may be. The
    /// first one that is closes the connection.
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
                // One that is closing already is left to it.
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
        // Behind a wait that has ended the connection, messages may still come until the peer's Close.
        if !self.told {
            let mut cx = Context::new(tx.reborrow(), self.topics, self.conn, self.peer);
            self.handler.message(payload, &mut cx);
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
            let mut cx = Context::new(tx.reborrow(), self.topics, self.conn, self.peer);
            self.handler.fragment(fragment, &mut cx);
        }
    }

    fn pong(&mut self, payload: &[u8], answers: Option<Duration>, tx: &mut Tx<'_>) {
        if !self.told {
            let mut cx = Context::new(tx.reborrow(), self.topics, self.conn, self.peer);
            self.handler.pong(payload, answers, &mut cx);
        }
    }

    #[inline]
    fn pauses(&self) -> bool {
        self.topics.has_published() && self.topics.is_full()
    }
}
