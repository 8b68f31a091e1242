//! Lists of the revocations in effect, for nodes that join a cluster without a topic store.

use super::announcer::WAITING_PARTS_MAX;
use super::message::NodeId;
use super::{Cluster, REVOCATIONS_PER_MESSAGE};
use crate::access::auth::{Revocation, Revocations};

/// Requesting nodes from which on all nodes get one list rather than a list for each.
const REQUESTERS_OF_ONE_LIST: usize = 3;

/// The lists that this node sends.
#[derive(Debug, Default)]
pub(super) struct RevocationLists {
    /// Nodes that wait for a list.
    requesters: Vec<NodeId>,
    list: Option<RevocationList>,
}

/// A revocation list that is being sent.
#[derive(Debug)]
struct RevocationList {
    subject: String,
    /// The revocations that are left.
    rest: Vec<Revocation>,
}

impl RevocationLists {
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
            // Nodes ask again after their next login.
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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::access::auth::RevokedTokens;
    use crate::cluster::options::ClusterOptions;

    const OWN: NodeId = NodeId { id: 5, start: 0 };

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
    fn lists(exchange: &mut RevocationLists, (cluster, revocations): &(Cluster, Revocations)) -> Vec<usize> {
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
        let mut exchange = RevocationLists::default();
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
        let mut exchange = RevocationLists::default();
        exchange.add_requester(OWN);
        assert!(lists(&mut exchange, &connected(0)).is_empty() && !exchange.sends_list());
    }
}
