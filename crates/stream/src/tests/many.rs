//! Streams that are not open: the list has them, and each is opened by its first use.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::{ManualClock, TestLog, numbered, open, poll, read_all, small};
use crate::disk::simulated::{CrashKind, SimulatedDisk};
use crate::disk::{self, Disk};
use crate::{Durability, Lookup, OpenFuture, StreamConfig, StreamError, StreamState, Streams, StreamsConfig};

fn begin(disk: &SimulatedDisk, clock: &ManualClock) -> Streams {
    open(disk, StreamsConfig::default(), clock).unwrap().0
}

fn append(streams: &Streams, name: &str, number: u64) {
    let mut pending =
        streams.stream(name).unwrap().partition(0).unwrap().append(numbered([number], 8)).unwrap();
    while streams.work() {}
    assert!(matches!(poll(&mut pending, Durability::Disk), Some(Ok(_))), "{name}");
}

/// Streams `a`, `b` and `c` with a record each, after a clean stop.
fn three() -> (SimulatedDisk, ManualClock) {
    let (disk, clock) = (SimulatedDisk::new(1), ManualClock::default());
    clock.advance(1_000);
    let streams = begin(&disk, &clock);
    for name in ["a", "b", "c"] {
        streams.create(name, &small()).unwrap();
        append(&streams, name, 7);
    }
    streams.close();
    (disk, clock)
}

fn poll_opening(streams: &Streams, mut opening: OpenFuture) -> Result<bool, StreamError> {
    let mut opening = pin!(&mut opening);
    for _ in 0..10 {
        if let Poll::Ready(done) = opening.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return done.map(|stream| stream.is_some());
        }
        assert!(streams.work(), "work is pending");
    }
    panic!("the opening never completes");
}

