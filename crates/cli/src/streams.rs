//! Durable streams: what the log keeps, over WebSocket, plain TCP and HTTP. docs/streams.md says what may be said.
//!
//! ```text
//!   binary (WebSocket, TCP) ─┐                        ┌─▶ log: append, watch, read
//!   JSON (WebSocket) ────────┼─▶ Desk of a connection ┤
//!   HTTP ────────────────────┘   what is awaited,     └─▶ groups: who reads which partition
//!                                who is to be fed
//! ```
//!
//! Topics that are kept in streams are of [`backing`], and of [`follow`] for those who come to them.

pub(crate) mod backing;
pub(crate) mod binary;
mod carrier;
mod desk;
pub(crate) mod follow;
mod groups;
pub(crate) mod http;
pub(crate) mod json;
pub(crate) mod raw;
pub(crate) mod report;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{SystemTime, UNIX_EPOCH};

use sinews_server::{Appender, Handler, Refusal, Request};
use sinews_stream::record::{Limits, Records};
use sinews_stream::{
    AppendError, CommitError, CreateError, Durability, Partition, Pending, Read, Start, Stream, StreamConfig,
    Streams,
};

use self::backing::{Backing, Line};
use self::binary::Binary;
use self::carrier::Loops;
pub(crate) use self::desk::{Desk, Voice};
use self::groups::Groups;
use self::json::Side;
use crate::auth::{Rights, Want};
use crate::hub::{self, Content, Hub};
use crate::live::Policy;
use crate::protocol::{Client, Problem, code, problem};
use crate::routes::bad_request;

/// The streams of this server.
pub(crate) struct Store {
    /// Not there as long as the process whose place this one takes has them.
    streams: OnceLock<Streams>,
    /// Who writes in place of the log's threads.
    loops: OnceLock<Arc<Loops>>,
    /// How streams are kept that come into being by being published to.
    config: StreamConfig,
    limits: Limits,
    groups: Groups,
    topics: Arc<Backing>,
    closed: AtomicBool,
}

/// A stream that is not there comes into being for those who may publish to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Made,
    Refused,
}

/// Which partition something is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// By the key of the first record, or in turn; of those that are read, all.
    Any,
    This(u32),
}

