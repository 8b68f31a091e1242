//! Decoding of a client's messages.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;
use sinews_server::{Position, Start};
use sinews_stream as stream;

use super::{Problem, code, problem};
use crate::echo::{brief, brief_error};
use crate::streams::json::{self as streams, Given};
use crate::streams::{Ack, Begin, Which};

/// A valid message.
#[derive(Debug)]
pub(super) struct Incoming<'a> {
    /// The id of its answer.
    pub(super) id: Option<Value>,
    pub(super) op: Op<'a>,
}

/// The requested operation.
#[derive(Debug)]
pub(super) enum Op<'a> {
    Subscribe {
        topic: Cow<'a, str>,
        presence: bool,
        start: Option<Start>,
    },
    Unsubscribe {
        topic: Cow<'a, str>,
    },
    Publish {
        topic: Cow<'a, str>,
        data: &'a RawValue,
    },
    PublishBinary {
        topic: Cow<'a, str>,
        b64: Cow<'a, str>,
    },
    Presence {
        topic: Cow<'a, str>,
    },
    History {
        topic: Cow<'a, str>,
        start: Start,
    },
    /// Replaces the token.
    Token {
        token: Cow<'a, str>,
    },
    Ping,
    /// An operation on a stream; the name may be given elsewhere.
    Stream(Option<Cow<'a, str>>, streams::Op<'a>),
}

/// All fields of all messages.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Fields<'a> {
    #[serde(borrow)]
    op: Option<Cow<'a, str>>,
    id: Option<Value>,
    #[serde(borrow)]
    topic: Option<Cow<'a, str>>,
    // `null` is a valid payload.
    #[serde(borrow, deserialize_with = "given")]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    b64: Option<Cow<'a, str>>,
    presence: Option<bool>,
    last: Option<usize>,
    #[serde(borrow)]
    from: Option<From<'a>>,
    #[serde(borrow)]
    stream: Option<Cow<'a, str>>,
    partition: Option<u32>,
    #[serde(borrow)]
    key: Option<Cow<'a, str>>,
    ack: Option<Ack>,
    #[serde(borrow)]
    records: Option<Vec<Given<'a>>>,
    #[serde(borrow)]
    group: Option<Cow<'a, str>>,
    offset: Option<u64>,
    max: Option<usize>,
    #[serde(borrow)]
    token: Option<Cow<'a, str>>,
}

/// A start position.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "from must be a position such as {\"epoch\":1,\"seq\":2}, {\"offset\":3}, {\"time\":4} or \"earliest\""
)]
enum From<'a> {
    /// After a received message of a topic.
    Heard(Heard),
    /// At a record of a stream.
    Offset(Offset),
    /// At the first record of a stream appended at this time or later.
    Time(Time),
    Word(#[serde(borrow)] Cow<'a, str>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Heard {
    epoch: u64,
    seq: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Offset {
    offset: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Time {
    time: u64,
}

pub(crate) fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(deserializer).map(Some)
}

/// The id alone, for the answer to an invalid message.
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
/// The problem, and the message's id if it can be read.
pub(super) fn read(text: &[u8]) -> Result<Incoming<'_>, (Option<Value>, Problem)> {
    // A list would be decoded as the fields in their order.
    if !text.trim_ascii_start().starts_with(b"{") {
        return Err((None, problem(code::MALFORMED, "invalid message: not a JSON object in a text message")));
    }
    let fields: Fields<'_> = serde_json::from_slice(text).map_err(|error| {
        let id = serde_json::from_slice::<Id>(text).unwrap_or_default().id.filter(is_id);
        (id, problem(code::MALFORMED, format!("invalid message: {}", brief_error(&error))))
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
    if name == "token" {
        let token = fields.token.ok_or_else(|| problem(code::MALFORMED, "token: token is missing"))?;
        return Ok(Op::Token { token });
    }
    if fields.token.is_some() {
        let words = format!("{}: field token is valid for the op token only", brief(&name));
        return Err(problem(code::MALFORMED, words));
    }
    if matches!(&*name, "append" | "consume" | "commit" | "read" | "stop" | "stream" | "delete") {
        return op_of_stream(&name, fields);
    }
    if fields.is_of_stream() {
        return Err(problem(code::MALFORMED, format!("{}: a field is valid for streams only", brief(&name))));
    }
    let start = match (fields.last, fields.from) {
        (Some(_), Some(_)) => return Err(problem(code::MALFORMED, "last or from, not both")),
        (Some(count), None) => Some(Start::Last(count)),
        (None, None) => None,
        (None, Some(From::Heard(Heard { epoch, seq }))) => {
            Some(Start::After(Position { epoch, sequence: seq }))
        }
        (None, Some(_)) => {
            return Err(problem(code::MALFORMED, format!("{}: from takes epoch and seq", brief(&name))));
        }
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
            _ => return Err(problem(code::MALFORMED, "publish: either data or b64 is required")),
        },
        "presence" => Op::Presence { topic: topic()? },
        "ping" => Op::Ping,
        _ => return Err(problem(code::UNKNOWN_OP, format!("unknown op {:?}", brief(&name)))),
    })
}

