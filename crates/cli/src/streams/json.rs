//! Streams in JSON, at `/ws` and at `/streams/{name}`, and records as JSON.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sinews_server::{Context, Position, Sent, Start};
use sinews_stream::record::{self, Kind, Malformed, Record, RecordBuilder, Records};
use sinews_stream::{Appended, Lookup, Read, Stream, StreamInfo, StreamState};

use super::backing::content_of;
use super::bridge::Opening;
use super::counted::counted;
use super::desk::{Assigned, Place};
use super::{Ack, Begin, Desk, Fetched, Store, Voice, Which, follow};
use crate::auth::{Rights, Want};
use crate::echo::brief;
use crate::hub::Content;
use crate::protocol::{HISTORY_BYTES_MAX, HISTORY_MAX, Problem, code, problem};

/// An operation on streams. The stream may be omitted if the path names it.
#[derive(Debug)]
pub(crate) enum Op<'a> {
    Append { partition: Which, ack: Ack, records: Vec<Given<'a>> },
    Consume { partition: Which, begin: Begin },
    Commit { partition: u32, offset: u64, group: Cow<'a, str> },
    Read { partition: u32, offset: u64, max: usize },
    Stop,
    Stream,
    Delete,
}

/// One record of a client's message.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Given<'a> {
    #[serde(borrow)]
    pub(crate) key: Option<Cow<'a, str>>,
    #[serde(borrow, deserialize_with = "crate::protocol::given")]
    pub(crate) data: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) b64: Option<Cow<'a, str>>,
}

/// The answer to an operation.
pub(crate) enum Answer {
    /// Fields of an acknowledgement.
    Ack(Value),
    /// A message of its own kind.
    Own(String),
    /// The answer follows later.
    Later,
}

/// The streams of one client.
pub(crate) struct Side {
    store: Option<Arc<Store>>,
    /// The stream that the path names.
    here: Option<String>,
    desk: Desk<Asked>,
}

/// The id of a request, and whether it concerns a topic: then the answer has the topic's epoch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    id: Option<Value>,
    epoch: Option<u64>,
}

impl From<&Option<Value>> for Asked {
    fn from(id: &Option<Value>) -> Self {
        Self { id: id.clone(), epoch: None }
    }
}

impl Asked {
    /// Encodes the start of an answer.
    fn words(&self) -> String {
        self.id.as_ref().map_or_else(String::new, |id| format!("\"id\":{id},"))
    }
}

impl Side {
    pub(crate) fn new(store: Option<Arc<Store>>, here: Option<String>) -> Self {
        Self { store, here, desk: Desk::default() }
    }

    /// What the action on a topic has to wait for.
    pub(crate) fn opening_of_topic(&self, topic: &str, want: Want<'_>, rights: &Rights) -> Option<Opening> {
        self.store_of(topic)?.opening(topic, want, rights)
    }

    /// What the operation on a stream has to wait for.
    pub(crate) fn opening(&self, stream: Option<&str>, op: &Op<'_>, rights: &Rights) -> Option<Opening> {
        let name = stream.or(self.here.as_deref())?;
        let want = match op {
            Op::Stop | Op::Delete => return None,
            Op::Append { .. } => Want::Publish(name),
            _ => Want::Subscribe(name),
        };
        self.store.as_ref()?.opening(name, want, rights)
    }

    /// Stores a message until its stream is open.
    pub(crate) fn park(&mut self, opening: Opening, message: Bytes, cx: &mut Context<'_>) {
        self.desk.park(opening, message, cx);
    }

    /// Returns the stored message when its stream is open or has failed, with the failure.
    pub(crate) fn unpark(&mut self, cx: &mut Context<'_>) -> Option<(Bytes, Result<(), Problem>)> {
        self.desk.unpark(cx)
    }

