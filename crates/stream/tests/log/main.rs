//! Tests of the log on a real disk, with its threads.

mod errors;
mod external;
mod kill;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use sinews_stream::record::{self, RecordBuilder, Records, ValueKind};
use sinews_stream::{
    Durability, Fsync, OpenError, Partition, PartitionEvent, StartPosition, StreamConfig, Streams,
    StreamsConfig,
};

fn records(numbers: std::ops::Range<u64>, size: usize) -> Records {
    let mut builder = RecordBuilder::new();
    for number in numbers {
        let mut value = number.to_le_bytes().to_vec();
        value.resize(size.max(8), number as u8);
        builder.push(number, b"", &value, ValueKind::Bytes).unwrap();
    }
    builder.finish().unwrap()
}

struct ThreadWaker(std::thread::Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Reads `count` records from an offset on, and waits for records that do not exist yet. Offsets have no gaps.
fn follow(partition: &Partition, mut from: u64, count: usize) -> Vec<u64> {
    let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
    let mut numbers = Vec::new();
    while numbers.len() < count {
        let read = partition.read(from, 64 << 10).unwrap();
        if read.batches.is_empty() && !partition.watch(PartitionEvent::Readable(from), &waker) {
            std::thread::park();
        }
        for record in record::iter(&read.batches).flat_map(|batch| batch.unwrap().records()) {
            let record = record.unwrap();
            if record.offset >= from {
                assert_eq!(record.offset, from);
                from += 1;
                numbers.push(u64::from_le_bytes(*record.value.first_chunk().unwrap()));
            }
        }
    }
    numbers
}

#[test]
fn concurrent_readers_see_all_records_of_concurrent_producers_in_order() {
    const PRODUCERS: u64 = 8;
    const EACH: u64 = 200;
    let directory = tempfile::tempdir().unwrap();
    for (turn, fsync) in
        [Fsync::Batch, Fsync::Interval(Duration::from_millis(20)), Fsync::Never].into_iter().enumerate()
    {
        let (streams, losses) = Streams::open(directory.path(), StreamsConfig::default()).unwrap();
        assert_eq!(losses, []);
        // Small segments, so that readers cross many segment boundaries.
        let config = StreamConfig::default().with_fsync(fsync).with_segment_bytes(64 << 10);
        let stream = streams.create(&format!("stream {turn}"), &config).unwrap();
        let partition = stream.partition(0).unwrap();
        let numbers: Vec<Vec<u64>> = std::thread::scope(|scope| {
            let followers: Vec<_> =
                (0..3).map(|_| scope.spawn(|| follow(&partition, 0, (PRODUCERS * EACH) as usize))).collect();
            for producer in 0..PRODUCERS {
                let partition = &partition;
                scope.spawn(move || {
                    for place in 0..EACH {
                        let number = producer * EACH + place;
                        let size = if number.is_multiple_of(50) { 30_000 } else { 100 };
                        let mut pending = partition.append(records(number..number + 1, size)).unwrap();
                        let appended = pending.block(Durability::Disk).unwrap();
                        assert_eq!(pending.first(), Some(appended.first));
                    }
                });
            }
            followers.into_iter().map(|follower| follower.join().unwrap()).collect()
        });
        assert!(numbers.iter().all(|other| *other == numbers[0]));
        // All records, and each producer's records in order.
        assert_eq!(numbers[0].iter().copied().collect::<BTreeSet<_>>(), (0..PRODUCERS * EACH).collect());
        for producer in 0..PRODUCERS {
            let own = numbers[0].iter().filter(|&&number| number / EACH == producer);
            assert!(own.is_sorted());
        }
        let statistics = partition.statistics();
        assert!(statistics.segments > 5 && statistics.writes <= statistics.batches, "{statistics:?}");
        // Shared bytes remain valid after everything is closed.
        let read = partition.read(partition.seek(StartPosition::Earliest), 1 << 20).unwrap();
        streams.close();
        drop((streams, stream, partition));
        assert!(
            record::iter(&read.batches).all(|batch| batch.unwrap().records().all(|record| record.is_ok()))
        );
    }
    let (streams, losses) = Streams::open(directory.path(), StreamsConfig::default()).unwrap();
    assert_eq!(losses, []);
    assert_eq!(streams.list().len(), 3);
    for stream in streams.list() {
        let partition = stream.partition(0).unwrap();
        assert_eq!(partition.offsets().next, PRODUCERS * EACH);
        assert_eq!(follow(&partition, 0, (PRODUCERS * EACH) as usize).len(), (PRODUCERS * EACH) as usize);
    }
}

#[test]
fn directory_is_locked_against_a_second_open() {
    let directory = tempfile::tempdir().unwrap();
    let (streams, _) = Streams::open(&directory.path().join("a/b"), StreamsConfig::default()).unwrap();
    let again = || Streams::open(&directory.path().join("a/b"), StreamsConfig::default());
    assert!(matches!(again(), Err(OpenError::Locked(_))));
    let stream = streams.create("../../escape", &StreamConfig::default()).unwrap();
    assert_eq!(stream.name(), "../../escape");
    drop(streams);
    let (streams, _) = again().unwrap();
    assert!(streams.stream("../../escape").is_some() && !directory.path().join("escape").exists());
    // The stream of the closed log rejects appends.
    assert!(stream.partition(0).unwrap().append(records(0..1, 8)).is_err());
}

#[test]
fn records_are_synced_within_the_fsync_interval() {
    let directory = tempfile::tempdir().unwrap();
    let (streams, _) = Streams::open(directory.path(), StreamsConfig::default().with_writers(1)).unwrap();
    let config = StreamConfig::default().with_fsync(Fsync::Interval(Duration::from_millis(20)));
    let partition = streams.create("s", &config).unwrap().partition(0).unwrap();
    partition.append(records(0..1, 8)).unwrap();
    let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
    while !partition.watch(PartitionEvent::Durable(0), &waker) {
        std::thread::park();
    }
    assert_eq!((partition.offsets().durable, partition.statistics().syncs), (1, 1));
}

#[test]
fn records_with_a_key_share_a_partition_and_records_without_are_distributed() {
    let directory = tempfile::tempdir().unwrap();
    let (streams, _) = Streams::open(directory.path(), StreamsConfig::default()).unwrap();
    let stream = streams.create("s", &StreamConfig::default().with_partitions(4)).unwrap();
    assert_eq!((0..8).map(|_| stream.pick(b"")).collect::<Vec<_>>(), [0, 1, 2, 3, 0, 1, 2, 3]);
    let mut counts = [0; 4];
    for number in 0..4000 {
        let key = format!("customer-{number}");
        assert_eq!(stream.pick(key.as_bytes()), stream.pick(key.as_bytes()));
        counts[stream.pick(key.as_bytes()) as usize] += 1;
    }
    assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    // The result of the documented formula, so that other programs can compute it.
    assert_eq!(stream.pick(b"123456789"), ((0xe306_9283_u64 * 4) >> 32) as u32);
    let more = streams.create("s", &StreamConfig::default().with_partitions(6)).unwrap();
    assert_eq!((more.partitions(), stream.partitions()), (6, 6));
    assert!(streams.create("s", &StreamConfig::default().with_partitions(5)).is_err());
    for none in ["", "a\u{0}"] {
        assert!(streams.create(none, &StreamConfig::default()).is_err());
    }
}
