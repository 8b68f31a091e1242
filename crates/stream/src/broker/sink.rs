//! Writes a broker's records into this node's log: single records become batches with the broker's offsets.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::record::{RecordBuilder, Records};
use crate::{AppendError, Durability, Partition, Past, Pending, Start};

/// Bytes of a batch: large enough that its header and index entry cost nothing, small enough that a reader of one
/// record does not get much more.
pub(super) const BATCH_BYTES: usize = 256 << 10;

/// Offset, time, key and value of a record.
pub(super) type LastRecord = (u64, u64, Vec<u8>, Vec<u8>);

/// A partition of the log that follows a partition of a broker.
pub(super) struct Sink {
    partition: Partition,
    builder: RecordBuilder,
    base: u64,
    /// Complete batches that the log has not accepted yet. More than two only if records were added despite
    /// [`is_full`](Self::is_full), or the log has returned some.
    held: VecDeque<(u64, Records)>,
    /// Batches that the log has accepted and may not have written yet; a full disk returns them. Bounded by the log's
    /// `max_pending`.
    taken: VecDeque<(u64, Records, Pending)>,
    /// The end of the log unless it has dropped accepted batches: the next batch must be appended exactly there.
    end: u64,
    /// The next offset, or a later one.
    next: u64,
    /// The latest time of a record.
    newest: u64,
}

/// Result of flushing a [`Sink`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// The log has accepted the records and writes them. The next flush checks whether the write succeeded.
    On,
    /// The log's queue is full; the waker is called when there is space.
    Full,
    /// The disk is full; retry later.
    NoSpace,
}

impl Sink {
    pub(super) fn new(partition: Partition) -> Self {
        let next = partition.ends().next;
        let (builder, held, taken) = (RecordBuilder::new(), VecDeque::new(), VecDeque::new());
        Self { partition, builder, base: next, held, taken, end: next, next, newest: 0 }
    }

    /// The next offset to read from the broker.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// The last record of the log. None if the log is empty or unreadable, or more records are on the way to it.
    pub(super) fn last(&self) -> Option<LastRecord> {
        let offset = self.next.checked_sub(1)?;
        let read = self.partition.read(offset, 1).ok()?;
        let batches = crate::record::iter(&read.batches).flatten();
        let mut records = batches.flat_map(|batch| batch.records()).flatten();
        let record = records.find(|record| record.offset == offset)?;
        Some((offset, record.timestamp, record.key.to_vec(), record.value.to_vec()))
    }

    /// The start position, moved to the end of the records that the log already has.
    pub(super) fn beginning(&self, from: Start) -> Start {
        match from {
            Start::Offset(offset) => Start::Offset(offset.max(self.next)),
            Start::Earliest if self.next > 0 => Start::Offset(self.next),
            from => from,
        }
    }

    /// Whether a complete batch waits, which should be flushed before more records are added.
    pub(super) fn is_full(&self) -> bool {
        !self.held.is_empty()
    }

    /// Adds a record. `time` is the record's, in microseconds; `push` returns `false` if the record does not fit. A
    /// record that does not fit into an empty batch exceeds the log's limit and is skipped.
    pub(super) fn push(&mut self, offset: u64, time: u64, push: impl Fn(&mut RecordBuilder) -> bool) -> bool {
        let follows = offset == self.base + u64::from(self.builder.count());
        if !follows || self.builder.len() >= BATCH_BYTES {
            self.seal();
        }
        if self.builder.is_empty() {
            self.base = offset;
        }
        self.newest = self.newest.max(time);
        self.next = offset + 1;
        if push(&mut self.builder) {
            return true;
        }
        let was_alone = self.builder.is_empty();
        self.seal();
        self.base = offset;
        !was_alone && push(&mut self.builder)
    }

    /// Completes the batch.
    fn seal(&mut self) {
        self.held.extend(self.builder.finish().map(|records| (self.base, records)));
    }

