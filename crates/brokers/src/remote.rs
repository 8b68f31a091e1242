//! Base for brokers with a Tokio client: one named thread runs the client, and other threads send it messages.

use std::collections::HashSet;
use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::runtime;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::LocalSet;

use sinews_stream::broker::{
    Broker, BrokerError, BrokerHealth, BrokerResponder, BrokerResponse, FlushOutcome, LogSink, STREAMS_MAX,
};
use sinews_stream::record::Records;
use sinews_stream::{AppendError, Completer, Durability, Partition, Pending, ReadResult, StartPosition};

use crate::error::BrokerConfigError;
use crate::followed;
use crate::lock::lock;
use crate::status::Status;
use crate::url::BrokerUrl;

/// Maximum pending appends; [`QUEUE_BYTES`] limits their bytes.
const QUEUE_APPENDS: usize = 65_536;
/// Default of the setting `queue.bytes`: maximum bytes that wait for the broker's acknowledgement.
pub(crate) const QUEUE_BYTES: u64 = 64 << 20;
/// Maximum pending requests. Each is answered or fails within seconds.
const REQUESTS_MAX: usize = 1024;
/// Maximum fetches of old records that run at the same time; further ones wait. Each may hold a record of 8 MiB in
/// addition to its maximum of bytes.
const FETCHES_MAX: usize = 16;
/// Maximum time that a fetch waits for others to end.
const FETCH_WAIT: Duration = Duration::from_secs(5);
/// Health probe interval.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);
/// Request timeout.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Request retry interval on a connection that continues.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// An engine's operations, on its thread. Each call is a separate task.
pub(crate) trait BrokerEngine: 'static {
    /// Maximum records in an append.
    const RECORDS_MAX: u32 = u32::MAX;

    /// Stores appends in order, and reconnects as often as necessary, until the queue is closed. An append with
    /// [`is_once`](QueuedAppend::is_once) is stored once, also if several nodes publish it at the same time.
    async fn publish(&self, queue: mpsc::Receiver<QueuedAppend>);
    /// Writes the partition's records into the sink indefinitely. Returns the reason if that is impossible.
    async fn follow(&self, stream: &str, partition: u32, from: StartPosition, sink: &mut LogSink) -> String;
    async fn fetch(
        &self,
        stream: &str,
        partition: u32,
        from: u64,
        max_bytes: usize,
    ) -> Result<ReadResult, BrokerError>;
    async fn offset_range(&self, stream: &str, partition: u32) -> Result<(u64, u64), BrokerError>;
    async fn partitions(&self, stream: &str) -> Result<u32, BrokerError>;
    async fn streams(&self) -> Result<Vec<String>, BrokerError>;
    async fn commit(&self, stream: &str, partition: u32, group: &str, offset: u64)
    -> Result<(), BrokerError>;
    async fn committed(&self, stream: &str, partition: u32, group: &str) -> Result<Option<u64>, BrokerError>;
    /// Whether the broker answers.
    async fn probe(&self) -> Result<(), String>;
    /// Whether the broker accepts appends again, called while they fail; none if only an append can show it.
    async fn probe_append(&self) -> Option<Result<(), String>> {
        None
    }
    /// Additional work while the connection is open.
    async fn run(&self) {}
}

/// A connection to a broker with such an engine.
pub(crate) struct RemoteBroker {
    /// None once closed.
    senders: Mutex<Option<Senders>>,
    budget: Arc<QueueBudget>,
    records_max: u32,
    close_timeout_ms: Arc<AtomicU64>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Clone)]
struct Senders {
    outgoing: mpsc::Sender<QueuedAppend>,
    requests: mpsc::Sender<(BrokerRequest, OwnedSemaphorePermit)>,
    /// Permits for pending requests.
    permits: Arc<Semaphore>,
    /// One message per partition that this node stores, so the channel need not be bounded.
    follows: mpsc::UnboundedSender<FollowRequest>,
}

/// The bytes pending for the broker, and its health.
struct QueueBudget {
    status: Arc<Status>,
    bytes: AtomicUsize,
    bytes_max: usize,
}

struct FollowRequest {
    stream: String,
    partition: u32,
    from: StartPosition,
    sink: Partition,
}