    /// Executes an operation.
    pub(crate) fn obey(
        &mut self,
        (stream, op): (Option<Cow<'_, str>>, Op<'_>),
        id: &Option<Value>,
        rights: &Rights,
        cx: &mut Context<'_>,
    ) -> Result<Answer, Problem> {
        let store = self.store.clone().ok_or_else(|| problem(code::NO_STREAM, super::http::OFF))?;
        let stream = stream.as_deref().or(self.here.as_deref());
        let name = stream.ok_or_else(|| problem(code::MALFORMED, "stream is missing"))?;
        match op {
            Op::Append { partition, ack, records } => {
                let to = (&*store, store.to_publish(name, rights)?);
                let records = build(&records, store.limits())?;
                // A client that gives no id still receives failures.
                self.desk.publish(to, partition, records, (id.into(), ack), &Words, cx)?;
                Ok(Answer::Later)
            }
            Op::Consume { partition, begin } => {
                let stream = store.to_read(name, rights)?;
                if self.desk.has(|_, known| known == name) {
                    return Err(problem(
                        code::NOT_SUBSCRIBED,
                        format!("{} is being consumed already: stop first", brief(name)),
                    ));
                }
                let from = (&*store, stream);
                let places = self.desk.subscribe(from, partition, begin, id.into(), cx)?;
                Ok(Answer::Ack(json!({ "stream": name, "partitions": listed_places(&places) })))
            }
            Op::Commit { partition, offset, group } => {
                let to = (&*group, partition, offset);
                let of = (&*store, store.to_read(name, rights)?);
                self.desk.commit(of, to, id.into(), &Words, cx)?;
                Ok(Answer::Later)
            }
            Op::Read { partition, offset, max } => {
                let of = (&store, store.to_read(name, rights)?);
                self.desk.fetch(of, (partition, offset, max), id.into(), &Words, cx);
                Ok(Answer::Later)
            }
            Op::Stop if self.desk.unsubscribe(|_, known| known == name) => {
                Ok(Answer::Ack(json!({ "stream": name })))
            }
            Op::Delete => {
                self.desk.delete((&store, name), rights, id.into(), &Words, cx)?;
                Ok(Answer::Later)
            }
            Op::Stop => Err(problem(code::NOT_SUBSCRIBED, format!("{} is not being consumed", brief(name)))),
            Op::Stream => {
                let mut words = described(&store, &store.to_read(name, rights)?);
                words["op"] = json!("stream");
                if let Some(id) = id {
                    words["id"] = id.clone();
                }
                Ok(Answer::Own(words.to_string()))
            }
        }
    }

    /// Ends the consumptions that the rights do not cover; returns an error for each.
    pub(crate) fn end_denied(&mut self, rights: &Rights) -> Vec<Value> {
        let denied = |stream: &str| rights.check(Want::Subscribe(stream)).err();
        let ended = self.desk.end_denied(denied).into_iter().map(|(asked, stream, denied)| {
            let mut error = Problem::from(denied).words();
            error["stream"] = json!(stream);
            if let Some(id) = asked.id {
                error["id"] = id;
            }
            error
        });
        ended.collect()
    }

    /// The store of durable topics' streams, if there is one.
    pub(crate) fn store(&self) -> Option<&Arc<Store>> {
        self.store.as_ref()
    }

    /// The store, if this topic is durable.
    pub(crate) fn store_of(&self, topic: &str) -> Option<&Arc<Store>> {
        self.store().filter(|store| store.topics().backs(topic))
    }

    /// Publishes to a durable topic, and answers when the stream's durability is reached.
    pub(crate) fn publish_to_topic(
        &mut self,
        (store, topic, content): (&Store, &str, &Content),
        id: &Option<Value>,
        rights: &Rights,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        let (line, records) = store.to_publish_to_topic(topic, content, rights)?;
        let asked = Asked { id: id.clone(), epoch: Some(line.epoch()) };
        // A client that gives no id still receives failures.
        let to = (store, line.stream().clone());
        self.desk.publish(to, Which::This(0), records, (asked, Ack::Broker), &Words, cx)
    }

