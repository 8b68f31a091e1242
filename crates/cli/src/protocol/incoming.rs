//! What a client says.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;
use sinews_server::{Position, Start};

use super::{Problem, code, problem};

/// A message that makes sense.
#[derive(Debug)]
pub(super) struct Incoming<'a> {
    /// What its answer is to be known by.
    pub(super) id: Option<Value>,
    pub(super) op: Op<'a>,
}

/// What is to be done.
#[derive(Debug)]
pub(super) enum Op<'a> {
    Subscribe { topic: Cow<'a, str>, presence: bool, start: Option<Start> },
    Unsubscribe { topic: Cow<'a, str> },
    Publish { topic: Cow<'a, str>, data: &'a RawValue },
    PublishBinary { topic: Cow<'a, str>, b64: Cow<'a, str> },
    Presence { topic: Cow<'a, str> },
    History { topic: Cow<'a, str>, start: Start },
    Ping,
}

/// Every field that any message may have.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Fields<'a> {
    #[serde(borrow)]
    op: Option<Cow<'a, str>>,
    id: Option<Value>,
    #[serde(borrow)]
    topic: Option<Cow<'a, str>>,
    // `null` is something that may be published.
    #[serde(borrow, deserialize_with = "given")]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    b64: Option<Cow<'a, str>>,
    presence: Option<bool>,
    last: Option<usize>,
    from: Option<From>,
}

/// A message that was heard.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct From {
    epoch: u64,
    seq: u64,
}

fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(deserializer).map(Some)
}

/// The id alone, for the answer to what is wrong otherwise.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Id {
    id: Option<Value>,
}

/// Longest text of an id, in bytes: it is sent back.
const ID_MAX: usize = 64;

/// Reads a message.
///
/// # Errors
/// What is wrong with it, and its id if that can be read.
pub(super) fn read(text: &[u8]) -> Result<Incoming<'_>, (Option<Value>, Problem)> {
    // A list would be taken for the fields in their order.
    if !text.trim_ascii_start().starts_with(b"{") {
        return Err((None, problem(code::MALFORMED, "no message of this protocol: no JSON object in text")));
    }
    let fields: Fields<'_> = serde_json::from_slice(text).map_err(|error| {
        let id = serde_json::from_slice::<Id>(text).unwrap_or_default().id.filter(is_id);
        (id, problem(code::MALFORMED, format!("no message of this protocol: {error}")))
    })?;
    let id = fields.id.clone();
    if id.as_ref().is_some_and(|id| !is_id(id)) {
        let words = format!("id must be a number or a string of at most {ID_MAX} bytes");
        return Err((None, problem(code::MALFORMED, words)));
    }
    match op(fields) {
        Ok(op) => Ok(Incoming { id, op }),
        Err(problem) => Err((id, problem)),
    }
}

fn is_id(id: &Value) -> bool {
    match id {
        Value::Number(_) => true,
        Value::String(text) => text.len() <= ID_MAX,
        _ => false,
    }
}

fn op(fields: Fields<'_>) -> Result<Op<'_>, Problem> {
    let name = fields.op.as_deref().ok_or_else(|| problem(code::MALFORMED, "op is missing"))?.to_owned();
    let start = match (fields.last, fields.from) {
        (Some(_), Some(_)) => return Err(problem(code::MALFORMED, "last or from, not both")),
        (Some(count), None) => Some(Start::Last(count)),
        (None, from) => from.map(|From { epoch, seq }| Start::After(Position { epoch, sequence: seq })),
    };
    let topic = || fields.topic.ok_or_else(|| problem(code::MALFORMED, format!("{name}: topic is missing")));
    Ok(match &*name {
        "subscribe" => {
            Op::Subscribe { topic: topic()?, presence: fields.presence.unwrap_or_default(), start }
        }
        "history" => {
            let start = start.ok_or_else(|| problem(code::MALFORMED, "history: last or from is missing"))?;
            Op::History { topic: topic()?, start }
        }
        "unsubscribe" => Op::Unsubscribe { topic: topic()? },
        "publish" => match (fields.data, fields.b64) {
            (Some(data), None) => Op::Publish { topic: topic()?, data },
            (None, Some(b64)) => Op::PublishBinary { topic: topic()?, b64 },
            _ => return Err(problem(code::MALFORMED, "publish: data or b64, one of them")),
        },
        "presence" => Op::Presence { topic: topic()? },
        "ping" => Op::Ping,
        _ => return Err(problem(code::UNKNOWN_OP, format!("unknown op {name:?}"))),
    })
}