enum BrokerRequest {
    Fetch(StreamPartition, u64, usize, BrokerResponder<ReadResult>),
    OffsetRange(StreamPartition, BrokerResponder<(u64, u64)>),
    Partitions(String, BrokerResponder<u32>),
    Streams(BrokerResponder<Vec<String>>),
    Commit(StreamPartition, String, u64, BrokerResponder<()>),
    Committed(StreamPartition, String, BrokerResponder<Option<u64>>),
}

type StreamPartition = (String, u32);

/// Records on the way to the broker. Dropping them without an answer fails the append.
pub(crate) struct QueuedAppend {
    pub(crate) stream: String,
    pub(crate) partition: u32,
    pub(crate) records: Records,
    /// Whether the broker stores the record once, by its idempotency key.
    pub(crate) is_once: bool,
    completer: Option<Completer>,
    budget: Arc<QueueBudget>,
    /// This node's readers do not see records below this offset.
    min_offset: u64,
}

impl QueuedAppend {
    /// Creates an append outside a queue, and its outcome.
    #[cfg(all(test, any(feature = "redis", feature = "nats")))]
    pub(crate) fn without_queue(records: Records, status: Arc<Status>) -> (Self, Pending) {
        let (bytes, count) = (records.bytes().len(), records.count());
        status.sent(count.into());
        let (completer, pending) = Pending::channel(count);
        let budget = QueueBudget { status, bytes: AtomicUsize::new(bytes), bytes_max: bytes };
        let append = Self {
            stream: "s".to_owned(),
            partition: 0,
            records,
            is_once: false,
            completer: Some(completer),
            budget: Arc::new(budget),
            min_offset: 0,
        };
        (append, pending)
    }

    /// Completes the append: the broker has the records from this offset on.
    pub(crate) fn acknowledge(mut self, first: u64) {
        if first < self.min_offset {
            let reason = followed::recreated(first, self.min_offset);
            return self.reject_unseen(&reason);
        }
        self.budget.status.append_succeeded();
        self.release_budget();
        if let Some(completer) = self.completer.take() {
            completer.reached(Durability::Broker, first);
        }
    }

    /// Completes the append: the broker had the record already, at this offset.
    pub(crate) fn acknowledge_repeated(mut self, first: u64) {
        self.budget.status.append_succeeded();
        self.release_budget();
        if let Some(completer) = self.completer.take() {
            completer.repeated(first);
        }
    }

    /// Rejects an append that this node's readers would not see, and ends following the partition.
    pub(crate) fn reject_unseen(self, reason: &str) {
        let status = &self.budget.status;
        status.followed.stop(&self.stream, self.partition, reason);
        status.mark_not_followed(&format!("{}/{}", self.stream, self.partition), reason);
        self.reject(reason);
    }

    /// Fails an append that the broker has not stored or not confirmed.
    pub(crate) fn fail(self, reason: &str) {
        self.budget.status.append_failed(reason);
        self.reject(reason);
    }

    /// Fails an append for a reason that does not concern other appends.
    pub(crate) fn reject(mut self, reason: &str) {
        self.budget.status.record_error(reason);
        self.release_budget();
        if let Some(completer) = self.completer.take() {
            completer.fail(AppendError::Broker(reason.into()));
        }
    }

    fn release_budget(&self) {
        if self.completer.is_some() {
            self.budget.bytes.fetch_sub(self.records.bytes().len(), Ordering::SeqCst);
            self.budget.status.completed(self.records.count().into());
        }
    }
}

impl Drop for QueuedAppend {
    fn drop(&mut self) {
        self.release_budget();
        if let Some(completer) = self.completer.take() {
            completer.fail(AppendError::Broker(
                "the connection was closed: the records may or may not be stored".into(),
            ));
        }
    }
}

