//! Streams and records as JSON.

use std::fmt::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sinews_stream::record::{Record, ValueKind};
use sinews_stream::{GroupInfo, Lookup, ReadResult, Stream, StreamInfo, StreamState};

use super::fetch::READ_BYTES;
use super::records_from::{RecordsFrom, records_from};
use super::service::StreamService;
use crate::json::is_deliverable;

/// Committed offsets in the description of a stream: further groups are only counted.
const OFFSETS_MAX: usize = 8_192;

/// A stream and its offsets, as JSON.
pub(crate) fn described(store: &StreamService, stream: &Stream) -> Value {
    with_groups(open_json(store, stream), &stream.group_infos(), OFFSETS_MAX)
}

/// One entry of a list of streams. A stream that is not open has its last known offsets.
pub(crate) fn listed(store: &StreamService, info: &StreamInfo) -> Value {
    listed_with(store, info, OFFSETS_MAX)
}

/// As [`listed`], with the groups up to this number of offsets.
fn listed_with(store: &StreamService, info: &StreamInfo, offsets_max: usize) -> Value {
    if let Ok(Lookup::Open(stream)) = store.streams().map(|streams| streams.lookup(&info.name)) {
        return with_groups(open_json(store, &stream), &info.groups, offsets_max);
    }
    let partitions = info.partitions.iter().enumerate().map(|(number, it)| {
        json!({ "partition": number, "earliest": it.earliest, "end": it.readable, "bytes": it.bytes })
    });
    let message = json!({ "stream": &*info.name, "partitions": partitions.collect::<Vec<_>>() });
    let mut message = with_groups(message, &info.groups, offsets_max);
    if let StreamState::Damaged(why) = &info.state {
        message["error"] = json!(format!("the stream is damaged: {why}"));
    }
    message
}

/// An open stream with its partitions.
fn open_json(store: &StreamService, stream: &Stream) -> Value {
    let partitions = (0..stream.partitions()).filter_map(|number| {
        let partition = stream.partition(number)?;
        let (earliest, end) = store.ends(stream, number, &partition);
        let bytes = partition.statistics().bytes;
        Some(json!({ "partition": number, "earliest": earliest, "end": end, "bytes": bytes }))
    });
    json!({ "stream": stream.name(), "partitions": partitions.collect::<Vec<_>>() })
}

/// Adds the groups, by name, and the number of groups beyond the limit of offsets.
fn with_groups(mut message: Value, groups: &[GroupInfo], offsets_max: usize) -> Value {
    let mut left = offsets_max;
    let shown = groups.iter().take_while(|group| {
        let is_shown = left > 0;
        left = left.saturating_sub(group.offsets.len());
        is_shown
    });
    let shown: Vec<Value> =
        shown.map(|group| json!({ "group": &*group.name, "partitions": offsets(&group.offsets) })).collect();
    if shown.len() < groups.len() {
        message["more_groups"] = json!(groups.len() - shown.len());
    }
    message["groups"] = json!(shown);
    message
}

/// A stream, its offsets and its configuration, as JSON. The configuration of a broker's stream is at the broker.
pub(crate) fn info_json(store: &StreamService, info: &StreamInfo) -> Value {
    let mut message = listed(store, info);
    if store.broker().is_none() {
        message["created"] = json!(info.created / 1_000);
        message["retain_bytes"] = json!(info.config.retain_bytes());
        message["retain_seconds"] = json!(info.config.retain_age().map(|age| age.as_secs()));
        message["compact"] = json!(info.config.compaction().is_some());
    }
    message
}

/// The groups of a stream, with the lag of each partition that has a committed offset.
pub(crate) fn group_lags(store: &StreamService, info: &StreamInfo) -> Value {
    let mut message = listed_with(store, info, usize::MAX);
    let ends: Vec<u64> =
        message["partitions"].as_array().into_iter().flatten().filter_map(|it| it["end"].as_u64()).collect();
    let mut groups = message["groups"].take();
    for partition in groups
        .as_array_mut()
        .into_iter()
        .flatten()
        .flat_map(|group| group["partitions"].as_array_mut().into_iter().flatten())
    {
        let number = partition["partition"].as_u64().and_then(|number| usize::try_from(number).ok());
        let end = number.and_then(|number| ends.get(number)).copied().unwrap_or_default();
        partition["lag"] = json!(end.saturating_sub(partition["offset"].as_u64().unwrap_or_default()));
    }
    groups
}

fn offsets(assignments: &[(u32, u64)]) -> Value {
    assignments
        .iter()
        .map(|(partition, offset)| json!({ "partition": partition, "offset": offset }))
        .collect()
}

/// Adds the records of a read to a message that ends with `[`, until the message is long, and ends the message.
pub(crate) fn read_text(mut message: String, (from, end): (u64, u64), read: Option<&ReadResult>) -> String {
    let (next, batches) = read.map_or((from, &[][..]), |read| (read.next, &read.batches));
    let cut = push_records(&mut records_from(batches, from), &mut message, |_| false);
    end_records(cut.unwrap_or(next).max(from), end, message)
}

/// Adds records to a message until it has the bytes of a read, or until they end: a batch of 8 MiB has up to 48 MiB in
/// JSON. Returns the offset at which the next message begins, if the message is long.
pub(crate) fn push_records(
    records: &mut RecordsFrom<'_>,
    message: &mut String,
    ends: impl Fn(&RecordsFrom<'_>) -> bool,
) -> Option<u64> {
    while let Some(record) = records.next()
        && !ends(records)
    {
        if message.len() >= READ_BYTES {
            return Some(record.offset);
        }
        if !message.ends_with('[') {
            message.push(',');
        }
        write_record(&record, "", message);
    }
    None
}

pub(crate) fn end_records(next: u64, end: u64, mut message: String) -> String {
    // Writing to a string cannot fail.
    let _ = write!(message, "],\"next\":{next},\"end\":{end}}}");
    message
}

/// A record as JSON, without the fields that all records of a partition share.
pub(crate) fn write_record(record: &Record<'_>, prefix: &str, out: &mut impl Write) {
    // Writing to a string cannot fail.
    let _ = write!(out, "{{{prefix}\"offset\":{},\"at\":{}", record.offset, record.timestamp);
    let _ = match std::str::from_utf8(record.key) {
        Ok("") => Ok(()),
        Ok(key) => write!(out, ",\"key\":{}", json!(key)),
        Err(_) => write!(out, ",\"key_b64\":\"{}\"", STANDARD.encode(record.key)),
    };
    // The declared kind was not checked.
    if record.kind == ValueKind::Tombstone {
        let _ = out.write_str(",\"deleted\":true}");
        return;
    }
    let _ = match (record.kind, std::str::from_utf8(record.value).ok()) {
        (ValueKind::Text, Some(text)) => write!(out, ",\"data\":{}}}", json!(text)),
        (ValueKind::Json, Some(text)) if is_deliverable(text) => {
            // A line break would separate records in line-based answers; JSON strings contain none.
            write!(out, ",\"data\":{}}}", text.trim().replace(['\r', '\n'], " "))
        }
        _ => write!(out, ",\"b64\":\"{}\"}}", STANDARD.encode(record.value)),
    };
}
