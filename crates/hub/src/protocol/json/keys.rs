//! Topic keys: the ops `set` and `delete`, and subscriptions to keys.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

use futures_util::FutureExt as _;
use serde_json::{Value, json};
use sinews_server::{Context, KeySubscription, KeyWrite, KeyWritten, Position};

use crate::access::auth::{Action, Rights};
use crate::activity::ActivityKind;
use crate::keys::KeyStore;
use crate::model;
use crate::model::brief::brief;
use crate::model::opening::SharedOpening;
use crate::model::problem::{Problem, code, problem};
use crate::session::client_session::ClientSession;
use crate::streams::service::StreamService;
use crate::topics::keys::{key_problem, value_len};
use crate::topics::shared_keys::KeyWriteOutcome;
use crate::topics::stored::AcknowledgedPublication;

/// Operation on a topic's keys.
#[derive(Debug)]
pub(super) struct KeyRequest<'a> {
    pub(super) topic: Cow<'a, str>,
    pub(super) op: KeyOp,
}

#[derive(Debug)]
pub(super) enum KeyOp {
    Write(Box<KeyWrite>),
    Subscribe(KeySubscription),
    Unsubscribe,
}

/// One connection's keys; boxed, since most connections have none.
#[derive(Default)]
pub(super) struct ConnectionKeys(Option<Box<KeysInUse>>);

#[derive(Default)]
struct KeysInUse {
    /// Topics to whose keys the connection is subscribed.
    topics: Vec<String>,
    /// Requests that a store has not answered yet, in their order.
    pending: VecDeque<(Option<Value>, PendingAck)>,
}

/// Completes with an acknowledgement's fields.
pub(super) type PendingAck = Pin<Box<dyn Future<Output = Result<Value, Problem>> + Send>>;

/// A connection's requests that a store has not answered yet. With this many publications, reads pause until half of
/// them are answered; further writes of keys are rejected.
const PENDING_MAX: usize = 1_024;

/// Adds for how many milliseconds the topic store has been away: later messages are perhaps missing.
pub(super) fn mark_stale(answer: &mut Value, stale: Option<u64>) {
    if let Some(milliseconds) = stale {
        answer["stale"] = json!(milliseconds);
    }
}

/// A position as the fields of an acknowledgement.
pub(super) fn position_fields(position: Position) -> Value {
    let Position { epoch, sequence } = position;
    json!({ "epoch": epoch, "seq": sequence })
}

/// The fields in the acknowledgement of a publication to a topic in the topic store.
pub(super) fn publication_fields(publication: AcknowledgedPublication) -> Value {
    match publication {
        AcknowledgedPublication::Stored(appended) => position_fields(appended.position),
        AcknowledgedPublication::Delivered => json!({ "stored": false }),
    }
}

/// The fields in a write's acknowledgement.
fn acknowledge(written: &KeyWritten, is_isolated: bool) -> Value {
    let mut ack = position_fields(written.position);
    if !written.changed {
        ack["changed"] = json!(false);
    }
    if written.repeated {
        ack["repeated"] = json!(true);
    }
    if is_isolated {
        ack["cluster"] = json!(false);
    }
    ack
}

impl ConnectionKeys {
    /// Executes an operation; returns its acknowledgement's fields, or none if that follows.
    pub(super) fn execute(
        &mut self,
        request: KeyRequest<'_>,
        id: &Option<Value>,
        streams: Option<&Arc<StreamService>>,
        session: &mut ClientSession,
        cx: &mut Context<'_>,
    ) -> Result<Option<Value>, Problem> {
        let topic = &*request.topic;
        model::check_name(topic).map_err(|text| problem(code::TOPIC, text))?;
        let interval = session.rights().check_keyed(topic)?;
        if !matches!(request.op, KeyOp::Unsubscribe) {
            KeyStore::new(session.hub(), streams).check_ready(topic)?;
        }
        match request.op {
            KeyOp::Write(write) => {
                self.check_write(topic, &write, streams, session)?;
                let write = session.rights().limit_key(topic, *write);
                let observed = session.observed_write(&write);
                let ack = self.write(topic, write, id, KeyStore::new(session.hub(), streams), cx)?;
                session.observe_write(topic, observed.as_ref());
                Ok(ack)
            }
            KeyOp::Subscribe(mut options) => {
                session.may(Action::Subscribe, topic)?;
                if let Some(interval) = interval {
                    options = options.with_min_interval(interval);
                }
                let subscribed = cx.subscribe_keys(topic, &options).map_err(key_problem)?;
                session.observe_topic(ActivityKind::SubscribeKeys, topic);
                let known = &mut self.0.get_or_insert_default().topics;
                if !known.iter().any(|known| known == topic) {
                    known.push(topic.to_owned());
                }
                let Position { epoch, sequence } = subscribed.position;
                let recovered = subscribed.recovered;
                let mut ack =
                    json!({ "topic": topic, "epoch": epoch, "seq": sequence, "recovered": recovered });
                mark_stale(&mut ack, session.hub().stale_for(topic));
                Ok(Some(ack))
            }
            KeyOp::Unsubscribe => {
                if !cx.unsubscribe_keys(topic) {
                    let message = format!("not subscribed to the keys of {}", brief(topic));
                    return Err(problem(code::NOT_SUBSCRIBED, message));
                }
                self.0.get_or_insert_default().topics.retain(|known| known != topic);
                session.observe_topic(ActivityKind::UnsubscribeKeys, topic);
                Ok(Some(json!({ "topic": topic })))
            }
        }
    }

