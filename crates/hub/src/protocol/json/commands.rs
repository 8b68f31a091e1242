//! HTTP API commands to the connection.

use serde_json::{Value, json};
use sinews_server::Context;

use super::members::PresenceDetail;
use super::requests::SubscribeOptions;
use super::{JsonClient, OpReply, send_json};
use crate::access::auth::RightsChange;
use crate::closing::close;
use crate::connections::ConnectionCommand;
use crate::model::problem::{Problem, code, problem};

impl JsonClient {
    pub(super) fn execute_commands(&mut self, cx: &mut Context<'_>) {
        for command in self.session.take_commands() {
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
                ConnectionCommand::Describe { reply } => {
                    let _ = reply.send(self.describe());
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

    /// Describes the subscriptions and the joined topics for the HTTP API.
    fn describe(&self) -> Value {
        let messages = self.subscriptions.iter().map(|known| {
            let mut described = json!({ "topic": known.topic });
            if known.presence > PresenceDetail::None {
                described["presence"] = json!(true);
            }
            if known.by_server {
                described["by_server"] = json!(true);
            }
            described
        });
        let keys = self.keys.topics().iter().map(|topic| json!({ "topic": topic, "keys": true }));
        let joined = self.joined.iter().map(|(topic, id)| json!({ "topic": topic, "id": id }));
        json!({
            "subscriptions": messages.chain(keys).collect::<Vec<_>>(), "joined": joined.collect::<Vec<_>>(),
        })
    }

    /// Replaces the rights by the backend's. Subscriptions that they do not cover end.
    fn change_rights(&mut self, change: &RightsChange, cx: &mut Context<'_>) {
        if !self.session.change_rights(change, cx) {
            return;
        }
        if !self.acknowledges_all {
            let mut message = json!({ "op": "refreshed" });
            if let Some(left) = self.session.rights().expires_in() {
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
        let reply = self.subscribe_permitted(topic, SubscribeOptions::default(), &None, cx)?;
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
