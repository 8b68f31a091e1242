//! Stream reports for the dashboard and Prometheus.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use serde_json::{Value, json};
use sinews_stream::{GroupInfo, Partition, PartitionInfo, PartitionOffsets, Statistics, Stream, StreamInfo};

use super::service::StreamService;

/// Streams on the dashboard: failed streams first, then streams by total traffic.
const STREAMS_SHOWN: usize = 20;

/// Open streams that are ranked by traffic, oldest first.
const OPEN_STREAMS_MAX: usize = 4096;

/// Streams, by name, among which closed streams are listed.
const CLOSED_STREAMS_MAX: usize = 1024;

/// Groups per stream on the dashboard, by descending lag.
const GROUPS_SHOWN: usize = 8;

/// Partitions in the metrics: of open streams, oldest first, and then of closed streams.
const PARTITIONS_REPORTED: usize = 256;

/// Groups in the metrics, in the same order.
const GROUPS_REPORTED: usize = 256;

/// One stream's totals over all partitions.
#[derive(Default)]
struct StreamTotals {
    statistics: Statistics,
    /// Records that exist.
    retained: u64,
    failure: Option<Arc<str>>,
}

impl StreamTotals {
    fn new(stream: &Stream) -> Self {
        let mut sum = Self::default();
        for partition in partitions(stream) {
            let one = partition.statistics();
            let all = &mut sum.statistics;
            all.bytes += one.bytes;
            all.segments += one.segments;
            all.pending += one.pending;
            all.records += one.records;
            all.written += one.written;
            all.read_records += one.read_records;
            all.read_bytes += one.read_bytes;
            all.syncs += one.syncs;
            all.sync_time += one.sync_time;
            sum.retained += retained(&partition.offsets());
            sum.failure = sum.failure.or_else(|| partition.failure());
        }
        sum
    }
}

fn partitions(stream: &Stream) -> impl Iterator<Item = Partition> {
    (0..stream.partitions()).filter_map(|number| stream.partition(number))
}

fn retained(ends: &PartitionOffsets) -> u64 {
    ends.next.saturating_sub(ends.earliest)
}

/// Returns each group's lag in records, by name. A partition without a committed offset counts in full.
fn lags(stream: &Stream) -> Vec<(String, u64)> {
    let lag = |group: &str| {
        let before = |(number, partition): (u32, Partition)| {
            let ends = partition.offsets();
            let consumed = stream.committed(group, number).unwrap_or(0).max(ends.earliest);
            ends.next.saturating_sub(consumed)
        };
        (0..).zip(partitions(stream)).map(before).sum()
    };
    stream.groups().into_iter().map(|group| (lag(&group), group)).map(|(lag, group)| (group, lag)).collect()
}

/// Encodes the dashboard's report.
pub(crate) fn snapshot(store: &StreamService) -> Value {
    let open = store.open().into_iter().take(OPEN_STREAMS_MAX);
    let mut all: Vec<(Stream, StreamTotals)> =
        open.map(|stream| (StreamTotals::new(&stream), stream)).map(|(sum, it)| (it, sum)).collect();
    all.sort_by_key(|(_, sum)| {
        let traffic = sum.statistics.written + sum.statistics.read_bytes;
        (sum.failure.is_none(), std::cmp::Reverse(traffic))
    });
    let damaged = store.damaged().into_iter().take(STREAMS_SHOWN);
    let mut list: Vec<Value> = damaged.map(|(name, why)| damaged_json(&name, &why)).collect();
    all.truncate(STREAMS_SHOWN - list.len());
    list.extend(all.iter().map(|(stream, sum)| described(stream, sum)));
    let closed = store.list_closed(CLOSED_STREAMS_MAX);
    list.extend(closed.iter().take(STREAMS_SHOWN - list.len()).map(closed_json));
    list.sort_by(|a, b| a["stream"].as_str().cmp(&b["stream"].as_str()));
    json!({ "count": store.count(), "shown": list })
}

/// A stream that cannot be opened.
fn damaged_json(name: &str, why: &str) -> Value {
    let mut fields = numbers(name, 0, &Statistics::default(), 0, &[]);
    fields["failure"] = json!(format!("damaged: {why}"));
    fields
}

