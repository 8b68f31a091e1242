//! The clock is set while the log is in use.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{ManualClock, TestLog, numbered, read_all, small};
use crate::disk::simulated::SimulatedDisk;
use crate::writer::steady_clock;
use crate::{StartPosition, StreamConfig, Streams, StreamsConfig};

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3600 * SECOND;
const YEAR: u64 = 365 * 24 * HOUR;

fn set(clock: &ManualClock, time: u64) {
    clock.0.store(time, Ordering::Relaxed);
}

fn segments(one: &TestLog) -> usize {
    one.disk.files("/log/streams/s/0").iter().filter(|(name, _)| name.ends_with(".log")).count()
}

/// Appends a record each minute from this time on.
fn each_minute(one: &TestLog, numbers: std::ops::Range<u64>, from: u64) {
    for (minute, number) in numbers.enumerate() {
        set(&one.clock, from + minute as u64 * 60 * SECOND);
        one.fill(number..number + 1, 8);
    }
}

#[test]
fn clock_a_year_ahead_for_one_record_affects_no_other_record() {
    let one = TestLog::new(&StreamConfig::default());
    each_minute(&one, 0..10, YEAR);
    set(&one.clock, 2 * YEAR);
    one.fill(10..11, 8);
    each_minute(&one, 11..20, YEAR + HOUR);
    let (one, losses) = one.reopen(true);
    assert_eq!((losses, read_all(&one.partition, 1).0.len()), (vec![], 20));
    let seek = |time| one.partition.seek(StartPosition::Time(time));
    assert_eq!([seek(YEAR), seek(YEAR + 60 * SECOND), seek(YEAR + 540 * SECOND)], [0, 1, 9]);
    assert_eq!([seek(YEAR + HOUR + 1), seek(YEAR + HOUR + 480 * SECOND), seek(3 * YEAR)], [12, 19, 20]);
    one.streams
        .create("s", &StreamConfig::default().with_retain_age(Some(Duration::from_secs(7200))))
        .unwrap();
    // Retention continues: the year-old record is removed two hours after the clock was right again.
    set(&one.clock, YEAR + 4 * HOUR);
    one.streams.tick();
    one.work();
    one.fill(20..21, 8);
    one.streams.tick();
    one.work();
    assert_eq!((one.partition.offsets().earliest, segments(&one)), (20, 1));
}

#[test]
fn clock_a_year_ahead_for_one_batch_of_a_copy_affects_no_other_batch() {
    let day = Duration::from_secs(24 * 3600);
    let one = TestLog::new(&StreamConfig::default().with_retain_age(Some(day)));
    let append = |number: u64, time: u64| {
        one.partition.append_if_end(number, number, time, numbered([number], 8)).unwrap();
        one.streams.pool().work_until(|| one.partition.offsets().readable > number);
    };
    set(&one.clock, YEAR);
    append(0, YEAR);
    append(1, 2 * YEAR);
    let begin = YEAR + 7 * HOUR;
    for number in 2..502 {
        set(&one.clock, begin + number * SECOND);
        append(number, begin + number * SECOND);
    }
    assert!(segments(&one) <= 4, "{} segments", segments(&one));
    let seek = |time| one.partition.seek(StartPosition::Time(time));
    assert_eq!(seek(begin + 400 * SECOND), 400);
    set(&one.clock, begin + 3 * 24 * HOUR);
    one.streams.tick();
    one.work();
    append(502, begin + 3 * 24 * HOUR);
    one.streams.tick();
    one.work();
    assert_eq!(one.partition.offsets().earliest, 502);
}

#[test]
fn clock_a_year_behind_for_one_record_removes_no_segment() {
    let one = TestLog::new(&StreamConfig::default().with_retain_age(Some(Duration::from_secs(7200))));
    each_minute(&one, 0..10, 2 * YEAR);
    set(&one.clock, YEAR);
    one.fill(10..11, 8);
    each_minute(&one, 11..20, 2 * YEAR + HOUR);
    one.streams.tick();
    one.work();
    assert_eq!(read_all(&one.partition, 1).0.len(), 20);
    let seek = |time| one.partition.seek(StartPosition::Time(time));
    assert_eq!([seek(2 * YEAR), seek(2 * YEAR + 60 * SECOND), seek(2 * YEAR + 540 * SECOND)], [0, 1, 9]);
    assert_eq!(seek(2 * YEAR + HOUR + 1), 12);
}

