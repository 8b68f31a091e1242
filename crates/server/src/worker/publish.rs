//! Delivery of publications to subscribers: in order, within a budget per turn. Fast publishers are throttled.
//!
//! ```text
//!   callbacks, mail ─▶ Topics: queue ─▶ end of the turn: runs, within the budget ─▶ subscribers
//!         ▲                                               │ budget is used up
//!         └── reads paused ◀──────────────────────────────┤ pause_publisher
//!                                                         └─▶ continues in the next turn
//! ```

use bytes::Bytes;
use sinews_engine::{ConnId, Io};
use sinews_proto::Time;
use sinews_session::{Flow, Resources};

use super::Worker;
use super::conn::{ClientConn, ConnProtocol};
use super::delivery::PartialDelivery;
use super::runs::RUN_MAX;
use crate::subscriber::TopicMessage;
use crate::topics::{QueuedPublication, RuleId};

impl Worker {
    /// Delivers the publications of the turn, and throttles their publishers.
    #[inline]
    pub(super) fn end_publications(&mut self, io: &mut Io) {
        let is_idle = self.delivery.is_idle() && !self.shared.services.topics.has_publications();
        if !is_idle {
            self.end_pending_publications(io);
        }
    }

    fn end_pending_publications(&mut self, io: &mut Io) {
        if self.shared.services.topics.pending_deliveries() > 0 || self.delivery.partial.is_some() {
            self.publish(io);
        }
        self.end_runs(io, true);
        for conn in std::mem::take(&mut self.delivery.publishers) {
            if self.shared.services.topics.is_any_backlogged() || self.is_paused_mid_input(conn) {
                self.pause_publisher(io, conn);
            }
        }
        while self.delivery.resumes
            && !self.shared.services.topics.is_any_backlogged()
            && let Some(conn) = self.delivery.paused_publishers.pop_front()
        {
            self.resume_publisher(io, conn);
        }
        self.delivery.resumes = false;
    }

    /// Delivers queued publications within the turn's budget, or beyond it while the queue exceeds its limit.
    fn publish(&mut self, io: &mut Io) {
        self.time(io);
        while let Some(current) = self.next_delivery() {
            if self.forms_run(io, &current) {
                self.publish_group(io, current);
            } else if let Some(partial) = self.publish_one(io, current) {
                self.delivery.partial = Some(partial);
                self.shared.services.topics.mark_backlogged();
                return;
            }
        }
        // Publications of other connections in `close` do not count for a connection.
        self.shared.services.topics.take_published();
        self.shared.services.topics.clear_backlogged();
        self.count_sent();
    }

    fn count_sent(&self) {
        let (traffic, topics) = (self.shared.resources.traffic(), self.shared.services.topics.counters_ref());
        self.shared.services.counters.sent(traffic, topics);
    }

    /// Delivers a publication. Returns it if the budget is used up before its last subscriber.
    fn publish_one(&mut self, io: &mut Io, mut current: PartialDelivery) -> Option<PartialDelivery> {
        while let Some(&subscriber) = current.subscribers.get(current.next) {
            if self.delivery.left == 0 && !self.shared.services.topics.is_full() {
                current.split = true;
                return Some(current);
            }
            self.delivery.left = self.delivery.left.saturating_sub(1);
            current.next += 1;
            let QueuedPublication { topic, except, sequence, .. } = &current.publication;
            // The subscriber has left the topic meanwhile.
            let left = current.split
                && !(self.shared.services.topics.is_subscribed(*topic, subscriber)
                    && self.shared.services.topics.is_live(*topic, *sequence, subscriber));
            if *except != Some(subscriber) && !left {
                self.leave_run(io, subscriber);
                self.deliver_all(io, subscriber, [(&current.publication, current.rule)]);
            }
        }
        self.shared.services.topics.finish_delivery(&current.publication);
        self.shared.services.topics.recycle_subscribers(current.subscribers);
        None
    }

    /// Returns whether a publication starts a run.
    fn forms_run(&self, io: &Io, current: &PartialDelivery) -> bool {
        let subscribers = current.subscribers.len();
        let fits =
            subscribers <= self.delivery.left && current.publication.message.payload().len() <= RUN_MAX;
        !current.split && fits && subscribers >= RUN_SUBSCRIBERS_MIN && io.can_broadcast()
    }

