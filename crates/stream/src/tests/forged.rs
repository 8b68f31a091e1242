//! A payload is never read as records, for any bytes and any damage.

use std::path::Path;

use super::{ManualClock, TestLog, numbered, open, poll, read_all, small};
use crate::disk::Disk;
use crate::disk::simulated::{CrashKind, SimulatedDisk};
use crate::record::{RecordBuilder, Records, ValueKind};
use crate::{Durability, Fsync, StartPosition, StreamConfig, StreamsConfig};

const FILE: &str = "/log/streams/s/0/00000000000000000000.log";

/// Number of a forged record.
const FORGED: u64 = 0xdead_beef;

/// A batch that is valid except for the tag, which its author cannot know.
fn forged(base: u64, tag: Option<u64>) -> Vec<u8> {
    let records = numbered([FORGED], 8);
    let mut head = vec![0; 32];
    head[28] = u8::from(tag.is_some());
    head.extend(tag.map(u64::to_le_bytes).into_iter().flatten());
    let length = (head.len() + records.bytes().len()) as u32;
    head[4..8].copy_from_slice(&length.to_le_bytes());
    head[8..16].copy_from_slice(&base.to_le_bytes());
    // The current time, as a producer knows it.
    head[16..24].copy_from_slice(&1_000_000u64.to_le_bytes());
    head[24] = 1;
    let crc = crc32c::crc32c(&head[4..]);
    head[..4].copy_from_slice(&crc.to_le_bytes());
    [&head[..], records.bytes()].concat()
}

/// One record with this payload, behind the number that tests look for.
fn with_payload(number: u64, payload: &[u8]) -> Records {
    let mut builder = RecordBuilder::new();
    let value = [&number.to_le_bytes()[..], payload].concat();
    builder.push(0, b"", &value, ValueKind::Bytes).unwrap();
    builder.finish().unwrap()
}

fn append(one: &TestLog, records: Records) {
    let mut pending = one.partition.append(records).unwrap();
    one.work();
    assert!(poll(&mut pending, Durability::Disk).is_some_and(|result| result.is_ok()));
}

/// Readable records by offset: the numbers at the start of their values.
fn numbers(disk: &SimulatedDisk, clock: &ManualClock) -> Vec<(u64, u64)> {
    let (streams, _) = open(disk, StreamsConfig::default(), clock).unwrap();
    let partition = streams.stream("s").unwrap().partition(0).unwrap();
    let (mut found, mut next) = (Vec::new(), partition.offsets().earliest);
    while next < partition.offsets().readable {
        match partition.read(next, 1) {
            Ok(read) => {
                for record in crate::record::iter(&read.batches).flat_map(|batch| batch.unwrap().records()) {
                    let record = record.unwrap();
                    found.push((record.offset, u64::from_le_bytes(*record.value.first_chunk().unwrap())));
                }
                next = read.next;
            }
            Err(crate::ReadError::Damaged { resume, .. }) => next = resume,
            Err(error) => panic!("{error}"),
        }
    }
    found
}

/// The file as the next process finds it, if the process was killed after this many bytes.
fn torn(disk: &SimulatedDisk, bytes: u64) -> SimulatedDisk {
    let disk = disk.after(CrashKind::Kill);
    Disk::open(&disk, Path::new(FILE)).unwrap().truncate(bytes).unwrap();
    disk
}

#[test]
fn payload_of_a_torn_batch_is_not_read_as_records() {
    let one = TestLog::new(&StreamConfig::default());
    one.fill(0..3, 100);
    // Bytes of batches that were valid at their position, as clients receive them.
    let real = one.partition.read(0, 1 << 20).unwrap().batches;
    let tag = u64::from_le_bytes(*real[32..].first_chunk().unwrap());
    let mut payload = Vec::new();
    for alignment in 0..64 {
        // Offsets of the torn batch itself, and of the next batch.
        for base in [3, 4] {
            payload.extend(forged(base, None));
            payload.extend(forged(base, Some(tag)));
        }
        payload.extend_from_slice(&real);
        payload.resize(payload.len().next_multiple_of(512) + alignment, 0xee);
    }
    let before = one.disk.files("/log/streams/s/0")[0].1;
    append(&one, with_payload(3, &payload));
    let whole = one.disk.files("/log/streams/s/0")[0].1;
    // At sectors, and at the ends of forged batches.
    for end in (before..whole).filter(|end| end % 512 == 0 || end % 97 == 0) {
        let found = numbers(&torn(&one.disk, end as u64), &one.clock);
        assert_eq!(found, [(0, 0), (1, 1), (2, 2)], "torn at {end} of {whole}");
    }
}

