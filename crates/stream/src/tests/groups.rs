//! Committed offsets of groups.

use std::io::IoSlice;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use super::{ManualClock, TestLog, open, poll};
use crate::disk::Disk;
use crate::disk::simulated::{CrashKind, DiskFault, SimulatedDisk};
use crate::record::{BatchHeader, RecordBuilder, ValueKind};
use crate::{AppendError, CommitError, Durability, Fsync, Loss, StreamConfig, StreamsConfig};

fn bytes(one: &TestLog) -> usize {
    let files = one.disk.files("/log/streams/s");
    files.iter().find(|(name, _)| name == "groups.log").unwrap().1
}

#[test]
fn last_committed_offset_is_stored() {
    let one = TestLog::new(&StreamConfig::default().with_partitions(3));
    let mut pending = Vec::new();
    for offset in 0..10 {
        pending.push(one.stream.commit("a", 0, offset).unwrap());
        pending.push(one.stream.commit("b", 2, offset * 2).unwrap());
    }
    // Not visible before it is stored.
    assert_eq!((one.stream.committed("a", 0), one.stream.groups()), (None, vec![]));
    let before = one.disk.calls();
    one.work();
    assert_eq!(one.disk.calls() - before, 2);
    assert!(pending.iter_mut().all(|pending| matches!(poll(pending, Durability::Broker), Some(Ok(_)))));
    let (one, losses) = one.reopen(true);
    assert_eq!(losses, []);
    let committed = |group, partition| one.stream.committed(group, partition);
    assert_eq!(
        (committed("a", 0), committed("b", 2), committed("a", 1), committed("c", 0)),
        (Some(9), Some(18), None, None)
    );
    assert_eq!(one.stream.groups(), ["a", "b"]);
    assert!(
        one.stream.remove_group("a").unwrap().is_some() && one.stream.remove_group("c").unwrap().is_none()
    );
    one.work();
    let (one, _) = one.reopen(true);
    assert_eq!((one.stream.groups(), one.stream.committed("a", 0)), (vec!["b".to_owned()], None));
}

#[test]
fn recovered_offset_of_a_failed_sync_is_durable() {
    for seed in 0..20 {
        let one = TestLog::on(SimulatedDisk::new(seed), StreamsConfig::default(), &StreamConfig::default());
        one.stream.commit("group", 0, 1).unwrap();
        one.work();
        // The write, its sync, and the cut.
        one.disk.plan(2, DiskFault::Failure);
        one.disk.plan(3, DiskFault::Crash);
        one.stream.commit("group", 0, 2).unwrap();
        one.work();
        let disk = one.disk.after(CrashKind::Kill);
        let (streams, _) = open(&disk, StreamsConfig::default(), &one.clock).unwrap();
        let committed = streams.stream("s").unwrap().committed("group", 0);
        assert!(matches!(committed, Some(1 | 2)), "seed {seed}: {committed:?}");
        drop(streams);
        let (streams, losses) =
            open(&disk.after(CrashKind::PowerLoss), StreamsConfig::default(), &one.clock).unwrap();
        let stored = streams.stream("s").unwrap().committed("group", 0);
        assert_eq!((losses, stored), (vec![], committed), "seed {seed}");
    }
}

#[test]
fn file_of_offsets_is_compacted() {
    let one = TestLog::new(&StreamConfig::default());
    let mut largest = 0;
    for offset in 0..5000 {
        one.stream.commit("group", 0, offset).unwrap();
        one.work();
        largest = largest.max(bytes(&one));
    }
    assert!(largest < 300 << 10 && bytes(&one) < largest, "{largest}");
    assert_eq!(one.stream.committed("group", 0), Some(4999));
    let (one, losses) = one.reopen(true);
    assert_eq!((losses, one.stream.committed("group", 0)), (vec![], Some(4999)));
}

