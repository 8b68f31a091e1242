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

use super::address::Address;
use super::answer::Reply;
use super::sink::{Flow, Sink};
use super::status::{Status, lock};
use super::{Answer, Broker, BrokerError, ConnectError, Health, visible};
use crate::record::Records;
use crate::{AppendError, Completer, Durability, Partition, Pending, Read, Start};

/// Maximum number of pending appends; [`QUEUE_BYTES`] limits their bytes.
const QUEUE_APPENDS: usize = 65_536;
/// Default of the setting `queue.bytes`: maximum bytes that wait for the broker's acknowledgement.
pub(super) const QUEUE_BYTES: u64 = 64 << 20;
/// Maximum number of pending requests. Each is answered or fails within seconds.
const QUESTIONS_MAX: usize = 1024;
/// Interval of the health probe.
const PROBE_EVERY: Duration = Duration::from_secs(2);
/// Timeout of a request.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Retry interval.
pub(super) const RETRY_EVERY: Duration = Duration::from_millis(500);

/// Operations of an engine, on its thread. Each call is a separate task.
pub(super) trait Engine: 'static {
    /// Stores appends in order, and reconnects as often as necessary, until the queue is closed.
    async fn publish(&self, queue: mpsc::Receiver<Outgoing>);
    /// Writes the partition's records into the sink indefinitely. Returns the reason if that is impossible.
    async fn follow(&self, stream: &str, partition: u32, from: Start, sink: &mut Sink) -> String;
    async fn fetch(
        &self,
        stream: &str,
        partition: u32,
        from: u64,
        max_bytes: usize,
    ) -> Result<Read, BrokerError>;
    async fn ends(&self, stream: &str, partition: u32) -> Result<(u64, u64), BrokerError>;
    async fn partitions(&self, stream: &str) -> Result<u32, BrokerError>;
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
pub(super) struct Remote {
    /// None once closed.
    ends: Mutex<Option<Ends>>,
    line: Arc<Line>,
    within: Arc<AtomicU64>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Clone)]
struct Ends {
    outgoing: mpsc::Sender<Outgoing>,
    questions: mpsc::Sender<(Question, OwnedSemaphorePermit)>,
    /// Permits for pending requests.
    places: Arc<Semaphore>,
    /// One message per partition that this node stores, so the channel need not be bounded.
    follows: mpsc::UnboundedSender<Follow>,
}

/// The bytes pending for the broker, and its health.
struct Line {
    status: Arc<Status>,
    bytes: AtomicUsize,
    bytes_max: usize,
}

struct Follow {
    stream: String,
    partition: u32,
    from: Start,
    sink: Partition,
}

enum Question {
    Fetch(Place, u64, usize, Reply<Read>),
    Ends(Place, Reply<(u64, u64)>),
    Partitions(String, Reply<u32>),
    Commit(Place, String, u64, Reply<()>),
    Committed(Place, String, Reply<Option<u64>>),
}

type Place = (String, u32);

/// Records on the way to the broker. Dropping them without an answer fails the append.
pub(super) struct Outgoing {
    pub(super) stream: String,
    pub(super) partition: u32,
    pub(super) records: Records,
    completer: Option<Completer>,
    line: Arc<Line>,
    /// Readers of this node do not see records below this offset.
    least: u64,
}

impl Outgoing {
    /// Completes the append: the broker has the records from this offset on.
    pub(super) fn acknowledge(mut self, first: u64) {
        if first < self.least {
            let why = visible::made_anew(first, self.least);
            return self.reject_unseen(&why);
        }
        self.line.status.append_succeeded();
        self.leave();
        if let Some(completer) = self.completer.take() {
            completer.reached(Durability::Broker, first);
        }
    }

    /// Rejects an append that readers of this node would not see, and ends following the partition.
    pub(super) fn reject_unseen(self, why: &str) {
        let status = &self.line.status;
        status.visible.end(&self.stream, self.partition, why);
        status.stopped(&format!("{}/{}", self.stream, self.partition), why);
        self.reject(why);
    }

    /// Fails an append that the broker has not stored or not confirmed.
    pub(super) fn refuse(self, why: &str) {
        self.line.status.append_failed(why);
        self.reject(why);
    }

