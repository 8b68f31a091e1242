//! Topics that are kept in streams: what is published to one is appended to the stream of its name, and who is
//! subscribed hears what can be read of it.
//!
//! ```text
//!   publish ─▶ append ─▶ log ─┬─▶ relay, a thread ─▶ topics of the server below ─▶ who is subscribed
//!                             └─▶ follow: who comes later reads until where the relay is, and is let in there
//! ```
//!
//! The relay follows the log and not those who publish: so everybody hears the same order, nothing before it is as safe
//! as the stream makes it, and what others put into the log as well.

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

/// The topics that are kept in streams.
pub(crate) struct Backing {
    patterns: Vec<String>,
    /// By name. There are no more than there may be streams.
    lines: Mutex<HashMap<String, Arc<Line>>>,
    /// Topics whose stream was deleted, and whose subscribers are to be told.
    reset: Mutex<Vec<String>>,
    bell: Arc<Bell>,
    relay: Mutex<Option<JoinHandle<()>>>,
    closing: AtomicBool,
    /// How many lines have been added so far.
    generation: AtomicU64,
    /// Those who wait [until](Self::until) something is so: at most one waker for each subscription.
    waiting: Mutex<Vec<Waker>>,
}

/// The way from a stream to those who are subscribed to its topic.
pub(crate) struct Line {
    stream: Stream,
    epoch: u64,
    partition: Partition,
    /// The first record that the relay has not published. Held while it publishes, and while somebody is let in.
    relayed: Mutex<u64>,
    /// The last sequence that another process has published, behind what this one has.
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

/// What a step of the relay came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Fed,
    Idle,
    Failed,
}

/// Bytes that the relay reads of a stream at a time, about; then others have their turn.
const RELAY_BYTES: usize = 64 << 10;

/// Records that it publishes before it looks whether threads fall behind.
pub(super) const RELAY_RECORDS: usize = 128;

/// How long the relay waits for threads that have more to deliver than they get done.
const PACE: Duration = Duration::from_millis(1);

/// The epoch of topics that a broker keeps: the same on all nodes, which share nothing that could name another one.
const BROKER_EPOCH: u64 = 1;

/// How long it waits before it reads again what could not be read.
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

    /// Whether a topic is kept in a stream.
    pub(crate) fn backs(&self, topic: &str) -> bool {
        !pattern::is_pattern(topic) && self.patterns.iter().any(|pattern| pattern::covers(pattern, topic))
    }

    /// A broker keeps this stream, and this node is about to follow it from there on. One that keeps no topic has no line,
    /// which is told to those who want [one](Self::line).
    pub(super) fn begin_at_broker(&self, stream: &Stream, from: u64) {
        if self.backs(stream.name())
            && let Ok(partition) = check(stream)
        {
            self.insert(stream, partition, (BROKER_EPOCH, from));
        }
    }

    /// The line of a stream. Of one that this process has created, all is to be published; what others held when they
    /// were opened has been published, or is found there by those who come back.
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

    /// The stream that was created then is deleted. Subscribers of its topic are told.
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

    /// Tells the subscribers of topics whose stream was deleted.
    fn tell_reset(&self, hub: &Hub, publisher: &mut Publisher) {
        let reset = std::mem::take(&mut *self.reset.lock().unwrap_or_else(PoisonError::into_inner));
        reset.iter().for_each(|topic| hub.tell_reset(publisher, topic));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Line>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is so: what changes with the streams that are there, or with what the relay has published.
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
            // What has changed meanwhile has woken nobody.
            if is_so() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    pub(super) fn wake_all(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Starts the relay, if any topic is kept.
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

    /// Whether what another process has published at this position comes next here. While the relay runs, it publishes all
    /// itself; with a broker, the other process may have begun later than this one has ended. Who misses something then
    /// is told to go, and finds it there.
    pub(crate) fn goes_on(&self, topic: &str, position: Position) -> bool {
        if !self.backs(topic) {
            return true;
        }
        let is_over = self.closing.load(Ordering::SeqCst);
        is_over && self.lock().get(topic).is_none_or(|line| line.goes_on(position))
    }

    /// The streams are closed: waits until all that is in them has been published here.
    pub(crate) fn finish(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.bell.clone().wake();
        if let Some(relay) = self.relay.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // One that has panicked has published what it could.
            let _ = relay.join();
        }
    }

    fn run(&self, hub: &Hub, mut publisher: Publisher) {
        // The first to set it.
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
    /// Waits while threads have more to deliver than they get done.
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

    /// Whether it is of this stream, and not of a deleted one of its name.
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

    /// Where a topic stands whose next record is this one.
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

    /// Publishes what can be read, once, and waits in between for threads that fall behind.
    fn step(&self, hub: &Hub, publisher: &mut Publisher, pace: impl Fn(&Publisher)) -> Step {
        let from = *self.relayed();
        let mut found = Poll::Pending;
        self.alarm.set(|waker| {
            found = self.partition.poll_read(from, RELAY_BYTES, waker);
            found.is_ready()
        });
        // An index is being made again: other topics go on meanwhile.
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
                    // Those who are waited for may want it.
                    drop(relayed);
                    pace(publisher);
                }
                // Offsets that nobody has.
                *self.relayed() = read.next;
                Step::Fed
            }
            Err(ReadError::Gone { earliest: to } | ReadError::Damaged { resume: to, .. }) if to > from => {
                tracing::error!(topic = self.name(), from, to, "records are gone before they were heard");
                *self.relayed() = to;
                Step::Fed
            }
            // A copy that has nothing yet stands at 0, wherever its broker is.
            Err(ReadError::Ahead { .. }) => self.follow(from),
            Err(ReadError::Deleted) => Step::Idle,
            Err(error) => {
                tracing::error!(topic = self.name(), %error, "what is kept of a topic cannot be read");
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

/// The partition of a stream that keeps a topic.
pub(super) fn check(stream: &Stream) -> Result<Partition, Problem> {
    let (name, count) = (brief(stream.name()), stream.partitions());
    stream.partition(0).filter(|_| count == 1).ok_or_else(|| {
        let words =
            format!("the stream {name} has {count} partitions: it keeps no topic, which has one order");
        problem(code::NOT_SUBSCRIBED, words)
    })
}

/// One record of what is published.
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
    builder.finish().ok_or_else(|| problem(code::MALFORMED, "nothing is to be published"))
}

/// What a record holds. What it is said to be was not checked.
pub(super) fn content_of(record: &Record<'_>) -> Content {
    let bytes = Bytes::copy_from_slice(record.value);
    match (record.kind, std::str::from_utf8(record.value)) {
        (Kind::Text, Ok(_)) => Content::Text(bytes),
        (Kind::Json, Ok(text)) if serde_json::from_str::<&RawValue>(text).is_ok() => Content::Json(bytes),
        _ => Content::Binary(bytes),
    }
}