#[test]
fn removed_group_loses_its_pending_commits() {
    let one = TestLog::new(&StreamConfig::default().with_partitions(3));
    one.stream.commit("group", 0, 1).unwrap();
    one.work();
    one.stream.commit("group", 1, 1).unwrap();
    let mut forgotten = one.stream.remove_group("group").unwrap().unwrap();
    one.work();
    assert_eq!((poll(&mut forgotten, Durability::Disk), one.stream.groups()), (Some(Ok(0)), vec![]));
    // The same while the commit is being written.
    let mut commit = one.stream.commit("group", 2, 1).unwrap();
    let (sender, forgotten) = mpsc::channel();
    let stream = one.stream.clone();
    one.disk.run_before(1, move || sender.send(stream.remove_group("group").unwrap()).unwrap());
    one.work();
    assert_eq!(poll(&mut commit, Durability::Disk), Some(Ok(1)));
    let mut forgotten = forgotten.recv().unwrap().expect("a commit is in flight");
    assert_eq!((poll(&mut forgotten, Durability::Disk), one.stream.groups()), (Some(Ok(0)), vec![]));
    let (one, losses) = one.reopen(true);
    assert_eq!((losses, one.stream.groups()), (vec![], vec![]));
}

#[test]
fn shortage_during_compaction_is_transient() {
    let group = "g".repeat(255);
    // The file is created, written, synced and renamed, and then its directory is synced.
    for call in 1..=5 {
        let one = TestLog::new(&StreamConfig::default());
        let commit = |offset| {
            let mut pending = one.stream.commit(&group, 0, offset).unwrap();
            one.work();
            poll(&mut pending, Durability::Disk).unwrap()
        };
        let mut offset = 0;
        while bytes(&one) < 256 << 10 {
            offset += 1;
            assert_eq!(commit(offset), Ok(offset));
        }
        one.disk.plan(call, DiskFault::Shortage);
        let stored = commit(offset + 1);
        // Bytes written to the new file must not be lost with its name.
        assert_eq!(stored, if call == 5 { Err(AppendError::NoSpace) } else { Ok(offset + 1) }, "{call}");
        assert_eq!(commit(offset + 2), Ok(offset + 2));
        assert_eq!(bytes(&one) < 2000, call == 5, "{call}");
        // Each power loss takes different bytes.
        for _ in 0..10 {
            let disk = one.disk.after(CrashKind::PowerLoss);
            let (streams, losses) = open(&disk, StreamsConfig::default(), &one.clock).unwrap();
            let stream = streams.stream("s").unwrap();
            assert_eq!((losses, stream.committed(&group, 0)), (vec![], Some(offset + 2)), "{call}");
        }
    }
}

#[test]
fn group_names_and_counts_are_limited() {
    let one = TestLog::on(
        SimulatedDisk::new(1),
        StreamsConfig::default().with_max_groups(2),
        &StreamConfig::default(),
    );
    let commit = |group: &str, partition| one.stream.commit(group, partition, 1).map(|_| ());
    assert_eq!(commit("", 0), Err(CommitError::Name));
    assert_eq!(commit(&"g".repeat(256), 0), Err(CommitError::Name));
    assert_eq!(commit("a\0b", 0), Err(CommitError::Name));
    assert_eq!(commit("a", 1), Err(CommitError::Partition));
    assert_eq!((commit(&"g".repeat(255), 0), commit("b", 0)), (Ok(()), Ok(())));
    assert_eq!(commit("c", 0), Err(CommitError::TooMany));
    one.work();
    one.stream.remove_group("b").unwrap();
    one.work();
    assert_eq!(commit("c", 0), Ok(()));
    one.streams.close();
    assert_eq!(commit("c", 0), Err(CommitError::Append(AppendError::Closed)));
    assert_eq!(one.stream.committed("c", 0), Some(1));
}

