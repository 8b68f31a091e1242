//! The other nodes of the cluster, as this node knows them by their heartbeats.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::message::NodeId;
use super::times::NODE_TIMEOUT;
use crate::model::nodes::{ReportRole, ReportingNodes};

/// Maximum other nodes. Further nodes are ignored, with a warning, unless they can replace a node that has sent one
/// heartbeat only.
pub(super) const NODES_MAX: usize = 255;

/// Time between two heartbeats after which a node is established: a single message is no node.
const PROBATION: Duration = Duration::from_millis(500);

/// What a node reports once a second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Heartbeat {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) uptime: u64,
    /// Open connections of clients.
    #[serde(default)]
    pub(crate) connections: u64,
    /// Users of these connections.
    #[serde(default)]
    pub(crate) users: u64,
    /// Topics and patterns with subscribers.
    #[serde(default)]
    pub(crate) topics: u64,
    /// The topic store and its promises; empty without one.
    #[serde(default)]
    pub(crate) store: String,
    /// The topic store does not answer.
    #[serde(default)]
    pub(crate) store_away: bool,
    /// Number of the last changes of presence.
    #[serde(default)]
    pub(crate) presence: u64,
    /// It has replaced processes with its id that started earlier: their members have moved.
    #[serde(default)]
    pub(crate) serving: bool,
    /// Its part in reports about topics' state.
    #[serde(default)]
    pub(crate) reports: ReportRole,
}

/// The other nodes.
#[derive(Debug, Default)]
pub(super) struct Nodes(BTreeMap<NodeId, RemoteNode>);

/// Another node.
#[derive(Debug)]
struct RemoteNode {
    seen: Instant,
    /// The last heartbeat; `None` before the first.
    heartbeat: Option<Heartbeat>,
    /// The time of the first heartbeat.
    first: Option<Instant>,
    /// It has sent heartbeats for some time.
    is_established: bool,
    received: ReceivedNumbers,
}

/// The numbers of a node's last messages, to find duplicates.
#[derive(Debug, Default)]
struct ReceivedNumbers {
    highest: u64,
    /// Bit n is set if `highest - n` was received.
    recent: u128,
}

impl ReceivedNumbers {
    /// Returns whether a message is new. Messages arrive in order, with small exceptions at brokers with several
    /// servers, and duplicates arrive one after the other. So a number below the 128-message window is no duplicate:
    /// the numbers begin again there, since another program has sent a higher one, or the process was restored from a
    /// machine snapshot.
    fn insert(&mut self, number: u64) -> bool {
        if number > self.highest {
            let shift = u32::try_from(number - self.highest).unwrap_or(u32::MAX);
            self.recent = self.recent.checked_shl(shift).unwrap_or(0) | 1;
            self.highest = number;
            return true;
        }
        let Some(bit) = u32::try_from(self.highest - number).ok().and_then(|age| 1_u128.checked_shl(age))
        else {
            *self = Self { highest: number, recent: 1 };
            return true;
        };
        let is_new = self.recent & bit == 0;
        self.recent |= bit;
        is_new
    }
}

impl Nodes {
    /// Whether a node is known, or may become known.
    pub(super) fn has_place(&self, id: NodeId) -> bool {
        self.0.len() < NODES_MAX
            || self.0.contains_key(&id)
            || self.0.values().any(|node| !node.is_established)
    }

    /// Notes a node's message. Returns whether it is new, and not a duplicate by an overlapping subscription.
    pub(super) fn receive(&mut self, id: NodeId, number: u64, now: Instant) -> bool {
        if self.0.len() >= NODES_MAX && !self.0.contains_key(&id) {
            let others = self.0.iter().filter(|(_, node)| !node.is_established);
            let Some(oldest) = others.min_by_key(|(_, node)| node.seen).map(|(id, _)| *id) else {
                return false;
            };
            self.0.remove(&oldest);
        }
        let new = || RemoteNode {
            seen: now,
            heartbeat: None,
            first: None,
            is_established: false,
            received: ReceivedNumbers::default(),
        };
        let node = self.0.entry(id).or_insert_with(new);
        node.seen = now;
        node.received.insert(number)
    }

