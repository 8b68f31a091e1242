//! Writing of batches to files, and its failures.

use super::{TestLog, numbered, poll, read_all, small};
use crate::disk::simulated::{CrashKind, DiskFault, SimulatedDisk};
use crate::{AppendError, Durability, Fsync, StreamConfig, StreamsConfig};
use std::sync::mpsc;
use std::time::Duration;

#[test]
fn pending_batches_are_written_and_synced_together() {
    let one = TestLog::new(&StreamConfig::default());
    let before = one.disk.calls();
    let mut pending: Vec<_> =
        (0..50).map(|number| one.partition.append(numbered([number], 100)).unwrap()).collect();
    assert_eq!(one.partition.offsets().next, 50);
    assert!(pending.iter_mut().all(|pending| poll(pending, Durability::Disk).is_none()));
    assert_eq!(poll(&mut pending[7], Durability::Memory), Some(Ok(7)));
    one.work();
    assert_eq!(one.disk.calls() - before, 2);
    for (offset, pending) in pending.iter_mut().enumerate() {
        assert_eq!(poll(pending, Durability::Broker), Some(Ok(offset as u64)));
    }
    let statistics = one.partition.statistics();
    assert_eq!((statistics.writes, statistics.syncs, statistics.batches, statistics.pending), (1, 1, 50, 0));
    assert_eq!((statistics.records, statistics.bytes), (50, 128 + 50 * (40 + 20 + 3 + 100)));
}

#[test]
fn readers_see_records_according_to_fsync() {
    for (fsync, durable) in
        [(Fsync::Batch, 1), (Fsync::Interval(Duration::from_secs(1)), 0), (Fsync::Never, 0)]
    {
        let one = TestLog::new(&StreamConfig::default().with_fsync(fsync));
        one.partition.append(numbered([1], 8)).unwrap();
        assert_eq!(read_all(&one.partition, 100).0, []);
        one.work();
        assert_eq!(read_all(&one.partition, 100).0, [(0, 1)]);
        let ends = one.partition.offsets();
        assert_eq!((ends.readable, ends.durable, ends.next), (1, durable, 1));
        // After half the interval, so that the interval is met although the clock ticks only that often.
        one.clock.advance(499_999);
        one.streams.tick();
        one.work();
        assert_eq!(one.partition.offsets().durable, durable);
        one.clock.advance(1);
        one.streams.tick();
        one.work();
        assert_eq!(one.partition.offsets().durable == 1, fsync != Fsync::Never);
        one.streams.close();
        assert_eq!(one.partition.offsets().durable, 1);
    }
}

#[test]
fn full_disk_rejects_appends_until_it_has_space() {
    let one = TestLog::new(&StreamConfig::default());
    one.fill(0..2, 100);
    // One and a half batches of 163 bytes.
    one.disk.set_free_space(Some(240));
    let mut pending: Vec<_> =
        (2..6).map(|number| one.partition.append(numbered([number], 100)).unwrap()).collect();
    one.work();
    assert_eq!(poll(&mut pending[0], Durability::Disk), Some(Ok(2)));
    for pending in &mut pending[1..] {
        assert_eq!(poll(pending, Durability::Disk), Some(Err(AppendError::NoSpace)));
    }
    assert_eq!((one.partition.offsets().readable, one.partition.offsets().next), (3, 3));
    let files = one.disk.files("/log/streams/s/0");
    assert_eq!(files, [("00000000000000000000.log".to_owned(), 128 + 3 * 163)]);
    // Appends are rejected immediately for a second, so that no append is accepted and then fails.
    one.disk.set_free_space(None);
    assert_eq!(one.partition.append(numbered([6], 100)).unwrap_err(), AppendError::NoSpace);
    one.clock.advance(1_000_000);
    one.fill(7..8, 100);
    assert_eq!(read_all(&one.partition, 1).0, [(0, 0), (1, 1), (2, 2), (3, 7)]);
    assert_eq!(one.reopen(true).1, []);
}

#[test]
fn disk_without_space_for_a_new_segment_rejects_appends() {
    let one = TestLog::new(&small());
    one.fill(0..3, 1000);
    one.disk.set_free_space(Some(0));
    let mut pending = one.partition.append(numbered([3], 1000)).unwrap();
    one.work();
    assert_eq!(poll(&mut pending, Durability::Disk), Some(Err(AppendError::NoSpace)));
    one.disk.set_free_space(None);
    one.clock.advance(1_000_000);
    one.fill(4..5, 1000);
    assert_eq!(read_all(&one.partition, 1).0.last(), Some(&(3, 4)));
}

