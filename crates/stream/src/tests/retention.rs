//! Removal of segments by retention.

use std::time::Duration;

use super::{TestLog, read_all, small};
use crate::{ReadError, StartPosition};

fn logs(one: &TestLog) -> usize {
    one.disk.files("/log/streams/s/0").iter().filter(|(name, _)| name.ends_with(".log")).count()
}

#[test]
fn retention_by_bytes_removes_whole_segments() {
    let one = TestLog::new(&small().with_retain_bytes(Some(6000)));
    let shared = {
        one.fill(0..1, 1000);
        one.partition.read(0, 1).unwrap()
    };
    one.fill(1..30, 1000);
    one.streams.tick();
    one.work();
    let ends = one.partition.offsets();
    assert_eq!((ends.earliest, ends.next, logs(&one)), (24, 30, 2));
    assert!(one.partition.statistics().bytes >= 6000);
    assert!(matches!(one.partition.read(23, 1), Err(ReadError::Gone { earliest: 24 })));
    assert_eq!(
        (one.partition.seek(StartPosition::Earliest), one.partition.seek(StartPosition::Offset(3))),
        (24, 24)
    );
    // Indexes are removed with their segments; shared bytes remain valid.
    assert_eq!(one.disk.files("/log/streams/s/0").len(), 3);
    assert_eq!(shared.batches.len(), 40 + 23 + 1000);
    let (one, losses) = one.reopen(true);
    assert_eq!((losses, read_all(&one.partition, 1).0.len()), (vec![], 6));
}

#[test]
fn retention_by_age_removes_segments_of_slow_streams() {
    let one = TestLog::new(&small().with_retain_age(Some(Duration::from_secs(100))));
    for number in 0..20 {
        // The last segment is ended after 25 s, so that it can be removed.
        one.clock.advance(10_000_000);
        one.fill(number..number + 1, 8);
    }
    one.streams.tick();
    one.work();
    let ends = one.partition.offsets();
    assert!((6..=10).contains(&ends.earliest), "{ends:?}");
    one.clock.advance(100_000_000 + 1);
    one.streams.tick();
    one.work();
    let ends = one.partition.offsets();
    assert_eq!((ends.earliest, ends.next, logs(&one)), (20, 20, 1));
    one.fill(20..21, 8);
    assert_eq!(one.reopen(true).0.partition.offsets().earliest, 20);
}

#[test]
fn retention_can_be_reconfigured() {
    let one = TestLog::new(&small());
    one.fill(0..30, 1000);
    assert_eq!(logs(&one), 10);
    one.streams.create("s", &small().with_retain_bytes(Some(1))).unwrap();
    one.streams.tick();
    one.work();
    assert_eq!(logs(&one), 1);
    // The configuration is stored with the stream.
    let (one, _) = one.reopen(true);
    one.fill(30..60, 1000);
    one.streams.tick();
    one.work();
    assert_eq!(logs(&one), 1);
}
