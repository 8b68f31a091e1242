//! Keys of topics by plain requests: `/topics/{name}/keys`.

use std::time::Duration;

use serde_json::json;
use sinews_server::{
    Answer, KeyCondition, KeyError, KeyWrite, KeyWritten, Position, Request, Response, Topics,
};

use super::topics::content_of;
use crate::auth::{Action, Creator, Denied};
use crate::http::{failure, topic_of};
use crate::keys::KeyStore;
use crate::namespaces::ConnectionRates;
use crate::policy::AccessPolicy;
use crate::problem::{Problem, code, problem};
use crate::topics;
use crate::topics::keys::{key_json, key_problem, page_json, value_len};
use crate::topics::shared_keys::KeyWriteOutcome;

/// `PUT /topics/{name}/keys/{key}`: the body is the value.
pub(crate) fn put(
    policy: &AccessPolicy,
    store: KeyStore<'_>,
    request: &mut Request<'_>,
) -> Result<Answer, Denied> {
    write(policy, store, request, |request, key| {
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
pub(crate) fn delete(
    policy: &AccessPolicy,
    store: KeyStore<'_>,
    request: &mut Request<'_>,
) -> Result<Answer, Denied> {
    write(policy, store, request, |_, key| Ok(KeyWrite::delete(key)))
}

/// `GET /topics/{name}/keys`: a page of the keys.
pub(crate) fn list(
    policy: &AccessPolicy,
    store: KeyStore<'_>,
    request: &mut Request<'_>,
) -> Result<Answer, Denied> {
    let topic = match topic_of(request, topics::check_name) {
        Ok(topic) => topic,
        Err(problem) => return Ok(failure(400, &problem).into()),
    };
    let rights = policy.rights(request)?;
    rights.may(Action::Subscribe, &topic)?;
    rights.check_without_hooks(Action::Subscribe, &topic)?;
    if let Err(problem) = rights.check_keyed(&topic) {
        return Ok(plain_failure(&problem).into());
    }
    if let Err(problem) = store.check_ready(&topic) {
        return Ok(plain_failure(&problem).into());
    }
    let (after, filter) = (request.decoded_query("after"), request.decoded_query("filter"));
    let limit = match request.query("limit").map(str::parse) {
        None => Topics::KEYS_MAX,
        Some(Ok(limit)) if limit > 0 => limit,
        Some(_) => return Ok(failure(400, "limit is a number of keys of at least 1").into()),
    };
    let page = request.topics().keys(&topic, after.as_deref(), filter.as_deref(), limit);
    Ok(match page {
        Ok(page) => no_store(Response::json(page_json(&topic, &page))),
        Err(error) => key_failure(error),
    }
    .into())
}

/// `GET /topics/{name}/keys/{key}`: one key.
pub(crate) fn get(
    policy: &AccessPolicy,
    store: KeyStore<'_>,
    request: &mut Request<'_>,
) -> Result<Answer, Denied> {
    let (topic, key) = match names_of(request) {
        Ok(names) => names,
        Err(answer) => return Ok(answer.into()),
    };
    let rights = policy.rights(request)?;
    rights.may(Action::Subscribe, &topic)?;
    rights.check_without_hooks(Action::Subscribe, &topic)?;
    if let Err(problem) = rights.check_keyed(&topic) {
        return Ok(plain_failure(&problem).into());
    }
    if let Err(problem) = store.check_ready(&topic) {
        return Ok(plain_failure(&problem).into());
    }
    let Some((change, position)) = request.topics().key(&topic, &key) else {
        return Ok(failure(404, "the key does not exist").into());
    };
    let version = Position { sequence: change.version(), ..position };
    let answer = Response::json(key_json(&topic, &change, position));
    Ok(no_store(answer.with_header("ETag", entity_tag(version))).into())
}

/// Writes a key; the headers have the conditions.
fn write(
    policy: &AccessPolicy,
    store: KeyStore<'_>,
    request: &mut Request<'_>,
    make: impl FnOnce(&Request<'_>, &str) -> Result<KeyWrite, Response>,
) -> Result<Answer, Denied> {
    // A page of another origin can make a browser write here, too.
    if let Err(rejection) = policy.check_origin(request) {
        return Ok(failure(403, rejection.text()).into());
    }
    let (topic, key) = match names_of(request) {
        Ok(names) => names,
        Err(answer) => return Ok(answer.into()),
    };
    let rights = policy.rights(request)?;
    rights.may_write_key(&topic, &key)?;
    rights.check_without_hooks(Action::Publish, &topic)?;
    let write = match make(request, &key) {
        Ok(write) => write,
        Err(answer) => return Ok(answer.into()),
    };
    let checked = rights
        .check_keyed(&topic)
        .and_then(|_| rights.check_publication(&topic, value_len(&write), &mut ConnectionRates::default()));
    let written =
        checked.and_then(|()| execute(request, (&topic, write), (store, rights.creator()), plain_failure));
    Ok(written.unwrap_or_else(|problem| plain_failure(&problem).into()))
}

fn plain_failure(problem: &Problem) -> Response {
    failure(problem.code, &problem.text)
}

/// Writes a key under the conditions of the headers.
pub(super) fn execute(
    request: &mut Request<'_>,
    (topic, write): (&str, KeyWrite),
    (store, creator): (KeyStore<'_>, Creator),
    failure: fn(&Problem) -> Response,
) -> Result<Answer, Problem> {
    let write = with_conditions(request, write)?;
    let (topic, key) = (topic.to_owned(), write.key().to_owned());
    let is_isolated = store.is_isolated();
    match store.write(&topic, write, creator, request) {
        KeyWriteOutcome::Done(written) => Ok(success(&topic, &key, &written?, is_isolated).into()),
        KeyWriteOutcome::Later(written) => Ok(Answer::later(async move {
            let success = |written| success(&topic, &key, &written, is_isolated);
            written.await.map_or_else(|problem| failure(&problem), success)
        })),
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
    let header = |name: &str| {
        let mut values = request.head().header(name);
        match (values.next().map(std::str::from_utf8), values.next()) {
            (None, _) => Ok(None),
            (Some(Ok(value)), None) => Ok(Some(value.trim())),
            _ => Err(failure(&format!("{name} must be given once, as text"))),
        }
    };
    let condition = match (header("if-none-match")?, header("if-match")?) {
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
    match header("idempotency-key")? {
        Some(name) => Ok(write.with_idempotency_key(name)),
        None => Ok(write),
    }
}

fn names_of(request: &Request<'_>) -> Result<(String, String), Response> {
    let topic = topic_of(request, topics::check_name).map_err(|problem| failure(400, &problem))?;
    let key = request.param("key").ok_or_else(|| failure(400, "the key is not UTF-8"))?;
    Ok((topic, key.into_owned()))
}

/// The tag of a key's version.
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
    answer.with_header("Cache-Control", "no-store")
}
