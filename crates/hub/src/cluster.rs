//! A cluster of servers: publications, members and commands reach the clients of all nodes, over a broker.
//!
//! ```text
//!   worker ── publish ──▶ outbox ──▶ link, a thread ──▶ broker ──▶ link of each node with subscribers ──▶ workers
//!                  └── directly, while nothing waits ──────▶┘
//! ```
//!
//! The broker routes: a node subscribes there to the topics and patterns of its clients.
//! docs/book/src/operate/cluster.md has the guarantees.

mod announcer;
mod cached_events;
pub(crate) mod command;
mod commands;
mod connection;
mod direct;
mod interest;
pub(crate) mod link;
mod log_limit;
mod lost_nodes;
mod members;
mod membership;
mod message;
mod metrics;
mod nats;
mod nkey;
pub(crate) mod node;
mod nodes;
pub(crate) mod observe;
pub(crate) mod options;
mod outbox;
mod pending;
mod protocol;
mod receiver;
mod redis;
mod rejections;
mod revocations;
mod security;
mod sentinel;
mod subject;
mod times;
mod transport;
mod versions;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex, MutexGuard};
use prometheus_client::collector::Collector;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::Serialize;

use self::cached_events::CachedEventRequests;
use self::command::{NodeCommand, NodeResults};
use self::commands::{CommandMessage, PendingRequests};
use self::interest::{ALL_NODES, Interest, THIS_NODE};
use self::log_limit::LogLimits;
use self::lost_nodes::LostNodes;
use self::message::{EncodedPublication, MessageKind, NodeId};
use self::metrics::ClusterMetrics;
use self::node::ClusterNode;
use self::nodes::{Heartbeat, Nodes};
use self::options::ClusterOptions;
use self::outbox::{Audience, LinkCounters, Outbox};
use self::subject::Subjects;
use self::times::{LOSS_MAX, NODE_TIMEOUT, OUTAGE_MAX, READY_TIME, RETURN_TIME, SETTLE_TIME};
use self::versions::OtherVersions;
use crate::access::auth::Revocation;
use crate::connections::ConnectionCounts;
use crate::error::{HubError, HubErrorKind};
use crate::model::nodes::{OtherNodes, ReportRole, ReportingNodes};
use crate::model::publication::Publication;
use crate::topics::stored::StoredTopics;
use crate::topics::subscribed::TopicObserver;

/// Maximum revocations in one message: some tens of KiB.
const REVOCATIONS_PER_MESSAGE: usize = 256;

/// Nodes that send a node the revocations in effect: more than one, since a node may be about to end, or may have
/// missed a revocation itself.
const SYNC_ANSWERS: usize = 3;

/// This node in a cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    options: ClusterOptions,
    node: NodeId,
    name: String,
    begin: Instant,
    outbox: Arc<Outbox>,
    interest: Arc<Interest>,
    nodes: Mutex<Nodes>,
    status: Mutex<LinkStatus>,
    /// The broker has answered, or is unreachable.
    status_changed: Condvar,
    is_stopped: AtomicBool,
    /// The handover from a predecessor, if there is one, is complete.
    is_serving: AtomicBool,
    /// This node's members have changed, and are not announced.
    has_changes: AtomicBool,
    requests: Mutex<PendingRequests>,
    /// Dead nodes, for topic reports.
    dead: Mutex<Vec<u128>>,
    lost: LostNodes,
    /// This node's part in topic reports.
    role: Mutex<ReportRole>,
    /// The next heartbeat is due at once.
    beats_now: AtomicBool,
    cached_events: CachedEventRequests,
    log_limits: LogLimits,
    versions: OtherVersions,
    stored: OnceLock<Arc<StoredTopics>>,
}

/// State of the broker connection.
#[derive(Clone, Debug)]
struct LinkStatus {
    is_connected: bool,
    /// The first login of this process.
    first: Option<Instant>,
    since: Instant,
    /// Why there is no connection.
    reason: String,
    /// The state of the other nodes was removed in the last outage.
    was_cut_off: bool,
    /// Pings to the broker, on this connection and earlier connections.
    pings: u64,
    /// Answered and lost pings.
    answered: u64,
    /// An attempt to connect, or a connection, has failed: other nodes may connect later than this one.
    has_failed: bool,
}

