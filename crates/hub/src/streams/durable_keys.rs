//! Durable keys: changes to a topic's keys are records in a compacted stream, and a change is applied when its record
//! is stored.
//!
//! ```text
//!   write ─▶ keys of the server: condition, limits ─▶ append ─▶ log ─▶ this thread ─▶ applied, sent, acknowledged
//! ```
//!
//! A key's version is its record's offset plus 1. At the start, the keys are read from the stream.

mod load;
mod record;

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use sinews_server::{KeyError, KeyLog, KeyLogError, LoggedChange, Publisher, TopicName};
use sinews_stream::{AppendError, Durability, Partition, Pending, Stream, StreamConfig, Streams};

use self::record::encode;
use super::durable_topics::single_partition;
use crate::access::namespaces::order::PatternSet;
use crate::model::brief::brief;
use crate::model::opening::StoreFuture;
use crate::model::problem::{Problem, code, problem};
use crate::topics::key_faults::{FaultCause, RejectedWrites};
use crate::waiting_tasks::WaitingTasks;

/// The durable keys of all topics.
pub(crate) struct DurableKeys {
    patterns: PatternSet,
    config: StreamConfig,
    /// Topics whose stream is open. Their number is bounded by the stream count.
    topics: Mutex<HashMap<String, Arc<StoredTopic>>>,
    /// Topics whose stream could not be read, and the reasons.
    failed: Mutex<HashMap<String, String>>,
    publisher: OnceLock<Publisher>,
    /// The keys of all existing streams are in memory.
    is_loaded: AtomicBool,
    /// Tasks that wait until they are.
    waiting: WaitingTasks,
    worker: OnceLock<Thread>,
    thread: Mutex<Option<JoinHandle<()>>>,
    closing: AtomicBool,
    rejected: Arc<RejectedWrites>,
}

/// A topic and its key stream.
struct StoredTopic {
    name: String,
    stream: Stream,
    partition: Partition,
    /// Changes that the log has not stored yet, in its order.
    queue: Mutex<ChangeQueue>,
    waker: Arc<TopicWaker>,
}

#[derive(Default)]
struct ChangeQueue {
    changes: VecDeque<QueuedChange>,
    /// The last changes that were not stored.
    failed: VecDeque<(u64, Problem)>,
}

struct QueuedChange {
    ticket: u64,
    pending: Pending,
    result: Arc<ChangeResult>,
}

/// The result of a change for its writer.
#[derive(Default)]
struct ChangeResult(Mutex<ChangeOutcome>);

#[derive(Default)]
struct ChangeOutcome {
    /// `None` until the change is stored or has failed.
    result: Option<Result<(), Problem>>,
    /// Who waits for the result.
    wakers: Vec<Waker>,
}

/// Wakes the thread for one topic.
struct TopicWaker {
    woken: AtomicBool,
    worker: Thread,
}

/// Name prefix for streams with keys. No stream name from a client begins with it, since `*` is a wildcard there.
pub(super) const STREAM_PREFIX: &str = "*.keys.";

/// Tombstone retention: longer than readers and restarts take.
pub(super) const TOMBSTONE_RETENTION: Duration = Duration::from_secs(86_400);

/// Largest segment of a key stream: as the largest topic, since a start reads at least the last segment.
const SEGMENT_BYTES: u64 = 16 << 20;

/// Failed changes that a topic remembers for their writers.
const FAILED_MAX: usize = 1_024;

/// Returns the configuration of a key stream.
pub(super) fn stream_config(config: &StreamConfig) -> StreamConfig {
    let stream = config.clone().with_partitions(1).with_retain_bytes(None).with_retain_age(None);
    stream
        .with_segment_bytes(config.segment_bytes().min(SEGMENT_BYTES))
        .with_compaction(Some(TOMBSTONE_RETENTION))
}

impl Wake for TopicWaker {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.worker.unpark();
    }
}

