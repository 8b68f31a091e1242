//! The bridges opposite brokers that are really there, which these tests kill and freeze: `cargo xtask brokers` starts
//! them, and says where they are and which script controls them.

#![cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]

mod broker;
#[path = "broker/real.rs"]
mod real;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sinews_stream::broker::{Broker, connect};
use sinews_stream::record::{Kind, RecordBuilder};
use sinews_stream::{AppendError, Pending, Start};

use broker::{LIMIT, Node, Seen, acked, publish_acked, read, records, until, values, wait_for};
use real::{control, unused, url};

/// Records in one append of the long test.
const BATCH: usize = 20;

fn broker(settings: &str) -> Arc<dyn Broker> {
    connect(&url(settings), &BTreeMap::new()).expect("the settings are known")
}

fn records_come_back_on_every_node(settings: &str) {
    let stream = unused("plain");
    let (one, two) = (broker(settings), broker(settings));
    assert_eq!(one.partitions(&stream).block(), Ok(1));
    let nodes = [Node::new(), Node::new()];
    let partitions = [nodes[0].partition(&stream, 0), nodes[1].partition(&stream, 0)];
    one.follow(&stream, 0, Start::Earliest, partitions[0].clone());
    two.follow(&stream, 0, Start::Earliest, partitions[1].clone());
    let mut builder = RecordBuilder::new();
    builder.push(1_700_000_000_123_000, b"ann", b"{\"n\":1}", Kind::Json).expect("small");
    builder.push(1_700_000_000_124_000, b"k\x00\xff", "äpfel".as_bytes(), Kind::Text).expect("small");
    builder.push(1_700_000_000_125_000, b"", b"\x00\r\n\xff", Kind::Bytes).expect("small");
    let mut pending = one.publish(&stream, 0, builder.finish().expect("three")).expect("room");
    let first = acked(&mut pending).expect("the broker takes them");
    assert_eq!(publish_acked(&*two, &stream, 0, &["four"]), first + 3);
    let all = read(&partitions[0], first, first + 4);
    assert_eq!(all, read(&partitions[1], first, first + 4));
    assert_eq!(
        all.iter().map(|record| record.offset).collect::<Vec<_>>(),
        (first..first + 4).collect::<Vec<_>>()
    );
    assert_eq!(all.iter().map(|record| &*record.key).collect::<Vec<_>>(), ["ann", "k\0\u{fffd}", "", ""]);
    assert_eq!(values(&all), ["{\"n\":1}", "äpfel", "\0\r\n\u{fffd}", "four"]);
    let kinds: Vec<_> = all.iter().map(|record| record.kind).collect();
    assert_eq!(kinds, [Kind::Json, Kind::Text, Kind::Bytes, Kind::Bytes]);
    assert_eq!(all[0].timestamp, 1_700_000_000_123_000);
    assert!(one.health().ready && two.health().ready);

    assert_eq!(one.ends(&stream, 0).block(), Ok((first, first + 4)));
    let old = one.fetch(&stream, 0, first + 1, 1 << 20).block().expect("it is there");
    assert_eq!(broker::seen(&old.batches), all[1..]);
    assert_eq!(old.next, first + 4);
}

fn groups_are_kept(settings: &str) {
    let stream = unused("groups");
    let one = broker(settings);
    publish_acked(&*one, &stream, 0, &["a", "b"]);
    assert_eq!(one.committed(&stream, 0, "readers").block(), Ok(None));
    assert_eq!(one.commit(&stream, 0, "readers", 2).block(), Ok(()));
    assert_eq!(broker(settings).committed(&stream, 0, "readers").block(), Ok(Some(2)));
    assert_eq!(one.committed(&stream, 0, "others").block(), Ok(None));
}

/// Publishes much while the broker is killed, started again, frozen and let go. What was acknowledged is there, at the
/// offset that was named; `exactly` says that nothing is there twice either.
fn nothing_acknowledged_is_lost(settings: &str, count: usize, exactly: bool) {
    let stream = unused("hard");
    let (writer, reader, node) = (broker(settings), broker(settings), Node::new());
    let partition = node.partition(&stream, 0);
    reader.follow(&stream, 0, Start::Earliest, partition.clone());
    publish_acked(&*writer, &stream, 0, &["first"]);
    until("it is ready", || writer.health().ready);

    let trouble = thread::spawn({
        let writer = writer.clone();
        move || {
            control("kill");
            until("that is noticed", || !writer.health().ready);
            control("up");
            until("it is ready again", || writer.health().ready);
            control("stop");
            until("that is noticed", || !writer.health().ready);
            control("cont");
            until("it is ready once more", || writer.health().ready);
        }
    });
    let mut acknowledged = Vec::new();
    let mut waiting: Vec<(usize, Pending)> = Vec::new();
    let mut number = 0;
    while number < count || !trouble.is_finished() {
        let batch: Vec<String> = (number..number + BATCH).map(|number| number.to_string()).collect();
        let batch: Vec<&str> = batch.iter().map(String::as_str).collect();
        match writer.publish(&stream, 0, records(&batch)) {
            Ok(pending) => waiting.push((number, pending)),
            Err(AppendError::Busy) => wait_for(Instant::now() + LIMIT, "room", |waker| writer.room(waker)),
            Err(error) => panic!("{error}"),
        }
        number += BATCH;
        if waiting.len() >= 500 {
            acknowledged.extend(waiting.drain(..).filter_map(answered));
        }
        if number >= count {
            // The trouble is not over: slowly from here on.
            thread::park_timeout(Duration::from_millis(20));
        }
    }
    trouble.join().expect("the broker came back");
    acknowledged.extend(waiting.drain(..).filter_map(answered));
    let last = publish_acked(&*writer, &stream, 0, &["last"]);
    check(&read(&partition, 0, last + 1), &acknowledged, number, exactly);
}