    /// Delivers a publication, and the next ones to the same subscribers, as one group of runs. Connections that a
    /// publication excludes get each message through their queue.
    fn publish_group(&mut self, io: &mut Io, current: PartialDelivery) {
        let PartialDelivery { publication, rule, subscribers, .. } = current;
        let most = self.delivery.left / subscribers.len();
        let mut room = RUN_MAX - publication.message.payload().len();
        let mut publications = vec![(publication, rule)];
        while publications.len() < most
            && let Some((previous, _)) = publications.last()
            && let Some(next) = self.shared.services.topics.next_for_same(previous, &subscribers, room)
        {
            self.shared.services.counters.publications.add(1);
            room -= next.message.payload().len();
            let rule = self.shared.services.topics.rule(next.topic);
            publications.push((next, rule));
        }
        self.delivery.left -= publications.len() * subscribers.len();
        let bytes = encode_run(&publications, &mut self.shared.resources);
        // Mostly their publishers, which have got them already.
        let mut excluded: Vec<ConnId> = publications.iter().filter_map(|(one, _)| one.except).collect();
        excluded.sort_unstable();
        for &conn in subscribers.iter().filter(|conn| excluded.binary_search(conn).is_ok()) {
            self.leave_run(io, conn);
            let others = publications.iter().filter(|(one, _)| one.except != Some(conn));
            self.deliver_all(io, conn, others.map(|(one, rule)| (one, *rule)));
        }
        let included = || subscribers.iter().copied().filter(|conn| excluded.binary_search(conn).is_err());
        if self.delivery.runs.add_group(publications, bytes, included()) {
            for conn in included() {
                if !self.delivery.runs.add(conn) {
                    self.leave_run(io, conn);
                    self.queue_run(io, conn, 0);
                }
            }
        }
        self.shared.services.topics.recycle_subscribers(subscribers);
    }

    /// Moves the run of a connection to its queue, so that one send carries it with later messages.
    #[inline]
    pub(super) fn leave_run(&mut self, io: &mut Io, conn: ConnId) {
        if let Some(run) = self.delivery.runs.leave(conn) {
            self.queue_run(io, conn, run);
        }
    }

    /// Delivers a run, or the current group (0), through the queue of a connection.
    fn queue_run(&mut self, io: &mut Io, conn: ConnId, number: u32) {
        let runs = std::mem::take(&mut self.delivery.runs);
        self.deliver_all(io, conn, runs.publications(number).map(|(one, rule)| (one, *rule)));
        self.delivery.runs = runs;
    }

    /// Sends the runs of the turn: past the queues of connections that have nothing queued if the turn ends, when
    /// nothing else is sent on them before; otherwise through the queues. At the end of the turn, runs with many
    /// subscribers are sent in steps.
    fn end_runs(&mut self, io: &mut Io, turn_ends: bool) {
        if self.delivery.runs.is_empty() {
            return;
        }
        let past_queues = turn_ends && io.can_broadcast();
        let subscribers = match past_queues {
            true => self.delivery.take_step(),
            false => self.delivery.runs.take_subscribers(usize::MAX),
        };
        if self.delivery.runs.len() == 1 {
            self.delivery.runs.get_mut(1).subscribers.reserve_exact(subscribers.len());
        }
        for &conn in &subscribers {
            let Some(number) = self.delivery.runs.take_place(conn) else { continue };
            let run = self.delivery.runs.get_mut(number);
            if past_queues && takes_run(&mut self.conns, conn, run.bytes.len(), self.shared.services.now) {
                run.subscribers.push(conn);
            } else {
                self.queue_run(io, conn, number);
            }
        }
        for number in 1..=self.delivery.runs.len() {
            self.broadcast_run(io, number);
        }
        for (publication, _) in self.delivery.runs.finish(subscribers) {
            self.shared.services.topics.finish_delivery(&publication);
        }
        self.count_sent();
    }

    /// Sends a run past the queues of its subscribers.
    fn broadcast_run(&mut self, io: &mut Io, number: u32) {
        let run = self.delivery.runs.get_mut(number);
        let (bytes, subscribers) = (run.bytes.clone(), std::mem::take(&mut run.subscribers));
        let count = subscribers.len() as u64;
        if count == 0 {
            return;
        }
        let publications = self.delivery.runs.publications(number);
        let (publications, payload) = publications
            .fold((0, 0), |(count, bytes), (one, _)| (count + 1, bytes + one.message.payload().len() as u64));
        let deliveries = count * publications;
        self.shared.services.counters.deliveries.add(deliveries);
        self.shared.services.topics.counters.delivered += deliveries;
        #[cfg(test)]
        {
            self.delivery.runs.direct += deliveries;
        }
        self.shared.resources.count_sent(deliveries, count * payload);
        io.broadcast(bytes, subscribers);
    }

    /// Delivers queued publications in the middle of a turn: through the queues of the connections, which may send
    /// other messages in the same turn.
    fn publish_to_queues(&mut self, io: &mut Io) {
        self.publish(io);
        self.end_runs(io, false);
    }

    /// Delivers all queued publications, regardless of the budget.
    pub(super) fn publish_all(&mut self, io: &mut Io) {
        self.time(io);
        self.delivery.left = usize::MAX;
        self.publish_to_queues(io);
    }

    /// Notes the publications of a connection's callbacks, which are delivered at the end of the turn, or at once if
    /// the queue is full. While some of them are queued, on this thread or on another, reads of the connection are
    /// paused.
    pub(super) fn note_publisher(&mut self, io: &mut Io, conn: ConnId) {
        self.shared.services.topics.take_published();
        if self.delivery.publishers.last() != Some(&conn) {
            self.delivery.publishers.push(conn);
        }
        if self.shared.services.topics.is_full() {
            self.publish_to_queues(io);
        }
    }

