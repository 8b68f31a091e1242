//! Seeking and reading.

use std::sync::mpsc;

use super::{TestLog, numbered, read_all, small};
use crate::{Fsync, ReadError, StartPosition, StreamConfig};

#[test]
fn read_returns_as_many_whole_batches_as_fit() {
    let one = TestLog::new(&StreamConfig::default());
    for batch in 0..10 {
        one.partition.append(numbered(batch * 10..batch * 10 + 10, 77)).unwrap();
    }
    one.work();
    // A batch of 40 + 10 * (20 + 3 + 77) bytes.
    for (from, most, batches, next) in [
        (0, 0, 1, 10),
        (5, 1, 1, 10),
        (9, 2079, 1, 10),
        (9, 2080, 2, 20),
        (35, 10_000, 7, 100),
        (99, 10_000, 1, 100),
    ] {
        let read = one.partition.read(from, most).unwrap();
        assert_eq!((read.batches.len(), read.next), (batches * 1040, next), "{from} {most}");
    }
    let read = one.partition.read(100, 1).unwrap();
    assert!(read.batches.is_empty() && read.next == 100);
    assert!(matches!(one.partition.read(101, 1), Err(ReadError::Ahead { readable: 100 })));
}

#[test]
fn large_batches_are_read_from_any_offset() {
    let one = TestLog::new(&StreamConfig::default());
    let sizes = [10, 300_000, 10, 70_000, 70_000, 1_000_000, 10, 65_536];
    for (number, size) in sizes.into_iter().enumerate() {
        one.fill(number as u64..number as u64 + 1, size);
    }
    let (one, losses) = one.reopen(true);
    assert_eq!(losses, []);
    for most in [0, 1, 70_000, 1 << 20, 10 << 20] {
        assert_eq!(read_all(&one.partition, most).0.len(), sizes.len());
        for from in 0..sizes.len() as u64 {
            let read = one.partition.read(from, most).unwrap();
            assert_eq!(crate::record::iter(&read.batches).next().unwrap().unwrap().header().base, from);
        }
    }
}

#[test]
fn seeking_by_offset_and_by_time() {
    let one = TestLog::new(&small());
    // At 2, 3, 4... seconds, ten batches a segment.
    for number in 0..40 {
        one.clock.advance(1_000_000);
        one.fill(number..number + 1, 300);
    }
    let seek = |start| one.partition.seek(start);
    assert_eq!(
        [
            StartPosition::Earliest,
            StartPosition::Latest,
            StartPosition::Offset(7),
            StartPosition::Offset(1000)
        ]
        .map(seek),
        [0, 40, 7, 40]
    );
    let (closed, losses) = {
        for offset in 0..40 {
            let time = (offset + 2) * 1_000_000;
            assert_eq!(seek(StartPosition::Time(time)), offset);
            assert_eq!(seek(StartPosition::Time(time + 1)), offset + 1);
        }
        one.reopen(false)
    };
    assert_eq!(losses, []);
    assert_eq!(
        [0, 20_000_000, 20_000_001, u64::MAX].map(|time| closed.partition.seek(StartPosition::Time(time))),
        [0, 18, 19, 40]
    );
}

#[test]
fn batch_times_never_decrease() {
    let one = TestLog::new(&StreamConfig::default());
    one.clock.advance(1_000_000);
    one.fill(0..1, 8);
    one.clock.0.store(5, std::sync::atomic::Ordering::Relaxed);
    one.fill(1..2, 8);
    let read = one.partition.read(0, 1000).unwrap();
    let times: Vec<u64> =
        crate::record::iter(&read.batches).map(|batch| batch.unwrap().header().appended).collect();
    assert_eq!(times, [2_000_000, 2_000_000]);
    assert_eq!(one.reopen(true).1, []);
}

#[test]
fn readers_at_the_end_share_the_same_bytes() {
    let one = TestLog::new(&StreamConfig::default());
    one.fill(0..200, 100);
    // From the index, from the recent positions, and from both ends of the latter.
    for from in [0, 100, 135, 136, 137, 198, 199] {
        let read = one.partition.read(from, 1 << 20).unwrap();
        assert_eq!((read.batches.len(), read.next), ((200 - from as usize) * 163, 200), "{from}");
    }
    let at_end: Vec<_> = (0..3).map(|_| one.partition.read(199, 1 << 20).unwrap().batches).collect();
    assert!(at_end.windows(2).all(|pair| pair[0].as_ptr() == pair[1].as_ptr()));
    // New batches are visible, and so is a new segment.
    one.fill(200..201, 100);
    assert_eq!(one.partition.read(199, 1 << 20).unwrap().next, 201);
    one.streams.create("s", &small()).unwrap();
    one.fill(201..203, 100);
    assert_eq!([200, 201, 202].map(|from| one.partition.read(from, 1 << 20).unwrap().next), [201, 203, 203]);
}

#[test]
fn read_while_a_segment_is_ended_uses_its_index() {
    let config = StreamConfig::default().with_fsync(Fsync::Never).with_segment_bytes(1 << 20);
    // The sync of the old segment, and the index file, the new segment and its directory.
    for call in 1..=4 {
        let one = TestLog::new(&config);
        one.fill(0..950, 1000);
        let (partition, disk) = (one.partition.clone(), one.disk.clone());
        let (sender, read) = mpsc::channel();
        one.disk.run_before(call, move || {
            let before = disk.bytes_read();
            let read = partition.read(800, 1).unwrap();
            sender.send((read.next, disk.bytes_read() - before)).unwrap();
        });
        one.partition.append(numbered([950], 200_000)).unwrap();
        one.work();
        let (next, bytes) = read.recv().unwrap();
        assert_eq!(next, 801);
        assert!(bytes <= 2 * (64 << 10), "call {call}: {bytes} bytes");
        assert_eq!(one.partition.offsets().readable, 951);
    }
}