/// Fails to create a segment at offset 2, and continues in the previous one.
fn failed_roll(faults: &[(u64, DiskFault)]) -> TestLog {
    let one = TestLog::new(&small());
    one.fill(0..2, 1000);
    faults.iter().for_each(|(call, fault)| one.disk.plan(*call, *fault));
    let mut pending = one.partition.append(numbered([2], 2000)).unwrap();
    one.work();
    assert_eq!(poll(&mut pending, Durability::Disk), Some(Err(AppendError::NoSpace)));
    one.clock.advance(1_000_000);
    one.fill(3..5, 100);
    one
}

/// The index of the old segment is created, cut and written; then the new one is created, its head written, and its
/// name synced.
const NAME_SYNCED: u64 = 5;

#[test]
fn failed_segment_creation_leaves_no_file() {
    let one = failed_roll(&[(NAME_SYNCED, DiskFault::Shortage)]);
    let files = one.disk.files("/log/streams/s/0");
    assert!(files.iter().all(|(name, _)| !name.ends_with("2.log")), "{files:?}");
    let (one, losses) = one.reopen(true);
    assert_eq!((losses, one.partition.offsets().next), (vec![], 4));
}

#[test]
fn empty_segment_passed_by_its_predecessor_is_removed() {
    // Its removal fails, too.
    for kill in [false, true] {
        let one = failed_roll(&[(NAME_SYNCED, DiskFault::Shortage), (NAME_SYNCED + 1, DiskFault::Failure)]);
        assert!(one.disk.files("/log/streams/s/0").contains(&("00000000000000000002.log".to_owned(), 128)));
        if kill {
            // The last write is incomplete.
            one.disk.damage("/log/streams/s/0/00000000000000000000.log", 128 + 2 * 1063 + 163 + 50);
        }
        let (one, losses) = one.reopen(kill);
        assert_eq!((losses.len(), one.partition.offsets().next), if kill { (1, 3) } else { (0, 4) });
        one.fill(5..8, 1000);
        let all = read_all(&one.partition, 1).0;
        assert_eq!((one.reopen(true).1, all.last()), (vec![], Some(&(if kill { 5 } else { 6 }, 7))));
    }
}

#[test]
fn short_write_is_continued() {
    let one = TestLog::new(&StreamConfig::default());
    for call in 1..5 {
        one.disk.plan(call, DiskFault::Short);
    }
    one.fill(0..4, 1000);
    assert_eq!(read_all(&one.partition, 1).0.len(), 4);
}

#[test]
fn failure_is_permanent_and_loses_no_acknowledged_record() {
    // The write, and the sync.
    for call in [1, 2] {
        let one = TestLog::new(&StreamConfig::default());
        one.fill(0..2, 100);
        assert_eq!(one.stream.failure(), None);
        one.disk.plan(call, DiskFault::Failure);
        let mut pending: Vec<_> =
            (2..5).map(|number| one.partition.append(numbered([number], 100)).unwrap()).collect();
        one.work();
        for pending in &mut pending {
            assert!(matches!(poll(pending, Durability::Disk), Some(Err(AppendError::Failed(_)))));
        }
        let reason = one.partition.failure().unwrap();
        assert!(reason.contains(if call == 1 { "writing" } else { "syncing" }), "{reason}");
        assert_eq!(one.stream.failure().as_ref(), Some(&reason));
        assert_eq!(one.partition.append(numbered([9], 8)).unwrap_err(), AppendError::Failed(reason));
        // There is no retry, and readable records remain readable.
        let calls = one.disk.calls();
        one.clock.advance(10_000_000);
        one.streams.tick();
        one.work();
        assert_eq!((one.disk.calls(), one.partition.statistics().failed), (calls, true));
        assert_eq!(read_all(&one.partition, 1).0, [(0, 0), (1, 1)]);
        // Unsynced records are not shown by the next process either: a later power loss would take them.
        let disk = one.disk.after(CrashKind::Kill);
        let (streams, _) = super::open(&disk, StreamsConfig::default(), &one.clock).unwrap();
        assert_eq!(read_all(&streams.stream("s").unwrap().partition(0).unwrap(), 1).0, [(0, 0), (1, 1)]);
        let disk = disk.after(CrashKind::PowerLoss);
        let (streams, _) = super::open(&disk, StreamsConfig::default(), &one.clock).unwrap();
        assert_eq!(read_all(&streams.stream("s").unwrap().partition(0).unwrap(), 1).0, [(0, 0), (1, 1)]);
    }
}

