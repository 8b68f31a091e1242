//! A node whose copy of a broker's stream is written by [`Streams::work`] alone.

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;
use sinews_server::{BoundServer, Router, Server};
use sinews_stream::broker::{BatchEncoder, BrokerResponse, FlushOutcome, LogSink};
use sinews_stream::record::{Record, ValueKind};
use sinews_stream::{
    AppendError, Partition, Pending, ReadResult, StartPosition, StreamConfig, Streams, StreamsConfig,
};
use tempfile::TempDir;

use super::super::block_on::block_on;
use super::super::follow;
use super::super::options::CreationRules;
use super::super::service::{StreamPatterns, StreamService};
use super::super::test_broker::{self, TestBroker};
use super::super::topic_history::stored_history;
use super::*;
use crate::hub::encodings;
use crate::model::encoding::MESSAGES;
use crate::model::history::HistoryRange;

/// The offset of the first record that is published here.
const FIRST: u64 = 7;

/// A broker whose records a test pushes.
#[derive(Default)]
struct PushedRecords(Mutex<Option<Partition>>);

impl TestBroker for PushedRecords {
    const FIRST_OFFSET: u64 = 1;

    fn publish(&self, _: &str, _: Records) -> Result<Pending, AppendError> {
        Err(AppendError::Busy)
    }

    fn follow(&self, _: &str, _: StartPosition, sink: Partition) {
        *self.0.lock() = Some(sink);
    }

    fn fetch(&self, _: &str, from: u64, _: usize) -> BrokerResponse<ReadResult> {
        BrokerResponse::ready(Ok(BatchEncoder::new(from).finish()))
    }

    fn next_offset(&self, _: &str) -> u64 {
        FIRST
    }
}

struct Node {
    store: Arc<StreamService>,
    streams: Streams,
    sink: LogSink,
    partition: Partition,
    hub: Arc<HubTopics>,
    server: BoundServer,
    _directory: TempDir,
}

