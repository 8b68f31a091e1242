//! The thread that connects this node with the other nodes, over a connection to the broker.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token, Waker};
use ring::rand::{SecureRandom as _, SystemRandom};
use sinews_server::Publisher;

use super::Cluster;
use super::announcer::Announcer;
use super::cached_events::MissedEvents;
use super::connection::{ANSWER_MAX, BrokerConnection, LinkEvent, SILENCE_MAX};
use super::members::RemotePresence;
use super::node::LocalParts;
use super::outbox::{Outbox, PingPurpose};
use super::pending::PendingWork;
use super::receiver::Receiver;
use super::rejections::Rejections;
use super::revocations::RevocationLists;
use super::times::{CONNECT_TIMEOUT, HEARTBEAT, RETRY_MAX};
use crate::topics::HubTopics;

const SOCKET: Token = Token(0);
const WAKER: Token = Token(1);

/// Time without any byte from the broker after which other nodes' heartbeats may be delayed, too: no node is removed
/// then.
const DELAY_MAX: Duration = Duration::from_secs(2);

/// Delay before a new connection: doubles with each attempt, up to [`RETRY_MAX`]. Half the delay is random.
const RETRY_MIN: Duration = Duration::from_millis(100);

/// Time after a login after which the next delay is the shortest one again: a broker that accepts a login and then
/// closes the connection is not asked more often than one that rejects the login.
const STABLE_TIME: Duration = Duration::from_secs(30);

/// Longest delay of the next batch of subscriptions after the answer to the last one: nodes that reconnect at the same
/// time take turns at the broker. It is random.
const BATCH_DELAY_MAX: Duration = Duration::from_millis(20);

/// Time after which the next batch of subscriptions is sent without an answer to the last one: a broker may reject the
/// pings that ask for it.
const BATCH_TIMEOUT: Duration = Duration::from_secs(1);

/// Time limit to send the last bytes when the server stops.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

/// Chunks that are received before the thread's other work continues.
const CHUNKS_PER_TURN: usize = 16;

/// Messages that are delivered before the workers' backlog is checked.
const MESSAGES_PER_CHECK: usize = 64;

/// Time without a broker after which clients are notified: a reconnect is usually faster.
const REPORT_DELAY: Duration = Duration::from_secs(2);

/// Delay for deliveries while workers have a backlog.
const BACKLOG_DELAY: Duration = Duration::from_millis(1);

/// The thread. It ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct RunningLink {
    cluster: Arc<Cluster>,
    thread: Option<JoinHandle<()>>,
}

impl RunningLink {
    /// Starts the thread.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn start(
        cluster: &Arc<Cluster>,
        hub: Arc<HubTopics>,
        local: LocalParts,
        publisher: Publisher,
    ) -> io::Result<Self> {
        let link = ClusterLink::new(cluster, hub, local, publisher)?;
        let thread = thread::Builder::new().name("cluster".to_owned()).spawn(move || link.run())?;
        Ok(Self { cluster: Arc::clone(cluster), thread: Some(thread) })
    }
}

impl Drop for RunningLink {
    fn drop(&mut self) {
        self.cluster.is_stopped.store(true, Ordering::SeqCst);
        self.cluster.outbox.wake();
        if let Some(thread) = self.thread.take() {
            // A thread that has panicked has ended as well.
            let _ = thread.join();
        }
    }
}

/// State of the thread.
struct ClusterLink {
    poll: Poll,
    connection: Option<BrokerConnection>,
    receiver: Receiver,
    announcer: Announcer,
    missed_events: MissedEvents,
    /// Attempts since the last connection that has lasted for [`STABLE_TIME`].
    attempts: u32,
    /// The last login.
    ready_at: Option<Instant>,
    rejections: Rejections,
    /// When the next batch of subscriptions is due.
    batch_at: Option<Instant>,
    retry_at: Instant,
    beat_at: Instant,
    /// When a node is dead unless it sends something; computed once a second, so that it may be too early.
    expire_at: Option<Instant>,
    /// Workers have a backlog.
    is_delayed: bool,
    /// Clients know about an outage.
    has_reported: bool,
}

