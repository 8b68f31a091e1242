//! Histories: subscriptions from a position, and earlier messages on request.

use serde_json::{Value, json};
use sinews_server::{Context, HistoryQuery, InvalidTopic, ReplayFrom, Subscribed};

use super::keys::mark_stale;
use super::members::subscription_problem;
use super::{JsonClient, OpReply};
use crate::access::auth::Action;
use crate::model;
use crate::model::encoding::MESSAGES;
use crate::model::history::HistoryRange;
use crate::model::problem::{Problem, code, problem};
use crate::streams::topic_history::{HistoryItem, history_page};

impl JsonClient {
    /// Answers with a topic's earlier messages.
    pub(super) fn history(
        &mut self,
        topic: &str,
        range: HistoryRange,
        id: &Option<Value>,
        cx: &mut Context<'_>,
    ) -> Result<OpReply, Problem> {
        model::check_name(topic).map_err(|text| problem(code::TOPIC, text))?;
        self.session.may(Action::Subscribe, topic)?;
        self.check_hooked(topic)?;
        if let Some(store) = self.streams.store_of(topic).cloned() {
            self.streams.history_of_topic(&store, topic, range, id, cx);
            return Ok(OpReply::Deferred);
        }
        let read = |name: &str, query: &HistoryQuery| cx.topics().history_page(name, query);
        let page = history_page(self.session.hub(), topic, range, read)?;
        let messages: Vec<Value> = page.messages.iter().map(HistoryItem::to_value).collect();
        let mut answer = json!({ "op": "history", "topic": topic, "messages": messages });
        page.add_fields(&mut answer);
        mark_stale(&mut answer, self.session.hub().stored(topic).and_then(|stored| stored.stale_for(topic)));
        Ok(OpReply::Message(answer))
    }
}

/// Subscribes, from a position if one is given and the topic has a history that is here; otherwise `None`.
pub(super) fn subscribe_from(
    topic: &str,
    start: Option<ReplayFrom>,
    is_open: bool,
    cx: &mut Context<'_>,
) -> Result<Option<Subscribed>, Problem> {
    let topic = MESSAGES.topic(topic);
    if !is_open {
        return cx.subscribe(&topic).map(|()| None).map_err(subscription_problem);
    }
    // A client that wants no history needs the current position, too: it resumes from there.
    match cx.subscribe_from(&topic, start.unwrap_or(ReplayFrom::Last(0))) {
        Ok(joined) => Ok(Some(joined)),
        Err(InvalidTopic::NoHistory) => cx.subscribe(&topic).map(|()| None).map_err(subscription_problem),
        Err(error) => Err(subscription_problem(error)),
    }
}
