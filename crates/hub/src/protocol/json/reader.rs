//! Subscriptions of clients that send no messages: their response has the messages of the protocol.

use serde_json::json;
use sinews_server::{Context, KeySubscription, ReplayFrom};

use super::keys::{KeyOp, KeyRequest};
use super::members::PresenceDetail;
use super::{JsonClient, OpReply, send_json};
use crate::problem::Problem;

impl JsonClient {
    /// Prepares for this number of subscriptions of a client that sends no messages.
    pub(in crate::protocol) fn expect_subscriptions(&mut self, count: usize) {
        self.acknowledges_all = true;
        self.subscriptions.reserve_exact(count);
    }

    /// Subscribes such a client, and acknowledges it.
    ///
    /// # Errors
    /// The problem, which the client has been told.
    pub(in crate::protocol) fn subscribe_reader(
        &mut self,
        topic: &str,
        start: Option<ReplayFrom>,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        match self.subscribe(topic, PresenceDetail::None, start, &None, cx) {
            Ok(OpReply::Ack(mut fields)) => {
                fields["op"] = json!("ack");
                send_json(cx, &fields);
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(problem) => {
                let mut message = problem.clone().into_json();
                message["topic"] = json!(topic);
                send_json(cx, &message);
                Err(problem)
            }
        }
    }

    /// Whether the keys of a topic can be read.
    ///
    /// # Errors
    /// They are not read from their stream yet, or cannot be.
    pub(in crate::protocol) fn check_keys(&self, topic: &str) -> Result<(), Problem> {
        self.key_store().check_ready(topic)
    }

    /// Subscribes such a client to the keys of a topic, and acknowledges it.
    ///
    /// # Errors
    /// The problem, which the client has been told.
    pub(in crate::protocol) fn subscribe_to_keys(
        &mut self,
        topic: &str,
        options: KeySubscription,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        let request = KeyRequest { topic: topic.into(), op: KeyOp::Subscribe(options) };
        match self.execute_keys(request, &None, cx) {
            Ok(OpReply::Ack(mut fields)) => {
                fields["op"] = json!("ack");
                send_json(cx, &fields);
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(problem) => {
                let mut message = problem.clone().into_json();
                (message["topic"], message["keys"]) = (json!(topic), json!(true));
                send_json(cx, &message);
                Err(problem)
            }
        }
    }

    /// Whether the client is subscribed to keys.
    pub(in crate::protocol) fn is_subscribed_to_keys(&self) -> bool {
        self.keys.subscriptions() > 0
    }

    /// The number of subscriptions.
    pub(in crate::protocol) fn subscriptions(&self) -> usize {
        self.subscriptions.len()
    }
}
