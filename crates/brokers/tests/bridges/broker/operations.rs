//! The operations of a store, for tests that reject the commands behind them.

use std::sync::Arc;

use sinews_stream::StartPosition;
use sinews_stream::broker::Broker;

use super::{Node, acked, records, until};

/// What a rejected command of a store ends: nothing else may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Append,
    Fetch,
    Range,
    Streams,
    Commit,
    Committed,
    Follow,
    FollowFromTime,
}

pub(crate) const OPERATIONS: [Operation; 8] = [
    Operation::Append,
    Operation::Fetch,
    Operation::Range,
    Operation::Streams,
    Operation::Commit,
    Operation::Committed,
    Operation::Follow,
    Operation::FollowFromTime,
];

impl Operation {
    /// Runs the operation at a broker with three records in the stream `s`. Returns why it fails, if it does.
    pub(crate) fn run(self, broker: &dyn Broker, node: &Node) -> Result<(), String> {
        let text = |error: &dyn ToString| error.to_string();
        match self {
            Self::Append => {
                let published = broker.publish("s", 0, records(&["x"]));
                published.and_then(|mut pending| acked(&mut pending)).map(drop).map_err(|e| text(&e))
            }
            Self::Fetch => broker.fetch("s", 0, 1, 1_000).block().map(drop).map_err(|e| text(&e)),
            Self::Range => broker.offset_range("s", 0).block().map(drop).map_err(|e| text(&e)),
            Self::Streams => broker.streams().block().map(drop).map_err(|e| text(&e)),
            Self::Commit => broker.commit("s", 0, "g", 2).block().map_err(|e| text(&e)),
            Self::Committed => broker.committed("s", 0, "g").block().map(drop).map_err(|e| text(&e)),
            Self::Follow => follow(broker, node, ("s", StartPosition::Earliest)),
            Self::FollowFromTime => follow(broker, node, ("t", StartPosition::Time(0))),
        }
    }
}

/// Follows a stream until it has a record, or an error.
fn follow(broker: &dyn Broker, node: &Node, from: (&str, StartPosition)) -> Result<(), String> {
    let (stream, position) = from;
    let partition = node.partition(stream, 0);
    broker.follow(stream, 0, position, partition.clone());
    // Errors of the partition begin with its name at Kafka, Redis or NATS. Others end no following: without
    // announcements, records arrive nevertheless, and a producer reports on its own that it gets no id.
    let names = ["/", ":", "-"].map(|separator| format!("{stream}{separator}0: "));
    let is_of_partition = |error: &Arc<str>| names.iter().any(|name| error.starts_with(name));
    let error = || broker.health().error.filter(is_of_partition);
    until("a record or an error arrives", || partition.offsets().next > 1 || error().is_some());
    if partition.offsets().next > 1 { Ok(()) } else { Err(error().unwrap_or_default().to_string()) }
}