/// The write of a batch, and its sync.
const SYNCED: u64 = 2;

#[test]
fn partition_continues_in_a_new_segment_after_a_sync_without_space() {
    let one = TestLog::new(&StreamConfig::default());
    one.fill(0..2, 100);
    one.disk.plan(SYNCED, DiskFault::Full);
    let mut pending: Vec<_> =
        (2..4).map(|number| one.partition.append(numbered([number], 100)).unwrap()).collect();
    one.work();
    for pending in &mut pending {
        assert_eq!(poll(pending, Durability::Disk), Some(Err(AppendError::NoSpace)));
    }
    // The unsynced batch is cut off; there is no retry for a second, as after a full disk.
    assert_eq!((one.partition.failure(), one.partition.offsets().next), (None, 2));
    assert_eq!(one.disk.files("/log/streams/s/0")[0].1, 128 + 2 * 163);
    assert_eq!(one.partition.append(numbered([4], 8)).unwrap_err(), AppendError::NoSpace);
    one.clock.advance(1_000_000);
    one.fill(5..7, 100);
    assert_eq!(read_all(&one.partition, 1).0, [(0, 0), (1, 1), (2, 5), (3, 6)]);
    let names: Vec<String> = one.disk.files("/log/streams/s/0").into_iter().map(|(name, _)| name).collect();
    assert!(names.contains(&"00000000000000000002.log".to_owned()), "{names:?}");
    for after in [CrashKind::Kill, CrashKind::PowerLoss] {
        let disk = one.disk.after(after);
        let (streams, losses) = super::open(&disk, StreamsConfig::default(), &one.clock).unwrap();
        let partition = streams.stream("s").unwrap().partition(0).unwrap();
        assert_eq!((losses, read_all(&partition, 1).0.len()), (vec![], 4), "{after:?}");
    }
}

#[test]
fn first_batch_whose_sync_finds_no_space_fails_and_the_segment_is_recreated() {
    let one = TestLog::new(&StreamConfig::default());
    for number in 0..3 {
        one.disk.plan(SYNCED + if number > 0 { 3 } else { 0 }, DiskFault::Full);
        let mut pending = one.partition.append(numbered([number], 100)).unwrap();
        one.work();
        assert_eq!(poll(&mut pending, Durability::Disk), Some(Err(AppendError::NoSpace)), "{number}");
        one.clock.advance(1_000_000);
    }
    one.fill(3..5, 100);
    let (one, losses) = one.reopen(true);
    assert_eq!((losses, read_all(&one.partition, 1).0), (vec![], vec![(0, 3), (1, 4)]));
}

#[test]
fn end_that_can_be_neither_synced_nor_cut_off_fails_the_partition() {
    let one = TestLog::new(&StreamConfig::default());
    one.fill(0..2, 100);
    one.disk.plan(SYNCED, DiskFault::Full);
    one.disk.plan(SYNCED + 1, DiskFault::Failure);
    let mut pending = one.partition.append(numbered([2], 100)).unwrap();
    one.work();
    assert!(matches!(poll(&mut pending, Durability::Disk), Some(Err(AppendError::Failed(_)))));
    assert!(one.partition.failure().unwrap().contains("could not be synced"));
}

#[test]
fn next_segment_replaces_records_that_reappear_after_a_cut() {
    let one = TestLog::new(&StreamConfig::default());
    one.fill(0..2, 100);
    let before = one.disk.files("/log/streams/s/0")[0].1 as u64;
    // The state after a cut that the disk did not persist: whole batches at offsets that were assigned again.
    one.fill(2..4, 100);
    let path = std::path::Path::new("/log/streams/s/0/00000000000000000000.log");
    let left = crate::disk::Disk::open(&one.disk, path).unwrap();
    let left = left.read_shared(before..left.bytes().unwrap()).unwrap();
    crate::disk::Disk::open(&one.disk, path).unwrap().truncate(before).unwrap();
    let (one, _) = one.reopen(true);
    one.disk.plan(SYNCED, DiskFault::Full);
    one.partition.append(numbered([7], 100)).unwrap();
    one.work();
    one.clock.advance(1_000_000);
    one.fill(8..10, 100);
    let disk = one.disk.after(CrashKind::Kill);
    crate::disk::Disk::open(&disk, path).unwrap().append(&[std::io::IoSlice::new(&left)]).unwrap();
    let (streams, losses) = super::open(&disk, StreamsConfig::default(), &one.clock).unwrap();
    let partition = streams.stream("s").unwrap().partition(0).unwrap();
    let found = [(0, 0), (1, 1), (2, 8), (3, 9)];
    assert_eq!((losses, read_all(&partition, 1).0), (vec![], found.to_vec()));
}

