//! Checks of appended records, and appends to several streams, of which none takes place if a queue has no space.

use std::future::poll_fn;
use std::task::Poll;

use sinews_stream::record::{IDEMPOTENCY_PREFIX, Records, SENDER_PREFIX};
use sinews_stream::{AppendError, Pending, Stream};

use super::event_records::EVENT_KEY;
use super::service::StreamService;
use crate::model::problem::{Problem, code, problem};

impl StreamService {
    /// Rejects a client's records that would count as publications with an idempotency key, or as events from an app's
    /// server.
    pub(crate) fn check_keys(&self, stream: &Stream, records: &Records) -> Result<(), Problem> {
        if !self.topics.is_durable(stream.name()) {
            return Ok(());
        }
        if records.have_idempotency_key() {
            let prefix = String::from_utf8_lossy(IDEMPOTENCY_PREFIX);
            return Err(problem(code::TOPIC, format!("keys of records must not begin with {prefix}")));
        }
        let reserved =
            |key: &[u8]| [EVENT_KEY, SENDER_PREFIX].into_iter().find(|prefix| key.starts_with(prefix));
        if let Some(prefix) = records.iter().flatten().find_map(|record| reserved(record.key)) {
            let prefix = String::from_utf8_lossy(prefix);
            return Err(problem(code::TOPIC, format!("keys of records must not begin with {prefix}")));
        }
        Ok(())
    }

    /// Appends records to the streams' first partitions, in order. The queues have space for all records, or none is
    /// appended. If another publisher takes the space meanwhile, the later appends wait.
    pub(crate) async fn append_all(
        &self,
        appends: &[(&Stream, &Records)],
    ) -> Result<Vec<Pending>, AppendError> {
        if appends.len() > 1 && !self.store.fits(appends) {
            return Err(AppendError::Busy);
        }
        self.append_each(appends).await
    }

    /// Appends records in order. Only the first append may find that its queue is full.
    pub(super) async fn append_each(
        &self,
        appends: &[(&Stream, &Records)],
    ) -> Result<Vec<Pending>, AppendError> {
        let mut appended = Vec::with_capacity(appends.len());
        for (stream, records) in appends {
            let is_first = appended.is_empty();
            let append = poll_fn(|cx| match self.append(stream, 0, Records::clone(records)) {
                Err(AppendError::Busy) if !is_first => {
                    if self.store.has_capacity(stream, 0, cx.waker()) {
                        // The queue has drained meanwhile.
                        cx.waker().wake_by_ref();
                    }
                    Poll::Pending
                }
                result => Poll::Ready(result),
            });
            appended.push(append.await?);
        }
        Ok(appended)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Wake, Waker};

    use sinews_stream::record::{RecordBuilder, ValueKind};
    use sinews_stream::{StreamConfig, Streams, StreamsConfig};

    use super::*;
    use crate::streams::options::CreationRules;

    #[derive(Default)]
    struct WakeCounter(AtomicU32);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn records(bytes: usize) -> Records {
        let mut builder = RecordBuilder::new();
        builder.push(1, b"", &vec![b'x'; bytes], ValueKind::Bytes).unwrap();
        builder.finish().unwrap()
    }

    #[test]
    fn later_append_waits_without_a_busy_loop_for_a_queue_that_has_filled_meanwhile() {
        let directory = tempfile::tempdir().unwrap();
        let config = StreamsConfig::default().with_writers(0).with_max_pending(4_096);
        let (streams, _) = Streams::open(directory.path(), config).unwrap();
        let rules = CreationRules::default();
        let store = StreamService::new(
            StreamConfig::default(),
            Default::default(),
            1 << 20,
            None,
            rules,
            Default::default(),
        );
        store.install(streams.clone());
        let [a, b] = ["a", "b"].map(|name| streams.create(name, &StreamConfig::default()).unwrap());
        let (small, large) = (records(10), records(2_500));
        // More than half of the queue, which has no space for the large batch.
        let _pending = store.append(&b, 0, records(2_100)).unwrap();
        assert!(!store.store.fits(&[(&a, &small), (&b, &large)]));
        let appends = [(&a, &small), (&b, &large)];
        let mut append = pin!(store.append_each(&appends));
        let wakes = Arc::new(WakeCounter::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut cx = Context::from_waker(&waker);
        assert!(append.as_mut().poll(&mut cx).is_pending());
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0, "it waits until the queue is written");
        while streams.work() {}
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert!(matches!(append.poll(&mut cx), Poll::Ready(Ok(appended)) if appended.len() == 2));
        let first = pin!(store.append_each(&[(&b, &large)])).poll(&mut cx).map(|result| result.err());
        assert_eq!(first, Poll::Ready(Some(AppendError::Busy)), "the first append does not wait");
        store.close();
    }
}
