//! Streams and records as JSON.

use std::fmt::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::{Value, json};
use sinews_stream::record::{Record, ValueKind};
use sinews_stream::{GroupInfo, Lookup, ReadResult, Stream, StreamInfo, StreamState};

use super::fetch::READ_BYTES;
use super::records_from::{RecordsFrom, records_from};
use super::service::StreamService;
use crate::model::json::is_deliverable;
use crate::model::json_list::JsonListItem;
use crate::model::schema::described;

/// Consumer groups of a page.
pub(crate) const GROUPS_MAX: usize = 1_000;

/// Committed offsets in the description of a stream, where further groups are only counted, and in a page of groups,
/// which ends with the group that exceeds them.
const OFFSETS_MAX: usize = 8_192;

described! {
    /// A stream and its offsets.
    #[derive(Serialize)]
    struct ListedStream {
        /// Name of the stream
        stream: Box<str>,
        /// Partitions by number
        partitions: Vec<ListedPartition>,
        /// Consumer groups by name
        groups: Vec<ListedGroup>,
        /// Number of further groups; all of them: `/streams/{stream}/groups`
        #[serde(skip_serializing_if = "Option::is_none")]
        more_groups: Option<usize>,
        /// Damage of a stream that cannot be opened
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    }

    #[derive(Serialize)]
    struct ListedPartition {
        /// Number of the partition
        partition: u32,
        /// Offset of the first record
        earliest: u64,
        /// Offset of the next record
        end: u64,
        /// Bytes on the disk of this node
        bytes: u64,
    }

    #[derive(Serialize)]
    struct ListedGroup {
        /// Name of the consumer group
        group: Box<str>,
        /// Partitions with a committed offset
        partitions: Vec<PartitionOffset>,
    }

    #[derive(Serialize)]
    struct PartitionOffset {
        /// Number of the partition
        partition: u32,
        /// Committed offset
        offset: u64,
    }

    /// A group of a stream with its lags.
    #[derive(Serialize)]
    struct GroupLags {
        /// Name of the consumer group
        group: Box<str>,
        /// Partitions with an offset
        partitions: Vec<OffsetLag>,
    }

    /// A committed offset, and the records between it and the end.
    #[derive(Serialize)]
    struct OffsetLag {
        /// Number of the partition
        pub(crate) partition: u32,
        /// Committed offset
        pub(crate) offset: u64,
        /// Offsets between it and the end
        pub(crate) lag: u64,
    }
}

impl JsonListItem for ListedStream {
    fn write(&self, out: &mut impl Write) {
        write_json(self, out);
    }

    fn memory(&self) -> usize {
        let groups = self
            .groups
            .iter()
            .map(|it| size_of::<ListedGroup>() + it.group.len() + size_of_val(it.partitions.as_slice()));
        let error = self.error.as_ref().map_or(0, String::len);
        self.stream.len() + size_of_val(self.partitions.as_slice()) + groups.sum::<usize>() + error
    }
}

impl JsonListItem for GroupLags {
    fn write(&self, out: &mut impl Write) {
        write_json(self, out);
    }

    fn memory(&self) -> usize {
        self.group.len() + size_of_val(self.partitions.as_slice())
    }
}

fn write_json(item: &impl Serialize, out: &mut impl Write) {
    // These types have no map with keys that are not text, and writing to a buffer cannot fail.
    let _ = serde_json::to_string(item).map(|text| out.write_str(&text));
}

/// Describes an open stream.
pub(crate) fn described(store: &StreamService, stream: &Stream) -> ListedStream {
    let mut listed = open(store, stream);
    listed.add_groups(&stream.group_infos());
    listed
}

/// Describes a stream of a list. A stream that is not open has its last known offsets.
pub(crate) fn listed(store: &StreamService, info: &StreamInfo) -> ListedStream {
    let mut listed = without_groups(store, info);
    listed.add_groups(&info.groups);
    listed
}

