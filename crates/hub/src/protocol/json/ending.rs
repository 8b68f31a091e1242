//! How subscriptions end.

use serde_json::{Value, json};
use sinews_server::Context;

use super::{JsonClient, OpReply};
use crate::access::auth::Action;
use crate::activity::ActivityKind;
use crate::model::brief::brief;
use crate::model::encoding::MESSAGES;
use crate::model::problem::{Problem, code, problem};
use crate::streams::follow::DurableSubscription;

impl JsonClient {
    pub(super) fn unsubscribe(&mut self, topic: &str, cx: &mut Context<'_>) -> Result<OpReply, Problem> {
        let Some(index) = self.subscriptions.iter().position(|known| known.topic == topic) else {
            return Err(problem(code::NOT_SUBSCRIBED, format!("not subscribed to {}", brief(topic))));
        };
        self.remove_subscription(index, cx);
        Ok(OpReply::Ack(json!({ "topic": topic })))
    }

    /// Ends a subscription; returns its topic.
    pub(super) fn remove_subscription(&mut self, index: usize, cx: &mut Context<'_>) -> String {
        let removed = self.subscriptions.swap_remove(index);
        if let Some(hooks) = &mut self.hooks {
            hooks.forget(&removed.topic);
        }
        // First: a client does not receive its own leave.
        cx.unwatch_presence(&removed.topic);
        if !self.is_recovered(&removed.topic) {
            cx.unsubscribe(&MESSAGES.topic(&removed.topic));
        }
        self.end_recovered(&removed.topic, cx);
        if self.joined.set_subscribed(&removed.topic, false) {
            self.session.hub().uncount_subscriber(MESSAGES);
        } else {
            self.session.hub().remove_subscriber(cx, MESSAGES, &removed.topic);
        }
        self.session.observe_topic(ActivityKind::Unsubscribe, &removed.topic);
        removed.topic
    }

    /// Ends the subscriptions that the rights do not cover; returns an error for each.
    pub(super) fn end_denied(&mut self, cx: &mut Context<'_>) -> Vec<Value> {
        let mut ended = Vec::new();
        let mut index = 0;
        while let Some(known) = self.subscriptions.get(index) {
            let denied = match self.session.may(Action::Subscribe, &known.topic) {
                Err(denied) if !known.by_server => denied,
                _ => {
                    index += 1;
                    continue;
                }
            };
            let mut error = Problem::from(denied).into_json();
            if let Some(DurableSubscription::Opening { id: Some(id), .. }) = known.follow.as_deref() {
                error["id"] = id.clone();
            }
            let topic = self.remove_subscription(index, cx);
            self.joined.leave(&topic, cx);
            error["topic"] = json!(topic);
            ended.push(error);
        }
        ended.extend(self.joined.end_denied(self.session.rights(), cx));
        ended.extend(self.keys.end_denied(self.session.rights(), cx));
        ended.extend(self.streams.end_denied(self.session.rights()));
        ended
    }
}
