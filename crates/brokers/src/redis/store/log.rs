//! Operations of logs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use redis::Value;
use sinews_store::{
    LogAppend, LogAppended, LogPage, LogStart, Position, ReadLog, StoreAnswer, StoreError, StoreResponder,
    TopicPart,
};

use super::RedisStore;
use super::decode::{SpacedFields, Values, array, bytes, entry, position, position_and_prev, unexpected};
use super::names::{Names, partition};
use super::queue::{OperationReply, OperationRequest};
use super::script::ScriptName;
use super::{ONCE_WINDOW, milliseconds};
use crate::lock::lock;

/// Statuses of an append beside 0.
const OTHER_TOP: u64 = 1;
const REPEATED: u64 = 2;
/// Expected bytes of a position.
const POSITION_BYTES: usize = 64;

impl RedisStore {
    pub(super) fn append_to(&self, append: LogAppend) -> StoreAnswer<LogAppended> {
        if let Err(error) = super::check_size(append.payload.len()) {
            return StoreAnswer::ready(Err(error));
        }
        self.shared.submit(append_request(&self.shared.names, append), appended)
    }

    pub(super) fn read_entries(&self, read: &ReadLog) -> StoreAnswer<LogPage> {
        let part = TopicPart::log(&read.topic);
        let request = OperationRequest::new(ScriptName::Log, "read", &read.topic)
            .key(self.shared.names.meta(&part))
            .key(self.shared.names.channel(&part));
        let request = match read.start {
            LogStart::Last(count) => request.text("last").number(count.into()),
            LogStart::After(sequence) => request.text("after").number(sequence),
        };
        // A position question reads no entry.
        let is_position = read.max_messages == 0;
        let bytes = if is_position { 0 } else { usize::try_from(read.max_bytes).unwrap_or(usize::MAX) };
        let request = request.number(read.max_messages.into()).number(read.max_bytes.max(1)).answers(bytes);
        self.shared.submit(request, |reply| page(reply).unwrap_or_else(|| Err(unexpected())))
    }

    pub(super) fn read_tops(&self, parts: &[TopicPart]) -> StoreAnswer<Tops> {
        let mut groups: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (at, part) in parts.iter().enumerate() {
            groups.entry(self.shared.servers.group(partition(&part.topic))).or_default().push(at);
        }
        if groups.is_empty() {
            return StoreAnswer::ready(Ok(Vec::new()));
        }
        let (responder, pending) = StoreAnswer::channel();
        let tops = vec![Ok(None); parts.len()];
        let read = Arc::new(Mutex::new(TopsRead { responder: Some(responder), tops, groups: groups.len() }));
        for group in groups.into_values() {
            let request = OperationRequest::new(ScriptName::Log, "tops", "")
                .in_partition(partition(&parts[group[0]].topic))
                .answers(group.len() * POSITION_BYTES);
            let request =
                group.iter().fold(request, |request, at| request.key(self.shared.names.meta(&parts[*at])));
            let (request, read) = (request.number(group.len() as u64), read.clone());
            let answer = move |reply: Result<OperationReply, StoreError>| {
                lock(&read).add(&group, reply.and_then(|reply| tops_of(reply).ok_or_else(unexpected)));
            };
            self.shared.submit_with(request, Box::new(answer));
        }
        pending
    }

    pub(super) fn clear_log(&self, part: &TopicPart) -> StoreAnswer<()> {
        let request = OperationRequest::new(ScriptName::Log, "clear", &part.topic)
            .key(self.shared.names.meta(part))
            .key(self.shared.names.channel(part));
        self.shared.submit(request, |_| Ok(()))
    }
}

pub(super) fn append_request(names: &Names, append: LogAppend) -> OperationRequest {
    let retention = &append.retention;
    let part = TopicPart { topic: append.topic, part: sinews_store::PartKind::Log };
    let (age, unused) = (retention.age.map_or(0, milliseconds), milliseconds(retention.unused));
    let request = OperationRequest::new(ScriptName::Log, "append", &part.topic)
        .key(names.meta(&part))
        .key(names.channel(&part))
        .text(append.payload)
        .text(format!("{} {} {age} {unused}", retention.messages.max(1), retention.bytes))
        .text(extras(append.once.is_some(), append.if_top))
        .writes();
    match append.once {
        Some(id) => request.key(names.append_once(&part.topic, &id)),
        None => request,
    }
}

type Tops = Vec<Result<Option<Position>, StoreError>>;

/// Positions from several servers.
struct TopsRead {
    responder: Option<StoreResponder<Tops>>,
    tops: Tops,
    /// Answers that are missing.
    groups: usize,
}

impl TopsRead {
    /// Adds an answer; the last one completes the positions.
    fn add(&mut self, group: &[usize], answer: Result<Vec<Option<Position>>, StoreError>) {
        for (index, at) in group.iter().enumerate() {
            self.tops[*at] = match &answer {
                Ok(tops) => tops.get(index).copied().ok_or_else(unexpected),
                Err(error) => Err(error.clone()),
            };
        }
        self.groups -= 1;
        if self.groups == 0
            && let Some(responder) = self.responder.take()
        {
            responder.answer(Ok(std::mem::take(&mut self.tops)));
        }
    }
}

/// The window of a name, and the expected position; empty for most messages.
fn extras(has_name: bool, if_top: Option<Position>) -> String {
    let window = if has_name { milliseconds(ONCE_WINDOW).to_string() } else { String::new() };
    match if_top {
        Some(top) => format!("{window} {} {}", top.epoch, top.sequence),
        None if has_name => format!("{window}  "),
        None => String::new(),
    }
}

fn appended(reply: OperationReply) -> Result<LogAppended, StoreError> {
    let mut values = Values::new(reply.values);
    let status = values.number();
    if status == Some(OTHER_TOP) {
        return Err(StoreError::OtherTop);
    }
    let answer = values.bytes().and_then(|text| position_and_prev(&text));
    let (position, prev) = answer.ok_or_else(unexpected)?;
    Ok(LogAppended { position, prev, repeated: status == Some(REPEATED) })
}

fn page(reply: OperationReply) -> Option<Result<LogPage, StoreError>> {
    let mut values = Values::new(reply.values);
    if values.number()? > 0 {
        return Some(Ok(LogPage::default()));
    }
    let top = Some(position(&values.bytes()?)?);
    let more = values.number()? > 0;
    let entries = values.array()?.into_iter().map(|value| entry(SpacedFields::new(bytes(value)?)));
    Some(Ok(LogPage { top, entries: entries.collect::<Option<_>>()?, more }))
}

fn tops_of(reply: OperationReply) -> Option<Vec<Option<Position>>> {
    let tops = array(reply.values.into_iter().nth(1)?)?;
    tops.into_iter()
        .map(|top| match top {
            Value::Nil => Some(None),
            top => position(&bytes(top)?).map(Some),
        })
        .collect()
}
