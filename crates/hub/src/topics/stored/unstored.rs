//! Publications to topics with a history while the store is away: rejected, or delivered without the store.
//!
//! Delivered publications have no position. When the store is back, the node appends a mark to each of their topics:
//! subscribers are notified that messages may be missing, and a resume from before the mark is incomplete.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use parking_lot::Mutex;
use sinews_store::{LogAppended, StoreError};

use super::payload;
use super::shared::StoredTopics;
use crate::model::problem::Problem;
use crate::model::publication::{Publication, WaitingPublication};

/// What a node does with publications to topics with a history while the topic store is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreAway {
    /// It rejects them with 503.
    #[default]
    Reject,
    /// It delivers them to the subscribers, without a position and a history. When the store is back, subscribers are
    /// notified, and clients that resume from before get `complete: false`.
    Deliver,
}

/// Maximum topics with delivered publications; publications to further ones are rejected.
const TOPICS_MAX: usize = 65_536;

/// Marks that are appended at a time.
const MARKS_MAX: usize = 256;

/// Topics with publications that the store does not have.
#[derive(Default)]
pub(super) struct Unstored {
    away: StoreAway,
    topics: Mutex<BTreeSet<Box<str>>>,
}

impl Unstored {
    pub(super) fn new(away: StoreAway) -> Self {
        Self { away, topics: Mutex::default() }
    }

    /// Adds a topic. Returns whether there is capacity for it.
    fn add(&self, topic: &str) -> bool {
        let mut topics = self.topics.lock();
        if !topics.contains(topic) {
            if topics.len() >= TOPICS_MAX {
                return false;
            }
            topics.insert(topic.into());
        }
        true
    }

    /// Takes the topics whose part of the store is back.
    fn take(&self, is_up: impl Fn(&str) -> bool) -> Vec<Box<str>> {
        let mut topics = self.topics.lock();
        if topics.is_empty() {
            return Vec::new();
        }
        let (back, away): (BTreeSet<_>, _) =
            std::mem::take(&mut *topics).into_iter().partition(|topic| is_up(topic));
        *topics = away;
        back.into_iter().collect()
    }
}

/// A client's publication, as the store has acknowledged it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AcknowledgedPublication {
    Stored(LogAppended),
    /// The store is away: the subscribers that can be reached have it.
    Delivered,
}

impl StoredTopics {
    /// Whether publications are delivered while the store is away.
    pub(super) fn delivers_unstored(&self) -> bool {
        self.unstored.away == StoreAway::Deliver
    }

    /// Appends a publication for a client that waits for it.
    pub(crate) fn append_for_client(
        self: &Arc<Self>,
        publication: &Publication<'_, '_>,
        once: Option<&str>,
    ) -> impl Future<Output = Result<AcknowledgedPublication, Problem>> + Send + use<> {
        let (stored, appended) = (Arc::clone(self), self.append(publication, once));
        let unstored = self.delivers_unstored().then(|| WaitingPublication::from(publication));
        async move {
            match (appended.await, unstored) {
                (Ok(appended), _) => Ok(AcknowledgedPublication::Stored(appended)),
                (Err(StoreError::Away(_)), Some(unstored)) if stored.deliver(&unstored) => {
                    Ok(AcknowledgedPublication::Delivered)
                }
                (Err(error), _) => Err(stored.failure(&error)),
            }
        }
    }

    /// Publishes without an answer to wait for.
    pub(crate) fn publish(&self, publication: &Publication<'_, '_>) {
        let is_away = self.delivers_unstored() && !self.store.topic_health(publication.topic).is_up();
        if !(is_away && self.deliver(&publication.into())) {
            drop(self.append(publication, None));
        }
    }

    /// Delivers a publication without the store. Returns whether it is delivered.
    fn deliver(&self, publication: &WaitingPublication) -> bool {
        let Some((hub, publisher)) = self.target() else { return false };
        if !self.unstored.add(&publication.topic) {
            return false;
        }
        self.counters.unstored.fetch_add(1, Ordering::Relaxed);
        let content = (&publication.content).into();
        hub.deliver_unstored(&publisher, &publication.publication(&content));
        true
    }

    /// Marks the topics with delivered publications, when the store is back.
    pub(super) async fn mark_unstored(&self) {
        let topics = self.unstored.take(|topic| self.store.topic_health(topic).is_up());
        for topics in topics.chunks(MARKS_MAX) {
            let marks = topics.iter().map(|topic| self.append_payload(topic, payload::mark(), None));
            for (topic, marked) in topics.iter().zip(join_all(marks).await) {
                // A topic without a history has no positions any more.
                if marked.is_err() && self.retention(topic).is_some() {
                    self.unstored.topics.lock().insert(topic.clone());
                }
            }
        }
    }
}
