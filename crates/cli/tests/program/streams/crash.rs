//! The server is killed at random times: acknowledged records survive, and a resuming reader receives each once.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Binary, records};
use crate::config::Directory;
use crate::support::Running;

/// Rounds with one kill each: SINEWS_TEST_CRASHES for more.
fn rounds() -> u64 {
    std::env::var("SINEWS_TEST_CRASHES").map_or(20, |rounds| rounds.parse().expect("a number of crashes"))
}

const PRODUCERS: u64 = 4;
const PARTITIONS: u16 = 2;

/// A number with its partition and offset.
type StoredNumber = ((u16, u64), u64);

/// Publishes unique numbers, several in flight, until the connection ends. Returns the acknowledged numbers.
fn produce(address: SocketAddr, producer: u64, first: u64) -> JoinHandle<Vec<StoredNumber>> {
    // Before the thread, which may run after the kill.
    let mut client = Binary::plain_at(address, "crash");
    std::thread::spawn(move || {
        let (mut acknowledged, mut next, mut awaited) = (Vec::new(), first, first);
        loop {
            while next < awaited + 16 {
                let number = (producer << 48 | next).to_le_bytes();
                let batch = records(&[&number]);
                if !client.try_send_message(1, 2, (next % u64::from(PARTITIONS)) as u16, next as u32, &batch)
                {
                    return acknowledged;
                }
                next += 1;
            }
            let Some(answer) = client.try_receive_message() else { return acknowledged };
            assert_eq!(answer.op, 129, "{answer:?}");
            acknowledged.push(((answer.partition, answer.number(0)), producer << 48 | u64::from(answer.id)));
            awaited += 1;
        }
    })
}

/// Reads on from its offsets until the connection ends.
fn consume(address: SocketAddr, mut places: Vec<u64>) -> (JoinHandle<Vec<u64>>, Receiver<StoredNumber>) {
    let (sender, received) = channel();
    let mut client = Binary::plain_at(address, "crash");
    let thread = std::thread::spawn(move || {
        for partition in 0..PARTITIONS {
            let next: u64 = places[usize::from(partition)];
            let body = [&[2, 0, 0, 0, 0, 0, 0, 0][..], &next.to_le_bytes()].concat();
            // The server may have been killed.
            client.try_send_message(2, 0, partition, u32::from(partition), &body);
        }
        while let Some(received) = client.try_receive_message() {
            if received.op != 131 {
                assert_eq!(received.op, 130, "{received:?}");
                continue;
            }
            for (offset, value) in received.records() {
                let next = &mut places[usize::from(received.partition)];
                assert_eq!(offset, *next, "no gap and no duplicate");
                *next += 1;
                let number = u64::from_le_bytes(value.try_into().unwrap());
                let _ = sender.send(((received.partition, offset), number));
            }
        }
        places
    });
    (thread, received)
}

#[test]
fn acknowledged_records_survive_kills_of_the_server() {
    let directory = Directory::new();
    let path = directory.path("streams");
    let partitions = PARTITIONS.to_string();
    let arguments = |fsync| {
        let listen = ["--streams", &path, "--streams-listen", "127.0.0.1:0"];
        [&listen[..], &["--streams-partitions", &partitions, "--streams-fsync", fsync]].concat()
    };
    let (mut acknowledged, mut received) = (BTreeMap::new(), BTreeMap::new());
    let mut places = vec![0; PARTITIONS.into()];
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for round in 0..rounds() {
        // Written records survive without a sync, too; with io_uring, the server's workers write them.
        let mut server = Running::serve(&arguments(["batch", "never", "5ms"][round as usize % 3]));
        let address = server.plain();
        let producers: Vec<_> =
            (0..PRODUCERS).map(|producer| produce(address, producer, round * 1_000_000)).collect();
        let (consumer, receiver) = consume(address, places.clone());
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // A random number of records, so that the kill is in the middle of the work at any speed.
        let until = Instant::now() + Duration::from_secs(20);
        let mut wanted = random % 600;
        while wanted > 0
            && let Ok((place, number)) =
                receiver.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            assert_eq!(received.insert(place, number), None, "duplicate record");
            wanted -= 1;
        }
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        for producer in producers {
            acknowledged.extend(producer.join().unwrap());
        }
        places = consumer.join().unwrap();
        for (place, number) in receiver {
            assert_eq!(received.insert(place, number), None, "duplicate record");
        }
    }
    assert!(!acknowledged.is_empty());
    // A last reader from the beginning, and the resuming reader.
    let server = Running::serve(&arguments("batch"));
    let all = read_all(server.plain());
    for (place, number) in &acknowledged {
        assert_eq!(all.get(place), Some(number), "acknowledged at {place:?}");
    }
    for (place, number) in &received {
        assert_eq!(all.get(place), Some(number), "received at {place:?}");
    }
    let mut numbers: Vec<u64> = all.values().copied().collect();
    let count = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), count, "no duplicates");
}

/// All records, by partition.
fn read_all(address: SocketAddr) -> BTreeMap<(u16, u64), u64> {
    let mut all = BTreeMap::new();
    let mut client = Binary::plain_at(address, "crash");
    for partition in 0..PARTITIONS {
        let mut next = 0_u64;
        loop {
            let body = [&next.to_le_bytes()[..], &1_000_000_u32.to_le_bytes()].concat();
            client.send_message(3, 0, partition, 1, &body);
            let found = client.receive_message().records();
            if found.is_empty() {
                break;
            }
            for (offset, value) in found {
                assert_eq!(offset, next);
                next += 1;
                all.insert((partition, offset), u64::from_le_bytes(value.try_into().unwrap()));
            }
        }
    }
    all
}