    /// Checks a write before it is executed.
    ///
    /// # Errors
    /// The right, limit or state that forbids it.
    pub(super) fn check_write(
        &self,
        topic: &str,
        write: &KeyWrite,
        streams: Option<&Arc<StreamService>>,
        session: &mut ClientSession,
    ) -> Result<(), Problem> {
        model::check_name(topic).map_err(|text| problem(code::TOPIC, text))?;
        session.rights().check_keyed(topic)?;
        KeyStore::new(session.hub(), streams).check_ready(topic)?;
        session.rights().may_write_key(topic, write.key())?;
        self.check_pending()?;
        session.check_publication(topic, value_len(write))
    }

    /// Checks whether a further request can wait for a store.
    fn check_pending(&self) -> Result<(), Problem> {
        if self.pending() >= PENDING_MAX {
            let text = format!("{PENDING_MAX} requests of this connection are not stored yet");
            return Err(problem(code::TOO_MANY, text));
        }
        Ok(())
    }

    /// Acknowledges a publication when a store has answered it, behind earlier requests.
    pub(super) fn acknowledge_later(&mut self, ack: PendingAck, id: &Option<Value>, cx: &mut Context<'_>) {
        self.0.get_or_insert_default().pending.push_back((id.clone(), ack));
        self.pause_if_full(cx);
        cx.waker().wake();
    }

    fn pending(&self) -> usize {
        self.0.as_ref().map_or(0, |in_use| in_use.pending.len())
    }

    /// Pauses reads while too many requests are not answered.
    pub(super) fn pause_if_full(&self, cx: &mut Context<'_>) {
        if self.pending() >= PENDING_MAX {
            cx.pause_reads();
        }
    }

    /// Resumes reads when half of the requests are answered.
    pub(super) fn resume_if_free(&self, cx: &mut Context<'_>) {
        if self.0.is_some() && self.pending() <= PENDING_MAX / 2 {
            cx.resume_reads();
        }
    }

    /// Executes a write that was checked; returns its acknowledgement's fields, or none if that follows.
    pub(super) fn write(
        &mut self,
        topic: &str,
        write: KeyWrite,
        id: &Option<Value>,
        store: KeyStore<'_>,
        cx: &mut Context<'_>,
    ) -> Result<Option<Value>, Problem> {
        let pending = &mut self.0.get_or_insert_default().pending;
        let is_isolated = store.is_isolated();
        let ack: PendingAck = match store.write_of_connection(topic, write, cx) {
            KeyWriteOutcome::Done(written) if pending.is_empty() => {
                return Ok(Some(acknowledge(&written?, is_isolated)));
            }
            // Behind earlier acknowledgements.
            KeyWriteOutcome::Done(written) => {
                Box::pin(ready(written.map(|written| acknowledge(&written, is_isolated))))
            }
            KeyWriteOutcome::Later(written) => Box::pin(
                written.map(move |written| written.map(|written| acknowledge(&written, is_isolated))),
            ),
        };
        pending.push_back((id.clone(), ack));
        cx.waker().wake();
        Ok(None)
    }

    /// The step that the operation has to wait for.
    pub(super) fn opening(
        request: &KeyRequest<'_>,
        store: KeyStore<'_>,
        rights: &Rights,
    ) -> Option<SharedOpening> {
        let creator = match &request.op {
            KeyOp::Write(write) => {
                rights.may_write_key(&request.topic, write.key()).ok()?;
                Some(rights.creator())
            }
            KeyOp::Subscribe(_) => None,
            KeyOp::Unsubscribe => return None,
        };
        store.opening(&request.topic, creator.as_ref())
    }

    /// Returns the next request that is stored, answered or has failed: its id, and its acknowledgement's fields.
    pub(super) fn take_stored(
        &mut self,
        cx: &Context<'_>,
    ) -> Option<(Option<Value>, Result<Value, Problem>)> {
        let pending = &mut self.0.as_mut()?.pending;
        let waker = cx.waker();
        let (_, first) = pending.front_mut()?;
        let Poll::Ready(ack) = first.as_mut().poll(&mut task::Context::from_waker(&waker)) else {
            return None;
        };
        let (id, _) = pending.pop_front()?;
        Some((id, ack))
    }

    /// The topics to whose keys the connection is subscribed.
    pub(super) fn topics(&self) -> &[String] {
        self.0.as_ref().map_or(&[], |in_use| &in_use.topics)
    }

    /// The subscription count.
    pub(super) fn subscriptions(&self) -> usize {
        self.0.as_ref().map_or(0, |in_use| in_use.topics.len())
    }

    /// Ends the subscriptions that the rights do not cover; returns an error for each.
    pub(super) fn end_denied(&mut self, rights: &Rights, cx: &mut Context<'_>) -> Vec<Value> {
        let mut ended = Vec::new();
        let Some(in_use) = &mut self.0 else { return ended };
        in_use.topics.retain(|topic| {
            let Err(denied) = rights.may(Action::Subscribe, topic) else { return true };
            cx.unsubscribe_keys(topic);
            let mut error = Problem::from(denied).into_json();
            (error["topic"], error["keys"]) = (json!(topic), json!(true));
            ended.push(error);
            false
        });
        ended
    }
}
