//! Operations on streams in JSON, at `/ws` and at `/streams/{name}`.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sinews_server::{Context, Sent};
use sinews_stream::record::{self, RecordBuilder, RecordError, Records, ValueKind};
use sinews_stream::{Appended, ReadResult};

use crate::access::auth::{Action, Rights};
use crate::model::brief::brief;
use crate::model::history::HistoryRange;
use crate::model::json::{borrowed, check_depth, present};
use crate::model::opening::SharedOpening;
use crate::model::problem::{Problem, code, problem};
use crate::model::{MessageContent, is_pattern};
use crate::streams::connection::{
    ConnectionStreams, GroupOffset, RequestedAck, RequestedRecords, StreamInStore,
};
use crate::streams::errors::{STREAMS_DISABLED, malformed};
use crate::streams::fetch::FetchedRecords;
use crate::streams::json::{described, end_records, push_records, read_text};
use crate::streams::records_from::records_from;
use crate::streams::replies::{AssignedPartition, Replies, ReplyContext};
use crate::streams::request::{AckLevel, PartitionChoice, SubscriptionStart, now};
use crate::streams::service::StreamService;
use crate::streams::topic_history::{TopicPage, stored_history};

/// An operation on streams. The stream may be omitted if the path names it.
#[derive(Debug)]
pub(crate) enum StreamOp<'a> {
    Append { partition: PartitionChoice, ack: AckLevel, records: Vec<RecordInput<'a>> },
    Consume { partition: PartitionChoice, begin: SubscriptionStart },
    Commit { partition: u32, offset: u64, group: Cow<'a, str> },
    Read { partition: u32, offset: u64, max: usize },
    Stop,
    Stream,
    Delete,
}

/// One record in a client's message. Other fields are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RecordInput<'a> {
    #[serde(borrow, deserialize_with = "borrowed")]
    pub(crate) key: Option<Cow<'a, str>>,
    #[serde(borrow, deserialize_with = "present")]
    pub(crate) data: Option<&'a RawValue>,
    #[serde(borrow, deserialize_with = "borrowed")]
    pub(crate) b64: Option<Cow<'a, str>>,
    /// The record is a tombstone: it deletes its key.
    pub(crate) deleted: bool,
}

/// The answer to an operation.
pub(crate) enum StreamReply {
    /// Acknowledgement fields.
    Ack(Value),
    /// A message of its own kind.
    Message(String),
    /// The answer follows later.
    Deferred,
}

/// One client's streams.
pub(crate) struct JsonStreams {
    store: Option<Arc<StreamService>>,
    /// The stream that the path names.
    default_stream: Option<Box<str>>,
    /// Created by the first operation: most clients use no stream.
    streams: Option<Box<ConnectionStreams<JsonRequest>>>,
}

/// A request's id, and whether it concerns a topic: then the answer has the topic's epoch.
#[derive(Clone, Debug, Default)]
pub(crate) struct JsonRequest {
    id: Option<Value>,
    epoch: Option<u64>,
}

impl From<&Option<Value>> for JsonRequest {
    fn from(id: &Option<Value>) -> Self {
        Self { id: id.clone(), epoch: None }
    }
}

impl JsonRequest {
    /// Encodes an answer's start.
    fn json_prefix(&self) -> String {
        self.id.as_ref().map_or_else(String::new, |id| format!("\"id\":{id},"))
    }
}

impl JsonStreams {
    pub(crate) fn new(store: Option<Arc<StreamService>>, default_stream: Option<String>) -> Self {
        Self { store, default_stream: default_stream.map(Into::into), streams: None }
    }

    /// The step that the action on a topic has to wait for.
    pub(crate) fn opening_of_topic(
        &self,
        topic: &str,
        action: Action,
        rights: &Rights,
    ) -> Option<SharedOpening> {
        self.store_of(topic)?.opening(topic, action, rights)
    }

    /// The step that the operation on a stream has to wait for.
    pub(crate) fn opening(
        &self,
        stream: Option<&str>,
        op: &StreamOp<'_>,
        rights: &Rights,
    ) -> Option<SharedOpening> {
        let name = stream.or(self.default_stream.as_deref())?;
        let action = match op {
            StreamOp::Stop | StreamOp::Delete => return None,
            StreamOp::Append { .. } => Action::Publish,
            _ => Action::Subscribe,
        };
        let store = self.store.as_ref()?;
        let opening = store.opening(name, action, rights);
        match op {
            StreamOp::Consume { partition, begin }
                if opening.is_none() && rights.may(action, name).is_ok() =>
            {
                store.opening_of_start(name, *partition, begin.start)
            }
            _ => opening,
        }
    }

