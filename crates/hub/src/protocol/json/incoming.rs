//! Decodes a client's messages.

mod key_op;

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use sinews_server::{Position, ReplayFrom};
use sinews_stream as stream;

use self::key_op::parse_key_op;
use super::keys::{KeyOp, KeyRequest};
use super::known_fields::TolerantReader;
use super::members::{MemberFields, PresenceDetail};
use super::requests::{PatternRecovery, PublishedData, SubscribeOptions, TOPICS_MAX};
use super::streams::{self, RecordInput};
use crate::model::brief::{brief, brief_error};
use crate::model::history::HistoryRange;
use crate::model::is_pattern;
use crate::model::json::{borrowed, check_depth, present};
use crate::model::problem::{Problem, code, problem};
use crate::streams::request::{AckLevel, PartitionChoice, SubscriptionStart};

/// A valid message.
#[derive(Debug)]
pub(super) struct ClientMessage<'a> {
    /// Its answer's id.
    pub(super) id: Option<Value>,
    pub(super) op: ClientOp<'a>,
    /// The names of fields that this server does not know, cut to the length that an answer may repeat.
    pub(super) ignored: Vec<String>,
}

/// The requested operation.
#[derive(Debug)]
pub(super) enum ClientOp<'a> {
    Subscribe {
        topic: Cow<'a, str>,
        options: SubscribeOptions,
    },
    Unsubscribe {
        topic: Cow<'a, str>,
    },
    Publish {
        topic: Cow<'a, str>,
        data: PublishedData<'a>,
        idempotency_key: Option<Cow<'a, str>>,
    },
    Presence {
        topic: Cow<'a, str>,
    },
    Join {
        topic: Cow<'a, str>,
        member: MemberFields,
    },
    Leave {
        topic: Cow<'a, str>,
    },
    Members {
        topic: Cow<'a, str>,
        after: Option<Cow<'a, str>>,
    },
    History {
        topic: Cow<'a, str>,
        range: HistoryRange,
    },
    /// An operation on a topic's keys.
    Keys(KeyRequest<'a>),
    /// Replaces the token.
    Token {
        token: Cow<'a, str>,
    },
    /// A call to the application.
    Rpc {
        method: Cow<'a, str>,
        topic: Option<Cow<'a, str>>,
        data: Option<&'a RawValue>,
    },
    Ping,
    /// An operation on a stream; the name may be given elsewhere.
    Stream(Option<Cow<'a, str>>, streams::StreamOp<'a>),
}

impl ClientOp<'_> {
    /// The operation's name.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Subscribe { .. } => "subscribe",
            Self::Unsubscribe { .. } => "unsubscribe",
            Self::Publish { .. } => "publish",
            Self::Presence { .. } => "presence",
            Self::Join { .. } => "join",
            Self::Leave { .. } => "leave",
            Self::Members { .. } => "members",
            Self::History { .. } => "history",
            Self::Keys(KeyRequest { op: KeyOp::Write(write), .. }) if write.value().is_none() => "delete",
            Self::Keys(KeyRequest { op: KeyOp::Write(_), .. }) => "set",
            Self::Keys(KeyRequest { op: KeyOp::Subscribe(_), .. }) => "subscribe",
            Self::Keys(KeyRequest { op: KeyOp::Unsubscribe, .. }) => "unsubscribe",
            Self::Token { .. } => "token",
            Self::Rpc { .. } => "rpc",
            Self::Ping => "ping",
            Self::Stream(..) => "stream",
        }
    }

    /// The operation's topic, if it has one.
    pub(super) fn topic(&self) -> Option<&str> {
        match self {
            Self::Subscribe { topic, .. }
            | Self::Unsubscribe { topic }
            | Self::Publish { topic, .. }
            | Self::Presence { topic }
            | Self::Join { topic, .. }
            | Self::Leave { topic }
            | Self::Members { topic, .. }
            | Self::History { topic, .. }
            | Self::Keys(KeyRequest { topic, .. }) => Some(topic),
            Self::Rpc { topic, .. } => topic.as_deref(),
            Self::Token { .. } | Self::Ping | Self::Stream(..) => None,
        }
    }
}