impl RemoteBroker {
    /// Starts the thread, which creates the engine: the engine's state stays on it.
    pub(crate) fn start<E: BrokerEngine>(
        name: &str,
        address: &BrokerUrl,
        bytes_max: u64,
        status: Arc<Status>,
        make: impl FnOnce() -> E + Send + 'static,
    ) -> Result<Self, BrokerConfigError> {
        let client = |error: std::io::Error| BrokerConfigError::Client {
            broker: address.to_string(),
            reason: error.to_string(),
        };
        let (outgoing, queue) = mpsc::channel(QUEUE_APPENDS);
        let (request_sender, requests) = mpsc::channel(REQUESTS_MAX);
        let (follow_sender, follows) = mpsc::unbounded_channel();
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let budget = Arc::new(QueueBudget { status: status.clone(), bytes: AtomicUsize::new(0), bytes_max });
        let close_timeout_ms = Arc::new(AtomicU64::new(0));
        let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(client)?;
        let timeout = close_timeout_ms.clone();
        let run = move || {
            let engine = Rc::new(make());
            let all = LocalSet::new();
            all.spawn_local({
                let engine = engine.clone();
                async move { engine.publish(queue).await }
            });
            all.block_on(&runtime, serve(engine, requests, follows, status, &timeout));
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run).map_err(client)?;
        let permits = Arc::new(Semaphore::new(REQUESTS_MAX));
        let senders = Senders { outgoing, requests: request_sender, permits, follows: follow_sender };
        Ok(Self {
            senders: Mutex::new(Some(senders)),
            budget,
            records_max: E::RECORDS_MAX,
            close_timeout_ms,
            thread: Mutex::new(Some(thread)),
        })
    }

    fn senders(&self) -> Option<Senders> {
        lock(&self.senders).clone()
    }

    fn send_request<T>(
        &self,
        request: impl FnOnce(BrokerResponder<T>) -> BrokerRequest,
    ) -> BrokerResponse<T> {
        let Some(senders) = self.senders() else { return BrokerResponse::ready(Err(BrokerError::Closed)) };
        let Ok(permit) = senders.permits.try_acquire_owned() else {
            return BrokerResponse::ready(Err(BrokerError::Busy));
        };
        let (reply, answer) = BrokerResponse::channel();
        // The channel has a slot for each permit, so sending fails only if the thread has ended.
        match senders.requests.try_send((request(reply), permit)) {
            Ok(()) => answer,
            Err(_) => BrokerResponse::ready(Err(BrokerError::Closed)),
        }
    }
}

impl RemoteBroker {
    fn queue(
        &self,
        stream: &str,
        partition: u32,
        records: Records,
        is_once: bool,
    ) -> Result<Pending, AppendError> {
        let outgoing = self.senders().ok_or(AppendError::Closed)?.outgoing;
        let (bytes, count) = (records.bytes().len(), records.count());
        if count > self.records_max {
            return Err(AppendError::TooManyRecords { count, most: self.records_max });
        }
        let min_offset = self.budget.status.followed.min_offset(stream, partition)?;
        let Ok(slot) = outgoing.try_reserve() else {
            self.budget.status.note_queue_full();
            return Err(if outgoing.is_closed() { AppendError::Closed } else { AppendError::Busy });
        };
        // One append may always wait, regardless of its size.
        let before = self.budget.bytes.fetch_add(bytes, Ordering::SeqCst);
        if before > 0 && before + bytes > self.budget.bytes_max {
            self.budget.bytes.fetch_sub(bytes, Ordering::SeqCst);
            self.budget.status.note_queue_full();
            return Err(AppendError::Busy);
        }
        self.budget.status.sent(count.into());
        let (completer, pending) = Pending::channel(count);
        slot.send(QueuedAppend {
            stream: stream.to_owned(),
            partition,
            records,
            is_once,
            completer: Some(completer),
            budget: self.budget.clone(),
            min_offset,
        });
        Ok(pending)
    }
}

impl Broker for RemoteBroker {
    fn publish(&self, stream: &str, partition: u32, records: Records) -> Result<Pending, AppendError> {
        self.queue(stream, partition, records, false)
    }

    fn publish_once(&self, stream: &str, partition: u32, records: Records) -> Result<Pending, AppendError> {
        self.queue(stream, partition, records, true)
    }

    fn deduplicates(&self) -> bool {
        true
    }

    fn has_queue_space(&self, batches: &[&Records]) -> bool {
        // Without a queue, the publication reports that the broker is closed.
        let has_slots = |senders: Senders| senders.outgoing.capacity() >= batches.len();
        let bytes: usize = batches.iter().map(|records| records.bytes().len()).sum();
        let before = self.budget.bytes.load(Ordering::SeqCst);
        let is_first_of_one = before == 0 && batches.len() == 1;
        self.senders().is_none_or(has_slots) && (is_first_of_one || before + bytes <= self.budget.bytes_max)
    }

