//! Durable streams over WebSocket, plain TCP and HTTP. docs/book/src/server/streams.md describes the protocols.
//!
//! ```text
//!   binary (WebSocket, TCP) ─┐                        ┌─▶ log: append, watch, read
//!   JSON (WebSocket) ────────┼─▶ Desk of a connection ┤
//!   HTTP ────────────────────┘   pending answers,     └─▶ groups: assignment of partitions
//!                                subscriptions            to members
//! ```
//!
//! [`backing`] serves the durable topics, [`follow`] their subscribers. With a broker, the broker stores the streams
//! and the log of this node follows it: [`bridge`].

pub(crate) mod backing;
pub(crate) mod binary;
mod bridge;
mod carrier;
mod counted;
mod desk;
pub(crate) mod follow;
mod groups;
pub(crate) mod http;
pub(crate) mod json;
mod quota;
pub(crate) mod raw;
mod removal;
pub(crate) mod report;
#[cfg(test)]
mod tests;
mod wire;

use std::future::{self, Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{self, Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::FutureExt;
use sinews_server::{Appender, Handler, Request};
use sinews_stream::broker::{self, Broker, Health};
use sinews_stream::record::{Limits, Records};
use sinews_stream::{
    AppendError, CommitError, CreateError, Durability, Lookup, Partition, Past, Pending, Read, Start, Stream,
    StreamConfig, StreamError, StreamInfo, StreamState, Streams,
};
use tempfile::TempDir;

use self::backing::{Backing, Line};
use self::binary::Binary;
use self::bridge::{Bridge, Open, Opening, Source, Unread};
use self::carrier::Loops;
pub(crate) use self::desk::{Desk, Voice};
use self::groups::Groups;
use self::json::Side;
use self::quota::Quota;
pub(crate) use self::quota::{CreationLimits, Creator};
use crate::admission::Rejection;
use crate::auth::{Rights, Want};
use crate::echo::brief;
use crate::hub::{self, Content, Hub};
use crate::live::Live;
use crate::protocol::{Client, Problem, code, problem};

/// The streams of this server.
pub(crate) struct Store {
    /// Empty while the predecessor process still owns the streams.
    streams: OnceLock<Streams>,
    /// The server's workers, which write in place of the log's threads.
    loops: OnceLock<Arc<Loops>>,
    /// Configuration of streams that a publication creates.
    config: StreamConfig,
    limits: Limits,
    groups: Groups,
    quota: Arc<Quota>,
    rules: Rules,
    topics: Arc<Backing>,
    /// The broker that stores the streams, if there is one.
    bridge: Option<Arc<Bridge>>,
    /// A temporary directory, removed on shutdown.
    made: Mutex<Option<TempDir>>,
    closed: AtomicBool,
}

/// Rules for streams that their first use creates.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    pub(crate) creation: CreationLimits,
    /// Time after which a stream without appends and reads is deleted.
    pub(crate) expire_unused: Option<Duration>,
}

/// Action when a stream does not exist. Only a client with the right to publish creates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Made,
    Refused,
}

/// The partition that a request addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// Publications: by the key of the first record, or in turn. Reads: all partitions.
    Any,
    This(u32),
}

/// When a publication is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Ack {
    None,
    Memory,
    #[default]
    Disk,
    Broker,
}

impl Ack {
    /// The durability that an acknowledgement requires; `None` without acknowledgement.
    pub(crate) fn durability(self) -> Option<Durability> {
        match self {
            Self::None => None,
            Self::Memory => Some(Durability::Memory),
            Self::Disk => Some(Durability::Disk),
            Self::Broker => Some(Durability::Broker),
        }
    }
}

impl Store {
    /// Creates a store without streams. Takes the patterns of durable topics, the largest message of a client, and the
    /// broker that stores the streams.
    pub(crate) fn new(
        config: StreamConfig,
        topics: Vec<String>,
        max_message: usize,
        broker: Option<Arc<dyn Broker>>,
        rules: Rules,
    ) -> Arc<Self> {
        let limits = Limits::default().bytes(max_message.min(BATCH_MAX));
        let topics = Arc::new(Backing::new(topics));
        let bridge = broker.map(|broker| Arc::new(Bridge::new(broker, Arc::clone(&topics))));
        Arc::new(Self {
            streams: OnceLock::new(),
            loops: OnceLock::new(),
            config,
            limits,
            groups: Groups::default(),
            quota: Arc::new(Quota::new(rules.creation)),
            rules,
            topics,
            bridge,
            made: Mutex::new(None),
            closed: AtomicBool::new(false),
        })
    }

