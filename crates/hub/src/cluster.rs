//! A cluster of servers: publications, members and commands reach the clients of all nodes, over a broker.
//!
//! ```text
//!   worker ── publish ──▶ outbox ──▶ link, a thread ──▶ broker ──▶ link of each node with subscribers ──▶ workers
//! ```
//!
//! The broker routes: a node subscribes there to the topics and patterns of its clients. docs/book/src/operate/cluster.md
//! has the guarantees.

pub(crate) mod commands;
mod connection;
mod interest;
pub(crate) mod link;
mod members;
mod message;
pub(crate) mod metrics;
mod nats;
mod nodes;
pub(crate) mod observe;
pub(crate) mod options;
mod outbox;
mod protocol;
mod redis;
mod subject;
mod transport;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ring::rand::{SecureRandom as _, SystemRandom};
use sinews_server::SubscriptionObserver;

use self::commands::{CommandMessage, NodeCommand, NodeResults, PendingRequests};
use self::interest::Interest;
use self::message::{MessageKind, NodeId};
use self::nodes::{Heartbeat, Nodes};
use self::observe::ClusterNode;
use self::options::ClusterOptions;
use self::outbox::{LinkCounters, Outbox};
use self::subject::Subjects;
use crate::topics::MessageContent;
use crate::topics::nodes::{OtherNodes, ReportRole, ReportingNodes};

/// Time for which the state of other nodes is retained while the broker is away.
const OUTAGE_MAX: Duration = Duration::from_secs(60);

/// Maximum number of revocations that wait for the broker.
const UNSENT_MAX: usize = 1_024;

/// This node of a cluster.
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
    is_stopped: AtomicBool,
    /// The handover from a predecessor, if there is one, is complete.
    is_serving: AtomicBool,
    /// Members of this node have changed, and are not announced.
    has_changes: AtomicBool,
    requests: Mutex<PendingRequests>,
    /// Revocations that could not be sent, while the broker is away.
    unsent: Mutex<Vec<NodeCommand>>,
    /// Nodes that have died, for the report of topics.
    dead: Mutex<Vec<u128>>,
    /// The part of this node in reports of topics.
    role: Mutex<ReportRole>,
    /// The next heartbeat is due at once.
    beats_now: AtomicBool,
}

/// State of the connection to the broker.
#[derive(Clone, Debug)]
struct LinkStatus {
    is_connected: bool,
    since: Instant,
    /// Why there is no connection.
    reason: String,
}