impl Node {
    /// A node that follows the topic, and does not publish its records yet.
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = StreamsConfig::default().with_writers(0);
        let (streams, _) = Streams::open(directory.path(), config).unwrap();
        let patterns = StreamPatterns { topics: vec!["t".to_owned()].into(), ..StreamPatterns::default() };
        let broker = Arc::new(PushedRecords::default());
        let rules = CreationRules::default();
        let shared = Some(test_broker::whole(&broker));
        let store =
            StreamService::new(StreamConfig::default(), patterns, 1 << 20, shared, rules, Default::default());
        // An opening would wait for a writer.
        streams.create("t", &StreamConfig::default()).unwrap();
        store.install(streams.clone());
        block_on(store.opening_of_topic("t").unwrap()).unwrap();
        let partition = broker.0.lock().clone().unwrap();
        let hub = Arc::new(HubTopics::default().with_encodings(encodings(&Arc::default())));
        hub.count_subscriber(MESSAGES);
        let server = Server::new(Router::new()).listen("127.0.0.1:0".parse().unwrap()).threads(1);
        let server = server.topic_rule(follow::rule(MESSAGES, "t")).bind().unwrap();
        let sink = LogSink::new(partition.clone());
        Self { store, streams, sink, partition, hub, server, _directory: directory }
    }

    fn started() -> Self {
        let node = Self::new();
        node.start();
        node
    }

    fn start(&self) {
        self.store.topics().start(self.hub.clone(), self.server.publisher()).unwrap();
    }

    /// Appends one batch for each record.
    fn push(&mut self, offsets: impl IntoIterator<Item = u64>) {
        for offset in offsets {
            self.push_batch([offset]);
        }
    }

    fn push_batch(&mut self, offsets: impl IntoIterator<Item = u64>) {
        for offset in offsets {
            let value = offset.to_string();
            let kind = ValueKind::Text;
            assert!(self.sink.push(&Record {
                offset,
                timestamp: 1,
                key: b"",
                value: value.as_bytes(),
                kind
            }));
        }
        assert_eq!(self.sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
    }

    /// Writes the copy.
    fn write(&self) {
        while self.streams.work() {}
    }

    fn readable(&self) -> u64 {
        self.partition.offsets().readable
    }

    /// The last published offsets, in order.
    fn published(&self) -> Vec<u64> {
        let topics = self.server.publisher().histories();
        let messages = topics.into_iter().flat_map(|topic| topic.messages);
        let text = |message: sinews_server::Prepared| String::from_utf8(message.payload().to_vec()).unwrap();
        let value = |text: String| -> Value { serde_json::from_str(&text).unwrap() };
        messages
            .map(|message| value(text(message.message)))
            .inspect(|message| {
                let offset: u64 = message["data"].as_str().unwrap().parse().unwrap();
                assert_eq!(message["seq"], offset + 1);
            })
            .map(|message| message["seq"].as_u64().unwrap() - 1)
            .collect()
    }

    /// Writes until these offsets are published.
    fn wait_for(&self, offsets: impl IntoIterator<Item = u64>) {
        let expected: Vec<u64> = offsets.into_iter().collect();
        let end = Instant::now() + Duration::from_secs(60);
        while self.published() != expected {
            assert!(Instant::now() < end, "{:?}", self.published());
            self.write();
            std::thread::yield_now();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.store.close();
        self.store.topics().finish();
    }
}

#[test]
fn records_are_published_before_the_copy_of_the_node_has_them() {
    let mut node = Node::started();
    node.push(FIRST..FIRST + 3);
    assert_eq!((node.published(), node.readable()), ((FIRST..FIRST + 3).collect(), 0));
    // Offsets may have gaps, which end what the server below retains.
    node.push([20, 21]);
    assert_eq!((node.published(), node.readable()), (vec![20, 21], 0));
    // The copy has them later, and nothing is published again.
    node.streams.close();
    assert_eq!(node.readable(), 22);
    node.store.topics().finish();
    assert_eq!(node.published(), [20, 21]);
}

#[test]
fn records_behind_unpublished_ones_keep_their_order() {
    let mut node = Node::new();
    node.push(FIRST..FIRST + 3);
    node.start();
    // These records wait for the relay, which reads the earlier ones from the log.
    node.push(FIRST + 3..FIRST + 5);
    assert!(node.published().is_empty());
    node.wait_for(FIRST..FIRST + 5);
    // Once all are published, the next ones need no log.
    node.push(FIRST + 5..FIRST + 7);
    assert_eq!((node.published(), node.readable()), ((FIRST..FIRST + 7).collect(), FIRST + 5));
    // The relay takes over again, and is woken for that.
    node.store.topics().feed().take();
    node.push([FIRST + 7]);
    node.wait_for(FIRST..FIRST + 8);
}

#[test]
fn records_that_the_log_accepts_again_are_published_once() {
    let mut node = Node::started();
    node.hub.count_dashboard(true);
    node.push_batch(FIRST..FIRST + 2);
    let relay = node.store.topic_relay("t").unwrap().unwrap();
    let mut builder = sinews_stream::record::RecordBuilder::new();
    for offset in FIRST..FIRST + 2 {
        builder.push(1, b"", offset.to_string().as_bytes(), ValueKind::Text).unwrap();
    }
    RelayFeed::new(node.store.topics(), &relay).accepted(FIRST, &builder.finish().unwrap());
    node.push([FIRST + 2]);
    assert_eq!(node.published(), [FIRST, FIRST + 1, FIRST + 2]);
    // The server below ignores a repeated position, but not in topics without history.
    assert_eq!(node.hub.take_rates(1), [("t".to_owned(), 3)]);
}

/// The log is readable before it reports its records: the relay may publish them meanwhile.
#[test]
fn records_that_the_relay_has_published_are_not_published_again() {
    let mut node = Node::started();
    node.hub.count_dashboard(true);
    *node.store.topic_relay("t").unwrap().unwrap().progress() = FIRST + 1;
    node.push_batch(FIRST..FIRST + 2);
    assert_eq!(node.published(), [FIRST + 1]);
    assert_eq!(node.hub.take_rates(1), [("t".to_owned(), 1)]);
}

#[test]
fn history_waits_for_published_records() {
    let mut node = Node::started();
    node.push(FIRST..FIRST + 3);
    let range = HistoryRange::Last { count: 10, before: None };
    let history = stored_history(node.store.clone(), "t".to_owned(), range);
    let mut history = Box::pin(history);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(history.as_mut().poll(&mut cx).is_pending());
    node.write();
    let Poll::Ready(Ok(read)) = history.as_mut().poll(&mut cx) else { panic!("the records are written") };
    let messages: Vec<Value> = serde_json::from_str(&format!("[{}]", read.messages)).unwrap();
    let sequences = messages.iter().map(|message| message["seq"].as_u64().unwrap());
    assert!(sequences.eq(FIRST + 1..FIRST + 4) && read.complete);
}

#[test]
fn copy_is_written_when_the_node_ends() {
    let mut node = Node::started();
    node.push(FIRST..FIRST + 3);
    node.store.close();
    assert_eq!(node.readable(), FIRST + 3);
}
