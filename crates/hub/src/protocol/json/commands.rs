//! HTTP API commands to the connection.

use serde_json::json;
use sinews_server::Context;

use super::members::PresenceDetail;
use super::{JsonClient, OpReply, send_json};
use crate::access::auth::RightsChange;
use crate::closing::close;
use crate::config::log_changed_rights;
use crate::connections::{ConnectionCommand, ConnectionPath, RegisteredConnection};
use crate::model::problem::{Problem, code, problem};

impl JsonClient {
    /// Registers the open connection at a path.
    pub(super) fn register(&mut self, path: ConnectionPath, cx: &mut Context<'_>) {
        self.connection =
            Some(self.hub.connections().register(path, &self.rights, cx.subscriber_id(), cx.waker()));
        self.live.config().close_if_revoked(&self.rights, cx);
    }

    pub(super) fn execute_commands(&mut self, cx: &mut Context<'_>) {
        let connection = self.connection.as_ref();
        for command in connection.map_or_else(Vec::new, RegisteredConnection::take_commands) {
            // The caller may have gone: then nothing receives the reply.
            match command {
                ConnectionCommand::Close { code, reason } => close(cx, code, &reason),
                // The message would end the poll.
                ConnectionCommand::ReportCluster { .. } | ConnectionCommand::ReportRejected(_)
                    if self.is_poll() => {}
                ConnectionCommand::ReportCluster { is_connected } => {
                    send_json(cx, &json!({ "op": "cluster", "connected": is_connected }));
                }
                ConnectionCommand::ReportRejected(topics) => {
                    for known in &self.subscriptions {
                        let Some(reason) = topics.get(&*known.topic) else { continue };
                        let mut message = problem(code::STORE, &**reason).into_json();
                        message["topic"] = json!(&*known.topic);
                        send_json(cx, &message);
                    }
                }
                ConnectionCommand::Refresh(change) => self.change_rights(&change, cx),
                ConnectionCommand::Subscribe { topic, reply } => {
                    let _ = reply.send(self.subscribe_by_server(&topic, cx));
                }
                ConnectionCommand::Unsubscribe { topic, reply } => {
                    let _ = reply.send(self.unsubscribe_by_server(&topic, cx));
                }
            }
        }
    }

    /// Replaces the rights by the backend's. Subscriptions that they do not cover end.
    fn change_rights(&mut self, change: &RightsChange, cx: &mut Context<'_>) {
        let rights = match self.live.config().changed_rights(change, &self.rights) {
            Ok(rights) => rights,
            // This node's options may differ from those of the node that has checked the change.
            Err(fault) => return log_changed_rights(&fault),
        };
        self.set_rights(rights, cx);
        // The deadline may be earlier than before: the server reads it after a wakeup.
        cx.waker().wake();
        if !self.acknowledges_all {
            let mut message = json!({ "op": "refreshed" });
            if let Some(left) = self.rights.expires_in() {
                message["expires_in"] = json!(left);
            }
            send_json(cx, &message);
        }
        for error in self.end_denied(cx) {
            send_json(cx, &error);
        }
        self.subscribe_to_assigned(cx);
    }

    /// Subscribes the client, whatever its rights, and notifies it.
    pub(super) fn subscribe_by_server(&mut self, topic: &str, cx: &mut Context<'_>) -> Result<(), Problem> {
        if self.acknowledges_all && !self.accepts_assigned {
            let text = "a response with events has no further subscriptions, unless it was requested with assigned=true";
            return Err(problem(code::NOT_SUBSCRIBED, text));
        }
        if let Some(known) = self.subscriptions.iter_mut().find(|known| known.topic == topic) {
            // A response ends with each subscription that it was requested for.
            known.by_server |= !self.acknowledges_all;
            return Ok(());
        }
        let reply = self.subscribe_permitted(topic, PresenceDetail::None, None, &None, cx)?;
        if let Some(known) = self.subscriptions.iter_mut().find(|known| known.topic == topic) {
            known.by_server = true;
        }
        let mut message = match reply {
            OpReply::Ack(fields) => fields,
            _ => json!({ "topic": topic }),
        };
        message["op"] = json!("subscribed");
        send_json(cx, &message);
        Ok(())
    }

    fn unsubscribe_by_server(&mut self, topic: &str, cx: &mut Context<'_>) -> Result<(), Problem> {
        self.unsubscribe(topic, cx)?;
        send_json(cx, &json!({ "op": "unsubscribed", "topic": topic }));
        Ok(())
    }
}