    /// Publishes the presence updates that are due, and sets the timer for the next.
    #[cold]
    pub(super) fn send_presence(&mut self, io: &mut Io) {
        self.shared.services.topics.send_presence(io.now());
        // They are publications of no connection: none is paused for them.
        self.shared.services.topics.take_published();
        if let Some(due) = self.shared.services.topics.arm_batch_timer() {
            io.set_batch_timer(due);
        }
    }

    fn next_delivery(&mut self) -> Option<PartialDelivery> {
        self.delivery.partial.take().or_else(|| {
            let (publication, subscribers) = self.shared.services.topics.next_publication()?;
            self.shared.services.counters.publications.add(1);
            let rule = self.shared.services.topics.rule(publication.topic);
            Some(PartialDelivery { publication, rule, subscribers, next: 0, split: false })
        })
    }

    /// Delivers publications through the queue of a connection.
    fn deliver_all<'a>(
        &mut self,
        io: &mut Io,
        conn: ConnId,
        publications: impl IntoIterator<Item = (&'a QueuedPublication, RuleId)>,
    ) {
        self.time(io);
        let Some((ConnProtocol::WebSocket(websocket), shared)) = self.conn_and_shared(conn) else { return };
        for (QueuedPublication { topic, message, sequence, .. }, rule) in publications {
            shared.services.counters.deliveries.add(1);
            let (topic, sequence) = (*topic, *sequence);
            websocket.deliver(TopicMessage { topic, rule, message, sequence }, shared);
        }
        self.flush_conn_alone(io, conn);
    }

    /// Returns whether reads paused in the middle of its input, since the queue was full.
    fn is_paused_mid_input(&mut self, conn: ConnId) -> bool {
        match self.conn_mut(conn).map(|found| &found.protocol) {
            Some(ConnProtocol::WebSocket(websocket)) => websocket.session.wants_resume(),
            Some(ConnProtocol::Http(http)) => http.paused,
            Some(ConnProtocol::Http2(http2)) => http2.paused,
            Some(ConnProtocol::Http3(_) | ConnProtocol::Rejected(_) | ConnProtocol::ProxyHeader(_))
            | None => false,
        }
    }

    fn pause_publisher(&mut self, io: &mut Io, conn: ConnId) {
        let Some(found) = self.conn_mut(conn) else { return };
        if !std::mem::replace(&mut found.reads_paused, true) {
            self.delivery.paused_publishers.push_back(conn);
            self.shared.services.topics.wake_shard();
        }
        io.pause(conn);
        self.mark_http3(conn);
    }

    /// Resumes reads where they were paused.
    fn resume_publisher(&mut self, io: &mut Io, conn: ConnId) {
        let now = self.time(io);
        self.leave_run(io, conn);
        let Some(found) = self.conn_mut(conn) else { return };
        found.reads_paused = false;
        match self.conn_and_shared(conn) {
            Some((ConnProtocol::WebSocket(websocket), shared)) => {
                let paused = websocket.session.is_paused();
                let resumes = websocket.wants_resume();
                if !paused || resumes && websocket.resume(conn, shared) == Flow::Continue {
                    io.resume(conn);
                }
                self.flush_conn(io, conn);
            }
            Some((ConnProtocol::Http(http), _)) if !http.paused => io.resume(conn),
            Some((ConnProtocol::Http(_), _)) => self.resume_http(io, conn),
            Some((ConnProtocol::Http2(http2), _)) if !http2.paused => {
                http2.note_input(now);
                io.resume(conn);
                self.flush_conn(io, conn);
            }
            Some((ConnProtocol::Http2(_), _)) => self.resume_http2(io, conn),
            Some((ConnProtocol::Http3(_), _)) => self.mark_http3(conn),
            Some((ConnProtocol::Rejected(_) | ConnProtocol::ProxyHeader(_), _)) | None => {}
        }
    }
}

/// Returns whether a connection gets a run of this length past its queue.
#[inline]
fn takes_run(conns: &mut [Option<ClientConn>], conn: ConnId, len: usize, now: Time) -> bool {
    match conns.get_mut(conn.index()) {
        Some(Some(ClientConn { id, protocol: ConnProtocol::WebSocket(websocket), tls: None, .. })) => {
            *id == conn && websocket.take_run(len, now)
        }
        _ => false,
    }
}

/// Encodes publications for connections without compression.
fn encode_run(publications: &[(QueuedPublication, RuleId)], resources: &mut Resources) -> Bytes {
    if let [(single, _)] = publications {
        return single.message.plain_frame(resources);
    }
    let len = |(one, _): &(QueuedPublication, RuleId)| HEAD_MAX + one.message.payload().len();
    let mut run = Vec::with_capacity(publications.iter().map(len).sum());
    for (publication, _) in publications {
        publication.message.append_frame(resources, &mut run);
    }
    Bytes::from(run)
}

/// Space for the head of a frame.
const HEAD_MAX: usize = 14;

/// Minimum number of subscribers for a run: for fewer, encoding saves nothing.
const RUN_SUBSCRIBERS_MIN: usize = 2;
