//! Tests of the bridges against real brokers, which they kill and freeze: `cargo xtask brokers` starts the brokers, and
//! passes their URL and control script.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sinews_brokers::connect;
use sinews_stream::broker::Broker;
use sinews_stream::record::{RecordBuilder, ValueKind};
use sinews_stream::{AppendError, Pending, StartPosition};

#[cfg(any(feature = "nats", feature = "redis"))]
use crate::broker::real::CountingProxy;
use crate::broker::real::{control, unused_name, url};
use crate::broker::{
    ConsumedRecord, LIMIT, Node, acked, decode_records, publish, publish_acked, publish_once, read, records,
    until, values, wait_for,
};

/// Records per append of the long test.
const BATCH: usize = 20;

fn broker(settings: &str) -> Arc<dyn Broker> {
    connect(&url(settings), &BTreeMap::new()).expect("the settings are known")
}

fn records_are_delivered_to_every_node(settings: &str) {
    let stream = unused_name("plain");
    let (one, two) = (broker(settings), broker(settings));
    assert_eq!(one.partitions(&stream).block(), Ok(1));
    let nodes = [Node::new(), Node::new()];
    let partitions = [nodes[0].partition(&stream, 0), nodes[1].partition(&stream, 0)];
    one.follow(&stream, 0, StartPosition::Earliest, partitions[0].clone());
    two.follow(&stream, 0, StartPosition::Earliest, partitions[1].clone());
    let mut builder = RecordBuilder::new();
    builder.push(1_700_000_000_123_000, b"ann", b"{\"n\":1}", ValueKind::Json).expect("small");
    builder.push(1_700_000_000_124_000, b"k\x00\xff", "äpfel".as_bytes(), ValueKind::Text).expect("small");
    builder.push(1_700_000_000_125_000, b"", b"\x00\r\n\xff", ValueKind::Bytes).expect("small");
    builder.push(1_700_000_000_125_000, b"ann", b"", ValueKind::Tombstone).expect("small");
    let mut pending = one.publish(&stream, 0, builder.finish().expect("four")).expect("room");
    let first = acked(&mut pending).expect("the broker takes them");
    assert_eq!(publish_acked(&*two, &stream, 0, &["five"]), first + 4);
    let all = read(&partitions[0], first, first + 5);
    assert_eq!(all, read(&partitions[1], first, first + 5));
    assert_eq!(
        all.iter().map(|record| record.offset).collect::<Vec<_>>(),
        (first..first + 5).collect::<Vec<_>>()
    );
    assert_eq!(
        all.iter().map(|record| &*record.key).collect::<Vec<_>>(),
        ["ann", "k\0\u{fffd}", "", "ann", ""]
    );
    assert_eq!(values(&all), ["{\"n\":1}", "äpfel", "\0\r\n\u{fffd}", "", "five"]);
    let kinds: Vec<_> = all.iter().map(|record| record.kind).collect();
    assert_eq!(
        kinds,
        [ValueKind::Json, ValueKind::Text, ValueKind::Bytes, ValueKind::Tombstone, ValueKind::Bytes]
    );
    assert_eq!(all[0].timestamp, 1_700_000_000_123_000);
    assert!(one.health().ready && two.health().ready);

    assert_eq!(one.offset_range(&stream, 0).block(), Ok((first, first + 5)));
    let old = one.fetch(&stream, 0, first + 1, 1 << 20).block().expect("it is there");
    assert_eq!(decode_records(&old.batches), all[1..]);
    assert_eq!(old.next, first + 5);
}