/// All fields of all messages.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct MessageFields<'a> {
    #[serde(borrow, deserialize_with = "borrowed")]
    op: Option<Cow<'a, str>>,
    id: Option<Value>,
    #[serde(borrow, deserialize_with = "borrowed")]
    topic: Option<Cow<'a, str>>,
    // `null` is a valid payload.
    #[serde(borrow, deserialize_with = "present")]
    data: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "borrowed")]
    b64: Option<Cow<'a, str>>,
    presence: Option<bool>,
    members: Option<bool>,
    member: Option<MemberFields>,
    #[serde(borrow, deserialize_with = "borrowed")]
    after: Option<Cow<'a, str>>,
    last: Option<usize>,
    #[serde(borrow)]
    from: Option<StartField<'a>>,
    before: Option<AfterMessage>,
    limit: Option<usize>,
    recover: Option<bool>,
    #[serde(borrow, deserialize_with = "borrowed")]
    stream: Option<Cow<'a, str>>,
    partition: Option<u32>,
    #[serde(borrow, deserialize_with = "borrowed")]
    key: Option<Cow<'a, str>>,
    ack: Option<AckLevel>,
    #[serde(borrow)]
    records: Option<Vec<RecordInput<'a>>>,
    #[serde(borrow, deserialize_with = "borrowed")]
    group: Option<Cow<'a, str>>,
    offset: Option<u64>,
    max: Option<usize>,
    #[serde(borrow, deserialize_with = "borrowed")]
    token: Option<Cow<'a, str>>,
    keys: Option<bool>,
    #[serde(borrow, deserialize_with = "borrowed")]
    filter: Option<Cow<'a, str>>,
    interval: Option<u64>,
    ttl: Option<u64>,
    if_new: Option<bool>,
    if_exists: Option<bool>,
    version: Option<u64>,
    epoch: Option<u64>,
    #[serde(borrow, deserialize_with = "borrowed")]
    idempotency_key: Option<Cow<'a, str>>,
    #[serde(borrow, deserialize_with = "borrowed")]
    method: Option<Cow<'a, str>>,
}

/// A start position.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "from must be a position such as {\"epoch\":1,\"seq\":2}, {\"offset\":3}, {\"time\":4} or \"earliest\""
)]
enum StartField<'a> {
    /// After a received topic message.
    After(AfterMessage),
    /// At a stream record.
    Offset(AtOffset),
    /// At the stream's first record appended at this time or later.
    Time(AtTime),
    /// After the received messages of a pattern's topics.
    Positions(TopicPositions),
    Word(#[serde(borrow)] Cow<'a, str>),
}

#[derive(Deserialize)]
struct TopicPositions {
    positions: BTreeMap<String, AfterMessage>,
}

#[derive(Clone, Copy, Deserialize)]
struct AfterMessage {
    epoch: u64,
    seq: u64,
}

impl From<AfterMessage> for Position {
    fn from(AfterMessage { epoch, seq }: AfterMessage) -> Self {
        Self { epoch, sequence: seq }
    }
}

#[derive(Deserialize)]
struct AtOffset {
    offset: u64,
}

#[derive(Deserialize)]
struct AtTime {
    time: u64,
}

/// The id alone, for the answer to an invalid message.
#[derive(Default, Deserialize)]
#[serde(default)]
struct RequestIdField {
    id: Option<Value>,
}

/// Longest text of an id, in bytes: it is sent back.
const ID_MAX: usize = 64;

/// Reads a message.
///
/// # Errors
/// The problem, and the message's id if it can be read.
pub(super) fn read(text: &[u8]) -> Result<ClientMessage<'_>, (Option<Value>, Problem)> {
    // One check for the whole text, not one for each string.
    let text = std::str::from_utf8(text).unwrap_or_default();
    // A list would be decoded as the fields in their order.
    if !text.trim_ascii_start().starts_with('{') {
        return Err((None, problem(code::MALFORMED, "invalid message: not a JSON object in a text message")));
    }
    let mut json = serde_json::Deserializer::from_str(text);
    let mut ignored = Vec::new();
    // No combinators: each would move all the fields.
    let mut fields = match MessageFields::deserialize(&mut json) {
        Ok(fields) => fields,
        // Of a newer client, perhaps. Few messages are read twice.
        Err(_) => {
            json = serde_json::Deserializer::from_str(text);
            match MessageFields::deserialize(TolerantReader { json: &mut json, ignored: &mut ignored }) {
                Ok(fields) => fields,
                Err(error) => return Err(malformed(text, &error)),
            }
        }
    };
    json.end().map_err(|error| malformed(text, &error))?;
    let id = fields.id.take();
    if id.as_ref().is_some_and(|id| !is_id(id)) {
        let message = format!("id must be a number or a string of at most {ID_MAX} bytes");
        return Err((None, problem(code::MALFORMED, message)));
    }
    match op(fields) {
        Ok(op) => Ok(ClientMessage { id, op, ignored }),
        Err(problem) if ignored.is_empty() => Err((id, problem)),
        // A misspelt field, perhaps, which the operation needs.
        Err(problem) => {
            let text = format!("{} (unknown: {})", problem.text, ignored.join(", "));
            Err((id, Problem { text, ..problem }))
        }
    }
}

