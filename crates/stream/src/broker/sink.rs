//! Appends a broker's records to this node's log: single records become batches with the broker's offsets.

use std::collections::VecDeque;
use std::fmt;
use std::task::{Context, Poll, Waker};

use crate::record::{Record, RecordBuilder, Records};
use crate::{AppendError, Durability, Partition, PartitionEvent, Pending, StartPosition};

/// Bytes of a batch: large enough that its header and index entry cost nothing, small enough that a reader of one
/// record does not get much more.
pub(super) const BATCH_BYTES: usize = 256 << 10;

/// The last record of a followed log: the broker's record at this offset must be the same.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastRecord {
    /// Offset in the partition.
    pub offset: u64,
    /// Creation time set by the producer, in microseconds since 1970.
    pub timestamp: u64,
    /// Key of the record; empty if it has none.
    pub key: Vec<u8>,
    /// The message.
    pub value: Vec<u8>,
}

/// A partition of the log that follows a partition of a broker: collects single records in batches, and appends them
/// with the broker's offsets.
///
/// A client adds records with [`push`](Self::push) while the sink is not [full](Self::is_full), and then
/// [flushes](Self::flush). It must not read further records from the broker until a flush has accepted them all: so the
/// log's speed limits the reading.
pub struct LogSink {
    partition: Partition,
    builder: RecordBuilder,
    base: u64,
    /// Complete batches that the log has not accepted yet. More than two only if records were added despite
    /// [`is_full`](Self::is_full), or the log has returned some.
    queued: VecDeque<(u64, Records)>,
    /// Batches that the log has accepted and may not have written yet; a full disk returns them. Bounded by the log's
    /// `max_pending`.
    unconfirmed: VecDeque<(u64, Records, Pending)>,
    /// The end of the log unless it has dropped accepted batches: the next batch must be appended exactly there.
    end: u64,
    /// The next offset, or a later one.
    next: u64,
    /// The latest time of a record.
    newest: u64,
}

/// Result of flushing a [`LogSink`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "every broker client must handle each outcome")]
pub enum FlushOutcome {
    /// The log has accepted the records and writes them. The next flush checks whether the write succeeded.
    Accepted,
    /// The log's queue is full; the waker is called when there is space.
    QueueFull,
    /// The disk is full; retry later.
    NoSpace,
}

impl LogSink {
    /// Creates a sink that continues at the end of this partition. At most one sink may append to a partition.
    #[must_use]
    pub fn new(partition: Partition) -> Self {
        let next = partition.offsets().next;
        let (builder, queued, unconfirmed) = (RecordBuilder::new(), VecDeque::new(), VecDeque::new());
        Self { partition, builder, base: next, queued, unconfirmed, end: next, next, newest: 0 }
    }

    /// The next offset to read from the broker.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The last record of the log. None if the log is empty or unreadable, or more records are on the way to it.
    #[must_use]
    pub fn last(&self) -> Option<LastRecord> {
        let offset = self.next.checked_sub(1)?;
        let read = self.partition.read(offset, 1).ok()?;
        let batches = crate::record::iter(&read.batches).flatten();
        let mut records = batches.flat_map(|batch| batch.records()).flatten();
        let record = records.find(|record| record.offset == offset)?;
        let Record { timestamp, key, value, .. } = record;
        Some(LastRecord { offset, timestamp, key: key.to_vec(), value: value.to_vec() })
    }

    /// The start position, moved to the end of the records that the log already has.
    #[must_use]
    pub fn start_position(&self, from: StartPosition) -> StartPosition {
        match from {
            StartPosition::Offset(offset) => StartPosition::Offset(offset.max(self.next)),
            StartPosition::Earliest if self.next > 0 => StartPosition::Offset(self.next),
            from => from,
        }
    }

    /// Whether a complete batch waits, which should be flushed before more records are added.
    #[must_use]
    pub fn is_full(&self) -> bool {
        !self.queued.is_empty()
    }

    /// Adds a record. Returns `false` if the record exceeds the batch limit: it is skipped.
    pub fn push(&mut self, record: &Record<'_>) -> bool {
        let offset = record.offset;
        let follows = offset == self.base + u64::from(self.builder.count());
        if !follows || self.builder.len() >= BATCH_BYTES {
            self.finish_batch();
        }
        if self.builder.is_empty() {
            self.base = offset;
        }
        self.newest = self.newest.max(record.timestamp);
        self.next = offset + 1;
        if self.builder.push_record(record).is_ok() {
            return true;
        }
        let was_alone = self.builder.is_empty();
        self.finish_batch();
        self.base = offset;
        !was_alone && self.builder.push_record(record).is_ok()
    }