fn record_with_an_idempotency_key_is_stored_once(settings: &str) {
    let stream = unused_name("once");
    let (one, two) = (broker(settings), broker(settings));
    assert!(one.deduplicates());
    // Both at once, and a key that no header and no command may be confused by.
    let key = "order-7\r\n$1 'ä";
    let outcomes = thread::scope(|scope| {
        let publish = |broker: &Arc<dyn Broker>| {
            let (broker, stream) = (broker.clone(), &stream);
            scope.spawn(move || publish_once(&*broker, stream, key, "first"))
        };
        [publish(&one), publish(&two)].map(|thread| thread.join().expect("it is acknowledged"))
    });
    let first = outcomes[0].0;
    assert_eq!(outcomes[1].0, first);
    assert_ne!(outcomes[0].1, outcomes[1].1, "one of them is repeated");
    // A node that has a later record does not take the repeated offset for that of another stream.
    let node = Node::new();
    let partition = node.partition(&stream, 0);
    two.follow(&stream, 0, StartPosition::Earliest, partition.clone());
    assert_eq!(publish_once(&*one, &stream, "order-8", "second"), (first + 1, false));
    assert_eq!(values(&read(&partition, first, first + 2)), ["first", "second"]);
    assert_eq!(publish_once(&*two, &stream, key, "third"), (first, true));
    assert_eq!(publish_once(&*two, &stream, "order-9", "fourth"), (first + 2, false));
    assert_eq!(one.offset_range(&stream, 0).block(), Ok((first, first + 3)));
    // Each stream has its own keys.
    let other = unused_name("plain");
    assert_eq!(publish_once(&*one, &other, key, "elsewhere"), (first, false));
}

fn committed_offsets_are_stored_at_the_broker(settings: &str) {
    let stream = unused_name("groups");
    let one = broker(settings);
    publish_acked(&*one, &stream, 0, &["a", "b"]);
    assert_eq!(one.committed(&stream, 0, "readers").block(), Ok(None));
    assert_eq!(one.commit(&stream, 0, "readers", 2).block(), Ok(()));
    assert_eq!(broker(settings).committed(&stream, 0, "readers").block(), Ok(Some(2)));
    assert_eq!(one.committed(&stream, 0, "others").block(), Ok(None));
}

/// Old records are read by bytes: `fetch` brings about as many as it was asked for into this process.
#[cfg(any(feature = "nats", feature = "redis"))]
fn fetch_reads_about_the_requested_bytes(settings: &str) {
    const COUNT: usize = 40;
    let stream = unused_name("bytes");
    let broker = broker(settings);
    let value = "x".repeat(500 << 10);
    let appends: Vec<_> = (0..COUNT).map(|_| publish(&*broker, &stream, 0, &[&value])).collect();
    for mut append in appends {
        acked(&mut append).expect("the broker takes it");
    }
    let proxy = CountingProxy::start();
    let reader = connect(&proxy.url(settings), &BTreeMap::new()).expect("the settings are known");
    let found = reader.fetch(&stream, 0, 1, 1).block().expect("it is there");
    assert_eq!(found.next, 2);
    let received = proxy.received();
    assert!(received < 5 << 20, "{received} bytes");
    // Without any record, on a connection of its own: records of the fetch may be on their way.
    let range_proxy = CountingProxy::start();
    let range_reader = connect(&range_proxy.url(settings), &BTreeMap::new()).expect("the settings are known");
    assert_eq!(range_reader.offset_range(&stream, 0).block(), Ok((1, COUNT as u64 + 1)));
    assert!(range_proxy.received() < value.len() / 2, "{} bytes", range_proxy.received());
    // All of them, one after another.
    let mut next = 2;
    while next <= COUNT as u64 {
        let found = reader.fetch(&stream, 0, next, 1 << 20).block().expect("it is there");
        assert!(found.next > next && found.batches.len() < 2 << 20, "{}", found.batches.len());
        next = found.next;
    }
    assert!(proxy.received() - received < 3 * COUNT * value.len(), "{} bytes", proxy.received());
    // A follower reads ahead less than that.
    let (node, received) = (Node::new(), proxy.received());
    let partition = node.partition(&stream, 0);
    reader.follow(&stream, 0, StartPosition::Earliest, partition.clone());
    assert_eq!(read(&partition, 1, COUNT as u64 + 1).len(), COUNT);
    assert!(proxy.received() - received < 2 * COUNT * value.len(), "{} bytes", proxy.received());
}