    /// Stores a message until its stream is open.
    pub(crate) fn defer(&mut self, opening: SharedOpening, message: Bytes, cx: &mut Context<'_>) {
        self.streams.get_or_insert_default().defer(opening, message, cx);
    }

    /// Returns the stored message when its stream is open or has failed, with the failure.
    pub(crate) fn take_deferred(&mut self, cx: &mut Context<'_>) -> Option<(Bytes, Result<(), Problem>)> {
        self.streams.as_mut()?.take_deferred(cx)
    }

    /// Executes an operation.
    pub(crate) fn execute(
        &mut self,
        stream: Option<Cow<'_, str>>,
        op: StreamOp<'_>,
        id: &Option<Value>,
        rights: &Rights,
        cx: &mut Context<'_>,
    ) -> Result<StreamReply, Problem> {
        let store = self.store.clone().ok_or_else(|| problem(code::NO_STREAM, STREAMS_DISABLED))?;
        let stream = stream.as_deref().or(self.default_stream.as_deref());
        let name = stream.ok_or_else(|| problem(code::MALFORMED, "stream is missing"))?;
        let streams = self.streams.get_or_insert_default();
        match op {
            StreamOp::Append { partition, ack, records } => {
                let to = StreamInStore { store: &store, stream: store.stream_to_publish(name, rights)? };
                let records = build(&records, store.limits())?;
                // A client that gives no id still receives failures.
                let ack = RequestedAck { id: id.into(), level: ack };
                streams.append(to, partition, records, ack, &JsonReplies, cx)?;
                Ok(StreamReply::Deferred)
            }
            StreamOp::Consume { partition, begin } => {
                let stream = store.stream_to_read(name, rights)?;
                if streams.has(|_, known| known == name) {
                    return Err(problem(
                        code::NOT_SUBSCRIBED,
                        format!("{} is being consumed already: stop first", brief(name)),
                    ));
                }
                let assignments = streams.subscribe(&store, stream, partition, begin, id.into(), cx)?;
                Ok(StreamReply::Ack(json!({ "stream": name, "partitions": assignments_json(&assignments) })))
            }
            StreamOp::Commit { partition, offset, group } => {
                let stream = store.stream_to_read(name, rights)?;
                let to = GroupOffset { group: &group, partition, offset };
                streams.commit(&store, stream, to, id.into(), &JsonReplies, cx)?;
                Ok(StreamReply::Deferred)
            }
            StreamOp::Read { partition, offset, max } => {
                let stream = store.stream_to_read(name, rights)?;
                let requested = RequestedRecords { partition, offset, most: max };
                streams.fetch(&store, stream, requested, id.into(), &JsonReplies, cx);
                Ok(StreamReply::Deferred)
            }
            StreamOp::Stop if streams.unsubscribe(|_, known| known == name) => {
                Ok(StreamReply::Ack(json!({ "stream": name })))
            }
            StreamOp::Delete => {
                streams.delete(&store, name, rights, id.into(), &JsonReplies, cx)?;
                Ok(StreamReply::Deferred)
            }
            StreamOp::Stop => {
                Err(problem(code::NOT_SUBSCRIBED, format!("{} is not being consumed", brief(name))))
            }
            StreamOp::Stream => {
                let mut message = described(&store, &store.stream_to_read(name, rights)?).to_value();
                message["op"] = json!("stream");
                if let Some(id) = id {
                    message["id"] = id.clone();
                }
                Ok(StreamReply::Message(message.to_string()))
            }
        }
    }

    /// Whether there is a consumption, or a message that waits for a stream.
    pub(crate) fn is_consuming(&self) -> bool {
        self.streams.as_ref().is_some_and(|streams| streams.is_waiting() || streams.has(|_, _| true))
    }