fn answered((number, mut pending): (usize, Pending)) -> Option<(usize, u64)> {
    acked(&mut pending).ok().map(|first| (number, first))
}

fn check(all: &[Seen], acknowledged: &[(usize, u64)], sent: usize, exactly: bool) {
    let by_offset: BTreeMap<u64, &str> = all.iter().map(|record| (record.offset, &*record.value)).collect();
    for (number, first) in acknowledged {
        assert_eq!(by_offset.get(first), Some(&&*number.to_string()), "at the offset that was acknowledged");
    }
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for record in all {
        *times.entry(&record.value).or_default() += 1;
    }
    let batches = acknowledged.iter().map(|(number, _)| *number);
    let lost = batches
        .flat_map(|from| from..from + BATCH)
        .filter(|number| !times.contains_key(&*number.to_string()));
    assert_eq!(lost.count(), 0, "acknowledged and lost");
    if exactly {
        assert_eq!(acknowledged.len() * BATCH, sent, "all was acknowledged in the end");
        assert_eq!(times.values().filter(|times| **times > 1).count(), 0, "stored twice");
        assert_eq!(all.len(), sent + 2);
    }
}

#[cfg(feature = "kafka")]
mod kafka {
    #[test]
    #[ignore = "needs a broker: cargo xtask brokers --only kafka"]
    fn records_come_back_on_every_node() {
        super::records_come_back_on_every_node("");
    }

    #[test]
    #[ignore = "needs a broker: cargo xtask brokers --only kafka"]
    fn groups_are_kept() {
        super::groups_are_kept("");
    }

    #[test]
    #[ignore = "needs a broker: cargo xtask brokers --only kafka"]
    fn nothing_acknowledged_is_lost() {
        // librdkafka sends some of it twice after some failures, see docs/brokers.md.
        super::nothing_acknowledged_is_lost("reconnect.backoff.max.ms=500", 100_000, false);
    }
}

#[cfg(feature = "nats")]
mod nats {
    #[test]
    #[ignore = "needs a broker: cargo xtask brokers --only nats"]
    fn records_come_back_on_every_node() {
        super::records_come_back_on_every_node("");
    }

    #[test]
    #[ignore = "needs a broker: cargo xtask brokers --only nats"]
    fn groups_are_kept() {
        super::groups_are_kept("");
    }

    #[test]
    #[ignore = "needs a broker: cargo xtask brokers --only nats"]
    fn nothing_acknowledged_is_lost_or_stored_twice() {
        super::nothing_acknowledged_is_lost("", 20_000, true);
    }
}

#[cfg(feature = "redis")]
mod redis {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpStream;

    use sinews_stream::Start;

    use super::{Node, broker, publish_acked, read, unused, url, values};

    #[test]
    #[ignore = "needs a broker: cargo xtask brokers --only redis"]
    fn records_come_back_on_every_node() {
        super::records_come_back_on_every_node("");
    }

    #[test]
    #[ignore = "needs a broker: cargo xtask brokers --only redis"]
    fn groups_are_kept() {
        super::groups_are_kept("");
    }

    #[test]
    #[ignore = "needs a broker: cargo xtask brokers --only redis"]
    fn nothing_acknowledged_is_lost() {
        super::nothing_acknowledged_is_lost("", 20_000, false);
    }

    /// Redis closes the connection of a subscriber that is slow, and drops what it was to get; others add to a stream
    /// without a message.
    #[test]
    #[ignore = "needs a broker: cargo xtask brokers --only redis"]
    fn a_message_that_is_lost_costs_no_record() {
        let stream = unused("silent");
        let (broker, node) = (broker(""), Node::new());
        let partition = node.partition(&stream, 0);
        broker.follow(&stream, 0, Start::Earliest, partition.clone());
        let first = publish_acked(&*broker, &stream, 0, &["heard"]);
        assert_eq!(values(&read(&partition, 0, first + 1)), ["heard"]);
        say("CLIENT KILL TYPE pubsub");
        publish_acked(&*broker, &stream, 0, &["lost"]);
        say(&format!("XADD {stream}:0 0-* v foreign"));
        assert_eq!(values(&read(&partition, 0, first + 3)), ["heard", "lost", "foreign"]);
    }

    fn say(command: &str) {
        let url = url("");
        let address = url.trim_start_matches("redis://").trim_end_matches('?');
        let mut redis = TcpStream::connect(address).expect("it is there");
        redis.write_all(format!("{command}\r\n").as_bytes()).expect("it is there");
        let mut answer = String::new();
        BufReader::new(redis).read_line(&mut answer).expect("it answers");
        assert!(!answer.starts_with('-'), "{command}: {answer}");
    }
}
