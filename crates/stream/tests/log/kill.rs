//! Kills a process while it appends: acknowledged records are found on disk, once, in order.
//!
//! The test starts itself again as the process to kill.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sinews_stream::record::{self, RecordBuilder, Records, ValueKind};
use sinews_stream::{AppendError, Durability, Fsync, Pending, StreamConfig, Streams, StreamsConfig};

/// Directory of the other process; without it, [`other_process`] does nothing.
const DIRECTORY: &str = "SINEWS_STREAM_KILL_DIRECTORY";

const WAYS: [Fsync; 3] = [Fsync::Batch, Fsync::Interval(Duration::from_millis(5)), Fsync::Never];

/// If set, the other process appends batches of 4 MiB whose payloads contain batches.
const FORGED: &str = "SINEWS_STREAM_KILL_FORGED";

/// Value of a forged record, in place of the number of an append.
const FORGED_NUMBER: u64 = u64::MAX;

fn config(turn: usize, is_forged: bool) -> StreamConfig {
    if is_forged {
        return StreamConfig::default().with_fsync(WAYS[turn % WAYS.len()]);
    }
    // Small segments, so that some kills happen during the creation of one.
    StreamConfig::default().with_fsync(WAYS[turn % WAYS.len()]).with_segment_bytes(64 << 10)
}

fn records(number: u64) -> Records {
    let mut builder = RecordBuilder::new();
    let size = [8, 100, 3000, 20_000][number as usize % 4];
    let mut value = number.to_le_bytes().to_vec();
    value.resize(size, number as u8);
    builder.push(0, b"key", &value, ValueKind::Bytes).unwrap();
    builder.finish().unwrap()
}

/// The same record with forged batches at each 4 KiB, with the offset of the append itself and the next.
fn forging(number: u64) -> Records {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(4 << 20, 0);
    let mut builder = RecordBuilder::new();
    builder.push(0, b"", &FORGED_NUMBER.to_le_bytes(), ValueKind::Bytes).unwrap();
    let inner = builder.finish().unwrap().into_bytes();
    for at in (4096..value.len() - 4096).step_by(4096) {
        let (base, is_tagged) = (number + (at as u64 / 4096) % 2, at / 8192 % 2 == 1);
        let mut head = vec![0; if is_tagged { 40 } else { 32 }];
        let length = (head.len() + inner.len()) as u32;
        head[4..8].copy_from_slice(&length.to_le_bytes());
        head[8..16].copy_from_slice(&base.to_le_bytes());
        // Later than any other time, so that time does not go back.
        head[16..24].copy_from_slice(&(1u64 << 60).to_le_bytes());
        (head[24], head[28]) = (1, u8::from(is_tagged));
        let crc = crc32c::crc32c(&head[4..]);
        head[..4].copy_from_slice(&crc.to_le_bytes());
        head.extend_from_slice(&inner);
        value[at..at + head.len()].copy_from_slice(&head);
    }
    let mut builder = RecordBuilder::new();
    builder.push(0, b"key", &value, ValueKind::Bytes).unwrap();
    builder.finish().unwrap()
}

/// Appends until it is killed, and prints each acknowledged offset and number. Numbers continue from the last run.
#[test]
fn other_process() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let (streams, _) = Streams::open(Path::new(&directory), StreamsConfig::default()).unwrap();
    let partition = streams.stream("s").unwrap().partition(0).unwrap();
    let is_forged = std::env::var_os(FORGED).is_some();
    let (make, most): (fn(u64) -> Records, _) = if is_forged { (forging, 3) } else { (records, 16) };
    let mut out = std::io::stdout().lock();
    let mut under_way: std::collections::VecDeque<(Pending, u64)> = Default::default();
    for number in partition.offsets().next.. {
        match partition.append(make(number)) {
            Ok(pending) => under_way.push_back((pending, number)),
            Err(AppendError::Busy) => panic!("max_pending is exceeded"),
            Err(error) => panic!("{error}"),
        }
        if under_way.len() == most {
            let (mut pending, number) = under_way.pop_front().unwrap();
            let appended = pending.block(Durability::Disk).unwrap();
            writeln!(out, "acknowledged {} {number}", appended.first).unwrap();
        }
    }
}

