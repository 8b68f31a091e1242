//! Removal of segments by retention.

use std::time::Duration;

use super::{One, read_all, small};
use crate::{ReadError, Start};

fn logs(one: &One) -> usize {
    one.disk.files("/log/streams/s/0").iter().filter(|(name, _)| name.ends_with(".log")).count()
}

#[test]
fn retention_by_bytes_removes_whole_segments() {
    let one = One::new(&small().retain_bytes(Some(6000)));
    let lent = {
        one.fill(0..1, 1000);
        one.partition.read(0, 1).unwrap()
    };
    one.fill(1..30, 1000);
    one.streams.tick();
    one.work();
    let ends = one.partition.ends();
    assert_eq!((ends.earliest, ends.next, logs(&one)), (24, 30, 2));
    assert!(one.partition.statistics().bytes >= 6000);
    assert!(matches!(one.partition.read(23, 1), Err(ReadError::Gone { earliest: 24 })));
    assert_eq!((one.partition.seek(Start::Earliest), one.partition.seek(Start::Offset(3))), (24, 24));
    // Indexes are removed with their segments; shared bytes remain valid.
    assert_eq!(one.disk.files("/log/streams/s/0").len(), 3);
    assert_eq!(lent.batches.len(), 40 + 23 + 1000);
    let (one, losses) = one.reopen(true);
    assert_eq!((losses, read_all(&one.partition, 1).0.len()), (vec![], 6));
}

#[test]
fn retention_by_age_removes_segments_of_slow_streams() {
    let one = One::new(&small().retain_age(Some(Duration::from_secs(100))));
    for number in 0..20 {
        // The last segment is ended after 25 s, so that it can be removed.
        one.hand.pass(10_000_000);
        one.fill(number..number + 1, 8);
    }
    one.streams.tick();
    one.work();
    let ends = one.partition.ends();
    assert!((6..=10).contains(&ends.earliest), "{ends:?}");
    one.hand.pass(100_000_000 + 1);
    one.streams.tick();
    one.work();
    let ends = one.partition.ends();
    assert_eq!((ends.earliest, ends.next, logs(&one)), (20, 20, 1));
    one.fill(20..21, 8);
    assert_eq!(one.reopen(true).0.partition.ends().earliest, 20);
}

#[test]
fn retention_can_be_reconfigured() {
    let one = One::new(&small());
    one.fill(0..30, 1000);
    assert_eq!(logs(&one), 10);
    one.streams.create("s", &small().retain_bytes(Some(1))).unwrap();
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
