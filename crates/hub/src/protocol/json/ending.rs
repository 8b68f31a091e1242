//! The end of subscriptions.

use serde_json::json;
use sinews_server::Context;

use super::{JsonClient, OpReply};
use crate::brief::brief;
use crate::problem::{Problem, code, problem};
use crate::topics::TopicForm;

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
        cx.unsubscribe(&TopicForm::Framed.topic(&removed.topic));
        if self.joined.set_subscribed(&removed.topic, false) {
            self.hub.uncount_subscriber(TopicForm::Framed);
        } else {
            self.hub.remove_subscriber(cx, TopicForm::Framed, &removed.topic);
        }
        removed.topic
    }
}
