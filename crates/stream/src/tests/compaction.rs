//! Compaction: the newest record of each key survives, whatever fails.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{ManualClock, TestLog, open, poll, small};
use crate::disk::simulated::{CrashKind, DiskFault, SimRng, SimulatedDisk};
use crate::record::{self, RecordBuilder, Records, ValueKind};
use crate::{AppendError, Durability, Fsync, Partition, ReadError, StreamConfig, StreamsConfig};

const RETENTION: Duration = Duration::from_secs(100);

fn compacted() -> StreamConfig {
    small().with_compaction(Some(RETENTION))
}

/// A record with a key, with this number as its value; without a value, a tombstone.
fn keyed(key: u64, number: Option<u64>) -> Records {
    keyed_batch(&[(key, number)])
}

fn keyed_batch(records: &[(u64, Option<u64>)]) -> Records {
    let mut builder = RecordBuilder::new();
    for (key, number) in records {
        let (value, kind) = match number {
            Some(number) => (number.to_le_bytes().to_vec(), ValueKind::Bytes),
            None => (Vec::new(), ValueKind::Tombstone),
        };
        builder.push(0, format!("key-{key}").as_bytes(), &value, kind).unwrap();
    }
    builder.finish().unwrap()
}

fn append(one: &TestLog, records: Records) -> u64 {
    let mut pending = one.partition.append(records).unwrap();
    one.work();
    poll(&mut pending, Durability::Disk).unwrap().unwrap()
}

/// Runs the clock's checks, and all work that follows.
fn compact(one: &TestLog) {
    one.clock.advance(1_000_001);
    one.streams.tick();
    one.work();
}

/// A record as read: its offset, key, and number.
type Found = (u64, String, Option<u64>);