    /// Fails an append for a reason that does not concern other appends.
    pub(super) fn reject(mut self, why: &str) {
        self.line.status.note(why);
        self.leave();
        if let Some(completer) = self.completer.take() {
            completer.fail(AppendError::Broker(why.into()));
        }
    }

    fn leave(&self) {
        if self.completer.is_some() {
            self.line.bytes.fetch_sub(self.records.bytes().len(), Ordering::SeqCst);
            self.line.status.landed(self.records.count().into());
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.leave();
        if let Some(completer) = self.completer.take() {
            completer.fail(AppendError::Broker(
                "the connection was closed: the records may or may not be stored".into(),
            ));
        }
    }
}

impl Remote {
    /// Starts the thread, which creates the engine: the engine's state stays on it.
    pub(super) fn start<E: Engine>(
        name: &str,
        address: &Address,
        bytes_max: u64,
        status: Arc<Status>,
        make: impl FnOnce() -> E + Send + 'static,
    ) -> Result<Self, ConnectError> {
        let client = |error: std::io::Error| ConnectError::Client {
            broker: address.to_string(),
            why: error.to_string(),
        };
        let (outgoing, queue) = mpsc::channel(QUEUE_APPENDS);
        let (asked, questions) = mpsc::channel(QUESTIONS_MAX);
        let (added, follows) = mpsc::unbounded_channel();
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        let line = Arc::new(Line { status: status.clone(), bytes: AtomicUsize::new(0), bytes_max });
        let within = Arc::new(AtomicU64::new(0));
        let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(client)?;
        let limit = within.clone();
        let run = move || {
            let engine = Rc::new(make());
            let all = LocalSet::new();
            all.spawn_local({
                let engine = engine.clone();
                async move { engine.publish(queue).await }
            });
            all.block_on(&runtime, serve(engine, questions, follows, status, &limit));
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run).map_err(client)?;
        let places = Arc::new(Semaphore::new(QUESTIONS_MAX));
        let ends = Ends { outgoing, questions: asked, places, follows: added };
        Ok(Self { ends: Mutex::new(Some(ends)), line, within, thread: Mutex::new(Some(thread)) })
    }

    fn ends(&self) -> Option<Ends> {
        lock(&self.ends).clone()
    }

    fn ask<T>(&self, question: impl FnOnce(Reply<T>) -> Question) -> Answer<T> {
        let Some(ends) = self.ends() else { return Answer::ready(Err(BrokerError::Closed)) };
        let Ok(place) = ends.places.try_acquire_owned() else {
            return Answer::ready(Err(BrokerError::Busy));
        };
        let (reply, answer) = Answer::channel();
        // The channel has a slot for each permit, so sending fails only if the thread has ended.
        match ends.questions.try_send((question(reply), place)) {
            Ok(()) => answer,
            Err(_) => Answer::ready(Err(BrokerError::Closed)),
        }
    }
}

impl Broker for Remote {
    fn publish(&self, stream: &str, partition: u32, records: Records) -> Result<Pending, AppendError> {
        let outgoing = self.ends().ok_or(AppendError::Closed)?.outgoing;
        let (bytes, count) = (records.bytes().len(), records.count());
        let least = self.line.status.visible.least_offset(stream, partition)?;
        let Ok(place) = outgoing.try_reserve() else {
            self.line.status.starve();
            return Err(if outgoing.is_closed() { AppendError::Closed } else { AppendError::Busy });
        };
        // One append may always wait, regardless of its size.
        let before = self.line.bytes.fetch_add(bytes, Ordering::SeqCst);
        if before > 0 && before + bytes > self.line.bytes_max {
            self.line.bytes.fetch_sub(bytes, Ordering::SeqCst);
            self.line.status.starve();
            return Err(AppendError::Busy);
        }
        self.line.status.sent(count.into());
        let (completer, pending) = Pending::channel(count);
        place.send(Outgoing {
            stream: stream.to_owned(),
            partition,
            records,
            completer: Some(completer),
            line: self.line.clone(),
            least,
        });
        Ok(pending)
    }

