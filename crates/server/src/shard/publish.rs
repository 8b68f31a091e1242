//! Publications reach their subscribers: so many a turn, in order, and who publishes faster is held back.
//!
//! ```text
//!   callbacks, mail ─▶ Topics: what waits ─▶ publish: as far as the turn's budget goes ─▶ subscribers
//!         ▲                                      │ some is left
//!         └── not received from meanwhile ◀──────┤ hold_back
//!                                                └─▶ the next turn goes on
//! ```

use sinews_engine::{ConnId, Io};
use sinews_session::Flow;

use super::{Protocol, Shard};
use crate::topics::{Publication, RuleId};

/// A publication that has reached some of its subscribers.
pub(super) struct UnderWay {
    publication: Publication,
    rule: RuleId,
    /// Those of the moment at which it began.
    subscribers: Vec<ConnId>,
    /// The next one of them.
    next: usize,
    /// Turns have passed since it began.
    split: bool,
}

impl Shard {
    /// Delivers what waits, as far as the turn's budget goes, or further while more waits than may.
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
                // One that has left the topic meanwhile has left it.
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

    /// Delivers everything that waits, whatever the budget.
    pub(super) fn publish_all(&mut self, io: &mut Io) {
        self.time(io);
        self.deliveries_left = usize::MAX;
        self.publish(io);
    }

    /// Publishes what a connection's callbacks have published. If some of it waits, on this thread or on
    /// another, the connection is not received from until it does not.
    pub(super) fn publish_of(&mut self, io: &mut Io, conn: ConnId) {
        let published = self.topics.take_published();
        self.publish(io);
        // What others said as their last words is not this connection's.
        self.topics.take_published();
        if published && (self.topics.is_any_behind() || self.stands_still(conn)) {
            self.hold_back(io, conn);
        }
    }

    /// A turn of its own for what waits, and for those who wait for it.
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

    /// Whether it paused in the middle of its input, since too much waited.
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

    /// Goes on where the connection stood when it was held back.
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
