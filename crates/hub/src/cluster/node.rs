//! A node of a cluster. A build without the feature `cluster` has this type, too.

use serde_json::{Value, json};

/// A node of a cluster, as it describes itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterNode {
    /// Random id of the process, in hexadecimal digits.
    pub id: String,
    /// Name in the configuration, or the host name.
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// Seconds since the start.
    pub uptime: u64,
    /// Open connections of clients.
    pub connections: u64,
    /// Users of these connections, by the `sub` of their tokens. A user of two nodes counts at both.
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
