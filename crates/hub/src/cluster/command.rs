//! Commands to the other nodes, and their results. A build without the feature `cluster` has these types, too.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::access::auth::{Revocation, RightsChange};
use crate::connections::ConnectionSelector;
use crate::connections::subscribe::SubscriptionChange;

/// A command to the other nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum NodeCommand {
    /// Close connections.
    Disconnect { selector: ConnectionSelector, code: u16, reason: String },
    /// Change the rights of connections.
    Refresh { selector: ConnectionSelector, change: RightsChange },
    /// Revoke tokens, and close their connections.
    Revoke { revocation: Revocation },
    /// The revocations in effect, for a node that may have missed some.
    Revocations { all: Vec<Revocation> },
    /// The sender may have missed revocations.
    Sync,
    /// Subscribe or unsubscribe connections.
    ChangeSubscriptions { change: SubscriptionChange },
    /// Return a cache channel's last event.
    CachedEvent { topic: String },
    /// Retain a cache channel's last event, which the node may have missed.
    RetainEvent { topic: String, event: String, age: u64 },
    /// A client has subscribed to a cache channel without an event, which its node has requested or not.
    CacheMiss {
        topic: String,
        #[serde(default)]
        is_requested: bool,
    },
    /// List topics.
    Topics { filter: String, after: Option<String>, limit: usize },
    /// List connections, or only connections with slow clients.
    Connections { user: Option<String>, after: Option<String>, limit: usize, slow: bool },
    /// Describe a connection.
    Connection { connection: String },
    /// Count the connections to a Pusher protocol app.
    AppConnections { app: String },
}

/// Results from the other nodes.
#[derive(Debug, Default)]
pub(crate) struct NodeResults {
    pub(crate) results: Vec<Value>,
    /// Names of the nodes without a result within the time limit, and of lost nodes.
    pub(crate) missing: Vec<String>,
    /// All nodes have a result, except for lost nodes.
    pub(crate) is_complete: bool,
}