    /// Completes the batch.
    fn finish_batch(&mut self) {
        self.queued.extend(self.builder.finish().map(|records| (self.base, records)));
    }

    /// Appends the collected records to the log, and again the records that it had accepted and found no space for.
    /// Never blocks.
    ///
    /// # Errors
    ///
    /// A permanent log error: the partition can no longer be followed.
    pub fn flush(&mut self, waker: &Waker) -> Result<FlushOutcome, AppendError> {
        self.finish_batch();
        if self.requeue_unwritten()? {
            return Ok(FlushOutcome::NoSpace);
        }
        while let Some((base, records)) = self.queued.pop_front() {
            let flow = match self.append(base, &records) {
                Ok(pending) => {
                    if let Some(observer) = self.partition.copy_observer() {
                        observer.accepted(base, &records);
                    }
                    self.end = base + u64::from(records.count());
                    self.unconfirmed.push_back((base, records, pending));
                    continue;
                }
                Err(AppendError::TooLarge { most }) => {
                    self.split(base, &records, most);
                    continue;
                }
                // Space may have become available in the meantime.
                Err(AppendError::Busy) if self.partition.watch(PartitionEvent::QueueSpace, waker) => None,
                Err(AppendError::Busy) => Some(FlushOutcome::QueueFull),
                Err(AppendError::NoSpace) => Some(FlushOutcome::NoSpace),
                // The log has found no space for accepted records, and may not have reported it yet.
                Err(AppendError::OutOfOrder { next }) if next < self.end => Some(FlushOutcome::NoSpace),
                Err(error) => return Err(error),
            };
            self.queued.push_front((base, records));
            if let Some(flow) = flow {
                return Ok(flow);
            }
        }
        Ok(FlushOutcome::Accepted)
    }

    /// Removes written batches. Returns whether one found no space: then it is held again, with all batches behind it,
    /// which the log has dropped, too.
    fn requeue_unwritten(&mut self) -> Result<bool, AppendError> {
        while let Some((_, _, pending)) = self.unconfirmed.front_mut() {
            match pending.poll(Durability::Disk, &mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(_)) => drop(self.unconfirmed.pop_front()),
                Poll::Ready(Err(AppendError::NoSpace)) => {
                    let lost = self.unconfirmed.drain(..).rev();
                    lost.for_each(|(base, records, _)| self.queued.push_front((base, records)));
                    self.end = self.partition.offsets().next;
                    return Ok(true);
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(false),
            }
        }
        Ok(false)
    }

    fn append(&self, base: u64, records: &Records) -> Result<Pending, AppendError> {
        self.partition.append_if_end(self.end, base, self.newest, records.clone())
    }

    /// Splits a batch above the log's limit into single records; a single record above the limit is skipped.
    fn split(&mut self, base: u64, records: &Records, most: u64) {
        if records.count() == 1 {
            tracing::warn!(
                "the record at offset {base} is skipped: its batch exceeds {most} bytes (max_batch)"
            );
            return;
        }
        for (index, record) in records.iter().flatten().enumerate().collect::<Vec<_>>().into_iter().rev() {
            let mut builder = RecordBuilder::new();
            // The record was in a builder with the same limits.
            let _ = builder.push_record(&record);
            if let Some(single) = builder.finish() {
                self.queued.push_front((base + index as u64, single));
            }
        }
    }
}

