//! Order of a topic's writes between a node and the owner.
//!
//! A node sends a topic's writes to the owner without waiting for their results. An owner that does not accept the
//! first one yet, and accepts the second one, would apply them in the wrong order: the first one is tried again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use crate::cluster::message::NodeId;

/// This node's writes that other nodes have not answered: their node and their number, by topic.
#[derive(Debug, Default)]
pub(super) struct SentWrites(BTreeMap<Arc<str>, (NodeId, usize)>);

impl SentWrites {
    pub(super) fn add(&mut self, topic: &Arc<str>, node: NodeId) {
        match self.0.get_mut(topic) {
            Some((known, count)) if *known == node => *count += 1,
            // The process of the others is gone, and answers no more.
            _ => drop(self.0.insert(Arc::clone(topic), (node, 1))),
        }
    }

    pub(super) fn remove(&mut self, topic: &Arc<str>, node: NodeId) {
        if let Some((known, count)) = self.0.get_mut(topic)
            && *known == node
        {
            *count -= 1;
            if *count == 0 {
                self.0.remove(topic);
            }
        }
    }

    /// Returns the node of the unanswered writes of a topic.
    pub(super) fn node(&self, topic: &str) -> Option<NodeId> {
        self.0.get(topic).map(|(node, _)| *node)
    }
}

/// Other nodes' writes that have to be sent again: for a node and a topic, the last one's id, and until when the node
/// may send it again.
#[derive(Debug, Default)]
pub(super) struct RetriedWrites(BTreeMap<(NodeId, Arc<str>), (u64, Instant)>);

impl RetriedWrites {
    /// Notes that a node has to send a write again.
    pub(super) fn add(&mut self, node: NodeId, topic: &Arc<str>, id: u64, until: Instant) {
        self.0.insert((node, Arc::clone(topic)), (id, until));
    }

    /// Returns whether a write has left its node before the node knew that an earlier one has to be sent again.
    ///
    /// The node knows it when it sends a write again: it has the results in order, and sends the first write before the
    /// later ones, if that has not ended.
    pub(super) fn is_early(&mut self, node: NodeId, topic: &Arc<str>, id: u64) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let key = (node, Arc::clone(topic));
        let is_early = self.0.get(&key).is_some_and(|(last, _)| id > *last);
        if !is_early {
            self.0.remove(&key);
        }
        is_early
    }

    /// Forgets writes that have ended at their node.
    pub(super) fn expire(&mut self, now: Instant) {
        self.0.retain(|_, (_, until)| *until > now);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn writes_behind_a_retried_one_are_early_until_the_node_sends_one_again() {
        let (node, other) = (NodeId { id: 1, start: 1 }, NodeId { id: 2, start: 1 });
        let (topic, second): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let now = Instant::now();
        let mut retried = RetriedWrites::default();
        assert!(!retried.is_early(node, &topic, 4));
        retried.add(node, &topic, 5, now + Duration::from_secs(3));
        assert!(!retried.is_early(other, &topic, 6) && !retried.is_early(node, &second, 6));
        assert!(retried.is_early(node, &topic, 6));
        retried.add(node, &topic, 6, now + Duration::from_secs(3));
        // The first one has ended at its node.
        assert!(!retried.is_early(node, &topic, 6));
        assert!(!retried.is_early(node, &topic, 7));
        retried.add(node, &topic, 8, now + Duration::from_secs(3));
        retried.expire(now + Duration::from_secs(3));
        assert!(!retried.is_early(node, &topic, 9) && retried.0.is_empty());
    }

    #[test]
    fn unanswered_writes_are_those_of_the_last_node() {
        let (node, other) = (NodeId { id: 1, start: 1 }, NodeId { id: 1, start: 2 });
        let topic: Arc<str> = "a".into();
        let mut sent = SentWrites::default();
        sent.add(&topic, node);
        sent.add(&topic, node);
        sent.remove(&topic, node);
        assert_eq!(sent.node("a"), Some(node));
        sent.add(&topic, other);
        sent.remove(&topic, node);
        assert_eq!(sent.node("a"), Some(other));
        sent.remove(&topic, other);
        assert_eq!(sent.node("a"), None);
    }
}
