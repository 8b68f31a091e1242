//! The patterns whose subscribers get durable topics from a broker, and the streams that are known for them.

use std::collections::{HashMap, HashSet};

use parking_lot::{Mutex, MutexGuard};
use sinews_server::{TopicName, TopicPattern};
use tokio::sync::Notify;

use crate::background::Task;
use crate::model::problem::{Problem, code, problem};

/// A node's subscription patterns, and the streams at the broker.
#[derive(Default)]
pub(super) struct TopicDiscovery {
    state: Mutex<DiscoveryState>,
    /// A pattern has its first subscriber, or the node shuts down.
    pub(super) changed: Notify,
}

#[derive(Default)]
pub(super) struct DiscoveryState {
    pub(super) patterns: HashMap<String, ActivePattern>,
    /// Durable topics of the last listing that need no other start than the end of their streams; `None` before the
    /// first listing, and without patterns.
    pub(super) listed: Option<HashSet<String>>,
    pub(super) task: Option<Task>,
    /// The last listing failure.
    pub(super) failure: Option<Problem>,
    pub(super) is_closed: bool,
}

pub(super) struct ActivePattern {
    pattern: TopicPattern<'static>,
    pub(super) subscriptions: usize,
    /// The first listing's result; `None` before it.
    pub(super) result: Option<Result<(), Problem>>,
}

impl TopicDiscovery {
    pub(super) fn lock(&self) -> MutexGuard<'_, DiscoveryState> {
        self.state.lock()
    }

    /// Whether a stream did not exist when its subscribers by pattern subscribed: they receive it from its first
    /// record.
    pub(super) fn is_new(&self, name: &str) -> bool {
        let state = self.lock();
        let is_new = state.listed.as_ref().is_some_and(|listed| !listed.contains(name));
        is_new && state.matches(name)
    }

    pub(super) fn add(&self, pattern: &str, parsed: TopicPattern<'static>) {
        let mut state = self.lock();
        let active = state.patterns.entry(pattern.to_owned()).or_insert_with(|| ActivePattern {
            pattern: parsed,
            subscriptions: 0,
            result: None,
        });
        active.subscriptions += 1;
        // A failure concerns the subscriptions that waited for it.
        if matches!(active.result, Some(Err(_))) {
            active.result = None;
        }
        let is_listed = active.result.is_some();
        drop(state);
        if !is_listed {
            self.changed.notify_one();
        }
    }

    pub(super) fn remove(&self, pattern: &str) {
        let mut state = self.lock();
        let Some(active) = state.patterns.get_mut(pattern) else { return };
        active.subscriptions -= 1;
        if active.subscriptions == 0 {
            state.patterns.remove(pattern);
        }
        if state.patterns.is_empty() {
            state.listed = None;
        }
    }

    /// The result of a pattern's first listing, once it is complete.
    pub(super) fn result(&self, pattern: &str) -> Option<Result<(), Problem>> {
        let state = self.lock();
        if state.is_closed {
            return Some(Err(problem(code::STORE, "the server is shutting down")));
        }
        state.patterns.get(pattern)?.result.clone()
    }

    /// Ends the task.
    pub(super) fn close(&self) {
        let task = {
            let mut state = self.lock();
            state.is_closed = true;
            state.task.take()
        };
        self.changed.notify_one();
        if let Some(task) = task {
            task.wait();
        }
    }
}

impl DiscoveryState {
    fn matches(&self, name: &str) -> bool {
        let Ok(topic) = TopicName::parse(name) else { return false };
        self.patterns.values().any(|active| active.pattern.matches(&topic))
    }

    /// Whether a stream that a listing has found is to be opened: it is new, or a pattern is.
    pub(super) fn is_wanted(&self, name: &str) -> bool {
        let is_listed = self.listed.as_ref().is_some_and(|listed| listed.contains(name));
        let Ok(topic) = TopicName::parse(name) else { return false };
        self.patterns.values().any(|active| {
            !(is_listed && matches!(active.result, Some(Ok(())))) && active.pattern.matches(&topic)
        })
    }
}
