//! Publications that leave as datagrams: of each topic the newest waits at most, for the congestion window.

use std::sync::Arc;

use sinews_session::Prepared;

use super::RuleQueue;
use crate::topics::counters::TopicCounters;
use crate::topics::name;
use crate::topics::rule::{QueueLimits, RuleId, SlowConsumer};

/// Topics whose newest publication waits for one subscriber. Beyond it, the oldest are dropped.
const DATAGRAM_TOPICS_MAX: usize = 1024;

/// Topics and patterns of one subscriber: each publication is compared with all of them.
const TOPICS_MAX: usize = 64;

/// Publications of a subscriber that leave as datagrams.
#[derive(Debug)]
pub(crate) struct DatagramQueue {
    /// Topics and patterns; others use the stream.
    topics: Vec<Box<str>>,
    queue: RuleQueue,
    /// The longest payload of a datagram.
    max: usize,
    /// Publications that were longer.
    oversized: u64,
}

impl DatagramQueue {
    /// Creates a queue for a path that is not known yet: each path takes datagrams of QUIC of 1,200 bytes.
    pub(crate) fn new() -> Self {
        Self { topics: Vec::new(), queue: RuleQueue::new(RuleId::NONE), max: 1000, oversized: 0 }
    }

    /// Adds a topic or a pattern. Returns `false` beyond the limit.
    pub(crate) fn add_topic(&mut self, topic: &str) -> bool {
        let has_room = self.topics.len() < TOPICS_MAX;
        if has_room {
            self.topics.push(topic.into());
        }
        has_room
    }

    /// Sets the longest payload of a datagram.
    pub(crate) fn set_max(&mut self, bytes: usize) {
        self.max = bytes;
    }

    /// Queues a publication in the place of an earlier one of its topic. `max_bytes` limits all that wait. Returns
    /// `false` for a publication that must use the stream: it is too long for a datagram, or of another topic.
    pub(crate) fn offer(
        &mut self,
        topic: &Arc<str>,
        message: &Prepared,
        max_bytes: usize,
        counters: &mut TopicCounters,
    ) -> bool {
        let is_presence = name::watched_topic(topic).is_some();
        if is_presence || !self.topics.iter().any(|known| name::matches(known, topic)) {
            return false;
        }
        if message.payload().len() > self.max {
            self.oversized += 1;
            return false;
        }
        if self.queue.replace(topic, message, 0) {
            counters.conflated += 1;
        } else {
            self.queue.push(0, topic, message, 0, true);
        }
        let slow = &SlowConsumer::Conflate;
        let limits = QueueLimits { slow, messages: DATAGRAM_TOPICS_MAX, bytes: max_bytes };
        while self.queue.pop_excess(&limits).is_some() {
            counters.dropped_oldest += 1;
        }
        true
    }

    /// Returns the next publication.
    pub(crate) fn front(&self) -> Option<&Prepared> {
        self.queue.waiting.front().map(|first| &first.message)
    }

    /// Removes the next publication.
    pub(crate) fn pop(&mut self) -> Option<Prepared> {
        self.queue.pop().map(|first| first.message)
    }

    /// Returns the number of publications that were longer than a datagram since the last call.
    pub(crate) fn take_oversized(&mut self) -> u64 {
        std::mem::take(&mut self.oversized)
    }

    /// Returns the queued payload in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.queue.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: &str) -> Arc<str> {
        Arc::from(name)
    }

    fn queue_of(topics: &[&str]) -> DatagramQueue {
        let mut queue = DatagramQueue::new();
        topics.iter().for_each(|topic| assert!(queue.add_topic(topic)));
        queue
    }

    #[test]
    fn newest_publication_of_each_topic_waits() {
        let (mut queue, mut counters) = (queue_of(&["*"]), TopicCounters::default());
        for number in 0..5 {
            for name in ["a", "b"] {
                let message = Prepared::text(format!("{name}{number}"));
                assert!(queue.offer(&topic(name), &message, 1000, &mut counters));
            }
        }
        assert_eq!((queue.bytes(), counters.conflated, counters.dropped_oldest), (4, 8, 0));
        let left: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|next| next.payload().clone()).collect();
        assert_eq!(left, ["a4", "b4"]);
        assert!(queue.front().is_none() && queue.bytes() == 0);
    }

    #[test]
    fn topics_and_bytes_that_wait_are_limited() {
        let (mut queue, mut counters) = (queue_of(&["*"]), TopicCounters::default());
        for number in 0..DATAGRAM_TOPICS_MAX + 10 {
            let name = topic(&number.to_string());
            assert!(queue.offer(&name, &Prepared::binary(vec![0; 10]), usize::MAX, &mut counters));
        }
        assert_eq!((queue.bytes(), counters.dropped_oldest), (DATAGRAM_TOPICS_MAX * 10, 10));
        let message = Prepared::binary(vec![0; 500]);
        assert!(queue.offer(&topic("large"), &message, 1000, &mut counters));
        assert!(queue.bytes() <= 1000, "{}", queue.bytes());
        assert_eq!(queue.pop().map(|next| next.payload().len()), Some(10));
    }

    #[test]
    fn long_publications_and_other_topics_use_the_stream() {
        let (mut queue, mut counters) = (queue_of(&["*"]), TopicCounters::default());
        queue.set_max(3);
        assert!(!queue.offer(&topic("a"), &Prepared::text("long"), 1000, &mut counters));
        assert!(queue.offer(&topic("a"), &Prepared::text("abc"), 1000, &mut counters));
        for other in ["a.b", &name::presence_topic("a")] {
            assert!(!queue.offer(&topic(other), &Prepared::text("abc"), 1000, &mut counters));
        }
        assert_eq!((queue.take_oversized(), queue.take_oversized(), queue.bytes()), (1, 0, 3));
    }

    #[test]
    fn topics_with_datagrams_are_limited() {
        let mut queue = queue_of(&["a"; TOPICS_MAX]);
        assert!(!queue.add_topic("b"));
        assert!(!queue.offer(&topic("b"), &Prepared::text("x"), 1000, &mut TopicCounters::default()));
    }
}