/// Publishes records while the broker is killed, restarted, frozen and resumed. Acknowledged records are stored at the
/// reported offsets; with `exactly`, no record is stored twice.
fn nothing_acknowledged_is_lost(settings: &str, count: usize, exactly: bool) {
    let stream = unused_name("hard");
    let (writer, reader, node) = (broker(settings), broker(settings), Node::new());
    let partition = node.partition(&stream, 0);
    reader.follow(&stream, 0, StartPosition::Earliest, partition.clone());
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
            Err(AppendError::Busy) => {
                wait_for(Instant::now() + LIMIT, "room", |waker| writer.watch_queue_space(waker))
            }
            Err(error) => panic!("{error}"),
        }
        number += BATCH;
        if waiting.len() >= 500 {
            acknowledged.extend(waiting.drain(..).filter_map(answered));
        }
        if number >= count {
            // The faults continue: slow down.
            thread::park_timeout(Duration::from_millis(20));
        }
    }
    trouble.join().expect("the fault thread has not panicked");
    acknowledged.extend(waiting.drain(..).filter_map(answered));
    let last = publish_acked(&*writer, &stream, 0, &["last"]);
    check(&read(&partition, 0, last + 1), &acknowledged, number, exactly);
}

fn answered((number, mut pending): (usize, Pending)) -> Option<(usize, u64)> {
    acked(&mut pending).ok().map(|first| (number, first))
}

fn check(all: &[ConsumedRecord], acknowledged: &[(usize, u64)], sent: usize, exactly: bool) {
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
        assert_eq!(acknowledged.len() * BATCH, sent, "all records are acknowledged in the end");
        assert_eq!(times.values().filter(|times| **times > 1).count(), 0, "stored twice");
        assert_eq!(all.len(), sent + 2);
    }
}

/// Waits until a recreated stream is reported, and returns the error.
fn wait_for_recreation_error(broker: &dyn Broker, stream: &str) -> Arc<str> {
    let reason = || broker.health().error.unwrap_or_default();
    until("the recreated stream is reported", || !broker.health().ready && reason().contains("recreated"));
    assert!(reason().contains(stream), "{}", reason());
    reason()
}

fn assert_rejected(rejected: Result<(), AppendError>) {
    let Err(AppendError::Broker(reason)) = &rejected else { panic!("{rejected:?}") };
    assert!(reason.contains("recreated"), "{reason}");
}

/// `renew` empties the broker's stream and fills it with other records: appends invisible to readers of this node are
/// rejected, and the copy keeps its records. Other streams are unaffected.
fn recreated_stream_is_not_followed(settings: &str, counts: &[usize], renew: impl Fn(&str, usize)) {
    for &filled in counts {
        let (stream, other) = (unused_name("anew"), unused_name("other"));
        let (broker, node) = (broker(settings), Node::new());
        let partition = node.partition(&stream, 0);
        broker.follow(&stream, 0, StartPosition::Earliest, partition.clone());
        let first = publish_acked(&*broker, &stream, 0, &["a", "b", "c"]);
        assert_eq!(values(&read(&partition, 0, first + 3)), ["a", "b", "c"]);
        until("it is ready", || broker.health().ready);
        renew(&stream, filled);
        if filled > 0 {
            wait_for_recreation_error(&*broker, &stream);
        }
        assert_rejected(match broker.publish(&stream, 0, records(&["x"])) {
            Ok(mut pending) => acked(&mut pending).map(drop),
            Err(error) => Err(error),
        });
        wait_for_recreation_error(&*broker, &stream);
        assert_rejected(broker.publish(&stream, 0, records(&["y"])).map(drop));
        assert_eq!(values(&read(&partition, 0, first + 3)), ["a", "b", "c"]);
        assert_eq!(partition.offsets().next, first + 3);
        publish_acked(&*broker, &other, 0, &["z"]);
    }
}

