//! Delivery of publications to subscribers: in order, within a budget per turn. Fast publishers are throttled.
//!
//! ```text
//!   callbacks, mail ─▶ Topics: queue ─▶ publish: within the turn's budget ─▶ subscribers
//!         ▲                              │ budget is used up
//!         └── reads paused ◀─────────────┤ hold_back
//!                                        └─▶ continues in the next turn
//! ```

use sinews_engine::{ConnId, Io};
use sinews_session::Flow;

use super::{Protocol, Shard};
use crate::topics::{Publication, RuleId};

/// Publication that is delivered to some of its subscribers.
pub(super) struct UnderWay {
    publication: Publication,
    rule: RuleId,
    /// Subscribers at the start of the delivery.
    subscribers: Vec<ConnId>,
    /// Index of the next subscriber.
    next: usize,
    /// The delivery has taken more than one turn.
    split: bool,
}

impl Shard {
    /// Delivers queued publications within the turn's budget, or beyond it while the queue exceeds its limit.
    pub(super) fn publish(&mut self, io: &mut Io) {
        self.time(io);
        while let Some(mut current) = self.next_delivery() {
            while let Some(&subscriber) = current.subscribers.get(current.next) {
                if self.deliveries_left == 0 && !self.topics.is_full() {
                    current.split = true;
                    self.under_way = Some(current);
                    self.topics.fall_behind();
                    return;
                }
                self.deliveries_left = self.deliveries_left.saturating_sub(1);
                current.next += 1;
                let Publication { topic, except, sequence, .. } = &current.publication;
                // The subscriber has left the topic meanwhile.
                let left = current.split
                    && !(self.topics.hears(*topic, subscriber)
                        && self.topics.has_joined(*topic, *sequence, subscriber));
                if *except != Some(subscriber) && !left {
                    self.counters.deliveries.add(1);
                    self.deliver(io, subscriber, &current);
                }
            }
            self.topics.delivered(current.publication, current.subscribers);
        }
        self.topics.catch_up();
        self.counters.sent(self.resources.traffic(), self.topics.counted());
    }

    /// Delivers all queued publications, regardless of the budget.
    pub(super) fn publish_all(&mut self, io: &mut Io) {
        self.time(io);
        self.deliveries_left = usize::MAX;
        self.publish(io);
    }

    /// Delivers the publications of a connection's callbacks. While some of them are queued, on this thread or on
    /// another, reads of the connection are paused.
    pub(super) fn publish_of(&mut self, io: &mut Io, conn: ConnId) {
        let published = self.topics.take_published();
        self.publish(io);
        // Publications of other connections in `close` do not count for this connection.
        self.topics.take_published();
        if published && (self.topics.is_any_behind() || self.stands_still(conn)) {
            self.hold_back(io, conn);
        }
    }

    /// Continues with queued publications in a turn, then resumes their publishers.
    pub(super) fn go_on(&mut self, io: &mut Io) {
        self.publish(io);
        while !self.topics.is_any_behind()
            && let Some(conn) = self.held_back.pop_front()
        {
            self.let_go(io, conn);
        }
    }

    fn next_delivery(&mut self) -> Option<UnderWay> {
        self.under_way.take().or_else(|| {
            let (publication, subscribers) = self.topics.next_publication()?;
            self.counters.publications.add(1);
            let rule = self.topics.rule(publication.topic);
            Some(UnderWay { publication, rule, subscribers, next: 0, split: false })
        })
    }

    fn deliver(&mut self, io: &mut Io, conn: ConnId, current: &UnderWay) {
        let now = self.time(io);
        if let Some((Protocol::WebSocket(websocket), mut lent)) = self.lend(conn, now) {
            let Publication { topic, message, sequence, .. } = &current.publication;
            websocket.deliver((*topic, current.rule), (message, *sequence), &mut lent);
            self.settle_one(io, conn);
        }
    }

    /// Returns whether reads paused in the middle of its input, since the queue was full.
    fn stands_still(&mut self, conn: ConnId) -> bool {
        match self.find(conn).map(|found| &found.protocol) {
            Some(Protocol::WebSocket(websocket)) => websocket.session.wants_resume(),
            Some(Protocol::Http(http)) => http.paused,
            Some(Protocol::Refused(_) | Protocol::Preface(_)) | None => false,
        }
    }

    fn hold_back(&mut self, io: &mut Io, conn: ConnId) {
        let Some(found) = self.find(conn) else { return };
        if !std::mem::replace(&mut found.held_back, true) {
            self.held_back.push_back(conn);
            self.topics.wake_own();
        }
        io.pause(conn);
    }

    /// Resumes reads where they were paused.
    fn let_go(&mut self, io: &mut Io, conn: ConnId) {
        let now = self.time(io);
        let Some(found) = self.find(conn) else { return };
        found.held_back = false;
        match self.lend(conn, now) {
            Some((Protocol::WebSocket(websocket), mut lent)) => {
                let paused = websocket.session.is_paused();
                let resumes = websocket.wants_resume();
                if !paused || resumes && websocket.resume(&mut lent) == Flow::Continue {
                    io.resume(conn);
                }
                self.settle(io, conn);
            }
            Some((Protocol::Http(http), _)) if !http.paused => io.resume(conn),
            Some((Protocol::Http(_), _)) => self.resume_http(io, conn),
            Some((Protocol::Refused(_) | Protocol::Preface(_), _)) | None => {}
        }
    }
}