impl Cluster {
    /// Creates the node. Topics with these patterns retain messages, so the node always receives them.
    ///
    /// A predecessor process passes its id on: both exchange publications during the handover, and ignore messages of
    /// their common id at the broker.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(crate) fn new(
        options: ClusterOptions,
        retained: &[String],
        predecessor: Option<&str>,
    ) -> Result<Self, String> {
        let mut id = [0; 16];
        SystemRandom::new().fill(&mut id).map_err(|_| "the system has no random numbers".to_owned())?;
        let inherited = predecessor.and_then(|id| u128::from_str_radix(id, 16).ok());
        let start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let start = u64::try_from(start.as_micros()).unwrap_or(u64::MAX);
        let node = NodeId { id: inherited.unwrap_or_else(|| u128::from_le_bytes(id)), start };
        let subjects = Subjects::new(options.engine, &options.prefix);
        let outbox = Arc::new(Outbox::new(options.engine, node, subjects));
        let interest = Arc::new(Interest::new(Arc::clone(&outbox), retained));
        let name = options.name.clone().unwrap_or_else(crate::dashboard::node);
        let begin = Instant::now();
        let reason = "it has not answered yet".to_owned();
        let status = Mutex::new(LinkStatus { is_connected: false, since: begin, reason });
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
            is_stopped: AtomicBool::new(false),
            is_serving: AtomicBool::new(true),
            has_changes: AtomicBool::new(false),
            requests: Mutex::default(),
            unsent: Mutex::default(),
            dead: Mutex::default(),
            role: Mutex::default(),
            beats_now: AtomicBool::new(false),
        })
    }

    /// Sets whether members of this process replace those of a predecessor.
    pub(crate) fn set_serving(&self, is_serving: bool) {
        self.is_serving.store(is_serving, Ordering::Release);
    }

    /// What observes the subscriptions of this server.
    pub(crate) fn observer(&self) -> Arc<dyn SubscriptionObserver> {
        Arc::clone(&self.interest) as Arc<dyn SubscriptionObserver>
    }

    /// Whether other nodes can be reached.
    ///
    /// # Errors
    /// The reason why the broker is away.
    pub(crate) fn ready(&self) -> Result<(), String> {
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

    pub(crate) fn counters(&self) -> &LinkCounters {
        &self.outbox.counters
    }

    /// Number of nodes, including this one.
    pub(crate) fn node_count(&self) -> usize {
        self.lock_nodes().len() + 1
    }

    /// The name of this node.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// This node and the others, by name.
    pub(crate) fn nodes(&self, connections: usize) -> Vec<(ClusterNode, bool)> {
        let own = ClusterNode::new(self.node, &self.heartbeat(connections, 0));
        let mut nodes = vec![(own, true)];
        nodes
            .extend(self.lock_nodes().iter().map(|(id, heartbeat)| (ClusterNode::new(id, heartbeat), false)));
        nodes.sort_by(|(a, _), (b, _)| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
        nodes
    }

    /// Sends a command to all other nodes; completes with their results, or when the time is over.
    pub(crate) fn request(&self, command: &NodeCommand) -> impl Future<Output = NodeResults> + Send + use<> {
        let names: BTreeMap<NodeId, String> =
            self.lock_nodes().iter().map(|(id, heartbeat)| (id, heartbeat.name.clone())).collect();
        let nodes: BTreeSet<NodeId> = names.keys().copied().collect();
        let done =
            if nodes.is_empty() { None } else { self.lock_requests().add(nodes.clone(), Instant::now()) };
        if self.is_connected() {
            // Also without known nodes: one may have joined a moment ago.
            let id = done.as_ref().map_or(0, |(id, _)| *id);
            self.send_command(&self.outbox.subjects.all(), id, command.clone());
        } else if matches!(command, NodeCommand::Revoke { .. }) {
            let mut unsent = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
            if unsent.len() < UNSENT_MAX {
                unsent.push(command.clone());
            }
        }
        async move {
            let (results, missing) = match done {
                // The link's thread has ended.
                Some((_, done)) => done.await.unwrap_or_else(|_| (Vec::new(), nodes)),
                None => (Vec::new(), nodes),
            };
            let missing = missing.iter().filter_map(|node| names.get(node).cloned()).collect();
            NodeResults { results, missing }
        }
    }

    fn send_command(&self, subject: &str, id: u64, command: NodeCommand) {
        // Structs of texts and numbers are always encoded.
        let body = serde_json::to_vec(&CommandMessage { id, command }).unwrap_or_default();
        self.outbox.send(subject, MessageKind::Command, &body);
    }

    /// Whether this node answers a sync of another node: one node does.
    fn answers_sync(&self, node: NodeId) -> bool {
        self.lock_nodes().iter().filter(|(id, _)| *id != node).all(|(id, _)| self.node < id)
    }

    /// Time without a broker.
    fn away_for(&self, now: Instant) -> Option<Duration> {
        let status = self.lock_status();
        (!status.is_connected).then(|| now.saturating_duration_since(status.since))
    }

    fn connected(&self, max_payload: usize, now: Instant) {
        // Heartbeats of the others could not arrive.
        self.lock_nodes().renew(now);
        let all = self.outbox.subjects.all();
        let own = self.outbox.subjects.node(self.node);
        self.interest.resume(max_payload, &[(&all, 1), (&own, 2)]);
        let all = self.outbox.subjects.all();
        self.send_command(&all, 0, NodeCommand::Sync);
        for command in std::mem::take(&mut *self.unsent.lock().unwrap_or_else(PoisonError::into_inner)) {
            self.send_command(&all, 0, command);
        }
        tracing::info!(broker = %self.options, node = %self.node, "connected to the cluster");
    }

    /// The broker has answered a ping, so it has the subscriptions of this node.
    fn confirmed(&self, now: Instant) {
        let mut status = self.lock_status();
        if !status.is_connected {
            *status = LinkStatus { is_connected: true, since: now, reason: String::new() };
        }
    }

    fn disconnected(&self, reason: &str, now: Instant) {
        self.outbox.close();
        let mut status = self.lock_status();
        let is_new = status.is_connected || status.reason != reason;
        let since = if status.is_connected { now } else { status.since };
        *status = LinkStatus { is_connected: false, since, reason: reason.to_owned() };
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

    fn heartbeat(&self, connections: usize, presence: u64) -> Heartbeat {
        Heartbeat {
            name: self.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime: self.begin.elapsed().as_secs(),
            connections: connections as u64,
            topics: self.interest.len() as u64,
            presence,
            serving: self.is_serving.load(Ordering::Acquire),
            reports: self.report_role(),
        }
    }

    fn report_role(&self) -> ReportRole {
        *self.role.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send_heartbeat(&self, connections: usize, presence: u64) {
        // A struct of numbers and texts is always encoded.
        let body = serde_json::to_vec(&self.heartbeat(connections, presence)).unwrap_or_default();
        self.outbox.send(&self.outbox.subjects.all(), MessageKind::Heartbeat, &body);
    }

    fn send_leave(&self) {
        self.outbox.send(&self.outbox.subjects.all(), MessageKind::Leave, &[]);
    }

    fn note_heartbeat(&self, node: NodeId, heartbeat: Heartbeat) {
        let name = heartbeat.name.clone();
        if self.lock_nodes().beat(node, heartbeat) {
            tracing::info!(%node, name, "a node has joined the cluster");
        }
    }

    fn left(&self, node: NodeId) {
        if self.lock_nodes().remove(node) {
            tracing::info!(%node, "a node has left the cluster");
        }
    }

    /// Removes nodes without heartbeats, and returns them. While the broker is away, they are retained for a while.
    fn expire_nodes(&self, now: Instant, is_connected: bool) -> Vec<NodeId> {
        let status = self.lock_status().clone();
        if !is_connected && now.saturating_duration_since(status.since) < OUTAGE_MAX {
            self.lock_nodes().renew(now);
        }
        let dead = self.lock_nodes().expire(now);
        let mut noted = self.dead.lock().unwrap_or_else(PoisonError::into_inner);
        noted.extend(dead.iter().map(|node| node.id));
        // Without webhooks, nothing takes them.
        let excess = noted.len().saturating_sub(nodes::NODES_MAX);
        noted.drain(..excess);
        drop(noted);
        for node in &dead {
            tracing::warn!(%node, "a node of the cluster is dead: no heartbeat for {:?}", nodes::NODE_TIMEOUT);
        }
        dead
    }

    fn lock_nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_requests(&self) -> MutexGuard<'_, PendingRequests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_status(&self) -> MutexGuard<'_, LinkStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OtherNodes for Cluster {
    fn publish(&self, topic: &str, content: &MessageContent) {
        let (kind, payload) = content.parts();
        self.outbox.publish(topic, kind, &payload);
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
        let dead = std::mem::take(&mut *self.dead.lock().unwrap_or_else(PoisonError::into_inner));
        let is_settled = self.begin.elapsed() >= nodes::SETTLE_TIME;
        ReportingNodes { own: self.node.id, reporters, is_settled, has_older_candidate, dead }
    }

    fn set_report_role(&self, role: ReportRole) {
        let mut known = self.role.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *known, role) != role {
            drop(known);
            // The other nodes learn of it at once.
            self.beats_now.store(true, Ordering::Release);
            self.outbox.wake();
        }
    }
}