    fn room(&self, waker: &Waker) -> bool {
        self.line.status.room(waker)
    }

    fn follow(&self, stream: &str, partition: u32, from: Start, sink: Partition) {
        if let Some(ends) = self.ends() {
            self.line.status.visible.follow(stream, partition, from, &sink);
            // Without a receiver the connection is being closed.
            let _ = ends.follows.send(Follow { stream: stream.to_owned(), partition, from, sink });
        }
    }

    fn fetch(&self, stream: &str, partition: u32, from: u64, max_bytes: usize) -> Answer<Read> {
        self.ask(|reply| Question::Fetch((stream.to_owned(), partition), from, max_bytes, reply))
    }

    fn ends(&self, stream: &str, partition: u32) -> Answer<(u64, u64)> {
        self.ask(|reply| Question::Ends((stream.to_owned(), partition), reply))
    }

    fn partitions(&self, stream: &str) -> Answer<u32> {
        self.ask(|reply| Question::Partitions(stream.to_owned(), reply))
    }

    fn first_offset(&self) -> u64 {
        1
    }

    fn makes_partitions(&self) -> bool {
        true
    }

    fn commit(&self, stream: &str, partition: u32, group: &str, offset: u64) -> Answer<()> {
        self.ask(|reply| Question::Commit((stream.to_owned(), partition), group.to_owned(), offset, reply))
    }

    fn committed(&self, stream: &str, partition: u32, group: &str) -> Answer<Option<u64>> {
        self.ask(|reply| Question::Committed((stream.to_owned(), partition), group.to_owned(), reply))
    }

    fn health(&self) -> Health {
        self.line.status.health()
    }

    fn close(&self, within: Duration) {
        self.within.store(u64::try_from(within.as_millis()).unwrap_or(u64::MAX), Ordering::SeqCst);
        lock(&self.ends).take();
        if let Some(thread) = lock(&self.thread).take() {
            // The thread returns no value, and a panic was already printed.
            let _ = thread.join();
        }
        self.line.status.feed();
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

/// Runs until the senders are dropped, and then up to the time limit for pending work.
async fn serve<E: Engine>(
    engine: Rc<E>,
    mut questions: mpsc::Receiver<(Question, OwnedSemaphorePermit)>,
    mut follows: mpsc::UnboundedReceiver<Follow>,
    status: Arc<Status>,
    within: &AtomicU64,
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
                    tokio::task::spawn_local(begin(engine.clone(), follow, status.clone()));
                }
            }
        }
    });
    while let Some((question, place)) = questions.recv().await {
        let engine = engine.clone();
        tokio::task::spawn_local(async move {
            answer(engine, question).await;
            drop(place);
        });
    }
    let end = Instant::now() + Duration::from_millis(within.load(Ordering::SeqCst));
    while status.health().waiting > 0 && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn probe<E: Engine>(engine: &E, status: &Status) {
    loop {
        match tokio::time::timeout(ANSWER_WITHIN, engine.probe()).await {
            Ok(Ok(())) => status.is_up(),
            Ok(Err(why)) => status.is_down(&why),
            Err(_) => status.is_down("no answer in time"),
        }
        if status.is_failing()
            && let Ok(Some(answer)) = tokio::time::timeout(ANSWER_WITHIN, engine.probe_append()).await
        {
            match answer {
                Ok(()) => status.append_succeeded(),
                Err(why) => status.append_failed(&why),
            }
        }
        status.feed_if_due();
        tokio::time::sleep(PROBE_EVERY).await;
    }
}

async fn begin<E: Engine>(engine: Rc<E>, follow: Follow, status: Arc<Status>) {
    let Follow { stream, partition, from, sink } = follow;
    let mut sink = Sink::new(sink);
    let why = engine.follow(&stream, partition, from, &mut sink).await;
    status.visible.end(&stream, partition, &why);
    status.stopped(&format!("{stream}/{partition}"), &why);
}

