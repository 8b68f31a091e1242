//! Streams at a broker: publications go to the broker, and this node's log follows it.
//!
//! ```text
//!   publish, commit ──▶ broker ──▶ log of this node ──▶ readers: records since the node follows the stream
//!                         └────────────────────────────▶ readers: records that are older than the log
//! ```

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Shared, WeakShared};
use sinews_stream::broker::{Answer, Broker, BrokerError, Health};
use sinews_stream::{CreateError, Partition, Read, ReadError, Start, Stream, StreamConfig, Streams};

use super::backing::Backing;
use super::{created, unusable};
use crate::echo::brief;
use crate::protocol::{Problem, code, problem};

/// Time that a shutdown waits for the broker's outstanding acknowledgements.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// Number of attempts to query a new stream that has no leader yet.
const TRIES: u32 = 5;

/// The broker, and the streams of this node that follow it.
pub(crate) struct Bridge {
    broker: Arc<dyn Broker>,
    topics: Arc<Backing>,
    known: Arc<Mutex<HashMap<String, Known>>>,
    refused: AtomicU64,
}

enum Known {
    Opening(WeakShared<Open>),
    Open(Arc<[Extent]>),
}

pub(super) type Open = Pin<Box<dyn Future<Output = Result<(), Problem>> + Send>>;

/// Completes when a stream can be read and written on this node. All tasks that wait for a stream share it.
pub(crate) type Opening = Shared<Open>;

/// The offsets that the broker had of a partition when this node began to follow it.
#[derive(Clone, Copy, Debug)]
struct Extent {
    first: u64,
    end: u64,
}

impl Bridge {
    pub(crate) fn new(broker: Arc<dyn Broker>, topics: Arc<Backing>) -> Self {
        Self { broker, topics, known: Arc::default(), refused: AtomicU64::new(0) }
    }

    pub(crate) fn broker(&self) -> &Arc<dyn Broker> {
        &self.broker
    }

    pub(crate) fn health(&self) -> Health {
        self.broker.health()
    }

    /// Appends and queries that the broker has rejected or not answered.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn close(&self) {
        self.broker.close(CLOSE_WITHIN);
    }

    /// Whether this node follows the stream.
    pub(super) fn is_open(&self, name: &str) -> bool {
        matches!(lock(&self.known).get(name), Some(Known::Open(_)))
    }

    /// Begins to follow a stream; `None` if this node follows it already.
    pub(super) fn open(&self, name: &str, streams: &Streams, config: &StreamConfig) -> Option<Opening> {
        let mut known = lock(&self.known);
        match known.get(name) {
            Some(Known::Open(_)) => return None,
            Some(Known::Opening(opening)) => {
                if let Some(opening) = opening.upgrade() {
                    return Some(opening);
                }
            }
            None => {}
        }
        let (broker, place) = (Arc::clone(&self.broker), Arc::clone(&self.known));
        let (topics, streams) = (Arc::clone(&self.topics), streams.clone());
        let (config, stream) = (config.clone(), name.to_owned());
        let open: Open = Box::pin(async move {
            let opened = follow((&*broker, &topics), &stream, &streams, &config).await;
            let mut known = lock(&place);
            match opened {
                Ok(extents) => {
                    known.insert(stream, Known::Open(extents.into()));
                    Ok(())
                }
                // The next caller retries.
                Err(problem) => {
                    known.remove(&stream);
                    Err(problem)
                }
            }
        });
        let opening = open.shared();
        // All callers may have gone before it was open.
        known.retain(|_, one| !matches!(one, Known::Opening(opening) if opening.upgrade().is_none()));
        if let Some(weak) = opening.downgrade() {
            known.insert(name.to_owned(), Known::Opening(weak));
        }
        Some(opening)
    }

    fn extent(&self, stream: &str, partition: u32) -> Extent {
        let open = match lock(&self.known).get(stream) {
            Some(Known::Open(extents)) => extents.get(partition as usize).copied(),
            _ => None,
        };
        open.unwrap_or(Extent { first: 0, end: 0 })
    }

    /// The first record at the broker.
    pub(super) fn first(&self, stream: &str, partition: u32) -> u64 {
        self.extent(stream, partition).first
    }

    /// The offset at which reading starts.
    pub(super) fn seek(
        &self,
        stream: &str,
        number: u32,
        partition: &Partition,
        start: Start,
    ) -> Result<u64, Problem> {
        let (extent, ends) = (self.extent(stream, number), partition.ends());
        Ok(match start {
            Start::Earliest => extent.first,
            // The log may not have reached the broker's end yet.
            Start::Latest => ends.readable.max(extent.end),
            // Another node may have read more than this one, so the end is no limit.
            Start::Offset(offset) => offset.max(extent.first),
            // By time, or by a start that a later version adds.
            _ => {
                let found = partition.seek(start);
                let has_older = ends.next > 0 && found > ends.earliest;
                let has_all = ends.next > 0 && ends.earliest <= extent.first || extent.first == extent.end;
                if !has_older && !has_all {
                    let words = "this node has no older records, and the broker is not searched by time: start at an \
                                 offset or at earliest";
                    return Err(problem(code::NOT_KEPT, words));
                }
                found
            }
        })
    }

    pub(super) fn source(self: &Arc<Self>, stream: &Stream, number: u32, partition: Partition) -> Source {
        let begins = self.extent(stream.name(), number).end;
        let older = Older { bridge: Arc::clone(self), stream: stream.clone(), number, begins, asked: None };
        Source { partition, older: Some(older) }
    }

    /// Counts a failed query and describes it.
    pub(super) fn failed(&self, error: &BrokerError) -> Problem {
        self.count_refused();
        let code = if *error == BrokerError::Busy { code::TOO_MANY } else { code::STORE };
        problem(code, error.to_string())
    }
}

