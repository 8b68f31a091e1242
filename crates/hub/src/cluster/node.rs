//! A cluster node. A build without the feature `cluster` has this type, too.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::access::auth::Revocations;
#[cfg(feature = "pusher")]
use crate::apps::live::LiveApps;
use crate::background::Background;

/// The parts of this process that other nodes read or change.
#[derive(Default)]
#[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "only a cluster uses them"))]
pub(crate) struct LocalParts {
    pub(crate) revocations: Arc<Revocations>,
    #[cfg(feature = "pusher")]
    pub(crate) apps: Arc<LiveApps>,
    /// Runs the connection attempts.
    pub(crate) background: Background,
}

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
    /// The topic store and its promises, as `/readyz` prints them; empty without one.
    pub store: String,
    /// The topic store does not answer.
    pub store_away: bool,
}

impl ClusterNode {
    /// Returns the fields as a JSON object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let Self { id, name, version, uptime, connections, users, topics, store, store_away } = self;
        json!({
            "id": id, "name": name, "version": version, "uptime": uptime, "connections": connections,
            "users": users, "topics": topics, "store": store, "store_away": store_away,
        })
    }
}