/// Returns the problem of a message that is not one JSON object of the known fields, and the id if it can be read.
fn malformed(text: &str, error: &serde_json::Error) -> (Option<Value>, Problem) {
    let id = serde_json::from_str::<RequestIdField>(text).unwrap_or_default().id.filter(is_id);
    (id, problem(code::MALFORMED, format!("invalid message: {}", brief_error(error))))
}

fn is_id(id: &Value) -> bool {
    match id {
        Value::Number(_) => true,
        Value::String(text) => text.len() <= ID_MAX,
        _ => false,
    }
}

fn op(mut fields: MessageFields<'_>) -> Result<ClientOp<'_>, Problem> {
    let name = fields.op.take().ok_or_else(|| problem(code::MALFORMED, "op is missing"))?;
    if name == "token" {
        let token = fields.token.ok_or_else(|| problem(code::MALFORMED, "token: token is missing"))?;
        return Ok(ClientOp::Token { token });
    }
    if fields.token.is_some() {
        let message = format!("{}: field token is valid for the op token only", brief(&name));
        return Err(problem(code::MALFORMED, message));
    }
    if fields.method.is_some() && name != "rpc" {
        let message = format!("{}: field method is valid for the op rpc only", brief(&name));
        return Err(problem(code::MALFORMED, message));
    }
    let is_of_keys = match &*name {
        "set" => true,
        "delete" => fields.topic.is_some(),
        _ => fields.keys == Some(true),
    };
    if is_of_keys {
        return parse_key_op(&name, fields).map(ClientOp::Keys);
    }
    let idempotency_key = if name == "publish" { fields.idempotency_key.take() } else { None };
    if fields.has_key_option() || fields.has_condition() {
        return Err(problem(code::MALFORMED, format!("{}: a field is valid for keys only", brief(&name))));
    }
    if matches!(&*name, "append" | "consume" | "commit" | "read" | "stop" | "stream" | "delete") {
        return parse_stream_op(&name, fields);
    }
    if fields.has_stream_field() {
        return Err(problem(code::MALFORMED, format!("{}: a field is valid for streams only", brief(&name))));
    }
    check_history_fields(&name, &fields)?;
    let recovery = if name == "subscribe" { pattern_recovery(&mut fields)? } else { None };
    let start = replay_start(&name, fields.last, &fields.from)?;
    match &*name {
        "rpc" => return parse_call(fields, start),
        "subscribe" => return parse_subscription(fields, start, recovery),
        "publish" => return parse_publication(fields, idempotency_key),
        _ => {}
    }
    let topic = || topic_of(&name, fields.topic);
    Ok(match &*name {
        "history" => {
            let (before, limit) = (fields.before, fields.limit);
            ClientOp::History { topic: topic()?, range: history_range(start, before, limit)? }
        }
        "unsubscribe" => ClientOp::Unsubscribe { topic: topic()? },
        "presence" => ClientOp::Presence { topic: topic()? },
        "join" => {
            let member = fields.member.ok_or_else(|| problem(code::MALFORMED, "join: member is missing"))?;
            ClientOp::Join { topic: topic()?, member }
        }
        "leave" => ClientOp::Leave { topic: topic()? },
        "members" => ClientOp::Members { topic: topic()?, after: fields.after },
        "ping" => ClientOp::Ping,
        _ => return Err(problem(code::UNKNOWN_OP, format!("unknown op {:?}", brief(&name)))),
    })
}

fn topic_of<'a>(name: &str, topic: Option<Cow<'a, str>>) -> Result<Cow<'a, str>, Problem> {
    topic.ok_or_else(|| problem(code::MALFORMED, format!("{name}: topic is missing")))
}

