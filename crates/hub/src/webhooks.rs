//! Webhooks: event reports to the application, after they have happened.
//!
//! ```text
//!   worker: publication, end of a connection ──▶ Webhooks::emit ──▶ queue of each webhook ──▶ its task ── HTTP(S) ─▶ application
//!   presence table: changed topics ──▶ StateReporter ──▶ queue          background (Tokio)
//! ```
//!
//! Queues, batches, retries and the grace for short absences know nothing about a request's form: a [`WebhookEncoder`]
//! makes the body and the signature.

mod counts;
mod delivery;
mod encoder;
mod event;
mod filter;
mod metrics;
mod options;
mod queue;
mod reporter;
mod states;

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard, RwLock};
use sinews_server::Publisher;
use tokio::sync::Notify;

pub(crate) use self::encoder::{EventBatch, WebhookEncoder};
use self::event::EventNumbers;
pub(crate) use self::filter::EventFilter;
pub(crate) use self::metrics::{WebhookBacklog, WebhookCollector};
pub use self::options::WebhookOptions;
pub(crate) use self::options::{WebhookAddress, WebhookTarget, targets};
use self::queue::WebhookQueue;
use self::reporter::StateReporter;
use crate::background::{Background, Task};
use crate::model::events::{EventDetail, EventSink, WebhookEventKind};
use crate::model::nodes::OtherNodes;

/// Time to deliver queued events when the server ends.
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// Time to collect presence changes before they are reported.
const GATHER_TIME: Duration = Duration::from_millis(20);

/// A hub's webhooks, which a reload replaces. All policies of the hub share them.
#[derive(Debug, Default)]
pub(crate) struct Webhooks {
    /// The event kinds that any webhook wants, as bits.
    wanted: AtomicU16,
    receivers: RwLock<Arc<[Arc<WebhookQueue>]>>,
    ids: EventNumbers,
    reporter: Mutex<StateReporter>,
    source: OnceLock<StateSource>,
    /// Reports topic states; set while there are webhooks.
    task: Mutex<Option<Task>>,
    /// Wakes the task: presence has changed, or the webhooks have.
    changed: Arc<Notify>,
    is_stopping: AtomicBool,
    /// A successor process reports topic states from the end of the takeover on.
    is_suspended: AtomicBool,
}

/// Where topic states come from.
#[derive(Debug)]
struct StateSource {
    publisher: Publisher,
    nodes: Option<Arc<dyn OtherNodes>>,
    background: Background,
    is_observed: AtomicBool,
}

impl Webhooks {
    /// Replaces the webhooks. A webhook with the name of a former one continues its queue.
    pub(crate) fn replace(self: &Arc<Self>, targets: Vec<WebhookTarget>) {
        let former = self.receivers();
        let mut all = Vec::with_capacity(targets.len());
        for target in targets {
            match former.iter().find(|known| known.name() == target.name()) {
                Some(known) => {
                    known.set_target(target);
                    all.push(Arc::clone(known));
                }
                None => all.push(Arc::new(WebhookQueue::new(target))),
            }
        }
        let wanted = all.iter().fold(0, |bits, receiver| bits | receiver.target().filter.kinds());
        let all: Arc<[Arc<WebhookQueue>]> = all.into();
        *self.receivers.write() = Arc::clone(&all);
        self.wanted.store(wanted, Ordering::Release);
        for removed in former.iter().filter(|known| !all.iter().any(|one| Arc::ptr_eq(one, known))) {
            removed.close(Instant::now() + DRAIN_TIME);
        }
        if let Some(source) = self.source.get()
            && let Err(error) = self.run(&source.background, &all)
        {
            tracing::error!("tasks of webhooks: {error}");
        }
        self.changed.notify_one();
    }

    /// Starts to report topic states, and to deliver.
    ///
    /// # Errors
    /// The task thread cannot be started.
    pub(crate) fn start(
        self: &Arc<Self>,
        publisher: Publisher,
        nodes: Option<Arc<dyn OtherNodes>>,
        background: &Background,
        has_predecessor: bool,
    ) -> std::io::Result<()> {
        self.is_suspended.store(has_predecessor, Ordering::Release);
        let (background, is_observed) = (background.clone(), AtomicBool::new(false));
        // A hub starts once.
        let source = self.source.get_or_init(|| StateSource { publisher, nodes, background, is_observed });
        // Before the first client joins a topic.
        self.step(Instant::now());
        self.run(&source.background, &self.receivers())
    }

    /// Starts the report if there are webhooks, and the deliveries of new webhooks.
    fn run(
        self: &Arc<Self>,
        background: &Background,
        receivers: &[Arc<WebhookQueue>],
    ) -> std::io::Result<()> {
        if receivers.is_empty() {
            return Ok(());
        }
        let mut task = self.lock_task();
        if task.is_none() {
            *task = Some(background.spawn("webhooks", Arc::clone(self).report())?);
        }
        receivers.iter().filter(|receiver| receiver.begin()).try_for_each(|receiver| {
            background.spawn("webhook-delivery", delivery::run(Arc::clone(receiver))).map(drop)
        })
    }

