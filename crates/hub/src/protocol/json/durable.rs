//! Subscriptions to durable topics.

use std::sync::Arc;
use std::task::Poll;

use serde_json::{Value, json};
use sinews_server::{Context, DroppedMessages, ReplayFrom};

use super::members::PresenceDetail;
use super::reply::send_with_members;
use super::{JsonClient, OpReply, send_json};
use crate::model;
use crate::model::encoding::MESSAGES;
use crate::model::problem::Problem;
use crate::streams::follow::DurableSubscription;
use crate::streams::service::StreamService;

impl JsonClient {
    /// Subscribes to a durable topic by its name, or to a pattern of durable topics that a broker stores.
    pub(super) fn subscribe_to_stream(
        &mut self,
        store: &Arc<StreamService>,
        topic: &str,
        presence: PresenceDetail,
        start: Option<ReplayFrom>,
        id: &Option<Value>,
        cx: &mut Context<'_>,
    ) -> Result<OpReply, Problem> {
        let mut ack = json!({ "topic": topic });
        let known = self.subscriptions.iter().position(|known| known.topic == topic);
        // Count the subscription first: it receives all later publications.
        let index = known.unwrap_or_else(|| self.add_subscription(topic, None, cx));
        if known.is_none() || start.is_some() {
            let follow = match model::is_pattern(topic) {
                true => DurableSubscription::by_pattern(store, topic, start, id),
                false => Ok(DurableSubscription::new(store, topic, start, id)),
            };
            match follow.and_then(|mut follow| Ok((follow.open(store, topic, cx)?, follow))) {
                Ok((opened, follow)) => {
                    self.subscriptions[index].follow = Some(Box::new(follow));
                    if let Poll::Ready(fields) = opened {
                        ack = fields;
                    }
                }
                Err(problem) => {
                    if known.is_none() {
                        self.remove_subscription(index, cx);
                    }
                    return Err(problem);
                }
            }
        }
        let members = self.add_presence(index, presence, &mut ack, cx)?;
        let is_pending =
            matches!(self.subscriptions[index].follow.as_deref(), Some(DurableSubscription::Opening { .. }));
        Ok(if is_pending { OpReply::Deferred } else { OpReply::acknowledge(ack, members) })
    }

    /// Starts subscriptions that were waiting, and sends records to subscriptions that are catching up.
    pub(super) fn follow(&mut self, cx: &mut Context<'_>) {
        let Some(store) = self.streams.store().cloned() else { return };
        let mut index = 0;
        while let Some(known) = self.subscriptions.get_mut(index) {
            let mut id = None;
            let result = match known.follow.as_deref_mut() {
                Some(DurableSubscription::Opening { id: request_id, .. }) => {
                    id = request_id.clone();
                    self.open_durable(index, &store, cx).map(|()| true)
                }
                Some(follow) => follow.send_records(&known.topic, cx),
                None => Ok(true),
            };
            match result {
                Ok(true) => index += 1,
                Ok(false) => {
                    // Rotate: the next subscription is first the next time, so that a busy topic starves none.
                    self.subscriptions.rotate_left(index + 1);
                    return;
                }
                Err(problem) => {
                    let topic = self.remove_subscription(index, cx);
                    let mut message = problem.into_json();
                    message["topic"] = json!(topic);
                    if let Some(id) = id {
                        message["id"] = id;
                    }
                    send_json(cx, &message);
                }
            }
        }
    }

    /// Whether the dropped messages will be read from a stream instead.
    pub(super) fn return_to_log(&mut self, missed: &DroppedMessages, cx: &mut Context<'_>) -> bool {
        let topic = missed.topic().and_then(|topic| MESSAGES.name(topic));
        let (Some(topic), Some(first)) = (topic, missed.first_sequence()) else { return false };
        let Some(store) = self.streams.store_of(topic).cloned() else { return false };
        let known = self.subscriptions.iter_mut().find(|known| known.topic == topic);
        let Some(follow) = known.and_then(|known| known.follow.as_mut()) else { return false };
        follow.return_to_log(&store, topic, first, cx).is_ok()
    }

    /// Acknowledges a subscription that had to wait for the streams.
    fn open_durable(
        &mut self,
        index: usize,
        store: &StreamService,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        let known = &mut self.subscriptions[index];
        let Some(follow) = &mut known.follow else { return Ok(()) };
        let id = if let DurableSubscription::Opening { id, .. } = &**follow { id.clone() } else { None };
        let Poll::Ready(mut ack) = follow.open(store, &known.topic, cx)? else { return Ok(()) };
        let members = self.add_presence(index, PresenceDetail::None, &mut ack, cx)?;
        if id.is_some() || self.acknowledges_all {
            ack["op"] = json!("ack");
            if let Some(id) = id {
                ack["id"] = id;
            }
            send_with_members(cx, &ack, members.as_deref());
        }
        Ok(())
    }
}