fn parse_subscription(
    fields: MessageFields<'_>,
    start: Option<ReplayFrom>,
    recovery: Option<Box<PatternRecovery>>,
) -> Result<ClientOp<'_>, Problem> {
    let presence = match (fields.presence, fields.members) {
        (_, Some(true)) => PresenceDetail::Members,
        (Some(true), _) => PresenceDetail::Changes,
        _ => PresenceDetail::None,
    };
    let topic = topic_of("subscribe", fields.topic)?;
    if recovery.as_ref().is_some_and(|recovery| recovery.from.is_some()) && !is_pattern(&topic) {
        let text = "subscribe: from with positions is for patterns; a name takes epoch and seq";
        return Err(problem(code::MALFORMED, text));
    }
    // The acknowledgement of a name has its position.
    let recovery = recovery.filter(|_| is_pattern(&topic));
    Ok(ClientOp::Subscribe { topic, options: SubscribeOptions { presence, start, recovery } })
}

fn parse_publication<'a>(
    fields: MessageFields<'a>,
    idempotency_key: Option<Cow<'a, str>>,
) -> Result<ClientOp<'a>, Problem> {
    let data = match (fields.data, fields.b64) {
        (Some(data), None) => PublishedData::Json(data),
        (None, Some(b64)) => PublishedData::Base64(b64),
        _ => return Err(problem(code::MALFORMED, "publish: either data or b64 is required")),
    };
    Ok(ClientOp::Publish { topic: topic_of("publish", fields.topic)?, data, idempotency_key })
}

/// Checks that fields of histories and of their recovery belong to the op.
fn check_history_fields(name: &str, fields: &MessageFields<'_>) -> Result<(), Problem> {
    let misplaced = |what: &str| Err(problem(code::MALFORMED, format!("{}: {what}", brief(name))));
    if (fields.before.is_some() || fields.limit.is_some()) && name != "history" {
        return misplaced("before and limit are valid for the op history only");
    }
    if fields.recover.is_some() && name != "subscribe" {
        return misplaced("recover is valid for the op subscribe only");
    }
    Ok(())
}

