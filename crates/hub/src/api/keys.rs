//! Topic keys by plain requests: `/topics/{name}/keys`.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use serde_json::json;
use sinews_server::{
    Answer, KeyCondition, KeyError, KeyWrite, KeyWritten, Position, Publisher, Request, Response, Topics,
};

use super::read_topic::read_topic;
use super::topics::content_of;
use crate::access::auth::{Denied, Rights};
use crate::access::namespaces::ConnectionRates;
use crate::config::ConfigHandle;
use crate::http::{error_response, failure, single_header, topic_of};
use crate::keys::KeyStore;
use crate::model::problem::{Problem, code, problem};
use crate::model::{self, Creator, HookKind};
use crate::session::request_hooks::{RequestHooks, RequestRejection};
use crate::streams::service::StreamService;
use crate::topics::HubTopics;
use crate::topics::keys::{key_json, key_problem, page_json, value_len};
use crate::topics::shared_keys::KeyWriteOutcome;
use crate::uncached::UNCACHED;

/// What requests for keys use.
#[derive(Clone)]
pub(crate) struct TopicKeys {
    pub(crate) live: ConfigHandle,
    pub(crate) hub: Arc<HubTopics>,
    pub(crate) store: Option<Arc<StreamService>>,
    pub(crate) max_message: usize,
}

impl TopicKeys {
    fn key_store(&self) -> KeyStore<'_> {
        KeyStore::new(&self.hub, self.store.as_ref())
    }
}

/// `PUT /topics/{name}/keys/{key}`: the body is the value.
pub(crate) fn put(api: &TopicKeys, request: &mut Request<'_>) -> Result<Answer, Denied> {
    write(api, request, |request, key| {
        let content = content_of(request).map_err(|(status, problem)| failure(status, &problem))?;
        let mut write = KeyWrite::set(key, content.into_key_value());
        if let Some(ttl) = request.query("ttl") {
            let ttl = ttl.parse().map_err(|_| failure(400, "ttl is a number of milliseconds"))?;
            write = write.with_ttl(Duration::from_millis(ttl));
        }
        Ok(write)
    })
}

/// `DELETE /topics/{name}/keys/{key}`.
pub(crate) fn delete(api: &TopicKeys, request: &mut Request<'_>) -> Result<Answer, Denied> {
    write(api, request, |_, key| Ok(KeyWrite::delete(key)))
}

/// `GET /topics/{name}/keys`: a page of the keys.
pub(crate) fn list(api: &TopicKeys, request: &mut Request<'_>) -> Result<Answer, Denied> {
    let topic = match topic_of(request, model::check_name) {
        Ok(topic) => topic,
        Err(problem) => return Ok(failure(400, &problem).into()),
    };
    let text = |name| request.decoded_query(name).map(Cow::into_owned);
    let (after, filter) = (text("after"), text("filter"));
    let limit = match request.query("limit").map(str::parse) {
        None => Topics::KEYS_MAX,
        Some(Ok(limit)) if limit > 0 => limit,
        Some(_) => return Ok(failure(400, "limit is a number of keys of at least 1").into()),
    };
    let publisher = request.publisher();
    read(api, request, topic, "/topics/{name}/keys", move |topic| {
        match publisher.keys(topic, after.as_deref(), filter.as_deref(), limit) {
            Ok(page) => no_store(Response::json("").with_source(page_json(topic, page))),
            Err(error) => key_failure(error),
        }
    })
}

/// `GET /topics/{name}/keys/{key}`: one key.
pub(crate) fn get(api: &TopicKeys, request: &mut Request<'_>) -> Result<Answer, Denied> {
    let (topic, key) = match names_of(request) {
        Ok(names) => names,
        Err(answer) => return Ok(answer.into()),
    };
    let publisher = request.publisher();
    read(api, request, topic, KEY_ROUTE, move |topic| {
        let Some((change, position)) = publisher.key(topic, &key) else {
            return failure(404, "the key does not exist");
        };
        let version = Position { sequence: change.version(), ..position };
        let answer = Response::json(key_json(topic, &change, position));
        no_store(answer.with_header("ETag", entity_tag(version)))
    })
}

/// The route of one key, for the application.
const KEY_ROUTE: &str = "/topics/{name}/keys/{key}";

/// Reads a topic's keys once the rights and the hooks permit it.
fn read(
    api: &TopicKeys,
    request: &Request<'_>,
    topic: String,
    route: &'static str,
    read: impl FnOnce(&str) -> Response + 'static,
) -> Result<Answer, Denied> {
    let keys = api.clone();
    let check = move |rights: &Rights, topic: &str| {
        rights.check_keyed(topic)?;
        keys.key_store().check_ready(topic)
    };
    let hub = Arc::clone(&api.hub);
    let open = move |topic: &str| hub.opening_of_keys(topic);
    read_topic(&api.live, request, topic, route, check, open, read)
}

