//! A broker in memory that several nodes share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use sinews_stream::broker::{BatchEncoder, Broker, BrokerResponder, BrokerResponse, FlushOutcome, LogSink};
use sinews_stream::record::{RecordBuilder, Records, ValueKind};
use sinews_stream::{AppendError, Durability, Partition, Pending, ReadResult, StartPosition};

use super::test_broker::{self, TestBroker};

/// Each node has a connection of its own.
#[derive(Clone, Default)]
pub(crate) struct MemoryBroker(Arc<Mutex<BTreeMap<String, StoredStream>>>);

#[derive(Default)]
struct StoredStream {
    /// Publications, and the offset of the first record of each.
    stored: Vec<(u64, Records)>,
    next: u64,
    sinks: Vec<LogSink>,
    /// Publish the last records again during the next fetch.
    repeats_at_fetch: bool,
    /// The queue is full for the next publication.
    rejects_next: bool,
    /// Fetches that have no answer yet, with their first offsets, while fetches are held.
    held: Option<Vec<(u64, BrokerResponder<ReadResult>)>>,
}

impl StoredStream {
    /// Calls a function for each record from an offset on.
    fn for_each(&self, from: u64, mut take: impl FnMut(&sinews_stream::record::Record<'_>)) {
        for (first, records) in &self.stored {
            for (offset, mut record) in (*first..).zip(records.iter().flatten()) {
                record.offset = offset;
                if offset >= from {
                    take(&record);
                }
            }
        }
    }

    /// The records from an offset on.
    fn batches(&self, from: u64) -> ReadResult {
        let mut batches = BatchEncoder::new(from);
        self.for_each(from, |record| batches.push(record));
        batches.finish()
    }

    fn append(&mut self, records: Records) -> Pending {
        let (first, (completer, pending)) = (self.next, Pending::channel(records.count()));
        self.next += u64::from(records.count());
        // The sinks of nodes that have ended take no more.
        self.sinks.retain_mut(|sink| {
            for (offset, mut record) in (first..).zip(records.iter().flatten()) {
                record.offset = offset;
                assert!(sink.push(&record));
            }
            sink.flush(Waker::noop()).is_ok()
        });
        self.stored.push((first, records));
        completer.reached(Durability::Broker, first);
        pending
    }
}

impl MemoryBroker {
    pub(crate) fn shared(&self) -> Arc<dyn Broker> {
        test_broker::whole(&Arc::new(self.clone()))
    }

    /// Publishes the last records of a stream again while a node fetches older ones.
    pub(crate) fn repeat_at_fetch(&self, stream: &str) {
        self.0.lock().unwrap().get_mut(stream).expect("the stream").repeats_at_fetch = true;
    }

    /// Rejects the next publication to a stream as if the queue had filled since it had space.
    pub(crate) fn reject_next(&self, stream: &str) {
        self.0.lock().unwrap().get_mut(stream).expect("the stream").rejects_next = true;
    }

    /// Answers no fetch of a stream until [`release_fetches`](Self::release_fetches).
    pub(crate) fn hold_fetches(&self, stream: &str) {
        self.0.lock().unwrap().get_mut(stream).expect("the stream").held = Some(Vec::new());
    }

    /// Answers the fetches of a stream.
    pub(crate) fn release_fetches(&self, stream: &str) {
        let mut streams = self.0.lock().unwrap();
        let stream = streams.get_mut(stream).expect("the stream");
        for (from, responder) in stream.held.take().expect("held fetches") {
            responder.send(Ok(stream.batches(from)));
        }
    }

    /// Writes a record as another program does.
    pub(crate) fn write(&self, stream: &str, key: &[u8], value: &str) {
        let mut builder = RecordBuilder::new();
        builder.push(1, key, value.as_bytes(), ValueKind::Json).unwrap();
        let records = builder.finish().expect("a record");
        self.0.lock().unwrap().get_mut(stream).expect("the stream").append(records);
    }

    /// The key of the last record of a stream.
    pub(crate) fn last_key(&self, stream: &str) -> Vec<u8> {
        let streams = self.0.lock().unwrap();
        let (_, records) = streams[stream].stored.last().expect("records");
        records.iter().flatten().last().expect("a record").key.to_vec()
    }

    /// Whether no fetch has come since [`repeat_at_fetch`](Self::repeat_at_fetch).
    pub(crate) fn repeats_at_fetch(&self, stream: &str) -> bool {
        self.0.lock().unwrap()[stream].repeats_at_fetch
    }
}

impl TestBroker for MemoryBroker {
    const FIRST_OFFSET: u64 = 0;

    fn publish(&self, stream: &str, records: Records) -> Result<Pending, AppendError> {
        let mut streams = self.0.lock().unwrap();
        let stream = streams.entry(stream.to_owned()).or_default();
        if std::mem::take(&mut stream.rejects_next) {
            return Err(AppendError::Busy);
        }
        Ok(stream.append(records))
    }

    fn follow(&self, stream: &str, from: StartPosition, sink: Partition) {
        let mut streams = self.0.lock().unwrap();
        let stream = streams.entry(stream.to_owned()).or_default();
        let mut sink = LogSink::new(sink);
        let from = match sink.start_position(from) {
            StartPosition::Offset(offset) => offset,
            StartPosition::Latest => stream.next,
            StartPosition::Earliest | StartPosition::Time(_) => 0,
        };
        stream.for_each(from, |record| assert!(sink.push(record)));
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        stream.sinks.push(sink);
    }

    fn fetch(&self, stream: &str, from: u64, _: usize) -> BrokerResponse<ReadResult> {
        let mut streams = self.0.lock().unwrap();
        let Some(stream) = streams.get_mut(stream) else {
            return BrokerResponse::ready(Ok(BatchEncoder::new(from).finish()));
        };
        if let Some(held) = &mut stream.held {
            let (responder, response) = BrokerResponse::channel();
            held.push((from, responder));
            return response;
        }
        let batches = stream.batches(from);
        if std::mem::take(&mut stream.repeats_at_fetch) {
            let (_, last) = stream.stored.last().expect("records").clone();
            stream.append(last);
        }
        BrokerResponse::ready(Ok(batches))
    }

    fn next_offset(&self, stream: &str) -> u64 {
        self.0.lock().unwrap().get(stream).map_or(0, |stream| stream.next)
    }

    fn streams(&self) -> Vec<String> {
        self.0.lock().unwrap().keys().cloned().collect()
    }
}