fn parse_call(fields: MessageFields<'_>, start: Option<ReplayFrom>) -> Result<ClientOp<'_>, Problem> {
    if fields.b64.is_some() || start.is_some() || fields.presence.is_some() {
        return Err(problem(code::MALFORMED, "rpc: it takes method, topic and data"));
    }
    let method = fields.method.ok_or_else(|| problem(code::MALFORMED, "rpc: method is missing"))?;
    fields.data.map_or(Ok(()), |data| check_depth(data.get()))?;
    Ok(ClientOp::Rpc { method, topic: fields.topic, data: fields.data })
}

/// The requests of a subscription to a pattern.
fn pattern_recovery(fields: &mut MessageFields<'_>) -> Result<Option<Box<PatternRecovery>>, Problem> {
    let wants_positions = fields.recover == Some(true);
    let from = match fields.from.take() {
        Some(StartField::Positions(TopicPositions { positions })) if fields.last.is_none() => Some(positions),
        Some(StartField::Positions(_)) => return Err(problem(code::MALFORMED, "last or from, not both")),
        other => {
            fields.from = other;
            None
        }
    };
    if let Some(count) = from.as_ref().map(BTreeMap::len).filter(|count| *count > TOPICS_MAX) {
        let text = format!("subscribe: {count} positions exceed the limit of {TOPICS_MAX}");
        return Err(problem(code::TOO_LARGE, text));
    }
    let from = from.map(|from| from.into_iter().map(|(topic, at)| (topic, at.into())).collect());
    let is_any = wants_positions || from.is_some();
    Ok(is_any.then(|| Box::new(PatternRecovery { wants_positions, from })))
}

/// The start of a subscription to a topic, or of its history.
fn replay_start(
    name: &str,
    last: Option<usize>,
    from: &Option<StartField<'_>>,
) -> Result<Option<ReplayFrom>, Problem> {
    match (last, from) {
        (Some(_), Some(_)) => Err(problem(code::MALFORMED, "last or from, not both")),
        (Some(count), None) => Ok(Some(ReplayFrom::Last(count))),
        (None, None) => Ok(None),
        (None, Some(StartField::After(AfterMessage { epoch, seq }))) => {
            Ok(Some(ReplayFrom::After(Position { epoch: *epoch, sequence: *seq })))
        }
        (None, Some(_)) => {
            Err(problem(code::MALFORMED, format!("{}: from takes epoch and seq", brief(name))))
        }
    }
}

/// The part of a history that a client requests.
fn history_range(
    start: Option<ReplayFrom>,
    before: Option<AfterMessage>,
    limit: Option<usize>,
) -> Result<HistoryRange, Problem> {
    let before = before.map(Position::from);
    match (start, before, limit) {
        (Some(ReplayFrom::Last(count)), before, None) => Ok(HistoryRange::Last { count, before }),
        (Some(ReplayFrom::After(position)), None, limit) => {
            Ok(HistoryRange::After { position, limit: limit.unwrap_or(usize::MAX) })
        }
        (None, ..) => Err(problem(code::MALFORMED, "history: last or from is missing")),
        _ => Err(problem(code::MALFORMED, "history: before is for last, and limit is for from")),
    }
}

impl MessageFields<'_> {
    /// Whether the message has a field that streams do not use.
    fn has_topic_field(&self) -> bool {
        self.topic.is_some() || self.has_topic_option()
    }

    fn has_topic_option(&self) -> bool {
        self.presence.is_some()
            || self.members.is_some()
            || self.member.is_some()
            || self.after.is_some()
            || self.last.is_some()
            || self.before.is_some()
            || self.recover.is_some()
            || self.limit.is_some()
    }

    /// Whether the message has a field that only subscriptions to keys use.
    fn has_key_option(&self) -> bool {
        self.keys == Some(true) || self.filter.is_some() || self.interval.is_some()
    }

    /// Whether the message has a field that only writes of keys use.
    fn has_condition(&self) -> bool {
        self.ttl.is_some()
            || self.if_new.is_some()
            || self.if_exists.is_some()
            || self.version.is_some()
            || self.epoch.is_some()
            || self.idempotency_key.is_some()
    }

    /// Whether the message has a field that no operation on keys uses.
    fn has_field_without_keys(&self) -> bool {
        self.has_topic_option() || self.has_stream_option()
    }

    /// Whether the message has a field that only streams use.
    fn has_stream_field(&self) -> bool {
        self.key.is_some() || self.has_stream_option()
    }

    fn has_stream_option(&self) -> bool {
        self.stream.is_some()
            || self.partition.is_some()
            || self.ack.is_some()
            || self.records.is_some()
            || self.group.is_some()
            || self.offset.is_some()
            || self.max.is_some()
    }
}

fn parse_stream_op<'a>(name: &str, fields: MessageFields<'a>) -> Result<ClientOp<'a>, Problem> {
    let missing = |what: &str| problem(code::MALFORMED, format!("{name}: {what} is missing"));
    if fields.has_topic_field() {
        return Err(problem(code::MALFORMED, format!("{name}: a field is valid for topics only")));
    }
    let choice = fields.partition.map_or(PartitionChoice::Any, PartitionChoice::Number);
    // Clients omit the partition of a stream that has one.
    let partition = fields.partition.unwrap_or(0);
    let op = match name {
        "append" => {
            let records = match (fields.records, fields.data, fields.b64) {
                (Some(records), None, None) if fields.key.is_none() => records,
                (None, data, b64) => vec![RecordInput { key: fields.key, data, b64, deleted: false }],
                _ => return Err(problem(code::MALFORMED, "append: records, or data or b64 with a key")),
            };
            streams::StreamOp::Append { partition: choice, ack: fields.ack.unwrap_or_default(), records }
        }
        "consume" => {
            let start = match fields.from {
                Some(StartField::Offset(AtOffset { offset })) => stream::StartPosition::Offset(offset),
                Some(StartField::Time(AtTime { time })) => stream::StartPosition::Time(time),
                Some(StartField::Word(word)) if word == "latest" => stream::StartPosition::Latest,
                Some(StartField::Word(word)) if word == "earliest" => stream::StartPosition::Earliest,
                // The default is the end for a follower, and the earliest record for a group.
                None if fields.group.is_none() => stream::StartPosition::Latest,
                None => stream::StartPosition::Earliest,
                Some(_) => {
                    let message =
                        "consume: from takes \"earliest\", \"latest\", {\"offset\":…} or {\"time\":…}";
                    return Err(problem(code::MALFORMED, message));
                }
            };
            let group = fields.group.map(Cow::into_owned);
            if group.as_ref().is_some_and(String::is_empty) {
                return Err(problem(code::MALFORMED, "consume: group must not be empty"));
            }
            streams::StreamOp::Consume { partition: choice, begin: SubscriptionStart { start, group } }
        }
        "commit" => streams::StreamOp::Commit {
            partition,
            offset: fields.offset.ok_or_else(|| missing("offset"))?,
            group: fields.group.ok_or_else(|| missing("group"))?,
        },
        "read" => streams::StreamOp::Read {
            partition,
            offset: fields.offset.ok_or_else(|| missing("offset"))?,
            max: fields.max.unwrap_or(READ_BYTES),
        },
        "stop" => streams::StreamOp::Stop,
        "delete" => streams::StreamOp::Delete,
        _ => streams::StreamOp::Stream,
    };
    Ok(ClientOp::Stream(fields.stream, op))
}