impl LinkStatus {
    /// Returns whether the state of the other nodes is not known: it was removed in an outage, or is about to be, and
    /// they may not have sent it again.
    fn is_cut_off(&self, now: Instant) -> bool {
        let time = now.saturating_duration_since(self.since);
        match self.is_connected {
            true => self.was_cut_off && time < RETURN_TIME,
            false => self.was_cut_off || time >= OUTAGE_MAX,
        }
    }

    /// Returns whether this node has been connected for long enough to know the presence of all nodes.
    fn is_settled(&self, now: Instant) -> bool {
        let time = if self.has_failed { RETURN_TIME } else { SETTLE_TIME };
        self.is_connected && now.saturating_duration_since(self.since) >= time
    }
}

impl Cluster {
    /// Creates the node. Topics with these patterns retain messages, so the node always receives them.
    ///
    /// A predecessor process passes its id on: both exchange publications during the handover, and ignore messages from
    /// their common id at the broker.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(crate) fn new(
        options: ClusterOptions,
        retained: &[String],
        predecessor: Option<&str>,
    ) -> Result<Self, HubError> {
        let mut id = [0; 16];
        let fault = |_| HubError::new(HubErrorKind::System, "the system has no random numbers");
        SystemRandom::new().fill(&mut id).map_err(fault)?;
        let inherited = predecessor.and_then(|id| u128::from_str_radix(id, 16).ok());
        let start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let start = u64::try_from(start.as_micros()).unwrap_or(u64::MAX);
        let node = NodeId { id: inherited.unwrap_or_else(|| u128::from_le_bytes(id)), start };
        let subjects = Subjects::new(options.engine, &options.prefix);
        let outbox = Arc::new(Outbox::new(options.engine, node, subjects));
        let interest = Arc::new(Interest::new(Arc::clone(&outbox), retained));
        let name = options.name.clone().unwrap_or_else(crate::node::host_name);
        let begin = Instant::now();
        let reason = "it has not answered yet".to_owned();
        let status = Mutex::new(LinkStatus {
            is_connected: false,
            first: None,
            since: begin,
            reason,
            was_cut_off: false,
            pings: 0,
            answered: 0,
            has_failed: false,
        });
        let nodes = Mutex::default();
        Ok(Self {
            options,
            node,
            name,
            begin,
            outbox,
            interest,
            nodes,
            status,
            status_changed: Condvar::new(),
            is_stopped: AtomicBool::new(false),
            is_serving: AtomicBool::new(true),
            has_changes: AtomicBool::new(false),
            requests: Mutex::default(),
            dead: Mutex::default(),
            lost: LostNodes::default(),
            role: Mutex::default(),
            beats_now: AtomicBool::new(false),
            cached_events: CachedEventRequests::default(),
            log_limits: LogLimits::default(),
            versions: OtherVersions::default(),
            stored: OnceLock::new(),
        })
    }

    /// Sets the topics whose histories and keys a store has. Called once, before the start.
    pub(crate) fn set_stored(&self, stored: Arc<StoredTopics>) {
        // The first call sets it.
        let _ = self.stored.set(stored);
    }

    /// Sets whether members of this process replace those of a predecessor.
    pub(crate) fn set_serving(&self, is_serving: bool) {
        self.is_serving.store(is_serving, Ordering::Release);
        self.beats_now.store(true, Ordering::Release);
        self.outbox.wake();
    }

    /// This node, as topics use it.
    pub(crate) fn other_nodes(self: &Arc<Self>) -> Arc<dyn OtherNodes> {
        Arc::clone(self) as Arc<dyn OtherNodes>
    }

    /// The metrics.
    pub(crate) fn collector(&self) -> Box<dyn Collector> {
        Box::new(ClusterMetrics::new(self))
    }

    /// Returns the observer for this server's subscriptions.
    pub(crate) fn observer(&self) -> Arc<dyn TopicObserver> {
        Arc::clone(&self.interest) as Arc<dyn TopicObserver>
    }

    /// Whether other nodes are known, can be reached, and have the same version.
    ///
    /// # Errors
    /// The reason why they are not.
    pub(crate) fn ready(&self) -> Result<(), String> {
        self.check_broker()?;
        let now = Instant::now();
        self.versions.check(now)?;
        match self.lock_status().first {
            Some(first) if now.saturating_duration_since(first) >= READY_TIME => Ok(()),
            _ => Err("the other nodes of the cluster are not known yet".to_owned()),
        }
    }

    /// Whether other nodes can be reached.
    ///
    /// # Errors
    /// The reason why the broker is unreachable.
    pub(crate) fn check_broker(&self) -> Result<(), String> {
        let status = self.lock_status();
        if status.is_connected {
            return Ok(());
        }
        let seconds = status.since.elapsed().as_secs();
        Err(format!(
            "the broker of the cluster, {}, has not been reachable for {seconds} s: {}",
            self.options, status.reason
        ))
    }

    fn counters(&self) -> &LinkCounters {
        &self.outbox.counters
    }

    /// Returns how many subscriptions the broker rejects.
    fn rejected_subscriptions(&self) -> usize {
        self.interest.rejected()
    }

    /// Returns the node count, including this one.
    fn node_count(&self) -> usize {
        self.lock_nodes().len() + 1
    }

    /// Returns this node's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// This node and the others, by name.
    pub(crate) fn nodes(&self, counts: ConnectionCounts) -> Vec<(ClusterNode, bool)> {
        let own = ClusterNode::new(self.node, &self.heartbeat(counts, 0));
        let mut nodes = vec![(own, true)];
        nodes
            .extend(self.lock_nodes().iter().map(|(id, heartbeat)| (ClusterNode::new(id, heartbeat), false)));
        nodes.sort_by(|(a, _), (b, _)| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
        nodes
    }

    /// Sends a command to all other nodes; completes with their results, or when the time is over. While the broker is
    /// away, all known nodes are missing. Nodes that were removed without their notice are missing for a while.
    pub(crate) fn request(&self, command: &NodeCommand) -> impl Future<Output = NodeResults> + Send + use<> {
        let names: BTreeMap<NodeId, String> =
            self.lock_nodes().iter().map(|(id, heartbeat)| (id, heartbeat.name.clone())).collect();
        let nodes: BTreeSet<NodeId> = names.keys().copied().collect();
        let is_sent = self.is_connected();
        let lost = self.lost.names(is_sent, Instant::now());
        let done = match is_sent && !nodes.is_empty() {
            true => self.lock_requests().add(nodes.clone(), Instant::now()),
            false => None,
        };
        if is_sent {
            // Also without known nodes: one may have joined a moment ago.
            let id = done.as_ref().map_or(0, |(id, _)| *id);
            self.send_command(&self.outbox.subjects.all(), id, command.clone());
        }
        async move {
            let (results, missing) = match done {
                // The link's thread has ended.
                Some((_, done)) => done.await.unwrap_or_else(|_| (Vec::new(), nodes)),
                None => (Vec::new(), nodes),
            };
            let is_complete = missing.is_empty();
            let missing = missing.iter().filter_map(|node| names.get(node).cloned()).chain(lost).collect();
            NodeResults { results, missing, is_complete }
        }
    }

    fn send_command(&self, subject: &str, id: u64, command: NodeCommand) {
        self.outbox.send(subject, MessageKind::Command, &encode(&CommandMessage { id, command }));
    }

    /// Returns whether this node answers another node's sync: the [`SYNC_ANSWERS`] nodes with the longest uptime do. A
    /// node that has itself just joined may lack revocations.
    fn answers_sync(&self, node: NodeId) -> bool {
        let own = (self.begin.elapsed().as_secs(), self.node);
        let nodes = self.lock_nodes();
        let others = nodes.iter().filter(|(id, _)| *id != node);
        others.filter(|(id, heartbeat)| (heartbeat.uptime, *id) > own).count() < SYNC_ANSWERS
    }

    /// Sends all nodes the revocations that they may have missed: those from an outage and a moment before it, since a
    /// broker that goes away loses messages; after this process's start, all.
    fn send_missed(&self, mut all: Vec<Revocation>) {
        if self.lock_status().first.is_some() {
            let ago = self.missed_time();
            all.retain(|revocation| revocation.is_younger_than(ago));
        }
        self.send_revocations(&self.outbox.subjects.all(), &all);
    }

    /// Returns the time since the beginning of an outage, and a moment before it: the other nodes may have missed
    /// messages of it.
    fn missed_time(&self) -> Duration {
        self.lock_status().since.elapsed() + LOSS_MAX
    }

    /// Sends revocations to a node, or to all nodes.
    fn send_revocations(&self, subject: &str, all: &[Revocation]) {
        for part in all.chunks(REVOCATIONS_PER_MESSAGE) {
            let command = NodeCommand::Revocations { all: part.to_vec() };
            let body = encode(&CommandMessage { id: 0, command });
            if body.len() > self.outbox.max_payload() && part.len() > 1 {
                let (first, second) = part.split_at(part.len() / 2);
                self.send_revocations(subject, first);
                self.send_revocations(subject, second);
            } else {
                self.outbox.send(subject, MessageKind::Command, &body);
            }
        }
    }

    /// Time without a broker.
    fn away_for(&self, now: Instant) -> Option<Duration> {
        let status = self.lock_status();
        (!status.is_connected).then(|| now.saturating_duration_since(status.since))
    }

    fn connected(&self, max_payload: usize, now: Instant, revocations: Vec<Revocation>) {
        // Heartbeats of the others could not arrive, and the others reconnect at different times.
        self.lock_nodes().renew(now + RETURN_TIME.saturating_sub(NODE_TIMEOUT));
        let all = self.outbox.subjects.all();
        let own = self.outbox.subjects.node(self.node);
        self.interest.resume(max_payload, &[(&all, ALL_NODES), (&own, THIS_NODE)]);
        // A topic store has the revocations.
        if self.stored.get().is_none() {
            let all = self.outbox.subjects.all();
            self.send_command(&all, 0, NodeCommand::Sync);
            self.send_missed(revocations);
        }
        tracing::info!(broker = %self.options, node = %self.node, "connected to the cluster");
    }

    /// Pings the broker.
    fn ping(&self) {
        // An answer to an earlier ping must not count for a ping that follows this line.
        self.lock_status().pings += 1;
        self.outbox.ping();
    }

    /// Waits until this node receives the messages of the others; returns whether it does.
    pub(crate) fn wait_connected(&self, limit: Duration) -> bool {
        self.wait(self.lock_status(), limit, |status| status.is_connected)
    }

    fn wait(
        &self,
        mut status: MutexGuard<'_, LinkStatus>,
        limit: Duration,
        condition: impl Fn(&LinkStatus) -> bool,
    ) -> bool {
        !self.status_changed.wait_while_for(&mut status, |status| !condition(status), limit).timed_out()
    }

    /// Notes that the broker has answered a ping. The node is connected once the broker has its subscriptions.
    fn confirmed(&self, now: Instant) {
        let mut status = self.lock_status();
        status.answered = status.pings.min(status.answered + 1);
        self.status_changed.notify_all();
        if !status.is_connected && self.interest.is_resumed() {
            let was_cut_off = status.is_cut_off(now);
            *status = LinkStatus {
                is_connected: true,
                first: status.first.or(Some(now)),
                since: now,
                reason: String::new(),
                was_cut_off,
                ..*status
            };
        }
    }

    fn disconnected(&self, reason: &str, now: Instant) {
        self.outbox.close();
        let mut status = self.lock_status();
        let is_new = status.is_connected || status.reason != reason;
        if status.is_connected {
            status.was_cut_off = status.is_cut_off(now);
            status.since = now;
        }
        (status.is_connected, status.has_failed) = (false, true);
        status.answered = status.pings;
        status.reason = reason.to_owned();
        self.status_changed.notify_all();
        drop(status);
        if is_new {
            tracing::warn!(broker = %self.options, reason, "no connection to the other nodes of the cluster");
        }
    }

    /// Announces changed members soon.
    pub(crate) fn note_presence(&self) {
        self.has_changes.store(true, Ordering::Release);
        self.outbox.wake();
    }

    fn heartbeat(&self, counts: ConnectionCounts, presence: u64) -> Heartbeat {
        let (store, store_away) = self.stored.get().map_or_else(Default::default, |it| it.report());
        Heartbeat {
            name: self.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime: self.begin.elapsed().as_secs(),
            connections: counts.connections,
            users: counts.users,
            topics: self.interest.len() as u64,
            store,
            store_away,
            presence,
            serving: self.is_serving.load(Ordering::Acquire),
            reports: self.report_role(),
        }
    }

    fn report_role(&self) -> ReportRole {
        *self.role.lock()
    }

    fn send_heartbeat(&self, heartbeat: &Heartbeat) {
        self.outbox.send(&self.outbox.subjects.all(), MessageKind::Heartbeat, &encode(heartbeat));
    }

    fn send_leave(&self) {
        self.outbox.send(&self.outbox.subjects.all(), MessageKind::Leave, &[]);
    }

    fn lock_nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock()
    }

    fn lock_requests(&self) -> MutexGuard<'_, PendingRequests> {
        self.requests.lock()
    }

    fn lock_status(&self) -> MutexGuard<'_, LinkStatus> {
        self.status.lock()
    }
}