fn without_groups(store: &StreamService, info: &StreamInfo) -> ListedStream {
    if let Ok(Lookup::Open(stream)) = store.streams().map(|streams| streams.lookup(&info.name)) {
        return open(store, &stream);
    }
    let partitions = (0..).zip(&info.partitions).map(|(partition, it)| ListedPartition {
        partition,
        earliest: it.earliest,
        end: it.readable,
        bytes: it.bytes,
    });
    let error = match &info.state {
        StreamState::Damaged(why) => Some(format!("the stream is damaged: {why}")),
        _ => None,
    };
    ListedStream { error, ..ListedStream::new(&info.name, partitions.collect()) }
}

/// An open stream with its partitions.
fn open(store: &StreamService, stream: &Stream) -> ListedStream {
    let partitions = (0..stream.partitions()).filter_map(|number| {
        let partition = stream.partition(number)?;
        let (earliest, end) = store.ends(stream, number, &partition);
        let bytes = partition.statistics().bytes;
        Some(ListedPartition { partition: number, earliest, end, bytes })
    });
    ListedStream::new(stream.name(), partitions.collect())
}

impl ListedStream {
    fn new(name: &str, partitions: Vec<ListedPartition>) -> Self {
        Self { stream: name.into(), partitions, groups: Vec::new(), more_groups: None, error: None }
    }

    /// Adds the groups up to the limit of offsets, and the number of the others.
    fn add_groups(&mut self, groups: &[GroupInfo]) {
        let shown = groups_within_limit(groups);
        self.more_groups = Some(groups.len() - shown.len()).filter(|more| *more > 0);
        let offset =
            |(partition, offset): &(u32, u64)| PartitionOffset { partition: *partition, offset: *offset };
        self.groups = shown
            .iter()
            .map(|it| ListedGroup {
                group: it.name.clone(),
                partitions: it.offsets.iter().map(offset).collect(),
            })
            .collect();
    }

    /// Returns the description as a message of the protocol.
    pub(crate) fn to_value(&self) -> Value {
        json!(self)
    }
}

/// Returns the first groups, until they have [`OFFSETS_MAX`] offsets.
fn groups_within_limit(groups: &[GroupInfo]) -> &[GroupInfo] {
    let mut offsets = 0;
    let shown = groups.iter().take_while(|group| {
        let is_shown = offsets < OFFSETS_MAX;
        offsets += group.offsets.len();
        is_shown
    });
    &groups[..shown.count()]
}

/// A stream, its offsets and its configuration, as JSON. The configuration of a broker's stream is at the broker.
pub(crate) fn info_json(store: &StreamService, info: &StreamInfo) -> Value {
    let mut message = listed(store, info).to_value();
    if store.broker().is_none() {
        message["created"] = json!(info.created / 1_000);
        message["retain_bytes"] = json!(info.config.retain_bytes());
        message["retain_seconds"] = json!(info.config.retain_age().map(|age| age.as_secs()));
        message["compact"] = json!(info.config.compaction().is_some());
    }
    message
}

/// Returns a page of at most `limit` groups of a stream, by name, behind the group `after`, with the lag of each
/// partition that has a committed offset. The name is the `after` of the next page, if there is one.
pub(crate) fn group_lags(
    store: &StreamService,
    info: &StreamInfo,
    after: Option<&str>,
    limit: usize,
) -> (Vec<GroupLags>, Option<Box<str>>) {
    let ends = without_groups(store, info).partitions;
    let start = after.map_or(0, |after| info.groups.partition_point(|group| &*group.name <= after));
    let rest = &info.groups[start..];
    let shown = groups_within_limit(&rest[..rest.len().min(limit)]);
    let next = shown.last().filter(|_| shown.len() < rest.len()).map(|last| last.name.clone());
    let lag = |(partition, offset): &(u32, u64)| {
        let number = usize::try_from(*partition).ok();
        let end = number.and_then(|number| ends.get(number)).map_or(0, |it| it.end);
        OffsetLag { partition: *partition, offset: *offset, lag: end.saturating_sub(*offset) }
    };
    let lags = shown.iter().map(|group| GroupLags {
        group: group.name.clone(),
        partitions: group.offsets.iter().map(lag).collect(),
    });
    (lags.collect(), next)
}

/// Adds the records of a read to a message that ends with `[`, until the message is long, and ends the message.
pub(crate) fn read_text(mut message: String, from: u64, end: u64, read: Option<&ReadResult>) -> String {
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