#[test]
fn full_disk_rejects_a_commit_and_a_failure_rejects_all() {
    let one = TestLog::new(&StreamConfig::default());
    one.disk.set_free_space(Some(10));
    let mut pending = one.stream.commit("a", 0, 1).unwrap();
    one.work();
    assert_eq!(poll(&mut pending, Durability::Disk), Some(Err(AppendError::NoSpace)));
    assert_eq!((bytes(&one), one.stream.groups().len()), (0, 0));
    one.disk.set_free_space(None);
    let mut pending = one.stream.commit("a", 0, 2).unwrap();
    one.work();
    assert_eq!(poll(&mut pending, Durability::Disk), Some(Ok(2)));
    one.disk.plan(2, DiskFault::Failure);
    let mut pending = one.stream.commit("a", 0, 3).unwrap();
    one.work();
    assert!(matches!(poll(&mut pending, Durability::Disk), Some(Err(AppendError::Failed(_)))));
    assert!(matches!(one.stream.commit("a", 0, 4), Err(CommitError::Append(AppendError::Failed(_)))));
    assert_eq!(one.stream.committed("a", 0), Some(2));
    // Records are unaffected.
    one.fill(0..1, 8);
}

/// As in a partition: the commits of a full disk fail, and later ones go on.
#[test]
fn full_disk_at_a_sync_rejects_its_commits_only() {
    let one = TestLog::new(&StreamConfig::default());
    one.stream.commit("a", 0, 1).unwrap();
    one.work();
    // The write, and its sync.
    one.disk.plan(2, DiskFault::Shortage);
    let mut pending = one.stream.commit("a", 0, 2).unwrap();
    one.work();
    assert_eq!(poll(&mut pending, Durability::Disk), Some(Err(AppendError::NoSpace)));
    assert_eq!(one.stream.committed("a", 0), Some(1));
    let mut pending = one.stream.commit("a", 0, 3).unwrap();
    one.work();
    assert_eq!(poll(&mut pending, Durability::Disk), Some(Ok(3)));
    // The rejected offset is not seen after a restart.
    let disk = one.disk.after(CrashKind::PowerLoss);
    let (streams, losses) = open(&disk, StreamsConfig::default(), &one.clock).unwrap();
    assert_eq!((losses, streams.stream("s").unwrap().committed("a", 0)), (vec![], Some(3)));
    // If the cut cannot be synced either, the groups fail.
    one.disk.plan(2, DiskFault::Shortage);
    one.disk.plan(4, DiskFault::Shortage);
    let mut pending = one.stream.commit("a", 0, 4).unwrap();
    one.work();
    assert!(matches!(poll(&mut pending, Durability::Disk), Some(Err(AppendError::Failed(_)))));
}

const FILE: &str = "/log/streams/s/groups.log";

/// Bytes in a chunk with one entry for the group `group`: three heads, and the entry twice.
const CHUNK: usize = 3 * 20 + 2 * (13 + 5);

/// Offsets of the group `group` in three partitions after reopening, and whether they are doubtful.
fn reopened(disk: &SimulatedDisk, clock: &ManualClock) -> ([(Option<u64>, bool); 3], Vec<Loss>) {
    let (streams, losses) = open(disk, StreamsConfig::default(), clock).unwrap();
    let stream = streams.stream("s").unwrap();
    let of = |partition| (stream.committed("group", partition), stream.is_doubtful("group", partition));
    ([of(0), of(1), of(2)], losses)
}