/// The same while this node is stopped: the copy is of the deleted stream.
fn copy_of_a_deleted_stream_is_not_continued(settings: &str, renew: impl Fn(&str, usize)) {
    let (stream, node) = (unused_name("former"), Node::new());
    let partition = node.partition(&stream, 0);
    let before = broker(settings);
    before.follow(&stream, 0, StartPosition::Earliest, partition.clone());
    let first = publish_acked(&*before, &stream, 0, &["a", "b", "c"]);
    assert_eq!(values(&read(&partition, 0, first + 3)), ["a", "b", "c"]);
    drop(before);
    renew(&stream, 10);
    let after = broker(settings);
    after.follow(&stream, 0, StartPosition::Earliest, partition.clone());
    let reason = wait_for_recreation_error(&*after, &stream);
    assert!(reason.contains("another"), "{reason}");
    assert_eq!(partition.offsets().next, first + 3);
}

#[cfg(feature = "kafka")]
mod kafka {
    use std::cell::{Cell, RefCell};
    use std::task::{Context, Poll};
    use std::time::Instant;

    use rdkafka::ClientConfig;
    use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
    use rdkafka::client::DefaultClientContext;
    use rdkafka::types::RDKafkaErrorCode;

    use super::{LIMIT, broker, publish_acked, until, url, wait_for};

    sinews_testkit::tests! {
        ignore "needs a broker: cargo xtask brokers --only kafka":
        records_are_delivered_to_every_node => super::records_are_delivered_to_every_node("");
        committed_offsets_are_stored_at_the_broker => super::committed_offsets_are_stored_at_the_broker("");
        // librdkafka sends some records twice after some failures, see docs/book/src/server/brokers.md.
        nothing_acknowledged_is_lost => super::nothing_acknowledged_is_lost("reconnect.backoff.max.ms=500", 100_000, false);
        recreated_stream_is_not_followed => super::recreated_stream_is_not_followed("", &[0], renew);
        copy_of_a_deleted_stream_is_not_continued => super::copy_of_a_deleted_stream_is_not_continued("", renew);
    }

    /// Recreates the topic, as another node does.
    fn renew(stream: &str, filled: usize) {
        let hosts = url("").trim_start_matches("kafka://").trim_end_matches('?').to_owned();
        let admin: AdminClient<DefaultClientContext> =
            ClientConfig::new().set("bootstrap.servers", hosts).create().expect("a client");
        let options = AdminOptions::new().operation_timeout(Some(LIMIT)).request_timeout(Some(LIMIT));
        let deleted = block_on(admin.delete_topics(&[stream], &options)).expect("it answers");
        assert!(deleted.iter().all(Result::is_ok), "{deleted:?}");
        let topic = NewTopic::new(stream, 1, TopicReplication::Fixed(1));
        until("the topic is there again", || {
            let created = block_on(admin.create_topics([&topic], &options)).expect("it answers");
            matches!(created[..], [Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists))])
        });
        let other = broker("");
        for _ in 0..filled {
            publish_acked(&*other, stream, 0, &["another"]);
        }
    }

    fn block_on<T>(answer: impl Future<Output = T>) -> T {
        let answer = RefCell::new(Box::pin(answer));
        let output = Cell::new(None);
        wait_for(Instant::now() + LIMIT, "an answer", |waker| {
            match answer.borrow_mut().as_mut().poll(&mut Context::from_waker(waker)) {
                Poll::Ready(ready) => {
                    output.set(Some(ready));
                    true
                }
                Poll::Pending => false,
            }
        });
        output.into_inner().expect("it was ready")
    }
}

#[cfg(feature = "nats")]
mod nats {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpStream;
    use std::time::{Duration, Instant};

    use sinews_stream::StartPosition;

