//! Publications to topics by plain requests: `POST /topics/{name}`.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use serde_json::value::RawValue;
use sinews_server::{Answer, Publisher, Request, Response};

use crate::access::auth::{Action, Denied, Rights};
use crate::access::namespaces::ConnectionRates;
use crate::config::ConfigHandle;
use crate::http::{error_response, failure, media_type, single_header, topic_of};
use crate::model::json::{TOO_DEEP, exceeds_depth};
use crate::model::opening::SharedOpening;
use crate::model::problem::Problem;
use crate::model::publication::Publication;
use crate::model::{self, HookKind, MessageContent};
use crate::session::client_message;
use crate::session::publishing::publish_once;
use crate::session::request_hooks::{RequestHooks, RequestRejection};
use crate::streams::service::StreamService;
use crate::topics::recent::{KeyedPublication, Published, StoredPublication, check_key, client_key};
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
    let key = match idempotency_key_of(request) {
        Ok(key) => key,
        Err(problem) => return Ok(failure(problem.code, &problem.text).into()),
    };
    let publication = PlainPublication { topic, content, key };
    let Some(hooks) = hooks else {
        let PlainPublication { topic, content, .. } = &publication;
        if let Err(problem) = rights.check_publication(topic, content.len(), &mut ConnectionRates::default())
        {
            return Ok(failure(problem.code, &problem.text).into());
        }
        return Ok(match api.opening_of_keys(&publication, &rights) {
            None => match api.publish(request.topics(), &publication, &rights) {
                (KeyedPublication::Done(published), repeated) => {
                    answer(&publication.topic, published, repeated).into()
                }
                (pending, repeated) => {
                    Answer::later(async move { answer_later(&publication.topic, pending, repeated).await })
                }
            },
            Some(opening) => {
                let (api, mut publisher) = (api.clone(), request.publisher());
                Answer::later(async move {
                    if let Err(problem) = opening.await {
                        return error_response(&problem);
                    }
                    let (pending, repeated) = api.publish(&mut publisher, &publication, &rights);
                    answer_later(&publication.topic, pending, repeated).await
                })
            }
        });
    };
    let (api, publisher) = (api.clone(), request.publisher());
    Ok(Answer::later(publish_with_hooks(api, publisher, publication, rights, hooks)))
}

/// Publishes with the rights, and the content, that the application accepts.
async fn publish_with_hooks(
    api: TopicPublishing,
    mut publisher: Publisher,
    publication: PlainPublication,
    rights: Rights,
    hooks: RequestHooks,
) -> Response {
    let PlainPublication { topic, content, key } = publication;
    let decided = async {
        let rights = hooks.connect(rights, "/topics/{name}").await?.rights;
        rights.may(Action::Publish, &topic)?;
        rights.check_publication(&topic, content.len(), &mut ConnectionRates::default())?;
        let content = hooks.publish(&rights, &topic, content, key.as_deref(), api.max_message).await?;
        let publication = PlainPublication { topic: topic.clone(), content, key };
        if let Some(opening) = api.opening_of_keys(&publication, &rights) {
            opening.await?;
        }
        Ok::<_, RequestRejection>((rights, publication))
    };
    let (rights, publication) = match decided.await {
        Ok(decided) => decided,
        Err(rejection) => return rejection.response(),
    };
    let (pending, repeated) = api.publish(&mut publisher, &publication, &rights);
    answer_later(&publication.topic, pending, repeated).await
}

/// A client's publication by a plain request.
struct PlainPublication {
    topic: String,
    content: MessageContent,
    /// The client's idempotency key.
    key: Option<String>,
}

impl TopicPublishing {
    /// The store, if a topic is durable.
    fn durable_store(&self, topic: &str) -> Option<&Arc<StreamService>> {
        self.store.as_ref().filter(|store| store.topics().is_durable(topic))
    }

    /// The opening that a publication with an idempotency key waits for; usually none.
    fn opening_of_keys(&self, publication: &PlainPublication, rights: &Rights) -> Option<SharedOpening> {
        publication.key.as_ref()?;
        let store = self.durable_store(&publication.topic)?;
        store.opening_of_recent(&publication.topic, self.hub.recent(), rights)
    }

    /// Publishes and reports a publication, unless an earlier one has its idempotency key.
    fn publish(
        &self,
        out: &mut impl TopicPublisher,
        PlainPublication { topic, content, key }: &PlainPublication,
        rights: &Rights,
    ) -> (KeyedPublication, bool) {
        let published = content.into();
        let sender = rights.verified_sender(topic);
        let publication = Publication::new(topic, &published).by(sender.as_ref());
        let key = key.as_deref().map(|key| client_key(rights.subject(), key));
        let store = self.durable_store(topic);
        let (pending, repeated) = publish_once(&self.hub, store, out, &publication, key.as_deref(), rights);
        if !repeated {
            client_message::report(&self.hub, topic, content, rights, None);
        }
        (pending, repeated)
    }
}

/// Answers when the result is known.
async fn answer_later(topic: &str, publication: KeyedPublication, repeated: bool) -> Response {
    match publication.result().await {
        Ok(published) => answer(topic, published, repeated),
        Err(problem) => error_response(&problem),
    }
}

fn answer(topic: &str, published: Published, repeated: bool) -> Response {
    let mut answer = json!({ "topic": topic });
    let repeated = match published {
        Published::Delivered { subscribers, cluster } => {
            answer["subscribers"] = json!(subscribers);
            if let Some(reaches_nodes) = cluster {
                answer["cluster"] = json!(reaches_nodes);
            }
            repeated
        }
        Published::Stored(StoredPublication { epoch, sequence, is_repeated }) => {
            (answer["epoch"], answer["seq"]) = (json!(epoch), json!(sequence));
            repeated || is_repeated
        }
        Published::Unstored => {
            answer["stored"] = json!(false);
            repeated
        }
        Published::Elsewhere => true,
    };
    if repeated {
        answer["repeated"] = json!(true);
    }
    Response::json(format!("{answer}\n"))
}

/// Reads `Idempotency-Key`.
fn idempotency_key_of(request: &Request<'_>) -> Result<Option<String>, Problem> {
    let key = single_header(request, "idempotency-key")?;
    key.map_or(Ok(()), check_key)?;
    Ok(key.map(str::to_owned))
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