#[test]
fn start_lists_all_streams_and_opens_none() {
    let (disk, clock) = three();
    let streams = begin(&disk, &clock);
    assert!(streams.list_open().is_empty());
    let all = streams.describe_all();
    assert_eq!(all.iter().map(|info| &*info.name).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert!(all.iter().all(|info| info.state == StreamState::Closed && info.partitions[0].readable == 1));
    assert!(matches!(streams.lookup("a"), Lookup::Closed) && matches!(streams.lookup("d"), Lookup::Missing));
    assert!(poll_opening(&streams, streams.opening("a")).unwrap());
    assert!(!poll_opening(&streams, streams.opening("d")).unwrap());
    assert!(poll_opening(&streams, streams.creating("d", &small())).unwrap());
    assert_eq!(streams.list_open().len(), 2);
    append(&streams, "a", 8);
    drop(streams);
    let streams = begin(&disk, &clock);
    assert_eq!(streams.describe("a").unwrap().partitions[0].readable, 2);
    assert_eq!(streams.count(), 4);
}

#[test]
fn stream_in_use_at_a_crash_is_recovered_and_others_are_not_opened() {
    let (disk, clock) = three();
    for after in [CrashKind::Kill, CrashKind::PowerLoss] {
        let streams = begin(&disk, &clock);
        append(&streams, "b", 8);
        let streams = begin(&disk.after(after), &clock);
        let open: Vec<_> = streams.list_open().iter().map(|stream| stream.name().to_owned()).collect();
        assert_eq!(open, ["b"]);
        assert!(streams.describe("b").unwrap().partitions[0].readable >= 2);
    }
}

#[test]
fn catalog_is_rebuilt_from_the_directories() {
    for damage in [0, 40, 200, 260] {
        let (disk, clock) = three();
        disk.damage("/log/catalog", damage);
        let streams = begin(&disk, &clock);
        assert_eq!(streams.count(), 3);
        for name in ["a", "b", "c"] {
            let found = streams.stream(name).unwrap();
            assert_eq!(read_all(&found.partition(0).unwrap(), 100).0, [(0, 7)]);
        }
    }
    let (disk, clock) = three();
    disk.remove(Path::new("/log/catalog")).unwrap();
    assert_eq!(begin(&disk, &clock).count(), 3);
}

#[test]
fn stream_copied_or_removed_by_hand_is_detected() {
    let (disk, clock) = three();
    disk::remove_tree(&disk, Path::new("/log/streams/a")).unwrap();
    disk.rename(Path::new("/log/streams/b"), Path::new("/log/streams/d")).unwrap();
    let streams = begin(&disk, &clock);
    assert!(streams.stream("a").is_none() && streams.stream("b").is_none());
    assert_eq!(read_all(&streams.stream("d").unwrap().partition(0).unwrap(), 100).0, [(0, 7)]);
    assert_eq!(streams.count(), 2);
}

#[test]
fn damaged_stream_does_not_affect_other_streams() {
    let log = "/log/streams/b/0/00000000000000000000.log";
    type Damage = fn(&SimulatedDisk);
    let damages: [(&str, Damage); 5] = [
        ("stream", |disk| disk.damage("/log/streams/b/stream", 30)),
        ("stream", |disk| disk.open(Path::new("/log/streams/b/stream")).unwrap().truncate(0).unwrap()),
        ("stream", |disk| disk.remove(Path::new("/log/streams/b/stream")).unwrap()),
        ("00000000000000000009.log", |disk| {
            // A segment named after an offset behind its first record.
            let dir = Path::new("/log/streams/b/0");
            let from = dir.join("00000000000000000000.log");
            disk.rename(&from, &dir.join("00000000000000000009.log")).unwrap();
        }),
        ("00000000000000000000.log", |disk| {
            let dir = Path::new("/log/streams/b/0/00000000000000000000.log");
            disk.remove(dir).unwrap();
            disk.create_dir(dir).unwrap();
        }),
    ];
    for (path, damage) in damages {
        let (disk, clock) = three();
        damage(&disk);
        let (streams, losses) = open(&disk, StreamsConfig::default(), &clock).unwrap();
        append(&streams, "a", 8);
        append(&streams, "c", 8);
        match streams.find("b") {
            Err(StreamError::Damaged(reason)) => {
                assert!(reason.contains(path), "{reason}");
                assert!(matches!(streams.lookup("b"), Lookup::Damaged(_)));
                assert_eq!(streams.list_damaged().len(), 1);
                let create = streams.create("b", &small());
                assert!(matches!(create, Err(crate::CreateError::Damaged(_))));
            }
            other => panic!("{path}: {other:?}, {losses:?}"),
        }
        let repaired = open(&disk.after(CrashKind::Kill), StreamsConfig::default(), &clock).unwrap().0;
        if repaired.find("b").is_err() {
            assert!(!repaired.repair("b").unwrap().is_empty());
            let has = if path.ends_with("0.log") { 0 } else { 1 };
            assert_eq!(repaired.check("b").unwrap().unwrap().records, has, "{path}");
        }
        assert!(streams.delete("b").unwrap(), "a damaged stream can be removed");
        assert_eq!(streams.create("b", &small()).unwrap().partition(0).unwrap().offsets().next, 0);
        assert!(disk.files("/log/streams/b/0").iter().any(|(name, _)| log.ends_with(&**name)));
    }
}

#[test]
fn damaged_stream_is_retried_after_a_delay() {
    let (disk, clock) = three();
    disk.damage("/log/streams/b/stream", 30);
    let streams = begin(&disk, &clock);
    assert!(streams.find("b").is_err());
    disk.damage("/log/streams/b/stream", 30);
    assert!(streams.find("b").is_err());
    clock.advance(11_000_000);
    assert_eq!(read_all(&streams.stream("b").unwrap().partition(0).unwrap(), 100).0, [(0, 7)]);
}

#[test]
fn idle_stream_is_closed_unless_it_has_a_handle() {
    let one = TestLog::new(&small());
    one.fill(0..5, 1000);
    let close_idle = |one: &TestLog| {
        one.clock.advance(61_000_000);
        one.streams.pool().release_unused();
        one.work();
        one.streams.list_open().len()
    };
    assert_eq!(close_idle(&one), 1);
    let TestLog { disk, clock, streams, stream, partition } = one;
    drop((stream, partition));
    clock.advance(61_000_000);
    streams.pool().release_unused();
    while streams.work() {}
    assert!(streams.list_open().is_empty());
    assert_eq!(streams.describe("s").unwrap().partitions[0].readable, 5);
    // The catalog's metadata are valid after a crash.
    let after = begin(&disk.after(CrashKind::Kill), &clock);
    assert!(after.list_open().is_empty());
    append(&streams, "s", 5);
    assert_eq!(streams.describe("s").unwrap().partitions[0].readable, 6);
}

#[test]
fn retention_by_age_applies_to_closed_streams() {
    let (disk, clock) = (SimulatedDisk::new(1), ManualClock::default());
    clock.advance(1_000);
    let streams = begin(&disk, &clock);
    streams.create("s", &small().with_retain_age(Some(Duration::from_secs(10)))).unwrap();
    (0..10).for_each(|number| append(&streams, "s", number));
    drop(streams);
    let streams = begin(&disk, &clock);
    clock.advance(9_000_000);
    streams.tick();
    assert!(!streams.work() && streams.list_open().is_empty());
    clock.advance(2_000_000);
    for _ in 0..3 {
        streams.tick();
        while streams.work() {}
    }
    assert_eq!(streams.describe("s").unwrap().partitions[0].earliest, 10);
}

#[test]
fn number_of_streams_is_limited_by_max_streams() {
    let disk = SimulatedDisk::new(1);
    let config = StreamsConfig::default().with_max_streams(2);
    let (streams, _) = open(&disk, config, &ManualClock::default()).unwrap();
    streams.create("a", &small()).unwrap();
    streams.create("b", &small()).unwrap();
    let error = poll_opening(&streams, streams.creating("c", &small())).unwrap_err();
    assert_eq!(error.to_string(), "the limit of 2 streams is reached");
    streams.delete("a").unwrap();
    streams.create("c", &small()).unwrap();
}

#[test]
fn idle_partition_has_no_open_file_although_it_has_handles() {
    let one = TestLog::new(&small().with_fsync(crate::Fsync::Never));
    one.fill(0..10, 1000);
    let release_unused = || {
        one.streams.pool().release_unused();
        one.work();
    };
    assert_eq!(one.streams.open_files(), 4 + 1, "the segments and the catalog; groups.log is not needed");
    (0..3).for_each(|_| release_unused());
    assert_eq!((one.streams.open_files(), one.streams.list_open().len()), (0, 1));
    one.fill(10..11, 1000);
    assert_eq!(one.streams.open_files(), 1, "one for each partition that is written to");
    assert_eq!(read_all(&one.partition, 5000).0.len(), 11);
    let mut stored = one.stream.commit("g", 0, 3).unwrap();
    one.work();
    assert!(matches!(poll(&mut stored, Durability::Disk), Some(Ok(_))));
    (0..3).for_each(|_| release_unused());
    let (one, losses) = one.reopen(false);
    assert_eq!((losses, read_all(&one.partition, 5000).0.len()), (vec![], 11));
    assert_eq!(one.stream.committed("g", 0), Some(3));
}

/// Creates this many streams with a record each.
fn in_use(count: usize) -> (SimulatedDisk, ManualClock, Streams) {
    let (disk, clock) = (SimulatedDisk::new(1), ManualClock::default());
    clock.advance(1_000);
    let streams = begin(&disk, &clock);
    for name in (0..count).map(|number| number.to_string()) {
        streams.create(&name, &StreamConfig::default()).unwrap();
        append(&streams, &name, 7);
    }
    (disk, clock, streams)
}

#[test]
fn clean_stop_makes_the_same_calls_for_any_number_of_streams() {
    let [few, many] = [2, 40].map(|count| {
        let (disk, _, streams) = in_use(count);
        let before = disk.calls();
        streams.close();
        disk.calls() - before
    });
    assert_eq!(few, many, "calls that change something on the disk");
}

#[test]
fn stream_is_opened_after_a_clean_stop_without_a_sync() {
    let (disk, clock, streams) = in_use(2);
    commit(&streams, "0", 1);
    streams.close();
    let streams = begin(&disk, &clock);
    let before = disk.syncs();
    assert_eq!(read_all(&streams.stream("0").unwrap().partition(0).unwrap(), 100).0, [(0, 7)]);
    assert_eq!(streams.stream("0").unwrap().committed("g", 0), Some(1));
    assert_eq!(disk.syncs() - before, 0);
    append(&streams, "0", 8);
    assert_eq!(disk.syncs() - before, 1, "the append");
    // After a crash the recorded state is ignored.
    for after in [CrashKind::Kill, CrashKind::PowerLoss] {
        let streams = begin(&disk.after(after), &clock);
        assert_eq!(read_all(&streams.stream("0").unwrap().partition(0).unwrap(), 100).0, [(0, 7), (1, 8)]);
        assert_eq!(streams.stream("0").unwrap().committed("g", 0), Some(1));
    }
}

#[test]
fn stream_is_created_with_four_syncs() {
    let (disk, clock) = (SimulatedDisk::new(1), ManualClock::default());
    let streams = begin(&disk, &clock);
    let before = disk.syncs();
    streams.create("s", &small()).unwrap();
    assert_eq!(disk.syncs() - before, 4);
}

fn commit(streams: &Streams, name: &str, offset: u64) {
    let mut stored = streams.stream(name).unwrap().commit("g", 0, offset).unwrap();
    while streams.work() {}
    assert!(matches!(poll(&mut stored, Durability::Disk), Some(Ok(_))));
}

#[test]
fn catalog_that_differs_from_the_files_is_ignored() {
    let file = "/log/streams/0/0/00000000000000000000.log";
    type Change = fn(&SimulatedDisk);
    let changes: [(&str, Change); 4] = [
        ("a shorter file", |disk| {
            let bytes = disk.files("/log/streams/0/0")[0].1 as u64;
            disk.open(Path::new("/log/streams/0/0/00000000000000000000.log"))
                .unwrap()
                .truncate(bytes - 1)
                .unwrap();
        }),
        ("a longer file", |disk| {
            let file = disk.open(Path::new("/log/streams/0/0/00000000000000000000.log")).unwrap();
            disk::append_all(&*file, &[bytes::Bytes::from_static(b"more")]).1.unwrap();
        }),
        ("the file of another stream, as long as its own", |disk| {
            let [from, to] = ["1", "0"].map(|name| format!("/log/streams/{name}/0/00000000000000000000.log"));
            let bytes = disk.open(Path::new(&from)).unwrap();
            let bytes = bytes.read_shared(0..bytes.bytes().unwrap()).unwrap();
            let file = disk.open(Path::new(&to)).unwrap();
            file.truncate(0).unwrap();
            disk::append_all(&*file, &[bytes]).1.unwrap();
        }),
        ("a file that is gone", |disk| {
            disk.remove(Path::new("/log/streams/0/0/00000000000000000000.log")).unwrap()
        }),
    ];
    for (what, change) in changes {
        let (disk, clock, streams) = in_use(2);
        append(&streams, "0", 8);
        append(&streams, "1", 8);
        streams.close();
        change(&disk);
        let streams = begin(&disk, &clock);
        let before = disk.syncs();
        let found = streams.find("0");
        assert!(disk.syncs() > before || streams.list_open().len() == 1, "{what}: the stream is recovered");
        if let Ok(Some(stream)) = found {
            append(&streams, "0", 9);
            let partition = stream.partition(0).unwrap();
            let last = read_all(&partition, 100).0.last().copied();
            assert_eq!(last.map(|last| last.1), Some(9), "{what}");
            let disk = disk.after(CrashKind::PowerLoss);
            let streams = begin(&disk, &clock);
            let again = streams.stream("0").unwrap().partition(0).unwrap();
            assert_eq!(read_all(&again, 100), read_all(&partition, 100), "{what}: {file}");
        }
    }
}

#[test]
fn created_stream_is_empty_and_complete_after_a_power_loss() {
    for seed in 0..100 {
        let (disk, clock) = (SimulatedDisk::new(seed), ManualClock::default());
        begin(&disk, &clock).create("s", &small()).unwrap();
        let disk = disk.after(CrashKind::PowerLoss);
        let (streams, losses) = open(&disk, StreamsConfig::default(), &clock).unwrap();
        assert_eq!(losses, [], "seed {seed}");
        append(&streams, "s", 7);
        assert_eq!(read_all(&streams.stream("s").unwrap().partition(0).unwrap(), 100).0, [(0, 7)]);
    }
}