impl fmt::Debug for LogSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogSink")
            .field("partition", &self.partition)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::{SystemTime, UNIX_EPOCH};

    use tempfile::TempDir;

    use super::*;
    use crate::copy_observer::CopyObserver;
    use crate::disk::simulated::SimulatedDisk;
    use crate::record::{self, RECORD_HEADER, ValueKind};
    use crate::{StreamConfig, Streams, StreamsConfig};

    /// A log without writer threads: a test decides when it writes.
    struct SinkLog {
        streams: Streams,
        _directory: TempDir,
    }

    impl SinkLog {
        fn new(name: &str, config: StreamsConfig) -> (Self, Partition) {
            let directory = tempfile::Builder::new().prefix(name).tempdir().expect("a directory");
            let (streams, _) =
                Streams::open(directory.path(), config.with_writers(0)).expect("the directory is ours");
            let stream = streams.create("s", &StreamConfig::default()).expect("a legal name");
            let partition = stream.partition(0).expect("the only one");
            (Self { streams, _directory: directory }, partition)
        }

        fn write(&self) {
            write(&self.streams);
        }
    }

    impl Drop for SinkLog {
        fn drop(&mut self) {
            self.streams.close();
        }
    }

    /// Writes all records, also those whose write is deferred.
    fn write(streams: &Streams) {
        streams.tick();
        while streams.work() {}
    }

    fn now() -> u64 {
        u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
    }

    fn put(sink: &mut LogSink, offset: u64, time: u64, value: &[u8]) {
        assert!(sink.push(&record_at(offset, time, value)));
    }

    fn record_at(offset: u64, timestamp: u64, value: &[u8]) -> Record<'_> {
        Record { offset, timestamp, key: b"", value, kind: ValueKind::Bytes }
    }

    fn offsets(partition: &Partition) -> Vec<Vec<u64>> {
        let mut all = Vec::new();
        let mut next = partition.offsets().earliest;
        while next < partition.offsets().readable {
            let read = partition.read(next, 1).expect("it is there");
            for batch in record::iter(&read.batches) {
                all.push(batch.expect("whole").records().flatten().map(|record| record.offset).collect());
            }
            next = read.next;
        }
        all
    }

    /// A log on a simulated disk whose free space a test sets, with a stopped clock.
    fn simulated() -> (SimulatedDisk, Arc<AtomicU64>, Streams, Partition) {
        let (disk, time) = (SimulatedDisk::new(1), Arc::new(AtomicU64::new(1)));
        let clock = time.clone();
        let clock = Arc::new(move || clock.load(Ordering::Relaxed));
        let config = StreamsConfig::default().with_writers(0);
        let (streams, _) =
            Streams::open_on(Arc::new(disk.clone()), Path::new("/log"), config, clock).unwrap();
        let partition = streams.create("s", &StreamConfig::default()).unwrap().partition(0).unwrap();
        (disk, time, streams, partition)
    }

    /// Records what an observer receives, and the end of the readable records at that time.
    struct Observed {
        partition: Partition,
        all: Mutex<Vec<(u64, u32, u64)>>,
    }

    impl CopyObserver for Observed {
        fn accepted(&self, base: u64, records: &Records) {
            let readable = self.partition.offsets().readable;
            self.all.lock().unwrap().push((base, records.count(), readable));
        }
    }

    #[test]
    fn observer_receives_accepted_records_before_they_are_written() {
        let (disk, time, streams, partition) = simulated();
        let observed = Arc::new(Observed { partition: partition.clone(), all: Mutex::default() });
        partition.observe_copy(observed.clone());
        let mut sink = LogSink::new(partition.clone());
        for offset in [3, 4, 9] {
            put(&mut sink, offset, 1, b"x");
        }
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        assert_eq!(*observed.all.lock().unwrap(), [(3, 2, 0), (9, 1, 0)]);
        // A full disk returns records, which are accepted again.
        disk.set_free_space(Some(0));
        write(&streams);
        put(&mut sink, 10, 1, b"x");
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::NoSpace));
        assert_eq!(observed.all.lock().unwrap().len(), 2, "the log accepts nothing");
        disk.set_free_space(None);
        time.fetch_add(1_000_000, Ordering::Relaxed);
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        assert_eq!(observed.all.lock().unwrap()[2..], [(3, 2, 0), (9, 1, 0), (10, 1, 0)]);
        write(&streams);
        assert_eq!(offsets(&partition), [vec![3, 4], vec![9], vec![10]]);
    }

    #[test]
    fn reader_that_waits_ends_the_deferral_of_a_write() {
        let (log, partition) = SinkLog::new("waits", StreamsConfig::default());
        let mut sink = LogSink::new(partition.clone());
        put(&mut sink, 0, 1, b"x");
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        assert_eq!((partition.offsets().readable, partition.offsets().next), (0, 1));
        assert!(!log.streams.pool().has_ready(), "the write is deferred");
        assert!(!partition.watch(PartitionEvent::Readable(0), Waker::noop()));
        assert!(log.streams.pool().has_ready());
        while log.streams.work() {}
        assert_eq!(partition.offsets().readable, 1);
        // A reader who waits already.
        assert!(!partition.watch(PartitionEvent::Readable(1), Waker::noop()));
        put(&mut sink, 1, 1, b"x");
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        assert!(log.streams.pool().has_ready());
    }

    #[test]
    fn deferral_ends_at_its_limit_of_bytes() {
        let (log, partition) = SinkLog::new("many", StreamsConfig::default());
        let mut sink = LogSink::new(partition.clone());
        put(&mut sink, 0, 1, &[0; 200 << 10]);
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        assert!(!log.streams.pool().has_ready());
        put(&mut sink, 1, 1, &[0; 200 << 10]);
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        assert!(log.streams.pool().has_ready());
    }

    #[test]
    fn deferred_records_are_written_soon_and_at_the_close() {
        let directory = tempfile::tempdir().expect("a directory");
        let (streams, _) =
            Streams::open(directory.path(), StreamsConfig::default()).expect("the directory is ours");
        let partition = streams.create("s", &StreamConfig::default()).unwrap().partition(0).unwrap();
        let mut sink = LogSink::new(partition.clone());
        for offset in 0..3 {
            put(&mut sink, offset, 1, b"x");
            assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
            let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while partition.offsets().readable <= offset {
                assert!(std::time::Instant::now() < end, "the records are not written");
                std::thread::yield_now();
            }
        }
        put(&mut sink, 3, 1, b"x");
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        streams.close();
        assert_eq!(offsets(&partition).concat(), [0, 1, 2, 3]);
    }

    #[test]
    fn gap_in_offsets_begins_a_new_batch() {
        let (log, partition) = SinkLog::new("gap", StreamsConfig::default());
        let mut sink = LogSink::new(partition.clone());
        for offset in [5, 6, 9, 10, 11] {
            put(&mut sink, offset, 1, b"x");
        }
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        log.write();
        assert_eq!(offsets(&partition), [vec![5, 6], vec![9, 10, 11]]);
        assert_eq!(sink.next(), 12);
    }

    #[test]
    fn batches_that_find_the_queue_full_are_held_in_order() {
        let (log, partition) = SinkLog::new("full", StreamsConfig::default().with_max_pending(4096));
        let mut sink = LogSink::new(partition.clone());
        put(&mut sink, 0, 1, &[0; 4096]);
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted), "one batch may always wait");
        put(&mut sink, 1, 1, b"held");
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::QueueFull));
        assert!(sink.is_full());
        put(&mut sink, 2, 1, b"behind");
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::QueueFull));
        log.write();
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        log.write();
        assert_eq!(offsets(&partition).concat(), [0, 1, 2]);
        assert!(!sink.is_full());
    }

    #[test]
    fn batch_above_half_of_the_queue_is_appended_behind_a_smaller_one() {
        let (log, partition) = SinkLog::new("half", StreamsConfig::default().with_max_pending(4096));
        let mut sink = LogSink::new(partition.clone());
        put(&mut sink, 0, 1, &[0; 1500]);
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        put(&mut sink, 1, 1, &[0; 3000]);
        // Without a wait, and without a loop until the log has written.
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        put(&mut sink, 2, 1, &[0; 3000]);
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::QueueFull));
        log.write();
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        log.write();
        assert_eq!(offsets(&partition).concat(), [0, 1, 2]);
    }

    #[test]
    fn batches_returned_by_a_full_disk_are_written_once_there_is_space() {
        let (disk, time, streams, partition) = simulated();
        let mut sink = LogSink::new(partition.clone());
        let write = || write(&streams);
        put(&mut sink, 0, 1, b"x");
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        write();
        disk.set_free_space(Some(0));
        for offset in [1, 2, 7] {
            put(&mut sink, offset, 1, b"x");
            assert_eq!(
                sink.flush(Waker::noop()),
                Ok(FlushOutcome::Accepted),
                "the log has not tried to write it"
            );
        }
        write();
        put(&mut sink, 8, 1, b"x");
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::NoSpace));
        assert!(sink.is_full());
        disk.set_free_space(None);
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::NoSpace), "no retry for a second");
        time.fetch_add(1_000_000, Ordering::Relaxed);
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        write();
        assert_eq!(offsets(&partition), [[0], [1], [2], [7], [8]]);
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        assert!(sink.unconfirmed.is_empty());
    }

    #[test]
    fn no_batch_is_appended_behind_dropped_batches() {
        let (disk, time, streams, partition) = simulated();
        let mut sink = LogSink::new(partition.clone());
        let write = || write(&streams);
        disk.set_free_space(Some(0));
        put(&mut sink, 3, 1, b"given up");
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        // A full disk first takes the records back, and then reports to the waiters.
        let (late, pending) = Pending::channel(1);
        sink.unconfirmed[0].2 = pending;
        write();
        disk.set_free_space(None);
        time.fetch_add(1_000_000, Ordering::Relaxed);
        put(&mut sink, 4, 1, b"behind");
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::NoSpace));
        late.fail(AppendError::NoSpace);
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::NoSpace));
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        write();
        assert_eq!(offsets(&partition), [[3], [4]]);
    }

    #[test]
    fn times_never_decrease_after_an_earlier_run() {
        let (log, partition) = SinkLog::new("time", StreamsConfig::default());
        // An earlier run, whose records had their own times.
        let mut sink = LogSink::new(partition.clone());
        put(&mut sink, 0, now() - 1_000_000, b"x");
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        let mut sink = LogSink::new(partition.clone());
        for (offset, time) in [(1, 5), (2, u64::MAX), (3, 7)] {
            put(&mut sink, offset, time, b"x");
            assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        }
        log.write();
        assert_eq!(offsets(&partition).concat(), [0, 1, 2, 3]);
        assert!(partition.seek(StartPosition::Time(now())) >= 3, "a time in the future is ignored");
    }

    #[test]
    fn time_of_the_copy_is_limited_by_the_clock_of_the_log() {
        let (_disk, time, streams, partition) = simulated();
        let mut sink = LogSink::new(partition.clone());
        time.store(1_000, Ordering::Relaxed);
        // The system's clock is decades ahead of the log's.
        put(&mut sink, 0, now(), b"x");
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        write(&streams);
        assert_eq!(partition.seek(StartPosition::Time(1_000)), 0);
        assert_eq!(partition.seek(StartPosition::Time(1_001)), 1);
    }

    #[test]
    fn batch_above_max_batch_is_split_and_record_above_it_is_skipped() {
        let (log, partition) = SinkLog::new("large", StreamsConfig::default().with_max_batch(1000));
        let mut sink = LogSink::new(partition.clone());
        for (offset, size) in [(0, 500), (1, 500), (2, 1000), (3, 10)] {
            put(&mut sink, offset, 1, &vec![0; size]);
        }
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        log.write();
        assert_eq!(offsets(&partition), [[0], [1], [3]]);
    }

    #[test]
    fn record_that_does_not_fit_begins_a_new_batch() {
        let (log, partition) = SinkLog::new("fit", StreamsConfig::default());
        let mut sink = LogSink::new(partition.clone());
        let most = (8 << 20) - RECORD_HEADER;
        put(&mut sink, 0, 1, b"x");
        put(&mut sink, 1, 1, &vec![0; most]);
        put(&mut sink, 2, 1, b"x");
        let too_large = vec![0; most + 1];
        assert!(!sink.push(&record_at(3, 1, &too_large)));
        put(&mut sink, 4, 1, b"x");
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        log.write();
        assert_eq!(offsets(&partition), [[0], [1], [2], [4]]);
    }

    #[test]
    fn following_continues_behind_the_records_of_the_log() {
        let (_log, partition) = SinkLog::new("begin", StreamsConfig::default());
        let mut sink = LogSink::new(partition.clone());
        assert_eq!(sink.start_position(StartPosition::Earliest), StartPosition::Earliest);
        put(&mut sink, 40, 1, b"x");
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        let sink = LogSink::new(partition);
        assert_eq!(sink.start_position(StartPosition::Earliest), StartPosition::Offset(41));
        assert_eq!(sink.start_position(StartPosition::Offset(7)), StartPosition::Offset(41));
        assert_eq!(sink.start_position(StartPosition::Offset(50)), StartPosition::Offset(50));
        assert_eq!(sink.start_position(StartPosition::Latest), StartPosition::Latest);
    }
}