impl ClusterLink {
    fn new(
        cluster: &Arc<Cluster>,
        hub: Arc<HubTopics>,
        local: LocalParts,
        publisher: Publisher,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        cluster.outbox.set_waker(Waker::new(poll.registry(), WAKER)?);
        let now = Instant::now();
        let receiver = Receiver {
            cluster: Arc::clone(cluster),
            hub,
            local,
            publisher,
            remote: RemotePresence::default(),
            requesters: Vec::new(),
            revocations: RevocationLists::default(),
            results: PendingWork::new(&cluster.outbox),
            events: PendingWork::new(&cluster.outbox),
        };
        Ok(Self {
            poll,
            connection: None,
            receiver,
            announcer: Announcer::new(now),
            missed_events: MissedEvents::default(),
            attempts: 0,
            ready_at: None,
            rejections: Rejections::default(),
            batch_at: None,
            retry_at: now,
            beat_at: now,
            expire_at: None,
            is_delayed: false,
            has_reported: false,
        })
    }

    fn run(mut self) {
        let mut events = Events::with_capacity(8);
        while !self.cluster().is_stopped.load(Ordering::SeqCst) {
            self.turn();
            self.wait_for_work(&mut events);
        }
        self.leave();
    }

    /// Does all work but waiting.
    fn turn(&mut self) {
        self.cluster().outbox.note_awake();
        let now = Instant::now();
        if self.connection.is_none() && now >= self.retry_at {
            self.connect(now);
        }
        self.beat(now);
        if self.expire_at.is_some_and(|at| at <= now) {
            self.expire_nodes(now);
        }
        if self.batch_at.is_some_and(|at| at <= now) {
            self.cluster().interest.subscribe_batch();
            self.batch_at = batch_deadline(self.cluster(), now);
        }
        self.cluster().lock_requests().expire(now);
        self.receiver.do_pending_work();
        let Receiver { cluster, requesters, publisher, .. } = &mut self.receiver;
        self.announcer.run(cluster, requesters, publisher, now);
        self.serve();
    }

    /// Waits for work, and meanwhile delivers other nodes' publications: they need nothing else from the thread.
    fn wait_for_work(&mut self, events: &mut Events) {
        let mut now = Instant::now();
        let until = now + self.timeout(now);
        while self.wait(events, until.saturating_duration_since(now)) {
            now = Instant::now();
            if now >= until || !self.flush_receiver(now) {
                return;
            }
        }
    }

    /// Waits for events. Returns whether the socket has some, and no thread has woken this one.
    fn wait(&mut self, events: &mut Events, timeout: Duration) -> bool {
        // An interrupted wait is over earlier.
        let _ = self.poll.poll(events, Some(timeout));
        let mut is_woken = events.is_empty();
        for event in events.iter() {
            match &mut self.connection {
                Some(connection) if event.token() == SOCKET => connection.wake(event),
                _ => is_woken = true,
            }
        }
        !is_woken
    }

    fn cluster(&self) -> &Arc<Cluster> {
        &self.receiver.cluster
    }

    fn connect(&mut self, now: Instant) {
        let cluster = &self.receiver.cluster;
        let own = cluster.outbox.subjects.node(cluster.node);
        let attempt = self.attempts as usize;
        let waker = Arc::clone(cluster);
        let wake = move || waker.outbox.wake();
        let registry = self.poll.registry();
        let background = &self.receiver.local.background;
        match BrokerConnection::start(
            background,
            &cluster.options,
            Some(&own),
            attempt,
            registry,
            SOCKET,
            wake,
        ) {
            Ok(connection) => self.connection = Some(connection),
            Err(reason) => self.disconnect(&reason, now),
        }
    }

    /// The time until the thread has to do something.
    fn timeout(&self, now: Instant) -> Duration {
        if self.is_delayed {
            return BACKLOG_DELAY;
        }
        if self.connection.as_ref().is_some_and(BrokerConnection::has_input) {
            return Duration::ZERO;
        }
        let mut next = self.expire_at.map_or(self.beat_at, |at| at.min(self.beat_at));
        if self.connection.is_none() {
            next = next.min(self.retry_at);
        }
        next = self.batch_at.map_or(next, |at| next.min(at));
        if self.cluster().outbox.is_open() && self.cluster().has_changes.load(Ordering::Acquire) {
            next = next.min(self.announcer.next);
        }
        let is_flushed = self.connection.as_ref().is_some_and(BrokerConnection::is_flushed);
        let deadline = self.cluster().lock_requests().deadline();
        next = deadline.map_or(next, |deadline| next.min(deadline));
        if (self.announcer.sends_snapshot() || self.receiver.revocations.sends_list()) && is_flushed {
            return Duration::ZERO;
        }
        next.saturating_duration_since(now)
    }

