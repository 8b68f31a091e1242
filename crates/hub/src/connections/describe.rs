//! A connection's description for the HTTP API.

use futures_channel::oneshot;
use serde_json::{Value, json};

use super::{ConnectionCommand, ConnectionRegistry, described};

impl ConnectionRegistry {
    /// Describes an open connection of this node with its subscriptions, which its handler lists. Completes with
    /// `None` if the connection has closed.
    pub(crate) fn describe(&self, id: &str) -> Option<impl Future<Output = Option<Value>> + Send + use<>> {
        let connection = self.find(id)?;
        let mut description = described(self, &connection);
        description["claims"] = connection.rights().describe().unwrap_or(Value::Null);
        let (reply, replied) = oneshot::channel();
        let sent = connection.send(ConnectionCommand::Describe { reply });
        Some(async move {
            // A connection with too many commands reports later ones only.
            let details = match sent {
                Ok(()) => replied.await.ok()?,
                Err(_) => json!({}),
            };
            for (name, value) in details.as_object().into_iter().flatten() {
                description[name] = value.clone();
            }
            Some(description)
        })
    }
}
