//! Tests of the bridge to Kafka against librdkafka's mock cluster, which runs in this process and retains 5 MB per
//! partition.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use sinews_brokers::connect;
use sinews_stream::broker::{Broker, BrokerError};
use sinews_stream::record::{RecordBuilder, ValueKind};
use sinews_stream::{AppendError, StartPosition};

use crate::broker::operations::{OPERATIONS, Operation};
use crate::broker::{
    LIMIT, Node, acked, decode_records, publish, publish_acked, read, records, until, values, wait_for,
};

struct Cluster {
    mock: MockCluster<'static, DefaultProducerContext>,
}

impl Cluster {
    fn new(brokers: i32) -> Self {
        Self { mock: MockCluster::new(brokers).expect("loopback has ports") }
    }

    /// One broker with a topic.
    fn with_topic(name: &str, partitions: i32) -> Self {
        let cluster = Self::new(1);
        cluster.topic(name, partitions);
        cluster
    }

    fn connect(&self, settings: &str) -> Arc<dyn Broker> {
        let hosts = self.mock.bootstrap_servers();
        // Shorter backoffs than the defaults, so that tests do not wait.
        let url = format!("kafka://{hosts}?reconnect.backoff.max.ms=200&retry.backoff.ms=20&{settings}");
        connect(&url, &BTreeMap::new()).expect("the settings are known")
    }

    /// A topic whose partitions are on the first broker.
    fn topic(&self, name: &str, partitions: i32) {
        self.mock.create_topic(name, partitions, 1).expect("it is new");
    }
}

