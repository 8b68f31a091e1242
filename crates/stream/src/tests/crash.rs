//! Any fault at any call: acknowledged records are found, once, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Hand, One, numbered, open, poll, read_all};
use crate::disk::simulated::{After, Chance, Fault, Simulated};
use crate::{
    AppendError, Durability, Fsync, Partition, Pending, Stream, StreamConfig, Streams, StreamsConfig,
};

/// External knowledge of one partition, over all lives of the process.
#[derive(Default)]
struct Promised {
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

struct Life {
    streams: Streams,
    stream: Stream,
    partition: Partition,
}

const WAYS: [Fsync; 3] = [Fsync::Batch, Fsync::Interval(Duration::from_millis(10)), Fsync::Never];

/// One partition through several lives, each of which ends differently.
fn run(seed: u64) {
    let mut chance = Chance::new(seed);
    let hand = Hand::default();
    let fsync = WAYS[chance.below(3) as usize];
    let config =
        StreamConfig { segment_bytes: 1000 + chance.below(4000), ..StreamConfig::default() }.fsync(fsync);
    let mut disk = Simulated::new(seed);
    let mut promised = Promised::default();
    let mut committed = vec![None];
    for _ in 0..2 + chance.below(4) {
        plan(&disk, &mut chance);
        let life = begin(&disk, &hand, &config);
        if let Some(life) = life {
            check(&life, &promised, &format!("seed {seed}"));
            for _ in 0..chance.below(60) {
                step(&life, &disk, &hand, &mut chance, &mut promised, &mut committed);
            }
            end(life, &disk, &mut chance, &mut promised);
        }
        let after = if chance.one_in(2) { After::Kill } else { After::PowerLoss };
        disk = disk.after(after);
        survive(&disk, &hand, &config, after, &mut promised, &mut committed, seed);
    }
}

/// Plans the faults of this life.
fn plan(disk: &Simulated, chance: &mut Chance) {
    for _ in 0..chance.below(3) {
        let fault = match chance.below(7) {
            0 => Fault::NoSpace(chance.below(600)),
            1 => Fault::Failure,
            6 => Fault::Full,
            2 | 3 => Fault::Crash,
            _ => Fault::Short,
        };
        disk.plan(1 + chance.below(80), fault);
    }
}

fn begin(disk: &Simulated, hand: &Hand, config: &StreamConfig) -> Option<Life> {
    // Small, so that the limit is reached.
    let limits = StreamsConfig::default().max_pending(2000);
    let (streams, _) = open(disk, limits, hand).ok()?;
    let stream = streams.create("s", config).ok()?;
    let partition = stream.partition(0)?;
    Some(Life { streams, stream, partition })
}

fn step(
    life: &Life,
    disk: &Simulated,
    hand: &Hand,
    chance: &mut Chance,
    promised: &mut Promised,
    committed: &mut Vec<Option<u64>>,
) {
    match chance.below(10) {
        0..=4 => {
            let count = 1 + chance.below(3);
            let numbers: Vec<u64> = (promised.next..promised.next + count).collect();
            promised.next += count;
            match life.partition.append(numbered(numbers.iter().copied(), 8 + chance.below(200) as usize)) {
                Ok(pending) => promised.under_way.push((pending, numbers)),
                Err(_) => promised.refused.extend(numbers),
            }
        }
        5 | 6 => {
            life.streams.work();
        }
        7 => {
            hand.pass(chance.below(3_000_000));
            life.streams.tick();
        }
        8 if chance.one_in(3) => disk.set_room(None),
        8 => {
            let offset = chance.below(1000);
            // A process that ends cannot report an error: the offset may be stored.
            committed.push(Some(offset));
            if let Ok(mut pending) = life.stream.commit("group", 0, offset) {
                while life.streams.work() {}
                if let Some(Ok(_)) = poll(&mut pending, Durability::Disk)
                    && life.stream.committed("group", 0) == Some(offset)
                {
                    *committed = vec![Some(offset)];
                }
            }
        }
        _ => {
            read_all(&life.partition, chance.below(2000) as usize);
        }
    }
    note(&life.partition, promised);
}

/// Notes the state that the log reports.
fn note(partition: &Partition, promised: &mut Promised) {
    let ends = partition.ends();
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

fn end(life: Life, disk: &Simulated, chance: &mut Chance, promised: &mut Promised) {
    if chance.one_in(4) && !disk.has_crashed() {
        life.streams.close();
    } else {
        // No further byte reaches the disk.
        disk.plan(1, Fault::Crash);
    }
    note(&life.partition, promised);
    promised.under_way.clear();
}

/// Opens the log as the next process, which must find the promised records.
fn survive(
    disk: &Simulated,
    hand: &Hand,
    config: &StreamConfig,
    after: After,
    promised: &mut Promised,
    committed: &mut Vec<Option<u64>>,
    seed: u64,
) {
    let name = format!("seed {seed} {after:?} {:?}", config.fsync);
    if after == After::PowerLoss {
        promised.readable.retain(|&offset, _| offset < promised.durable);
    }
    let limits = StreamsConfig::default();
    let (streams, losses) =
        open(disk, limits.clone(), hand).unwrap_or_else(|error| panic!("{name}: {error}"));
    let Some(stream) = streams.stream("s") else {
        assert!(promised.readable.is_empty() && committed[0].is_none(), "{name}: the stream is missing");
        return;
    };
    let life = Life { partition: stream.partition(0).unwrap(), stream, streams };
    let found = check(&life, promised, &name);
    // Records that the next process shows remain.
    promised.readable = found.iter().copied().collect();
    promised.durable = life.partition.ends().durable;
    assert_eq!(promised.durable, life.partition.ends().readable, "{name}");
    // With other `Fsync` modes, a power loss may take the last commits.
    let stored = life.stream.committed("group", 0);
    if config.fsync == Fsync::Batch || after == After::Kill {
        assert!(committed.contains(&stored), "{name}: {stored:?} of {committed:?}");
    }
    *committed = vec![stored];
    // The second opening has the same result and needs no repair; damage left in a file is reported again.
    drop(life);
    let (streams, again) = open(disk, limits, hand).unwrap();
    assert!(again.len() <= losses.len(), "{name}: {again:?}");
    let partition = streams.stream("s").unwrap().partition(0).unwrap();
    assert_eq!(read_all(&partition, 1).0, found, "{name}");
}

fn check(life: &Life, promised: &Promised, name: &str) -> Vec<(u64, u64)> {
    let (found, gaps) = read_all(&life.partition, 700);
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
fn fail_to_sync(one: &One, fsync: Fsync) {
    if fsync == Fsync::Batch {
        // The write, its sync, and the cut.
        one.disk.plan(2, Fault::Failure);
        one.disk.plan(3, Fault::Crash);
        one.partition.append(numbered([3, 4], 500)).unwrap();
        one.work();
    } else {
        one.fill(3..5, 500);
        one.disk.plan(1, Fault::Full);
        one.streams.close();
    }
    let why = one.partition.failure();
    assert!(why.as_ref().is_some_and(|why| why.contains("syncing")), "{fsync:?}: {why:?}");
}

#[test]
fn recovered_records_of_a_failed_sync_are_durable() {
    for (seed, fsync) in (0..20).flat_map(|seed| WAYS.map(|fsync| (seed, fsync))) {
        let one =
            One::on(Simulated::new(seed), StreamsConfig::default(), &StreamConfig::default().fsync(fsync));
        one.fill(0..3, 500);
        fail_to_sync(&one, fsync);
        let disk = one.disk.after(After::Kill);
        let (streams, _) = open(&disk, StreamsConfig::default(), &one.hand).unwrap();
        let partition = streams.stream("s").unwrap().partition(0).unwrap();
        let shown = read_all(&partition, 1);
        assert!(fsync == Fsync::Batch || shown.0.len() == 5, "seed {seed} {fsync:?}: {shown:?}");
        assert_eq!(partition.ends().durable, shown.0.len() as u64);
        // Closing stores an index.
        streams.close();
        let disk = disk.after(After::PowerLoss);
        let (streams, losses) = open(&disk, StreamsConfig::default(), &one.hand).unwrap();
        let partition = streams.stream("s").unwrap().partition(0).unwrap();
        assert_eq!((losses, read_all(&partition, 1)), (vec![], shown), "seed {seed} {fsync:?}");
    }
}
