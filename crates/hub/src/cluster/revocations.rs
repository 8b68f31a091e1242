//! The exchange of revocations with other nodes besides new revocations: requests to nodes whose heartbeats show that
//! they have others, and the list of the revocations in effect for nodes that request it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::announcer::WAITING_PARTS_MAX;
use super::message::NodeId;
use super::nodes::Nodes;
use super::{Cluster, REVOCATIONS_PER_MESSAGE};
use crate::access::auth::{Revocation, Revocations};

/// Time between two heartbeats from a node with different revocations after which they are requested. Digests leave out
/// revocations on their way, but a broker or a node may be slow.
const DIFFERENCE_MAX: Duration = Duration::from_secs(2);

/// Time between the first two requests, to any nodes. It doubles with each request: an answer may take a while, and may
/// have thousands of revocations.
const REQUEST_INTERVAL_MIN: Duration = Duration::from_secs(4);

/// Longest time between two requests. Twice this time without a request, and the next ones follow each other fast
/// again.
const REQUEST_INTERVAL_MAX: Duration = Duration::from_secs(30);

/// Requesting nodes from which on all nodes get one list rather than a list for each.
const REQUESTERS_OF_ONE_LIST: usize = 3;

/// The other nodes' revocations, and what this node sends them.
#[derive(Debug, Default)]
pub(super) struct RevocationExchange {
    others: BTreeMap<NodeId, OtherRevocations>,
    last_request: Option<LastRequest>,
    /// Nodes that wait for a list.
    requesters: Vec<NodeId>,
    list: Option<RevocationList>,
}

/// Another node's revocations.
#[derive(Debug, Default)]
struct OtherRevocations {
    /// First and last heartbeat in a series that shows other revocations than this node has.
    different: Option<(Instant, Instant)>,
    requested: Option<Instant>,
}

/// This node's last request.
#[derive(Clone, Copy, Debug)]
struct LastRequest {
    at: Instant,
    /// Time until the next one.
    interval: Duration,
}

/// A revocation list that is being sent.
#[derive(Debug)]
struct RevocationList {
    subject: String,
    /// The revocations that are left.
    rest: Vec<Revocation>,
}

impl RevocationExchange {
    /// Notes a node's heartbeat: whether it shows other revocations than this node has.
    pub(super) fn compare(&mut self, node: NodeId, is_different: bool, now: Instant) {
        let other = self.others.entry(node).or_default();
        let first = other.different.map_or(now, |(first, _)| first);
        other.different = is_different.then_some((first, now));
    }

    /// The node from which this one, `own`, requests the revocations now, if any: one in each interval.
    pub(super) fn next_request(&mut self, own: NodeId, nodes: &Nodes, now: Instant) -> Option<NodeId> {
        self.others.retain(|node, _| nodes.contains(*node));
        let interval =
            self.last_request.map_or(Some(REQUEST_INTERVAL_MIN), |last| last.next_interval(now))?;
        let is_due = |other: &OtherRevocations| {
            other.different.is_some_and(|(first, last)| last.duration_since(first) >= DIFFERENCE_MAX)
        };
        let due = self.others.iter_mut().filter(|(_, other)| is_due(other));
        // All nodes in turn. Each requesting node begins with another one.
        let (node, other) = due.min_by_key(|(node, other)| (other.requested, **node < own, **node))?;
        other.requested = Some(now);
        self.last_request = Some(LastRequest { at: now, interval });
        Some(*node)
    }

    /// Adds a node that needs the revocations in effect.
    pub(super) fn add_requester(&mut self, node: NodeId) {
        if !self.requesters.contains(&node) {
            self.requesters.push(node);
        }
    }

    /// Returns whether parts of lists are left to send.
    pub(super) fn sends_list(&self) -> bool {
        self.list.is_some() || !self.requesters.is_empty()
    }

    /// Sends parts of the lists for the requesting nodes, as much as may wait for the broker.
    pub(super) fn send_parts(&mut self, cluster: &Cluster, revocations: &Revocations) {
        if !cluster.outbox.is_open() {
            // Nodes notice what they miss by the next heartbeats.
            (self.list, self.requesters) = (None, Vec::new());
            return;
        }
        while cluster.outbox.waiting() <= WAITING_PARTS_MAX {
            let list = self.list.take().or_else(|| self.next_list(cluster, revocations));
            let Some(RevocationList { subject, mut rest }) = list else { return };
            let part = rest.split_off(rest.len().saturating_sub(REVOCATIONS_PER_MESSAGE));
            cluster.send_revocations(&subject, &part);
            self.list = (!rest.is_empty()).then_some(RevocationList { subject, rest });
        }
    }