/// When a producer is answered.
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
    /// What has to be reached; `None` for those who do not want to know.
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
    /// Without streams at first; with the patterns of topics that are kept in them, and the largest message that anybody
    /// may send.
    pub(crate) fn new(config: StreamConfig, topics: Vec<String>, max_message: usize) -> Arc<Self> {
        let limits = Limits::default().bytes(max_message);
        Arc::new(Self {
            streams: OnceLock::new(),
            loops: OnceLock::new(),
            config,
            limits,
            groups: Groups::default(),
            topics: Arc::new(Backing::new(topics)),
            closed: AtomicBool::new(false),
        })
    }

    /// Has the streams from now on.
    pub(crate) fn begin(&self, streams: Streams) {
        self.topics.begin(&streams.list());
        // Whoever comes second has opened nothing: the directory is locked.
        let _ = self.streams.set(streams);
        self.carry();
        self.topics.wake_all();
    }

    /// The topics that are kept here.
    pub(crate) fn topics(&self) -> &Arc<Backing> {
        &self.topics
    }

    /// The stream of a topic that is kept in one, and what is to be put into it.
    pub(crate) fn to_publish_to_topic(
        &self,
        topic: &str,
        content: &Content,
        rights: &Rights,
    ) -> Result<(Stream, Records), Problem> {
        let stream = self.to_publish(topic, rights)?;
        backing::check(&stream)?;
        Ok((stream, backing::record_of(content, self.limits())?))
    }

    /// The way of a topic that is kept here, if there is a stream for it. Not yet while that is another process's.
    pub(crate) fn line(&self, topic: &str) -> Result<Poll<Option<Arc<Line>>>, Problem> {
        match self.streams.get() {
            Some(streams) => {
                let stream = streams.stream(topic);
                Ok(Poll::Ready(stream.map(|stream| self.topics.line(&stream)).transpose()?))
            }
            None => Ok(Poll::Pending),
        }
    }

    /// Has the server's loops write from now on.
    pub(crate) fn carried_by(&self, appender: Appender) {
        // Called once.
        let _ = self.loops.set(Loops::new(appender));
        self.carry();
    }

    /// Called behind either, whichever comes first.
    fn carry(&self) {
        if let (Some(streams), Some(loops)) = (self.streams.get(), self.loops.get()) {
            streams.carried_by(loops.clone());
        }
    }

    fn streams(&self) -> Result<&Streams, Problem> {
        self.streams.get().ok_or_else(|| {
            problem(code::STORE, "the streams are being taken over from another process: come again")
        })
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Writes what waits, and gives the directory back.
    pub(crate) fn close(&self) {
        // Before whoever waits is woken.
        self.closed.store(true, Ordering::Release);
        if let Some(streams) = self.streams.get() {
            streams.close();
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// All of them, the oldest first; none, as long as another process has them.
    fn all(&self) -> Vec<Stream> {
        let mut all = self.streams.get().map(Streams::list).unwrap_or_default();
        all.sort_by_key(Stream::created);
        all
    }

    /// Those that may be read with these rights, by name.
    pub(crate) fn list(&self, rights: &Rights) -> Result<Vec<Stream>, Problem> {
        let mut list = self.streams()?.list();
        list.retain(|stream| rights.check(Want::Subscribe(stream.name())).is_ok());
        Ok(list)
    }

    /// A stream to publish to.
    pub(crate) fn to_publish(&self, name: &str, rights: &Rights) -> Result<Stream, Problem> {
        hub::check_name(name).map_err(|text| problem(code::TOPIC, text))?;
        rights.check(Want::Publish(name))?;
        self.find(name, Missing::Made)
    }

    /// A stream to read. Who may publish to it may be there first.
    pub(crate) fn to_read(&self, name: &str, rights: &Rights) -> Result<Stream, Problem> {
        hub::check_name(name).map_err(|text| problem(code::TOPIC, text))?;
        rights.check(Want::Subscribe(name))?;
        let may_publish = rights.check(Want::Publish(name)).is_ok();
        self.find(name, if may_publish { Missing::Made } else { Missing::Refused })
    }

    fn find(&self, name: &str, missing: Missing) -> Result<Stream, Problem> {
        if let Some(stream) = self.streams()?.stream(name) {
            return Ok(stream);
        }
        if missing == Missing::Refused {
            return Err(problem(code::NO_STREAM, format!("there is no stream {name}")));
        }
        let is_topic = self.topics.backs(name);
        // A topic has one order.
        let config = if is_topic { self.config.clone().partitions(1) } else { self.config.clone() };
        let created = self.streams()?.create(name, &config).map_err(|error| {
            let code = match error {
                CreateError::Name => code::TOPIC,
                CreateError::TooMany => code::TOO_MANY,
                _ => code::STORE,
            };
            problem(code, format!("stream {name}: {error}"))
        });
        let stream = created?;
        if is_topic {
            self.topics.line(&stream)?;
        }
        Ok(stream)
    }

    /// Puts records behind the others. Answers the partition, too.
    fn append(&self, stream: &Stream, partition: u32, records: Records) -> Result<Pending, AppendError> {
        let found = stream.partition(partition).ok_or_else(|| AppendError::Failed(NO_PARTITION.into()))?;
        found.append(records)
    }
}

const NO_PARTITION: &str = "the stream has no such partition";

/// The partition that records are meant for.
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
        let (name, count) = (stream.name(), stream.partitions());
        problem(code::NO_STREAM, format!("{name} has {count} partitions, counted from 0: no {partition}"))
    })
}

/// `WS /streams/{name}`: in binary messages if the client wants them, else in JSON.
pub(crate) fn connect(
    request: &Request<'_>,
    policy: &Policy,
    store: Option<&Arc<Store>>,
    hub: &Arc<Hub>,
    max_message: usize,
) -> Result<Box<dyn Handler>, Refusal> {
    let name = http::name_of(request).map_err(|problem| bad_request(&problem.text))?;
    let Some(store) = store else { return Err(off()) };
    if request.subprotocol() == Some(binary::NAME) {
        return Ok(Box::new(Binary::websocket(request, policy, name, Arc::clone(store), max_message)?));
    }
    let side = Side::new(Some(Arc::clone(store)), Some(name));
    Ok(Box::new(Client::new(request, policy, Arc::clone(hub), max_message, side)?))
}

fn off() -> Refusal {
    let refusal = Refusal::new(404).expect("404 is among the statuses of a refusal");
    refusal.with_body(format!("{}\n", http::OFF))
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

/// Where somebody begins who has read nothing yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Begin {
    pub(crate) start: Start,
    /// Where this group has stored that it goes on, if it has.
    pub(crate) group: Option<String>,
}

/// What was read for somebody who asks once.
struct Fetched {
    /// The first offset that counts.
    from: u64,
    /// That of what can be read.
    end: u64,
    read: Read,
}

/// Reads once. Of what is forgotten nothing comes: it begins with what is there.
fn fetch(stream: &Stream, partition: u32, offset: u64, most: usize) -> Result<Fetched, Problem> {
    let partition = find_partition(stream, partition)?;
    let from = partition.seek(Start::Offset(offset));
    let read = partition
        .read(from, most.clamp(1, READ_BYTES))
        .map_err(|error| problem(code::STORE, format!("{}: {error}", stream.name())))?;
    Ok(Fetched { from, end: partition.ends().readable, read })
}

/// Bytes that are read at once. A batch comes whole, however large.
const READ_BYTES: usize = 256 << 10;
