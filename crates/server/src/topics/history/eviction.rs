//! Order of eviction of histories: topics without subscribers first, and of these the topic with the oldest last
//! publication.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use slab::Slab;

use super::log::EvictionSlot;
use crate::topics::entry::TopicEntry;

/// Topics with a history, in two lists. All operations take constant time except
/// [`next_to_evict`](Self::next_to_evict), which moves each topic with a new subscriber once.
#[derive(Debug, Default)]
pub(crate) struct EvictionQueue {
    topics: Slab<EvictionEntry>,
    lists: [EvictionList; 2],
    /// Position of the next check for expired messages.
    sweep: usize,
}

#[derive(Debug)]
struct EvictionEntry {
    entry: Arc<TopicEntry>,
    class: Class,
    before: usize,
    after: usize,
}

/// The first entry is evicted next.
#[derive(Clone, Copy, Debug)]
struct EvictionList {
    first: usize,
    last: usize,
}

impl Default for EvictionList {
    fn default() -> Self {
        Self { first: NONE, last: NONE }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Unsubscribed,
    Subscribed,
}

impl Class {
    fn new(entry: &TopicEntry) -> Self {
        if entry.has_no_subscribers() { Self::Unsubscribed } else { Self::Subscribed }
    }
}

/// No topic.
const NONE: usize = EvictionSlot::NONE;

impl EvictionQueue {
    /// Moves a topic to the end of its class. Returns whether it is new.
    pub(crate) fn touch(&mut self, entry: &Arc<TopicEntry>, slot: &EvictionSlot) -> bool {
        let (at, class) = (slot.0.load(Ordering::Relaxed), Class::new(entry));
        if at == NONE {
            let queued = EvictionEntry { entry: Arc::clone(entry), class, before: NONE, after: NONE };
            let at = self.topics.insert(queued);
            slot.0.store(at, Ordering::Relaxed);
            self.push(at, class);
            return true;
        }
        if self.topics[at].class != class || self.topics[at].after != NONE {
            self.unlink(at);
            self.push(at, class);
        }
        false
    }

    /// Removes a topic. Returns whether it was in the queue.
    pub(crate) fn remove(&mut self, slot: &EvictionSlot) -> bool {
        let at = slot.0.swap(NONE, Ordering::Relaxed);
        if at == NONE {
            return false;
        }
        self.unlink(at);
        self.topics.remove(at);
        true
    }

    /// Returns the topic to evict next.
    pub(crate) fn next_to_evict(&mut self) -> Option<Arc<TopicEntry>> {
        loop {
            let first = self.lists[Class::Unsubscribed as usize].first;
            let Some(queued) = self.topics.get(first) else { break };
            if Class::new(&queued.entry) == Class::Unsubscribed {
                return Some(Arc::clone(&queued.entry));
            }
            self.unlink(first);
            self.push(first, Class::Subscribed);
        }
        let first = self.topics.get(self.lists[Class::Subscribed as usize].first);
        first.map(|queued| Arc::clone(&queued.entry))
    }

    /// Returns the topics in turn, for the check for expired messages.
    pub(crate) fn next(&mut self) -> Option<Arc<TopicEntry>> {
        self.sweep = if self.sweep + 1 < self.topics.capacity() { self.sweep + 1 } else { 0 };
        self.topics.get(self.sweep).map(|queued| Arc::clone(&queued.entry))
    }

    fn push(&mut self, at: usize, class: Class) {
        let last = std::mem::replace(&mut self.lists[class as usize].last, at);
        match self.topics.get_mut(last) {
            Some(before) => before.after = at,
            None => self.lists[class as usize].first = at,
        }
        let queued = &mut self.topics[at];
        (queued.class, queued.before, queued.after) = (class, last, NONE);
    }

    fn unlink(&mut self, at: usize) {
        let EvictionEntry { class, before, after, .. } = self.topics[at];
        match self.topics.get_mut(before) {
            Some(topic) => topic.after = after,
            None => self.lists[class as usize].first = after,
        }
        match self.topics.get_mut(after) {
            Some(topic) => topic.before = before,
            None => self.lists[class as usize].last = before,
        }
    }

    #[cfg(test)]
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Arc<TopicEntry>> {
        self.topics.iter().map(|(_, queued)| &queued.entry)
    }
}