    /// Does the work that is due each second.
    fn beat(&mut self, now: Instant) {
        if now < self.beat_at && !self.cluster().beats_now.swap(false, Ordering::AcqRel) {
            return;
        }
        self.beat_at = now + HEARTBEAT;
        let cluster = Arc::clone(self.cluster());
        if let Err(reason) = self.check_connection(now).and_then(|()| cluster.outbox.check_waiting()) {
            self.disconnect(&reason, now);
        }
        if self.ready_at.is_some_and(|at| now.saturating_duration_since(at) >= STABLE_TIME) {
            self.attempts = 0;
        }
        self.rejections.report(&self.receiver.hub, &self.receiver.publisher);
        self.report(now);
        self.expire_nodes(now);
        if cluster.outbox.is_open() {
            let counts = self.receiver.hub.connections().counts();
            cluster.send_heartbeat(&cluster.heartbeat(counts, self.announcer.announced));
            self.missed_events.send_again(&cluster, &self.receiver.hub, now);
            cluster.ping();
        }
    }

    /// Returns whether the broker answers.
    ///
    /// # Errors
    /// The reason to give up the connection.
    fn check_connection(&mut self, now: Instant) -> Result<(), String> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        if self.is_delayed {
            // Answers may be behind messages that this node does not read yet.
            connection.answered = now;
        }
        let since = |time: Instant| now.saturating_duration_since(time);
        if !connection.is_ready {
            return match since(connection.started) > CONNECT_TIMEOUT {
                true => Err(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs())),
                false => Ok(()),
            };
        }
        let (silence, unanswered) = (since(connection.received), since(connection.answered));
        if silence > SILENCE_MAX {
            return Err(format!("the broker has not answered for {} s", silence.as_secs()));
        }
        if unanswered > ANSWER_MAX {
            return Err(format!(
                "the broker sends messages, but has answered no command for {} s",
                unanswered.as_secs()
            ));
        }
        connection.check_role();
        Ok(())
    }

    /// Removes nodes without heartbeats, and their members.
    fn expire_nodes(&mut self, now: Instant) {
        let cluster = Arc::clone(self.cluster());
        let is_delayed =
            |connection: &BrokerConnection| now.saturating_duration_since(connection.received) > DELAY_MAX;
        let is_heard = self.connection.as_ref().is_some_and(|connection| !is_delayed(connection));
        for node in cluster.expire_nodes(now, cluster.outbox.is_open() && is_heard) {
            self.receiver.remote.remove(node, &self.receiver.publisher);
        }
        self.expire_at = cluster.lock_nodes().expires();
    }

    /// Notifies clients about an outage and its end.
    fn report(&mut self, now: Instant) {
        let away = self.cluster().away_for(now);
        let is_away = away.is_some_and(|time| self.has_reported || time >= REPORT_DELAY);
        let connections = self.receiver.hub.connections();
        // In a shorter outage, only a new client's welcome may say so.
        let knows_short_outage = away.is_none() && connections.has_isolated.swap(false, Ordering::AcqRel);
        if is_away != self.has_reported || knows_short_outage {
            self.has_reported = is_away;
            connections.report_cluster(!is_away);
        }
    }

    fn serve(&mut self) {
        let now = Instant::now();
        if let Err(reason) = self.exchange(now) {
            self.disconnect(&reason, now);
        }
    }

    /// Receives the socket's input. Returns whether it was other nodes' publications, and there is nothing else to do.
    fn flush_receiver(&mut self, now: Instant) -> bool {
        match self.receive(now) {
            Ok(has_work) => {
                let sends_list = self.announcer.sends_snapshot() || self.receiver.revocations.sends_list();
                let is_idle = self.connection.as_ref().is_some_and(BrokerConnection::is_idle);
                is_idle && !has_work && !sends_list && !self.is_delayed
            }
            Err(reason) => {
                self.disconnect(&reason, now);
                false
            }
        }
    }

    /// Receives the socket's input, and sends as much as it accepts.
    fn exchange(&mut self, now: Instant) -> Result<(), String> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        if !connection.establish()? {
            return Ok(());
        }
        self.receive(now)?;
        let Some(connection) = &mut self.connection else { return Ok(()) };
        if connection.is_ready {
            send_waiting(connection, &self.receiver.cluster.outbox)
        } else {
            connection.send()
        }
    }

    /// Receives the socket's input. Returns whether it was more than other nodes' publications.
    fn receive(&mut self, now: Instant) -> Result<bool, String> {
        let Some(connection) = &mut self.connection else { return Ok(true) };
        self.is_delayed = false;
        let mut has_work = false;
        let mut count = 0;
        for _ in 0..CHUNKS_PER_TURN {
            if !connection.has_input() || self.is_delayed || !connection.receive(now)? {
                break;
            }
            while let Some(event) = connection.next_event()? {
                has_work |= !matches!(event, LinkEvent::Message(_));
                match event {
                    LinkEvent::Ready => {
                        self.ready_at = Some(now);
                        self.rejections = Rejections::default();
                        let outbox = &self.receiver.cluster.outbox;
                        outbox.attach(connection.second_handle(), connection.skips_replies());
                        let revocations = self.receiver.local.revocations.all();
                        self.receiver.cluster.connected(connection.max_payload(), now, revocations);
                        self.missed_events.connected(&self.receiver.cluster, &self.receiver.hub, now);
                        self.batch_at = batch_deadline(&self.receiver.cluster, now);
                        // The other nodes learn of this one at once.
                        self.beat_at = now;
                    }
                    LinkEvent::Subscribed => self.rejections.note_subscribed(),
                    LinkEvent::Rejected(text) => self.rejections.note(&self.receiver.cluster, text, now),
                    LinkEvent::Pong(id) => {
                        let cluster = &self.receiver.cluster;
                        for purpose in cluster.outbox.take_pings(id) {
                            match purpose {
                                PingPurpose::Heartbeat => cluster.confirmed(now),
                                PingPurpose::Subscription(id) => {
                                    self.rejections.end_subscription(id, cluster, now)?;
                                    if cluster.interest.ends_batch(id) {
                                        self.batch_at = Some(now + BATCH_DELAY_MAX.mul_f64(random_share()));
                                    }
                                }
                            }
                        }
                    }
                    LinkEvent::Message(range) => {
                        has_work |= self.receiver.receive(connection.payload(range), now);
                        count += 1;
                    }
                }
                if count % MESSAGES_PER_CHECK == MESSAGES_PER_CHECK - 1 {
                    self.is_delayed = self.receiver.publisher.is_backlogged();
                }
            }
        }
        Ok(has_work)
    }

    fn disconnect(&mut self, reason: &str, now: Instant) {
        if let Some(socket) = self.connection.take().as_mut().and_then(BrokerConnection::socket) {
            // Closing it would do as well.
            let _ = self.poll.registry().deregister(socket);
        }
        self.is_delayed = false;
        (self.ready_at, self.batch_at) = (None, None);
        self.cluster().disconnected(reason, now);
        let delay = RETRY_MIN.saturating_mul(1 << self.attempts.min(10)).min(RETRY_MAX);
        self.attempts = self.attempts.saturating_add(1);
        self.retry_at = now + delay.mul_f64(0.5 + random_share() / 2.0);
    }

    /// Notifies the other nodes, which otherwise wait for heartbeats.
    fn leave(&mut self) {
        let cluster = Arc::clone(self.cluster());
        cluster.send_leave();
        let begin = Instant::now();
        let mut events = Events::with_capacity(8);
        while begin.elapsed() < FLUSH_TIMEOUT {
            self.serve();
            let is_taken = cluster.outbox.waiting() == 0;
            if self.connection.as_ref().is_none_or(|connection| is_taken && connection.is_flushed()) {
                return;
            }
            self.wait(&mut events, FLUSH_TIMEOUT);
        }
    }
}

/// Sends what waits, as much as the socket accepts.
fn send_waiting(connection: &mut BrokerConnection, outbox: &Outbox) -> Result<(), String> {
    loop {
        let unwritten = connection.unwritten();
        let has_taken = outbox.take(connection.output(), unwritten);
        connection.send()?;
        // If the socket accepts no more, it reports when it does.
        if has_taken || connection.unwritten() == unwritten {
            return Ok(());
        }
    }
}

/// Returns when the next batch of subscriptions is due if the last one has no answer; `None` if no batch remains.
fn batch_deadline(cluster: &Cluster, now: Instant) -> Option<Instant> {
    (!cluster.interest.is_resumed()).then_some(now + BATCH_TIMEOUT)
}

/// A random number from 0 to 1, so that the nodes do not reconnect at the same time.
fn random_share() -> f64 {
    let mut byte = [0];
    // Without random numbers, all nodes wait equally long.
    let _ = SystemRandom::new().fill(&mut byte);
    f64::from(byte[0]) / 255.0
}

#[cfg(test)]
mod tests;
