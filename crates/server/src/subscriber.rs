//! Delivery of topics to one socket.

use std::net::SocketAddr;

use sinews_session::{Prepared, Tx};

use crate::peer::PeerAddress;
use crate::topics::{Backlog, Delivery, KeyedDelivery, RuleId, Topics, is_ready, is_ready_for_keys};

/// A message of a topic for one subscriber.
#[derive(Clone, Copy)]
pub(crate) struct TopicMessage<'a> {
    pub(crate) topic: usize,
    pub(crate) rule: RuleId,
    pub(crate) message: &'a Prepared,
    /// Its sequence, if the topic has history.
    pub(crate) sequence: u64,
}

/// Part of a socket that its handler reaches through [`Context`](crate::Context).
#[derive(Debug)]
pub(crate) struct SubscriberState {
    /// Queued publications, if the connection is slow.
    pub(crate) backlog: Option<Box<Backlog>>,
    /// The handler has paused reads: it gets no messages.
    pub(crate) reads_paused: bool,
    peer: PeerAddress,
    /// The socket is a session of WebTransport.
    pub(crate) has_datagrams: bool,
    /// What the handler knows about the connection's end.
    pub(crate) end_report: EndReport,
    /// Whether the connection takes another request after the body of a response; `None` for other transports.
    pub(crate) keep_alive: Option<bool>,
}

/// What a handler knows about its connection's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReport {
    None,
    /// It has to answer the peer's Close: `Handler::ending`.
    Ending,
    /// `Handler::close`.
    Closed,
}

impl SubscriberState {
    /// The handler has got `close`.
    pub(crate) fn close_reported(&self) -> bool {
        self.end_report == EndReport::Closed
    }

    pub(crate) fn new(peer: SocketAddr) -> Self {
        let peer = PeerAddress::new(peer);
        Self {
            backlog: None,
            reads_paused: false,
            has_datagrams: false,
            peer,
            end_report: EndReport::None,
            keep_alive: None,
        }
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer.get()
    }

    /// Delivers a message of a topic with a rule, and its sequence: at once, unless the connection is slow.
    #[inline]
    pub(crate) fn deliver(&mut self, tx: &mut Tx<'_>, topics: &mut Topics, delivered: TopicMessage<'_>) {
        let TopicMessage { rule, message, .. } = delivered;
        if self.backlog.is_none() && is_ready(tx, rule) {
            // A closing connection gets no more messages.
            let queued = tx.queue_prepared(message, rule != RuleId::NONE).is_ok();
            topics.counters.delivered += u64::from(queued);
        } else {
            self.defer_delivery(tx, topics, delivered);
        }
    }

    /// Delivers an update of keys at once, or starts a reader for a connection that is not ready.
    pub(crate) fn send_keys(&mut self, tx: &mut Tx<'_>, topics: &mut Topics, update: &KeyedDelivery) {
        let KeyedDelivery { group, after, message, .. } = update;
        let is_idle = self.backlog.as_ref().is_none_or(|backlog| backlog.is_empty());
        let is_reading =
            self.backlog.as_ref().is_some_and(|backlog| backlog.keyed.iter().any(|known| known.0 == *group));
        if is_reading || !tx.is_open() {
            return;
        }
        match message {
            Some(message) if is_idle && is_ready_for_keys(tx) => {
                // A closing connection gets no more messages.
                let queued = tx.queue_prepared(message, true).is_ok();
                topics.counters.delivered += u64::from(queued);
            }
            _ => {
                let reader = topics.keyed_reader(*after, message.is_some());
                self.backlog.get_or_insert_default().keyed.push((*group, reader));
            }
        }
    }

    #[cold]
    fn defer_delivery(&mut self, tx: &mut Tx<'_>, topics: &mut Topics, delivered: TopicMessage<'_>) {
        let TopicMessage { topic, rule, message, sequence } = delivered;
        if let Some(datagrams) = self.backlog.as_mut().and_then(|backlog| backlog.datagrams.as_mut()) {
            let Some((name, _, counters)) = topics.policy(topic) else { return };
            if !tx.is_open() || datagrams.offer(name, message, tx.config().max_outbound(), counters) {
                return;
            }
        }
        // A connection may have a backlog without being slow.
        if self.backlog.as_ref().is_none_or(|backlog| backlog.is_empty()) && is_ready(tx, rule) {
            let queued = tx.queue_prepared(message, rule != RuleId::NONE).is_ok();
            topics.counters.delivered += u64::from(queued);
            return;
        }
        let Some((name, rules, counters)) = topics.policy(topic) else { return };
        let delivery = Delivery { rule, topic: name, message, sequence };
        self.backlog.get_or_insert_default().offer(tx, delivery, rules, counters);
    }
}