#[test]
fn retention_removes_last_segment_after_clock_was_ahead() {
    let one = TestLog::new(&small().with_retain_age(Some(Duration::from_secs(100))));
    set(&one.clock, YEAR);
    one.fill(0..1, 8);
    for seconds in [0, 101] {
        set(&one.clock, HOUR + seconds * SECOND);
        one.streams.tick();
        one.work();
    }
    assert_eq!((one.partition.offsets().earliest, segments(&one)), (1, 1));
}

#[test]
fn batch_times_stand_still_when_the_clock_goes_back_by_seconds() {
    let one = TestLog::new(&StreamConfig::default());
    set(&one.clock, YEAR);
    one.fill(0..1, 8);
    set(&one.clock, YEAR - 59 * SECOND);
    one.fill(1..2, 8);
    assert_eq!((segments(&one), one.partition.seek(StartPosition::Time(YEAR))), (1, 0));
}

#[test]
fn clock_set_back_begins_a_new_segment() {
    let one = TestLog::new(&StreamConfig::default());
    for (number, time) in [(0, YEAR), (1, 2 * YEAR), (2, YEAR), (3, YEAR + 1)] {
        set(&one.clock, time);
        one.partition.append(numbered([number], 8)).unwrap();
    }
    one.work();
    assert_eq!(segments(&one), 2);
    let (one, losses) = one.reopen(true);
    assert_eq!((losses, read_all(&one.partition, 1).0.len()), (vec![], 4));
}

#[test]
fn clock_change_is_followed_after_a_minute() {
    let (wall, counter) = (ManualClock::default(), ManualClock::default());
    set(&wall, YEAR);
    let (ours, theirs) = (wall.0.clone(), counter.0.clone());
    let clock = steady_clock(move || ours.load(Ordering::Relaxed), move || theirs.load(Ordering::Relaxed));
    let advance = |micros| {
        wall.advance(micros);
        counter.advance(micros);
        clock()
    };
    assert_eq!(advance(SECOND), YEAR + SECOND);
    // Forth and back has no effect. A second jump starts a new waiting time.
    for _ in 0..2 {
        wall.advance(YEAR);
        assert_eq!(clock(), wall.0.load(Ordering::Relaxed) - YEAR);
        set(&wall, wall.0.load(Ordering::Relaxed) - YEAR);
        assert_eq!(advance(100 * SECOND), wall.0.load(Ordering::Relaxed));
    }
    for there in [3 * YEAR, YEAR / 3] {
        set(&wall, there);
        let before = clock();
        assert!(before.abs_diff(there) > HOUR);
        assert_eq!(advance(59 * SECOND), before + 59 * SECOND);
        assert_eq!(advance(2 * SECOND), there + 61 * SECOND);
    }
    // A clock that is adjusted in small steps is followed.
    wall.advance(4 * SECOND);
    assert_eq!(clock(), wall.0.load(Ordering::Relaxed));
}

#[test]
fn temporary_clock_step_affects_neither_batches_nor_retention() {
    let (wall, counter) = (ManualClock::default(), ManualClock::default());
    set(&wall, YEAR);
    let (ours, theirs) = (wall.0.clone(), counter.0.clone());
    let clock = steady_clock(move || ours.load(Ordering::Relaxed), move || theirs.load(Ordering::Relaxed));
    let disk = Arc::new(SimulatedDisk::new(1));
    let config = StreamsConfig::default().with_writers(0);
    let (streams, _) = Streams::open_on(disk, Path::new("/log"), config, clock).unwrap();
    let stream = streams.create("s", &small().with_retain_age(Some(Duration::from_secs(7200)))).unwrap();
    let partition = stream.partition(0).unwrap();
    for jump in [0, YEAR, 0, YEAR / 2] {
        wall.advance(jump);
        for number in 0..5 {
            partition.append(numbered([number], 1000)).unwrap();
            while streams.work() {}
        }
        streams.tick();
        while streams.work() {}
        set(&wall, YEAR);
    }
    assert_eq!(partition.offsets().earliest, 0);
    assert_eq!(partition.seek(StartPosition::Time(YEAR + 1)), 20, "no batch is ahead");
}