    fn watch_queue_space(&self, waker: &Waker) -> bool {
        self.budget.status.watch_queue_space(waker)
    }

    fn follow(&self, stream: &str, partition: u32, from: StartPosition, sink: Partition) {
        if let Some(senders) = self.senders() {
            self.budget.status.followed.add(stream, partition, from, &sink);
            // Without a receiver the connection is being closed.
            let _ = senders.follows.send(FollowRequest { stream: stream.to_owned(), partition, from, sink });
        }
    }

    fn fetch(&self, stream: &str, partition: u32, from: u64, max_bytes: usize) -> BrokerResponse<ReadResult> {
        self.send_request(|reply| {
            BrokerRequest::Fetch((stream.to_owned(), partition), from, max_bytes, reply)
        })
    }

    fn offset_range(&self, stream: &str, partition: u32) -> BrokerResponse<(u64, u64)> {
        self.send_request(|reply| BrokerRequest::OffsetRange((stream.to_owned(), partition), reply))
    }

    fn partitions(&self, stream: &str) -> BrokerResponse<u32> {
        self.send_request(|reply| BrokerRequest::Partitions(stream.to_owned(), reply))
    }

    fn streams(&self) -> BrokerResponse<Vec<String>> {
        self.send_request(BrokerRequest::Streams)
    }

    fn first_offset(&self) -> u64 {
        1
    }

    fn creates_partitions(&self) -> bool {
        true
    }

    fn commit(&self, stream: &str, partition: u32, group: &str, offset: u64) -> BrokerResponse<()> {
        self.send_request(|reply| {
            BrokerRequest::Commit((stream.to_owned(), partition), group.to_owned(), offset, reply)
        })
    }

    fn committed(&self, stream: &str, partition: u32, group: &str) -> BrokerResponse<Option<u64>> {
        self.send_request(|reply| {
            BrokerRequest::Committed((stream.to_owned(), partition), group.to_owned(), reply)
        })
    }

    fn health(&self) -> BrokerHealth {
        self.budget.status.health()
    }

    fn close(&self, within: Duration) {
        self.close_timeout_ms.store(u64::try_from(within.as_millis()).unwrap_or(u64::MAX), Ordering::SeqCst);
        lock(&self.senders).take();
        if let Some(thread) = lock(&self.thread).take() {
            // The thread returns no value, and a panic was already printed.
            let _ = thread.join();
        }
        self.budget.status.wake_waiters();
    }
}

