//! Durable topics: a publication is appended to the stream of the same name, and subscribers receive the readable
//! records.
//!
//! ```text
//!   publish ─▶ append ─▶ log ─┬─▶ relay, a thread ─▶ topics of the server below ─▶ live subscribers
//!                             └─▶ follow: a new subscriber reads up to the relay's offset, then joins there
//! ```
//!
//! The relay follows the log and not the publishers. So all subscribers receive the same order, nothing before it has
//! the durability of the stream, and records that other clients append to the log.

use std::borrow::Cow;
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;
use sinews_server::{Position, Publisher};
use sinews_stream::record::{Kind, Limits, Record, RecordBuilder, Records};
use sinews_stream::{Partition, Past, ReadError, Stream};

use super::counted::counted;
use super::desk::Alarm;
use super::json::malformed;
use crate::auth::pattern;
use crate::echo::brief;
use crate::hub::{Content, Hub};
use crate::protocol::{Problem, code, problem};

/// The durable topics.
pub(crate) struct Backing {
    patterns: Vec<String>,
    /// By name. Their number is bounded by the number of streams.
    lines: Mutex<HashMap<String, Arc<Line>>>,
    /// Topics whose stream was deleted; their subscribers are not notified yet.
    reset: Mutex<Vec<String>>,
    bell: Arc<Bell>,
    relay: Mutex<Option<JoinHandle<()>>>,
    closing: AtomicBool,
    /// Number of lines added so far.
    generation: AtomicU64,
    /// Tasks that wait in [`until`](Self::until): at most one waker for each subscription.
    waiting: Mutex<Vec<Waker>>,
}

/// Connects a stream to the subscribers of its topic.
pub(crate) struct Line {
    stream: Stream,
    epoch: u64,
    partition: Partition,
    /// The first record that the relay has not published. Locked while the relay publishes and while a subscriber
    /// joins.
    relayed: Mutex<u64>,
    /// The last sequence that another process has published, beyond the end of this process.
    elsewhere: AtomicU64,
    alarm: Arc<Alarm>,
}

/// Wakes the relay.
#[derive(Default)]
struct Bell(OnceLock<Thread>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        if let Some(thread) = self.0.get() {
            thread.unpark();
        }
    }
}

/// The result of one step of the relay.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Fed,
    Idle,
    Failed,
}

/// Bytes that the relay reads of a stream in one turn, approximately.
const RELAY_BYTES: usize = 64 << 10;

/// Records that the relay publishes before it checks whether workers fall behind.
pub(super) const RELAY_RECORDS: usize = 128;

/// Delay of the relay while workers have a backlog of deliveries.
const PACE: Duration = Duration::from_millis(1);

/// The epoch of topics at a broker. It is the same on all nodes, because they share no state to agree on another one.
const BROKER_EPOCH: u64 = 1;

/// Delay before the relay retries a failed read.
const RETRY: Duration = Duration::from_secs(1);

impl Backing {
    pub(super) fn new(patterns: Vec<String>) -> Self {
        Self {
            patterns,
            lines: Mutex::default(),
            reset: Mutex::default(),
            bell: Arc::default(),
            relay: Mutex::default(),
            closing: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            waiting: Mutex::default(),
        }
    }

    /// Whether a topic is durable.
    pub(crate) fn backs(&self, topic: &str) -> bool {
        !pattern::is_pattern(topic) && self.patterns.iter().any(|pattern| pattern::covers(pattern, topic))
    }

    /// Starts the line of a stream that a broker stores, at the offset where this node begins to follow. A stream that
    /// backs no topic has no line; callers of [`line`](Self::line) receive the error.
    pub(super) fn begin_at_broker(&self, stream: &Stream, from: u64) {
        if self.backs(stream.name())
            && let Ok(partition) = check(stream)
        {
            self.insert(stream, partition, (BROKER_EPOCH, from));
        }
    }

    /// The line of a stream. If this process has created the stream, the relay publishes all its records. Records that
    /// existed when a stream was opened are published already; resuming subscribers read them from the log.
    pub(super) fn line(&self, stream: &Stream) -> Result<Arc<Line>, Problem> {
        if let Some(line) = self.lock().get(stream.name()).filter(|line| line.is_of(stream)) {
            return Ok(line.clone());
        }
        let partition = check(stream)?;
        let relayed = if stream.is_new() { 0 } else { partition.ends().readable };
        Ok(self.insert(stream, partition, (stream.created(), relayed)))
    }

