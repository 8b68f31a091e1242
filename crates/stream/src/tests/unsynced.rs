//! A sync finds the disk full, where readers see written records before they are synced.

use std::time::Duration;

use super::{TestLog, numbered, poll, read_all, small};
use crate::disk::simulated::{CrashKind, DiskFault};
use crate::{AppendError, Durability, Fsync, StreamConfig, StreamsConfig};

/// The clock has a partition synced after half of this time.
const INTERVAL: Duration = Duration::from_secs(1);
const HALF: u64 = 500_000;
/// Time without further attempts after the disk was full.
const FULL: u64 = 1_000_000;

const SEGMENT: &str = "/log/streams/s/0/00000000000000000000.log";
/// Bytes of a batch with one record of 100 bytes.
const BATCH: usize = 163;

/// Two batches are written, and a sync of the first or of both has found no space.
fn failed_sync(synced: u64) -> TestLog {
    let one = TestLog::new(&StreamConfig::default().with_fsync(Fsync::Interval(INTERVAL)));
    one.fill(0..synced, 100);
    tick(&one, HALF);
    assert_eq!(one.partition.offsets().durable, synced);
    one.fill(synced..2, 100);
    one.disk.plan(1, DiskFault::Full);
    tick(&one, HALF);
    one
}

fn tick(one: &TestLog, micros: u64) {
    one.clock.advance(micros);
    one.streams.tick();
    one.work();
}

/// Records that the next process finds after a power loss. Lost records were not synced.
fn after_power_loss(one: &TestLog) -> Vec<(u64, u64)> {
    let disk = one.disk.after(CrashKind::PowerLoss);
    let (streams, losses) = super::open(&disk, StreamsConfig::default(), &one.clock).unwrap();
    let durable = one.partition.offsets().durable;
    assert!(losses.iter().all(|loss| loss.offset >= durable), "{losses:?}");
    read_all(&streams.stream("s").unwrap().partition(0).unwrap(), 1).0
}

#[test]
fn interval_sync_rewrites_bytes_whose_sync_found_no_space() {
    for synced in [0, 1] {
        let one = failed_sync(synced);
        assert_eq!((one.partition.failure(), one.partition.offsets().durable), (None, synced));
        assert_eq!(one.partition.append(numbered([9], 8)).unwrap_err(), AppendError::NoSpace);
        // Without an append, the clock retries after a second.
        let calls = one.disk.calls();
        tick(&one, HALF);
        assert_eq!(one.disk.calls(), calls, "no retry for a second");
        tick(&one, FULL - HALF);
        assert_eq!(one.partition.offsets().durable, 2);
        assert_eq!(after_power_loss(&one), [(0, 0), (1, 1)]);
        one.fill(2..4, 100);
        assert_eq!(read_all(&one.partition, 1).0, [(0, 0), (1, 1), (2, 2), (3, 3)]);
    }
}

#[test]
fn append_after_a_sync_without_space_follows_the_synced_records() {
    let one = failed_sync(1);
    one.clock.advance(FULL);
    one.fill(2..3, 100);
    assert_eq!(one.partition.offsets().durable, 2);
    assert!(after_power_loss(&one).starts_with(&[(0, 0), (1, 1)]));
}

#[test]
fn second_sync_without_space_rejects_appends_for_another_second() {
    let one = failed_sync(1);
    for _ in 0..3 {
        one.clock.advance(FULL);
        one.disk.plan(1, DiskFault::Full);
        let mut pending = one.partition.append(numbered([2], 100)).unwrap();
        one.work();
        assert_eq!(poll(&mut pending, Durability::Disk), Some(Err(AppendError::NoSpace)));
        assert_eq!((one.partition.failure(), one.partition.offsets().next), (None, 2));
    }
    one.clock.advance(FULL);
    one.fill(2..3, 100);
    assert_eq!(read_all(&one.partition, 1).0, [(0, 0), (1, 1), (2, 2)]);
}

#[test]
fn partition_fails_when_the_system_has_dropped_unsynced_bytes() {
    for (synced, at) in [(0, 128 + 50), (1, 128 + BATCH + 50), (1, 128 + BATCH + 3)] {
        let one = failed_sync(synced);
        one.disk.damage(SEGMENT, at);
        tick(&one, FULL);
        let reason = one.partition.failure().expect("it cannot be made durable any more");
        assert!(reason.contains("has dropped written bytes"), "{reason}");
        assert_eq!(one.partition.offsets().durable, synced);
    }
}

#[test]
fn partition_without_syncs_rolls_once_the_last_segment_is_synced() {
    let one = TestLog::new(&StreamConfig { fsync: Fsync::Never, ..small() });
    one.fill(0..3, 1000);
    one.disk.plan(1, DiskFault::Full);
    let mut pending = one.partition.append(numbered([3], 1000)).unwrap();
    one.work();
    assert_eq!(poll(&mut pending, Durability::Disk), Some(Err(AppendError::NoSpace)));
    assert_eq!((one.partition.failure(), one.partition.offsets().next), (None, 3));
    one.clock.advance(FULL);
    one.fill(4..5, 1000);
    assert_eq!(one.partition.offsets().durable, 3);
    assert!(after_power_loss(&one).starts_with(&[(0, 0), (1, 1), (2, 2)]));
    assert_eq!(read_all(&one.partition, 1).0, [(0, 0), (1, 1), (2, 2), (3, 4)]);
}

#[test]
fn close_rewrites_bytes_whose_sync_found_no_space() {
    let one = failed_sync(0);
    one.streams.close();
    assert_eq!((one.partition.failure(), one.partition.offsets().durable), (None, 2));
    assert_eq!(after_power_loss(&one), [(0, 0), (1, 1)]);
}