#[test]
fn payload_at_every_4_kib_of_8_mib_is_not_read_as_records() {
    let one = TestLog::new(&StreamConfig::default());
    one.fill(0..1, 100);
    let mut payload = vec![0; (8 << 20) - 64];
    for at in (0..payload.len() - 4096).step_by(4096) {
        for (index, batch) in [forged(1, None), forged(2, Some(7))].into_iter().enumerate() {
            let at = at + index * 1000 + at / 4096 % 512;
            payload[at..at + batch.len()].copy_from_slice(&batch);
        }
    }
    append(&one, with_payload(1, &payload));
    let whole = one.disk.files("/log/streams/s/0")[0].1;
    let half = (whole / 2) & !4095;
    for end in [whole - 1, whole - 4096, half, half + 512] {
        assert_eq!(numbers(&torn(&one.disk, end as u64), &one.clock), [(0, 0)], "torn at {end}");
    }
}

#[test]
fn damaged_batch_does_not_affect_other_batches() {
    let one = TestLog::new(&StreamConfig::default());
    one.fill(0..1, 100);
    let real = one.partition.read(0, 1 << 20).unwrap().batches;
    let payload: Vec<u8> =
        (1..3).flat_map(|base| [forged(base, None), forged(base, Some(1))].concat()).collect();
    let start = one.disk.files("/log/streams/s/0")[0].1;
    append(&one, with_payload(1, &[&payload[..], &real].concat()));
    let end = one.disk.files("/log/streams/s/0")[0].1;
    one.fill(2..5, 100);
    for at in start..end {
        let disk = one.disk.after(CrashKind::Kill);
        disk.damage(FILE, at);
        assert_eq!(numbers(&disk, &one.clock), [(0, 0), (2, 2), (3, 3), (4, 4)], "damaged at {at}");
    }
}

#[test]
fn flipped_bit_loses_only_its_batch() {
    let one = TestLog::new(&StreamConfig::default());
    one.fill(0..6, 40);
    let file = one.disk.files("/log/streams/s/0")[0].1;
    let batch = 40 + 20 + 3 + 40;
    for at in 0..file {
        let disk = one.disk.after(CrashKind::Kill);
        disk.damage(FILE, at);
        let lost = at.checked_sub(128).map(|at| (at / batch) as u64);
        let left: Vec<(u64, u64)> = (0..6).filter(|&n| Some(n) != lost).map(|n| (n, n)).collect();
        assert_eq!(numbers(&disk, &one.clock), left, "damaged at {at}");
    }
}

#[test]
fn flipped_bit_of_an_index_loses_no_batch() {
    let one = TestLog::new(&StreamConfig { segment_bytes: 300_000, ..StreamConfig::default() });
    // An entry for each batch except the first. The first segment's index has a file, the last one's is in the catalog.
    for number in 0..6 {
        append(&one, with_payload(number, &vec![0; 70_000]));
    }
    one.streams.close();
    let all: Vec<(u64, u64)> = (0..6).map(|number| (number, number)).collect();
    let index = FILE.replace(".log", ".index");
    for (dir, file) in [("/log/streams/s/0", &*index), ("/log", "/log/catalog")] {
        let bytes = one.disk.files(dir).into_iter().find(|(name, _)| file.ends_with(&**name)).unwrap().1;
        for at in 0..bytes {
            let disk = one.disk.after(CrashKind::Kill);
            disk.damage(file, at);
            assert_eq!(numbers(&disk, &one.clock), all, "{file} damaged at {at}");
        }
    }
}