impl Drop for RemoteBroker {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

/// Runs until the senders are dropped, and then up to the time limit for pending work.
async fn serve<E: BrokerEngine>(
    engine: Rc<E>,
    mut requests: mpsc::Receiver<(BrokerRequest, OwnedSemaphorePermit)>,
    mut follows: mpsc::UnboundedReceiver<FollowRequest>,
    status: Arc<Status>,
    close_timeout_ms: &AtomicU64,
) {
    tokio::task::spawn_local({
        let (engine, status) = (engine.clone(), status.clone());
        async move { probe(&*engine, &status).await }
    });
    tokio::task::spawn_local({
        let engine = engine.clone();
        async move { engine.run().await }
    });
    tokio::task::spawn_local({
        let (engine, status) = (engine.clone(), status.clone());
        async move {
            let mut known = HashSet::new();
            while let Some(follow) = follows.recv().await {
                if known.insert((follow.stream.clone(), follow.partition)) {
                    tokio::task::spawn_local(follow_partition(engine.clone(), follow, status.clone()));
                }
            }
        }
    });
    let fetches = Rc::new(Semaphore::new(FETCHES_MAX));
    while let Some((request, permit)) = requests.recv().await {
        let (engine, fetches) = (engine.clone(), fetches.clone());
        tokio::task::spawn_local(async move {
            answer(engine, request, &fetches).await;
            drop(permit);
        });
    }
    let end = Instant::now() + Duration::from_millis(close_timeout_ms.load(Ordering::SeqCst));
    while status.health().waiting > 0 && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn probe<E: BrokerEngine>(engine: &E, status: &Status) {
    loop {
        match tokio::time::timeout(REQUEST_TIMEOUT, engine.probe()).await {
            Ok(Ok(())) => status.mark_reachable(),
            Ok(Err(reason)) => status.mark_unreachable(&reason),
            Err(_) => status.mark_unreachable("no answer in time"),
        }
        if status.is_failing()
            && let Ok(Some(answer)) = tokio::time::timeout(REQUEST_TIMEOUT, engine.probe_append()).await
        {
            match answer {
                Ok(()) => status.append_succeeded(),
                Err(reason) => status.append_failed(&reason),
            }
        }
        status.wake_waiters_if_due();
        tokio::time::sleep(PROBE_INTERVAL).await;
    }
}

async fn follow_partition<E: BrokerEngine>(engine: Rc<E>, follow: FollowRequest, status: Arc<Status>) {
    let FollowRequest { stream, partition, from, sink } = follow;
    let mut sink = LogSink::new(sink);
    let reason = engine.follow(&stream, partition, from, &mut sink).await;
    status.followed.stop(&stream, partition, &reason);
    status.mark_not_followed(&format!("{stream}/{partition}"), &reason);
}

async fn answer<E: BrokerEngine>(engine: Rc<E>, request: BrokerRequest, fetches: &Semaphore) {
    match request {
        BrokerRequest::Fetch((stream, partition), from, max_bytes, reply) => {
            // The wait does not shorten the time of the fetch.
            let fetched = match tokio::time::timeout(FETCH_WAIT, fetches.acquire()).await {
                Ok(_permit) => in_time(engine.fetch(&stream, partition, from, max_bytes)).await,
                Err(_) => Err(BrokerError::failed(format!(
                    "{FETCHES_MAX} reads of old records run at the same time, and none of them ended within {} s",
                    FETCH_WAIT.as_secs()
                ))),
            };
            reply.send(fetched);
        }
        BrokerRequest::OffsetRange((stream, partition), reply) => {
            reply.send(in_time(engine.offset_range(&stream, partition)).await);
        }
        BrokerRequest::Partitions(stream, reply) => {
            reply.send(in_time(engine.partitions(&stream)).await);
        }
        BrokerRequest::Streams(reply) => {
            reply.send(in_time(engine.streams()).await);
        }
        BrokerRequest::Commit((stream, partition), group, offset, reply) => {
            reply.send(in_time(engine.commit(&stream, partition, &group, offset)).await);
        }
        BrokerRequest::Committed((stream, partition), group, reply) => {
            reply.send(in_time(engine.committed(&stream, partition, &group)).await);
        }
    }
}

/// The error for a broker that has more streams than [`STREAMS_MAX`].
pub(crate) fn too_many_streams() -> BrokerError {
    BrokerError::failed(format!("the broker has more than {STREAMS_MAX} streams"))
}

async fn in_time<T>(answer: impl Future<Output = Result<T, BrokerError>>) -> Result<T, BrokerError> {
    let answer = tokio::time::timeout(REQUEST_TIMEOUT, answer).await;
    answer.unwrap_or_else(|_| Err(BrokerError::failed("the broker did not answer in time")))
}

/// Wakes a task of the thread from any thread.
#[derive(Default)]
pub(crate) struct WakeSignal(Notify);

impl WakeSignal {
    pub(crate) fn notify(&self) {
        self.0.notify_one();
    }

    pub(crate) async fn notified(&self) {
        self.0.notified().await;
    }
}

impl Wake for WakeSignal {
    fn wake(self: Arc<Self>) {
        self.notify();
    }
}

/// Waits until the log has all the sink's records.
pub(crate) async fn flush_all(sink: &mut LogSink, name: &str, status: &Status) -> Result<(), String> {
    let wake_signal = Arc::new(WakeSignal::default());
    let waker = Waker::from(wake_signal.clone());
    let mut is_stopped = false;
    loop {
        match sink.flush(&waker).map_err(|error| error.to_string())? {
            FlushOutcome::Accepted => break,
            FlushOutcome::QueueFull => wake_signal.notified().await,
            FlushOutcome::NoSpace => {
                status.mark_not_followed(name, &AppendError::NoSpace.to_string());
                is_stopped = true;
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }
    if is_stopped {
        status.mark_followed(name);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::future::pending;

    use sinews_stream::broker::BatchEncoder;

    use super::*;

    /// Less than the timeout of a request; more than half of it.
    const FETCH_TIME: Duration = Duration::from_secs(4);

    /// A broker that answers commits only with a permit, and fetches after [`FETCH_TIME`].
    struct SlowBroker {
        requested: Arc<AtomicUsize>,
        permits: Arc<Semaphore>,
    }

    impl BrokerEngine for SlowBroker {
        async fn publish(&self, _: mpsc::Receiver<QueuedAppend>) {
            pending().await
        }

        async fn follow(&self, _: &str, _: u32, _: StartPosition, _: &mut LogSink) -> String {
            pending().await
        }

        async fn fetch(&self, _: &str, _: u32, from: u64, _: usize) -> Result<ReadResult, BrokerError> {
            tokio::time::sleep(FETCH_TIME).await;
            Ok(BatchEncoder::new(from).finish())
        }

        async fn offset_range(&self, _: &str, _: u32) -> Result<(u64, u64), BrokerError> {
            pending().await
        }

        async fn partitions(&self, _: &str) -> Result<u32, BrokerError> {
            pending().await
        }

        async fn streams(&self) -> Result<Vec<String>, BrokerError> {
            pending().await
        }

        async fn commit(&self, _: &str, _: u32, _: &str, _: u64) -> Result<(), BrokerError> {
            self.requested.fetch_add(1, Ordering::SeqCst);
            self.permits.acquire().await.map(|_| ()).map_err(BrokerError::failed)
        }

        async fn committed(&self, _: &str, _: u32, _: &str) -> Result<Option<u64>, BrokerError> {
            pending().await
        }

        async fn probe(&self) -> Result<(), String> {
            Ok(())
        }
    }

    #[test]
    fn pending_requests_are_limited_to_1024() {
        let address = BrokerUrl::parse("redis://127.0.0.1:1", &BTreeMap::new()).unwrap();
        let status = Arc::new(Status::new("slow".to_owned(), Duration::ZERO));
        let (requested, permits) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let engine = SlowBroker { requested: requested.clone(), permits: permits.clone() };
        let slow = RemoteBroker::start("slow", &address, QUEUE_BYTES, status, || engine).unwrap();
        let answers: Vec<_> = (0..REQUESTS_MAX).map(|_| slow.commit("s", 0, "g", 1)).collect();
        while requested.load(Ordering::SeqCst) < REQUESTS_MAX {
            thread::yield_now();
        }
        assert_eq!(slow.commit("s", 0, "g", 1).block(), Err(BrokerError::Busy));
        permits.add_permits(1);
        assert!(answers.into_iter().all(|answer| answer.block() != Err(BrokerError::Busy)));
        // The last answer arrives a moment before its permit is released.
        while slow.commit("s", 0, "g", 1).block() == Err(BrokerError::Busy) {
            thread::yield_now();
        }
    }

    #[test]
    fn fetch_that_waits_for_others_has_as_much_time() {
        let runtime =
            runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let engine = Rc::new(SlowBroker { requested: Arc::default(), permits: Arc::new(Semaphore::new(0)) });
        let fetches = Rc::new(Semaphore::new(1));
        let all = LocalSet::new();
        let fetched = [1, 2, 3].map(|from| {
            let (reply, response) = BrokerResponse::channel();
            let request = BrokerRequest::Fetch(("s".to_owned(), 0), from, 1, reply);
            let (engine, fetches) = (engine.clone(), fetches.clone());
            all.spawn_local(async move { answer(engine, request, &fetches).await });
            response
        });
        all.block_on(&runtime, async {
            let [first, second, third] = fetched;
            assert_eq!(first.await.map(|read| read.next), Ok(1));
            // The second one ends 8 seconds after its request.
            assert_eq!(second.await.map(|read| read.next), Ok(2));
            let reason = third.await.map(|read| read.next).unwrap_err().to_string();
            assert!(reason.contains("within 5 s"), "{reason}");
        });
    }
}