    fn next_list(&mut self, cluster: &Cluster, revocations: &Revocations) -> Option<RevocationList> {
        let subjects = &cluster.outbox.subjects;
        let subject = match self.requesters.len() {
            0 => return None,
            1..REQUESTERS_OF_ONE_LIST => subjects.node(self.requesters.remove(0)),
            _ => {
                self.requesters.clear();
                subjects.all()
            }
        };
        Some(RevocationList { subject, rest: revocations.all() })
    }
}

impl LastRequest {
    /// The interval behind a request now; `None` if it is too early for one.
    fn next_interval(self, now: Instant) -> Option<Duration> {
        let time = now.saturating_duration_since(self.at);
        let longer = || (self.interval * 2).min(REQUEST_INTERVAL_MAX);
        let interval = if time >= 2 * REQUEST_INTERVAL_MAX { REQUEST_INTERVAL_MIN } else { longer() };
        (time >= self.interval).then_some(interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::auth::RevokedTokens;
    use crate::cluster::options::ClusterOptions;

    const OWN: NodeId = NodeId { id: 5, start: 0 };

    /// Returns other nodes whose messages have arrived.
    fn nodes(ids: &[u128]) -> (Nodes, Vec<NodeId>) {
        let mut nodes = Nodes::default();
        let ids: Vec<NodeId> = ids.iter().map(|id| NodeId { id: *id, start: 0 }).collect();
        for node in &ids {
            nodes.receive(*node, 1, Instant::now());
        }
        (nodes, ids)
    }

    /// Returns the requests within seconds of heartbeats; `is_different` decides about a node at a second.
    fn requests(
        exchange: &mut RevocationExchange,
        (nodes, ids): &(Nodes, Vec<NodeId>),
        begin: Instant,
        seconds: std::ops::Range<u64>,
        mut is_different: impl FnMut(NodeId, u64) -> bool,
    ) -> Vec<(u64, u128)> {
        let mut requests = Vec::new();
        for second in seconds {
            let now = begin + Duration::from_secs(second);
            for node in ids {
                exchange.compare(*node, is_different(*node, second), now);
            }
            requests.extend(exchange.next_request(OWN, nodes, now).map(|node| (second, node.id)));
        }
        requests
    }

    #[test]
    fn one_node_at_a_time_is_asked_for_its_revocations_and_then_another() {
        let (mut exchange, others) = (RevocationExchange::default(), nodes(&[2, 7, 9]));
        let begin = Instant::now();
        let mut asked = |seconds, is_different: &dyn Fn(NodeId) -> bool| {
            requests(&mut exchange, &others, begin, seconds, |node, _| is_different(node))
        };
        assert_eq!(asked(0..60, &|_| true), [(2, 7), (6, 9), (14, 2), (30, 7)]);
        assert_eq!(asked(60..100, &|node| node.id == 7), [(60, 7), (90, 7)], "one in 30 s");
        assert_eq!(asked(100..150, &|_| false), []);
        assert_eq!(asked(150..160, &|_| true), [(152, 9), (156, 2)]);
    }

    #[test]
    fn revocations_are_requested_only_after_heartbeats_of_a_while() {
        let (mut exchange, others) = (RevocationExchange::default(), nodes(&[2]));
        let begin = Instant::now();
        let asked = requests(&mut exchange, &others, begin, 0..60, |_, second| second % 3 != 2);
        assert_eq!(asked, [], "the last of three heartbeats is equal");
        // Heartbeats from a stall on this node arrive at once.
        exchange.compare(others.1[0], true, begin);
        let late = begin + Duration::from_secs(60);
        assert_eq!(exchange.next_request(OWN, &others.0, late), None);
        exchange.compare(others.1[0], true, late);
        assert_eq!(exchange.next_request(OWN, &nodes(&[]).0, late), None, "it has left");
        exchange.compare(others.1[0], true, late);
        assert_eq!(exchange.next_request(OWN, &others.0, late), None, "it has just returned");
    }

    /// Returns the second at which this node first requests the other node's revocations, which have a steady rate and
    /// arrive within a second, except the `lost` one.
    fn first_request(lost: Option<u64>) -> Option<u64> {
        const RATE: u64 = 5;
        let others = nodes(&[2]);
        let [mut own, other] = [(); 2].map(|()| Revocations::default());
        // Far from now, and whole seconds.
        let start = 2_000_000_000_u64;
        let revocation = |number: u64| {
            // A user may be revoked again.
            let tokens = RevokedTokens::OfUser(format!("{}", number % 211).into());
            let at = start as f64 + number as f64 / RATE as f64;
            Revocation { tokens, at, until: at + 40.0 }
        };
        let asked =
            requests(&mut RevocationExchange::default(), &others, Instant::now(), 0..120, |_, second| {
                let made: Vec<Revocation> = (second * RATE..(second + 1) * RATE).map(revocation).collect();
                other.revoke_all(&made).1.unwrap();
                // This node has only some yet, and all from the second before.
                let arrived = (second * RATE).saturating_sub(RATE)..second * RATE + second % RATE;
                let arrived: Vec<Revocation> =
                    arrived.filter(|number| Some(*number) != lost).map(revocation).collect();
                own.revoke_all(&arrived).1.unwrap();
                if second == 60 {
                    // It is another process from now on, with a list of the revocations in effect.
                    let is_in_effect = |it: &Revocation| it.until > (start + second) as f64;
                    let list: Vec<Revocation> = other.all().into_iter().filter(is_in_effect).collect();
                    own = Revocations::default();
                    own.revoke_all(&list).1.unwrap();
                }
                let digest = other.digest_at(start + second).unwrap();
                own.digest_at(digest.time).unwrap() != digest
            });
        asked.first().map(|(second, _)| *second)
    }

    #[test]
    fn steady_changes_of_revocations_cause_no_request_and_hide_no_lost_one() {
        assert_eq!(first_request(None), None);
        // Made at second 20, and compared 5 s later for 2 s.
        let lost = first_request(Some(101)).unwrap();
        assert!((27..=29).contains(&lost), "{lost}");
    }

    /// A cluster that is connected, and revocations.
    fn connected(count: usize) -> (Cluster, Revocations) {
        let options = ClusterOptions::parse("nats://127.0.0.1:1").unwrap();
        let cluster = Cluster::new(options, &[], None).unwrap();
        cluster.connected(1 << 20, Instant::now(), Vec::new());
        let revocations = Revocations::default();
        let of = |at: usize| Revocation::new(RevokedTokens::WithId(format!("{at:032}").into()), 4e9);
        revocations.revoke_all(&(0..count).map(of).collect::<Vec<_>>()).1.unwrap();
        (cluster, revocations)
    }

    /// Returns how many revocations each sent list has, in their order; parts wait for the broker in between.
    fn lists(
        exchange: &mut RevocationExchange,
        (cluster, revocations): &(Cluster, Revocations),
    ) -> Vec<usize> {
        let (mut lists, mut last) = (Vec::new(), String::new());
        loop {
            exchange.send_parts(cluster, revocations);
            assert!(cluster.outbox.waiting() < 1 << 20);
            let mut bytes = Vec::new();
            cluster.outbox.take(&mut bytes, 0);
            for message in String::from_utf8_lossy(&bytes).split("PUB ").filter(|it| it.contains("with_id")) {
                let subject = message.split(' ').next().unwrap();
                if subject != last {
                    lists.push(0);
                    subject.clone_into(&mut last);
                }
                *lists.last_mut().unwrap() += message.matches("with_id").count();
            }
            if !exchange.sends_list() {
                return lists;
            }
        }
    }

    #[test]
    fn lists_of_revocations_leave_in_parts_and_three_nodes_get_one() {
        const COUNT: usize = 60_000;
        let target = connected(COUNT);
        let mut exchange = RevocationExchange::default();
        for id in 0..10 {
            exchange.add_requester(NodeId { id, start: 0 });
        }
        assert_eq!(lists(&mut exchange, &target), [COUNT]);
        for id in [1, 2, 1] {
            exchange.add_requester(NodeId { id, start: 0 });
        }
        assert_eq!(lists(&mut exchange, &target), [COUNT; 2]);
        // A requester in the middle of a list gets another one.
        exchange.add_requester(NodeId { id: 1, start: 0 });
        exchange.send_parts(&target.0, &target.1);
        exchange.add_requester(NodeId { id: 2, start: 0 });
        assert_eq!(lists(&mut exchange, &target), [COUNT; 2]);
        exchange.add_requester(NodeId { id: 1, start: 0 });
        exchange.send_parts(&target.0, &target.1);
        target.0.disconnected("test", Instant::now());
        exchange.send_parts(&target.0, &target.1);
        assert!(!exchange.sends_list(), "the broker is away");
    }

    #[test]
    fn empty_lists_end() {
        let mut exchange = RevocationExchange::default();
        exchange.add_requester(OWN);
        assert!(lists(&mut exchange, &connected(0)).is_empty() && !exchange.sends_list());
    }
}
