//! Tests of the whole log on a simulated disk that fails and loses power, with a settable clock.

mod clock;
mod compaction;
mod crash;
mod damage;
mod deletion;
mod directory;
mod forged;
mod groups;
mod many;
mod reading;
mod retention;
mod unsynced;
mod waiting;
mod writing;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use crate::disk::simulated::{CrashKind, SimulatedDisk};
use crate::record::{self, RecordBuilder, Records, ValueKind};
use crate::{
    AppendError, Durability, Loss, OpenError, Partition, Pending, ReadError, Stream, StreamConfig, Streams,
    StreamsConfig,
};

/// A clock that is a number.
#[derive(Clone, Default)]
struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    fn advance(&self, micros: u64) {
        self.0.fetch_add(micros, Ordering::Relaxed);
    }
}

fn open(
    disk: &SimulatedDisk,
    config: StreamsConfig,
    clock: &ManualClock,
) -> Result<(Streams, Vec<Loss>), OpenError> {
    let time = clock.0.clone();
    let clock = Arc::new(move || time.load(Ordering::Relaxed));
    Streams::open_on(Arc::new(disk.clone()), Path::new("/log"), config.with_writers(0), clock)
}

/// A log with one stream named `s`.
struct TestLog {
    disk: SimulatedDisk,
    clock: ManualClock,
    streams: Streams,
    stream: Stream,
    partition: Partition,
}

impl TestLog {
    fn new(config: &StreamConfig) -> Self {
        Self::on(SimulatedDisk::new(1), StreamsConfig::default(), config)
    }

    fn on(disk: SimulatedDisk, limits: StreamsConfig, config: &StreamConfig) -> Self {
        let clock = ManualClock::default();
        clock.advance(1_000_000);
        let (streams, losses) = open(&disk, limits, &clock).unwrap();
        assert_eq!(losses, []);
        let stream = streams.create("s", config).unwrap();
        let partition = stream.partition(0).unwrap();
        Self { disk, clock, streams, stream, partition }
    }

    /// Appends records with these numbers, one after the other, and writes each.
    fn fill(&self, numbers: std::ops::Range<u64>, size: usize) {
        for number in numbers {
            let mut pending = self.partition.append(numbered([number], size)).unwrap();
            self.work();
            assert!(poll(&mut pending, Durability::Disk).is_some_and(|result| result.is_ok()), "{number}");
        }
    }

    fn work(&self) {
        while self.streams.work() {}
    }

    /// Opens the log as the next process does, and returns the losses.
    fn reopen(self, kill: bool) -> (Self, Vec<Loss>) {
        let Self { disk, clock, streams, .. } = self;
        let disk = if kill { disk.after(CrashKind::Kill) } else { disk };
        drop(streams);
        let (streams, losses) = open(&disk, StreamsConfig::default(), &clock).unwrap();
        let stream = streams.stream("s").unwrap();
        let partition = stream.partition(0).unwrap();
        (Self { disk, clock, streams, stream, partition }, losses)
    }
}

/// 4,000-byte segments, less than the public minimum.
fn small() -> StreamConfig {
    StreamConfig { segment_bytes: 4000, ..StreamConfig::default() }
}

/// Records whose values begin with these numbers.
fn numbered(numbers: impl IntoIterator<Item = u64>, size: usize) -> Records {
    let mut builder = RecordBuilder::new();
    for number in numbers {
        let mut value = number.to_le_bytes().to_vec();
        value.resize(size.max(8), number as u8);
        builder.push(number, b"key", &value, ValueKind::Bytes).unwrap();
    }
    builder.finish().unwrap()
}

fn poll(pending: &mut Pending, durability: Durability) -> Option<Result<u64, AppendError>> {
    match pending.poll(durability, &mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result.map(|appended| appended.first)),
        Poll::Pending => None,
    }
}

type Pairs = Vec<(u64, u64)>;

/// All readable records, as offsets and numbers, and the gaps left by damage, as offsets.
fn read_all(partition: &Partition, most: usize) -> (Pairs, Pairs) {
    let (mut found, mut gaps) = (Vec::new(), Vec::new());
    let mut from = partition.offsets().earliest;
    loop {
        match partition.read(from, most) {
            Ok(read) if read.batches.is_empty() => return (found, gaps),
            Ok(read) => {
                for record in record::iter(&read.batches).flat_map(|batch| batch.unwrap().records()) {
                    let record = record.unwrap();
                    let number = u64::from_le_bytes(*record.value.first_chunk().unwrap());
                    assert!(record.value[8..].iter().all(|&byte| byte == number as u8));
                    found.push((record.offset, number));
                }
                assert!(read.next > from);
                from = read.next;
            }
            Err(ReadError::Damaged { resume, .. }) => {
                assert!(resume > from);
                match gaps.last_mut() {
                    Some((_, end)) if *end == from => *end = resume,
                    _ => gaps.push((from, resume)),
                }
                from = resume;
            }
            Err(error) => panic!("{error}"),
        }
    }
}
