//! A webhook's queue: bounded, and independent of the deliveries.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::sync::{Notify, watch};

use super::event::WebhookEvent;
use super::metrics::WebhookMetrics;
use super::options::WebhookTarget;

/// Maximum memory of the events that wait for one webhook, in bytes: four of the largest messages, or a full queue of
/// events without messages at its default.
const QUEUE_BYTES_MAX: usize = 64 << 20;

/// Memory of a request's events from which it takes no more, in bytes. One event may be larger.
const BATCH_BYTES: usize = 1 << 20;

/// A webhook with its queue.
#[derive(Debug)]
pub(super) struct WebhookQueue {
    name: Box<str>,
    target: RwLock<Arc<WebhookTarget>>,
    state: Mutex<QueueState>,
    /// Wakes the task: an event waits, or the webhook has been closed.
    pub(super) changed: Notify,
    pub(super) metrics: WebhookMetrics,
    has_begun: AtomicBool,
    has_ended: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct QueueState {
    events: VecDeque<WaitingEvent>,
    bytes: usize,
    /// When the deliveries end; no event is queued any more.
    closed: Option<Instant>,
    /// Lost events that the application does not know of.
    lost: u64,
}

#[derive(Debug)]
struct WaitingEvent {
    event: Arc<WebhookEvent>,
    since: Instant,
}

/// Events that leave the queue together.
#[derive(Debug)]
pub(super) struct TakenEvents {
    pub(super) events: Vec<Arc<WebhookEvent>>,
    /// When the first event was queued.
    pub(super) since: Instant,
    /// Events that were lost before.
    pub(super) lost: u64,
}

/// What the task has to do.
#[derive(Debug)]
pub(super) enum NextBatch {
    Send(TakenEvents),
    /// Wait for a further event, at most until then.
    Wait(Option<Instant>),
    End,
}

impl WebhookQueue {
    pub(super) fn new(target: WebhookTarget) -> Self {
        Self {
            name: target.name().into(),
            target: RwLock::new(Arc::new(target)),
            state: Mutex::default(),
            changed: Notify::new(),
            metrics: WebhookMetrics::default(),
            has_begun: AtomicBool::new(false),
            has_ended: watch::Sender::new(false),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn target(&self) -> Arc<WebhookTarget> {
        Arc::clone(&self.target.read())
    }

    pub(super) fn set_target(&self, target: WebhookTarget) {
        *self.target.write() = Arc::new(target);
        self.changed.notify_one();
    }

    /// Whether the task has to be started: once.
    pub(super) fn begin(&self) -> bool {
        !self.has_begun.swap(true, Ordering::AcqRel)
    }

    /// Notes the task's end.
    pub(super) fn end(&self) {
        self.has_ended.send_replace(true);
    }

    /// Completes at the task's end.
    pub(super) async fn ended(&self) {
        if self.has_begun.load(Ordering::Acquire) {
            // The sender lives as long as this value.
            let _ = self.has_ended.subscribe().wait_for(|has_ended| *has_ended).await;
        }
    }

    /// Queues an event, or drops it if the queue is full.
    pub(super) fn push(&self, event: Arc<WebhookEvent>, target: &WebhookTarget) {
        let cost = event.detail.cost();
        let mut state = self.lock();
        let is_full = state.events.len() >= target.limits.queue
            || (state.bytes.saturating_add(cost) > QUEUE_BYTES_MAX && !state.events.is_empty());
        if is_full || state.closed.is_some() {
            state.lost += 1;
            let is_first = state.lost == 1;
            drop(state);
            self.metrics.dropped(1);
            if is_first && is_full {
                let limit = target.limits.queue;
                tracing::warn!(
                    webhook = self.name(),
                    limit,
                    "the queue of a webhook is full: events are dropped"
                );
            }
            return;
        }
        state.bytes += cost;
        state.events.push_back(WaitingEvent { event, since: Instant::now() });
        let count = state.events.len();
        drop(state);
        // In between, the delay of the batch is over first.
        if count == 1 || count == target.limits.batch {
            self.changed.notify_one();
        }
    }

    /// Takes a batch if it is complete, or its delay is over.
    pub(super) fn next(&self, target: &WebhookTarget, now: Instant) -> NextBatch {
        let mut state = self.lock();
        let Some(first) = state.events.front() else {
            return if state.closed.is_some() { NextBatch::End } else { NextBatch::Wait(None) };
        };
        let (since, due) = (first.since, first.since + target.limits.delay);
        if state.closed.is_none() && state.events.len() < target.limits.batch && now < due {
            return NextBatch::Wait(Some(due));
        }
        let (mut events, mut bytes) = (Vec::new(), 0);
        while events.len() < target.limits.batch && bytes < BATCH_BYTES {
            let Some(WaitingEvent { event, .. }) = state.events.pop_front() else { break };
            bytes += event.detail.cost();
            events.push(event);
        }
        state.bytes = state.bytes.saturating_sub(bytes);
        NextBatch::Send(TakenEvents { events, since, lost: std::mem::take(&mut state.lost) })
    }

    /// Returns the number of lost events that the application does not know of; the caller reports it.
    pub(super) fn take_lost(&self) -> u64 {
        std::mem::take(&mut self.lock().lost)
    }

    /// Notes that events were not delivered, and drops further ones that are too old at a time.
    pub(super) fn give_up(&self, taken: &TakenEvents, old: Option<(&WebhookTarget, Instant)>) {
        let mut state = self.lock();
        let mut failed = taken.events.len() as u64;
        let is_old = |waiting: &WaitingEvent| {
            old.is_some_and(|(target, now)| waiting.since + target.limits.retry_time <= now)
        };
        while state.events.front().is_some_and(is_old) {
            let Some(old) = state.events.pop_front() else { break };
            state.bytes = state.bytes.saturating_sub(old.event.detail.cost());
            failed += 1;
        }
        state.lost += taken.lost + failed;
        drop(state);
        self.metrics.failed(failed);
    }

    /// Queues nothing any more; the deliveries end at this time.
    pub(super) fn close(&self, end: Instant) {
        self.lock().closed = Some(end);
        self.changed.notify_one();
    }

    /// When the deliveries end, if the webhook is closed.
    pub(super) fn closed(&self) -> Option<Instant> {
        self.lock().closed
    }

    /// Drops all events at the end.
    pub(super) fn drop_all(&self) -> usize {
        let mut state = self.lock();
        let count = state.events.len();
        (state.events, state.bytes) = (VecDeque::new(), 0);
        drop(state);
        self.metrics.dropped(count as u64);
        count
    }

    /// Returns the number of events that wait.
    pub(super) fn len(&self) -> usize {
        self.lock().events.len()
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock()
    }
}

/// Returns the delay before an attempt after this number of failed ones: from half a second, doubled up to 30 s, less a
/// random part of a quarter, so that nodes do not repeat at the same time.
pub(super) fn backoff(failures: u32, random: u8) -> Duration {
    const FIRST: Duration = Duration::from_millis(500);
    const LAST: Duration = Duration::from_secs(30);
    let full = FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LAST);
    full - full.mul_f64(f64::from(random) / 255.0 / 4.0)
}

#[cfg(test)]
mod tests {
    use super::super::event::EventNumbers;
    use super::super::options::WebhookOptions;
    use super::*;
    use crate::model::events::{EventContent, EventDetail};

