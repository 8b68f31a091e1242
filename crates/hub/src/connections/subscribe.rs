//! Subscriptions that a backend starts or ends for this node's connections.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_channel::oneshot;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{ConnectionCommand, ConnectionRegistry, ConnectionSelector};
use crate::model::problem::{Problem, code, problem};

/// Maximum connections on one node that a request subscribes or unsubscribes: it waits for all.
const CHANGED_MAX: usize = 1_000;

/// The start or the end of a subscription of connections.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SubscriptionChange {
    pub(crate) selector: ConnectionSelector,
    pub(crate) topic: String,
    /// The subscription ends.
    #[serde(default)]
    pub(crate) ends: bool,
}

impl ConnectionRegistry {
    /// Notifies the subscribers of topics whose subscription the cluster's broker rejects, with the reasons.
    pub(crate) fn report_rejected(&self, topics: &Arc<BTreeMap<Arc<str>, Arc<str>>>) {
        // A client whose command queue is full is not notified.
        self.for_each(|connection| {
            drop(connection.send(ConnectionCommand::ReportRejected(Arc::clone(topics))))
        });
    }

    /// Sends the command to this node's connections. Completes with a result for each, after they have executed it or
    /// have closed.
    ///
    /// # Errors
    /// A user has too many connections.
    pub(crate) fn change_subscriptions(
        &self,
        change: &SubscriptionChange,
    ) -> Result<impl Future<Output = Vec<Value>> + Send + use<>, Problem> {
        let connections = match &change.selector {
            ConnectionSelector::User(user) => self.page(Some(user), None, CHANGED_MAX + 1)?,
            ConnectionSelector::Connection(id) => self.find(id).into_iter().collect(),
            // The API names no token here.
            ConnectionSelector::Token(_) => Vec::new(),
        };
        if connections.len() > CHANGED_MAX {
            let text = format!("the user has more than {CHANGED_MAX} connections at one node");
            return Err(problem(code::TOO_LARGE, text));
        }
        let results = connections.into_iter().map(|connection| {
            let (reply, replied) = oneshot::channel();
            let topic = change.topic.as_str().into();
            let sent = connection.send(match change.ends {
                false => ConnectionCommand::Subscribe { topic, reply },
                true => ConnectionCommand::Unsubscribe { topic, reply },
            });
            let id = self.id_of(&connection);
            // The connection may close before it executes the command; the reply is dropped then.
            async move {
                let closed = || problem(code::GONE, "the connection has closed");
                let result = match sent {
                    Ok(()) => replied.await.unwrap_or_else(|_| Err(closed())),
                    Err(problem) => Err(problem),
                };
                let mut result = result.map_or_else(|problem| problem.fields(), |()| json!({}));
                result["connection"] = json!(id);
                result
            }
        });
        Ok(join_all(results.collect::<Vec<_>>()))
    }
}