    /// Appends the collected records to the log, and again the records that it had accepted and found no space for.
    ///
    /// # Errors
    ///
    /// A permanent error of the log.
    pub(super) fn flush(&mut self, waker: &Waker) -> Result<Flow, AppendError> {
        self.seal();
        if self.take_back()? {
            return Ok(Flow::NoSpace);
        }
        while let Some((base, records)) = self.held.pop_front() {
            let flow = match self.append(base, &records) {
                Ok(pending) => {
                    self.end = base + u64::from(records.count());
                    self.taken.push_back((base, records, pending));
                    continue;
                }
                Err(AppendError::TooLarge { most }) => {
                    self.split(base, &records, most);
                    continue;
                }
                // Space may have become available in the meantime.
                Err(AppendError::Busy) if self.partition.watch(Past::Room, waker) => None,
                Err(AppendError::Busy) => Some(Flow::Full),
                Err(AppendError::NoSpace) => Some(Flow::NoSpace),
                // The log has found no space for accepted records, and may not have reported it yet.
                Err(AppendError::OutOfOrder { next }) if next < self.end => Some(Flow::NoSpace),
                Err(error) => return Err(error),
            };
            self.held.push_front((base, records));
            if let Some(flow) = flow {
                return Ok(flow);
            }
        }
        Ok(Flow::On)
    }

    /// Removes written batches. Returns whether one found no space: then it is held again, with all batches behind it,
    /// which the log has dropped, too.
    fn take_back(&mut self) -> Result<bool, AppendError> {
        while let Some((_, _, pending)) = self.taken.front_mut() {
            match pending.poll(Durability::Disk, &mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(_)) => drop(self.taken.pop_front()),
                Poll::Ready(Err(AppendError::NoSpace)) => {
                    let lost = self.taken.drain(..).rev();
                    lost.for_each(|(base, records, _)| self.held.push_front((base, records)));
                    self.end = self.partition.ends().next;
                    return Ok(true);
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(false),
            }
        }
        Ok(false)
    }

    fn append(&self, base: u64, records: &Records) -> Result<Pending, AppendError> {
        // The log searches by this time; the broker searches by the records' times. A producer whose clock is ahead
        // must not hide later records.
        let time = self.newest.min(now());
        self.partition.append_behind(self.end, (base, time), records.clone())
    }

