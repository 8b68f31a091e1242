//! The other nodes in a cluster, as topics use them.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

#[cfg(test)]
use crate::model::MessageContent;
use crate::model::publication::Publication;
use crate::model::stable_hash::{fnv, mix};

/// The other nodes in a cluster.
pub(crate) trait OtherNodes: Debug + Send + Sync {
    /// Passes a publication of this node to the other nodes with subscribers: at most once, in order for each topic and
    /// publisher. If it goes to all, nodes without subscribers receive it too.
    fn publish(&self, publication: &Publication<'_, '_>, to_all: bool);

    /// Requests a cache channel's last event, unless this node knows it: it has retained an event at that time, if any,
    /// and nodes retain events for this long. The event is delivered as if it were published now. Returns whether it is
    /// requested.
    fn request_cached_event(&self, topic: &str, retained: Option<Instant>, time: Duration) -> bool;

    /// Passes a cache channel without an event to the node that reports the topic to the application, unless that node
    /// has the event and this node has requested it. Returns whether another node reports the topic.
    fn pass_cache_miss(&self, topic: &str, is_requested: bool) -> bool;

    /// Waits until all messages are handled that the broker has sent before this call. Returns whether they are, within
    /// the time; also without a connection, since none is under way then.
    fn catch_up(&self, limit: Duration) -> bool;

    /// Subscribes again to a topic or pattern whose subscription the broker has rejected. If it rejects it again, all
    /// subscribers are notified: there is a new one.
    fn retry_rejected(&self, topic: &str);

    /// Whether the other nodes can be reached.
    fn is_connected(&self) -> bool;

    /// Returns this node's id.
    fn id(&self) -> String;

    /// Returns the nodes that report topic states to the application.
    fn reporting(&self) -> ReportingNodes;

    /// Announces this node's part in these reports.
    fn set_report_role(&self, role: ReportRole);
}

/// A publication in a message from a cluster node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodePublicationId {
    pub(crate) node: u128,
    /// When the process started.
    pub(crate) start: u64,
    /// Counts the process's messages.
    pub(crate) number: u64,
    /// Counts the message's publications.
    pub(crate) index: u64,
}

impl NodePublicationId {
    /// Whether the process sent this publication before another one of its own, or it is the same publication.
    pub(crate) fn is_through(self, other: Self) -> bool {
        (self.node, self.start) == (other.node, other.start)
            && (self.number, self.index) <= (other.number, other.index)
    }
}

/// A node's part in reports about topic states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReportRole {
    /// It will report when it knows the state of all topics.
    Candidate,
    /// It reports the topics that it owns.
    Reporter,
    /// It does not report.
    #[default]
    #[serde(other)]
    None,
}

/// The nodes in a cluster that report topic states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReportingNodes {
    /// This node's id.
    pub(crate) own: u128,
    /// The reporters' ids; this node may be one of them.
    pub(crate) reporters: Vec<u128>,
    /// This node has been connected for long enough to know the presence of all nodes.
    pub(crate) is_settled: bool,
    /// A candidate has started earlier than this node.
    pub(crate) has_older_candidate: bool,
    /// This node does not know the other nodes' state, because of a broker outage.
    pub(crate) is_cut_off: bool,
    /// Nodes that have died since the last call.
    pub(crate) dead: Vec<u128>,
}

impl ReportingNodes {
    /// The node that reports a topic: all nodes choose the same one, and a node that joins or leaves moves few topics.
    pub(crate) fn owner(&self, topic: &str) -> Option<u128> {
        self.reporters.iter().copied().max_by_key(|node| (weight(*node, topic), *node))
    }
}

/// Returns a node's weight for a topic: rendezvous hashing.
fn weight(node: u128, topic: &str) -> u64 {
    mix(fnv(node.to_le_bytes().into_iter().chain(topic.bytes())))
}

/// Other nodes that are connected, and pass each publication with its audience to a function.
#[cfg(test)]
pub(crate) struct PublicationSink<F>(pub(crate) F);

#[cfg(test)]
impl<F> Debug for PublicationSink<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PublicationSink")
    }
}

#[cfg(test)]
impl<F: Fn(&str, &MessageContent, bool) + Send + Sync> OtherNodes for PublicationSink<F> {
    fn publish(&self, publication: &Publication<'_, '_>, to_all: bool) {
        self.0(publication.topic, publication.content.message(), to_all);
    }

    fn request_cached_event(&self, _: &str, _: Option<Instant>, _: Duration) -> bool {
        false
    }

    fn pass_cache_miss(&self, _: &str, _: bool) -> bool {
        false
    }

    fn catch_up(&self, _: Duration) -> bool {
        true
    }

    fn retry_rejected(&self, _: &str) {}

    fn is_connected(&self) -> bool {
        true
    }

    fn id(&self) -> String {
        "1".to_owned()
    }

    fn reporting(&self) -> ReportingNodes {
        ReportingNodes::default()
    }

    fn set_report_role(&self, _: ReportRole) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_reports_a_topic_and_a_departure_moves_only_its_topics() {
        let all = ReportingNodes { reporters: vec![1, 2, 3], ..ReportingNodes::default() };
        let fewer = ReportingNodes { reporters: vec![3, 1], ..all.clone() };
        let mut counts = [0; 4];
        for topic in (0..300).map(|number| format!("chat.{number}")) {
            let owner = all.owner(&topic).unwrap();
            counts[owner as usize] += 1;
            if owner != 2 {
                assert_eq!(fewer.owner(&topic), Some(owner));
            }
        }
        assert!(counts[1..].iter().all(|count| *count > 60), "{counts:?}");
        assert_eq!(ReportingNodes::default().owner("a"), None);
    }
}
