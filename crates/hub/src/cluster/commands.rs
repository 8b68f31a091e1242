//! Commands of the HTTP API to all nodes, and their results.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures_channel::oneshot;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sinews_server::{CloseCode, Publisher};

use super::message::NodeId;
use crate::auth::{Revocation, RevokedTokens};
use crate::closing::TOKEN_EXPIRED;
use crate::connections::{ConnectionRegistry, ConnectionSelector, described};
use crate::policy::LivePolicy;
use crate::topics::list::TopicScan;

/// Time after which a node without a result is reported as missing.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of requests that wait for results. Further ones report all other nodes as missing.
const REQUESTS_MAX: usize = 1_024;

/// Looks at the list of topics for one request, each at a page of 1,000 names. A search that finds nothing for longer
/// ends there.
const SCANS_MAX: usize = 64;

/// A command to the other nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum NodeCommand {
    /// Close connections.
    Disconnect { selector: ConnectionSelector, code: u16, reason: String },
    /// Revoke tokens, and close their connections.
    Revoke { revocation: Revocation },
    /// The revocations in effect, for a node that may have missed some.
    Revocations { all: Vec<Revocation> },
    /// The sender may have missed revocations.
    Sync,
    /// List topics.
    Topics { filter: String, after: Option<String>, limit: usize },
    /// List connections, or those of slow clients only.
    Connections { user: Option<String>, after: Option<String>, limit: usize, slow: bool },
    /// Count the connections of an app of the Pusher protocol.
    AppConnections { app: String },
}

/// A command in a message: the id is 0 if no result is expected.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CommandMessage {
    pub(super) id: u64,
    #[serde(flatten)]
    pub(super) command: NodeCommand,
}

/// The result of a command in a message.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ResultMessage {
    pub(super) id: u64,
    pub(super) result: Value,
}

/// Results of the other nodes.
#[derive(Debug, Default)]
pub(crate) struct NodeResults {
    pub(crate) results: Vec<Value>,
    /// Names of the nodes without a result within the time limit.
    pub(crate) missing: Vec<String>,
}

/// Requests that wait for results.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    last: u64,
    requests: BTreeMap<u64, PendingRequest>,
}

#[derive(Debug)]
struct PendingRequest {
    waits_for: BTreeSet<NodeId>,
    results: Vec<Value>,
    done: oneshot::Sender<(Vec<Value>, BTreeSet<NodeId>)>,
    deadline: Instant,
}

/// Completes with the results, and the nodes without one.
pub(super) type RequestDone = oneshot::Receiver<(Vec<Value>, BTreeSet<NodeId>)>;

impl PendingRequests {
    /// Adds a request to nodes; `None` if too many wait.
    pub(super) fn add(&mut self, nodes: BTreeSet<NodeId>, now: Instant) -> Option<(u64, RequestDone)> {
        if self.requests.len() >= REQUESTS_MAX {
            return None;
        }
        self.last += 1;
        let (done, receiver) = oneshot::channel();
        let request =
            PendingRequest { waits_for: nodes, results: Vec::new(), done, deadline: now + REQUEST_TIMEOUT };
        self.requests.insert(self.last, request);
        Some((self.last, receiver))
    }

    /// Notes the result of a node.
    pub(super) fn complete(&mut self, id: u64, node: NodeId, result: Value) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        if request.waits_for.remove(&node) {
            request.results.push(result);
        }
        if request.waits_for.is_empty() {
            self.finish(id);
        }
    }

    /// Ends requests whose time is over.
    pub(super) fn expire(&mut self, now: Instant) {
        let due = self.requests.iter().filter(|(_, request)| request.deadline <= now);
        let due: Vec<u64> = due.map(|(id, _)| *id).collect();
        due.into_iter().for_each(|id| self.finish(id));
    }

    /// When a request ends at the latest.
    pub(super) fn deadline(&self) -> Option<Instant> {
        // In the order of their numbers, requests have ascending deadlines.
        self.requests.values().next().map(|request| request.deadline)
    }

    fn finish(&mut self, id: u64) {
        if let Some(request) = self.requests.remove(&id) {
            // The client may have gone.
            let _ = request.done.send((request.results, request.waits_for));
        }
    }
}

/// What commands act on.
pub(super) struct CommandTarget<'a> {
    pub(super) connections: &'a ConnectionRegistry,
    pub(super) live: &'a LivePolicy,
    pub(super) publisher: &'a Publisher,
}