#[test]
fn append_above_max_pending_is_busy() {
    let limits = StreamsConfig::default().with_max_pending(1000);
    let one = TestLog::on(SimulatedDisk::new(1), limits.clone(), &StreamConfig::default());
    for number in 0..6 {
        one.partition.append(numbered([number], 100)).unwrap();
    }
    assert_eq!(one.partition.append(numbered([6], 100)).unwrap_err(), AppendError::Busy);
    one.work();
    // A queue that is at most half full takes a batch of any size.
    one.partition.append(numbered([6], 5000)).unwrap();
    assert_eq!(one.partition.append(numbered([7], 8)).unwrap_err(), AppendError::Busy);
    one.work();
    assert_eq!(read_all(&one.partition, 1).0.len(), 7);
    let most = AppendError::TooLarge { most: 4000 };
    let one = TestLog::on(SimulatedDisk::new(1), limits, &small());
    assert_eq!(one.partition.append(numbered([0], 4000)).unwrap_err(), most);
    let one = TestLog::on(
        SimulatedDisk::new(1),
        StreamsConfig::default().with_max_batch(4000),
        &StreamConfig::default(),
    );
    assert_eq!(one.partition.append(numbered([0], 4000)).unwrap_err(), most);
}

#[test]
fn broker_offsets_may_have_gaps_but_never_decrease() {
    let one = TestLog::new(&small());
    for (base, appended) in [(100, 50), (101, 60), (500, 40), (501, 70)] {
        let end = one.partition.offsets().next;
        one.partition.append_if_end(end, base, appended, numbered([base], 1500)).unwrap();
        one.streams.pool().work_until(|| one.partition.offsets().readable > base);
    }
    let append = |end, base| one.partition.append_if_end(end, base, 80, numbered([0], 8)).unwrap_err();
    assert_eq!(append(502, 501), AppendError::OutOfOrder { next: 502 });
    assert_eq!(append(501, 502), AppendError::OutOfOrder { next: 502 });
    assert_eq!(append(502, u64::MAX), AppendError::TooLarge { most: 4000 });
    let found = [(100, 100), (101, 101), (500, 500), (501, 501)];
    assert_eq!(read_all(&one.partition, 1).0, found);
    // In the gap, reading continues with the next record, in the same segment and in the next one.
    assert_eq!(
        (one.partition.offsets().earliest, one.partition.seek(crate::StartPosition::Earliest)),
        (100, 100)
    );
    for from in [102, 300, 499] {
        assert_eq!(one.partition.read(from, 1).unwrap().next, 501);
    }
    let (one, losses) = one.reopen(true);
    assert_eq!((losses, read_all(&one.partition, 1).0), (vec![], found.to_vec()));
    assert_eq!(one.partition.offsets().next, 502);
}

#[test]
fn append_during_close_is_written_or_rejected() {
    let one = TestLog::new(&StreamConfig::default());
    let mut pending = one.partition.append(numbered([1], 8)).unwrap();
    let mut commit = one.stream.commit("g", 0, 1).unwrap();
    // An append is queued after the writers have ended.
    let late = one.streams.pool().take_ready();
    assert_eq!(late.len(), 2);
    one.streams.close();
    assert_eq!(poll(&mut pending, Durability::Disk), Some(Ok(0)));
    assert_eq!(poll(&mut commit, Durability::Disk), Some(Ok(1)));
    let calls = one.disk.calls();
    late.into_iter().for_each(|work| one.streams.pool().push(work));
    assert!(one.streams.pool().take_ready().is_empty(), "a queued unit would hold the log");
    assert_eq!(one.disk.calls(), calls);
    let (one, losses) = one.reopen(true);
    assert_eq!((losses, read_all(&one.partition, 1).0), (vec![], vec![(0, 1)]));
    assert_eq!(one.stream.committed("g", 0), Some(1));
}

#[test]
fn appends_after_close_are_rejected_and_pending_ones_are_stored() {
    let one = TestLog::new(&StreamConfig::default());
    let mut pending = one.partition.append(numbered([1], 8)).unwrap();
    one.streams.close();
    one.streams.close();
    assert_eq!(poll(&mut pending, Durability::Disk), Some(Ok(0)));
    assert_eq!(one.partition.append(numbered([2], 8)).unwrap_err(), AppendError::Closed);
    assert!(matches!(one.streams.create("t", &StreamConfig::default()), Err(crate::CreateError::Closed)));
    assert_eq!(read_all(&one.partition, 1).0, [(0, 1)]);
    // Opening trusts the state recorded by the close, and reads no segment.
    one.disk.damage("/log/streams/s/0/00000000000000000000.log", 128 + 50);
    let (one, losses) = one.reopen(false);
    assert_eq!((losses, one.partition.offsets().next), (vec![], 1));
    // No longer after an append.
    one.fill(2..3, 8);
    assert_eq!(one.reopen(true).1.len(), 1);
}