/// A stream that is not open.
fn closed_json(info: &StreamInfo) -> Value {
    let mut statistics = Statistics::default();
    for partition in &info.partitions {
        statistics.bytes += partition.bytes;
        statistics.segments += partition.segments;
    }
    let retained = info.partitions.iter().map(|it| it.readable.saturating_sub(it.earliest)).sum();
    let groups: Vec<(String, u64)> = info.groups.iter().map(|group| closed_lag(info, group)).collect();
    let mut fields = numbers(&info.name, info.partitions.len(), &statistics, retained, &groups);
    if let [one] = &info.partitions[..] {
        (fields["earliest"], fields["next"]) = (json!(one.earliest), json!(one.readable));
    }
    fields
}

/// Returns the name and the lag of a closed stream's group.
fn closed_lag(info: &StreamInfo, group: &GroupInfo) -> (String, u64) {
    let lag = |(number, partition): (u32, &PartitionInfo)| {
        let stored = group.offsets.iter().find(|(of, _)| *of == number).map_or(0, |(_, offset)| *offset);
        partition.readable.saturating_sub(stored.max(partition.earliest))
    };
    (group.name.to_string(), (0..).zip(&info.partitions).map(lag).sum())
}

fn described(stream: &Stream, sum: &StreamTotals) -> Value {
    let partitions = stream.partitions() as usize;
    let mut fields = numbers(stream.name(), partitions, &sum.statistics, sum.retained, &lags(stream));
    if let (1, Some(partition)) = (stream.partitions(), stream.partition(0)) {
        let ends = partition.offsets();
        (fields["earliest"], fields["next"]) = (json!(ends.earliest), json!(ends.next));
    }
    if let Some(failure) = &sum.failure {
        fields["failure"] = json!(&**failure);
    }
    fields
}

