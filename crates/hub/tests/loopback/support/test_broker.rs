//! Brokers of tests: each implements the part that its test observes.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use sinews_stream::broker::{Broker, BrokerError, BrokerHealth, BrokerResponse};
use sinews_stream::record::Records;
use sinews_stream::{AppendError, Partition, Pending, ReadResult, StartPosition};

/// A broker with space in its queue, streams of one partition, and no groups.
pub(crate) trait TestBroker: Send + Sync {
    /// The offset of the first record of a stream.
    const FIRST_OFFSET: u64;

    fn publish(&self, stream: &str, records: Records) -> Result<Pending, AppendError>;

    fn follow(&self, stream: &str, from: StartPosition, sink: Partition);

    fn fetch(&self, stream: &str, from: u64, max_bytes: usize) -> BrokerResponse<ReadResult>;

    /// The offset of the next record of a stream.
    fn next_offset(&self, stream: &str) -> u64;

    /// The committed offset of a group.
    fn committed(&self, _group: &str) -> Option<u64> {
        None
    }

    fn streams(&self) -> Vec<String> {
        Vec::new()
    }

    fn close(&self) {}
}

/// The broker as the streams know it.
pub(crate) fn whole(broker: &Arc<impl TestBroker + 'static>) -> Arc<dyn Broker> {
    Arc::new(WholeBroker(Arc::clone(broker)))
}

struct WholeBroker<B>(Arc<B>);

impl<B: TestBroker> Broker for WholeBroker<B> {
    fn publish(&self, stream: &str, _: u32, records: Records) -> Result<Pending, AppendError> {
        self.0.publish(stream, records)
    }

    fn has_queue_space(&self, _: &[&Records]) -> bool {
        true
    }

    fn watch_queue_space(&self, _: &Waker) -> bool {
        true
    }

    fn follow(&self, stream: &str, _: u32, from: StartPosition, sink: Partition) {
        self.0.follow(stream, from, sink);
    }

    fn fetch(&self, stream: &str, _: u32, from: u64, max_bytes: usize) -> BrokerResponse<ReadResult> {
        self.0.fetch(stream, from, max_bytes)
    }

    fn offset_range(&self, stream: &str, _: u32) -> BrokerResponse<(u64, u64)> {
        BrokerResponse::ready(Ok((B::FIRST_OFFSET, self.0.next_offset(stream))))
    }

    fn partitions(&self, _: &str) -> BrokerResponse<u32> {
        BrokerResponse::ready(Ok(1))
    }

    fn streams(&self) -> BrokerResponse<Vec<String>> {
        BrokerResponse::ready(Ok(self.0.streams()))
    }

    fn first_offset(&self) -> u64 {
        B::FIRST_OFFSET
    }

    fn creates_partitions(&self) -> bool {
        true
    }

    fn commit(&self, _: &str, _: u32, _: &str, _: u64) -> BrokerResponse<()> {
        BrokerResponse::ready(Err(BrokerError::failed("no groups")))
    }

    fn committed(&self, _: &str, _: u32, group: &str) -> BrokerResponse<Option<u64>> {
        BrokerResponse::ready(Ok(self.0.committed(group)))
    }

    fn health(&self) -> BrokerHealth {
        BrokerHealth::new(true, None, 0)
    }

    fn close(&self, _: Duration) {
        self.0.close();
    }
}