    /// Answers with messages of a durable topic, from a start on.
    pub(crate) fn history_of_topic(
        &mut self,
        (store, topic, start): (&Arc<Store>, &str, Start),
        id: &Option<Value>,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        let epoch = store.line(topic)?.map_or(0, |line| line.epoch());
        let most = (HISTORY_MAX, HISTORY_BYTES_MAX);
        let messages = follow::history(Arc::clone(store), topic.to_owned(), start, most);
        let asked = Asked { id: id.clone(), epoch: Some(epoch) };
        self.desk.answer_with(messages, (topic.to_owned(), 0), asked, &Words, cx);
        Ok(())
    }

    pub(crate) fn woken(&mut self, cx: &mut Context<'_>) {
        self.desk.woken(self.store.as_deref(), &Words, cx);
    }

    pub(crate) fn drain(&mut self, cx: &mut Context<'_>) {
        self.desk.drained(self.store.as_deref(), &Words, cx);
    }

    pub(crate) fn close(&mut self) {
        self.desk = Desk::default();
    }
}

/// A stream and its offsets, as JSON.
pub(super) fn described(store: &Store, stream: &Stream) -> Value {
    let partitions = (0..stream.partitions()).filter_map(|number| {
        let partition = stream.partition(number)?;
        let (earliest, end) = store.ends(stream, number, &partition);
        let bytes = partition.statistics().bytes;
        Some(json!({ "partition": number, "earliest": earliest, "end": end, "bytes": bytes }))
    });
    let groups = stream.groups().into_iter().map(|group| {
        let stored = (0..stream.partitions()).filter_map(|partition| {
            let offset = stream.committed(&group, partition)?;
            Some(json!({ "partition": partition, "offset": offset }))
        });
        json!({ "group": group, "partitions": stored.collect::<Vec<_>>() })
    });
    json!({
        "stream": stream.name(),
        "partitions": partitions.collect::<Vec<_>>(),
        "groups": groups.collect::<Vec<_>>(),
    })
}

fn listed_places(places: &[Assigned]) -> Value {
    let one = |at: &Assigned| {
        let mut words = json!({ "partition": at.partition, "offset": at.offset });
        if at.is_reset {
            words["reset"] = json!(true);
        }
        words
    };
    places.iter().map(one).collect()
}

/// One entry of a list of streams. A stream that is not open has its last known offsets.
pub(super) fn listed(store: &Store, info: &StreamInfo) -> Value {
    if let Ok(Lookup::Open(stream)) = store.streams().map(|streams| streams.lookup(&info.name)) {
        return described(store, &stream);
    }
    let partitions = info.partitions.iter().enumerate().map(|(number, it)| {
        json!({ "partition": number, "earliest": it.earliest, "end": it.readable, "bytes": it.bytes })
    });
    let groups = info
        .groups
        .iter()
        .map(|group| json!({ "group": &*group.name, "partitions": offsets(&group.offsets) }));
    let mut words = json!({
        "stream": &*info.name,
        "partitions": partitions.collect::<Vec<_>>(),
        "groups": groups.collect::<Vec<_>>(),
    });
    if let StreamState::Damaged(why) = &info.state {
        words["error"] = json!(format!("the stream is damaged: {why}"));
    }
    words
}

fn offsets(places: &[(u32, u64)]) -> Value {
    places.iter().map(|(partition, offset)| json!({ "partition": partition, "offset": offset })).collect()
}

