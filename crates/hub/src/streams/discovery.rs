//! Subscriptions by pattern at a broker: a node finds the streams of durable topics that its patterns match, and
//! follows them.
//!
//! ```text
//!   subscribe chat.* ─▶ list the broker's streams ─▶ follow chat.a, chat.b ─▶ acknowledge
//!   every second:       list the broker's streams ─▶ follow chat.new from its first record
//! ```
//!
//! A listing at the first subscription finds the streams that exist; later records reach the subscriber. A stream that
//! a later listing finds is new, and followed from its first record. So a subscriber misses no record of either.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{FutureExt, StreamExt, stream};
use sinews_server::TopicPattern;

use super::service::StreamService;
use super::store::IfMissing;
use crate::model;
use crate::model::opening::{SharedOpening, StoreFuture};
use crate::model::problem::{Problem, code, problem};

/// Time between two listings of the broker's streams, while a pattern has subscribers: the delay of a new topic's first
/// message.
const INTERVAL: Duration = Duration::from_secs(1);

/// A listing that takes long is repeated later: it takes at most one part in this many of the time.
const REST: u32 = 10;

/// Streams that are opened at a time.
const OPENINGS: usize = 64;

/// A subscription to a pattern: as long as it exists, the node looks for streams that match.
pub(crate) struct PatternInterest {
    store: Arc<StreamService>,
    pattern: String,
}

impl Drop for PatternInterest {
    fn drop(&mut self) {
        self.store.topics.discovery.remove(&self.pattern);
    }
}

impl StreamService {
    /// Returns whether a pattern's subscribers may get durable topics that are stored at a broker.
    pub(crate) fn discovers(&self, pattern: &str) -> bool {
        self.store.lists_streams() && self.topics.overlaps(pattern)
    }

    /// Looks for a pattern's streams. A subscription waits for the opening, and holds the interest.
    ///
    /// # Errors
    /// The task thread cannot be started.
    pub(crate) fn discover(
        self: &Arc<Self>,
        pattern: &str,
    ) -> Result<(PatternInterest, SharedOpening), Problem> {
        let parsed = TopicPattern::parse(pattern.to_owned());
        let parsed = parsed.map_err(|error| problem(code::TOPIC, error.to_string()))?;
        self.start_discovery()?;
        self.topics.discovery.add(pattern, parsed);
        let interest = PatternInterest { store: Arc::clone(self), pattern: pattern.to_owned() };
        let (store, pattern) = (Arc::clone(self), pattern.to_owned());
        let opening: StoreFuture<()> = Box::pin(async move {
            let discovery = &store.topics.discovery;
            store.topics.wait_until(|| discovery.result(&pattern).is_some()).await;
            discovery.result(&pattern).unwrap_or(Ok(()))
        });
        Ok((interest, opening.shared()))
    }

    fn start_discovery(self: &Arc<Self>) -> Result<(), Problem> {
        let mut state = self.topics.discovery.lock();
        if state.task.is_some() || state.is_closed {
            return Ok(());
        }
        let failed = |error: std::io::Error| problem(code::STORE, format!("cannot list streams: {error}"));
        let store = Arc::clone(self);
        let task = self.background.spawn("discovery", async move { store.keep_discovering().await });
        state.task = Some(task.map_err(failed)?);
        Ok(())
    }

    async fn keep_discovering(&self) {
        let discovery = &self.topics.discovery;
        // A predecessor process may still own the directory.
        self.topics.wait_until(|| self.streams().is_ok() || discovery.lock().is_closed).await;
        loop {
            let begin = Instant::now();
            let has_patterns = {
                let state = discovery.lock();
                if state.is_closed {
                    return;
                }
                !state.patterns.is_empty()
            };
            if !has_patterns {
                discovery.changed.notified().await;
                continue;
            }
            self.discover_streams().await;
            self.topics.wake_all();
            // A timeout is expected here.
            let rest = INTERVAL.max(begin.elapsed() * REST);
            let _ = tokio::time::timeout(rest, discovery.changed.notified()).await;
        }
    }

    /// Lists the streams once, and opens those that subscribers wait for.
    async fn discover_streams(&self) {
        let discovery = &self.topics.discovery;
        // A pattern that is added during the listing waits for the next one.
        let added: Vec<String> = {
            let state = discovery.lock();
            state
                .patterns
                .iter()
                .filter(|(_, it)| it.result.is_none())
                .map(|(name, _)| name.clone())
                .collect()
        };
        let mut names = match self.store.list_streams().await {
            Ok(names) => names,
            Err(failure) => return self.note_discovery(&added, Some(failure), None),
        };
        names.retain(|name| self.topics.is_durable(name) && model::check_name(name).is_ok());
        let wanted: Vec<(String, bool)> = {
            let state = discovery.lock();
            let is_new = |name: &str| state.listed.as_ref().is_some_and(|listed| !listed.contains(name));
            let wanted = names.iter().filter(|name| state.is_wanted(name));
            wanted.map(|name| (name.clone(), is_new(name))).collect()
        };
        let opened = stream::iter(wanted).map(|(name, is_new)| async move {
            let opened = match self.streams() {
                Ok(streams) => match self.store.open(streams, &name, IfMissing::Reject) {
                    Some(opening) => opening.await,
                    None => Ok(()),
                },
                Err(problem) => Err(problem),
            };
            opened.err().map(|failure| (name, is_new, failure))
        });
        let failed: Vec<_> = opened.buffer_unordered(OPENINGS).filter_map(std::future::ready).collect().await;
        // The next listing retries a new stream, from its first record on.
        let mut listed: HashSet<String> = names.into_iter().collect();
        for (name, ..) in failed.iter().filter(|(_, is_new, _)| *is_new) {
            listed.remove(name);
        }
        let failure = failed.into_iter().next().map(|(_, _, failure)| failure);
        self.note_discovery(&added, failure, Some(listed));
    }

    /// Notes the result of a listing for the patterns that have waited for it.
    fn note_discovery(&self, added: &[String], failure: Option<Problem>, listed: Option<HashSet<String>>) {
        let mut state = self.topics.discovery.lock();
        for pattern in added {
            if let Some(active) = state.patterns.get_mut(pattern) {
                active.result = Some(failure.clone().map_or(Ok(()), Err));
            }
        }
        if let Some(listed) = listed.filter(|_| !state.patterns.is_empty()) {
            state.listed = Some(listed);
        }
        if state.failure != failure {
            if let Some(Problem { text, .. }) = &failure {
                tracing::error!(reason = text, "subscribers by pattern may miss durable topics");
            }
            state.failure = failure;
        }
    }
}