impl OtherNodes for Cluster {
    fn publish(&self, publication: &Publication<'_, '_>, to_all: bool) {
        let audience = if to_all { Audience::AllNodes } else { Audience::Subscribers };
        let encoded = EncodedPublication::new(publication);
        self.outbox.push(publication.topic, audience, &encoded);
    }

    fn request_cached_event(&self, topic: &str, retained: Option<Instant>, time: Duration) -> bool {
        self.request_event(topic, retained, time)
    }

    fn pass_cache_miss(&self, topic: &str, is_requested: bool) -> bool {
        let owner = self.lock_nodes().owner(topic, self.node, self.report_role());
        let passes = owner != self.node && self.is_connected();
        if passes {
            let miss = NodeCommand::CacheMiss { topic: topic.to_owned(), is_requested };
            self.send_command(&self.outbox.subjects.node(owner), 0, miss);
        }
        passes
    }

    fn catch_up(&self, limit: Duration) -> bool {
        let status = self.lock_status();
        let next = status.pings + 1;
        self.beats_now.store(true, Ordering::Release);
        self.outbox.wake();
        self.wait(status, limit, |status| !status.is_connected || status.answered >= next)
    }

    fn retry_rejected(&self, topic: &str) {
        self.interest.retry_rejected(topic);
    }

