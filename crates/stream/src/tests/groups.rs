//! Where groups go on.

use std::sync::mpsc;

use super::{One, open, poll};
use crate::disk::simulated::{After, Fault, Simulated};
use crate::{AppendError, CommitError, Durability, StreamConfig, StreamsConfig};

fn bytes(one: &One) -> usize {
    let files = one.disk.files("/log/streams/s");
    files.iter().find(|(name, _)| name == "groups.log").unwrap().1
}

#[test]
fn the_last_word_counts_and_stays() {
    let one = One::new(&StreamConfig::default().partitions(3));
    let mut pending = Vec::new();
    for offset in 0..10 {
        pending.push(one.stream.commit("a", 0, offset).unwrap());
        pending.push(one.stream.commit("b", 2, offset * 2).unwrap());
    }
    // Not before it is stored.
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
    assert!(one.stream.forget("a").unwrap().is_some() && one.stream.forget("c").unwrap().is_none());
    one.work();
    let (one, _) = one.reopen(true);
    assert_eq!((one.stream.groups(), one.stream.committed("a", 0)), (vec!["b".to_owned()], None));
}

#[test]
fn offset_whose_sync_failed_is_durable_once_the_next_process_tells_it() {
    for seed in 0..20 {
        let one = One::on(Simulated::new(seed), StreamsConfig::default(), &StreamConfig::default());
        one.stream.commit("group", 0, 1).unwrap();
        one.work();
        // The write, its sync, and the cut.
        one.disk.plan(2, Fault::Failure);
        one.disk.plan(3, Fault::Crash);
        one.stream.commit("group", 0, 2).unwrap();
        one.work();
        let disk = one.disk.after(After::Kill);
        let (streams, _) = open(&disk, StreamsConfig::default(), &one.hand).unwrap();
        let told = streams.stream("s").unwrap().committed("group", 0);
        assert!(matches!(told, Some(1 | 2)), "seed {seed}: {told:?}");
        drop(streams);
        let (streams, losses) =
            open(&disk.after(After::PowerLoss), StreamsConfig::default(), &one.hand).unwrap();
        let stored = streams.stream("s").unwrap().committed("group", 0);
        assert_eq!((losses, stored), (vec![], told), "seed {seed}");
    }
}

