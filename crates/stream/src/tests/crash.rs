//! Any fault at any call: acknowledged records are found, once, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{ManualClock, TestLog, numbered, open, poll, read_all};
use crate::disk::simulated::{CrashKind, DiskFault, SimRng, SimulatedDisk};
use crate::{
    AppendError, Durability, Fsync, Partition, Pending, Stream, StreamConfig, Streams, StreamsConfig,
};

/// External knowledge of one partition, over all lives of the process.
#[derive(Default)]
struct ExpectedState {
    /// The number of the next record that is appended, over all lives.
    next: u64,
    /// Unanswered appends: their numbers.
    under_way: Vec<(Pending, Vec<u64>)>,
    /// Records that were acknowledged as on disk or visible to a reader, by offset.
    readable: BTreeMap<u64, u64>,
    /// End of the synced part of these records.
    durable: u64,
    /// Records that were permanently rejected.
    refused: BTreeSet<u64>,
}

struct TestRun {
    streams: Streams,
    stream: Stream,
    partition: Partition,
}

const WAYS: [Fsync; 3] = [Fsync::Batch, Fsync::Interval(Duration::from_millis(10)), Fsync::Never];

/// One partition through several lives, each of which ends differently.
fn run(seed: u64) {
    let mut chance = SimRng::new(seed);
    let clock = ManualClock::default();
    let fsync = WAYS[chance.below(3) as usize];
    let config = StreamConfig { segment_bytes: 1000 + chance.below(4000), ..StreamConfig::default() }
        .with_fsync(fsync);
    let mut disk = SimulatedDisk::new(seed);
    let mut promised = ExpectedState::default();
    let mut committed = vec![None];
    for _ in 0..2 + chance.below(4) {
        plan(&disk, &mut chance);
        let run = begin(&disk, &clock, &config);
        if let Some(run) = run {
            check(&run, &promised, &format!("seed {seed}"));
            for _ in 0..chance.below(60) {
                step(&run, &disk, &clock, &mut chance, &mut promised, &mut committed);
            }
            end(run, &disk, &mut chance, &mut promised);
        }
        let after = if chance.one_in(2) { CrashKind::Kill } else { CrashKind::PowerLoss };
        disk = disk.after(after);
        reopen_and_check(&disk, &clock, &config, after, &mut promised, &mut committed, seed);
    }
}

/// Plans the faults of this life.
fn plan(disk: &SimulatedDisk, chance: &mut SimRng) {
    for _ in 0..chance.below(3) {
        let fault = match chance.below(7) {
            0 => DiskFault::NoSpace(chance.below(600)),
            1 => DiskFault::Failure,
            6 => DiskFault::Full,
            2 | 3 => DiskFault::Crash,
            _ => DiskFault::Short,
        };
        disk.plan(1 + chance.below(80), fault);
    }
}

fn begin(disk: &SimulatedDisk, clock: &ManualClock, config: &StreamConfig) -> Option<TestRun> {
    // Small, so that the limit is reached.
    let limits = StreamsConfig::default().with_max_pending(2000);
    let (streams, _) = open(disk, limits, clock).ok()?;
    let stream = streams.create("s", config).ok()?;
    let partition = stream.partition(0)?;
    Some(TestRun { streams, stream, partition })
}

fn step(
    run: &TestRun,
    disk: &SimulatedDisk,
    clock: &ManualClock,
    chance: &mut SimRng,
    promised: &mut ExpectedState,
    committed: &mut Vec<Option<u64>>,
) {
    match chance.below(10) {
        0..=4 => {
            let count = 1 + chance.below(3);
            let numbers: Vec<u64> = (promised.next..promised.next + count).collect();
            promised.next += count;
            match run.partition.append(numbered(numbers.iter().copied(), 8 + chance.below(200) as usize)) {
                Ok(pending) => promised.under_way.push((pending, numbers)),
                Err(_) => promised.refused.extend(numbers),
            }
        }
        5 | 6 => {
            run.streams.work();
        }
        7 => {
            clock.advance(chance.below(3_000_000));
            run.streams.tick();
        }
        8 if chance.one_in(3) => disk.set_free_space(None),
        8 => {
            let offset = chance.below(1000);
            // A process that ends cannot report an error: the offset may be stored.
            committed.push(Some(offset));
            if let Ok(mut pending) = run.stream.commit("group", 0, offset) {
                while run.streams.work() {}
                if let Some(Ok(_)) = poll(&mut pending, Durability::Disk)
                    && run.stream.committed("group", 0) == Some(offset)
                {
                    *committed = vec![Some(offset)];
                }
            }
        }
        _ => {
            read_all(&run.partition, chance.below(2000) as usize);
        }
    }
    record_state(&run.partition, promised);
}

/// Notes the state that the log reports.
fn record_state(partition: &Partition, promised: &mut ExpectedState) {
    let ends = partition.offsets();
    let mut open = Vec::new();
    for (mut pending, numbers) in promised.under_way.drain(..) {
        match poll(&mut pending, Durability::Disk) {
            None => open.push((pending, numbers)),
            Some(Ok(first)) => {
                assert!(ends.readable >= first + numbers.len() as u64);
                promised.readable.extend((first..).zip(numbers));
            }
            Some(Err(AppendError::NoSpace)) => promised.refused.extend(numbers),
            // The record may or may not be found.
            Some(Err(_)) => {}
        }
    }
    promised.under_way = open;
    promised.durable = ends.durable;
    assert!(ends.durable <= ends.readable && ends.readable <= ends.next);
}

