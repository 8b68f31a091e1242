//! The operations of a store, for tests that reject the commands behind them.

use std::sync::Arc;

use sinews_stream::StartPosition;
use sinews_stream::broker::Broker;

use super::{Node, acked, publish, until};

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
            Self::Append => acked(&mut publish(broker, "s", 0, &["x"])).map(drop).map_err(|e| text(&e)),
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
    let known = broker.health().error;
    broker.follow(stream, 0, position, partition.clone());
    // Without announcements, records arrive nevertheless.
    let is_fatal =
        |error: &Arc<str>| Some(error) != known.as_ref() && !error.contains("is read every second");
    let error = || broker.health().error.filter(is_fatal);
    until("a record or an error arrives", || partition.offsets().next > 1 || error().is_some());
    if partition.offsets().next > 1 { Ok(()) } else { Err(error().unwrap_or_default().to_string()) }
}