/// Makes the log of a stream follow the broker: from the broker's current end, or from the end of an earlier run.
async fn follow(
    (broker, topics): (&dyn Broker, &Backing),
    name: &str,
    streams: &Streams,
    config: &StreamConfig,
) -> Result<Vec<Extent>, Problem> {
    let shown = brief(name);
    let refused = |error: BrokerError| {
        problem(code::STORE, format!("stream {shown}: {}", error.to_string().replace(name, &shown)))
    };
    if streams.describe(name).is_none() && !streams.has_room() {
        // The query may create the stream at the broker.
        return Err(created(name, &CreateError::TooMany));
    }
    // A topic is ordered, so it has one partition.
    let count = match topics.backs(name) && broker.makes_partitions() {
        true => 1,
        false => broker.partitions(name).await.map_err(refused)?,
    };
    let asked: Vec<_> = (0..count).map(|partition| broker.ends(name, partition)).collect();
    let mut extents = Vec::with_capacity(asked.len());
    for (partition, mut answer) in (0..count).zip(asked) {
        let mut tries = 1;
        let (first, end) = loop {
            match answer.await {
                Err(BrokerError::Failed(_)) if tries < TRIES && broker.health().ready => {
                    tries += 1;
                    answer = broker.ends(name, partition);
                }
                answer => break answer.map_err(refused)?,
            }
        };
        extents.push(Extent { first, end });
    }
    let create = || match streams.create(name, &config.clone().partitions(count)) {
        Err(CreateError::Partitions { has }) => Err(problem(
            code::STORE,
            format!("stream {shown} has {count} partitions at the broker and {has} on this node"),
        )),
        other => other.map_err(|error| created(name, &error)),
    };
    let opened = streams.creating(name, &config.clone().partitions(count)).await;
    let stream = match opened.map_err(|error| unusable(name, &error))? {
        Some(stream) if stream.partitions() == count => stream,
        _ => create()?,
    };
    for (number, extent) in (0..count).zip(&extents) {
        let Some(partition) = stream.partition(number) else { continue };
        let ends = partition.ends();
        let is_new = ends.next == 0;
        let from = if is_new { Start::Offset(extent.end) } else { Start::Earliest };
        // Before the first record arrives.
        topics.begin_at_broker(&stream, if is_new { extent.end } else { ends.readable });
        broker.follow(name, number, from, partition);
    }
    Ok(extents)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No panic under the lock leaves an inconsistent value.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A partition as its readers see it: this node's log, preceded by older records at the broker.
pub(crate) struct Source {
    partition: Partition,
    older: Option<Older>,
}

struct Older {
    bridge: Arc<Bridge>,
    stream: Stream,
    number: u32,
    /// The start of the log while it is empty.
    begins: u64,
    asked: Option<(u64, Answer<Read>)>,
}

/// Why a read returned no records.
pub(crate) enum Unread {
    /// The records do not exist any more. The next offset follows.
    Gap(u64),
    /// The offset is beyond the end of the remaining log.
    Ahead(u64),
    Failed(Problem),
}

impl Source {
    /// The source for a log without a broker.
    pub(super) fn log(partition: Partition) -> Self {
        Self { partition, older: None }
    }

    pub(crate) fn partition(&self) -> &Partition {
        &self.partition
    }

    /// Batches from an offset on; none at the end. Without a broker the result is ready at once.
    pub(crate) fn poll_read(
        &mut self,
        from: u64,
        most: usize,
        waker: &Waker,
    ) -> Poll<Result<Option<Read>, Unread>> {
        let Poll::Ready(found) = self.partition.poll_read(from, most, waker) else { return Poll::Pending };
        let Some(older) = &mut self.older else { return Poll::Ready(of_log(found, from)) };
        let ends = self.partition.ends();
        // An empty log stands at 0, although it will start elsewhere.
        let begins = if ends.readable == 0 { older.begins } else { ends.earliest };
        match found {
            Ok(read) if !read.batches.is_empty() => Poll::Ready(Ok(Some(read))),
            Ok(_) | Err(ReadError::Gone { .. } | ReadError::Ahead { .. }) if from < begins => {
                older.poll(from, begins, most, waker)
            }
            // This node has not read that far yet.
            Ok(_) | Err(ReadError::Ahead { .. }) => Poll::Ready(Ok(None)),
            Err(error) => Poll::Ready(of_log(Err(error), from)),
        }
    }

    /// Reads from the broker, even records that are newer than the log.
    pub(super) fn poll_broker(
        &mut self,
        from: u64,
        end: u64,
        most: usize,
        waker: &Waker,
    ) -> Poll<Result<Option<Read>, Unread>> {
        match &mut self.older {
            Some(older) => older.poll(from, end, most, waker),
            None => Poll::Ready(Ok(None)),
        }
    }
}

impl Older {
    /// Reads from the broker at an offset; `begins` is the start of the log.
    fn poll(
        &mut self,
        from: u64,
        begins: u64,
        most: usize,
        waker: &Waker,
    ) -> Poll<Result<Option<Read>, Unread>> {
        let asked = self.asked.take().filter(|(asked, _)| *asked == from);
        let broker = &self.bridge.broker;
        let (_, mut answer) =
            asked.unwrap_or_else(|| (from, broker.fetch(self.stream.name(), self.number, from, most)));
        match Pin::new(&mut answer).poll(&mut Context::from_waker(waker)) {
            Poll::Pending => {
                self.asked = Some((from, answer));
                Poll::Pending
            }
            Poll::Ready(Ok(read)) if read.next > from => Poll::Ready(Ok(Some(read))),
            // The broker has no readable records there.
            Poll::Ready(Ok(_)) => Poll::Ready(Err(Unread::Gap(begins))),
            Poll::Ready(Err(BrokerError::Gone { earliest })) if earliest > from => {
                Poll::Ready(Err(Unread::Gap(earliest)))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(Unread::Failed(self.bridge.failed(&error)))),
        }
    }
}

/// Converts a result of the log for a reader.
fn of_log(found: Result<Read, ReadError>, from: u64) -> Result<Option<Read>, Unread> {
    match found {
        Ok(read) => Ok((!read.batches.is_empty()).then_some(read)),
        Err(ReadError::Gone { earliest: to } | ReadError::Damaged { resume: to, .. }) if to > from => {
            Err(Unread::Gap(to))
        }
        Err(ReadError::Ahead { readable }) if readable < from => Err(Unread::Ahead(readable)),
        Err(error @ ReadError::Deleted) => Err(Unread::Failed(problem(code::NOT_KEPT, error.to_string()))),
        Err(error) => Err(Unread::Failed(problem(code::STORE, error.to_string()))),
    }
}
