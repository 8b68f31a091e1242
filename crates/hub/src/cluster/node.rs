//! A cluster node. A build without the feature `cluster` has this type, too.

use serde_json::{Value, json};

/// A cluster node, as it describes itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterNode {
    /// The process's random id, in hexadecimal digits.
    pub id: String,
    /// Name in the configuration, or the host name.
    pub name: String,
    /// Program version.
    pub version: String,
    /// Seconds since the start.
    pub uptime: u64,
    /// Open connections of clients.
    pub connections: u64,
    /// Users of these connections, by the `sub` of their tokens. A user on two nodes counts at both.
    pub users: u64,
    /// Topics and patterns with subscribers.
    pub topics: u64,
}

impl ClusterNode {
    pub(crate) fn to_json(&self) -> Value {
        let Self { id, name, version, uptime, connections, users, topics } = self;
        json!({
            "id": id, "name": name, "version": version, "uptime": uptime, "connections": connections,
            "users": users, "topics": topics,
        })
    }
}