/// Runs the other process until this many acknowledgements have arrived, and for `longer`, then kills it. Returns the
/// last acknowledged offset.
fn run_and_kill(directory: &Path, acknowledgements: usize, longer: Duration, is_forged: bool) -> Option<u64> {
    let program = std::env::current_exe().unwrap();
    let mut child = Command::new(program)
        .envs(is_forged.then_some((FORGED, "1")))
        .args(["--exact", "kill::other_process", "--nocapture"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut last = None;
    let mut note = |line: std::io::Result<String>| {
        // The last line may be cut.
        let line = line.unwrap_or_default();
        let mut words = line.strip_prefix("acknowledged ")?.split(' ');
        let (offset, number) = (words.next()?.parse::<u64>().ok()?, words.next()?.parse::<u64>().ok()?);
        assert_eq!(offset, number);
        last = Some(offset);
        last
    };
    let count = lines.by_ref().filter_map(&mut note).take(acknowledgements).count();
    assert_eq!(count, acknowledgements, "the other process has ended by itself");
    // The time of the kill is random; the result does not depend on it.
    let until = Instant::now() + longer;
    while Instant::now() < until {
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    // Output before the kill is in the pipe. The last line may be cut, and its number, too.
    let mut rest: Vec<_> = lines.collect();
    rest.pop();
    for line in rest {
        note(line);
    }
    child.wait().unwrap();
    last
}

fn assert_records_survive_kills(times: usize, is_forged: bool) {
    let temporary = tempfile::tempdir().unwrap();
    let directory = temporary.path().join("streams");
    for turn in 0..times {
        if turn % 10 == 0 {
            // The directory would grow, and reading all of it takes longer than appending.
            let _ = std::fs::remove_dir_all(&directory);
        }
        let (streams, _) = Streams::open(&directory, StreamsConfig::default()).unwrap();
        streams.create("s", &config(turn, is_forged)).unwrap();
        drop(streams);
        let longer = Duration::from_micros((turn as u64 * 7919) % 3000);
        let acknowledgements = if is_forged { 1 + turn % 4 } else { 1 + turn * 37 % 150 };
        let last = run_and_kill(&directory, acknowledgements, longer, is_forged);
        let (streams, losses) = Streams::open(&directory, StreamsConfig::default()).unwrap();
        // Only the end of an unfinished write may be missing.
        assert!(losses.iter().all(|loss| loss.reason.contains("cut off")), "{losses:?}");
        let partition = streams.stream("s").unwrap().partition(0).unwrap();
        let mut next = 0;
        while next < partition.offsets().readable {
            let read = partition.read(next, 1 << 20).unwrap();
            for record in record::iter(&read.batches).flat_map(|batch| batch.unwrap().records()) {
                let record = record.unwrap();
                let number = u64::from_le_bytes(*record.value.first_chunk().unwrap());
                assert_eq!((record.offset, number), (next, next));
                next += 1;
            }
        }
        assert!(last.is_some_and(|last| last < next), "{last:?} was acknowledged, and {next} is the end");
    }
}

#[test]
fn acknowledged_records_survive_a_kill() {
    assert_records_survive_kills(21, false);
}

#[test]
#[ignore = "takes minutes: a few hundred kills, before a release or when writing or opening has changed"]
fn acknowledged_records_survive_hundreds_of_kills() {
    assert_records_survive_kills(300, false);
}

#[test]
fn payloads_that_hold_batches_are_not_read_as_records_after_a_kill() {
    assert_records_survive_kills(12, true);
}

#[test]
#[ignore = "takes a minute: before a release or when writing or opening has changed"]
fn payloads_that_hold_batches_are_not_read_as_records_after_many_kills() {
    assert_records_survive_kills(60, true);
}