    fn insert(&self, stream: &Stream, partition: Partition, (epoch, relayed): (u64, u64)) -> Arc<Line> {
        let mut lines = self.lock();
        let new = || {
            Arc::new(Line {
                stream: stream.clone(),
                epoch,
                partition,
                relayed: Mutex::new(relayed),
                elsewhere: AtomicU64::new(0),
                alarm: Alarm::new(Waker::from(self.bell.clone())),
            })
        };
        let line = match lines.get(stream.name()).filter(|line| line.is_of(stream)) {
            Some(line) => line.clone(),
            None => {
                let line = new();
                lines.insert(stream.name().to_owned(), line.clone());
                self.generation.fetch_add(1, Ordering::Release);
                line
            }
        };
        drop(lines);
        self.bell.clone().wake();
        line
    }

    /// Removes the line of a deleted stream, identified by its time of creation, and notifies the topic's subscribers.
    pub(super) fn remove(&self, name: &str, created: u64) {
        if !self.backs(name) {
            return;
        }
        self.lock().retain(|known, line| known != name || line.stream.created() != created);
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.reset.lock().unwrap_or_else(PoisonError::into_inner).push(name.to_owned());
        self.bell.clone().wake();
        self.wake_all();
    }

    /// Notifies the subscribers of topics whose stream was deleted.
    fn tell_reset(&self, hub: &Hub, publisher: &mut Publisher) {
        let reset = std::mem::take(&mut *self.reset.lock().unwrap_or_else(PoisonError::into_inner));
        reset.iter().for_each(|topic| hub.tell_reset(publisher, topic));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Line>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a condition on the existing streams or on the relay's progress holds.
    pub(super) async fn until(&self, is_so: impl Fn() -> bool) {
        poll_fn(|cx| {
            if is_so() {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if !waiting.iter().any(|known| known.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            drop(waiting);
            // A change before the registration has woken no task.
            if is_so() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    pub(super) fn wake_all(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Starts the relay, if any topic is durable.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn start(self: &Arc<Self>, hub: Arc<Hub>, publisher: Publisher) -> io::Result<()> {
        if self.patterns.is_empty() {
            return Ok(());
        }
        let backing = Arc::clone(self);
        let thread = thread::Builder::new().name("topics".to_owned());
        let thread = thread.spawn(move || backing.run(&hub, publisher))?;
        *self.relay.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    /// Whether a publication of another process at this position follows directly. While the relay runs, it publishes
    /// all records itself. With a broker, the other process may start after the offset where this one ended. A
    /// subscriber that misses records then is disconnected, and finds them at the other process.
    pub(crate) fn goes_on(&self, topic: &str, position: Position) -> bool {
        if !self.backs(topic) {
            return true;
        }
        let is_over = self.closing.load(Ordering::SeqCst);
        is_over && self.lock().get(topic).is_none_or(|line| line.goes_on(position))
    }

    /// The streams are closed: waits until all their records are published here.
    pub(crate) fn finish(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.bell.clone().wake();
        if let Some(relay) = self.relay.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // A relay that has panicked has published what it could.
            let _ = relay.join();
        }
    }

    fn run(&self, hub: &Hub, mut publisher: Publisher) {
        // The first call sets it.
        let _ = self.bell.0.set(thread::current());
        let (mut lines, mut generation) = (Vec::new(), 0);
        loop {
            let closing = self.closing.load(Ordering::SeqCst);
            self.tell_reset(hub, &mut publisher);
            let known = self.lock();
            let current = self.generation.load(Ordering::Acquire);
            if std::mem::replace(&mut generation, current) != current {
                lines = known.values().cloned().collect();
            }
            drop(known);
            let mut step = Step::Idle;
            for line in lines.iter().filter(|line| closing || line.alarm.has_rung()) {
                match line.step(hub, &mut publisher, |publisher| self.pace(publisher)) {
                    Step::Fed => step = Step::Fed,
                    Step::Failed if step == Step::Idle => step = Step::Failed,
                    Step::Failed | Step::Idle => {}
                }
            }
            match step {
                Step::Fed => self.wake_all(),
                _ if closing => return,
                Step::Failed => thread::park_timeout(RETRY),
                Step::Idle => thread::park(),
            }
        }
    }
}

impl Backing {
    /// Waits while workers have a backlog of deliveries.
    fn pace(&self, publisher: &Publisher) {
        while publisher.is_behind() && !self.closing.load(Ordering::SeqCst) {
            thread::park_timeout(PACE);
        }
    }
}

impl Line {
    fn name(&self) -> &str {
        self.stream.name()
    }

    /// Whether this is the line of the stream, and not of a deleted stream of the same name.
    fn is_of(&self, stream: &Stream) -> bool {
        self.stream.created() == stream.created()
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(super) fn partition(&self) -> &Partition {
        &self.partition
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn relayed(&self) -> MutexGuard<'_, u64> {
        self.relayed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The position of a topic whose next record has this offset.
    pub(super) fn position(&self, next: u64) -> Position {
        Position { epoch: self.epoch, sequence: next }
    }

    fn goes_on(&self, position: Position) -> bool {
        let last = self.elsewhere.load(Ordering::SeqCst).max(*self.relayed());
        let goes_on = position.epoch == self.epoch && position.sequence == last + 1;
        if goes_on {
            self.elsewhere.store(position.sequence, Ordering::SeqCst);
        }
        goes_on
    }

    /// Publishes the readable records once, and waits in between for workers that fall behind.
    fn step(&self, hub: &Hub, publisher: &mut Publisher, pace: impl Fn(&Publisher)) -> Step {
        let from = *self.relayed();
        let mut found = Poll::Pending;
        self.alarm.set(|waker| {
            found = self.partition.poll_read(from, RELAY_BYTES, waker);
            found.is_ready()
        });
        // An index is being rebuilt; other topics continue meanwhile.
        let Poll::Ready(found) = found else { return Step::Idle };
        match found {
            Ok(read) if read.batches.is_empty() => self.follow(from),
            Ok(read) => {
                let mut records = counted(&read.batches, from).peekable();
                while records.peek().is_some() {
                    let mut relayed = self.relayed();
                    for record in records.by_ref().take(RELAY_RECORDS) {
                        let position = self.position(record.offset + 1);
                        hub.relay(publisher, self.name(), &content_of(&record), position);
                        *relayed = position.sequence;
                    }
                    // Delayed workers may need the lock.
                    drop(relayed);
                    pace(publisher);
                }
                // These offsets have no records.
                *self.relayed() = read.next;
                Step::Fed
            }
            Err(ReadError::Gone { earliest: to } | ReadError::Damaged { resume: to, .. }) if to > from => {
                tracing::error!(
                    topic = self.name(),
                    from,
                    to,
                    "records were deleted before they were published"
                );
                *self.relayed() = to;
                Step::Fed
            }
            // An empty copy stands at 0, at any offset of its broker.
            Err(ReadError::Ahead { .. }) => self.follow(from),
            Err(ReadError::Deleted) => Step::Idle,
            Err(error) => {
                tracing::error!(topic = self.name(), %error, "cannot read the stream of a topic");
                Step::Failed
            }
        }
    }

    fn follow(&self, next: u64) -> Step {
        if self.alarm.set(|waker| self.partition.watch(Past::Readable(next), waker)) {
            Step::Fed
        } else {
            Step::Idle
        }
    }
}

/// The partition of a stream that backs a topic.
pub(super) fn check(stream: &Stream) -> Result<Partition, Problem> {
    let (name, count) = (brief(stream.name()), stream.partitions());
    stream.partition(0).filter(|_| count == 1).ok_or_else(|| {
        let words = format!("stream {name} has {count} partitions; the stream of a topic has 1");
        problem(code::NOT_SUBSCRIBED, words)
    })
}

/// Encodes a publication as one record.
pub(super) fn record_of(content: &Content, limits: &Limits) -> Result<Records, Problem> {
    let (value, kind) = match content {
        Content::Text(bytes) => (Cow::Borrowed(&**bytes), Kind::Text),
        Content::Binary(bytes) => (Cow::Borrowed(&**bytes), Kind::Bytes),
        Content::Json(bytes) => match serde_json::from_slice::<String>(bytes) {
            Ok(text) => (Cow::Owned(text.into_bytes()), Kind::Text),
            Err(_) => (Cow::Borrowed(&**bytes), Kind::Json),
        },
    };
    let mut builder = RecordBuilder::with_limits(*limits);
    builder.push(super::now(), b"", &value, kind).map_err(malformed)?;
    builder.finish().ok_or_else(|| problem(code::MALFORMED, "the publication is empty"))
}

/// The content of a record. Its declared kind was not checked.
pub(super) fn content_of(record: &Record<'_>) -> Content {
    let bytes = Bytes::copy_from_slice(record.value);
    match (record.kind, std::str::from_utf8(record.value)) {
        (Kind::Text, Ok(_)) => Content::Text(bytes),
        (Kind::Json, Ok(text)) if serde_json::from_str::<&RawValue>(text).is_ok() => Content::Json(bytes),
        _ => Content::Binary(bytes),
    }
}