    /// Takes ownership of a directory that is removed on close.
    pub(crate) fn own(&self, directory: TempDir) {
        *self.made.lock().unwrap_or_else(PoisonError::into_inner) = Some(directory);
    }

    /// Whether the directory is this process's own: no successor needs it, since the broker stores the streams.
    pub(crate) fn has_own_directory(&self) -> bool {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Installs the opened streams.
    pub(crate) fn begin(&self, streams: Streams) {
        // A second call has opened nothing: the directory is locked.
        let _ = self.streams.set(streams);
        self.carry();
        self.topics.wake_all();
    }

    /// The durable topics.
    pub(crate) fn topics(&self) -> &Arc<Backing> {
        &self.topics
    }

    /// The line of a durable topic, and the records to append to its stream.
    pub(crate) fn to_publish_to_topic(
        &self,
        topic: &str,
        content: &Content,
        rights: &Rights,
    ) -> Result<(Arc<Line>, Records), Problem> {
        let line = self.topics.line(&self.to_publish(topic, rights)?)?;
        Ok((line, backing::record_of(content, self.limits())?))
    }

    /// The line of a durable topic, if its stream exists.
    pub(crate) fn line(&self, topic: &str) -> Result<Option<Arc<Line>>, Problem> {
        self.open_stream(topic)?.map(|stream| self.topics.line(&stream)).transpose()
    }

    /// What a subscription to a durable topic has to wait for; usually nothing. The caller has checked the right to
    /// subscribe.
    pub(crate) fn opening_of_topic(self: &Arc<Self>, topic: &str) -> Option<Opening> {
        if let Some(streams) = self.streams.get() {
            return match &self.bridge {
                Some(bridge) => bridge.open(topic, streams, &self.config),
                None => self.opening_here(streams, topic, Missing::Refused),
            };
        }
        let (store, topic) = (Arc::clone(self), topic.to_owned());
        let open: Open = Box::pin(async move {
            store.topics.until(|| store.streams.get().is_some()).await;
            match store.opening_of_topic(&topic) {
                Some(opening) => opening.await,
                None => Ok(()),
            }
        });
        Some(open.shared())
    }

    /// Makes the server's workers write from now on.
    pub(crate) fn carried_by(&self, appender: Appender) {
        // Called once.
        let _ = self.loops.set(Loops::new(appender));
        self.carry();
    }

    /// Called when the streams or the workers are set; takes effect when both are set.
    fn carry(&self) {
        if let (Some(streams), Some(loops)) = (self.streams.get(), self.loops.get()) {
            streams.carried_by(loops.clone());
        }
    }

    fn streams(&self) -> Result<&Streams, Problem> {
        self.streams.get().ok_or_else(|| {
            problem(code::STORE, "the predecessor process still owns the streams; retry later")
        })
    }

    /// Why no stream accepts appends, if the directory has failed.
    pub(crate) fn failure(&self) -> Option<Arc<str>> {
        self.streams.get()?.failure()
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The health of the broker and the number of rejected requests, if a broker stores the streams.
    pub(crate) fn broker(&self) -> Option<(Health, u64)> {
        self.bridge.as_ref().map(|bridge| (bridge.health(), bridge.refused()))
    }

    /// Waits for the broker's outstanding acknowledgements up to a limit, writes what is queued, and releases the
    /// directory.
    pub(crate) fn close(&self) {
        // Before waiting tasks are woken.
        self.closed.store(true, Ordering::Release);
        if let Some(bridge) = &self.bridge {
            bridge.close();
        }
        if let Some(streams) = self.streams.get() {
            streams.close();
        }
        if let Some(made) = self.made.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let path = made.path().to_owned();
            if let Err(error) = made.close() {
                tracing::warn!("cannot remove {}: {error}", path.display());
            }
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The open streams, oldest first; empty while another process owns them.
    fn open(&self) -> Vec<Stream> {
        let mut all = self.streams.get().map(Streams::list_open).unwrap_or_default();
        all.sort_by_key(Stream::created);
        all
    }

    /// Streams that are not open, by name, among the first `most` of all.
    fn not_open(&self, most: usize) -> Vec<StreamInfo> {
        let mut infos = self.streams.get().map(|streams| streams.describe_first(most)).unwrap_or_default();
        infos.retain(|info| info.state == StreamState::Closed);
        infos
    }

    /// The number of streams.
    fn count(&self) -> usize {
        self.streams.get().map_or(0, Streams::count)
    }

    /// The streams that cannot be opened, and the reasons.
    pub(crate) fn damaged(&self) -> Vec<(Arc<str>, Arc<str>)> {
        self.streams.get().map(Streams::list_damaged).unwrap_or_default()
    }

    /// The streams that may be read with these rights, by name.
    pub(crate) fn list(&self, rights: &Rights) -> Result<Vec<StreamInfo>, Problem> {
        let mut list = self.streams()?.describe_all();
        list.retain(|info| rights.check(Want::Subscribe(&info.name)).is_ok());
        Ok(list)
    }

    /// Returns a stream to publish to.
    pub(crate) fn to_publish(&self, name: &str, rights: &Rights) -> Result<Stream, Problem> {
        hub::check_name(name).map_err(|text| problem(code::TOPIC, text))?;
        rights.check(Want::Publish(name))?;
        self.find(name, Missing::Made)
    }

    /// Returns a stream to read. The right to publish creates it.
    pub(crate) fn to_read(&self, name: &str, rights: &Rights) -> Result<Stream, Problem> {
        hub::check_name(name).map_err(|text| problem(code::TOPIC, text))?;
        rights.check(Want::Subscribe(name))?;
        let may_publish = rights.check(Want::Publish(name)).is_ok();
        let missing = if may_publish { Missing::Made } else { Missing::Refused };
        self.find(name, missing)
    }

    /// What a client with these rights has to wait for before it can use the stream; usually nothing. Errors are
    /// reported by [`to_publish`](Self::to_publish) or [`to_read`](Self::to_read) afterwards.
    fn opening(&self, name: &str, want: Want<'_>, rights: &Rights) -> Option<Opening> {
        let streams = self.streams().ok()?;
        let is_open = || matches!(streams.lookup(name), Lookup::Open(_));
        if self.bridge.is_none() && is_open() || hub::check_name(name).is_err() || rights.check(want).is_err()
        {
            return None;
        }
        let creator = rights.creator();
        let may_create = self.bridge.is_some() || rights.check(Want::Publish(name)).is_ok();
        let creates = may_create && matches!(streams.lookup(name), Lookup::Missing) && !self.quota.has(name);
        if creates && let Err(problem) = self.quota.take(&creator, name) {
            let open: Open = Box::pin(future::ready(Err(problem)));
            return Some(open.shared());
        }
        let opening = match &self.bridge {
            Some(bridge) => bridge.open(name, streams, &self.config),
            None => {
                self.opening_here(streams, name, if may_create { Missing::Made } else { Missing::Refused })
            }
        };
        if !creates {
            return opening;
        }
        let (quota, stream) = (Arc::clone(&self.quota), name.to_owned());
        let Some(opening) = opening else {
            quota.give_back(&stream);
            return None;
        };
        let open: Open = Box::pin(async move { opening.await.inspect_err(|_| quota.give_back(&stream)) });
        Some(open.shared())
    }

    /// Opens or creates a stream of this node in the background; `None` if it is open or cannot be opened.
    fn opening_here(&self, streams: &Streams, name: &str, missing: Missing) -> Option<Opening> {
        match (streams.lookup(name), missing) {
            (Lookup::Open(_) | Lookup::Damaged(_), _) | (Lookup::Missing, Missing::Refused) => return None,
            _ => {}
        }
        let opening = match missing {
            Missing::Made => streams.creating(name, &self.config_of(name)),
            Missing::Refused => streams.opening(name),
        };
        let (topics, name) = (Arc::clone(&self.topics), name.to_owned());
        let open: Open = Box::pin(async move {
            let stream = opening.await.map_err(|error| unusable(&name, &error))?;
            if let Some(stream) = stream.filter(|_| topics.backs(&name)) {
                // A stream that backs no topic has no line; callers of `line` receive the error.
                let _ = topics.line(&stream);
            }
            Ok(())
        });
        Some(open.shared())
    }

    /// Configuration of a stream that its first use creates.
    fn config_of(&self, name: &str) -> StreamConfig {
        let config = self.config.clone().automatic(true);
        // A topic is ordered, so it has one partition.
        if self.topics.backs(name) { config.partitions(1) } else { config }
    }

    /// Returns an existing stream; with a broker, a stream that this node follows.
    fn open_stream(&self, name: &str) -> Result<Option<Stream>, Problem> {
        let streams = self.streams()?;
        if self.bridge.as_ref().is_some_and(|bridge| !bridge.is_open(name)) {
            return Ok(None);
        }
        match streams.lookup(name) {
            Lookup::Open(stream) => Ok(Some(stream)),
            Lookup::Damaged(why) => Err(unusable(name, &StreamError::Damaged(why))),
            Lookup::Missing => Ok(None),
            _ => Err(not_open(name)),
        }
    }

    fn find(&self, name: &str, missing: Missing) -> Result<Stream, Problem> {
        if let Some(stream) = self.open_stream(name)? {
            return Ok(stream);
        }
        if self.bridge.is_some() {
            return Err(problem(
                code::STORE,
                format!("stream {} is not ready yet; retry later", brief(name)),
            ));
        }
        if missing == Missing::Refused {
            return Err(problem(code::NO_STREAM, format!("stream {} does not exist", brief(name))));
        }
        // A message waits for the creation before it gets here, so the stream was deleted since.
        Err(not_open(name))
    }

    /// Appends records to a partition.
    fn append(&self, stream: &Stream, partition: u32, records: Records) -> Result<Pending, AppendError> {
        let found = stream.partition(partition).ok_or_else(|| AppendError::Failed(NO_PARTITION.into()))?;
        let Some(bridge) = &self.bridge else { return found.append(records) };
        let sent = bridge.broker().publish(stream.name(), partition, records);
        sent.inspect_err(|_| bridge.count_refused())
    }

    /// Whether a rejected append may fit now. Otherwise the waker is called when it may.
    fn has_room(&self, stream: &Stream, partition: u32, waker: &Waker) -> bool {
        match &self.bridge {
            Some(bridge) => bridge.broker().room(waker),
            None => stream.partition(partition).is_none_or(|found| found.watch(Past::Room, waker)),
        }
    }

    /// Commits the offset of a group.
    fn commit(&self, stream: &Stream, partition: u32, group: &str, offset: u64) -> Result<Under, Problem> {
        let Some(bridge) = &self.bridge else {
            return Ok(Under::Way(stream.commit(group, partition, offset)?));
        };
        find_partition(stream, partition)?;
        // For lists of groups on this node; the commit is stored even if the future is dropped.
        stream.commit(group, partition, offset)?;
        let answer = bridge.broker().commit(stream.name(), partition, group, offset);
        Ok(Under::Asked(Arc::clone(bridge), answer))
    }

    /// The committed offset of a group in a partition, or the request for it.
    fn committed(&self, stream: &Stream, partition: u32, group: &str) -> Committed {
        match &self.bridge {
            None => Committed::Known(stream.committed(group, partition)),
            Some(bridge) => {
                let answer = bridge.broker().committed(stream.name(), partition, group);
                Committed::Asked(Arc::clone(bridge), answer)
            }
        }
    }

    /// Whether a commit of the group may be lost. A broker stores the commits of its groups itself.
    fn is_doubtful(&self, stream: &Stream, partition: u32, group: &str) -> bool {
        self.bridge.is_none() && stream.is_doubtful(group, partition)
    }

    /// The offset at which reading starts.
    fn seek(&self, stream: &Stream, number: u32, start: Start) -> Result<u64, Problem> {
        let partition = find_partition(stream, number)?;
        match &self.bridge {
            Some(bridge) => bridge.seek(stream.name(), number, &partition, start),
            None => Ok(partition.seek(start)),
        }
    }

    /// The source of batches for a reader.
    fn source(&self, stream: &Stream, number: u32) -> Result<Source, Problem> {
        let partition = find_partition(stream, number)?;
        Ok(match &self.bridge {
            Some(bridge) => bridge.source(stream, number, partition),
            None => Source::log(partition),
        })
    }

    /// The first offset that may exist, and the end of this node's log.
    fn ends(&self, stream: &Stream, number: u32, partition: &Partition) -> (u64, u64) {
        let ends = partition.ends();
        match &self.bridge {
            Some(bridge) => (bridge.first(stream.name(), number), ends.readable),
            None => (ends.earliest, ends.readable),
        }
    }

    /// The offset of the first record that a new stream has.
    fn first_offset(&self) -> u64 {
        self.bridge.as_ref().map_or(0, |bridge| bridge.broker().first_offset())
    }

    /// The end of the readable records; with a broker, its current end.
    async fn end(&self, stream: &Stream, number: u32) -> Result<u64, Problem> {
        if self.bridge.as_ref().is_some_and(|bridge| !bridge.health().ready) {
            return Ok(find_partition(stream, number)?.ends().readable);
        }
        self.last_end(stream, number).await
    }

    /// The end of all records, including records that this node has not read from the broker yet.
    async fn last_end(&self, stream: &Stream, number: u32) -> Result<u64, Problem> {
        let known = find_partition(stream, number)?.ends().readable;
        let Some(bridge) = &self.bridge else { return Ok(known) };
        let asked = bridge.broker().ends(stream.name(), number).await;
        asked.map(|(_, end)| end.max(known)).map_err(|error| bridge.failed(&error))
    }
}

/// The problem for a stream that was closed after it was opened for a message.
fn not_open(name: &str) -> Problem {
    problem(code::STORE, format!("stream {name} is not open; retry"))
}

/// The problem for a stream that cannot be used.
fn unusable(name: &str, error: &StreamError) -> Problem {
    let code = match error {
        StreamError::Name => code::TOPIC,
        StreamError::TooMany { .. } => code::TOO_MANY,
        _ => code::STORE,
    };
    let setting = if let StreamError::TooMany { .. } = error { " (streams.max_streams)" } else { "" };
    problem(code, format!("stream {name}: {error}{setting}"))
}

/// The problem for a stream that could not be created.
fn created(name: &str, error: &CreateError) -> Problem {
    let code = match error {
        CreateError::Name => code::TOPIC,
        CreateError::TooMany => code::TOO_MANY,
        _ => code::STORE,
    };
    problem(code, format!("stream {}: {error}", brief(name)))
}

/// An append or commit in flight.
pub(crate) enum Under {
    Way(Pending),
    Asked(Arc<Bridge>, broker::Answer<()>),
}

impl Under {
    /// The offset once the requested durability is reached; `None` for an empty batch.
    fn poll(
        &mut self,
        durability: Durability,
        cx: &mut task::Context<'_>,
    ) -> Poll<Result<Option<sinews_stream::Appended>, Problem>> {
        match self {
            Self::Way(pending) => {
                pending.poll(durability, cx).map(|done| done.map(Some).map_err(Problem::from))
            }
            Self::Asked(bridge, answer) => {
                let done = Pin::new(answer).poll(cx);
                done.map(|done| done.map(|()| None).map_err(|error| bridge.failed(&error)))
            }
        }
    }
}

/// A group's committed offset: known, or requested from the broker.
pub(crate) enum Committed {
    Known(Option<u64>),
    Asked(Arc<Bridge>, broker::Answer<Option<u64>>),
}

impl Committed {
    fn poll(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<Option<u64>, Problem>> {
        match self {
            Self::Known(offset) => Poll::Ready(Ok(*offset)),
            Self::Asked(bridge, answer) => {
                let done = Pin::new(answer).poll(cx);
                done.map(|done| done.map_err(|error| bridge.failed(&error)))
            }
        }
    }
}

const NO_PARTITION: &str = "the stream has no such partition";

/// Chooses the partition of a publication.
fn choose(stream: &Stream, which: Which, records: &Records) -> Result<u32, Problem> {
    match which {
        Which::This(partition) => find_partition(stream, partition).map(|_| partition),
        Which::Any => {
            let first = records.iter().next().and_then(Result::ok);
            Ok(stream.pick(first.map_or(&[], |record| record.key)))
        }
    }
}

fn find_partition(stream: &Stream, partition: u32) -> Result<Partition, Problem> {
    stream.partition(partition).ok_or_else(|| {
        let (name, count) = (brief(stream.name()), stream.partitions());
        problem(
            code::NO_STREAM,
            format!("stream {name} has no partition {partition} ({count} partitions, from 0)"),
        )
    })
}

/// The problem for a deleted stream.
fn deleted(name: &str) -> Problem {
    problem(code::NOT_KEPT, format!("{name}: {}", AppendError::Deleted))
}

/// `WS /streams/{name}`: binary messages if the client offers that subprotocol, JSON otherwise.
pub(crate) fn connect(
    request: &Request<'_>,
    live: &Live,
    store: Option<&Arc<Store>>,
    hub: &Arc<Hub>,
    max_message: usize,
) -> Result<Box<dyn Handler>, Rejection> {
    let name = http::name_of(request).map_err(|problem| Rejection::request(400, &problem.text))?;
    let Some(store) = store else { return Err(Rejection::request(404, http::OFF)) };
    if request.subprotocol() == Some(binary::NAME) {
        return Ok(Box::new(Binary::websocket(request, live, name, Arc::clone(store), max_message)?));
    }
    let side = Side::new(Some(Arc::clone(store)), Some(name));
    Ok(Box::new(Client::new(request, live, Arc::clone(hub), max_message, side)?))
}

/// Microseconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

impl From<AppendError> for Problem {
    fn from(error: AppendError) -> Self {
        let code = match error {
            AppendError::Busy => code::TOO_MANY,
            AppendError::TooLarge { .. } => code::TOO_LARGE,
            AppendError::Deleted => code::NOT_KEPT,
            _ => code::STORE,
        };
        problem(code, error.to_string())
    }
}

impl From<CommitError> for Problem {
    fn from(error: CommitError) -> Self {
        let code = match error {
            CommitError::Append(error) => return error.into(),
            CommitError::Partition => code::NO_STREAM,
            CommitError::TooMany => code::TOO_MANY,
            _ => code::TOPIC,
        };
        problem(code, error.to_string())
    }
}

/// Where a reader without a position starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Begin {
    pub(crate) start: Start,
    /// The group whose committed offset takes precedence.
    pub(crate) group: Option<String>,
}

/// The result of one fetch.
pub(crate) struct Fetched {
    /// The first offset that counts.
    from: u64,
    /// The end of the readable records.
    end: u64,
    /// `None` at the end.
    read: Option<Read>,
}

/// Reads once. If old records are gone, the result starts at the first one that exists.
async fn fetch(
    store: Arc<Store>,
    stream: Stream,
    partition: u32,
    offset: u64,
    most: usize,
) -> Result<Fetched, Problem> {
    let mut source = store.source(&stream, partition)?;
    let mut from = store.seek(&stream, partition, Start::Offset(offset))?;
    loop {
        match read_once(&store, &stream, partition, &mut source, (from, most)).await {
            Ok((read, end)) => return Ok(Fetched { from, end, read }),
            Err(Unread::Gap(to) | Unread::Ahead(to)) => from = to,
            Err(Unread::Failed(problem)) => return Err(problem),
        }
    }
}

/// Reads once and returns the end, too. The broker may have more records than this node has read.
async fn read_once(
    store: &Store,
    stream: &Stream,
    number: u32,
    source: &mut Source,
    (from, most): (u64, usize),
) -> Result<(Option<Read>, u64), Unread> {
    let most = most.clamp(1, READ_BYTES);
    let read = poll_fn(|cx| source.poll_read(from, most, cx.waker())).await?;
    let seen = source.partition().ends().readable;
    if let Some(read) = read {
        return Ok((Some(read), seen));
    }
    let end = store.end(stream, number).await.map_err(Unread::Failed)?;
    if from >= end || end <= seen {
        return Ok((None, end));
    }
    let read = poll_fn(|cx| source.poll_broker(from, end, most, cx.waker())).await?;
    Ok((read, end))
}

/// Largest batch of a publication, in bytes: a broker returns no larger batches.
const BATCH_MAX: usize = 8 << 20;

/// Bytes of one read. A batch is returned whole, even if it is larger.
const READ_BYTES: usize = 256 << 10;