async fn answer<E: Engine>(engine: Rc<E>, question: Question) {
    // The requester may have dropped the answer.
    match question {
        Question::Fetch((stream, partition), from, max_bytes, reply) => {
            let _ = reply.send(in_time(engine.fetch(&stream, partition, from, max_bytes)).await);
        }
        Question::Ends((stream, partition), reply) => {
            let _ = reply.send(in_time(engine.ends(&stream, partition)).await);
        }
        Question::Partitions(stream, reply) => {
            let _ = reply.send(in_time(engine.partitions(&stream)).await);
        }
        Question::Commit((stream, partition), group, offset, reply) => {
            let _ = reply.send(in_time(engine.commit(&stream, partition, &group, offset)).await);
        }
        Question::Committed((stream, partition), group, reply) => {
            let _ = reply.send(in_time(engine.committed(&stream, partition, &group)).await);
        }
    }
}

async fn in_time<T>(answer: impl Future<Output = Result<T, BrokerError>>) -> Result<T, BrokerError> {
    let answer = tokio::time::timeout(ANSWER_WITHIN, answer).await;
    answer.unwrap_or_else(|_| Err(BrokerError::Failed("the broker did not answer in time".into())))
}

/// Wakes a task of the thread from any thread.
#[derive(Default)]
pub(super) struct Bell(Notify);

impl Bell {
    pub(super) fn ring(&self) {
        self.0.notify_one();
    }

    pub(super) async fn rung(&self) {
        self.0.notified().await;
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
}

/// Waits until the log has all records of the sink.
pub(super) async fn settle(sink: &mut Sink, name: &str, status: &Status) -> Result<(), String> {
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(bell.clone());
    let mut is_stopped = false;
    loop {
        match sink.flush(&waker).map_err(|error| error.to_string())? {
            Flow::On => break,
            Flow::Full => bell.rung().await,
            Flow::NoSpace => {
                status.stopped(name, &AppendError::NoSpace.to_string());
                is_stopped = true;
                tokio::time::sleep(RETRY_EVERY).await;
            }
        }
    }
    if is_stopped {
        status.goes_on(name);
    }
    Ok(())
}

pub(super) fn failed(why: impl std::fmt::Display) -> BrokerError {
    BrokerError::Failed(why.to_string().into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::future::pending;

    use super::*;

    /// A broker that answers commits only with a permit.
    struct Slow {
        asked: Arc<AtomicUsize>,
        may: Arc<Semaphore>,
    }

    impl Engine for Slow {
        async fn publish(&self, _: mpsc::Receiver<Outgoing>) {
            pending().await
        }

        async fn follow(&self, _: &str, _: u32, _: Start, _: &mut Sink) -> String {
            pending().await
        }

        async fn fetch(&self, _: &str, _: u32, _: u64, _: usize) -> Result<Read, BrokerError> {
            pending().await
        }

        async fn ends(&self, _: &str, _: u32) -> Result<(u64, u64), BrokerError> {
            pending().await
        }

        async fn partitions(&self, _: &str) -> Result<u32, BrokerError> {
            pending().await
        }

        async fn commit(&self, _: &str, _: u32, _: &str, _: u64) -> Result<(), BrokerError> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            self.may.acquire().await.map(|_| ()).map_err(failed)
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
        let address = Address::parse("redis://127.0.0.1:1", &BTreeMap::new()).unwrap();
        let status = Arc::new(Status::new("slow".to_owned(), Duration::ZERO));
        let (asked, may) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let engine = Slow { asked: asked.clone(), may: may.clone() };
        let slow = Remote::start("slow", &address, QUEUE_BYTES, status, || engine).unwrap();
        let answers: Vec<_> = (0..QUESTIONS_MAX).map(|_| slow.commit("s", 0, "g", 1)).collect();
        while asked.load(Ordering::SeqCst) < QUESTIONS_MAX {
            thread::yield_now();
        }
        assert_eq!(slow.commit("s", 0, "g", 1).block(), Err(BrokerError::Busy));
        may.add_permits(1);
        assert!(answers.into_iter().all(|answer| answer.block() != Err(BrokerError::Busy)));
        // The last answer arrives a moment before its permit is released.
        while slow.commit("s", 0, "g", 1).block() == Err(BrokerError::Busy) {
            thread::yield_now();
        }
    }
}