/// Encodes the records of a client's message.
fn build(given: &[Given<'_>], limits: &record::Limits) -> Result<Records, Problem> {
    let mut builder = RecordBuilder::with_limits(*limits);
    for one in given {
        let (value, kind) = match (one.data, &one.b64) {
            (Some(data), None) => json_value(data),
            (None, Some(b64)) => {
                let bytes = STANDARD.decode(b64.as_bytes());
                let bytes = bytes.map_err(|error| problem(code::MALFORMED, format!("b64: {error}")))?;
                (Cow::Owned(bytes), Kind::Bytes)
            }
            _ => return Err(problem(code::MALFORMED, "a record has either data or b64")),
        };
        let key = one.key.as_deref().unwrap_or_default();
        builder.push(super::now(), key.as_bytes(), &value, kind).map_err(malformed)?;
    }
    builder.finish().ok_or_else(|| malformed(Malformed::Empty))
}

pub(super) fn malformed(error: Malformed) -> Problem {
    if error == Malformed::TooLarge {
        let most = "the batch exceeds 8 MiB or max_message, or the key 65535 bytes";
        return problem(code::TOO_LARGE, format!("{error}: {most}"));
    }
    problem(code::MALFORMED, error.to_string())
}

/// JSON as a record's value: a string becomes its text.
fn json_value(data: &RawValue) -> (Cow<'_, [u8]>, Kind) {
    match serde_json::from_str::<String>(data.get()) {
        Ok(text) => (Cow::Owned(text.into_bytes()), Kind::Text),
        Err(_) => (Cow::Borrowed(data.get().as_bytes()), Kind::Json),
    }
}

/// A record as JSON, without the fields that all records of a partition share.
pub(super) fn write_record(record: &Record<'_>, prefix: &str, out: &mut String) {
    // Writing to a string cannot fail.
    let _ = write!(out, "{{{prefix}\"offset\":{},\"at\":{}", record.offset, record.timestamp);
    let _ = match std::str::from_utf8(record.key) {
        Ok("") => Ok(()),
        Ok(key) => write!(out, ",\"key\":{}", json!(key)),
        Err(_) => write!(out, ",\"key_b64\":\"{}\"", STANDARD.encode(record.key)),
    };
    // The declared kind was not checked.
    let _ = match (record.kind, std::str::from_utf8(record.value).ok()) {
        (Kind::Text, Some(text)) => write!(out, ",\"data\":{}}}", json!(text)),
        (Kind::Json, Some(text)) if serde_json::from_str::<&RawValue>(text).is_ok() => {
            // A line break would separate records in line-based answers; JSON strings contain none.
            write!(out, ",\"data\":{}}}", text.trim().replace(['\r', '\n'], " "))
        }
        _ => write!(out, ",\"b64\":\"{}\"}}", STANDARD.encode(record.value)),
    };
}

/// The records of a read, as one message: several could exceed the limit of the outbound queue.
fn records_text(at: &Place<'_, Asked>, from: u64, end: u64, read: Option<&Read>) -> String {
    let mut words = begin_records(at);
    let (next, batches) = read.map_or((from, &[][..]), |read| (read.next, &read.batches));
    counted(batches, from).for_each(|record| push_record(&record, &mut words));
    end_records(next.max(from), end, words)
}

fn begin_records(at: &Place<'_, Asked>) -> String {
    let (id, stream, partition) = (at.id.words(), json!(at.stream), at.partition);
    format!("{{\"op\":\"records\",{id}\"stream\":{stream},\"partition\":{partition},\"records\":[")
}

fn push_record(record: &Record<'_>, words: &mut String) {
    if !words.ends_with('[') {
        words.push(',');
    }
    write_record(record, "", words);
}

fn end_records(next: u64, end: u64, mut words: String) -> String {
    // Writing to a string cannot fail.
    let _ = write!(words, "],\"next\":{next},\"end\":{end}}}");
    words
}

/// The messages of a topic's history, as one message.
fn history_text(at: &Place<'_, Asked>, epoch: u64, fetched: &Fetched) -> String {
    let Fetched { from, end, read } = fetched;
    let (id, topic) = (at.id.words(), json!(at.stream));
    let mut words = format!("{{\"op\":\"history\",{id}\"topic\":{topic},\"messages\":[");
    let begins = words.len();
    let batches = read.as_ref().map_or(&[][..], |read| &read.batches);
    let records = counted(batches, *from).take_while(|record| record.offset < *end);
    for record in records.take(HISTORY_MAX) {
        if words.len() >= begins + HISTORY_BYTES_MAX {
            break;
        }
        if words.len() > begins {
            words.push(',');
        }
        let position = Position { epoch, sequence: record.offset + 1 };
        words.push_str(&content_of(&record).framed_text(at.stream, Some(position)));
    }
    words.push_str("]}");
    words
}

/// Encodes replies in JSON.
struct Words;

impl Words {
    fn say(mut words: Value, asked: &Asked, cx: &mut Context<'_>) -> Sent {
        if let Some(id) = &asked.id {
            words["id"] = id.clone();
        }
        // After a Close, the message is dropped.
        cx.send_text(&words.to_string()).unwrap_or(Sent::Dropped)
    }
}

impl Voice for Words {
    type Id = Asked;

    fn published(&self, at: &Place<'_, Asked>, appended: Appended, cx: &mut Context<'_>) {
        let Appended { first, count, .. } = appended;
        if let Some(epoch) = at.id.epoch {
            if at.id.id.is_some() {
                Self::say(json!({ "op": "ack", "epoch": epoch, "seq": first + 1 }), at.id, cx);
            }
            return;
        }
        if at.id.id.is_some() {
            let words = json!({
                "op": "ack", "stream": at.stream, "partition": at.partition, "offset": first, "count": count,
            });
            Self::say(words, at.id, cx);
        }
    }

    fn taken(&self, at: &Place<'_, Asked>, count: u32, cx: &mut Context<'_>) {
        if at.id.id.is_some() {
            Self::say(json!({ "op": "ack", "stream": at.stream, "count": count }), at.id, cx);
        }
    }

    fn committed(&self, at: &Place<'_, Asked>, cx: &mut Context<'_>) {
        if at.id.id.is_some() {
            Self::say(json!({ "op": "ack", "stream": at.stream, "partition": at.partition }), at.id, cx);
        }
    }

    fn deleted(&self, at: &Place<'_, Asked>, cx: &mut Context<'_>) {
        if at.id.id.is_some() {
            Self::say(json!({ "op": "ack", "stream": at.stream }), at.id, cx);
        }
    }

    fn failed(&self, id: &Asked, problem: Problem, cx: &mut Context<'_>) {
        Self::say(problem.words(), id, cx);
    }

    fn records(
        &self,
        at: &Place<'_, Asked>,
        from: u64,
        end: u64,
        read: &Read,
        cx: &mut Context<'_>,
    ) -> (Sent, u64) {
        let mut words = begin_records(&Place { id: &Asked::default(), ..*at });
        let mut records = counted(&read.batches, from);
        while let Some(record) = records.next()
            && records.damaged().is_none()
        {
            push_record(&record, &mut words);
        }
        let next = match records.damaged() {
            // Earlier records come first.
            Some(damaged) if damaged.start == from => {
                return (self.gap(at, damaged.start, damaged.end, cx), damaged.end);
            }
            Some(damaged) => damaged.start,
            None => read.next,
        };
        (cx.send_text(&end_records(next, end, words)).unwrap_or(Sent::Dropped), next)
    }

    fn fetched(&self, at: &Place<'_, Asked>, fetched: &Fetched, cx: &mut Context<'_>) {
        let Fetched { from, end, read } = fetched;
        let text = match at.id.epoch {
            Some(epoch) => history_text(at, epoch, fetched),
            None => records_text(at, *from, *end, read.as_ref()),
        };
        // After a Close, the message is dropped.
        let _ = cx.send_text(&text);
    }

    fn gap(&self, at: &Place<'_, Asked>, from: u64, to: u64, cx: &mut Context<'_>) -> Sent {
        let words =
            json!({ "op": "gap", "stream": at.stream, "partition": at.partition, "from": from, "to": to });
        Self::say(words, &Asked::default(), cx)
    }

    fn assigned(&self, _: &Asked, stream: &str, assigned: &[Assigned], cx: &mut Context<'_>) {
        Self::say(
            json!({ "op": "assigned", "stream": stream, "partitions": listed_places(assigned) }),
            &Asked::default(),
            cx,
        );
    }
}