#[test]
fn flipped_bit_of_a_large_index_loses_no_batch() {
    let one = TestLog::new(&StreamConfig::default());
    for number in 0..40 {
        append(&one, with_payload(number, &vec![0; 70_000]));
    }
    one.streams.close();
    let index = FILE.replace(".log", ".index");
    let bytes = one.disk.files("/log/streams/s/0").into_iter().find(|(name, _)| name.ends_with(".index"));
    let bytes = bytes.expect("the index is too large for the catalog").1;
    for at in [0, 20, 50, 64, 100, bytes - 1] {
        let disk = one.disk.after(CrashKind::Kill);
        disk.damage(&index, at);
        assert_eq!(numbers(&disk, &one.clock).len(), 40, "damaged at {at}");
    }
    let disk = one.disk.after(CrashKind::Kill);
    Disk::remove(&disk, Path::new(&index)).unwrap();
    assert_eq!(numbers(&disk, &one.clock).len(), 40, "without the file");
}

#[test]
fn batches_lost_with_the_power_are_rejected_at_their_old_position() {
    for fsync in [Fsync::Never, Fsync::Interval(std::time::Duration::from_secs(1))] {
        let one = TestLog::new(&StreamConfig::default().with_fsync(fsync));
        one.fill(0..4, 100);
        // A reader has seen all of them; a power loss takes the last three, with their tags.
        let seen = one.partition.read(0, 1 << 20).unwrap().batches;
        let batch = seen.len() / 4;
        let (one, _) = TestLog { disk: torn(&one.disk, 128 + batch as u64), ..one }.reopen(true);
        // Batch 1 is appended again, with the bytes of the lost batches at their old positions.
        let payload = &seen[2 * batch..];
        append(&one, with_payload(1, &[&vec![0; batch - 40 - 20 - 8][..], payload].concat()));
        let disk = one.disk.after(CrashKind::Kill);
        for (name, bytes) in one.disk.files("/log/streams/s/0") {
            let at = if name.starts_with("00000000000000000000") { 128 + batch } else { 128 };
            if at < bytes && name.ends_with(".log") {
                disk.damage(&format!("/log/streams/s/0/{name}"), at);
            }
        }
        assert_eq!(numbers(&disk, &one.clock), [(0, 0)], "{fsync:?}");
    }
}

#[test]
fn segment_of_version_1_is_read_and_not_appended_to() {
    let one = TestLog::new(&StreamConfig::default());
    let disk = one.disk.after(CrashKind::Kill);
    let file = Disk::open(&disk, Path::new(FILE)).unwrap();
    file.truncate(0).unwrap();
    let old = |base| forged(base, None);
    for base in 0..3 {
        file.append(&[std::io::IoSlice::new(&old(base))]).unwrap();
    }
    let expected = [(0, FORGED), (1, FORGED), (2, FORGED)];
    assert_eq!(numbers(&disk.after(CrashKind::Kill), &one.clock), expected);
    // Behind damage no batch is accepted, and none is cut off.
    let damaged = disk.after(CrashKind::Kill);
    damaged.damage(FILE, old(0).len() + 9);
    let (streams, losses) = open(&damaged, StreamsConfig::default(), &one.clock).unwrap();
    assert!(losses.len() == 1 && losses[0].reason.ends_with("left in the file"), "{losses:?}");
    let partition = streams.stream("s").unwrap().partition(0).unwrap();
    let mut pending = partition.append(numbered([7], 8)).unwrap();
    while streams.work() {}
    assert_eq!(poll(&mut pending, Durability::Disk), Some(Ok(1)));
    let files = damaged.files("/log/streams/s/0");
    assert!(files.contains(&("00000000000000000000.log".to_owned(), 3 * old(0).len())), "{files:?}");
    drop(streams);
    assert_eq!(numbers(&damaged, &one.clock), [(0, FORGED), (1, 7)]);
}