#[test]
fn damage_of_both_copies_makes_offsets_doubtful_until_the_next_commit() {
    let one = TestLog::new(&StreamConfig::default().with_partitions(3));
    for partition in 0..3 {
        one.stream.commit("group", partition, partition.into()).unwrap();
        one.work();
    }
    assert_eq!(bytes(&one), 32 + 3 * CHUNK);
    // All of the second chunk.
    (32 + CHUNK..32 + 2 * CHUNK).for_each(|at| one.disk.damage(FILE, at));
    let disk = one.disk.after(CrashKind::Kill);
    let known = [(Some(0), true), (None, true), (Some(2), false)];
    let (found, losses) = reopened(&disk, &one.clock);
    assert!(losses.len() == 1 && losses[0].partition.is_none(), "{losses:?}");
    assert_eq!(found, known);
    // The rewritten file records the doubt.
    assert_eq!(reopened(&disk, &one.clock), (known, vec![]));
    let (streams, _) = open(&disk, StreamsConfig::default(), &one.clock).unwrap();
    let stream = streams.stream("s").unwrap();
    stream.commit("group", 0, 7).unwrap();
    while streams.work() {}
    assert!(!stream.is_doubtful("group", 0));
    drop((streams, stream));
    assert_eq!(reopened(&disk, &one.clock).0, [(Some(7), false), (None, true), (Some(2), false)]);
    // The doubt expires.
    one.clock.advance(31 * 24 * 3600 * 1_000_000);
    assert_eq!(reopened(&disk, &one.clock).0, [(Some(7), false), (None, false), (Some(2), false)]);
}

#[test]
fn torn_end_is_not_doubtful_and_file_without_valid_chunk_is() {
    let one = TestLog::new(&StreamConfig::default().with_partitions(3));
    for partition in 0..3 {
        one.stream.commit("group", partition, partition.into()).unwrap();
        one.work();
    }
    let torn = one.disk.after(CrashKind::Kill);
    torn.open(Path::new(FILE)).unwrap().truncate((32 + 3 * CHUNK - 30) as u64).unwrap();
    let (found, losses) = reopened(&torn, &one.clock);
    assert_eq!((found, losses.len()), ([(Some(0), false), (Some(1), false), (None, false)], 1));
    // Rewritten as a whole: its only chunk cannot be torn.
    let whole = torn.after(CrashKind::Kill);
    (33..whole.files("/log/streams/s")[0].1).for_each(|at| whole.damage(FILE, at));
    // The directory was closed: the damage found by its first use is logged.
    assert_eq!(reopened(&whole, &one.clock).0, [(None, true); 3]);
    // A preamble cut off by a crash is rewritten before anything follows it.
    let cut = one.disk.after(CrashKind::Kill);
    cut.open(Path::new(FILE)).unwrap().truncate(10).unwrap();
    let (streams, _) = open(&cut, StreamsConfig::default(), &one.clock).unwrap();
    streams.stream("s").unwrap().commit("group", 1, 4).unwrap();
    while streams.work() {}
    drop(streams);
    assert_eq!(reopened(&cut, &one.clock).0, [(None, false), (Some(4), false), (None, false)]);
}

#[test]
fn group_name_is_not_read_as_an_entry() {
    let one = TestLog::new(&StreamConfig::default());
    // A name that resembles a head with a magic number and lengths.
    let name = format!("{}{}", "SGo     ", "x".repeat(200));
    for offset in 1..=3 {
        one.stream.commit(&name, 0, offset).unwrap();
        one.work();
    }
    for at in 0..bytes(&one) {
        let disk = one.disk.after(CrashKind::Kill);
        disk.damage(FILE, at);
        let (streams, losses) = open(&disk, StreamsConfig::default(), &one.clock).unwrap();
        let stream = streams.stream("s").unwrap();
        assert_eq!((stream.groups(), losses), (vec![name.clone()], vec![]), "byte {at}");
        assert_eq!(stream.committed(&name, 0), Some(3), "byte {at}");
    }
}

/// A version 2 or 3 head, as anybody can write one.
fn head(magic: [u8; 4], tag: u32, body: &[u8]) -> Vec<u8> {
    let mut head = magic.to_vec();
    head.extend_from_slice(&(body.len() as u32).to_le_bytes());
    head.extend_from_slice(&tag.to_le_bytes());
    head.extend_from_slice(&crc32c::crc32c(body).to_le_bytes());
    let crc = crc32c::crc32c(&head);
    head.extend_from_slice(&crc.to_le_bytes());
    head
}