    fn is_connected(&self) -> bool {
        self.outbox.is_open()
    }

    fn id(&self) -> String {
        self.node.to_string()
    }

    fn reporting(&self) -> ReportingNodes {
        let role = self.report_role();
        let (reporters, has_older_candidate) = self.lock_nodes().reporters(self.node, role);
        let dead = std::mem::take(&mut *self.dead.lock());
        let (status, now) = (self.lock_status().clone(), Instant::now());
        let (is_settled, is_cut_off) = (status.is_settled(now), status.is_cut_off(now));
        ReportingNodes { own: self.node.id, reporters, is_settled, has_older_candidate, is_cut_off, dead }
    }

    fn set_report_role(&self, role: ReportRole) {
        let mut known = self.role.lock();
        if std::mem::replace(&mut *known, role) != role {
            drop(known);
            // The other nodes learn of it at once.
            self.beats_now.store(true, Ordering::Release);
            self.outbox.wake();
        }
    }
}

/// Encodes a message to other nodes as JSON.
fn encode(message: &impl Serialize) -> Vec<u8> {
    // Structs with texts and numbers can always be encoded.
    serde_json::to_vec(message).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> Cluster {
        Cluster::new(ClusterOptions::parse("nats://127.0.0.1:1").unwrap(), &[], None).unwrap()
    }

    fn add(cluster: &Cluster, id: u128, uptime: u64) -> NodeId {
        let node = NodeId { id, start: 0 };
        assert!(cluster.lock_nodes().receive(node, 1, Instant::now()));
        let heartbeat = Heartbeat { uptime, ..cluster.heartbeat(ConnectionCounts::default(), 0) };
        cluster.note_heartbeat(node, heartbeat, Instant::now());
        node
    }

    #[test]
    fn nodes_that_reconnect_later_than_this_one_stay() {
        let (cluster, begin) = (cluster(), Instant::now());
        let other = add(&cluster, 1, 0);
        cluster.confirmed(begin);
        cluster.disconnected("test", begin);
        let back = begin + Duration::from_secs(30);
        assert_eq!(cluster.expire_nodes(back, false), []);
        cluster.connected(1 << 20, back, Vec::new());
        cluster.confirmed(back);
        let late = back + RETURN_TIME - Duration::from_millis(1);
        assert_eq!(cluster.expire_nodes(late, true), []);
        assert_eq!(cluster.expire_nodes(back + RETURN_TIME, true), [other]);
    }

    #[test]
    fn nodes_stay_while_the_broker_is_silent() {
        let (cluster, begin) = (cluster(), Instant::now());
        let other = add(&cluster, 1, 0);
        cluster.confirmed(begin);
        let silent = begin + OUTAGE_MAX + NODE_TIMEOUT;
        assert_eq!(cluster.expire_nodes(silent, false), [], "its silence is an outage soon");
        assert_eq!(cluster.expire_nodes(silent + NODE_TIMEOUT, true), [other]);
    }

    #[test]
    fn state_of_other_nodes_is_unknown_from_a_long_outage_until_they_are_back() {
        let (cluster, begin) = (cluster(), Instant::now());
        let is_cut_off = |now| cluster.lock_status().is_cut_off(now);
        let step = Duration::from_millis(1);
        cluster.confirmed(begin);
        assert!(!is_cut_off(begin + 2 * OUTAGE_MAX));
        cluster.disconnected("test", begin);
        let long = begin + OUTAGE_MAX;
        assert!(!is_cut_off(long - step) && is_cut_off(long));
        cluster.confirmed(long - step);
        assert!(!is_cut_off(long), "the outage was short");
        cluster.disconnected("test", begin);
        cluster.confirmed(long);
        assert!(is_cut_off(long + RETURN_TIME - step) && !is_cut_off(long + RETURN_TIME));
        // Another outage before the others are back.
        cluster.disconnected("test", long + step);
        assert!(is_cut_off(long + RETURN_TIME));
        cluster.confirmed(long + 2 * step);
        assert!(is_cut_off(long + RETURN_TIME) && !is_cut_off(long + RETURN_TIME + 2 * step));
    }

    #[test]
    fn node_is_settled_when_it_has_been_connected_for_long_enough_to_know_the_others() {
        let (mut cluster, step) = (cluster(), Duration::from_millis(1));
        let is_settled = |cluster: &Cluster, now| cluster.lock_status().is_settled(now);
        let begin = cluster.begin;
        cluster.confirmed(begin);
        let settled = begin + SETTLE_TIME;
        assert!(!is_settled(&cluster, settled - step) && is_settled(&cluster, settled));
        cluster.disconnected("test", settled);
        assert!(!is_settled(&cluster, settled));
        // The broker returns, and with it the other nodes, one after the other.
        let late = settled + Duration::from_secs(100);
        cluster.confirmed(late);
        assert!(!is_settled(&cluster, late + RETURN_TIME - step) && is_settled(&cluster, late + RETURN_TIME));
        // A node that starts in an outage.
        cluster = self::cluster();
        cluster.begin = begin.checked_sub(Duration::from_secs(60)).unwrap();
        cluster.disconnected("test", begin);
        assert!(!cluster.reporting().is_settled);
        cluster.confirmed(late);
        assert!(!is_settled(&cluster, late + RETURN_TIME - step) && is_settled(&cluster, late + RETURN_TIME));
    }

    #[test]
    fn node_is_ready_when_heartbeats_of_the_others_have_arrived() {
        let (cluster, now) = (cluster(), Instant::now());
        cluster.confirmed(now);
        assert_eq!(cluster.ready(), Err("the other nodes of the cluster are not known yet".to_owned()));
        let cluster = self::cluster();
        cluster.confirmed(now.checked_sub(READY_TIME).unwrap());
        assert_eq!(cluster.ready(), Ok(()));
        cluster.disconnected("test", now);
        assert!(cluster.ready().is_err());
        cluster.confirmed(now);
        assert_eq!(cluster.ready(), Ok(()), "it has known them before");
    }

    #[test]
    fn commands_while_the_broker_is_away_have_no_answer_at_once() {
        let cluster = cluster();
        add(&cluster, 1, 0);
        let command = NodeCommand::AppConnections { app: "1".to_owned() };
        let answer = futures_util::FutureExt::now_or_never(cluster.request(&command));
        assert_eq!(answer.expect("it does not wait").missing.len(), 1);
    }

    #[test]
    fn nodes_with_the_longest_uptime_answer_a_sync() {
        let cluster = cluster();
        let asking = add(&cluster, 0, 0);
        assert!(cluster.answers_sync(asking), "no other node does");
        // The asking node itself does not count, nor do nodes that have joined later.
        for id in 1..SYNC_ANSWERS as u128 {
            add(&cluster, id, 1_000);
            assert!(cluster.answers_sync(asking), "{id}");
        }
        add(&cluster, u128::MAX, 1_000);
        assert!(!cluster.answers_sync(asking));
    }

    #[test]
    fn revocations_of_an_outage_are_sent_again() {
        let cluster = cluster();
        let revocation = |id: &str, ago: f64| {
            let new = Revocation::new(crate::access::auth::RevokedTokens::WithId(id.into()), 4e9);
            Revocation { at: new.at - ago, ..new }
        };
        let sent = |all: Vec<Revocation>| {
            let mut bytes = Vec::new();
            cluster.outbox.take(&mut bytes, 0);
            bytes.clear();
            cluster.connected(1 << 20, Instant::now(), all);
            cluster.outbox.take(&mut bytes, 0);
            let text = String::from_utf8_lossy(&bytes).into_owned();
            ["old", "new"].map(|id| text.contains(&format!("{{\"with_id\":\"{id}\"}}")))
        };
        let all = vec![revocation("old", 3_600.0), revocation("new", 0.0)];
        assert_eq!(sent(all.clone()), [true, true], "the first connection of the process");
        cluster.confirmed(Instant::now());
        cluster.disconnected("test", Instant::now());
        assert_eq!(sent(all), [false, true]);
    }

    #[test]
    fn revocations_fit_the_messages_of_a_small_broker() {
        let cluster = cluster();
        let names = (0..200).map(|number| format!("user-{number:0100}"));
        let of = |name: String| Revocation::new(crate::access::auth::RevokedTokens::OfUser(name.into()), 4e9);
        let all: Vec<Revocation> = names.map(of).collect();
        cluster.connected(8 << 10, Instant::now(), all);
        let mut bytes = Vec::new();
        cluster.outbox.take(&mut bytes, 0);
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches("\"of_user\"").count(), 200);
        assert!(text.matches("\"revocations\"").count() > 3);
    }

    #[test]
    fn waiting_for_the_broker_ends_with_its_answer_or_at_the_limit() {
        let cluster = Arc::new(cluster());
        assert!(!cluster.wait_connected(Duration::ZERO));
        assert!(cluster.catch_up(Duration::ZERO), "nothing is under way");
        cluster.connected(1 << 20, Instant::now(), Vec::new());
        cluster.ping();
        cluster.confirmed(Instant::now());
        assert!(cluster.wait_connected(Duration::ZERO));
        // This ping precedes the call, so messages may follow its answer.
        cluster.ping();
        cluster.beats_now.store(false, Ordering::Release);
        let waiting = Arc::clone(&cluster);
        let waiting = std::thread::spawn(move || waiting.catch_up(Duration::from_secs(60)));
        // The call makes the link's thread ping at once.
        while !cluster.beats_now.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        cluster.confirmed(Instant::now());
        assert!(!cluster.catch_up(Duration::ZERO));
        cluster.ping();
        cluster.confirmed(Instant::now());
        assert!(waiting.join().unwrap());
        let end = Instant::now();
        cluster.ping();
        cluster.disconnected("test", end);
        assert!(cluster.catch_up(Duration::ZERO) && !cluster.wait_connected(Duration::ZERO));
    }

    #[test]
    fn node_without_heartbeats_is_missing_in_results_until_it_returns() {
        let (cluster, now) = (cluster(), Instant::now());
        let missing = || {
            futures_util::FutureExt::now_or_never(cluster.request(&NodeCommand::Sync)).map(|it| it.missing)
        };
        let node = add(&cluster, 1, 10);
        cluster.left(node);
        assert_eq!(missing(), Some(Vec::new()));
        let node = add(&cluster, 1, 10);
        assert_eq!(cluster.expire_nodes(now + NODE_TIMEOUT * 2, true), [node]);
        cluster.connected(1 << 20, now, Vec::new());
        assert_eq!(missing().map(|names| names.len()), Some(1), "it may have connections");
        add(&cluster, 1, 10);
        assert_eq!(missing(), None, "its answer is awaited");
        cluster.left(node);
        assert_eq!(missing(), Some(Vec::new()));
    }

    #[test]
    fn event_of_a_cache_channel_is_requested_again_when_a_node_joins() {
        let cluster = cluster();
        cluster.connected(1 << 20, Instant::now(), Vec::new());
        let is_requested = || cluster.request_event("a", None, Duration::from_secs(3_600));
        assert!(is_requested() && !is_requested());
        let node = add(&cluster, 1, 0);
        assert!(is_requested() && !is_requested(), "no node was known at the first request");
        let heartbeat = cluster.heartbeat(ConnectionCounts::default(), 0);
        cluster.note_heartbeat(node, heartbeat, Instant::now());
        assert!(!is_requested(), "it was known");
    }
}
