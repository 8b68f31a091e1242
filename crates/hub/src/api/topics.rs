//! Publications to topics by plain requests: `POST /topics/{name}`.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use serde_json::value::RawValue;
use sinews_server::{Answer, Request, Response};

use super::streams::publish_to_topic;
use crate::auth::{Action, Denied};
use crate::client_message;
use crate::http::{failure, media_type, topic_of};
use crate::namespaces::ConnectionRates;
use crate::policy::AccessPolicy;
use crate::streams::service::StreamService;
use crate::topics::{self, HubTopics, MessageContent};

/// `POST /topics/{name}`: the body goes to all subscribers.
pub(crate) fn publish(
    policy: &AccessPolicy,
    hub: &HubTopics,
    store: Option<&Arc<StreamService>>,
    request: &mut Request<'_>,
) -> Result<Answer, Denied> {
    // A page of another origin can make a browser post here, too.
    if let Err(rejection) = policy.check_origin(request) {
        return Ok(failure(403, rejection.text()).into());
    }
    let topic = match topic_of(request, topics::check_name) {
        Ok(topic) => topic,
        Err(problem) => return Ok(failure(400, &problem).into()),
    };
    let rights = policy.rights(request)?;
    rights.may(Action::Publish, &topic)?;
    rights.check_without_hooks(Action::Publish, &topic)?;
    let content = match content_of(request) {
        Ok(content) => content,
        Err((status, problem)) => return Ok(failure(status, &problem).into()),
    };
    if let Err(problem) = rights.check_publication(&topic, content.len(), &mut ConnectionRates::default()) {
        return Ok(failure(problem.code, &problem.text).into());
    }
    client_message::report(hub, (&topic, &content), &rights, None);
    if let Some(store) = store.filter(|store| store.topics().is_durable(&topic)) {
        return Ok(publish_to_topic(Arc::clone(store), topic, content, rights));
    }
    let subscribers = hub.publish(request.topics(), &topic, &content, true);
    let mut answer = json!({ "topic": topic, "subscribers": subscribers });
    if hub.is_isolated() {
        answer["cluster"] = json!(false);
    }
    Ok(Response::json(format!("{answer}\n")).into())
}

/// The content of a body by its type, as for streams: JSON, bytes, or else text if it is UTF-8.
pub(super) fn content_of(request: &Request<'_>) -> Result<MessageContent, (u16, String)> {
    let body = request.body();
    let bytes = || Bytes::copy_from_slice(body);
    match &*media_type(request) {
        "application/json" => match serde_json::from_slice::<&RawValue>(body) {
            Ok(_) => Ok(MessageContent::Json(bytes())),
            Err(error) => Err((400, format!("the body is not valid JSON: {error}"))),
        },
        "application/octet-stream" => Ok(MessageContent::Binary(bytes())),
        "application/x-ndjson" | "application/jsonl" => {
            Err((415, "a topic accepts one message in a request; lines of JSON are for /streams".to_owned()))
        }
        _ if std::str::from_utf8(body).is_ok() => Ok(MessageContent::Text(bytes())),
        _ => Ok(MessageContent::Binary(bytes())),
    }
}