    /// Reports topic states until the hub ends, then waits for the deliveries.
    async fn report(self: Arc<Self>) {
        loop {
            let next = self.step(Instant::now());
            if self.is_stopping.load(Ordering::Acquire) {
                break;
            }
            match next {
                // A timeout is no failure.
                Some(at) => drop(tokio::time::timeout_at(at.into(), self.changed.notified()).await),
                None => self.changed.notified().await,
            }
            tokio::time::sleep(GATHER_TIME).await;
        }
        let end = Instant::now() + DRAIN_TIME;
        let receivers = self.receivers();
        receivers.iter().for_each(|receiver| receiver.close(end));
        for receiver in receivers.iter() {
            receiver.ended().await;
        }
    }

    /// Reports changed states; returns when to do it again without a change.
    fn step(&self, now: Instant) -> Option<Instant> {
        let source = self.source.get()?;
        let mut reporter = self.lock_reporter();
        let receivers = self.receivers();
        if receivers.iter().any(|receiver| receiver.target().filter.has_states())
            && !source.is_observed.swap(true, Ordering::AcqRel)
        {
            let changed = Arc::clone(&self.changed);
            source.publisher.observe_presence(move || changed.notify_one());
        }
        if !source.is_observed.load(Ordering::Acquire) || self.is_suspended.load(Ordering::Acquire) {
            return None;
        }
        let mut emit = |grace, detail| self.emit_state(&receivers, grace, detail);
        let targets = receivers.iter().map(|receiver| receiver.target());
        reporter.step(&source.publisher, source.nodes.as_deref(), targets, now, &mut emit)
    }

    /// Takes the present state of all topics as reported, and continues: the predecessor process has reported it.
    pub(crate) fn take_over(&self) {
        if let Some(source) = self.source.get() {
            let receivers = self.receivers();
            let targets = receivers.iter().map(|receiver| receiver.target());
            self.lock_reporter().adopt(&source.publisher, targets, Instant::now());
        }
        self.is_suspended.store(false, Ordering::Release);
        self.changed.notify_one();
    }

    /// Reports absences whose grace is not over.
    fn flush(&self) {
        let receivers = self.receivers();
        self.lock_reporter().flush(&mut |grace, detail| self.emit_state(&receivers, grace, detail));
    }

    /// Ends the tasks, after the delivery of queued events: at most [`DRAIN_TIME`].
    pub(crate) fn stop(&self) {
        // The other nodes of a cluster report the topics that this node leaves.
        if self.source.get().is_some_and(|source| source.nodes.is_none()) {
            self.step(Instant::now());
            self.flush();
        }
        self.is_stopping.store(true, Ordering::Release);
        self.changed.notify_one();
        // Not locked while this thread waits.
        let task = self.lock_task().take();
        if let Some(task) = task {
            task.wait();
        }
    }

    /// Queues a state change for the webhooks with this grace.
    fn emit_state(&self, receivers: &[Arc<WebhookQueue>], grace: Duration, detail: EventDetail) {
        self.queue(receivers, &detail, |target| target.grace == grace);
    }

    fn queue(
        &self,
        receivers: &[Arc<WebhookQueue>],
        detail: &EventDetail,
        is_meant: impl Fn(&WebhookTarget) -> bool,
    ) {
        let mut event = None;
        for receiver in receivers {
            let target = receiver.target();
            if is_meant(&target) && target.filter.matches(detail) {
                let event = event.get_or_insert_with(|| Arc::new(self.ids.event(detail.clone())));
                receiver.push(Arc::clone(event), &target);
            }
        }
    }

    /// The metrics; `None` without webhooks.
    pub(crate) fn collector(&self) -> Option<WebhookCollector> {
        let receivers = self.receivers();
        let reporters = self.lock_reporter().reporters();
        (!receivers.is_empty()).then_some(WebhookCollector { receivers, reporters })
    }

    fn receivers(&self) -> Arc<[Arc<WebhookQueue>]> {
        Arc::clone(&self.receivers.read())
    }

    fn lock_reporter(&self) -> MutexGuard<'_, StateReporter> {
        self.reporter.lock()
    }

    fn lock_task(&self) -> MutexGuard<'_, Option<Task>> {
        self.task.lock()
    }
}

impl EventSink for Webhooks {
    fn wants(&self, kind: WebhookEventKind) -> bool {
        self.wanted.load(Ordering::Relaxed) & kind.bit() != 0
    }

    fn emit(&self, detail: EventDetail) {
        self.queue(&self.receivers(), &detail, |_| true);
    }

    fn hand_over(&self) {
        self.step(Instant::now());
        self.flush();
    }
}