fn numbers(
    name: &str,
    partitions: usize,
    statistics: &Statistics,
    retained: u64,
    groups: &[(String, u64)],
) -> Value {
    let mut groups = groups.to_vec();
    groups.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let group_count = groups.len();
    groups.truncate(GROUPS_SHOWN);
    json!({
        "stream": name,
        "partitions": partitions,
        "records": statistics.records,
        "bytes": statistics.written,
        "read_records": statistics.read_records,
        "read_bytes": statistics.read_bytes,
        "disk_bytes": statistics.bytes,
        "segments": statistics.segments,
        "pending_bytes": statistics.pending,
        "kept": retained,
        "syncs": statistics.syncs,
        "sync_us": micros(statistics.sync_time),
        "groups": groups,
        "group_count": group_count,
    })
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The collected stream metrics.
#[derive(Debug)]
pub(crate) struct StreamMetrics {
    streams: u64,
    damaged: u64,
    failed: u64,
    partitions: Vec<PartitionMetrics>,
    groups: Vec<([(&'static str, String); 2], u64)>,
}

#[derive(Debug)]
struct PartitionMetrics {
    labels: [(&'static str, String); 2],
    statistics: Statistics,
    earliest: u64,
    next: u64,
}

impl PartitionMetrics {
    /// Returns a closed stream's values: its counters are zero.
    fn closed(stream: &str, number: u32, info: &PartitionInfo) -> Self {
        let mut statistics = Statistics::default();
        (statistics.bytes, statistics.segments) = (info.bytes, info.segments);
        let labels = [("stream", stream.to_owned()), ("partition", number.to_string())];
        Self { labels, statistics, earliest: info.earliest, next: info.readable }
    }
}

impl StreamMetrics {
    pub(crate) fn new(store: &StreamService) -> Self {
        let all = store.open();
        let closed = store.list_closed(CLOSED_STREAMS_MAX);
        let closed = closed.iter().flat_map(|info| {
            (0_u32..)
                .zip(&info.partitions)
                .map(|(number, it)| PartitionMetrics::closed(&info.name, number, it))
        });
        let each = all.iter().flat_map(|stream| {
            (0_u32..).zip(partitions(stream)).map(|(number, partition)| PartitionMetrics {
                labels: [("stream", stream.name().to_owned()), ("partition", number.to_string())],
                statistics: partition.statistics(),
                earliest: partition.offsets().earliest,
                next: partition.offsets().next,
            })
        });
        let groups = all.iter().flat_map(|stream| {
            lags(stream)
                .into_iter()
                .map(|(group, lag)| ([("stream", stream.name().to_owned()), ("group", group)], lag))
        });
        Self {
            streams: store.count() as u64,
            damaged: store.damaged().len() as u64,
            failed: all.iter().filter(|stream| stream.failure().is_some()).count() as u64,
            partitions: each.chain(closed).take(PARTITIONS_REPORTED).collect(),
            groups: groups.take(GROUPS_REPORTED).collect(),
        }
    }

    fn counters<T>(
        &self,
        out: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        count: impl Fn(&Statistics) -> T,
    ) -> fmt::Result
    where
        ConstCounter<T>: EncodeMetric,
    {
        let mut encoder = out.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
        self.partitions.iter().try_for_each(|one| {
            ConstCounter::new(count(&one.statistics)).encode(encoder.encode_family(&one.labels)?)
        })
    }

    fn gauges(
        &self,
        out: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        value: impl Fn(&PartitionMetrics) -> u64,
    ) -> fmt::Result {
        let mut encoder = out.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        self.partitions
            .iter()
            .try_for_each(|one| ConstGauge::new(value(one)).encode(encoder.encode_family(&one.labels)?))
    }

    fn counters_to(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (bytes, seconds) = (|| Some(Unit::Bytes), Some(Unit::Seconds));
        self.counters(out, "sinews_stream_records", "Records appended", None, |it| it.records)?;
        self.counters(out, "sinews_stream_written", "Bytes written to streams", bytes(), |it| it.written)?;
        let help = "Records read by all readers";
        self.counters(out, "sinews_stream_read_records", help, None, |it| it.read_records)?;
        let help = "Bytes read from streams by all readers";
        self.counters(out, "sinews_stream_read", help, bytes(), |it| it.read_bytes)?;
        self.counters(out, "sinews_stream_syncs", "Synced writes", None, |it| it.syncs)?;
        let help = "Time of synced writes, including the sync";
        self.counters(out, "sinews_stream_sync", help, seconds, |it| it.sync_time.as_secs_f64())
    }

    fn gauges_to(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let bytes = || Some(Unit::Bytes);
        self.gauges(out, "sinews_stream_disk", "Disk usage of a partition", bytes(), |it| {
            it.statistics.bytes
        })?;
        self.gauges(out, "sinews_stream_segments", "Segment files of a partition", None, |it| {
            it.statistics.segments
        })?;
        self.gauges(out, "sinews_stream_pending", "Bytes queued for writing", bytes(), |it| {
            it.statistics.pending
        })?;
        self.gauges(out, "sinews_stream_earliest_offset", "Offset of the earliest record", None, |it| {
            it.earliest
        })?;
        self.gauges(out, "sinews_stream_next_offset", "Offset of the next record", None, |it| it.next)?;
        let help = "1 if the partition has failed and rejects appends until the server restarts";
        self.gauges(out, "sinews_stream_failed", help, None, |it| u64::from(it.statistics.failed))
    }
}

impl Collector for StreamMetrics {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = out.encode_descriptor("sinews_streams", "Streams", None, MetricType::Gauge)?;
        ConstGauge::new(self.streams).encode(encoder)?;
        let help = "Streams that cannot be opened";
        let encoder = out.encode_descriptor("sinews_streams_damaged", help, None, MetricType::Gauge)?;
        ConstGauge::new(self.damaged).encode(encoder)?;
        let help = "Open streams that reject appends or commits after an error of the disk";
        let encoder = out.encode_descriptor("sinews_streams_failed", help, None, MetricType::Gauge)?;
        ConstGauge::new(self.failed).encode(encoder)?;
        self.counters_to(&mut out)?;
        self.gauges_to(&mut out)?;
        let help = "Lag of a consumer group in records";
        let mut encoder = out.encode_descriptor("sinews_stream_group_lag", help, None, MetricType::Gauge)?;
        self.groups
            .iter()
            .try_for_each(|(labels, lag)| ConstGauge::new(*lag).encode(encoder.encode_family(labels)?))
    }
}