    /// Notes a heartbeat, which establishes its node at once if this node is new. Returns whether it is the node's
    /// first.
    pub(super) fn beat(&mut self, id: NodeId, heartbeat: Heartbeat, is_new_here: bool, now: Instant) -> bool {
        let Some(node) = self.0.get_mut(&id) else { return false };
        let first = *node.first.get_or_insert(now);
        node.is_established |= is_new_here || now.saturating_duration_since(first) >= PROBATION;
        node.heartbeat.replace(heartbeat).is_none()
    }

    /// Removes a node that leaves. Returns whether it was known.
    pub(super) fn remove(&mut self, id: NodeId) -> bool {
        self.0.remove(&id).is_some()
    }

    /// Removes nodes without heartbeats, and returns them.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<NodeId> {
        let is_dead = |node: &RemoteNode| now.saturating_duration_since(node.seen) >= NODE_TIMEOUT;
        let dead: Vec<NodeId> = self.0.iter().filter(|(_, node)| is_dead(node)).map(|(id, _)| *id).collect();
        for id in &dead {
            self.0.remove(id);
        }
        dead
    }

    /// When the next node expires if none sends anything.
    pub(super) fn expires(&self) -> Option<Instant> {
        self.0.values().map(|node| node.seen).min().map(|seen| seen + NODE_TIMEOUT)
    }

    /// Extends the time of all nodes, after heartbeats could not arrive.
    pub(super) fn renew(&mut self, now: Instant) {
        self.0.values_mut().for_each(|node| node.seen = now);
    }

    /// Whether a successor process has replaced a node.
    pub(super) fn is_replaced(&self, id: NodeId) -> bool {
        let later = self.iter().filter(|(other, _)| other.id == id.id && other.start > id.start);
        later.into_iter().any(|(_, heartbeat)| heartbeat.serving)
    }

    /// Returns earlier processes with a node's id.
    pub(super) fn predecessors(&self, id: NodeId) -> Vec<NodeId> {
        self.0.keys().filter(|other| other.id == id.id && other.start < id.start).copied().collect()
    }

    /// Returns the ids of the nodes that report topics, with this node's id if it does, and whether an older node is
    /// going to. If several processes have the same id, the last one that serves counts.
    pub(super) fn reporters(&self, own: NodeId, role: ReportRole) -> (Vec<u128>, bool) {
        let mut roles: BTreeMap<u128, (u64, ReportRole)> = BTreeMap::new();
        // Ordered by their starts.
        for (node, heartbeat) in self.iter().filter(|(_, heartbeat)| heartbeat.serving) {
            roles.insert(node.id, (node.start, heartbeat.reports));
        }
        roles.insert(own.id, (own.start, role));
        let is_older = |id: u128, start: u64| (start, id) < (own.start, own.id);
        let has_older_candidate =
            roles.iter().any(|(id, (start, role))| *role == ReportRole::Candidate && is_older(*id, *start));
        let reporters = roles.iter().filter(|(_, (_, role))| *role == ReportRole::Reporter);
        (reporters.map(|(id, _)| *id).collect(), has_older_candidate)
    }

    /// Returns the process that reports a topic; without reporters, one that serves, and the same at all nodes.
    pub(super) fn owner(&self, topic: &str, own: NodeId, role: ReportRole) -> NodeId {
        let serving = || self.iter().filter(|(_, heartbeat)| heartbeat.serving).map(|(node, _)| node);
        let (mut reporters, _) = self.reporters(own, role);
        if reporters.is_empty() {
            reporters = serving().map(|node| node.id).chain([own.id]).collect();
        }
        let owner = ReportingNodes { reporters, ..ReportingNodes::default() }.owner(topic);
        // Ordered by their starts.
        let process = serving().filter(|node| node.id != own.id && Some(node.id) == owner).last();
        process.unwrap_or(own)
    }

    /// The nodes with a heartbeat.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeId, &Heartbeat)> {
        self.0.iter().filter_map(|(id, node)| Some((*id, node.heartbeat.as_ref()?)))
    }

    pub(super) fn len(&self) -> usize {
        self.iter().count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_found_also_out_of_order() {
        let mut received = ReceivedNumbers::default();
        let new: Vec<u64> = [1, 2, 2, 5, 4, 4, 3, 5, 6, 200, 200, 73, 73, 199, 1_000, 999, 999]
            .into_iter()
            .filter(|number| received.insert(*number))
            .collect();
        assert_eq!(new, [1, 2, 5, 4, 3, 6, 200, 73, 199, 1_000, 999]);
    }

    /// A forged number, or a process that was restored from a machine snapshot.
    #[test]
    fn highest_number_does_not_mute_a_node() {
        for forged in [u64::MAX, u64::MAX - 1, 1 << 40, 2_000] {
            let mut received = ReceivedNumbers::default();
            assert!((1..=1_000).all(|number| received.insert(number)));
            assert!(received.insert(forged));
            assert!((1_001..1_500).all(|number| received.insert(number)), "{forged}");
            assert!((1_400..1_500).all(|number| !received.insert(number)), "duplicates are found");
            assert!((10..1_500).all(|number| received.insert(number)), "numbers begin again");
        }
    }

    #[test]
    fn invented_nodes_take_no_place_of_others() {
        let (mut nodes, begin) = (Nodes::default(), Instant::now());
        let heartbeat: Heartbeat = serde_json::from_value(serde_json::json!({
            "name": "", "version": "", "uptime": 0, "serving": true,
        }))
        .unwrap();
        let [early, late] = [1, 2].map(|id| NodeId { id, start: 1 });
        assert!(nodes.receive(early, 1, begin));
        nodes.beat(early, heartbeat.clone(), true, begin);
        for id in 10..2_010 {
            let invented = NodeId { id, start: 1 };
            assert!(nodes.has_place(invented) && nodes.receive(invented, 1, begin));
            nodes.beat(invented, heartbeat.clone(), false, begin);
        }
        assert!(nodes.0.len() <= NODES_MAX && nodes.0.contains_key(&early));
        let established = |nodes: &Nodes| {
            let nodes = nodes.0.iter().filter(|(_, node)| node.is_established);
            nodes.map(|(id, _)| *id).collect::<Vec<_>>()
        };
        assert_eq!(established(&nodes), [early], "the others have sent one heartbeat");
        for number in 1..=2 {
            let now = begin + PROBATION * number;
            assert!(nodes.has_place(late) && nodes.receive(late, number.into(), now));
            nodes.beat(late, heartbeat.clone(), false, now);
        }
        assert_eq!(established(&nodes), [early, late]);
    }

    #[test]
    fn nodes_expire_without_heartbeats() {
        let (mut nodes, begin) = (Nodes::default(), Instant::now());
        let [one, two] = [1, 2].map(|id| NodeId { id, start: 0 });
        let heartbeat = Heartbeat {
            name: "n".into(),
            version: "1".into(),
            uptime: 0,
            connections: 0,
            users: 0,
            topics: 0,
            store: String::new(),
            store_away: false,
            presence: 0,
            serving: true,
            reports: ReportRole::None,
        };
        assert!(nodes.receive(one, 1, begin) && nodes.receive(two, 1, begin));
        assert!(nodes.beat(one, heartbeat.clone(), true, begin) && !nodes.beat(one, heartbeat, true, begin));
        assert_eq!(nodes.len(), 1, "one has a heartbeat");
        assert!(nodes.receive(two, 2, begin + NODE_TIMEOUT / 2));
        assert_eq!(nodes.expires(), Some(begin + NODE_TIMEOUT));
        assert_eq!(nodes.expire(begin + NODE_TIMEOUT), [one]);
        nodes.renew(begin + NODE_TIMEOUT);
        assert_eq!(nodes.expire(begin + NODE_TIMEOUT * 3 / 2), []);
        assert!(nodes.remove(two) && !nodes.remove(two));
    }

    #[test]
    fn the_last_process_of_a_node_decides_whether_it_reports() {
        let (mut nodes, now) = (Nodes::default(), Instant::now());
        let own = NodeId { id: 9, start: 5 };
        let mut beat = |id, start, serving, reports: &str| {
            let node = NodeId { id, start };
            let heartbeat = serde_json::json!({
                "name": "", "version": "", "uptime": 0, "serving": serving, "reports": reports,
            });
            nodes.receive(node, 1, now);
            nodes.beat(node, serde_json::from_value(heartbeat).unwrap(), true, now);
            nodes.reporters(own, ReportRole::Reporter)
        };
        assert_eq!(beat(1, 1, true, "reporter"), (vec![1, 9], false));
        assert_eq!(beat(2, 6, true, "candidate"), (vec![1, 9], false), "it is younger");
        assert_eq!(beat(3, 5, true, "of a later version"), (vec![1, 9], false));
        assert_eq!(beat(1, 2, false, "none"), (vec![1, 9], false), "the successor does not serve yet");
        assert_eq!(beat(1, 3, true, "candidate"), (vec![9], true));
    }

    #[test]
    fn one_node_reports_a_cache_channel_without_an_event() {
        let now = Instant::now();
        let ids: Vec<NodeId> = (1..=3).map(|id| NodeId { id, start: id as u64 }).collect();
        // What a node knows about the others.
        let known = |own: NodeId, reporters: &[u128]| {
            let mut nodes = Nodes::default();
            for node in ids.iter().filter(|node| **node != own) {
                let reports = if reporters.contains(&node.id) { "reporter" } else { "none" };
                let heartbeat = serde_json::json!({
                    "name": "", "version": "", "uptime": 0, "serving": true, "reports": reports,
                });
                nodes.receive(*node, 1, now);
                nodes.beat(*node, serde_json::from_value(heartbeat).unwrap(), true, now);
            }
            nodes
        };
        for reporters in [&[][..], &[1, 2, 3], &[2, 3], &[1]] {
            let mut owners = std::collections::BTreeSet::new();
            for topic in (0..100).map(|number| number.to_string()) {
                let of = |own: &NodeId| {
                    let is_reporter = reporters.contains(&own.id);
                    let role = if is_reporter { ReportRole::Reporter } else { ReportRole::None };
                    known(*own, reporters).owner(&topic, *own, role)
                };
                let chosen: Vec<NodeId> = ids.iter().map(of).collect();
                assert!(chosen.iter().all(|node| *node == chosen[0]), "{topic}: {chosen:?}");
                owners.insert(chosen[0].id);
            }
            let expected = if reporters.is_empty() { &[1, 2, 3][..] } else { reporters };
            assert!(owners.iter().eq(expected), "{owners:?}");
        }
    }

    #[test]
    fn nodes_are_bounded() {
        let (mut nodes, now) = (Nodes::default(), Instant::now());
        let heartbeat: Heartbeat =
            serde_json::from_value(serde_json::json!({ "name": "", "version": "", "uptime": 0 })).unwrap();
        for id in 0..NODES_MAX {
            let node = NodeId { id: id as u128, start: 0 };
            assert!(nodes.receive(node, 1, now));
            nodes.beat(node, heartbeat.clone(), true, now);
        }
        assert!(!nodes.has_place(NodeId { id: u128::MAX, start: 0 }));
        assert!(!nodes.receive(NodeId { id: u128::MAX, start: 0 }, 1, now));
        assert!(nodes.receive(NodeId { id: 0, start: 0 }, 2, now));
    }
}