impl Fields<'_> {
    /// Whether the message has a field that only streams use.
    fn is_of_stream(&self) -> bool {
        self.stream.is_some()
            || self.partition.is_some()
            || self.key.is_some()
            || self.ack.is_some()
            || self.records.is_some()
            || self.group.is_some()
            || self.offset.is_some()
            || self.max.is_some()
    }
}

fn op_of_stream<'a>(name: &str, fields: Fields<'a>) -> Result<Op<'a>, Problem> {
    let missing = |what: &str| problem(code::MALFORMED, format!("{name}: {what} is missing"));
    if fields.topic.is_some() || fields.presence.is_some() || fields.last.is_some() {
        return Err(problem(code::MALFORMED, format!("{name}: a field is valid for topics only")));
    }
    let which = fields.partition.map_or(Which::Any, Which::This);
    // Clients omit the partition of a stream that has one.
    let partition = fields.partition.unwrap_or(0);
    let op = match name {
        "append" => {
            let records = match (fields.records, fields.data, fields.b64) {
                (Some(records), None, None) if fields.key.is_none() => records,
                (None, data, b64) => vec![Given { key: fields.key, data, b64 }],
                _ => return Err(problem(code::MALFORMED, "append: records, or data or b64 with a key")),
            };
            streams::Op::Append { partition: which, ack: fields.ack.unwrap_or_default(), records }
        }
        "consume" => {
            let start = match fields.from {
                Some(From::Offset(Offset { offset })) => stream::Start::Offset(offset),
                Some(From::Time(Time { time })) => stream::Start::Time(time),
                Some(From::Word(word)) if word == "latest" => stream::Start::Latest,
                Some(From::Word(word)) if word == "earliest" => stream::Start::Earliest,
                // The default is the end for a follower, and the earliest record for a group.
                None if fields.group.is_none() => stream::Start::Latest,
                None => stream::Start::Earliest,
                Some(_) => {
                    let words =
                        "consume: from takes \"earliest\", \"latest\", {\"offset\":…} or {\"time\":…}";
                    return Err(problem(code::MALFORMED, words));
                }
            };
            let group = fields.group.map(Cow::into_owned);
            if group.as_ref().is_some_and(String::is_empty) {
                return Err(problem(code::MALFORMED, "consume: group must not be empty"));
            }
            streams::Op::Consume { partition: which, begin: Begin { start, group } }
        }
        "commit" => streams::Op::Commit {
            partition,
            offset: fields.offset.ok_or_else(|| missing("offset"))?,
            group: fields.group.ok_or_else(|| missing("group"))?,
        },
        "read" => streams::Op::Read {
            partition,
            offset: fields.offset.ok_or_else(|| missing("offset"))?,
            max: fields.max.unwrap_or(READ_BYTES),
        },
        "stop" => streams::Op::Stop,
        "delete" => streams::Op::Delete,
        _ => streams::Op::Stream,
    };
    Ok(Op::Stream(fields.stream, op))
}

/// Default size of a `read`, in bytes.
const READ_BYTES: usize = 64 << 10;
