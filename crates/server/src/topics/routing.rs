//! Routes: the patterns that match a topic, cached per thread.

use std::sync::Arc;

use sinews_engine::ConnId;

use super::entry::TopicEntry;
use super::name::{self, InvalidTopic};
use super::registry::{Route, SubscriberIndex, Topic, Topics};

/// Maximum number of topics per thread with cached patterns; for further topics, patterns are matched again.
const ROUTES_MAX: usize = 4_096;

impl Topics {
    /// Returns the index of a topic to publish to; `None` if no connection on this thread is subscribed to it by
    /// name, and no pattern of any thread matches it.
    pub(crate) fn resolve(&mut self, name: &str) -> Result<Option<usize>, InvalidTopic> {
        self.refresh_routes();
        if let Some(topic) = self.index_of(name) {
            if self.topics[topic].is_pattern {
                return Err(InvalidTopic::Wildcard);
            }
            self.route(topic);
            return Ok(Some(topic));
        }
        name::check(name)?;
        let all = if self.any_patterns { self.directory.matching(name) } else { Box::default() };
        if all.is_empty() {
            return Ok(None);
        }
        let topic = self.insert(self.directory.new_entry(name));
        self.set_route(topic, all);
        Ok(Some(topic))
    }

    /// Clears the routes if patterns have changed.
    #[inline]
    pub(super) fn refresh_routes(&mut self) {
        let generation = self.directory.generation();
        if generation != self.generation {
            self.generation = generation;
            self.any_patterns = self.directory.has_patterns();
            self.clear_routes();
        }
    }

    /// Computes the patterns that match a topic, unless cached or without patterns.
    #[inline]
    pub(super) fn route(&mut self, topic: usize) {
        if self.any_patterns && self.topics.get(topic).is_some_and(|topic| topic.route().is_none()) {
            let all = self.directory.matching(&self.topics[topic].entry.name);
            self.set_route(topic, all);
        }
    }

    #[cold]
    pub(super) fn set_route(&mut self, topic: usize, all: Box<[Arc<TopicEntry>]>) {
        // The reference keeps its index while other routes are removed.
        self.topics[topic].references += 1;
        if self.routed.len() >= ROUTES_MAX {
            self.clear_routes();
        }
        let mut local: Box<[usize]> = all.iter().filter_map(|pattern| self.index_of(&pattern.name)).collect();
        local.sort_unstable();
        self.topics[topic].set_route(Some(Route { local, all }));
        self.routed.push(topic);
    }

    pub(super) fn clear_routes(&mut self) {
        for topic in std::mem::take(&mut self.routed) {
            self.topics[topic].set_route(None);
            self.topics[topic].references -= 1;
            self.prune(topic);
        }
    }

    /// Returns how many of a connection's subscriptions match a topic that was just resolved.
    pub(crate) fn matching_subscriptions(&self, topic: usize, conn: ConnId) -> usize {
        let local = self.local(topic);
        let subscriptions = self.subscriptions.get(conn).iter();
        let is_subscribed =
            |sub: &&SubscriberIndex| sub.topic() == topic || local.binary_search(&sub.topic()).is_ok();
        subscriptions.filter(is_subscribed).count()
    }

    /// Returns the patterns of this thread that match a topic.
    pub(super) fn local(&self, topic: usize) -> &[usize] {
        let route = self.topics.get(topic).and_then(Topic::route);
        route.map_or(&[], |route| &*route.local)
    }

    /// Returns whether a connection is subscribed to a topic now.
    pub(crate) fn is_subscribed(&mut self, topic: usize, conn: ConnId) -> bool {
        self.refresh_routes();
        self.route(topic);
        self.matching_subscriptions(topic, conn) > 0
    }

    /// Adds the subscribers of matching patterns, and removes duplicates from the list.
    #[cold]
    pub(super) fn add_by_pattern(&mut self, topic: usize, subscribers: &mut Vec<ConnId>) {
        let exact = subscribers.len();
        for &pattern in self.local(topic) {
            subscribers.extend_from_slice(&self.topics[pattern].subscribers);
        }
        if exact == 0 && self.local(topic).len() == 1 {
            return;
        }
        self.list = self.list.checked_add(1).unwrap_or_else(|| {
            self.listed.fill(0);
            self.listed_streams.fill(0);
            1
        });
        let (listed, listed_streams, list) = (&mut self.listed, &mut self.listed_streams, self.list);
        subscribers.retain(|conn| {
            let (listed, index) = match conn.stream_slot() {
                None => (&mut *listed, conn.index()),
                Some(slot) => (&mut *listed_streams, slot),
            };
            if listed.len() <= index {
                listed.resize(index + 1, 0);
            }
            std::mem::replace(&mut listed[index], list) != list
        });
    }
}
