//! Damage is reported, and affects no other records.

use std::path::Path;

use super::{TestLog, numbered, open, poll, read_all, small};
use crate::disk::simulated::CrashKind;
use crate::{Durability, ReadError, StreamError, StreamsConfig};

const FIRST: &str = "/log/streams/s/0/00000000000000000000.log";

/// Offsets 0 to 9 in records of 1,000 bytes: three in a segment, in batches of 1,071 bytes behind a head of 128.
fn filled() -> TestLog {
    let one = TestLog::new(&small());
    one.fill(0..10, 1000 + 8);
    let files = one.disk.files("/log/streams/s/0");
    let logs: Vec<&str> =
        files.iter().map(|(name, _)| &**name).filter(|name| name.ends_with(".log")).collect();
    assert_eq!(logs.len(), 4, "{files:?}");
    one
}

#[test]
fn damage_of_an_open_segment_is_a_read_error() {
    let one = filled();
    one.disk.damage(FIRST, 128 + 1071 + 9);
    let (found, gaps) = read_all(&one.partition, 1);
    assert_eq!(gaps, [(1, 2)]);
    assert_eq!(found.iter().map(|found| found.0).collect::<Vec<_>>(), [0, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(one.partition.read(2, 1).unwrap().next, 3);
    let error = one.partition.read(1, 1).unwrap_err();
    assert!(
        error.to_string().contains("00000000000000000000.log: a checksum differs at byte 1199"),
        "{error}"
    );
}

#[test]
fn damaged_full_segment_is_left_unchanged() {
    let one = filled();
    one.disk.damage(FIRST, 128 + 1500);
    // Without its index, the segment is read when the log is opened.
    one.disk.damage(&FIRST.replace(".log", ".index"), 3);
    let (one, losses) = one.reopen(true);
    assert_eq!(losses.len(), 1, "{losses:?}");
    assert_eq!((losses[0].partition, losses[0].offset, losses[0].bytes), (Some(0), 1, 1071));
    assert!(losses[0].reason.contains("left in the file"), "{losses:?}");
    let (found, gaps) = read_all(&one.partition, 1);
    assert_eq!((found.len(), gaps), (9, vec![(1, 2)]));
    assert!(matches!(one.partition.read(1, 1), Err(ReadError::Damaged { resume: 2, .. })));
    assert_eq!(one.partition.offsets().next, 10);
}

#[test]
fn damage_before_valid_batches_is_not_cut_off() {
    let one = TestLog::new(&small());
    one.fill(0..3, 1000);
    one.disk.damage(FIRST, 128 + 1100);
    let (one, losses) = one.reopen(true);
    assert_eq!((losses.len(), losses[0].offset), (1, 1));
    assert!(
        one.disk
            .files("/log/streams/s/0")
            .iter()
            .any(|(name, bytes)| name.ends_with("0.log") && *bytes == 128 + 3 * 1063)
    );
    // The offsets behind the damage are not assigned again: a reader may have seen them.
    assert_eq!(one.partition.offsets().next, 3);
    one.fill(3..4, 8);
    let (found, gaps) = read_all(&one.partition, 1);
    assert_eq!((found, gaps), (vec![(0, 0), (2, 2), (3, 3)], vec![(1, 2)]));
    // Damage is reported at each opening, also when the segment is full.
    one.fill(4..5, 1000);
    let (one, losses) = one.reopen(false);
    assert_eq!((losses.len(), read_all(&one.partition, 1).0.len()), (1, 4));
}

#[test]
fn unfinished_write_is_cut_off() {
    let one = TestLog::new(&small());
    one.fill(0..3, 1000);
    one.disk.damage(FIRST, 128 + 2 * 1063 + 500);
    let (one, losses) = one.reopen(true);
    assert_eq!((losses[0].offset, losses[0].bytes), (2, 1063));
    assert!(losses[0].reason.contains("a checksum differs at byte 2254; cut off"), "{losses:?}");
    one.fill(7..8, 1000);
    assert_eq!(read_all(&one.partition, 1).0, [(0, 0), (1, 1), (2, 7)]);
    assert_eq!(one.reopen(true).1, []);
}

#[test]
fn missing_or_damaged_index_is_rebuilt() {
    for at in [0, 40, 63] {
        let one = filled();
        let index =
            one.disk.files("/log/streams/s/0").into_iter().find(|(name, _)| name.ends_with("0.index"));
        one.disk.damage(&format!("/log/streams/s/0/{}", index.unwrap().0), at);
        let (one, losses) = one.reopen(true);
        assert_eq!((losses, read_all(&one.partition, 5000).0.len()), (vec![], 10));
    }
}

#[test]
fn files_of_a_newer_version_are_left_unchanged() {
    let one = TestLog::new(&small());
    one.fill(0..1, 100);
    // An unknown flag, with a valid checksum.
    let header = crate::record::BatchHeader { base: 1, appended: 1_000_000, count: 1, length: 60, tag: None };
    let mut bytes = header.encode()[..32].to_vec();
    bytes[28] = 2;
    let crc = crc32c::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    let disk = one.disk.after(CrashKind::Kill);
    let file = crate::disk::Disk::open(&disk, Path::new(FIRST)).unwrap();
    file.append(&[std::io::IoSlice::new(&bytes)]).unwrap();
    let before = disk.files("/log/streams/s/0");
    let (streams, _) = open(&disk, StreamsConfig::default(), &one.clock).unwrap();
    let error = streams.find("s").unwrap_err();
    assert!(matches!(&error, StreamError::Damaged(reason) if reason.starts_with(FIRST)), "{error}");
    assert_eq!(disk.files("/log/streams/s/0"), before);
}

#[test]
fn missing_segment_is_reported() {
    let one = TestLog::new(&small());
    one.fill(0..1, 100);
    let disk = one.disk.after(CrashKind::Kill);
    crate::disk::Disk::remove(&disk, Path::new(FIRST)).unwrap();
    let (streams, losses) = open(&disk, StreamsConfig::default(), &one.clock).unwrap();
    assert!(losses.len() == 1 && losses[0].to_string().contains("no segment exists"), "{losses:?}");
    let partition = streams.stream("s").unwrap().partition(0).unwrap();
    let mut pending = partition.append(numbered([1], 8)).unwrap();
    while streams.work() {}
    assert_eq!(poll(&mut pending, Durability::Disk), Some(Ok(0)));
}

#[test]
fn missing_segment_between_segments_is_reported() {
    let one = filled();
    let disk = one.disk.after(CrashKind::Kill);
    crate::disk::Disk::remove(&disk, Path::new(&FIRST.replace("0.log", "3.log"))).unwrap();
    let (streams, losses) = open(&disk, StreamsConfig::default(), &one.clock).unwrap();
    assert_eq!((losses.len(), losses[0].offset), (1, 3), "{losses:?}");
    let partition = streams.stream("s").unwrap().partition(0).unwrap();
    let (found, gaps) = read_all(&partition, 1);
    assert_eq!((found.len(), gaps), (7, vec![(3, 6)]));
}
