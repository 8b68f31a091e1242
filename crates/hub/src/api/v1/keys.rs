//! Many writes to a topic's keys in one request.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sinews_server::{Answer, KeyWrite, KeyWritten, Position, Request};

use super::body::{content_of, read, topic_of};
use super::context::{ApiContext, Executed, failure, success};
use crate::access::auth::{ApiRight, ApiRights};
use crate::model::Creator;
use crate::model::json::present;
use crate::model::problem::{Problem, code, problem};
use crate::model::schema::requests;
use crate::streams::service::StreamService;
use crate::topics::keys::with_condition;
use crate::topics::shared_keys::KeyWriteOutcome;

/// Maximum writes in a request.
const WRITES_MAX: usize = 1_000;

requests! {
    struct WritesBody<'a> {
        /// The writes, in order
        #[serde(borrow)]
        writes: Vec<WriteBody<'a>>,
    }

    one_of[data, b64, delete]
    struct WriteBody<'a> {
        /// Name of the key
        #[serde(borrow)]
        key: Cow<'a, str>,
        /// The value as JSON; either data, b64 or delete
        // `null` is a valid value.
        #[serde(borrow, default, deserialize_with = "present")]
        data: Option<&'a RawValue>,
        /// The value as bytes in base64
        #[serde(borrow)]
        b64: Option<Cow<'a, str>>,
        /// `true`: delete the key
        delete: Option<bool>,
        /// Milliseconds until the key expires
        ttl: Option<u64>,
        /// `true`: write only if the key does not exist
        if_new: Option<bool>,
        /// `true`: write only if the key exists
        if_exists: Option<bool>,
        /// Write only if the key has this version
        version: Option<u64>,
        /// With version: the epoch of the version
        epoch: Option<u64>,
        /// 1 to 128 bytes: a second write of the key with it changes nothing
        #[serde(borrow)]
        idempotency_key: Option<Cow<'a, str>>,
    }
}

/// `POST /topics/{topic}/keys`: each write has its own result.
pub(super) fn write(context: &Arc<ApiContext>, rights: &ApiRights, request: &mut Request<'_>) -> Executed {
    let topic = topic_of(request)?;
    rights.may(ApiRight::Keys, &topic)?;
    let body: WritesBody<'_> = read(request)?;
    if body.writes.len() > WRITES_MAX {
        let text = format!("{} writes of keys exceed the limit of {WRITES_MAX}", body.writes.len());
        return Err(problem(code::TOO_LARGE, text));
    }
    let config = context.live.config();
    let writes = body.writes.into_iter().map(|write| {
        let limited = write_of(&write).map(|write| config.limit_key(&topic, write));
        (write.key.to_string(), limited)
    });
    let store = context.key_store();
    let publisher = request.publisher();
    let writes: Vec<_> = writes.collect();
    if let Some(streams) = store.durable(&topic) {
        for (_, write) in &writes {
            if let Ok(write) = write {
                store.observe(&topic, write, &Creator::Server);
            }
        }
        return Ok(write_durable(streams, request, topic, writes));
    }
    let mut later = false;
    let results: Vec<_> = writes
        .into_iter()
        .map(|(key, write)| {
            let outcome = write.map_or_else(
                |problem| KeyWriteOutcome::Done(Err(problem)),
                |write| store.write(&topic, write, Creator::Server, &publisher),
            );
            later |= matches!(outcome, KeyWriteOutcome::Later(_));
            async move {
                let written = match outcome {
                    KeyWriteOutcome::Done(written) => written,
                    KeyWriteOutcome::Later(written) => written.await,
                };
                result_json(key, written)
            }
        })
        .collect();
    let answer = async move { success(&json!({ "results": join_all(results).await })) };
    if later {
        return Ok(Answer::later(answer));
    }
    // All results are there.
    Ok(answer.now_or_never().unwrap_or_else(|| failure(&unfinished())).into())
}

fn unfinished() -> Problem {
    problem(code::STORE, "a write has not ended")
}

fn write_durable(
    store: &Arc<StreamService>,
    request: &Request<'_>,
    topic: String,
    writes: Vec<(String, Result<KeyWrite, Problem>)>,
) -> Answer {
    let (store, publisher) = (Arc::clone(store), request.publisher());
    Answer::later(async move {
        // Once for all, so that the writes keep their order.
        if let Some(opening) = store.opening_of_keys(&topic, Some(&Creator::Server))
            && let Err(problem) = opening.await
        {
            return failure(&problem);
        }
        let results = writes.into_iter().map(|(key, write)| {
            let (store, publisher, topic) = (Arc::clone(&store), publisher.clone(), topic.clone());
            async move {
                let written = match write {
                    Ok(write) => store.write_key(publisher, topic, write, Creator::Server).await,
                    Err(problem) => Err(problem),
                };
                result_json(key, written)
            }
        });
        success(&json!({ "results": join_all(results.collect::<Vec<_>>()).await }))
    })
}

fn write_of(body: &WriteBody<'_>) -> Result<KeyWrite, Problem> {
    let fault = |text: &str| problem(code::MALFORMED, text);
    let key = &*body.key;
    let mut write = match (body.delete, body.data, &body.b64) {
        (Some(true), None, None) if body.ttl.is_none() => KeyWrite::delete(key),
        (None, data, b64) => KeyWrite::set(key, content_of(data, b64.as_deref())?.into_key_value()),
        _ => return Err(fault("delete is true, without data, b64 and ttl")),
    };
    if let Some(ttl) = body.ttl {
        write = write.with_ttl(Duration::from_millis(ttl));
    }
    if let Some(idempotency_key) = body.idempotency_key.as_deref() {
        write = write.with_idempotency_key(idempotency_key);
    }
    with_condition(write, body.if_new, body.if_exists, body.version, body.epoch).map_err(fault)
}

fn result_json(key: String, written: Result<KeyWritten, Problem>) -> Value {
    let mut result = match written {
        Ok(written) => {
            let Position { epoch, sequence } = written.position;
            let mut result = json!({ "epoch": epoch, "seq": sequence });
            if !written.changed {
                result["changed"] = json!(false);
            }
            if written.repeated {
                result["repeated"] = json!(true);
            }
            result
        }
        Err(problem) => problem.fields(),
    };
    result["key"] = json!(key);
    result
}
