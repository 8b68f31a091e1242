//! Deleting streams.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use super::{ManualClock, TestLog, numbered, open, poll, read_all, small};
use crate::disk::Disk;
use crate::disk::simulated::{CrashKind, DiskFault, SimulatedDisk};
use crate::{AppendError, Durability, PartitionEvent, ReadError, StreamConfig, StreamsConfig};

#[derive(Default)]
struct WakeCount(AtomicUsize);

impl Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn deleted_stream_rejects_its_handles_and_frees_its_name() {
    let one = TestLog::new(&small());
    one.fill(0..50, 100);
    let mut pending = one.partition.append(numbered([50], 100)).unwrap();
    let count = Arc::new(WakeCount::default());
    assert!(!one.partition.watch(PartitionEvent::Readable(1_000), &Waker::from(count.clone())));
    let created = one.stream.created();

    assert!(one.streams.delete("s").unwrap());
    assert!(!one.streams.delete("s").unwrap());
    assert!(one.streams.stream("s").is_none() && one.streams.describe("s").is_none());
    assert_eq!(one.streams.pool().units(), 1, "the log itself");
    assert_eq!(count.0.load(Ordering::Relaxed), 1, "waiters are woken");
    assert_eq!(poll(&mut pending, Durability::Disk), Some(Err(AppendError::Deleted)));
    assert_eq!(one.partition.append(numbered([51], 100)).unwrap_err(), AppendError::Deleted);
    assert!(matches!(one.partition.read(0, 100), Err(ReadError::Deleted)));

    let again = one.streams.create("s", &small()).unwrap();
    assert!(again.created() > created, "the creation time grows although the clock stands still");
    assert_eq!(again.partition(0).unwrap().offsets().next, 0);
    one.work();
    assert_eq!(one.disk.list(Path::new("/log/streams")).unwrap(), ["s"]);
}

#[test]
fn deletion_is_atomic_across_crashes() {
    let config = StreamConfig::default();
    for after in [CrashKind::Kill, CrashKind::PowerLoss] {
        for call in 1..40 {
            let disk = SimulatedDisk::new(call);
            let clock = ManualClock::default();
            clock.advance(1_000);
            let (streams, _) = open(&disk, StreamsConfig::default(), &clock).unwrap();
            let stream = streams.create("s", &config).unwrap();
            let mut pending = stream.partition(0).unwrap().append(numbered([7], 10)).unwrap();
            while streams.work() {}
            assert!(poll(&mut pending, Durability::Disk).is_some());
            let created = stream.created();
            disk.plan(call, DiskFault::Crash);
            let deleted = streams.delete("s").is_ok_and(|existed| existed);
            let made = deleted.then(|| streams.create("s", &config).ok()).flatten().map(|new| new.created());
            while streams.work() {}
            drop((streams, stream));

            let disk = disk.after(after);
            let (streams, _) = open(&disk, StreamsConfig::default(), &clock).unwrap();
            let found = streams
                .stream("s")
                .map(|stream| (stream.created(), read_all(&stream.partition(0).unwrap(), 100).0));
            match (deleted, made) {
                (false, _) => assert!(found.is_none_or(|it| it == (created, vec![(0, 7)])), "call {call}"),
                (true, None) => {
                    assert!(found.is_none_or(|it| it.0 > created && it.1.is_empty()), "call {call}")
                }
                (true, Some(made)) => assert_eq!(found, Some((made, vec![])), "call {call}"),
            }
            while streams.work() {}
            let left = disk.list(Path::new("/log/streams")).unwrap();
            assert!(left.iter().all(|name| name == "s"), "call {call}: {left:?}");
        }
    }
}

#[test]
fn times_of_last_use_are_reported() {
    let one = TestLog::new(&StreamConfig::default().with_automatic(true));
    let info = one.streams.describe("s").unwrap();
    assert!(info.automatic);
    assert_eq!((info.last_append, info.last_read, info.last_used()), (None, None, 1_000_000));
    one.clock.advance(5);
    one.fill(0..1, 10);
    one.clock.advance(5);
    one.partition.read(0, 100).unwrap();
    let info = one.streams.describe("s").unwrap();
    assert_eq!(
        (info.last_append, info.last_read, info.last_used()),
        (Some(1_000_005), Some(1_000_010), 1_000_010)
    );
    assert_eq!(info.partitions[0].readable, 1);
    assert!(!one.streams.create("t", &StreamConfig::default()).unwrap().name().is_empty());
    assert!(!one.streams.describe("t").unwrap().automatic);
    let (one, _) = one.reopen(false);
    assert!(one.streams.describe("s").unwrap().automatic);
    assert_eq!(one.streams.describe("s").unwrap().last_append, Some(1_000_005));
}

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn stream_that_is_used_after_the_list_of_unused_streams_is_not_deleted() {
    let one = TestLog::new(&StreamConfig::default().with_automatic(true));
    one.streams.create("asked", &StreamConfig::default()).unwrap();
    one.clock.advance(3_600_000_000);
    assert!(one.streams.unused(HOUR).is_empty(), "an hour is not over an hour");
    one.clock.advance(1);
    assert_eq!(one.streams.unused(HOUR), ["s".into()]);
    // Queued, and not written yet.
    let mut pending = one.partition.append(numbered([7], 10)).unwrap();
    assert!(!one.streams.delete_unused("s", HOUR, 0).unwrap());
    one.work();
    assert_eq!(poll(&mut pending, Durability::Disk), Some(Ok(0)));
    assert!(!one.streams.delete_unused("s", HOUR, 0).unwrap());
    assert_eq!(read_all(&one.partition, 100).0, [(0, 7)]);

    one.clock.advance(3_600_000_001);
    assert!(!one.partition.watch(PartitionEvent::Readable(1), Waker::noop()));
    assert!(!one.streams.delete_unused("s", HOUR, 0).unwrap(), "a reader waits");
    assert!(!one.streams.delete_unused("asked", HOUR, 9).unwrap());
    assert!(one.streams.delete_unused("s", HOUR, 1).unwrap());
    assert_eq!(one.partition.append(numbered([8], 10)).unwrap_err(), AppendError::Deleted);
    assert!(one.streams.describe("s").is_none());
    assert!(!one.streams.delete_unused("s", HOUR, 1).unwrap());
}

#[test]
fn stream_whose_last_use_is_unknown_is_not_deleted_as_unused() {
    let one = TestLog::new(&StreamConfig::default().with_automatic(true));
    let TestLog { disk, clock, streams, .. } = one;
    // More streams than are examined before the log is open.
    for number in 0..256 {
        streams.create(&number.to_string(), &StreamConfig::default()).unwrap();
    }
    let disk = disk.after(CrashKind::Kill);
    drop(streams);
    clock.advance(3_600_000_001);
    let (streams, _) = open(&disk, StreamsConfig::default(), &clock).unwrap();
    assert!(streams.unused(HOUR).is_empty());
    while streams.work() {}
    assert!(streams.unused(HOUR).is_empty(), "it counts as used when the log was opened");
    clock.advance(3_600_000_001);
    assert_eq!(streams.unused(HOUR), ["s".into()]);
}
