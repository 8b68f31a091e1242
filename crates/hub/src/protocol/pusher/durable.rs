//! Recovery in channels that are durable topics. The missed events are read from the stream, whose positions are the
//! same at all nodes and after a restart; meanwhile the subscription has no answer.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{self, Poll};
use std::time::Instant;

use futures_util::FutureExt as _;
use sinews_server::{Context, InvalidTopic, LogLimit, Prepared, ReplayFrom};

use super::recovery::{ChannelRecovery, RecoverRequest};
use super::services::PusherServices;
use crate::apps::budget::{RECOVERY_BYTES, ReservedMemory};
use crate::apps::encode::encode;
use crate::apps::encoding::RECOVERABLE_EVENTS;
use crate::apps::live::LiveApps;
use crate::model::brief::brief;
use crate::model::event::Event;
use crate::model::opening::SharedOpening;
use crate::model::problem::Problem;
use crate::streams::missed::MissedRecords;
use crate::streams::service::StreamService;
use crate::streams::topic_history::HISTORY_MAX;

/// A subscription that waits for the events that its client has missed.
pub(super) struct PendingRecovery {
    pub(super) channel: Box<str>,
    topic: Box<str>,
    request: RecoverRequest,
    work: RecoveryWork,
    /// When the reading ends; `None` while it pauses, and before it begins. A time of
    /// [`LiveApps::now`](super::live::LiveApps::now).
    pub(super) deadline: Option<u64>,
}

/// What a recovery waits for.
enum RecoveryWork {
    /// The missed records of a stream.
    Stream {
        source: MissedSource,
        reading: Reading,
        /// Reads so far.
        reads: u32,
    },
    /// This node's copy of a topic in a topic store, from which the missed events follow.
    Stored(SharedOpening),
}

/// The store from which the missed records are read, and the services of the protocol.
#[derive(Clone)]
struct MissedSource {
    store: Arc<StreamService>,
    services: Arc<PusherServices>,
}

/// The missed records, with the memory that is reserved for them, if any were read.
type ReservedRecords = (MissedRecords, Option<ReservedMemory>);

type Reading = Pin<Box<dyn Future<Output = Result<Option<ReservedRecords>, Problem>>>>;

/// Maximum reads for one recovery: each reads what was published during the previous one.
const READS_MAX: u32 = 16;

/// Limit for the log lines about missed events that are not read.
static UNREAD_LINES: LogLimit = LogLimit::new();

impl PendingRecovery {
    /// Prepares to read the events that the client has missed. The first poll begins.
    pub(super) fn new(
        channel: &str,
        topic: &str,
        request: RecoverRequest,
        store: &Arc<StreamService>,
        services: &Arc<PusherServices>,
    ) -> Self {
        let source = MissedSource { store: Arc::clone(store), services: Arc::clone(services) };
        let reading = start_reading(source.clone(), topic, request);
        Self::with_work(channel, topic, request, RecoveryWork::Stream { source, reading, reads: 1 })
    }

    /// Prepares to recover from a topic store.
    pub(super) fn stored(
        channel: &str,
        topic: &str,
        request: RecoverRequest,
        opening: SharedOpening,
    ) -> Self {
        Self::with_work(channel, topic, request, RecoveryWork::Stored(opening))
    }

    fn with_work(channel: &str, topic: &str, request: RecoverRequest, work: RecoveryWork) -> Self {
        Self { channel: channel.into(), topic: topic.into(), request, work, deadline: None }
    }

    /// Pauses until the next poll, which begins again: a recovery that has begun drops its records and its memory,
    /// which other recoveries may wait for.
    pub(super) fn pause(&mut self) {
        if self.deadline.take().is_some()
            && let RecoveryWork::Stream { source, reading, reads } = &mut self.work
        {
            (*reading, *reads) = (start_reading(source.clone(), &self.topic, self.request), 1);
        }
    }