impl ChangeResult {
    fn finish(&self, result: Result<(), Problem>) {
        let mut outcome = self.0.lock();
        outcome.result = Some(result);
        let wakers = std::mem::take(&mut outcome.wakers);
        drop(outcome);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<Result<(), Problem>> {
        let mut outcome = self.0.lock();
        if let Some(result) = &outcome.result {
            return Poll::Ready(result.clone());
        }
        if !outcome.wakers.iter().any(|known| known.will_wake(cx.waker())) {
            outcome.wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl DurableKeys {
    pub(super) fn new(patterns: PatternSet, config: &StreamConfig, rejected: Arc<RejectedWrites>) -> Self {
        Self {
            patterns,
            config: stream_config(config),
            topics: Mutex::default(),
            failed: Mutex::default(),
            publisher: OnceLock::new(),
            is_loaded: AtomicBool::new(false),
            waiting: WaitingTasks::default(),
            worker: OnceLock::new(),
            thread: Mutex::default(),
            closing: AtomicBool::new(false),
            rejected,
        }
    }

    /// Returns whether any topic has durable keys.
    pub(crate) fn is_enabled(&self) -> bool {
        !self.patterns.is_empty()
    }

    /// Topics whose keys cannot be read.
    pub(super) fn unreadable_count(&self) -> u64 {
        self.lock_failed().len() as u64
    }

    /// Starts the thread that applies stored changes, if any topic has durable keys.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn start(self: &Arc<Self>, publisher: Publisher) -> io::Result<()> {
        if !self.is_enabled() {
            return Ok(());
        }
        // Called once.
        let _ = self.publisher.set(publisher);
        let keys = Arc::clone(self);
        let thread = thread::Builder::new().name("keys".to_owned()).spawn(move || keys.run())?;
        let _ = self.worker.set(thread.thread().clone());
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Reads the keys of all existing streams. Waits for the disk.
    pub(super) fn load(&self, streams: &Streams) {
        if !self.is_enabled() || self.worker.get().is_none() || self.is_loaded.load(Ordering::Acquire) {
            return;
        }
        for info in streams.describe_all() {
            let Some(topic) = info.name.strip_prefix(STREAM_PREFIX).filter(|topic| self.stores(topic)) else {
                continue;
            };
            let opened = streams.find(&info.name).map_err(|error| error.to_string());
            let result = opened.and_then(|stream| match stream {
                Some(stream) => self.open(topic, &stream).map_err(|problem| problem.text),
                None => Ok(()),
            });
            if let Err(why) = result {
                tracing::error!(topic, why, "the keys of a topic cannot be read");
                self.lock_failed().insert(topic.to_owned(), why);
            }
        }
        self.is_loaded.store(true, Ordering::Release);
        self.waiting.wake_all();
    }

    /// Checks whether a topic's keys can be used now.
    ///
    /// # Errors
    /// They are not read yet, or could not be read.
    pub(crate) fn check_ready(&self, topic: &str) -> Result<(), Problem> {
        if !self.stores(topic) {
            return Ok(());
        }
        if !self.is_loaded.load(Ordering::Acquire) {
            return Err(problem(
                code::STORE,
                format!("the keys of {} are not loaded yet; retry", brief(topic)),
            ));
        }
        match self.lock_failed().get(topic) {
            Some(why) => {
                let text = format!("the keys of {} cannot be read: {why}", brief(topic));
                Err(problem(code::STORE, text))
            }
            None => Ok(()),
        }
    }

    /// Waits until the keys of all existing streams are in memory.
    pub(super) async fn wait_until_loaded(&self) {
        self.waiting.wait_until(|| self.is_loaded()).await;
    }

    pub(super) fn is_loaded(&self) -> bool {
        self.is_loaded.load(Ordering::Acquire)
    }

    /// Returns whether a topic's key stream is open.
    pub(super) fn is_open(&self, topic: &str) -> bool {
        self.lock().contains_key(topic)
    }

    /// Returns the configuration of a new stream.
    pub(super) fn config(&self) -> &StreamConfig {
        &self.config
    }

    /// Reads a topic's keys from its stream, and stores its changes there from now on.
    pub(super) fn open(&self, topic: &str, stream: &Stream) -> Result<(), Problem> {
        let partition = single_partition(stream)?;
        let not_started = || problem(code::STORE, "the server has not started");
        let publisher = self.publisher.get().ok_or_else(not_started)?;
        let worker = self.worker.get().ok_or_else(not_started)?;
        if self.is_open(topic) {
            return Ok(());
        }
        let snapshot = load::read(topic, stream.created(), &partition)?;
        let restored = publisher.restore_keyed_topic(snapshot);
        if let Ok(Some(left_out @ 1..)) = restored {
            let text = format!("{left_out} keys exceed the limits of the server (limits.max_keyed_memory)");
            return Err(problem(code::STORE, text));
        }
        let stored = StoredTopic {
            name: topic.to_owned(),
            stream: stream.clone(),
            partition,
            queue: Mutex::default(),
            waker: Arc::new(TopicWaker { woken: AtomicBool::new(true), worker: worker.clone() }),
        };
        self.lock().entry(topic.to_owned()).or_insert_with(|| Arc::new(stored));
        Ok(())
    }

    /// Completes when a change is stored and applied, or has failed.
    pub(crate) fn wait_for(&self, topic: &str, ticket: u64) -> StoreFuture<()> {
        let Some(stored) = self.lock().get(topic).cloned() else {
            return Box::pin(std::future::ready(Ok(())));
        };
        let queue = stored.lock();
        let found = queue.changes.iter().find(|change| change.ticket == ticket);
        match found.map(|change| Arc::clone(&change.result)) {
            Some(result) => Box::pin(poll_fn(move |cx| result.poll(cx))),
            None => {
                let failed = queue.failed.iter().find(|(known, _)| *known == ticket);
                let result = failed.map_or(Ok(()), |(_, problem)| Err(problem.clone()));
                Box::pin(std::future::ready(result))
            }
        }
    }

    /// The streams are closed: waits until all their changes are applied.
    pub(crate) fn finish(&self) {
        self.closing.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.lock().take() {
            thread.thread().unpark();
            // A thread that has panicked has applied what it could.
            let _ = thread.join();
        }
        // A task that waits for a start that never comes.
        self.waiting.wake_all();
    }

    fn run(&self) {
        loop {
            let closing = self.closing.load(Ordering::SeqCst);
            let topics: Vec<Arc<StoredTopic>> = self
                .lock()
                .values()
                .filter(|topic| topic.waker.woken.swap(false, Ordering::AcqRel) || closing)
                .cloned()
                .collect();
            let Some(publisher) = self.publisher.get() else { return };
            topics.iter().for_each(|topic| topic.settle(publisher, &self.rejected));
            if closing {
                // The closed log has completed all appends; nothing would wake the others.
                return topics.iter().for_each(|topic| topic.fail_all());
            }
            if topics.is_empty() {
                thread::park();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<StoredTopic>>> {
        self.topics.lock()
    }

    fn lock_failed(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.failed.lock()
    }
}

impl KeyLog for DurableKeys {
    fn stores(&self, topic: &str) -> bool {
        self.patterns.is_on(topic) && TopicName::parse(topic).is_ok()
    }

    fn epoch(&self, topic: &str) -> Option<u64> {
        self.lock().get(topic).map(|stored| stored.stream.created())
    }

    fn append(&self, topic: &str, change: &LoggedChange<'_>) -> Result<u64, KeyError> {
        let stored = self.lock().get(topic).cloned().ok_or(KeyError::Log(KeyLogError::NotReady))?;
        let records = encode(change).map_err(|_| KeyError::Log(KeyLogError::TooLarge))?;
        let count = u64::from(records.count());
        // Locked first, so that the queue has the log's order.
        let mut queue = stored.lock();
        let pending = stored.partition.append(records).map_err(|error| {
            self.rejected.count(FaultCause::from_append(&error));
            KeyError::Log(match error {
                AppendError::Busy => KeyLogError::Busy,
                AppendError::NoSpace => KeyLogError::NoSpace,
                AppendError::TooLarge { .. } => KeyLogError::TooLarge,
                _ => KeyLogError::Failed,
            })
        })?;
        // This node's log assigns offsets at once.
        let sequence = pending.first().ok_or(KeyError::Log(KeyLogError::Failed))? + count;
        queue.changes.push_back(QueuedChange { ticket: change.ticket, pending, result: Arc::default() });
        drop(queue);
        // The thread registers its waker with the append.
        stored.waker.clone().wake();
        Ok(sequence)
    }
}

impl StoredTopic {
    fn lock(&self) -> MutexGuard<'_, ChangeQueue> {
        self.queue.lock()
    }

    /// Reports the changes as failed to their writers.
    fn fail_all(&self) {
        let changes = std::mem::take(&mut self.lock().changes);
        let error = problem(code::STORE, "the server stopped before the change was stored");
        changes.into_iter().for_each(|change| change.result.finish(Err(error.clone())));
    }

    /// Applies the stored changes, and drops the failed ones.
    fn settle(&self, publisher: &Publisher, rejected: &RejectedWrites) {
        let waker = Waker::from(self.waker.clone());
        let mut cx = Context::from_waker(&waker);
        loop {
            let mut queue = self.lock();
            let Some(first) = queue.changes.front_mut() else { return };
            let Poll::Ready(stored) = first.pending.poll(Durability::Disk, &mut cx) else { return };
            let (ticket, result) = (first.ticket, Arc::clone(&first.result));
            let stored = stored.map(drop).map_err(|error| {
                rejected.count(FaultCause::from_append(&error));
                Problem::from(error)
            });
            if let Err(problem) = &stored {
                if queue.failed.len() == FAILED_MAX {
                    queue.failed.pop_front();
                }
                queue.failed.push_back((ticket, problem.clone()));
            }
            // The topic's readers and writers lock it before the queue.
            drop(queue);
            match &stored {
                Ok(()) => publisher.commit_key(&self.name, ticket),
                Err(_) => publisher.abort_key(&self.name, ticket),
            }
            // Only this thread removes changes. Until it is applied, its writer finds it there.
            self.lock().changes.pop_front();
            result.finish(stored);
        }
    }
}