    /// Ends the consumptions that the rights do not cover; returns an error for each.
    pub(crate) fn end_denied(&mut self, rights: &Rights) -> Vec<Value> {
        let denied = |stream: &str| rights.may(Action::Subscribe, stream).err();
        let Some(streams) = &mut self.streams else { return Vec::new() };
        let ended = streams.end_denied(denied).into_iter().map(|(request, stream, denied)| {
            let mut error = Problem::from(denied).into_json();
            error["stream"] = json!(stream);
            if let Some(id) = request.id {
                error["id"] = id;
            }
            error
        });
        ended.collect()
    }

    /// The store of durable topics' streams, if there is one.
    pub(crate) fn store(&self) -> Option<&Arc<StreamService>> {
        self.store.as_ref()
    }

    /// The store, if this topic is durable.
    pub(crate) fn store_of(&self, topic: &str) -> Option<&Arc<StreamService>> {
        self.store().filter(|store| store.topics().is_durable(topic))
    }

    /// The store, if this topic is durable, or may match a broker's durable topics as a pattern.
    pub(crate) fn store_of_subscription(&self, topic: &str) -> Option<&Arc<StreamService>> {
        let is_discovered = |store: &&Arc<StreamService>| is_pattern(topic) && store.discovers(topic);
        self.store_of(topic).or_else(|| self.store().filter(is_discovered))
    }

    /// Publishes to a durable topic, and answers when the stream's durability is reached.
    pub(crate) fn append_to_durable(
        &mut self,
        store: &StreamService,
        topic: &str,
        content: &MessageContent,
        id: &Option<Value>,
        rights: &Rights,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        let (relay, records) = store.prepare_publication(topic, content, None, rights)?;
        let request = JsonRequest { id: id.clone(), epoch: Some(relay.epoch()) };
        // A client that gives no id still receives failures.
        let to = StreamInStore { store, stream: relay.stream().clone() };
        let ack = RequestedAck { id: request, level: AckLevel::Broker };
        self.streams.get_or_insert_default().append_own(
            to,
            PartitionChoice::Number(0),
            records,
            ack,
            &JsonReplies,
            cx,
        )
    }

    /// Answers with a part of a durable topic's history.
    pub(crate) fn history_of_topic(
        &mut self,
        store: &Arc<StreamService>,
        topic: &str,
        range: HistoryRange,
        id: &Option<Value>,
        cx: &mut Context<'_>,
    ) {
        let page = stored_history(Arc::clone(store), topic.to_owned(), range);
        let (topic, request) = (topic.to_owned(), JsonRequest { id: id.clone(), epoch: None });
        let streams = self.streams.get_or_insert_default();
        streams.reply_with_history(page, topic, request, &JsonReplies, cx);
    }

    /// Whether the path names the stream.
    pub(crate) fn has_default(&self) -> bool {
        self.default_stream.is_some()
    }

    pub(crate) fn woken(&mut self, cx: &mut Context<'_>) {
        if let Some(streams) = &mut self.streams {
            streams.woken(self.store.as_deref(), &JsonReplies, cx);
        }
    }

    pub(crate) fn drain(&mut self, cx: &mut Context<'_>) {
        if let Some(streams) = &mut self.streams {
            streams.drained(self.store.as_deref(), &JsonReplies, cx);
        }
    }

    /// Pauses reads again if the streams need it.
    pub(crate) fn restore_pause(&self, cx: &mut Context<'_>) {
        if let Some(streams) = &self.streams {
            streams.update_read_pause(cx);
        }
    }

    pub(crate) fn close(&mut self) {
        self.streams = None;
    }
}

fn assignments_json(assignments: &[AssignedPartition]) -> Value {
    let one = |at: &AssignedPartition| {
        let mut message = json!({ "partition": at.partition, "offset": at.offset });
        if at.is_reset {
            message["reset"] = json!(true);
        }
        message
    };
    assignments.iter().map(one).collect()
}

