//! Where groups go on.

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
