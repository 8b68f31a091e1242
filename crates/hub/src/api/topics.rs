//! Publications to topics by plain requests: `POST /topics/{name}`.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::Either;
use serde_json::json;
use serde_json::value::RawValue;
use sinews_server::{Answer, Request, Response};

use super::streams::{StoredPublication, answer_stored, append_to_topic};
use crate::access::auth::{Action, Denied, Rights};
use crate::access::namespaces::ConnectionRates;
use crate::config::ConfigHandle;
use crate::http::{failure, media_type, topic_of};
use crate::model::json::{TOO_DEEP, exceeds_depth};
use crate::model::publication::Publication;
use crate::model::{self, HookKind, MessageContent};
use crate::session::client_message;
use crate::session::request_hooks::{RequestHooks, RequestRejection};
use crate::streams::service::StreamService;
use crate::topics::{HubTopics, TopicPublisher};

/// Shared state for publications by plain requests.
#[derive(Clone)]
pub(crate) struct TopicPublishing {
    pub(crate) live: ConfigHandle,
    pub(crate) hub: Arc<HubTopics>,
    pub(crate) store: Option<Arc<StreamService>>,
    pub(crate) max_message: usize,
}

/// `POST /topics/{name}`: the body goes to all subscribers.
pub(crate) fn publish(api: &TopicPublishing, request: &mut Request<'_>) -> Result<Answer, Denied> {
    let config = api.live.config();
    // A page from another origin can make a browser post here, too.
    if let Err(rejection) = config.check_origin(request) {
        return Ok(failure(403, rejection.text()).into());
    }
    let topic = match topic_of(request, model::check_name) {
        Ok(topic) => topic,
        Err(problem) => return Ok(failure(400, &problem).into()),
    };
    let rights = config.rights(request)?;
    let has_hook = rights.topic_hook(HookKind::Publish, &topic).is_some();
    let hooks = RequestHooks::for_request(&api.live, request).filter(|hooks| has_hook || hooks.has_connect());
    if hooks.is_none() {
        rights.may(Action::Publish, &topic)?;
    }
    let content = match content_of(request) {
        Ok(content) => content,
        Err((status, problem)) => return Ok(failure(status, &problem).into()),
    };
    let Some(hooks) = hooks else {
        if let Err(problem) = rights.check_publication(&topic, content.len(), &mut ConnectionRates::default())
        {
            return Ok(failure(problem.code, &problem.text).into());
        }
        return Ok(match api.append(&topic, &content, &rights) {
            Some(append) => Answer::later(append),
            None => api.deliver(request.topics(), &topic, &content).into(),
        });
    };
    let (api, mut publisher) = (api.clone(), request.publisher());
    Ok(Answer::later(async move {
        let decided = async {
            let rights = hooks.connect(rights, "/topics/{name}").await?.rights;
            rights.may(Action::Publish, &topic)?;
            rights.check_publication(&topic, content.len(), &mut ConnectionRates::default())?;
            let content = hooks.publish(&rights, &topic, content, api.max_message).await?;
            Ok::<_, RequestRejection>((rights, content))
        };
        let (rights, content) = match decided.await {
            Ok(decided) => decided,
            Err(rejection) => return rejection.response(),
        };
        match api.append(&topic, &content, &rights) {
            Some(append) => append.await,
            None => api.deliver(&mut publisher, &topic, &content),
        }
    }))
}

impl TopicPublishing {
    /// Reports a publication, and appends it if its topic is durable or in a topic store.
    fn append(
        &self,
        topic: &str,
        content: &MessageContent,
        rights: &Rights,
    ) -> Option<impl Future<Output = Response> + use<>> {
        client_message::report(&self.hub, topic, content, rights, None);
        let append = match self.store.as_ref().filter(|store| store.topics().is_durable(topic)) {
            Some(store) => {
                let appended = append_to_topic(store, topic, content.clone(), None, rights.clone());
                Either::Left(async move { appended.await.map(Some) })
            }
            None => {
                let stored = self.hub.stored(topic)?;
                let appended = stored.append_for_client(&Publication::new(topic, &content.into()), None);
                Either::Right(async move { Ok(StoredPublication::acknowledged(appended.await?)) })
            }
        };
        Some(answer_stored(topic.to_owned(), append))
    }

    /// Delivers a publication to subscribers.
    fn deliver(&self, out: &mut impl TopicPublisher, topic: &str, content: &MessageContent) -> Response {
        let subscribers = self.hub.publish(out, &Publication::new(topic, &content.into()));
        let mut answer = json!({ "topic": topic, "subscribers": subscribers });
        if let Some(reaches_nodes) = self.hub.reaches_nodes() {
            answer["cluster"] = json!(reaches_nodes);
        }
        Response::json(format!("{answer}\n"))
    }
}

/// Reads a body's content by its type, as for streams: JSON, bytes, or else text if it is UTF-8.
pub(super) fn content_of(request: &Request<'_>) -> Result<MessageContent, (u16, String)> {
    let body = request.body();
    let bytes = || Bytes::copy_from_slice(body);
    match &*media_type(request) {
        "application/json" => match serde_json::from_slice::<&RawValue>(body) {
            Ok(_) if exceeds_depth(body) => Err((400, TOO_DEEP.to_owned())),
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