/// All records, read in steps of one batch.
fn read(partition: &Partition) -> Vec<Found> {
    let mut found = Vec::new();
    let mut from = partition.offsets().earliest;
    loop {
        let read = match partition.read(from, 1) {
            Ok(read) => read,
            Err(ReadError::Damaged { resume, .. }) => {
                from = resume;
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        if read.batches.is_empty() {
            assert_eq!(from, partition.offsets().readable);
            return found;
        }
        for record in record::iter(&read.batches).flat_map(|batch| batch.unwrap().records()) {
            // Damage to its bytes is found by its checksum only.
            let Ok(record) = record else { continue };
            let number = match record.kind {
                ValueKind::Tombstone => None,
                _ => Some(u64::from_le_bytes(record.value.try_into().unwrap())),
            };
            found.push((record.offset, String::from_utf8(record.key.to_vec()).unwrap(), number));
        }
        assert!(read.next > from);
        from = read.next;
    }
}

/// The last record of each key: its offset and number.
fn state(partition: &Partition) -> BTreeMap<String, (u64, Option<u64>)> {
    let mut state = BTreeMap::new();
    for (offset, key, number) in read(partition) {
        if let Some((before, _)) = state.insert(key, (offset, number)) {
            assert!(before < offset);
        }
    }
    state
}

fn files(disk: &SimulatedDisk) -> Vec<String> {
    disk.files("/log/streams/s/0").into_iter().map(|(name, _)| name).collect()
}

fn logs(disk: &SimulatedDisk) -> usize {
    files(disk).iter().filter(|name| name.ends_with(".log")).count()
}

#[test]
fn newest_record_of_each_key_survives_at_its_offset() {
    let one = TestLog::new(&compacted());
    for number in 0..300 {
        assert_eq!(append(&one, keyed(number * 7 % 10, Some(number))), number);
    }
    let (before, all) = (state(&one.partition), read(&one.partition));
    assert!((all.len(), logs(&one.disk)) > (299, 6));
    compact(&one);
    let (after, rest) = (state(&one.partition), read(&one.partition));
    assert_eq!(after, before);
    // Closed segments have each key once, in one file; the last segment is unchanged.
    let files = files(&one.disk);
    assert_eq!(logs(&one.disk), 2, "{files:?}");
    let base: u64 = files.iter().filter_map(|name| name.strip_suffix(".log")?.parse().ok()).max().unwrap();
    assert!(files.iter().any(|name| *name == format!("{:020}-{base:020}.1.log", 0)), "{files:?}");
    let (closed, open): (Vec<_>, Vec<_>) = rest.iter().cloned().partition(|(offset, ..)| *offset < base);
    let keys: BTreeSet<_> = closed.iter().map(|(_, key, _)| key).collect();
    assert_eq!((closed.len(), keys.len()), (10, 10));
    assert_eq!(open, all[base as usize..]);
    // Each offset leads to the next record that is left.
    for from in 0..300 {
        let batches = one.partition.read(from, 1).unwrap().batches;
        let next = record::iter(&batches).next().unwrap().unwrap();
        let offset = next.records().map(|record| record.unwrap().offset).find(|offset| *offset >= from);
        assert_eq!(offset, rest.iter().map(|found| found.0).find(|offset| *offset >= from), "{from}");
    }
    assert_eq!(one.partition.offsets().earliest, 0);
    let statistics = one.partition.statistics();
    assert_eq!((statistics.compactions, statistics.compacted_records), (1, base - 10));
    for kill in [false, true] {
        let (again, losses) = TestLog { ..one_of(&one) }.reopen(kill);
        assert_eq!((losses, read(&again.partition)), (vec![], rest.clone()), "{kill}");
    }
}

/// The same log, as a handle that can be consumed.
fn one_of(one: &TestLog) -> TestLog {
    let disk = one.disk.after(CrashKind::Kill);
    let (streams, losses) = open(&disk, StreamsConfig::default(), &one.clock).unwrap();
    assert_eq!(losses, []);
    let stream = streams.stream("s").unwrap();
    let partition = stream.partition(0).unwrap();
    TestLog { disk, clock: one.clock.clone(), streams, stream, partition }
}

#[test]
fn compaction_waits_until_half_of_the_closed_bytes_are_new() {
    let one = TestLog::new(&compacted());
    let mut number = 0;
    let mut passes = Vec::new();
    for _ in 0..4 {
        // All keys differ: nothing can be removed.
        while logs(&one.disk) < 6 {
            append(&one, keyed(number, Some(number)));
            number += 1;
        }
        one.clock.advance(60_000_000);
        compact(&one);
        passes.push(one.partition.statistics().compactions);
        if logs(&one.disk) == 6 {
            break;
        }
    }
    assert_eq!(passes[0], 1);
    let before = one.partition.statistics();
    append(&one, keyed(0, Some(number)));
    compact(&one);
    assert_eq!(one.partition.statistics().compactions, before.compactions);
    assert_eq!(state(&one.partition).len() as u64, number);
}

#[test]
fn tombstones_are_removed_after_their_retention() {
    let one = TestLog::new(&compacted());
    let fill = |from: u64| {
        for number in from..from + 150 {
            append(&one, keyed(number % 3, Some(number)));
        }
    };
    append(&one, keyed(99, Some(1)));
    append(&one, keyed(99, None));
    fill(0);
    let has_key = || state(&one.partition).contains_key("key-99");
    // The older record is gone, however old it is. The retention of the tombstone starts then.
    one.clock.advance(1_000_000_000);
    compact(&one);
    let found = read(&one.partition);
    assert_eq!(
        found.iter().filter(|found| found.1 == "key-99").cloned().collect::<Vec<_>>(),
        [(1, "key-99".to_owned(), None)]
    );
    fill(150);
    one.clock.advance(90_000_000);
    compact(&one);
    assert!((has_key(), one.partition.statistics().compactions) == (true, 2));
    fill(300);
    one.clock.advance(20_000_000);
    compact(&one);
    assert!((has_key(), one.partition.statistics().compactions) == (false, 3));
    let before = read(&one.partition);
    let (one, losses) = one.reopen(true);
    assert_eq!((losses, read(&one.partition), one.partition.offsets().earliest), (vec![], before, 0));
}

#[test]
fn end_of_the_closed_segments_is_readable_after_compaction() {
    // The last closed record is an expired tombstone, and the open segment is empty.
    let one = TestLog::new(&compacted());
    for number in 0..100 {
        append(&one, keyed(number % 3, Some(number)));
    }
    append(&one, keyed(50, Some(1)));
    append(&one, keyed(50, None));
    let (one, _) = one.reopen(false);
    for _ in 0..3 {
        one.clock.advance(200_000_000);
        compact(&one);
    }
    let end = one.partition.offsets().readable;
    for from in 0..=end {
        let read = one.partition.read(from, 1).unwrap();
        assert_eq!(read.batches.is_empty(), from == end, "{from}");
    }
}

#[test]
fn more_keys_than_fit_into_memory_take_several_passes() {
    let limits = StreamsConfig::default().with_max_compaction_keys(7);
    let one = TestLog::on(SimulatedDisk::new(1), limits, &compacted());
    for number in 0..600 {
        append(&one, keyed(number * 7 % 50, Some(number)));
    }
    let before = state(&one.partition);
    compact(&one);
    assert_eq!(state(&one.partition), before);
    let statistics = one.partition.statistics();
    assert!(statistics.compactions > 5, "{statistics:?}");
    let base = files(&one.disk).iter().filter_map(|name| name.strip_suffix(".log")?.parse().ok()).max();
    let closed = read(&one.partition).into_iter().filter(|found| found.0 < base.unwrap()).count();
    assert_eq!(closed, 50);
}

#[test]
fn batches_are_split_where_records_are_removed() {
    let one = TestLog::new(&compacted());
    for number in 0..40 {
        let records = [(1, Some(number)), (100 + number, Some(number)), (2, Some(number)), (3, Some(number))];
        append(&one, keyed_batch(&records));
    }
    let before = state(&one.partition);
    compact(&one);
    assert_eq!(state(&one.partition), before);
    assert!(one.partition.statistics().compacted_records > 60);
    let (one, losses) = one.reopen(true);
    assert_eq!((losses, state(&one.partition)), (vec![], before));
}

#[test]
fn records_without_a_key_are_rejected_and_existing_ones_remain() {
    let one = TestLog::new(&small());
    let unkeyed = || {
        let mut builder = RecordBuilder::new();
        builder.push(0, b"", &[7; 8], ValueKind::Bytes).unwrap();
        builder.finish().unwrap()
    };
    for number in 0..60 {
        append(&one, unkeyed());
        append(&one, keyed(1, Some(number)));
    }
    one.streams.create("s", &compacted()).unwrap();
    assert_eq!(one.partition.append(unkeyed()).unwrap_err(), AppendError::NoKey);
    compact(&one);
    let found = read(&one.partition);
    assert_eq!(found.iter().filter(|found| found.1.is_empty()).count(), 60);
    assert!(found.len() < 90, "{}", found.len());
}

#[test]
fn damaged_segment_and_its_successors_are_not_compacted() {
    let one = TestLog::new(&compacted());
    for number in 0..300 {
        append(&one, keyed(number % 5, Some(number)));
    }
    let mut names: Vec<String> = files(&one.disk).into_iter().filter(|name| name.ends_with(".log")).collect();
    names.sort();
    one.disk.damage(&format!("/log/streams/s/0/{}", names[2]), 1000);
    let before = state(&one.partition);
    compact(&one);
    let after = files(&one.disk);
    assert!(names[2..].iter().all(|name| after.contains(name)), "{after:?}");
    assert!(!after.contains(&names[0]) && !after.contains(&names[1]), "{after:?}");
    assert_eq!(state(&one.partition), before);
}

#[test]
fn retention_removes_compacted_segments() {
    let one = TestLog::new(&compacted().with_retain_age(Some(Duration::from_secs(1000))));
    for number in 0..300 {
        append(&one, keyed(number % 5, Some(number)));
    }
    compact(&one);
    one.clock.advance(1_001_000_000);
    compact(&one);
    compact(&one);
    assert_eq!((logs(&one.disk), read(&one.partition)), (1, vec![]));
}

#[test]
fn reader_of_a_replaced_segment_continues_in_its_replacement() {
    let one = TestLog::new(&compacted());
    for number in 0..300 {
        append(&one, keyed(number % 5, Some(number)));
    }
    let shared = one.partition.read(0, 4000).unwrap();
    let expected = shared.batches.to_vec();
    compact(&one);
    one.streams.pool().release_unused();
    assert_eq!(shared.batches, expected);
    assert!(one.partition.read(shared.next, 1).is_ok());
}

/// One compaction with a fault at each of its calls.
#[test]
fn fault_at_any_call_of_a_compaction_loses_nothing() {
    let mut calls = 0;
    for (kind, fault) in [
        (CrashKind::Kill, DiskFault::Crash),
        (CrashKind::PowerLoss, DiskFault::Crash),
        (CrashKind::PowerLoss, DiskFault::Failure),
        (CrashKind::PowerLoss, DiskFault::Full),
        (CrashKind::Kill, DiskFault::Short),
    ] {
        for at in 1.. {
            let one = TestLog::on(SimulatedDisk::new(at), StreamsConfig::default(), &compacted());
            for number in 0..120 {
                append(&one, keyed(number % 5, (number % 11 > 0).then_some(number)));
            }
            compact(&one);
            for number in 120..400 {
                append(&one, keyed(number % 5, (number % 11 > 0).then_some(number)));
            }
            one.clock.advance(200_000_000);
            let before = state(&one.partition);
            let begun = one.disk.calls();
            one.disk.plan(at, fault);
            compact(&one);
            let is_over = one.disk.calls() < begun + at;
            calls = calls.max(at);
            let name = format!("{kind:?} {fault:?} {at}");
            if !one.disk.has_crashed() {
                assert_eq!(state(&one.partition), before, "{name}");
            }
            let disk = one.disk.after(kind);
            let (streams, losses) = open(&disk, StreamsConfig::default(), &one.clock).unwrap();
            assert_eq!(losses, [], "{name}");
            let stream = streams.stream("s").unwrap();
            let partition = stream.partition(0).unwrap();
            let again = TestLog { disk, clock: one.clock.clone(), streams, stream, partition };
            assert_eq!(state(&again.partition), before, "{name}");
            again.clock.advance(60_000_000);
            compact(&again);
            assert_eq!(state(&again.partition), before, "{name}");
            assert_eq!(logs(&again.disk), 2, "{name}");
            assert!(!files(&again.disk).iter().any(|file| file.ends_with(".new")), "{name}");
            if is_over {
                break;
            }
        }
    }
    assert!(calls > 10, "{calls}");
}

/// External knowledge of one partition.
#[derive(Default)]
struct Model {
    next: u64,
    /// The newest acknowledged record of each key: its offset and number.
    acknowledged: BTreeMap<String, (u64, Option<u64>)>,
}

/// A partition through several lives, with random writes, faults, compactions and crashes.
fn run(seed: u64) {
    let mut chance = SimRng::new(seed);
    let clock = ManualClock::default();
    clock.advance(1_000_000);
    let fsync = [Fsync::Batch, Fsync::Never][chance.below(2) as usize];
    let config = StreamConfig { segment_bytes: 600 + chance.below(2000), ..StreamConfig::default() }
        .with_fsync(fsync)
        .with_compaction(Some(Duration::from_secs(chance.below(40))));
    let keys = 1 + chance.below(30);
    let limits = StreamsConfig::default().with_max_compaction_keys(1 + chance.below(40) as usize);
    let mut disk = SimulatedDisk::new(seed);
    let mut model = Model::default();
    for _ in 0..4 {
        let name = format!("seed {seed}");
        for _ in 0..chance.below(3) {
            let fault = [DiskFault::Crash, DiskFault::Failure, DiskFault::Short, DiskFault::Full];
            disk.plan(1 + chance.below(300), fault[chance.below(4) as usize]);
        }
        if let Ok((streams, _)) = open(&disk, limits.clone(), &clock)
            && let Ok(stream) = streams.create("s", &config)
        {
            let partition = stream.partition(0).unwrap();
            live(&streams, &partition, &clock, &mut chance, keys, &mut model, fsync);
            if chance.one_in(3) && !disk.has_crashed() {
                streams.close();
                if fsync == Fsync::Never {
                    note_state(&partition, &mut model);
                }
            } else {
                disk.plan(1, DiskFault::Crash);
            }
        }
        let after = if chance.one_in(2) { CrashKind::Kill } else { CrashKind::PowerLoss };
        let is_lossy = after == CrashKind::PowerLoss && fsync == Fsync::Never;
        disk = disk.after(after);
        let (streams, _) =
            open(&disk, limits.clone(), &clock).unwrap_or_else(|error| panic!("{name}: {error}"));
        let Some(stream) = streams.stream("s") else { continue };
        let partition = stream.partition(0).unwrap();
        let found = state(&partition);
        if !is_lossy {
            for (key, (offset, number)) in &model.acknowledged {
                match found.get(key) {
                    Some((at, value)) if at == offset => assert_eq!(value, number, "{name} {key}"),
                    Some((at, _)) => assert!(at > offset, "{name} {key}: {at} in place of {offset}"),
                    // Its tombstone has expired.
                    None => assert_eq!(*number, None, "{name} {key} at {offset}"),
                }
            }
        }
        model.acknowledged = found;
        model.next = model.next.max(partition.offsets().readable);
    }
}

/// Notes the records that are readable after a clean close, as acknowledged.
fn note_state(partition: &Partition, model: &mut Model) {
    if partition.failure().is_none() {
        model.acknowledged = state(partition);
    }
}

fn live(
    streams: &crate::Streams,
    partition: &Partition,
    clock: &ManualClock,
    chance: &mut SimRng,
    keys: u64,
    model: &mut Model,
    fsync: Fsync,
) {
    let mut waiting = Vec::new();
    for _ in 0..chance.below(120) {
        match chance.below(8) {
            0..=5 => {
                let records: Vec<_> = (0..1 + chance.below(4))
                    .map(|_| {
                        model.next += 1;
                        (chance.below(keys), (!chance.one_in(4)).then_some(model.next))
                    })
                    .collect();
                if let Ok(pending) = partition.append(keyed_batch(&records)) {
                    waiting.push((pending, records));
                }
            }
            6 => {
                streams.work();
            }
            _ => {
                clock.advance(chance.below(30_000_000));
                streams.tick();
                while chance.below(9) > 0 && streams.work() {}
            }
        }
    }
    while chance.below(40) > 0 && streams.work() {}
    let durable = partition.offsets().durable;
    for (mut pending, records) in waiting {
        let Some(Ok(first)) = poll(&mut pending, Durability::Disk) else { continue };
        for (offset, (key, number)) in (first..).zip(records) {
            if fsync == Fsync::Batch || offset < durable {
                let known = model.acknowledged.entry(format!("key-{key}")).or_insert((offset, number));
                if known.0 < offset {
                    *known = (offset, number);
                }
            }
        }
    }
}

#[test]
fn acknowledged_state_survives_any_fault_and_compaction() {
    let number =
        |name, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let first: u64 = number("SINEWS_STREAM_SEED", 0);
    for seed in first..first + number("SINEWS_STREAM_SEEDS", 150) {
        run(seed);
    }
}