#[test]
fn failed_stream_creation_leaves_no_files() {
    let one = TestLog::new(&StreamConfig::default().with_partitions(3));
    let pool = one.streams.pool();
    // The log itself, the groups, and the partitions.
    assert_eq!(pool.units(), 5);
    let mut failures = 0;
    for call in 1.. {
        one.disk.plan(call, DiskFault::Shortage);
        if one.streams.create(&call.to_string(), &StreamConfig::default().with_partitions(2)).is_ok() {
            break;
        }
        failures += 1;
        assert_eq!((pool.units(), one.streams.list().len()), (5, 1));
    }
    assert!(failures > 9, "{failures}");
    assert_eq!(pool.units(), 5 + 3);
    one.stream.commit("g", 0, 1).unwrap();
    // The last planned fault is still pending.
    while one.streams.create("s", &StreamConfig::default().with_partitions(4)).is_err() {}
    assert_eq!(pool.units(), 5 + 3 + 1);
    one.streams.close();
    assert_eq!(pool.units(), 0);
}

#[test]
fn stream_creation_during_close_is_atomic_and_writes_nothing_afterwards() {
    let created = {
        let one = TestLog::new(&StreamConfig::default());
        let before = one.disk.calls();
        one.streams.create("counted", &StreamConfig::default().with_partitions(2)).unwrap();
        one.disk.calls() - before
    };
    for call in 1..=created {
        let one = TestLog::new(&StreamConfig::default());
        let (closing, closed) = mpsc::channel();
        let (streams, disk) = (one.streams.clone(), one.disk.clone());
        let (waiting, waited) = mpsc::channel();
        one.disk.run_before(call, move || {
            let thread = std::thread::spawn(move || {
                streams.close();
                let _ = waiting.send(());
                disk.calls()
            });
            closing.send(thread).unwrap();
            // If close does not wait for the creation, it may have finished by now.
            let _ = waited.recv_timeout(Duration::from_millis(20));
        });
        let made = one.streams.create("new", &StreamConfig::default().with_partitions(2));
        let calls_when_closed = closed.recv().unwrap().join().unwrap();
        assert_eq!(
            one.disk.calls(),
            calls_when_closed,
            "call {call}: the directory belonged to another process"
        );
        let late =
            made.as_ref().ok().map(|stream| stream.partition(1).unwrap().append(numbered([1], 8)).err());
        assert!(matches!(late, None | Some(Some(AppendError::Closed))), "{late:?}");
        let was_made = made.is_ok();
        drop(made);
        let (one, losses) = one.reopen(false);
        assert_eq!((losses, one.streams.stream("new").is_some()), (vec![], was_made), "call {call}");
    }
}

#[test]
fn idle_partition_and_groups_survive_a_lack_of_descriptors() {
    let one = TestLog::new(&StreamConfig::default());
    one.fill(0..1, 10);
    for _ in 0..3 {
        one.streams.pool().release_unused();
        one.work();
    }
    assert_eq!(one.streams.open_files(), 0);
    one.disk.set_lacks_descriptors(true);
    let mut pending = one.partition.append(numbered([1], 10)).unwrap();
    let mut commit = one.stream.commit("g", 0, 1).unwrap();
    one.work();
    assert_eq!(poll(&mut pending, Durability::Disk), Some(Err(AppendError::NoSpace)));
    assert_eq!(poll(&mut commit, Durability::Disk), Some(Err(AppendError::NoSpace)));
    assert_eq!((one.partition.failure(), one.stream.failure()), (None, None));

    one.disk.set_lacks_descriptors(false);
    one.clock.advance(1_000_000);
    one.fill(1..3, 10);
    let mut commit = one.stream.commit("g", 0, 2).unwrap();
    one.work();
    assert_eq!(poll(&mut commit, Durability::Disk), Some(Ok(2)));
    let (one, losses) = one.reopen(true);
    assert_eq!((losses, one.stream.committed("g", 0)), (vec![], Some(2)));
    assert_eq!(read_all(&one.partition, 1000).0, [(0, 0), (1, 1), (2, 2)]);
}