/// Default `read` size in bytes.
const READ_BYTES: usize = 64 << 10;

#[cfg(test)]
mod schema_tests;

#[cfg(test)]
mod tests {
    use super::super::known_fields::IGNORED_MAX;
    use super::*;

    #[test]
    fn unknown_fields_are_ignored_and_named() {
        let text = br#"{"new":{"a":[1]},"op":"subscribe","topic":"a\u0062","presense":true,"id":1}"#;
        let ClientMessage { id, op, ignored } = read(text).unwrap();
        assert_eq!((id, ignored), (Some(Value::from(1)), vec!["new".to_owned(), "presense".to_owned()]));
        assert!(matches!(op, ClientOp::Subscribe { topic, .. } if topic == "ab"));
        let many: String = (0..100).map(|at| format!("\"f{at}{}\":0,", "x".repeat(100))).collect();
        let ignored = read(format!("{{{many}\"op\":\"ping\"}}").as_bytes()).unwrap().ignored;
        assert_eq!((ignored.len(), ignored[0].chars().count()), (IGNORED_MAX, 65));
        let (id, problem) = read(br#"{"op":"subscribe","id":2,"topci":"a"}"#).unwrap_err();
        let expected = "subscribe: topic is missing (unknown: topci)";
        assert_eq!((id, &*problem.text), (Some(Value::from(2)), expected));
        for bad in ["{\"new\":1,\"op\":\"ping\"", "{\"new\":1,\"op\":5}", "{\"new\":1,\"op\":\"ping\"} 1"] {
            assert_eq!(read(bad.as_bytes()).unwrap_err().1.code, code::MALFORMED, "{bad}");
        }
    }

    #[test]
    fn texts_without_escapes_are_borrowed_from_the_message() {
        let publish = read(br#"{"op":"publish","topic":"a","b64":"YQ=="}"#).unwrap().op;
        let is_borrowed = |op: &ClientOp<'_>| {
            let ClientOp::Publish { topic, data: PublishedData::Base64(b64), idempotency_key: None } = op
            else {
                return false;
            };
            matches!((topic, b64), (Cow::Borrowed("a"), Cow::Borrowed("YQ==")))
        };
        assert!(is_borrowed(&publish), "{publish:?}");
        let append =
            read(br#"{"op":"append","stream":"a","records":[{"key":"k","b64":"YQ=="}]}"#).unwrap().op;
        let ClientOp::Stream(_, streams::StreamOp::Append { records, .. }) = &append else {
            panic!("{append:?}")
        };
        let [RecordInput { key: Some(Cow::Borrowed("k")), b64: Some(Cow::Borrowed("YQ==")), .. }] =
            &records[..]
        else {
            panic!("{records:?}")
        };
    }

    #[test]
    fn bytes_that_are_not_utf8_are_malformed() {
        for bytes in [&b"{\"op\":\"ping\xff\"}"[..], b"\xff", b""] {
            let (id, problem) = read(bytes).unwrap_err();
            assert_eq!((id, problem.code), (None, code::MALFORMED));
        }
    }
}