#[test]
fn records_are_delivered_unchanged_with_kafka_offsets() {
    let cluster = Cluster::with_topic("orders", 2);
    let (broker, node) = (cluster.connect(""), Node::new());
    let partition = node.partition("orders", 1);
    broker.follow("orders", 1, StartPosition::Earliest, partition.clone());

    let mut builder = RecordBuilder::new();
    builder.push(1_700_000_000_123_456, b"ann", b"{\"n\":1}", ValueKind::Json).expect("small");
    builder.push(1_700_000_000_124_000, b"", "äpfel".as_bytes(), ValueKind::Text).expect("small");
    builder.push(1_700_000_000_125_000, b"bob", b"", ValueKind::Bytes).expect("small");
    let mut pending = broker.publish("orders", 1, builder.finish().expect("three")).expect("room");
    assert_eq!(acked(&mut pending), Ok(0));
    assert_eq!(pending.count(), 3);
    assert_eq!(publish_acked(&*broker, "orders", 1, &["four"]), 3);

    let all = read(&partition, 0, 4);
    assert_eq!(all.iter().map(|record| record.offset).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(values(&all), ["{\"n\":1}", "äpfel", "", "four"]);
    assert_eq!(all.iter().map(|record| &*record.key).collect::<Vec<_>>(), ["ann", "", "bob", ""]);
    let kinds: Vec<_> = all.iter().map(|record| record.kind).collect();
    assert_eq!(kinds, [ValueKind::Json, ValueKind::Text, ValueKind::Bytes, ValueKind::Bytes]);
    // Kafka stores milliseconds.
    assert_eq!((all[0].timestamp, all[1].timestamp), (1_700_000_000_123_000, 1_700_000_000_124_000));
}

#[test]
fn two_nodes_see_the_same_records_and_a_restarted_node_resumes() {
    let cluster = Cluster::with_topic("news", 1);
    let (one, two) = (Node::new(), Node::new());
    let partitions = [one.partition("news", 0), two.partition("news", 0)];
    let first = cluster.connect("");
    first.follow("news", 0, StartPosition::Earliest, partitions[0].clone());
    {
        let second = cluster.connect("");
        second.follow("news", 0, StartPosition::Earliest, partitions[1].clone());
        publish_acked(&*first, "news", 0, &["a", "b"]);
        publish_acked(&*second, "news", 0, &["c"]);
        assert_eq!(read(&partitions[0], 0, 3), read(&partitions[1], 0, 3));
        second.close(LIMIT);
    }
    publish_acked(&*first, "news", 0, &["d", "e"]);
    let second = cluster.connect("");
    // Stored records are not read again.
    second.follow("news", 0, StartPosition::Earliest, partitions[1].clone());
    publish_acked(&*second, "news", 0, &["f"]);
    for partition in &partitions {
        assert_eq!(values(&read(partition, 0, 6)), ["a", "b", "c", "d", "e", "f"]);
    }
}

#[test]
fn following_from_the_end_or_a_time_delivers_later_records() {
    let cluster = Cluster::with_topic("late", 1);
    let broker = cluster.connect("");
    publish_acked(&*broker, "late", 0, &["a", "b"]);
    let node = Node::new();
    let partition = node.partition("late", 0);
    broker.follow("late", 0, StartPosition::Latest, partition.clone());
    // Following begins when the broker has reported its end offset; a few records may precede that.
    let mut next = 0;
    until("the first record arrives", || {
        publish_acked(&*broker, "late", 0, &["c"]);
        partition.offsets().next > 0
    });
    for record in read(&partition, 0, 0) {
        assert!(record.offset >= 2 && record.offset >= next, "{record:?}");
        assert_eq!(record.value, "c");
        next = record.offset + 1;
    }
    let offset = Node::new();
    let partition = offset.partition("late", 0);
    let other = cluster.connect("");
    other.follow("late", 0, StartPosition::Offset(1), partition.clone());
    assert_eq!(values(&read(&partition, 0, 2)[..1]), ["b"]);
    assert_eq!(partition.offsets().earliest, 1);
}

#[test]
fn broker_errors_are_retried_and_records_are_stored_once() {
    use RDKafkaRespErr::{
        RD_KAFKA_RESP_ERR__TRANSPORT as DISCONNECT,
        RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE as LEADER_NOT_AVAILABLE,
        RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS as NOT_ENOUGH_REPLICAS,
        RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION as NOT_LEADER,
        RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT as TIMED_OUT,
    };
    let cluster = Cluster::with_topic("hard", 1);
    let (broker, node) = (cluster.connect(""), Node::new());
    let partition = node.partition("hard", 0);
    broker.follow("hard", 0, StartPosition::Earliest, partition.clone());
    let errors = [NOT_LEADER, TIMED_OUT, DISCONNECT, NOT_ENOUGH_REPLICAS, LEADER_NOT_AVAILABLE, DISCONNECT];
    cluster.mock.request_errors(RDKafkaApiKey::Produce, &errors);
    cluster.mock.request_errors(RDKafkaApiKey::Fetch, &[NOT_LEADER, DISCONNECT]);
    let sent: Vec<String> = (0..200).map(|number| number.to_string()).collect();
    let mut pending: Vec<_> = sent.iter().map(|value| publish(&*broker, "hard", 0, &[value])).collect();
    for (offset, pending) in pending.iter_mut().enumerate() {
        assert_eq!(acked(pending), Ok(offset as u64));
    }
    assert_eq!(values(&read(&partition, 0, 200)), sent);
}

#[test]
fn publisher_gets_no_offset_that_the_broker_did_not_report() {
    let duplicate = RDKafkaRespErr::RD_KAFKA_RESP_ERR_DUPLICATE_SEQUENCE_NUMBER;
    let cluster = Cluster::with_topic("twice", 1);
    let broker = cluster.connect("linger.ms=500");
    assert_eq!(publish_acked(&*broker, "twice", 0, &["before"; 10]), 0);
    // The answer of a broker that already has the records, from before a lost connection. This broker has other records
    // at the same offsets.
    cluster.mock.request_errors(RDKafkaApiKey::Produce, &[duplicate]);
    let sent = ["d", "e", "f", "g"];
    let mut pending: Vec<_> = sent.iter().map(|value| publish(&*broker, "twice", 0, &[value])).collect();
    let answers: Vec<_> = pending.iter_mut().map(acked).collect();
    let refused = |answer: &_| matches!(answer, Err(AppendError::Broker(reason)) if reason.contains("where"));
    assert!(refused(&answers[0]), "{answers:?}");
    // Usually all records were sent together; later records have offsets.
    let told = sent.iter().zip(&answers).filter(|(_, answer)| !refused(answer));
    let last = publish_acked(&*broker, "twice", 0, &["h"]);
    let stored = broker.fetch("twice", 0, 0, 1 << 20).block().expect("it is there");
    let stored = decode_records(&stored.batches);
    for (value, offset) in told.map(|(value, answer)| (*value, answer.clone())).chain([("h", Ok(last))]) {
        let offset = offset.expect("it was stored");
        assert!(stored.iter().any(|it| it.offset == offset && it.value == value), "{value} at {offset}");
    }
}

#[test]
fn moved_partition_leader_is_followed() {
    let cluster = Cluster::new(3);
    cluster.mock.create_topic("moving", 1, 3).expect("it is new");
    let (broker, node) = (cluster.connect("topic.metadata.refresh.interval.ms=500"), Node::new());
    let partition = node.partition("moving", 0);
    broker.follow("moving", 0, StartPosition::Earliest, partition.clone());
    let mut sent = Vec::new();
    for round in 0..6 {
        cluster.mock.partition_leader("moving", 0, Some(round % 3 + 1)).expect("there are three");
        for number in 0..20 {
            sent.push(format!("{round}.{number}"));
            publish_acked(&*broker, "moving", 0, &[sent.last().expect("just put there")]);
        }
    }
    assert_eq!(values(&read(&partition, 0, 120)), sent);
}

#[test]
fn queue_is_bounded_while_the_broker_is_down_and_delivered_afterwards() {
    let cluster = Cluster::with_topic("down", 1);
    let (broker, node) = (cluster.connect("queue.buffering.max.messages=100"), Node::new());
    let partition = node.partition("down", 0);
    broker.follow("down", 0, StartPosition::Earliest, partition.clone());
    publish_acked(&*broker, "down", 0, &["before"]);
    until("it is ready", || broker.health().ready);

    cluster.mock.broker_down(-1).expect("it is there");
    until("that is noticed", || !broker.health().ready);
    assert!(broker.health().error.is_some());
    let mut pending = Vec::new();
    let busy = loop {
        match broker.publish("down", 0, records(&[&pending.len().to_string()])) {
            Ok(one) => pending.push(one),
            Err(error) => break error,
        }
        assert!(pending.len() <= 100, "the queue is not bounded");
    };
    assert_eq!((busy, pending.len()), (AppendError::Busy, 100));
    assert_eq!(broker.health().waiting, 100);

    cluster.mock.broker_up(-1).expect("it is there");
    wait_for(Instant::now() + LIMIT, "room", |waker| broker.watch_queue_space(waker));
    for (place, pending) in pending.iter_mut().enumerate() {
        assert_eq!(acked(pending), Ok(place as u64 + 1));
    }
    until("it is ready again", || broker.health().ready);
    assert_eq!(broker.health().waiting, 0);
    assert_eq!(publish_acked(&*broker, "down", 0, &["after"]), 101);
    assert_eq!(read(&partition, 0, 102).len(), 102);
}

#[test]
fn append_larger_than_the_queue_is_accepted_as_a_whole() {
    let cluster = Cluster::with_topic("wide", 1);
    let (broker, node) = (cluster.connect("queue.buffering.max.messages=10"), Node::new());
    let partition = node.partition("wide", 0);
    broker.follow("wide", 0, StartPosition::Earliest, partition.clone());
    let sent: Vec<String> = (0..95).map(|number| number.to_string()).collect();
    let all: Vec<&str> = sent.iter().map(String::as_str).collect();
    let mut first = broker.publish("wide", 0, records(&all)).expect("room");
    // No append overtakes the rest of the first one.
    let mut second = publish(&*broker, "wide", 0, &["behind"]);
    assert_eq!((acked(&mut first), acked(&mut second)), (Ok(0), Ok(95)));
    assert_eq!(values(&read(&partition, 0, 96)), [&all[..], &["behind"]].concat());
}

#[test]
fn append_with_an_oversized_record_is_rejected_as_a_whole() {
    let cluster = Cluster::with_topic("small", 1);
    let broker = cluster.connect("message.max.bytes=2000");
    let large = "x".repeat(2000);
    let error = broker.publish("small", 0, records(&["fits", &large])).expect_err("it is larger");
    assert_eq!(error, AppendError::TooLarge { most: 2000 });
    let error = broker.publish("no/topic", 0, records(&["a"])).expect_err("no legal name");
    assert!(error.to_string().contains("`no/topic` is not a valid Kafka topic"), "{error}");
    // The first offset: no record was stored before.
    assert_eq!(publish_acked(&*broker, "small", 0, &["a"]), 0);
    let refused = broker.publish("small", 7, records(&["a"])).and_then(|mut pending| acked(&mut pending));
    assert!(matches!(refused, Err(AppendError::Broker(_))), "{refused:?}");
}

#[test]
fn old_records_are_fetched_and_removed_records_are_reported_as_gone() {
    let cluster = Cluster::with_topic("old", 1);
    let broker = cluster.connect("");
    assert_eq!(broker.partitions("old").block(), Ok(1));
    let kilobyte = "x".repeat(1000);
    for _ in 0..70 {
        publish_acked(&*broker, "old", 0, &[&*kilobyte; 100]);
    }
    let (earliest, next) = broker.offset_range("old", 0).block().expect("it is there");
    assert_eq!(next, 7000);
    assert!(earliest > 0, "the cluster keeps 5 MB");
    assert_eq!(
        broker.fetch("old", 0, 0, 1).block().map(|read| read.next),
        Err(BrokerError::Gone { earliest })
    );

    let mut from = earliest;
    while from < next {
        let read = broker.fetch("old", 0, from, 300_000).block().expect("it is there");
        let offsets: Vec<u64> = decode_records(&read.batches).iter().map(|record| record.offset).collect();
        assert_eq!(offsets, (from..read.next).collect::<Vec<_>>());
        from = read.next;
    }
    let end = broker.fetch("old", 0, next, 1000).block().expect("an empty result is no error");
    assert_eq!((end.batches.len(), end.next), (0, next));
    let again = broker.fetch("old", 0, next - 1, 1).block().expect("it is there");
    assert_eq!(decode_records(&again.batches).len(), 1);
}

#[test]
fn committed_offsets_are_visible_on_another_connection() {
    let cluster = Cluster::with_topic("work", 2);
    let one = cluster.connect("");
    publish_acked(&*one, "work", 0, &["a", "b", "c"]);
    assert_eq!(one.committed("work", 0, "readers").block(), Ok(None));
    let commits: Vec<_> = (1..=3).map(|offset| one.commit("work", 0, "readers", offset)).collect();
    for commit in commits {
        assert_eq!(commit.block(), Ok(()));
    }
    assert_eq!(one.commit("work", 1, "readers", 7).block(), Ok(()));
    let two = cluster.connect("");
    assert_eq!(two.committed("work", 0, "readers").block(), Ok(Some(3)));
    assert_eq!(two.committed("work", 1, "readers").block(), Ok(Some(7)));
    assert_eq!(two.committed("work", 0, "others").block(), Ok(None));
}

#[test]
fn groups_in_turn_do_not_replace_the_clients_of_groups_in_use() {
    let cluster = Cluster::with_topic("many", 1);
    let broker = cluster.connect("");
    publish_acked(&*broker, "many", 0, &["a"]);
    let commit = |number: u32| broker.commit("many", 0, &format!("g{number}"), 1).block();
    for number in 0..32 {
        assert_eq!(commit(number), Ok(()));
    }
    let rejected = commit(32);
    assert!(
        matches!(&rejected, Err(BrokerError::Failed(reason)) if reason.contains("32 other groups")),
        "{rejected:?}"
    );
    assert_eq!(commit(0), Ok(()));
}

#[test]
fn tombstone_is_a_message_without_a_value() {
    let cluster = Cluster::with_topic("removed", 1);
    let broker = cluster.connect("");
    let mut builder = RecordBuilder::new();
    builder.push(1_700_000_000_125_000, b"ann", b"", ValueKind::Tombstone).expect("small");
    builder.push(1_700_000_000_125_000, b"ann", b"", ValueKind::Bytes).expect("small");
    let mut pending = broker.publish("removed", 0, builder.finish().expect("two")).expect("room");
    assert_eq!(acked(&mut pending), Ok(0));
    let read = broker.fetch("removed", 0, 0, 1 << 20).block().expect("it is there");
    let kinds: Vec<_> = decode_records(&read.batches).iter().map(|record| record.kind).collect();
    assert_eq!(kinds, [ValueKind::Tombstone, ValueKind::Bytes]);
}

#[test]
fn rejection_of_one_topic_does_not_change_readiness() {
    use RDKafkaRespErr::{
        RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP as INVALID_TIMESTAMP,
        RD_KAFKA_RESP_ERR_POLICY_VIOLATION as POLICY_VIOLATION,
        RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED as TOPIC_DENIED,
    };
    let cluster = Cluster::with_topic("one", 1);
    let broker = cluster.connect("failure.timeout.ms=0");
    until("it is ready", || broker.health().ready);
    for error in [INVALID_TIMESTAMP, POLICY_VIOLATION, TOPIC_DENIED] {
        cluster.mock.request_errors(RDKafkaApiKey::Produce, &[error]);
        let rejected = acked(&mut publish(&*broker, "one", 0, &["a"]));
        assert!(matches!(rejected, Err(AppendError::Broker(_))), "{rejected:?}");
        assert!(broker.health().ready, "{error:?}");
    }
}

/// Requests that librdkafka sends for an operation. Its mock cluster rejects no metadata, and it continues without versions
/// of requests.
#[test]
fn each_rejected_request_ends_its_operations_and_no_other() {
    use Operation::{Append, Commit, Committed, Fetch, Follow, FollowFromTime, Range};
    use RDKafkaRespErr::{
        RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED as CLUSTER_DENIED,
        RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED as GROUP_DENIED,
        RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED as TOPIC_DENIED,
    };
    let cases: [(RDKafkaApiKey, RDKafkaRespErr, &[Operation]); 7] = [
        (RDKafkaApiKey::Produce, TOPIC_DENIED, &[Append]),
        (RDKafkaApiKey::Fetch, TOPIC_DENIED, &[Fetch, Follow, FollowFromTime]),
        (RDKafkaApiKey::ListOffsets, TOPIC_DENIED, &[Fetch, Range, Follow, FollowFromTime]),
        (RDKafkaApiKey::OffsetCommit, GROUP_DENIED, &[Commit]),
        (RDKafkaApiKey::OffsetFetch, GROUP_DENIED, &[Committed]),
        (RDKafkaApiKey::FindCoordinator, GROUP_DENIED, &[Commit, Committed]),
        (RDKafkaApiKey::InitProducerId, CLUSTER_DENIED, &[Append]),
    ];
    for (request, error, expected) in cases {
        let cluster = Cluster::new(1);
        let before = cluster.connect("");
        for topic in ["s", "t"] {
            cluster.topic(topic, 1);
            assert_eq!(publish_acked(&*before, topic, 0, &["a", "b", "c"]), 0);
        }
        before.close(LIMIT);
        cluster.mock.request_errors(request, &[error; 2_000]);
        for operation in OPERATIONS {
            // The mock cluster finds no offset by time: it is the stream's end, unless the request is rejected.
            if operation == FollowFromTime && !expected.contains(&operation) {
                continue;
            }
            // The node stays until the store's health is read: following into a closed log is an error, too.
            let (store, node) = (cluster.connect(""), Node::new());
            let failed = operation.run(&*store, &node).err();
            assert_eq!(
                failed.is_some(),
                expected.contains(&operation),
                "{request:?}, {operation:?}: {failed:?}"
            );
            let Some(reason) = failed else {
                let error = store.health().error;
                // A producer requests its id, and reports the rejection, without an append.
                let is_known = error.as_ref().is_none_or(|error| {
                    matches!(request, RDKafkaApiKey::InitProducerId)
                        && error.contains("authorization failed")
                        && error.contains("the documentation of brokers")
                });
                assert!(is_known, "{request:?}, {operation:?}: {error:?}");
                continue;
            };
            assert!(reason.contains("authorization failed"), "{request:?}, {operation:?}: {reason}");
            assert!(reason.contains("the documentation of brokers"), "{request:?}, {operation:?}: {reason}");
        }
        cluster.mock.clear_request_errors(request);
        let end = cluster.connect("").offset_range("s", 0).block().expect("it is permitted").1;
        assert_eq!(end, 3 + u64::from(!expected.contains(&Append)), "{request:?}");
    }
}

#[test]
fn each_operation_of_a_denied_group_names_the_right() {
    let cluster = Cluster::with_topic("denied", 1);
    let denied = RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED;
    cluster.mock.request_errors(RDKafkaApiKey::FindCoordinator, &[denied; 2_000]);
    let broker = cluster.connect("");
    let commit = || broker.commit("denied", 0, "g", 1).block();
    // The client reports the denial once.
    for _ in 0..2 {
        let rejected = commit().map_err(|error| error.to_string());
        assert!(
            rejected.as_ref().is_err_and(|reason| reason.contains("Group authorization failed")),
            "{rejected:?}"
        );
    }
    cluster.mock.clear_request_errors(RDKafkaApiKey::FindCoordinator);
    until("the group is permitted", || commit().is_ok());
}

#[test]
fn permanently_failed_producer_is_replaced() {
    let cluster = Cluster::with_topic("again", 1);
    let denied = RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED;
    cluster.mock.request_errors(RDKafkaApiKey::InitProducerId, &[denied]);
    let broker = cluster.connect("");
    until("it has failed for good", || broker.health().error.is_some());
    until("another takes its place", || {
        let taken = broker.publish("again", 0, records(&["a"]));
        taken.and_then(|mut pending| acked(&mut pending)).is_ok()
    });
}

#[test]
fn close_waits_for_pending_appends_and_fails_the_rest() {
    let cluster = Cluster::with_topic("end", 1);
    let broker = cluster.connect("linger.ms=50");
    let mut pending = publish(&*broker, "end", 0, &["a", "b"]);
    broker.close(LIMIT);
    assert_eq!(acked(&mut pending), Ok(0));
    assert_eq!(broker.publish("end", 0, records(&["c"])).err(), Some(AppendError::Closed));
    assert_eq!(broker.offset_range("end", 0).block(), Err(BrokerError::Closed));

    let broker = cluster.connect("");
    until("it is ready", || broker.health().ready);
    cluster.mock.broker_down(-1).expect("it is there");
    let mut pending = publish(&*broker, "end", 0, &["d"]);
    broker.close(Duration::ZERO);
    assert!(matches!(acked(&mut pending), Err(AppendError::Broker(_))));
}
