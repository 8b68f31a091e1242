//! Subscription starts at a time, which may need an index that is missing.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Waker};

use futures_util::FutureExt;
use sinews_stream::{Lookup, Partition, StartPosition};

use super::request::PartitionChoice;
use super::service::StreamService;
use crate::model::opening::{SharedOpening, StoreFuture};

impl StreamService {
    /// What a subscription to an open stream from a time has to wait for: the log's threads rebuild missing indexes.
    /// Usually nothing. The caller has checked the right to subscribe.
    pub(crate) fn opening_of_start(
        &self,
        name: &str,
        choice: PartitionChoice,
        start: StartPosition,
    ) -> Option<SharedOpening> {
        let StartPosition::Time(_) = start else { return None };
        let Ok(Lookup::Open(stream)) = self.streams().map(|streams| streams.lookup(name)) else {
            return None;
        };
        let partitions: Vec<Partition> = match choice {
            PartitionChoice::Number(number) => stream.partition(number).into_iter().collect(),
            PartitionChoice::Any => (0..stream.partitions()).filter_map(|it| stream.partition(it)).collect(),
        };
        let mut open: StoreFuture<()> = Box::pin(async move {
            for partition in partitions {
                poll_fn(|cx| partition.poll_seek(start, cx.waker())).await;
            }
            Ok(())
        });
        let is_ready = Pin::new(&mut open).poll(&mut Context::from_waker(Waker::noop())).is_ready();
        (!is_ready).then(|| open.shared())
    }
}

#[cfg(test)]
mod tests {
    use sinews_stream::record::{RecordBuilder, ValueKind};
    use sinews_stream::{Fsync, StreamConfig, Streams, StreamsConfig};

    use super::*;
    use crate::streams::block_on::block_on;
    use crate::streams::options::CreationRules;

    #[test]
    fn start_by_time_waits_for_a_missing_index() {
        let directory = tempfile::tempdir().unwrap();
        let config = StreamConfig::default().with_fsync(Fsync::Never).with_segment_bytes(64 << 10);
        let open = || Streams::open(directory.path(), StreamsConfig::default()).unwrap().0;
        let streams = open();
        let partition = streams.create("s", &config).unwrap().partition(0).unwrap();
        for _ in 0..3 {
            let mut builder = RecordBuilder::new();
            builder.push(1, b"", &[7; 40_000], ValueKind::Bytes).unwrap();
            partition.append(builder.finish().unwrap()).unwrap();
        }
        streams.close();
        drop((streams, partition));

        let streams = open();
        let store = StreamService::new(
            config,
            Default::default(),
            1 << 20,
            None,
            CreationRules::default(),
            Default::default(),
        );
        store.install(streams.clone());
        let stream = streams.stream("s").unwrap();
        let index = directory.path().join("streams/s/0/00000000000000000000.index");
        std::fs::remove_file(&index).unwrap();
        let opening = |start| store.opening_of_start("s", PartitionChoice::Any, start);
        assert!(opening(StartPosition::Offset(0)).is_none());
        let time = StartPosition::Time(0);
        block_on(opening(time).expect("the index is missing")).unwrap();
        assert!(index.exists() && opening(time).is_none());
        assert_eq!(store.seek(&stream, 0, time).unwrap(), 0);
        store.close();
    }
}
