//! Helpers shared by the tests of all brokers.

pub(crate) mod operations;
pub(crate) mod real;

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use sinews_stream::broker::Broker;
use sinews_stream::record::{self, RecordBuilder, Records, ValueKind};
use sinews_stream::{
    AppendError, Durability, Partition, PartitionEvent, Pending, StartPosition, StreamConfig, Streams,
    StreamsConfig,
};
use tempfile::TempDir;

/// Longer than any test takes; ends a test that hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The log of one node, in a directory that is removed with it.
pub(crate) struct Node {
    pub(crate) streams: Streams,
    _directory: TempDir,
}

impl Node {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let (streams, _) =
            Streams::open(directory.path(), StreamsConfig::default()).expect("the directory is ours");
        Self { streams, _directory: directory }
    }

    /// A partition of a stream, created if need be.
    pub(crate) fn partition(&self, stream: &str, partition: u32) -> Partition {
        let stream =
            self.streams.create(stream, &StreamConfig::default().with_partitions(4)).expect("a legal name");
        stream.partition(partition).expect("one of four")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.streams.close();
    }
}

/// A record as a test sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConsumedRecord {
    pub(crate) offset: u64,
    pub(crate) timestamp: u64,
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) kind: ValueKind,
}

pub(crate) fn records(values: &[&str]) -> Records {
    let mut builder = RecordBuilder::new();
    for value in values {
        builder.push(1_700_000_000_123_000, b"", value.as_bytes(), ValueKind::Bytes).expect("small");
    }
    builder.finish().expect("at least one")
}

/// Publishes a record with an idempotency key; returns its offset, and whether the broker had it already.
pub(crate) fn publish_once(broker: &dyn Broker, stream: &str, key: &str, value: &str) -> (u64, bool) {
    let mut builder = RecordBuilder::new();
    let key = [record::IDEMPOTENCY_PREFIX, key.as_bytes()].concat();
    builder.push(1_700_000_000_123_000, &key, value.as_bytes(), ValueKind::Text).expect("small");
    let records = builder.finish().expect("one");
    let appended = broker.publish_once(stream, 0, records).expect("room").block(Durability::Broker);
    let appended = appended.expect("the broker takes it");
    (appended.first, appended.repeated)
}

/// Publishes, and waits while the queue is full.
pub(crate) fn publish(broker: &dyn Broker, stream: &str, partition: u32, values: &[&str]) -> Pending {
    let records = records(values);
    let end = Instant::now() + LIMIT;
    loop {
        match broker.publish(stream, partition, records.clone()) {
            Ok(pending) => return pending,
            Err(AppendError::Busy) => wait_for(end, "room", |waker| broker.watch_queue_space(waker)),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Publishes, and returns the offset of the first record when the broker has acknowledged.
pub(crate) fn publish_acked(broker: &dyn Broker, stream: &str, partition: u32, values: &[&str]) -> u64 {
    acked(&mut publish(broker, stream, partition, values)).expect("the broker takes them")
}

pub(crate) fn acked(pending: &mut Pending) -> Result<u64, AppendError> {
    pending.block(Durability::Broker).map(|appended| appended.first)
}

/// All records from an offset on, once the partition has reached `until`.
pub(crate) fn read(partition: &Partition, from: u64, until: u64) -> Vec<ConsumedRecord> {
    if until > 0 {
        wait_for(Instant::now() + LIMIT, "the record", |waker| {
            partition.watch(PartitionEvent::Readable(until - 1), waker)
        });
    }
    let mut all = Vec::new();
    let mut next = partition.seek(StartPosition::Offset(from));
    loop {
        let read = partition.read(next, 1 << 20).expect("it is there");
        if read.batches.is_empty() {
            return all;
        }
        all.extend(decode_records(&read.batches).into_iter().filter(|record| record.offset >= from));
        next = read.next;
    }
}

pub(crate) fn decode_records(batches: &[u8]) -> Vec<ConsumedRecord> {
    let mut all = Vec::new();
    for batch in record::iter(batches) {
        for record in batch.expect("a whole batch").records() {
            let record = record.expect("a whole record");
            all.push(ConsumedRecord {
                offset: record.offset,
                timestamp: record.timestamp,
                key: String::from_utf8_lossy(record.key).into_owned(),
                value: String::from_utf8_lossy(record.value).into_owned(),
                kind: record.kind,
            });
        }
    }
    all
}

pub(crate) fn values(all: &[ConsumedRecord]) -> Vec<&str> {
    all.iter().map(|record| &*record.value).collect()
}

/// Sleeps until the event has happened: `watch` returns whether it has, or registers the waker.
pub(crate) fn wait_for(end: Instant, what: &str, watch: impl Fn(&Waker) -> bool) {
    struct ThreadWaker(Thread);
    impl Wake for ThreadWaker {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(ThreadWaker(thread::current())));
    while !watch(&waker) {
        let left = end.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "waited for {what} for too long");
        thread::park_timeout(left);
    }
}

/// Polls a condition that wakes no waker.
pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "waited for too long until {what}");
        thread::park_timeout(Duration::from_millis(5));
    }
}