    use super::{Node, acked, broker, publish, publish_acked, until, unused_name, url};

    sinews_testkit::tests! {
        ignore "needs a broker: cargo xtask brokers --only nats":
        records_are_delivered_to_every_node => super::records_are_delivered_to_every_node("");
        record_with_an_idempotency_key_is_stored_once => super::record_with_an_idempotency_key_is_stored_once("");
        committed_offsets_are_stored_at_the_broker => super::committed_offsets_are_stored_at_the_broker("");
        nothing_acknowledged_is_lost_or_stored_twice => super::nothing_acknowledged_is_lost("", 20_000, true);
        fetch_reads_about_the_requested_bytes => super::fetch_reads_about_the_requested_bytes("");
        recreated_stream_is_not_followed => super::recreated_stream_is_not_followed("", &[0, 10], renew);
        copy_of_a_deleted_stream_is_not_continued => super::copy_of_a_deleted_stream_is_not_continued("", renew);
    }

    #[test]
    #[ignore = "needs a broker: cargo xtask brokers --only nats"]
    fn fetch_leaves_no_consumer() {
        let stream = unused_name("fetched");
        let broker = broker("");
        publish_acked(&*broker, &stream, 0, &["a", "b"]);
        let begun = Instant::now();
        for _ in 0..20 {
            assert_eq!(broker.fetch(&stream, 0, 1, 1).block().map(|read| read.next), Ok(2));
        }
        until("the consumers are deleted", || {
            request(&format!("$JS.API.STREAM.INFO.{stream}-0"), "").contains(r#""consumer_count":0"#)
        });
        assert!(begun.elapsed() < Duration::from_secs(20), "the server removes unused consumers after 30 s");
    }

    #[test]
    #[ignore = "needs a broker: cargo xtask brokers --only nats"]
    fn connection_without_an_append_is_ready() {
        let broker = broker("");
        until("it is ready", || broker.health().ready);
    }

    #[test]
    #[ignore = "needs a broker: cargo xtask brokers --only nats"]
    fn deleted_stream_is_reported_until_it_is_recreated() {
        let stream = unused_name("deleted");
        let (broker, node) = (broker(""), Node::new());
        broker.follow(&stream, 0, StartPosition::Earliest, node.partition(&stream, 0));
        publish_acked(&*broker, &stream, 0, &["a"]);
        until("it is ready", || broker.health().ready);
        request(&format!("$JS.API.STREAM.DELETE.{stream}-0"), "");
        let reason = || broker.health().error.unwrap_or_default();
        until("that is noticed", || !broker.health().ready && reason().contains("deleted"));
        assert!(reason().contains(&stream), "{}", reason());
        super::assert_rejected(acked(&mut publish(&*broker, &stream, 0, &["x"])).map(drop));
        super::wait_for_recreation_error(&*broker, &stream);
    }

    fn renew(stream: &str, filled: usize) {
        let name = format!("{stream}-0");
        request(&format!("$JS.API.STREAM.DELETE.{name}"), "");
        request(
            &format!("$JS.API.STREAM.CREATE.{name}"),
            &format!(r#"{{"name":"{name}","subjects":["{name}"]}}"#),
        );
        for _ in 0..filled {
            request(&name, "another");
        }
    }

    /// Sends a request to the server, and waits for its answer.
    fn request(subject: &str, body: &str) -> String {
        let url = url("");
        let address = url.trim_start_matches("nats://").trim_end_matches('?');
        let mut nats = BufReader::new(TcpStream::connect(address).expect("it is there"));
        let request = format!("PUB {subject} answers {}\r\n{body}\r\n", body.len());
        let connect = "CONNECT {\"verbose\":false}\r\nSUB answers 1\r\n";
        nats.get_mut().write_all((connect.to_owned() + &request).as_bytes()).expect("it is there");
        let mut line = String::new();
        while !line.starts_with("MSG ") {
            line.clear();
            assert!(nats.read_line(&mut line).expect("it answers") > 0, "{subject}");
        }
        line.clear();
        nats.read_line(&mut line).expect("it answers");
        assert!(!line.contains("\"error\""), "{subject}: {line}");
        line
    }
}

#[cfg(feature = "redis")]
mod redis {
    use std::time::{Duration, Instant};

    use sinews_stream::{AppendError, StartPosition};

    use super::{Node, acked, broker, publish, publish_acked, read, until, unused_name, values};
    use crate::broker::real::redis::command;

    sinews_testkit::tests! {
        ignore "needs a broker: cargo xtask brokers --only redis":
        records_are_delivered_to_every_node => super::records_are_delivered_to_every_node("");
        record_with_an_idempotency_key_is_stored_once => super::record_with_an_idempotency_key_is_stored_once("");
        committed_offsets_are_stored_at_the_broker => super::committed_offsets_are_stored_at_the_broker("");
        nothing_acknowledged_is_lost => super::nothing_acknowledged_is_lost("", 20_000, false);
        fetch_reads_about_the_requested_bytes => super::fetch_reads_about_the_requested_bytes("");
        stream_emptied_while_redis_runs_is_not_followed => super::recreated_stream_is_not_followed("", &[0, 10], renew);
        copy_of_a_deleted_stream_is_not_continued => super::copy_of_a_deleted_stream_is_not_continued("", renew);
    }

    /// Redis serves no other client while it runs a script.
    #[test]
    #[ignore = "needs a broker: cargo xtask brokers --only redis"]
    fn large_appends_do_not_fail_other_appends() {
        let (large, small) = (unused_name("large"), unused_name("small"));
        let broker = broker("");
        let batch = |count| vec![""; count];
        let rejected = broker.publish(&large, 0, super::records(&batch(10_001))).err();
        assert_eq!(rejected, Some(AppendError::TooManyRecords { count: 10_001, most: 10_000 }));
        let mut all: Vec<_> = (0..60).map(|_| publish(&*broker, &large, 0, &batch(10_000))).collect();
        all.extend((0..50).map(|_| publish(&*broker, &small, 0, &["x"])));
        for append in &mut all {
            acked(append).expect("Redis answers in time");
        }
        assert_eq!(broker.offset_range(&large, 0).block(), Ok((1, 600_001)));
    }

    #[test]
    #[ignore = "needs a broker: cargo xtask brokers --only redis"]
    fn id_of_another_program_is_an_error() {
        for id in ["5-3", "0-18446744073709551615"] {
            let stream = unused_name("foreign");
            let (broker, node) = (broker(""), Node::new());
            publish_acked(&*broker, &stream, 0, &["a", "b"]);
            command(&format!("XADD {stream}:0 {id} v foreign"));
            let fetched = broker.fetch(&stream, 0, 1, 1 << 20).block();
            assert!(fetched.as_ref().is_err_and(|error| error.to_string().contains(id)), "{fetched:?}");
            broker.follow(&stream, 0, StartPosition::Earliest, node.partition(&stream, 0));
            until("it is reported", || broker.health().error.is_some_and(|reason| reason.contains(id)));
            assert!(!broker.health().ready);
        }
    }

    /// Redis closes the connection of a slow subscriber, and drops its messages; other programs add to a stream without
    /// a message.
    #[test]
    #[ignore = "needs a broker: cargo xtask brokers --only redis"]
    fn lost_wakeup_message_costs_no_record() {
        let stream = unused_name("silent");
        let (broker, node) = (broker(""), Node::new());
        let partition = node.partition(&stream, 0);
        broker.follow(&stream, 0, StartPosition::Earliest, partition.clone());
        let first = publish_acked(&*broker, &stream, 0, &["heard"]);
        assert_eq!(values(&read(&partition, 0, first + 1)), ["heard"]);
        command("CLIENT KILL TYPE pubsub");
        publish_acked(&*broker, &stream, 0, &["lost"]);
        command(&format!("XADD {stream}:0 0-* v foreign"));
        assert_eq!(values(&read(&partition, 0, first + 3)), ["heard", "lost", "foreign"]);
        // The message of the second record announces no record before it.
        command(&format!("XADD {stream}:0 0-* v silent"));
        publish_acked(&*broker, &stream, 0, &["announced"]);
        assert_eq!(values(&read(&partition, first + 3, first + 5)), ["silent", "announced"]);
    }

    #[test]
    #[ignore = "needs a broker: cargo xtask brokers --only redis"]
    fn flushed_scripts_cost_no_append() {
        let stream = unused_name("flushed");
        let (broker, node) = (broker(""), Node::new());
        let partition = node.partition(&stream, 0);
        broker.follow(&stream, 0, StartPosition::Earliest, partition.clone());
        let first = publish_acked(&*broker, &stream, 0, &["one"]);
        for value in ["two", "three"] {
            command("SCRIPT FLUSH");
            publish_acked(&*broker, &stream, 0, &[value]);
        }
        assert_eq!(values(&read(&partition, first, first + 3)), ["one", "two", "three"]);
    }

    fn renew(stream: &str, filled: usize) {
        command("FLUSHALL");
        for _ in 0..filled {
            command(&format!("XADD {stream}:0 0-* v another"));
        }
    }

    #[test]
    #[ignore = "needs a broker: cargo xtask brokers --only redis"]
    fn redis_without_memory_is_not_ready_after_the_failure_timeout() {
        const TIMEOUT: Duration = Duration::from_secs(1);
        let (stream, broker) = (unused_name("full"), broker("failure.timeout.ms=1000"));
        publish_acked(&*broker, &stream, 0, &["taken"]);
        until("it is ready", || broker.health().ready);
        command("CONFIG SET maxmemory 1");
        let begun = Instant::now();
        until("that is reported", || {
            let refused = acked(&mut publish(&*broker, &stream, 0, &["refused"]));
            assert!(
                matches!(&refused, Err(AppendError::Broker(reason)) if reason.contains("maxmemory")),
                "{refused:?}"
            );
            !broker.health().ready
        });
        assert!(begun.elapsed() >= TIMEOUT);
        let reason = broker.health().error.unwrap_or_default();
        assert!(reason.contains("every append fails") && reason.contains("maxmemory"), "{reason}");
        command("CONFIG SET maxmemory 0");
        // The probe asks Redis whether it accepts appends again: no append is needed.
        until("it takes appends again", || broker.health().ready);
        publish_acked(&*broker, &stream, 0, &["taken again"]);
    }

    /// Removes the password, which other tests do not use.
    struct Unlock;

    impl Drop for Unlock {
        fn drop(&mut self) {
            command("AUTH secret\r\nCONFIG SET requirepass \"\"");
        }
    }

    #[test]
    #[ignore = "needs a broker: cargo xtask brokers --only redis"]
    fn redis_that_requires_a_password_is_not_ready_until_it_accepts_appends() {
        let (stream, broker) = (unused_name("locked"), broker(""));
        publish_acked(&*broker, &stream, 0, &["before"]);
        command("CONFIG SET requirepass secret");
        let unlocked = Unlock;
        command("AUTH secret\r\nCLIENT KILL TYPE normal SKIPME yes");
        let reason = || broker.health().error.unwrap_or_default();
        until("that is noticed", || !broker.health().ready && reason().contains("NOAUTH"));
        let refused = acked(&mut publish(&*broker, &stream, 0, &["refused"]));
        drop(unlocked);
        assert!(
            matches!(&refused, Err(AppendError::Broker(reason)) if reason.contains("NOAUTH")),
            "{refused:?}"
        );
        until("it is ready again", || broker.health().ready);
        publish_acked(&*broker, &stream, 0, &["after"]);
    }
}
