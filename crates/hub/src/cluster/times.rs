//! Intervals and time limits between a cluster's nodes and its broker.

use std::time::Duration;

/// Heartbeat interval.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(1);

/// Time without a heartbeat after which a node is dead: four lost heartbeats, and some broker delay.
pub(super) const NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time after the first login of a process at which it knows the other nodes: their heartbeats have arrived.
pub(super) const READY_TIME: Duration = HEARTBEAT.saturating_mul(2);

/// Time limit for a connection and its login; checked with each heartbeat.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest delay before a node connects to the broker again.
pub(super) const RETRY_MAX: Duration = Duration::from_secs(5);

/// Time after the return of the broker in which all nodes return: an attempt may hang, and the longest delay follows.
pub(super) const RETURN_TIME: Duration = CONNECT_TIMEOUT.saturating_add(HEARTBEAT).saturating_add(RETRY_MAX);

/// Time after the login at which a node knows the presence of all other nodes, and they know it.
pub(super) const SETTLE_TIME: Duration = NODE_TIMEOUT;

/// Time for which the state of other nodes is retained while the broker is unreachable.
pub(super) const OUTAGE_MAX: Duration = Duration::from_secs(60);

/// Time before an outage is noticed in which messages may be lost.
pub(super) const LOSS_MAX: Duration = Duration::from_secs(10);