/// Writes a key; the headers have the conditions.
fn write(
    api: &TopicKeys,
    request: &Request<'_>,
    make: impl FnOnce(&Request<'_>, &str) -> Result<KeyWrite, Response>,
) -> Result<Answer, Denied> {
    let config = api.live.config();
    // A page from another origin can make a browser write here, too.
    if let Err(rejection) = config.check_origin(request) {
        return Ok(failure(403, rejection.text()).into());
    }
    let (topic, key) = match names_of(request) {
        Ok(names) => names,
        Err(answer) => return Ok(answer.into()),
    };
    let rights = config.rights(request)?;
    let has_hook = rights.topic_hook(HookKind::Publish, &topic).is_some();
    let hooks = RequestHooks::for_request(&api.live, request).filter(|hooks| has_hook || hooks.has_connect());
    if hooks.is_none() {
        rights.may_write_key(&topic, &key)?;
    }
    let write = make(request, &key)
        .and_then(|write| with_conditions(request, write).map_err(|problem| error_response(&problem)));
    let write = match write {
        Ok(write) => rights.limit_key(&topic, write),
        Err(answer) => return Ok(answer.into()),
    };
    let check = |rights: &Rights, topic: &str, write: &KeyWrite| {
        rights.may_write_key(topic, write.key())?;
        rights.check_keyed(topic)?;
        rights.check_publication(topic, value_len(write), &mut ConnectionRates::default())?;
        Ok::<_, RequestRejection>(())
    };
    let publisher = request.publisher();
    let Some(hooks) = hooks else {
        if let Err(rejection) = check(&rights, &topic, &write) {
            return Ok(rejection.response().into());
        }
        let store = api.key_store();
        return Ok(execute_write(store, &publisher, topic, write, rights.creator(), error_response));
    };
    let keys = api.clone();
    Ok(Answer::later(async move {
        let decided = async {
            let rights = hooks.connect(rights, KEY_ROUTE).await?.rights;
            check(&rights, &topic, &write)?;
            let write = hooks.write_key(&rights, &topic, write, keys.max_message).await?;
            Ok::<_, RequestRejection>((rights.creator(), write))
        };
        let (creator, write) = match decided.await {
            Ok(decided) => decided,
            Err(rejection) => return rejection.response(),
        };
        let (key, is_isolated) = (write.key().to_owned(), keys.key_store().is_isolated());
        let outcome = keys.key_store().write(&topic, write, creator, &publisher);
        let written = match outcome {
            KeyWriteOutcome::Done(written) => written,
            KeyWriteOutcome::Later(written) => written.await,
        };
        written.map_or_else(
            |problem| error_response(&problem),
            |written| success(&topic, &key, &written, is_isolated),
        )
    }))
}

/// Writes a key under the conditions of the headers.
pub(super) fn execute(
    request: &Request<'_>,
    topic: &str,
    write: KeyWrite,
    store: KeyStore<'_>,
    creator: Creator,
    failure: fn(&Problem) -> Response,
) -> Result<Answer, Problem> {
    let write = with_conditions(request, write)?;
    Ok(execute_write(store, &request.publisher(), topic.to_owned(), write, creator, failure))
}

/// Writes a key: at once, unless another node or the log has to store it.
fn execute_write(
    store: KeyStore<'_>,
    publisher: &Publisher,
    topic: String,
    write: KeyWrite,
    creator: Creator,
    failure: fn(&Problem) -> Response,
) -> Answer {
    let (key, is_isolated) = (write.key().to_owned(), store.is_isolated());
    let outcome = store.write(&topic, write, creator, publisher);
    let respond = move |written: Result<KeyWritten, Problem>| match written {
        Ok(written) => success(&topic, &key, &written, is_isolated),
        Err(problem) => failure(&problem),
    };
    match outcome {
        KeyWriteOutcome::Done(written) => respond(written).into(),
        KeyWriteOutcome::Later(written) => Answer::later(written.map(respond)),
    }
}

fn success(topic: &str, key: &str, written: &KeyWritten, is_isolated: bool) -> Response {
    let Position { epoch, sequence } = written.position;
    let mut fields = json!({ "topic": topic, "key": key, "epoch": epoch, "seq": sequence });
    if !written.changed {
        fields["changed"] = json!(false);
    }
    if written.repeated {
        fields["repeated"] = json!(true);
    }
    if is_isolated {
        fields["cluster"] = json!(false);
    }
    Response::json(format!("{fields}\n")).with_header("ETag", entity_tag(written.position))
}

/// Reads `If-Match`, `If-None-Match` and `Idempotency-Key`.
fn with_conditions(request: &Request<'_>, mut write: KeyWrite) -> Result<KeyWrite, Problem> {
    let failure = |text: &str| problem(code::MALFORMED, text);
    let condition = match (single_header(request, "if-none-match")?, single_header(request, "if-match")?) {
        (None, None) => None,
        (Some("*"), None) => Some(KeyCondition::IfNew),
        (None, Some("*")) => Some(KeyCondition::IfExists),
        (None, Some(tag)) => Some(KeyCondition::At(
            position_of(tag)
                .ok_or_else(|| failure("If-Match is * or the ETag of a key, such as \"8100236-41\""))?,
        )),
        (Some(_), None) => return Err(failure("If-None-Match is * only")),
        (Some(_), Some(_)) => return Err(failure("If-Match or If-None-Match, not both")),
    };
    if let Some(condition) = condition {
        write = write.with_condition(condition);
    }
    match single_header(request, "idempotency-key")? {
        Some(name) => Ok(write.with_idempotency_key(name)),
        None => Ok(write),
    }
}

fn names_of(request: &Request<'_>) -> Result<(String, String), Response> {
    let topic = topic_of(request, model::check_name).map_err(|problem| failure(400, &problem))?;
    let key = request.param("key").ok_or_else(|| failure(400, "the key is not UTF-8"))?;
    Ok((topic, key.into_owned()))
}

/// Returns the tag of a key's version.
pub(super) fn entity_tag(Position { epoch, sequence }: Position) -> String {
    format!("\"{epoch}-{sequence}\"")
}

fn position_of(tag: &str) -> Option<Position> {
    let (epoch, sequence) = tag.strip_prefix('"')?.strip_suffix('"')?.split_once('-')?;
    Some(Position { epoch: epoch.parse().ok()?, sequence: sequence.parse().ok()? })
}

fn key_failure(error: KeyError) -> Response {
    let problem = key_problem(error);
    failure(problem.code, &problem.text)
}

fn no_store(answer: Response) -> Response {
    answer.with_header("Cache-Control", UNCACHED)
}