/// Version 2 heads, and version 3 heads with a tag that a client may guess.
const KNOWN_HEADS: [([u8; 4], u32); 2] = [(*b"SGo\x02", 0), (*b"SGo\x03", 0x6161_6161)];

/// The entry of a group, as in a file.
fn entry(group: &str, partition: u32, offset: u64) -> Vec<u8> {
    let bytes = [&partition.to_le_bytes()[..], &offset.to_le_bytes(), &[group.len() as u8]].concat();
    [&bytes, group.as_bytes()].concat()
}

/// Names that end with the body and the last head of a chunk of the group `group`. In UTF-8, as clients send names; an earlier
/// version has stored control characters.
fn names_with_a_chunk((magic, tag): ([u8; 4], u32)) -> Vec<String> {
    let forged = |number: u64| {
        let digit = |at: u32| b'a' + (number / 20_u64.pow(at) % 20) as u8;
        let offset = u64::from_le_bytes([digit(0), digit(1), digit(2), digit(3), 0, 0, 0, 0]);
        let body = entry("group", 0, offset);
        String::from_utf8([&body[..], &head(magic, tag, &body)].concat()).ok()
    };
    (0..160_000).filter_map(forged).take(3).collect()
}

#[test]
fn group_name_is_not_read_as_a_chunk_at_a_torn_end() {
    for known in KNOWN_HEADS {
        let names = names_with_a_chunk(known);
        assert_eq!(names.len(), 3);
        for name in names {
            let one = TestLog::new(&StreamConfig::default().with_partitions(3));
            one.stream.commit("group", 0, 5).unwrap();
            one.work();
            let before = bytes(&one);
            // As an earlier version wrote the name.
            let stored = "n".repeat(name.len());
            one.stream.commit(&stored, 0, 1).unwrap();
            one.work();
            let end = bytes(&one);
            let disk = one.disk.after(CrashKind::Kill);
            let file = disk.open(Path::new(FILE)).unwrap();
            let mut content = file.read_shared(0..end as u64).unwrap().to_vec();
            let body = entry(&name, 0, 1);
            let start = before + 2 * 20;
            content[start..start + body.len()].copy_from_slice(&body);
            content[start + body.len()..start + 2 * body.len()].copy_from_slice(&body);
            // The crash tears the write behind the name, or keeps its first sector from the disk.
            content.truncate(end - 20);
            for lacks_heads in [false, true] {
                if lacks_heads {
                    content[before..start].fill(0);
                }
                file.truncate(0).unwrap();
                file.append(&[IoSlice::new(&content)]).unwrap();
                let torn = disk.after(CrashKind::Kill);
                assert_eq!(reopened(&torn, &one.clock).0[0], (Some(5), false), "{known:?}, {lacks_heads}");
            }
        }
    }
}

/// A version 2 file, whose heads have no tag.
fn untagged_file(offsets: &[u64]) -> Vec<u8> {
    let mut file = vec![0; 32];
    file[4..8].copy_from_slice(&52_u32.to_le_bytes());
    file[24..28].copy_from_slice(&1_u32.to_le_bytes());
    file[28..32].copy_from_slice(&2_u32.to_le_bytes());
    let crc = crc32c::crc32c(&file[4..]);
    file[..4].copy_from_slice(&crc.to_le_bytes());
    for (partition, offset) in offsets.iter().enumerate() {
        let body = entry("group", partition as u32, *offset);
        let head = head(*b"SGo\x02", 0, &body);
        file.extend([&head[..], &head, &body, &body, &head].concat());
    }
    file
}

