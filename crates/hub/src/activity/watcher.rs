//! A viewer of client activity: its filter, its sample and its queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use sinews_server::TopicPattern;

use super::{Activity, ActivityKind};

/// Actions of one kind that a viewer receives in a second; of more, a sample over time.
pub(crate) const RATE: u32 = 20;

/// Actions of one kind that a viewer receives at once after a quiet time.
const BURST: u32 = 40;

/// Lines that wait for a viewer.
pub(crate) const QUEUE_MAX: usize = 512;

/// The actions that a viewer receives.
#[derive(Clone, Debug, Default)]
pub(crate) struct ActivityFilter {
    /// A topic, or a pattern.
    pub(crate) topic: Option<TopicPattern<'static>>,
    pub(crate) user: Option<String>,
    pub(crate) connection: Option<String>,
    /// Bits of the kinds; 0: all.
    pub(super) kinds: u16,
}

impl ActivityFilter {
    /// Adds a kind by its name. Returns whether there is such a kind.
    pub(crate) fn add_kind(&mut self, name: &str) -> bool {
        let kind = ActivityKind::ALL.into_iter().find(|kind| kind.name() == name);
        self.kinds |= kind.map_or(0, ActivityKind::bit);
        kind.is_some()
    }

    fn matches(&self, activity: &Activity<'_>) -> bool {
        (self.kinds == 0 || self.kinds & activity.kind.bit() != 0)
            && self.user.as_deref().is_none_or(|user| activity.user == Some(user))
            && self.connection.as_deref().is_none_or(|id| activity.connection.as_deref() == Some(id))
            && self.topic.as_ref().is_none_or(|topic| matches_topic(topic, activity.topic))
    }
}

/// Whether a filter and the topic or pattern of an action have a topic in common.
fn matches_topic(filter: &TopicPattern<'_>, topic: Option<&str>) -> bool {
    let Some(Ok(topic)) = topic.map(TopicPattern::parse) else { return false };
    filter.covers(&topic) || topic.covers(filter)
}

/// A viewer.
#[derive(Debug)]
pub(crate) struct ActivityWatcher {
    filter: ActivityFilter,
    waker: Waker,
    state: Mutex<WatcherQueue>,
}

#[derive(Debug, Default)]
struct WatcherQueue {
    lines: VecDeque<Arc<str>>,
    /// For each kind, when its next action is due.
    due: [Option<Instant>; ActivityKind::ALL.len()],
    /// For each kind, the actions that were left out since the last report.
    omitted: [u64; ActivityKind::ALL.len()],
}

impl ActivityWatcher {
    pub(crate) fn new(filter: ActivityFilter, waker: Waker) -> Self {
        Self { filter, waker, state: Mutex::default() }
    }

    /// Queues an action that matches the filter, or counts it above the rate and if the queue is full.
    pub(super) fn offer(&self, activity: &Activity<'_>, now: Instant, encode: impl FnOnce() -> Arc<str>) {
        if !self.filter.matches(activity) {
            return;
        }
        let kind = activity.kind as usize;
        let mut state = self.state.lock();
        if state.lines.len() >= QUEUE_MAX || !state.take(kind, now) {
            state.omitted[kind] += 1;
            return;
        }
        let was_empty = state.lines.is_empty();
        state.lines.push_back(encode());
        drop(state);
        if was_empty {
            self.waker.wake_by_ref();
        }
    }

    /// Takes the next line.
    pub(crate) fn take_line(&self) -> Option<Arc<str>> {
        self.state.lock().lines.pop_front()
    }

    /// Takes the numbers of actions that were left out since the last call, by kind; `None` without any.
    pub(crate) fn take_omitted(&self) -> Option<Value> {
        let omitted = std::mem::take(&mut self.state.lock().omitted);
        let counts = ActivityKind::ALL.into_iter().zip(omitted).filter(|(_, count)| *count > 0);
        let counts: Map<String, Value> =
            counts.map(|(kind, count)| (kind.name().to_owned(), json!(count))).collect();
        (!counts.is_empty()).then_some(Value::Object(counts))
    }
}

impl WatcherQueue {
    /// Takes an action of a kind from its rate. Returns whether it is within the rate.
    fn take(&mut self, kind: usize, now: Instant) -> bool {
        const INTERVAL: Duration = Duration::from_millis(1_000 / RATE as u64);
        let due = self.due[kind].map_or(now, |due| due.max(now));
        let is_within = due.saturating_duration_since(now) < INTERVAL * BURST;
        if is_within {
            self.due[kind] = Some(due + INTERVAL);
        }
        is_within
    }
}