#[test]
fn segment_without_a_key_is_read_along_its_chain() {
    let one = TestLog::new(&StreamConfig::default());
    one.fill(0..4, 100);
    let disk = one.disk.after(CrashKind::Kill);
    disk.damage(FILE, 41);
    disk.damage(FILE, 64 + 42);
    assert_eq!(numbers(&disk.after(CrashKind::Kill), &one.clock), [(0, 0), (1, 1), (2, 2), (3, 3)]);
    // With additional damage, batches behind it are rejected, and stay in the file.
    disk.damage(FILE, 128 + 163 + 8);
    let (_, losses) = open(&disk, StreamsConfig::default(), &one.clock).unwrap();
    assert!(losses.len() == 1 && losses[0].reason.ends_with("left in the file"), "{losses:?}");
    assert_eq!(numbers(&disk, &one.clock), [(0, 0)]);
}

#[test]
fn read_behind_damage_searches_up_to_the_next_index_entry() {
    let one = TestLog::new(&StreamConfig::default());
    let heads: Vec<u8> = (0..20_000).flat_map(|_| forged(3, Some(1))).collect();
    one.fill(0..1, 100);
    append(&one, with_payload(1, &heads));
    one.fill(2..4, 100);
    let (one, _) = one.reopen(false);
    one.disk.damage(FILE, 128 + 163 + 5);
    let before = one.disk.bytes_read();
    let error = one.partition.read(1, 1).unwrap_err();
    assert!(matches!(error, crate::ReadError::Damaged { resume: 2, .. }), "{error}");
    // The search, the window, and the index.
    assert!(one.disk.bytes_read() - before < 4 * 65_536, "{}", one.disk.bytes_read() - before);
    let before = one.disk.bytes_read();
    assert!(one.partition.read(1, 1).is_err());
    assert!(one.disk.bytes_read() - before < 65_536 + 4096, "the damage is remembered");
    assert_eq!(read_all(&one.partition, 1).1, [(1, 2)]);
}

#[test]
fn missing_index_is_rebuilt_by_the_writers() {
    let one = TestLog::new(&small());
    one.fill(0..10, 1000);
    let (one, _) = one.reopen(false);
    let index = "/log/streams/s/0/00000000000000000000.index";
    Disk::remove(&one.disk, Path::new(index)).unwrap();
    let waker = std::task::Waker::noop();
    assert!(one.partition.poll_read(1, 1, waker).is_pending());
    one.work();
    assert!(
        matches!(one.partition.poll_read(1, 1, waker), std::task::Poll::Ready(Ok(read)) if read.next == 2)
    );
    assert!(Disk::open(&one.disk, Path::new(index)).is_ok());
    // Reads at the end need no index.
    assert!(one.partition.poll_read(9, 1, waker).is_ready());
}

#[test]
fn start_by_time_waits_for_an_index_that_the_writers_rebuild() {
    let one = TestLog::new(&small());
    for number in 0..10 {
        one.clock.advance(1_000);
        one.fill(number..number + 1, 1000);
    }
    let (one, _) = one.reopen(false);
    let index = "/log/streams/s/0/00000000000000000000.index";
    Disk::remove(&one.disk, Path::new(index)).unwrap();
    let (waker, start) = (std::task::Waker::noop(), StartPosition::Time(1_002_000));
    let before = one.disk.bytes_read();
    assert!(one.partition.poll_seek(start, waker).is_pending());
    assert!(one.partition.poll_read(1, 1, waker).is_pending());
    assert_eq!(one.disk.bytes_read(), before, "the caller reads nothing");
    // The index is no step of the partition: its writes go on beside it.
    let mut pending = one.partition.append(numbered([10], 1000)).unwrap();
    one.work();
    assert_eq!(poll(&mut pending, Durability::Disk), Some(Ok(10)));
    assert_eq!(one.partition.poll_seek(start, waker), std::task::Poll::Ready(1));
    // The last segment has its index in memory, and other positions need none.
    for (start, offset) in [(StartPosition::Time(u64::MAX), 11), (StartPosition::Offset(2), 2)] {
        assert_eq!(one.partition.poll_seek(start, waker), std::task::Poll::Ready(offset));
    }
    // After the end of the threads, the caller reads the index itself.
    Disk::remove(&one.disk, Path::new(index)).unwrap();
    one.partition.work().release_unused();
    one.partition.work().release_unused();
    assert!(one.partition.poll_seek(start, waker).is_pending());
    one.streams.close();
    assert_eq!(one.partition.poll_seek(start, waker), std::task::Poll::Ready(1));
}
