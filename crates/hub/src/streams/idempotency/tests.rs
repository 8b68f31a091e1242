//! Two nodes at a broker that does not deduplicate, and whose copies lag behind.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sinews_stream::broker::{BatchEncoder, BrokerResponse};
use sinews_stream::record::{Record, Records, ValueKind};
use sinews_stream::{
    AppendError, Durability, Partition, Pending, ReadResult, StartPosition, StreamConfig, Streams,
    StreamsConfig,
};
use tempfile::TempDir;

use super::super::block_on::block_on;
use super::super::options::CreationRules;
use super::super::test_broker::{self, TestBroker};
use super::*;
use crate::model::MessageContent;
use crate::streams::service::StreamPatterns;
use crate::streams::topic_append::append_to_topic;

/// Key, value and time of a record.
type StoredRecord = (Vec<u8>, Vec<u8>, u64);

/// Records by offset.
#[derive(Default)]
struct SharedRecords(Mutex<Vec<StoredRecord>>);

impl TestBroker for SharedRecords {
    const FIRST_OFFSET: u64 = 0;

    fn publish(&self, _: &str, records: Records) -> Result<Pending, AppendError> {
        let mut all = self.0.lock();
        let (completer, pending) = Pending::channel(records.count());
        let first = all.len() as u64;
        for record in records.iter().flatten() {
            all.push((record.key.to_vec(), record.value.to_vec(), record.timestamp));
        }
        completer.reached(Durability::Broker, first);
        Ok(pending)
    }

    fn follow(&self, _: &str, _: StartPosition, _: Partition) {}

    fn fetch(&self, _: &str, from: u64, max_bytes: usize) -> BrokerResponse<ReadResult> {
        let mut batches = BatchEncoder::new(from);
        for (offset, (key, value, timestamp)) in (0..).zip(&*self.0.lock()) {
            if offset >= from && batches.len() < max_bytes {
                let (timestamp, kind) = (*timestamp, ValueKind::Text);
                batches.push(&Record { offset, timestamp, key, value, kind });
            }
        }
        BrokerResponse::ready(Ok(batches.finish()))
    }

    fn next_offset(&self, _: &str) -> u64 {
        self.0.lock().len() as u64
    }
}

struct Node {
    store: Arc<StreamService>,
    _directory: TempDir,
}

impl Node {
    fn new(broker: Option<&Arc<SharedRecords>>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (streams, _) = Streams::open(directory.path(), StreamsConfig::default()).unwrap();
        let patterns = StreamPatterns { topics: vec!["t".to_owned()].into(), ..StreamPatterns::default() };
        let rules = CreationRules::default();
        let store = StreamService::new(
            StreamConfig::default(),
            patterns,
            1 << 20,
            broker.map(test_broker::whole),
            rules,
            Default::default(),
        );
        store.install(streams);
        Self { store, _directory: directory }
    }

    fn publish(&self, key: Option<&str>) -> u64 {
        let content = MessageContent::Text("x".into());
        block_on(append_to_topic(&self.store, "t", content, key, Rights::all())).unwrap().sequence
    }

    /// Idempotency keys and sequences that are read.
    fn read(&self) -> Vec<(String, u64)> {
        let records =
            block_on(Arc::clone(&self.store).read_keys("t".to_owned(), Rights::all())).unwrap().unwrap();
        records.remember(&Arc::default());
        assert!(records.publications.iter().all(|record| record.age < Duration::from_secs(300)));
        records.publications.into_iter().map(|record| (record.idempotency_key, record.sequence)).collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.store.close();
    }
}

fn entry(key: &str, sequence: u64) -> (String, u64) {
    (key.to_owned(), sequence)
}

#[test]
fn publications_of_another_node_are_read_from_the_broker() {
    let broker = Arc::new(SharedRecords::default());
    let [one, two] = [(); 2].map(|()| Node::new(Some(&broker)));
    assert_eq!(two.read(), []);
    assert_eq!((one.publish(Some("a")), one.publish(None), one.publish(Some("b"))), (1, 2, 3));
    assert!(two.store.must_read_keys("t"), "other nodes publish, too");
    assert_eq!(two.read(), [entry("a", 1), entry("b", 3)]);
    assert_eq!((two.read(), one.publish(Some("c"))), (Vec::new(), 4));
    assert_eq!(two.read(), [entry("c", 4)]);
    // A node that starts later.
    assert_eq!(Node::new(Some(&broker)).read(), [entry("a", 1), entry("b", 3), entry("c", 4)]);
}

#[test]
fn only_the_last_records_are_read() {
    let broker = Arc::new(SharedRecords::default());
    let one = Node::new(Some(&broker));
    one.publish(Some("first"));
    let plain = (Vec::new(), b"x".to_vec(), 0);
    broker.0.lock().extend(std::iter::repeat_n(plain, RECORDS_MAX as usize - 2));
    one.publish(Some("last"));
    assert_eq!(Node::new(Some(&broker)).read(), [entry("last", RECORDS_MAX), entry("first", 1)]);
    one.publish(None);
    assert_eq!(Node::new(Some(&broker)).read(), [entry("last", RECORDS_MAX)]);
}

#[test]
fn log_of_one_node_is_read_once() {
    let node = Node::new(None);
    assert!(node.store.must_read_keys("t"));
    assert_eq!(node.publish(Some("a")), 1);
    assert_eq!(node.read(), [entry("a", 1)]);
    assert!(!node.store.must_read_keys("t"));
}