#[test]
fn file_without_tags_is_read_and_rewritten() {
    let one = TestLog::new(&StreamConfig::default().with_partitions(3));
    let content = untagged_file(&[5, 6, 7]);
    let known = [(Some(5), false), (Some(6), false), (Some(7), false)];
    // Whole, and with a damaged preamble.
    for damaged in [None, Some(0), Some(20)] {
        let disk = one.disk.after(CrashKind::Kill);
        let file = disk.open(Path::new(FILE)).unwrap();
        file.append(&[IoSlice::new(&content)]).unwrap();
        damaged.into_iter().for_each(|at| disk.damage(FILE, at));
        for _ in 0..2 {
            assert_eq!(reopened(&disk, &one.clock), (known, vec![]), "{damaged:?}");
        }
        let rewritten = disk.open(Path::new(FILE)).unwrap().read_shared(28..36).unwrap();
        assert_eq!(rewritten[..], [3, 0, 0, 0, b'S', b'G', b'o', 3], "version and magic");
    }
}

#[test]
fn file_without_tags_is_used_on_a_full_disk_and_rewritten_later() {
    for damaged in [None, Some(40)] {
        let one = TestLog::new(&StreamConfig::default().with_partitions(3));
        let disk = one.disk.after(CrashKind::Kill);
        disk.open(Path::new(FILE)).unwrap().append(&[IoSlice::new(&untagged_file(&[5, 6, 7]))]).unwrap();
        damaged.into_iter().for_each(|at| disk.damage(FILE, at));
        disk.set_free_space(Some(0));
        let (streams, losses) = open(&disk, StreamsConfig::default(), &one.clock).unwrap();
        let Some(stream) = streams.stream("s") else {
            // A damaged file must be repaired first.
            assert_eq!(damaged, Some(40));
            continue;
        };
        assert_eq!((losses, stream.committed("group", 1), damaged), (vec![], Some(6), None));
        let commit = |offset| {
            let mut pending = stream.commit("group", 1, offset).unwrap();
            while streams.work() {}
            poll(&mut pending, Durability::Disk).unwrap()
        };
        assert_eq!(commit(8), Err(AppendError::NoSpace));
        let version = || disk.open(Path::new(FILE)).unwrap().read_shared(28..32).unwrap()[0];
        assert_eq!(version(), 2);
        disk.set_free_space(None);
        assert_eq!((commit(9), version()), (Ok(9), 3));
        drop(streams);
        let found = reopened(&disk.after(CrashKind::PowerLoss), &one.clock);
        assert_eq!(found, ([(Some(5), false), (Some(9), false), (Some(7), false)], vec![]));
    }
}

#[test]
fn offsets_without_a_known_tag_are_doubtful() {
    let one = TestLog::new(&StreamConfig::default().with_partitions(3));
    for partition in 0..3 {
        one.stream.commit("group", partition, partition.into()).unwrap();
        one.work();
    }
    (0..32 + CHUNK).for_each(|at| one.disk.damage(FILE, at));
    let found = reopened(&one.disk.after(CrashKind::Kill), &one.clock).0;
    assert_eq!(found, [(None, true), (Some(1), true), (Some(2), true)]);
}

#[test]
fn earlier_format_is_read_and_rewritten() {
    let one = TestLog::new(&StreamConfig::default().with_partitions(3));
    let mut builder = RecordBuilder::new();
    for (partition, offset) in [(0_u32, 5_u64), (1, u64::MAX), (2, 9)] {
        let value = [&partition.to_le_bytes()[..], &offset.to_le_bytes()].concat();
        builder.push(1, b"group", &value, ValueKind::Bytes).unwrap();
    }
    let records = builder.finish().unwrap();
    let header = BatchHeader::new(&records, 0, 1).encode();
    let batch = [&header[..], records.bytes()].concat();
    let disk = one.disk.after(CrashKind::Kill);
    disk.open(Path::new(FILE)).unwrap().append(&[IoSlice::new(&batch)]).unwrap();
    let damaged = disk.after(CrashKind::Kill);
    let known = [(Some(5), false), (None, false), (Some(9), false)];
    for _ in 0..2 {
        assert_eq!(reopened(&disk, &one.clock), (known, vec![]));
    }
    damaged.damage(FILE, 60);
    let (found, losses) = reopened(&damaged, &one.clock);
    assert_eq!((found, losses.len()), ([(None, true); 3], 1));
}