    /// Splits a batch above the log's limit into single records; a single record above the limit is skipped.
    fn split(&mut self, base: u64, records: &Records, most: u64) {
        if records.count() == 1 {
            tracing::warn!(
                "the record at offset {base} is skipped: its batch exceeds {most} bytes (max_batch)"
            );
            return;
        }
        for (place, record) in records.iter().flatten().enumerate().collect::<Vec<_>>().into_iter().rev() {
            let mut builder = RecordBuilder::new();
            // The record was in a builder with the same limits.
            let _ = builder.push(record.timestamp, record.key, record.value, record.kind);
            if let Some(single) = builder.finish() {
                self.held.push_front((base + place as u64, single));
            }
        }
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::disk::simulated::Simulated;
    use crate::record::{self, Kind, RECORD_HEADER};
    use crate::{StreamConfig, Streams, StreamsConfig};

    /// A log without writer threads: a test decides when it writes.
    struct Log {
        streams: Streams,
        directory: PathBuf,
    }

    impl Log {
        fn new(name: &str, config: StreamsConfig) -> (Self, Partition) {
            let directory = std::env::temp_dir().join(format!("sinews-sink-{}-{name}", std::process::id()));
            let (streams, _) = Streams::open(&directory, config.writers(0)).expect("the directory is ours");
            let stream = streams.create("s", &StreamConfig::default()).expect("a legal name");
            let partition = stream.partition(0).expect("the only one");
            (Self { streams, directory }, partition)
        }

        fn write(&self) {
            while self.streams.work() {}
        }
    }

    impl Drop for Log {
        fn drop(&mut self) {
            self.streams.close();
            let _ = fs::remove_dir_all(&self.directory);
        }
    }

    fn put(sink: &mut Sink, offset: u64, time: u64, value: &[u8]) {
        assert!(sink.push(offset, time, |builder| builder.push(time, b"", value, Kind::Bytes).is_ok()));
    }

    fn offsets(partition: &Partition) -> Vec<Vec<u64>> {
        let mut all = Vec::new();
        let mut next = partition.ends().earliest;
        while next < partition.ends().readable {
            let read = partition.read(next, 1).expect("it is there");
            for batch in record::iter(&read.batches) {
                all.push(batch.expect("whole").records().flatten().map(|record| record.offset).collect());
            }
            next = read.next;
        }
        all
    }

    /// A log on a simulated disk whose free space a test sets, with a stopped clock.
    fn simulated() -> (Simulated, Arc<AtomicU64>, Streams, Partition) {
        let (disk, time) = (Simulated::new(1), Arc::new(AtomicU64::new(1)));
        let clock = time.clone();
        let clock = Arc::new(move || clock.load(Ordering::Relaxed));
        let config = StreamsConfig::default().writers(0);
        let (streams, _) =
            Streams::open_on(Arc::new(disk.clone()), Path::new("/log"), config, clock).unwrap();
        let partition = streams.create("s", &StreamConfig::default()).unwrap().partition(0).unwrap();
        (disk, time, streams, partition)
    }

    #[test]
    fn gap_in_offsets_begins_a_new_batch() {
        let (log, partition) = Log::new("gap", StreamsConfig::default());
        let mut sink = Sink::new(partition.clone());
        for offset in [5, 6, 9, 10, 11] {
            put(&mut sink, offset, 1, b"x");
        }
        assert_eq!(sink.flush(Waker::noop()), Ok(Flow::On));
        log.write();
        assert_eq!(offsets(&partition), [vec![5, 6], vec![9, 10, 11]]);
        assert_eq!(sink.next(), 12);
    }

    #[test]
    fn batches_that_find_the_queue_full_are_held_in_order() {
        let (log, partition) = Log::new("full", StreamsConfig::default().max_pending(4096));
        let mut sink = Sink::new(partition.clone());
        put(&mut sink, 0, 1, &[0; 4096]);
        assert_eq!(sink.flush(Waker::noop()), Ok(Flow::On), "one batch may always wait");
        put(&mut sink, 1, 1, b"held");
        assert_eq!(sink.flush(Waker::noop()), Ok(Flow::Full));
        assert!(sink.is_full());
        put(&mut sink, 2, 1, b"behind");
        assert_eq!(sink.flush(Waker::noop()), Ok(Flow::Full));
        log.write();
        assert_eq!(sink.flush(Waker::noop()), Ok(Flow::On));
        log.write();
        assert_eq!(offsets(&partition).concat(), [0, 1, 2]);
        assert!(!sink.is_full());
    }

    #[test]
    fn batches_returned_by_a_full_disk_are_written_once_there_is_space() {
        let (disk, time, streams, partition) = simulated();
        let mut sink = Sink::new(partition.clone());
        let write = || while streams.work() {};
        put(&mut sink, 0, 1, b"x");
        assert_eq!(sink.flush(Waker::noop()), Ok(Flow::On));
        write();
        disk.set_room(Some(0));
        for offset in [1, 2, 7] {
            put(&mut sink, offset, 1, b"x");
            assert_eq!(sink.flush(Waker::noop()), Ok(Flow::On), "the log has not tried to write it");
        }
        write();
        put(&mut sink, 8, 1, b"x");
        assert_eq!(sink.flush(Waker::noop()), Ok(Flow::NoSpace));
        assert!(sink.is_full());
        disk.set_room(None);
        assert_eq!(sink.flush(Waker::noop()), Ok(Flow::NoSpace), "no retry for a second");
        time.fetch_add(1_000_000, Ordering::Relaxed);
        assert_eq!(sink.flush(Waker::noop()), Ok(Flow::On));
        write();
        assert_eq!(offsets(&partition), [[0], [1], [2], [7], [8]]);
        assert_eq!(sink.flush(Waker::noop()), Ok(Flow::On));
        assert!(sink.taken.is_empty());
    }

    #[test]
    fn no_batch_is_appended_behind_dropped_batches() {
        let (disk, time, streams, partition) = simulated();
        let mut sink = Sink::new(partition.clone());
        let write = || while streams.work() {};
        disk.set_room(Some(0));
        put(&mut sink, 3, 1, b"given up");
        assert_eq!(sink.flush(Waker::noop()), Ok(Flow::On));
        // A full disk first takes the records back, and then reports to the waiters.
        let (late, pending) = Pending::channel(1);
        sink.taken[0].2 = pending;
        write();
        disk.set_room(None);
        time.fetch_add(1_000_000, Ordering::Relaxed);
        put(&mut sink, 4, 1, b"behind");
        assert_eq!(sink.flush(Waker::noop()), Ok(Flow::NoSpace));
        late.fail(AppendError::NoSpace);
        assert_eq!(sink.flush(Waker::noop()), Ok(Flow::NoSpace));
        assert_eq!(sink.flush(Waker::noop()), Ok(Flow::On));
        write();
        assert_eq!(offsets(&partition), [[3], [4]]);
    }

    #[test]
    fn times_never_decrease_after_an_earlier_run() {
        let (log, partition) = Log::new("time", StreamsConfig::default());
        // An earlier run, whose records had their own times.
        let mut sink = Sink::new(partition.clone());
        put(&mut sink, 0, now() - 1_000_000, b"x");
        assert_eq!(sink.flush(Waker::noop()), Ok(Flow::On));
        let mut sink = Sink::new(partition.clone());
        for (offset, time) in [(1, 5), (2, u64::MAX), (3, 7)] {
            put(&mut sink, offset, time, b"x");
            assert_eq!(sink.flush(Waker::noop()), Ok(Flow::On));
        }
        log.write();
        assert_eq!(offsets(&partition).concat(), [0, 1, 2, 3]);
        assert!(partition.seek(Start::Time(now())) >= 3, "a time in the future is ignored");
    }

    #[test]
    fn batch_above_max_batch_is_split_and_record_above_it_is_skipped() {
        let (log, partition) = Log::new("large", StreamsConfig::default().max_batch(1000));
        let mut sink = Sink::new(partition.clone());
        for (offset, size) in [(0, 500), (1, 500), (2, 1000), (3, 10)] {
            put(&mut sink, offset, 1, &vec![0; size]);
        }
        assert_eq!(sink.flush(Waker::noop()), Ok(Flow::On));
        log.write();
        assert_eq!(offsets(&partition), [[0], [1], [3]]);
    }

    #[test]
    fn record_that_does_not_fit_begins_a_new_batch() {
        let (log, partition) = Log::new("fit", StreamsConfig::default());
        let mut sink = Sink::new(partition.clone());
        let most = (8 << 20) - RECORD_HEADER;
        put(&mut sink, 0, 1, b"x");
        put(&mut sink, 1, 1, &vec![0; most]);
        put(&mut sink, 2, 1, b"x");
        let too_large = vec![0; most + 1];
        assert!(!sink.push(3, 1, |builder| builder.push(1, b"", &too_large, Kind::Bytes).is_ok()));
        put(&mut sink, 4, 1, b"x");
        assert_eq!(sink.flush(Waker::noop()), Ok(Flow::On));
        log.write();
        assert_eq!(offsets(&partition), [[0], [1], [2], [4]]);
    }

    #[test]
    fn following_continues_behind_the_records_of_the_log() {
        let (_log, partition) = Log::new("begin", StreamsConfig::default());
        let mut sink = Sink::new(partition.clone());
        assert_eq!(sink.beginning(Start::Earliest), Start::Earliest);
        put(&mut sink, 40, 1, b"x");
        assert_eq!(sink.flush(Waker::noop()), Ok(Flow::On));
        let sink = Sink::new(partition);
        assert_eq!(sink.beginning(Start::Earliest), Start::Offset(41));
        assert_eq!(sink.beginning(Start::Offset(7)), Start::Offset(41));
        assert_eq!(sink.beginning(Start::Offset(50)), Start::Offset(50));
        assert_eq!(sink.beginning(Start::Latest), Start::Latest);
    }
}