    /// Begins or continues at a time, with a deadline for the reading.
    pub(super) fn poll_at(
        &mut self,
        now: u64,
        deadline: u64,
        apps: &LiveApps,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ChannelRecovery, InvalidTopic>> {
        let is_over = self.deadline.is_some_and(|deadline| now >= deadline);
        let polled = self.poll(cx);
        if polled.is_ready() {
            return polled;
        }
        if is_over {
            if let Some(omitted) = UNREAD_LINES.permit(Instant::now()) {
                let topic = brief(&self.topic);
                tracing::warn!(topic, omitted, "the missed events of a channel were not read in time");
            }
            apps.counters.late_recoveries.fetch_add(1, Ordering::Relaxed);
            return Poll::Ready(self.subscribe_to_new_events(cx));
        }
        if self.deadline.replace(self.deadline.unwrap_or(deadline)).is_none() {
            // The server asks for the deadline of a handler that it has woken.
            cx.waker().wake();
        }
        Poll::Pending
    }

    /// Subscribes behind the missed events when they are read.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<ChannelRecovery, InvalidTopic>> {
        let encoded = RECOVERABLE_EVENTS.topic(&self.topic);
        let waker = cx.waker();
        let (source, reading, reads) = match &mut self.work {
            RecoveryWork::Stream { source, reading, reads } => (source, reading, reads),
            RecoveryWork::Stored(opening) => {
                return match opening.poll_unpin(&mut task::Context::from_waker(&waker)) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(Ok(())) => {
                        Poll::Ready(ChannelRecovery::subscribe(cx, &self.topic, self.request))
                    }
                    Poll::Ready(Err(_)) => Poll::Ready(self.subscribe_to_new_events(cx)),
                };
            }
        };
        loop {
            let read = reading.as_mut().poll(&mut task::Context::from_waker(&waker));
            let Poll::Ready(read) = read else { return Poll::Pending };
            let (missed, reserved) = match read {
                Ok(Some(missed)) => missed,
                Ok(None) => return Poll::Ready(self.subscribe_to_new_topic(&encoded, cx)),
                Err(problem) => {
                    if let Some(omitted) = UNREAD_LINES.permit(Instant::now()) {
                        let topic = brief(&self.topic);
                        tracing::warn!(
                            topic,
                            problem = problem.text,
                            omitted,
                            "cannot read the missed events of a channel"
                        );
                    }
                    break;
                }
            };
            match missed.subscribe(&encoded, cx) {
                Err(error) => return Poll::Ready(Err(error)),
                Ok(Some(position)) => {
                    let missed = self.missed_events(missed);
                    return Poll::Ready(Ok(ChannelRecovery { position: Some(position), missed }));
                }
                Ok(None) if *reads == READS_MAX => break,
                Ok(None) => {
                    *reads += 1;
                    let source = source.clone();
                    *reading =
                        Box::pin(async move { read_reserved(&source, missed, reserved).await.map(Some) });
                }
            }
        }
        Poll::Ready(self.subscribe_to_new_events(cx))
    }

    /// Subscribes without a recovery. New events have positions.
    fn subscribe_to_new_events(&self, cx: &mut Context<'_>) -> Result<ChannelRecovery, InvalidTopic> {
        let encoded = RECOVERABLE_EVENTS.topic(&self.topic);
        cx.subscribe_from(&encoded, ReplayFrom::Last(0))?;
        Ok(ChannelRecovery::default())
    }

    /// Subscribes to a topic that has no stream yet: its position is before the first event.
    fn subscribe_to_new_topic(
        &self,
        encoded: &str,
        cx: &mut Context<'_>,
    ) -> Result<ChannelRecovery, InvalidTopic> {
        let position = cx.subscribe_from(encoded, ReplayFrom::Last(0))?.position;
        let RecoverRequest::After { position: after, .. } = self.request else {
            return Ok(ChannelRecovery { position: Some(position), missed: None });
        };
        let has_missed_none = after.sequence == 0 && position.sequence == 0;
        Ok(ChannelRecovery { position: Some(position), missed: has_missed_none.then(Vec::new) })
    }

    /// The records' events, without those from the client's earlier connection; `None` if some are missing, or if all
    /// events exceed the limit of bytes.
    fn missed_events(&self, missed: MissedRecords) -> Option<Vec<Prepared>> {
        let RecoverRequest::After { socket_id: own, .. } = self.request else { return None };
        let (mut events, mut bytes) = (Vec::new(), 0);
        for (position, content) in missed.into_records()? {
            let event = encode(&Event::from_content(&content), &self.channel);
            let is_own = own.is_some() && event.socket_id == own;
            let message = event.with_position(position, None).message;
            bytes += message.payload().len();
            if bytes > RECOVERY_BYTES {
                return None;
            }
            if !is_own {
                events.push(message);
            }
        }
        Some(events)
    }
}

/// Reads the records that the client has missed, when it is polled.
fn start_reading(source: MissedSource, topic: &str, request: RecoverRequest) -> Reading {
    let after = match request {
        RecoverRequest::Live => None,
        RecoverRequest::After { position, .. } => Some(position),
    };
    let topic = topic.to_owned();
    Box::pin(async move {
        let MissedSource { store, services } = source.clone();
        match MissedRecords::begin(store, Arc::clone(&services.hub), topic, after).await? {
            Some(missed) => read_reserved(&source, missed, None).await.map(Some),
            None => Ok(None),
        }
    })
}

/// Reads on, when memory is reserved. Without records to read, none is needed.
async fn read_reserved(
    MissedSource { store, services }: &MissedSource,
    missed: MissedRecords,
    reserved: Option<ReservedMemory>,
) -> Result<ReservedRecords, Problem> {
    if !missed.is_behind() {
        return Ok((missed, reserved));
    }
    let reserved = match reserved {
        Some(reserved) => reserved,
        None => services.apps.recoveries.reserve().await,
    };
    Ok((missed.read_on(store, HISTORY_MAX, RECOVERY_BYTES).await?, Some(reserved)))
}