#[test]
fn most_of_what_is_old_goes() {
    let one = One::new(&StreamConfig::default());
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
fn a_group_is_forgotten_with_what_is_not_stored_yet() {
    let one = One::new(&StreamConfig::default().partitions(3));
    one.stream.commit("group", 0, 1).unwrap();
    one.work();
    one.stream.commit("group", 1, 1).unwrap();
    let mut forgotten = one.stream.forget("group").unwrap().unwrap();
    one.work();
    assert_eq!((poll(&mut forgotten, Durability::Disk), one.stream.groups()), (Some(Ok(0)), vec![]));
    // The same while it is being written.
    let mut commit = one.stream.commit("group", 2, 1).unwrap();
    let (sender, forgotten) = mpsc::channel();
    let stream = one.stream.clone();
    one.disk.meanwhile(1, move || sender.send(stream.forget("group").unwrap()).unwrap());
    one.work();
    assert_eq!(poll(&mut commit, Durability::Disk), Some(Ok(1)));
    let mut forgotten = forgotten.recv().unwrap().expect("something is on its way");
    assert_eq!((poll(&mut forgotten, Durability::Disk), one.stream.groups()), (Some(Ok(0)), vec![]));
    let (one, losses) = one.reopen(true);
    assert_eq!((losses, one.stream.groups()), (vec![], vec![]));
}

#[test]
fn a_shortage_while_the_file_is_written_anew_passes() {
    let group = "g".repeat(255);
    // The file is created, written, synced and given its name, and then its directory is synced.
    for call in 1..=5 {
        let one = One::new(&StreamConfig::default());
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
        one.disk.plan(call, Fault::Shortage);
        let stored = commit(offset + 1);
        // What is written to the new file must not be lost with its name.
        assert_eq!(stored, if call == 5 { Err(AppendError::NoSpace) } else { Ok(offset + 1) }, "{call}");
        assert_eq!(commit(offset + 2), Ok(offset + 2));
        assert_eq!(bytes(&one) < 1000, call == 5, "{call}");
        // What is lost is different each time.
        for _ in 0..10 {
            let disk = one.disk.after(After::PowerLoss);
            let (streams, losses) = open(&disk, StreamsConfig::default(), &one.hand).unwrap();
            let stream = streams.stream("s").unwrap();
            assert_eq!((losses, stream.committed(&group, 0)), (vec![], Some(offset + 2)), "{call}");
        }
    }
}

#[test]
fn names_and_numbers_have_limits() {
    let one = One::on(Simulated::new(1), StreamsConfig::default().max_groups(2), &StreamConfig::default());
    let commit = |group: &str, partition| one.stream.commit(group, partition, 1).map(|_| ());
    assert_eq!(commit("", 0), Err(CommitError::Name));
    assert_eq!(commit(&"g".repeat(256), 0), Err(CommitError::Name));
    assert_eq!(commit("a", 1), Err(CommitError::Partition));
    assert_eq!((commit(&"g".repeat(255), 0), commit("b", 0)), (Ok(()), Ok(())));
    assert_eq!(commit("c", 0), Err(CommitError::TooMany));
    one.work();
    one.stream.forget("b").unwrap();
    one.work();
    assert_eq!(commit("c", 0), Ok(()));
    one.streams.close();
    assert_eq!(commit("c", 0), Err(CommitError::Append(AppendError::Closed)));
    assert_eq!(one.stream.committed("c", 0), Some(1));
}

#[test]
fn a_full_disk_and_a_failure() {
    let one = One::new(&StreamConfig::default());
    one.disk.set_room(Some(10));
    let mut pending = one.stream.commit("a", 0, 1).unwrap();
    one.work();
    assert_eq!(poll(&mut pending, Durability::Disk), Some(Err(AppendError::NoSpace)));
    assert_eq!((bytes(&one), one.stream.groups().len()), (0, 0));
    one.disk.set_room(None);
    let mut pending = one.stream.commit("a", 0, 2).unwrap();
    one.work();
    assert_eq!(poll(&mut pending, Durability::Disk), Some(Ok(2)));
    one.disk.plan(2, Fault::Failure);
    let mut pending = one.stream.commit("a", 0, 3).unwrap();
    one.work();
    assert!(matches!(poll(&mut pending, Durability::Disk), Some(Err(AppendError::Failed(_)))));
    assert!(matches!(one.stream.commit("a", 0, 4), Err(CommitError::Append(AppendError::Failed(_)))));
    assert_eq!(one.stream.committed("a", 0), Some(2));
    // Records do not care.
    one.fill(0..1, 8);
}

#[test]
fn damage_is_named_and_takes_little() {
    const FILE: &str = "/log/streams/s/groups.log";
    for (at, stored) in [(40, [None, Some(1), Some(2)]), (200, [Some(0), Some(1), None])] {
        let one = One::new(&StreamConfig::default().partitions(3));
        for partition in 0..3 {
            one.stream.commit("group", partition, partition.into()).unwrap();
            one.work();
        }
        // Each is a batch of 32 + 20 + 5 + 12 bytes.
        assert_eq!(bytes(&one), 3 * 69);
        one.disk.damage(FILE, at);
        let disk = one.disk.after(After::Kill);
        let (streams, losses) = open(&disk, StreamsConfig::default(), &one.hand).unwrap();
        assert!(losses.len() == 1 && losses[0].partition.is_none(), "{losses:?}");
        let stream = streams.stream("s").unwrap();
        assert_eq!([0, 1, 2].map(|partition| stream.committed("group", partition)), stored);
        stream.commit("group", 0, 7).unwrap();
        while streams.work() {}
        drop((streams, stream));
        let (streams, losses) = open(&disk, StreamsConfig::default(), &one.hand).unwrap();
        let stream = streams.stream("s").unwrap();
        assert_eq!(
            (losses, stream.committed("group", 0), stream.committed("group", 1)),
            (vec![], Some(7), Some(1))
        );
    }
}
