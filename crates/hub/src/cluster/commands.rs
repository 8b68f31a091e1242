//! HTTP API commands to all nodes: requests that wait for results, and the execution on this node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures_channel::oneshot;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sinews_server::{CloseCode, Prepared, Publisher};

use super::cached_events::cached_event;
use super::command::NodeCommand;
use super::message::NodeId;
use super::node::LocalParts;
use crate::access::auth::Revocation;
use crate::connections::{ConnectionRegistry, described};
use crate::topics::HubTopics;
use crate::topics::list::{TopicScan, TopicsInUse};

/// Time after which a node without a result is reported as missing.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum requests that wait for results. Further ones report all other nodes as missing.
const REQUESTS_MAX: usize = 1_024;

/// Times that one request reads the topic list, each time a page of 1,000 names. A search that finds nothing for longer
/// ends there.
const SCANS_MAX: usize = 64;

/// A command in a message: the id is 0 if no result is expected.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CommandMessage {
    pub(super) id: u64,
    #[serde(flatten)]
    pub(super) command: NodeCommand,
}

/// A command's result in a message.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ResultMessage {
    pub(super) id: u64,
    pub(super) result: Value,
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

    /// Notes a node's result.
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
    pub(super) local: &'a LocalParts,
    pub(super) publisher: &'a Publisher,
    pub(super) hub: &'a HubTopics,
}

/// A command's result on this node.
pub(super) enum Execution {
    Done(Value),
    /// The result follows when connections have executed the command.
    Pending(BoxFuture<'static, Value>),
}

impl CommandTarget<'_> {
    /// Executes a command on this node.
    pub(super) fn execute(&self, command: NodeCommand) -> Execution {
        match command {
            NodeCommand::ChangeSubscriptions { change } => {
                match self.connections.change_subscriptions(&change) {
                    Ok(results) => {
                        Execution::Pending(results.map(|results| json!({ "results": results })).boxed())
                    }
                    Err(problem) => Execution::Done(problem.fields()),
                }
            }
            NodeCommand::Connection { connection } => match self.connections.describe(&connection) {
                Some(described) => Execution::Pending(described.map(Option::unwrap_or_default).boxed()),
                None => Execution::Done(Value::Null),
            },
            command => Execution::Done(self.execute_at_once(command)),
        }
    }

    fn execute_at_once(&self, command: NodeCommand) -> Value {
        match command {
            NodeCommand::Disconnect { selector, code, reason } => {
                // Codes are checked by the node of the API.
                let code = CloseCode::new(code).unwrap_or(CloseCode::POLICY);
                json!({ "connections": self.connections.close_all(&selector, code, &reason) })
            }
            NodeCommand::Refresh { selector, change } => {
                json!({ "connections": self.connections.refresh_all(&selector, change) })
            }
            NodeCommand::Revoke { revocation } => json!({ "connections": self.revoke(&[revocation]) }),
            NodeCommand::Revocations { all } => {
                self.revoke(&all);
                Value::Null
            }
            NodeCommand::Sync | NodeCommand::ChangeSubscriptions { .. } | NodeCommand::Connection { .. } => {
                Value::Null
            }
            NodeCommand::CachedEvent { topic } => cached_event(self.hub, &topic),
            NodeCommand::RetainEvent { topic, event, age } => {
                let (event, age) = (Prepared::text(event), Duration::from_millis(age));
                self.hub.restore_last_event(self.publisher, &topic, &event, None, age);
                Value::Null
            }
            NodeCommand::CacheMiss { topic, is_requested } => {
                self.hub.report_missing_event(&topic, true, is_requested);
                Value::Null
            }
            NodeCommand::AppConnections { app } => {
                json!({ "connections": self.app_connections(&app) })
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

    /// Returns the number of connections of an app of the Pusher protocol.
    #[cfg(feature = "pusher")]
    fn app_connections(&self, app: &str) -> usize {
        self.local.apps.connections(app)
    }

    /// Returns the number of connections of an app: without the Pusher protocol, none.
    #[cfg(not(feature = "pusher"))]
    fn app_connections(&self, _: &str) -> usize {
        0
    }

    /// Revokes tokens here, and closes their connections. Returns their number.
    fn revoke(&self, all: &[Revocation]) -> usize {
        self.connections.revoke(&self.local.revocations, all)
    }

    fn topics(&self, filter: &str, after: Option<String>, limit: usize) -> Value {
        let Ok(mut scan) = TopicScan::new(filter, self.hub.encodings()) else {
            return json!({ "topics": [] });
        };
        scan.set_after(after);
        let next = || {
            let mut names = scan.next(self.publisher);
            let last = names.last()?.0.clone();
            names.retain(|(name, found)| found.is_any() && scan.matches(name));
            Some((names, last))
        };
        let (found, scanned) = search(next, limit);
        let found: Vec<Value> = found.iter().map(|(name, found)| found.to_message(name)).collect();
        match scanned {
            Some(scanned) => json!({ "topics": found, "scanned": scanned }),
            None => json!({ "topics": found }),
        }
    }
}

/// Collects at most `limit` topics from parts of a list: those that match, and the part's last name. Also returns the
/// last name, if names behind it were not looked at.
fn search(
    mut next: impl FnMut() -> Option<(TopicsInUse, String)>,
    limit: usize,
) -> (TopicsInUse, Option<String>) {
    let mut found = Vec::new();
    for look in 1..=SCANS_MAX {
        let Some((more, last)) = next() else { break };
        found.extend(more);
        if found.len() >= limit {
            found.truncate(limit);
            let last = found.last().map(|(name, _)| name.clone());
            return (found, last);
        }
        if look == SCANS_MAX {
            return (found, Some(last));
        }
    }
    (found, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::ConnectionSelector;
    use crate::topics::list::TopicUse;

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
    fn searches_end_at_their_limits_and_report_names_that_were_not_looked_at() {
        // Each part of 1,000 names has one that matches.
        let parts = |count: usize| {
            let mut parts = (0..count).map(|part| {
                let name = |number: usize| format!("{number:08}");
                (vec![(name(part * 1_000), TopicUse::default())], name(part * 1_000 + 999))
            });
            move || parts.next()
        };
        let (found, scanned) = search(parts(3), 9);
        assert_eq!((found.len(), scanned), (3, None));
        let (found, scanned) = search(parts(3), 2);
        assert_eq!(
            (found.len(), scanned.as_deref()),
            (2, Some("00001000")),
            "the page may be filtered later"
        );
        let (found, scanned) = search(parts(2 * SCANS_MAX), 1_000);
        assert_eq!((found.len(), scanned.as_deref()), (SCANS_MAX, Some("00063999")));
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