impl CommandTarget<'_> {
    /// Executes a command on this node; returns its result.
    pub(super) fn execute(&self, command: NodeCommand) -> Value {
        match command {
            NodeCommand::Disconnect { selector, code, reason } => {
                // Codes are checked by the node of the API.
                let code = CloseCode::new(code).unwrap_or(CloseCode::POLICY);
                json!({ "connections": self.connections.close_all(&selector, code, &reason) })
            }
            NodeCommand::Revoke { revocation } => json!({ "connections": self.revoke(&revocation) }),
            NodeCommand::Revocations { all } => {
                for revocation in &all {
                    self.revoke(revocation);
                }
                Value::Null
            }
            NodeCommand::Sync => Value::Null,
            NodeCommand::AppConnections { app } => {
                json!({ "connections": self.live.policy().live_apps().connections(&app) })
            }
            NodeCommand::Topics { filter, after, limit } => self.topics(&filter, after, limit),
            NodeCommand::Connections { user, after, limit, slow } => {
                let found = if slow {
                    self.connections.slowest(user.as_deref(), limit)
                } else {
                    self.connections.cluster_page(user.as_deref(), after.as_deref(), limit)
                };
                let listed = found.iter().map(|connection| described(self.connections, connection));
                json!({ "connections": listed.collect::<Vec<_>>() })
            }
        }
    }

    /// Revokes tokens here, and closes their connections. Returns their number.
    fn revoke(&self, revocation: &Revocation) -> usize {
        if !self.live.policy().revocations().insert(revocation) {
            tracing::warn!("too many revocations are in effect: one of another node is ignored");
        }
        let selector = match &revocation.tokens {
            RevokedTokens::OfUser(user) => ConnectionSelector::User(user.to_string()),
            RevokedTokens::WithId(id) => ConnectionSelector::Token(id.to_string()),
        };
        self.connections.close_revoked(&selector, revocation, TOKEN_EXPIRED)
    }

    fn topics(&self, filter: &str, after: Option<String>, limit: usize) -> Value {
        let Ok(mut scan) = TopicScan::new(filter) else { return json!({ "topics": [] }) };
        scan.set_after(after);
        let mut found = Vec::new();
        for _ in 0..SCANS_MAX {
            let names = scan.next(self.publisher);
            if names.is_empty() {
                break;
            }
            found.extend(names.into_iter().filter(|(name, _)| scan.matches(name)));
            if found.len() >= limit {
                break;
            }
        }
        found.truncate(limit);
        json!({ "topics": found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_end_with_the_last_result_or_in_time() {
        let (mut pending, now) = (PendingRequests::default(), Instant::now());
        let [one, two] = [1, 2].map(|id| NodeId { id, start: 0 });
        let (first, mut done) = pending.add([one, two].into(), now).unwrap();
        pending.complete(first, one, json!(1));
        pending.complete(first, one, json!("again"));
        assert_eq!(done.try_recv(), Ok(None));
        pending.complete(first, two, json!(2));
        assert_eq!(done.try_recv(), Ok(Some((vec![json!(1), json!(2)], BTreeSet::new()))));
        let (second, mut done) = pending.add([one, two].into(), now).unwrap();
        pending.complete(second, two, json!(2));
        assert_eq!(pending.deadline(), Some(now + REQUEST_TIMEOUT));
        pending.expire(now + REQUEST_TIMEOUT);
        assert_eq!(done.try_recv(), Ok(Some((vec![json!(2)], [one].into()))));
        assert_eq!(pending.deadline(), None);
        let waiting: Vec<_> = (0..REQUESTS_MAX).map(|_| pending.add([one].into(), now)).collect();
        assert!(waiting.iter().all(Option::is_some) && pending.add([one].into(), now).is_none());
    }

    #[test]
    fn commands_are_read_as_written() {
        let selector = ConnectionSelector::User("anna".to_owned());
        let command = NodeCommand::Disconnect { selector, code: 4000, reason: "r".to_owned() };
        let text = serde_json::to_string(&CommandMessage { id: 7, command }).unwrap();
        let read: CommandMessage = serde_json::from_str(&text).unwrap();
        assert_eq!(read.id, 7);
        assert!(matches!(read.command, NodeCommand::Disconnect { code: 4000, .. }), "{text}");
        assert!(serde_json::from_str::<CommandMessage>(r#"{"id":1,"op":"unknown"}"#).is_err());
    }
}