#[test]
fn one_flipped_bit_changes_no_committed_offset() {
    let one = TestLog::new(&StreamConfig::default().with_partitions(3));
    for (group, partition, offset) in [("a", 0, 1), ("b", 2, 5), ("a", 0, 9), ("c", 1, 7)] {
        one.stream.commit(group, partition, offset).unwrap();
        one.work();
    }
    for at in 0..bytes(&one) {
        let disk = one.disk.after(CrashKind::Kill);
        disk.damage(FILE, at);
        let (streams, _) = open(&disk, StreamsConfig::default(), &one.clock).unwrap();
        let stream = streams.stream("s").unwrap();
        let of = |(group, partition)| stream.committed(group, partition);
        let stored = [("a", 0), ("b", 2), ("c", 1)].map(of);
        assert_eq!(stored, [Some(9), Some(5), Some(7)], "byte {at}");
    }
}

/// Offset of the group `group` after a loss of power now.
fn after_power_loss(one: &TestLog) -> (Option<u64>, Vec<Loss>) {
    let (streams, losses) =
        open(&one.disk.after(CrashKind::PowerLoss), StreamsConfig::default(), &one.clock).unwrap();
    (streams.stream("s").unwrap().committed("group", 0), losses)
}

#[test]
fn offsets_of_a_stream_with_an_interval_are_synced_within_it() {
    let config = StreamConfig::default().with_fsync(Fsync::Interval(Duration::from_millis(100)));
    for seed in 0..20 {
        let one = TestLog::on(SimulatedDisk::new(seed), StreamsConfig::default(), &config);
        let tick = |micros| {
            one.clock.advance(micros);
            one.streams.tick();
            one.work();
        };
        let commit = |offset| {
            let mut pending = one.stream.commit("group", 0, offset).unwrap();
            one.work();
            assert_eq!(poll(&mut pending, Durability::Disk), Some(Ok(offset)));
        };
        commit(1);
        tick(100_000);
        assert_eq!(after_power_loss(&one), (Some(1), vec![]), "seed {seed}");
        let syncs = one.disk.syncs();
        tick(100_000);
        assert_eq!(one.disk.syncs(), syncs, "all is synced");
        // A sync that finds no space is not repeated: the file is rewritten, and its name synced.
        commit(2);
        one.disk.plan(1, DiskFault::Shortage);
        tick(100_000);
        assert_eq!((one.disk.syncs(), one.stream.failure()), (syncs + 1, None));
        commit(3);
        tick(100_000);
        assert_eq!(one.disk.syncs(), syncs + 1, "no retry within a second");
        tick(1_000_000);
        assert_eq!(after_power_loss(&one), (Some(3), vec![]), "seed {seed}");
        commit(4);
        tick(100_000);
        assert_eq!(after_power_loss(&one), (Some(4), vec![]), "seed {seed}");
        // A commit of a stream that syncs each one waits for the rewrite.
        commit(5);
        one.disk.plan(1, DiskFault::Shortage);
        tick(100_000);
        one.streams.create("s", &StreamConfig::default()).unwrap();
        one.disk.plan(1, DiskFault::Shortage);
        let mut pending = one.stream.commit("group", 0, 6).unwrap();
        one.work();
        assert_eq!(poll(&mut pending, Durability::Disk), Some(Err(AppendError::NoSpace)));
        commit(7);
        assert_eq!(after_power_loss(&one), (Some(7), vec![]), "seed {seed}");
        one.streams.create("s", &config).unwrap();
        // Another error fails the groups.
        commit(8);
        one.disk.plan(1, DiskFault::Failure);
        tick(1_000_000);
        assert!(one.stream.failure().is_some());
    }
}
