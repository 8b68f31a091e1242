//! Answers to requests.

use bytes::Bytes;
use serde_json::{Value, json};
use sinews_server::Context;

use super::JsonClient;
use super::incoming::ClientMessage;
use crate::activity::{Activity, ActivityKind};
use crate::model::presence::with_members;
use crate::model::problem::Problem;

/// The answer to a request.
pub(super) enum OpReply {
    /// Acknowledgement fields, for requests with an id.
    Ack(Value),
    /// The same, and an error for each subscription that the new token ends.
    Renewed(Value, Vec<Value>),
    /// The same, and the topic's members, encoded.
    MembersAck(Value, Bytes),
    /// A message of its own kind.
    Message(Value),
    /// The same, and the topic's members, encoded.
    Members(Value, Bytes),
    /// A message, encoded and with its id.
    Encoded(String),
    /// The answer follows later.
    Deferred,
}

impl OpReply {
    pub(super) fn acknowledge(fields: Value, members: Option<Bytes>) -> Self {
        match members {
            Some(members) => Self::MembersAck(fields, members),
            None => Self::Ack(fields),
        }
    }
}

/// Messages of a connection whose unknown fields are reported: a program repeats them.
const IGNORED_REPORTS_MAX: u8 = 16;

impl JsonClient {
    /// Returns the name and the topic of an operation, to observe its failure.
    pub(super) fn observed_op(
        &self,
        read: &Result<ClientMessage<'_>, (Option<Value>, Problem)>,
    ) -> Option<(&'static str, Option<String>)> {
        let is_observed = self.session.hub().activity().is_observed();
        is_observed.then(|| match read {
            Ok(ClientMessage { op, .. }) => (op.name(), op.topic().map(str::to_owned)),
            Err(_) => ("", None),
        })
    }

    /// Observes the failure of an operation.
    pub(super) fn observe_failure(
        &self,
        observed: Option<(&'static str, Option<String>)>,
        result: &Result<OpReply, Problem>,
    ) {
        if let (Some((name, topic)), Err(problem)) = (observed, result) {
            self.session.observe_rejection(name, topic.as_deref(), problem.code, &problem.text);
        }
    }

    /// Observes that the client has joined a topic.
    pub(super) fn observe_join(&self, topic: &str) {
        self.session.observe(|| Activity {
            kind: ActivityKind::Join,
            topic: Some(topic),
            member: self.joined.member(topic),
            ..Activity::default()
        });
    }

    /// Names unknown fields: a developer may have misspelt them. It is no answer, so it has no `id`.
    pub(super) fn report_ignored(&mut self, ignored: &[String], id: &Option<Value>, cx: &mut Context<'_>) {
        if ignored.is_empty() || self.ignored_reports == IGNORED_REPORTS_MAX {
            return;
        }
        self.ignored_reports += 1;
        let mut message = json!({ "op": "ignored", "fields": ignored });
        if let Some(id) = id {
            message["request"] = id.clone();
        }
        send_json(cx, &message);
    }

    /// Answers a request: an acknowledgement is sent if the request has an id, or to a client that gets all of them.
    pub(super) fn answer(&self, result: Result<OpReply, Problem>, id: Option<Value>, cx: &mut Context<'_>) {
        let mut members = None;
        let mut answer = match result {
            Ok(OpReply::Ack(_) | OpReply::MembersAck(..) | OpReply::Renewed(..))
                if id.is_none() && !self.acknowledges_all =>
            {
                return;
            }
            Ok(OpReply::Ack(mut fields) | OpReply::Renewed(mut fields, _)) => {
                fields["op"] = json!("ack");
                fields
            }
            Ok(OpReply::MembersAck(mut fields, listed)) => {
                fields["op"] = json!("ack");
                members = Some(listed);
                fields
            }
            Ok(OpReply::Members(answer, listed)) => {
                members = Some(listed);
                answer
            }
            Ok(OpReply::Message(answer)) => answer,
            // After a Close, the message is dropped.
            Ok(OpReply::Encoded(message)) => {
                let _ = cx.send_text(&message);
                return;
            }
            Ok(OpReply::Deferred) => return,
            Err(problem) => problem.into_json(),
        };
        if let Some(id) = id {
            answer["id"] = id;
        }
        send_with_members(cx, &answer, members.as_deref());
    }
}

pub(super) fn send_json(cx: &mut Context<'_>, message: &Value) {
    send_with_members(cx, message, None);
}

/// Sends an object, with encoded `members`.
pub(super) fn send_with_members(cx: &mut Context<'_>, message: &Value, members: Option<&[u8]>) {
    // After a Close, the message is dropped.
    let _ = cx.send_text(&with_members(message, members));
}