/// Encodes the records in a client's message.
fn build(given: &[RecordInput<'_>], limits: &record::RecordLimits) -> Result<Records, Problem> {
    let mut builder = RecordBuilder::with_limits(*limits);
    for one in given {
        let (value, kind) = match (one.data, &one.b64, one.deleted) {
            (Some(data), None, false) => json_value(data)?,
            (None, None, true) if one.key.is_some() => (Cow::Borrowed(&b""[..]), ValueKind::Tombstone),
            (None, Some(b64), false) => {
                let bytes = STANDARD.decode(b64.as_bytes());
                let bytes = bytes.map_err(|error| problem(code::MALFORMED, format!("b64: {error}")))?;
                (Cow::Owned(bytes), ValueKind::Bytes)
            }
            _ => {
                let text = "a record has data or b64, or a key and deleted";
                return Err(problem(code::MALFORMED, text));
            }
        };
        let key = one.key.as_deref().unwrap_or_default();
        builder.push(now(), key.as_bytes(), &value, kind).map_err(malformed)?;
    }
    builder.finish().ok_or_else(|| malformed(RecordError::Empty))
}

/// JSON as a record's value: a string becomes its text.
///
/// # Errors
/// The data is nested too deeply.
fn json_value(data: &RawValue) -> Result<(Cow<'_, [u8]>, ValueKind), Problem> {
    check_depth(data.get())?;
    Ok(match serde_json::from_str::<String>(data.get()) {
        Ok(text) => (Cow::Owned(text.into_bytes()), ValueKind::Text),
        Err(_) => (Cow::Borrowed(data.get().as_bytes()), ValueKind::Json),
    })
}

/// A read's records, as one message: several could exceed the limit of the outbound queue.
fn records_text(
    at: &ReplyContext<'_, JsonRequest>,
    from: u64,
    end: u64,
    read: Option<&ReadResult>,
) -> String {
    read_text(begin_records(at), from, end, read)
}

/// A read's records before its first damage, as one message, and the offset that follows. If the read begins with
/// damaged records, their offsets.
fn consumed_text(
    at: &ReplyContext<'_, JsonRequest>,
    from: u64,
    end: u64,
    read: &ReadResult,
) -> Result<(String, u64), Range<u64>> {
    let mut message = begin_records(&ReplyContext { id: &JsonRequest::default(), ..*at });
    let mut records = records_from(&read.batches, from);
    let cut = push_records(&mut records, &mut message, |records| records.damaged().is_some());
    let next = match (cut, records.damaged()) {
        (Some(next), _) => next,
        (None, Some(damaged)) if damaged.start == from => return Err(damaged),
        (None, Some(damaged)) => damaged.start,
        (None, None) => read.next,
    };
    Ok((end_records(next, end, message), next))
}

fn begin_records(at: &ReplyContext<'_, JsonRequest>) -> String {
    let (id, stream, partition) = (at.id.json_prefix(), json!(at.stream), at.partition);
    format!("{{\"op\":\"records\",{id}\"stream\":{stream},\"partition\":{partition},\"records\":[")
}

/// Encodes replies in JSON.
struct JsonReplies;

impl JsonReplies {
    fn send_json(mut message: Value, request: &JsonRequest, cx: &mut Context<'_>) {
        if let Some(id) = &request.id {
            message["id"] = id.clone();
        }
        // After a Close, the message is dropped.
        let _ = cx.send_text(&message.to_string());
    }
}

impl Replies for JsonReplies {
    type Id = JsonRequest;

    fn acknowledges(&self, request: &JsonRequest) -> bool {
        request.id.is_some()
    }

    fn appended(&self, at: &ReplyContext<'_, JsonRequest>, appended: Appended, cx: &mut Context<'_>) {
        let Appended { first, count, .. } = appended;
        if let Some(epoch) = at.id.epoch {
            if at.id.id.is_some() {
                Self::send_json(json!({ "op": "ack", "epoch": epoch, "seq": first + 1 }), at.id, cx);
            }
            return;
        }
        if at.id.id.is_some() {
            let message = json!({
                "op": "ack", "stream": at.stream, "partition": at.partition, "offset": first, "count": count,
            });
            Self::send_json(message, at.id, cx);
        }
    }

    fn accepted(&self, at: &ReplyContext<'_, JsonRequest>, count: u32, cx: &mut Context<'_>) {
        if at.id.id.is_some() {
            Self::send_json(json!({ "op": "ack", "stream": at.stream, "count": count }), at.id, cx);
        }
    }

    fn committed(&self, at: &ReplyContext<'_, JsonRequest>, cx: &mut Context<'_>) {
        if at.id.id.is_some() {
            Self::send_json(
                json!({ "op": "ack", "stream": at.stream, "partition": at.partition }),
                at.id,
                cx,
            );
        }
    }

    fn deleted(&self, at: &ReplyContext<'_, JsonRequest>, cx: &mut Context<'_>) {
        if at.id.id.is_some() {
            Self::send_json(json!({ "op": "ack", "stream": at.stream }), at.id, cx);
        }
    }

    fn failed(&self, id: &JsonRequest, problem: Problem, cx: &mut Context<'_>) {
        Self::send_json(problem.into_json(), id, cx);
    }

    fn records(
        &self,
        at: &ReplyContext<'_, JsonRequest>,
        from: u64,
        end: u64,
        read: &ReadResult,
        cx: &mut Context<'_>,
    ) -> (Sent, u64) {
        match consumed_text(at, from, end, read) {
            Ok((text, next)) => (cx.send_text(&text).unwrap_or(Sent::Dropped), next),
            Err(damaged) => (self.gap(at, damaged.start, damaged.end, cx), damaged.end),
        }
    }

    fn fetched(&self, at: &ReplyContext<'_, JsonRequest>, fetched: &FetchedRecords, cx: &mut Context<'_>) {
        let FetchedRecords { from, end, read } = fetched;
        let text = records_text(at, *from, *end, read.as_ref());
        // After a Close, the message is dropped.
        let _ = cx.send_text(&text);
    }

    fn history(&self, at: &ReplyContext<'_, JsonRequest>, page: &TopicPage<String>, cx: &mut Context<'_>) {
        let (id, topic, messages) = (at.id.json_prefix(), json!(at.stream), &page.messages);
        let tail = page.tail();
        let text = format!("{{\"op\":\"history\",{id}\"topic\":{topic},\"messages\":[{messages}{tail}");
        // After a Close, the message is dropped.
        let _ = cx.send_text(&text);
    }

    fn gap(&self, at: &ReplyContext<'_, JsonRequest>, from: u64, to: u64, cx: &mut Context<'_>) -> Sent {
        let message =
            json!({ "op": "gap", "stream": at.stream, "partition": at.partition, "from": from, "to": to });
        cx.send_text(&message.to_string()).unwrap_or(Sent::Dropped)
    }

    fn assigned(&self, _: &JsonRequest, stream: &str, assigned: &[AssignedPartition], cx: &mut Context<'_>) {
        Self::send_json(
            json!({ "op": "assigned", "stream": stream, "partitions": assignments_json(assigned) }),
            &JsonRequest::default(),
            cx,
        );
    }
}

#[cfg(test)]
mod tests {
    use sinews_stream::record::{RecordBuilder, ValueKind};
    use sinews_stream::{Durability, StreamConfig, Streams, StreamsConfig};

    use super::*;
    use crate::streams::fetch::READ_BYTES;

    #[test]
    fn large_batch_reaches_a_consumer_in_messages_of_limited_length() {
        let directory = tempfile::tempdir().unwrap();
        let (streams, _) = Streams::open(directory.path(), StreamsConfig::default()).unwrap();
        let partition = streams.create("s", &StreamConfig::default()).unwrap().partition(0).unwrap();
        let mut builder = RecordBuilder::new();
        for _ in 0..1_000 {
            // Six JSON bytes for each byte.
            builder.push(1, b"", &[1; 8_000], ValueKind::Text).unwrap();
        }
        partition.append(builder.finish().unwrap()).unwrap().block(Durability::Disk).unwrap();
        let at = ReplyContext { id: &JsonRequest::default(), stream: "s", partition: 0 };
        let (mut next, mut messages) = (0, 0);
        while next < 1_000 {
            let read = partition.read(next, READ_BYTES).unwrap();
            let fetched = records_text(&at, next, 1_000, Some(&read));
            let (text, end) = consumed_text(&at, next, 1_000, &read).unwrap();
            assert_eq!(fetched, text);
            assert!(text.len() < READ_BYTES + 50_000, "{} bytes", text.len());
            let message: Value = serde_json::from_str(&text).unwrap();
            let records = message["records"].as_array().unwrap();
            let offsets: Vec<u64> = records.iter().map(|it| it["offset"].as_u64().unwrap()).collect();
            assert_eq!(offsets, (next..end).collect::<Vec<_>>());
            assert_eq!(message["next"], end);
            (next, messages) = (end, messages + 1);
        }
        assert!(messages >= 1_000 * 48_000 / (READ_BYTES + 50_000), "{messages}");
        streams.close();
    }
}