fn end(run: TestRun, disk: &SimulatedDisk, chance: &mut SimRng, promised: &mut ExpectedState) {
    if chance.one_in(4) && !disk.has_crashed() {
        run.streams.close();
    } else {
        // No further byte reaches the disk.
        disk.plan(1, DiskFault::Crash);
    }
    record_state(&run.partition, promised);
    promised.under_way.clear();
}

/// Opens the log as the next process, which must find the promised records.
fn reopen_and_check(
    disk: &SimulatedDisk,
    clock: &ManualClock,
    config: &StreamConfig,
    after: CrashKind,
    promised: &mut ExpectedState,
    committed: &mut Vec<Option<u64>>,
    seed: u64,
) {
    let name = format!("seed {seed} {after:?} {:?}", config.fsync);
    if after == CrashKind::PowerLoss {
        promised.readable.retain(|&offset, _| offset < promised.durable);
    }
    let limits = StreamsConfig::default();
    let (streams, losses) =
        open(disk, limits.clone(), clock).unwrap_or_else(|error| panic!("{name}: {error}"));
    let Some(stream) = streams.stream("s") else {
        assert!(promised.readable.is_empty() && committed[0].is_none(), "{name}: the stream is missing");
        return;
    };
    let run = TestRun { partition: stream.partition(0).unwrap(), stream, streams };
    let found = check(&run, promised, &name);
    // Records that the next process shows remain.
    promised.readable = found.iter().copied().collect();
    promised.durable = run.partition.offsets().durable;
    assert_eq!(promised.durable, run.partition.offsets().readable, "{name}");
    // With other `Fsync` modes, a power loss may take the last commits.
    let stored = run.stream.committed("group", 0);
    if config.fsync == Fsync::Batch || after == CrashKind::Kill {
        assert!(committed.contains(&stored), "{name}: {stored:?} of {committed:?}");
    }
    *committed = vec![stored];
    // The second opening has the same result and needs no repair; damage left in a file is reported again.
    drop(run);
    let (streams, again) = open(disk, limits, clock).unwrap();
    assert!(again.len() <= losses.len(), "{name}: {again:?}");
    let partition = streams.stream("s").unwrap().partition(0).unwrap();
    assert_eq!(read_all(&partition, 1).0, found, "{name}");
}

fn check(run: &TestRun, promised: &ExpectedState, name: &str) -> Vec<(u64, u64)> {
    let (found, gaps) = read_all(&run.partition, 700);
    for pair in found.windows(2) {
        let ((offset, number), (next_offset, next_number)) = (pair[0], pair[1]);
        assert!(number < next_number, "{name}: {number} before {next_number}");
        let is_gap = gaps.contains(&(offset + 1, next_offset));
        assert!(next_offset == offset + 1 || is_gap, "{name}: from {offset} to {next_offset}, {gaps:?}");
    }
    let by_offset: BTreeMap<u64, u64> = found.iter().copied().collect();
    for (offset, number) in &promised.readable {
        assert_eq!(by_offset.get(offset), Some(number), "{name}: offset {offset}");
    }
    for (offset, number) in &found {
        assert!(
            *number < promised.next && !promised.refused.contains(number),
            "{name}: {number} at {offset}"
        );
    }
    found
}

#[test]
fn acknowledged_records_survive_any_fault_once_and_in_order() {
    // SINEWS_STREAM_SEEDS sets the number of seeds, SINEWS_STREAM_SEED the first.
    let number =
        |name, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let first: u64 = number("SINEWS_STREAM_SEED", 0);
    for seed in first..first + number("SINEWS_STREAM_SEEDS", 400) {
        run(seed);
    }
}

/// A sync of records fails, and the process ends before it can cut them off, where it would.
fn fail_to_sync(one: &TestLog, fsync: Fsync) {
    if fsync == Fsync::Batch {
        // The write, its sync, and the cut.
        one.disk.plan(2, DiskFault::Failure);
        one.disk.plan(3, DiskFault::Crash);
        one.partition.append(numbered([3, 4], 500)).unwrap();
        one.work();
    } else {
        one.fill(3..5, 500);
        one.disk.plan(1, DiskFault::Full);
        one.streams.close();
    }
    let reason = one.partition.failure();
    assert!(reason.as_ref().is_some_and(|reason| reason.contains("syncing")), "{fsync:?}: {reason:?}");
}

#[test]
fn recovered_records_of_a_failed_sync_are_durable() {
    for (seed, fsync) in (0..20).flat_map(|seed| WAYS.map(|fsync| (seed, fsync))) {
        let one = TestLog::on(
            SimulatedDisk::new(seed),
            StreamsConfig::default(),
            &StreamConfig::default().with_fsync(fsync),
        );
        one.fill(0..3, 500);
        fail_to_sync(&one, fsync);
        let disk = one.disk.after(CrashKind::Kill);
        let (streams, _) = open(&disk, StreamsConfig::default(), &one.clock).unwrap();
        let partition = streams.stream("s").unwrap().partition(0).unwrap();
        let shown = read_all(&partition, 1);
        assert!(fsync == Fsync::Batch || shown.0.len() == 5, "seed {seed} {fsync:?}: {shown:?}");
        assert_eq!(partition.offsets().durable, shown.0.len() as u64);
        // Closing stores an index.
        streams.close();
        let disk = disk.after(CrashKind::PowerLoss);
        let (streams, losses) = open(&disk, StreamsConfig::default(), &one.clock).unwrap();
        let partition = streams.stream("s").unwrap().partition(0).unwrap();
        assert_eq!((losses, read_all(&partition, 1)), (vec![], shown), "seed {seed} {fsync:?}");
    }
}