    fn receiver(options: WebhookOptions) -> (WebhookQueue, Arc<WebhookTarget>, EventNumbers) {
        let receiver = WebhookQueue::new(options.target().unwrap());
        let target = receiver.target();
        (receiver, target, EventNumbers::default())
    }

    fn options() -> WebhookOptions {
        WebhookOptions::new("app", "http://app/", [7; 32])
    }

    fn occupied(ids: &EventNumbers, topic: &str) -> Arc<WebhookEvent> {
        Arc::new(ids.event(EventDetail::TopicOccupied { topic: topic.into() }))
    }

    fn taken(next: NextBatch) -> TakenEvents {
        match next {
            NextBatch::Send(taken) => taken,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn batches_are_limited_by_number_and_delay() {
        let delay = Duration::from_secs(10);
        let (receiver, target, ids) = receiver(options().with_batch(2, delay));
        let now = Instant::now();
        assert!(matches!(receiver.next(&target, now), NextBatch::Wait(None)));
        receiver.push(occupied(&ids, "a"), &target);
        assert!(matches!(receiver.next(&target, now), NextBatch::Wait(Some(_))));
        receiver.push(occupied(&ids, "b"), &target);
        receiver.push(occupied(&ids, "c"), &target);
        let first = taken(receiver.next(&target, now));
        assert_eq!((first.events.len(), first.lost), (2, 0));
        assert!(first.events[0].id < first.events[1].id);
        assert!(matches!(receiver.next(&target, now), NextBatch::Wait(Some(_))));
        assert_eq!(taken(receiver.next(&target, Instant::now() + delay)).events.len(), 1);
        receiver.push(occupied(&ids, "d"), &target);
        receiver.close(now);
        assert_eq!(taken(receiver.next(&target, now)).events.len(), 1, "a closed webhook does not wait");
        assert!(matches!(receiver.next(&target, now), NextBatch::End));
    }

    #[test]
    fn full_queue_drops_events_and_reports_their_number() {
        let (receiver, target, ids) = receiver(options().with_queue(2).with_batch(1, Duration::ZERO));
        for topic in ["a", "b", "c", "d"] {
            receiver.push(occupied(&ids, topic), &target);
        }
        assert_eq!((receiver.len(), receiver.metrics.values()), (2, (0, 0, 2)));
        let first = taken(receiver.next(&target, Instant::now()));
        assert_eq!((first.events[0].detail.topic().map(|topic| &**topic), first.lost), (Some("a"), 2));
        assert_eq!(taken(receiver.next(&target, Instant::now())).lost, 0);
    }

    #[test]
    fn queue_and_batches_are_limited_in_bytes() {
        let (receiver, target, ids) = receiver(options());
        let message = |bytes: usize| {
            let content = EventContent::Binary(vec![0; bytes].into());
            let detail =
                EventDetail::ClientMessage { topic: "a".into(), content, user: None, connection: None };
            Arc::new(ids.event(detail))
        };
        for _ in 0..5 {
            receiver.push(message(15 << 20), &target);
        }
        assert_eq!((receiver.len(), receiver.metrics.values()), (4, (0, 0, 1)));
        receiver.close(Instant::now());
        for _ in 0..4 {
            assert_eq!(taken(receiver.next(&target, Instant::now())).events.len(), 1);
        }
        assert_eq!(receiver.lock().bytes, 0);
    }

    #[test]
    fn old_events_fail_together_and_are_reported() {
        let retry_time = Duration::from_secs(60);
        let (receiver, target, ids) =
            receiver(options().with_batch(2, Duration::ZERO).with_retry_time(retry_time));
        for topic in ["a", "b", "c"] {
            receiver.push(occupied(&ids, topic), &target);
        }
        let batch = taken(receiver.next(&target, Instant::now()));
        receiver.give_up(&batch, Some((&target, Instant::now())));
        assert_eq!((receiver.len(), receiver.metrics.values()), (1, (0, 2, 0)), "the third is not old");
        let last = taken(receiver.next(&target, Instant::now()));
        assert_eq!(last.lost, 2);
        receiver.push(occupied(&ids, "d"), &target);
        receiver.give_up(&last, Some((&target, Instant::now() + retry_time)));
        assert_eq!((receiver.len(), receiver.metrics.values()), (0, (0, 4, 0)));
        assert_eq!(receiver.lock().bytes, 0);
        receiver.push(occupied(&ids, "e"), &target);
        assert_eq!(taken(receiver.next(&target, Instant::now())).lost, 4, "lost numbers add up");
    }

    #[test]
    fn backoff_doubles_up_to_its_limit() {
        let delays: Vec<u128> = (1..9).map(|failures| backoff(failures, 0).as_millis()).collect();
        assert_eq!(delays, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
        assert_eq!(backoff(u32::MAX, 255), Duration::from_millis(22_500));
    }
}
