//! Topics' subscriber counts, and when to report them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::events::EventDetail;

/// Subscriber count up to which each change is reported.
const EACH_MAX: usize = 100;

/// Interval between two reports about a topic with more subscribers.
const INTERVAL: Duration = Duration::from_secs(5);

/// The reported subscriber counts.
#[derive(Debug, Default)]
pub(super) struct SubscriberCounts {
    topics: HashMap<Arc<str>, SubscriberCount>,
    /// The next reports about topics that have changed.
    due: BinaryHeap<Reverse<(Instant, Arc<str>)>>,
}

#[derive(Debug)]
struct SubscriberCount {
    present: usize,
    reported: usize,
    /// The earliest time of the next report, with more subscribers than [`EACH_MAX`].
    next: Instant,
    is_queued: bool,
}

impl SubscriberCounts {
    /// Applies a topic's present subscriber count. If it `has_changed`, an unknown topic without subscribers had one
    /// for a moment.
    pub(super) fn apply(
        &mut self,
        topic: &Arc<str>,
        count: usize,
        has_changed: bool,
        now: Instant,
        emit: &mut impl FnMut(EventDetail),
    ) {
        if count == 0 && !self.topics.contains_key(topic) {
            if has_changed {
                for count in [1, 0] {
                    emit(EventDetail::SubscriptionCount { topic: topic.clone(), count });
                }
            }
            return;
        }
        let new = || SubscriberCount { present: 0, reported: 0, next: now, is_queued: false };
        let known = self.topics.entry(topic.clone()).or_insert_with(new);
        known.present = count;
        if count > EACH_MAX && known.next > now {
            if !std::mem::replace(&mut known.is_queued, true) {
                self.due.push(Reverse((known.next, topic.clone())));
            }
            return;
        }
        known.report(topic, now, emit);
        if count == 0 && !known.is_queued {
            self.topics.remove(topic);
        }
    }

    /// Reports numbers whose interval is over; returns when the next one is.
    pub(super) fn expire(&mut self, now: Instant, emit: &mut impl FnMut(EventDetail)) -> Option<Instant> {
        loop {
            let Reverse((at, _)) = self.due.peek()?;
            if *at > now {
                return Some(*at);
            }
            let Reverse((_, topic)) = self.due.pop()?;
            let Some(known) = self.topics.get_mut(&topic) else { continue };
            known.is_queued = false;
            known.report(&topic, now, emit);
            if known.present == 0 {
                self.topics.remove(&topic);
            }
        }
    }
}

impl SubscriberCount {
    fn report(&mut self, topic: &Arc<str>, now: Instant, emit: &mut impl FnMut(EventDetail)) {
        if self.reported != self.present {
            (self.reported, self.next) = (self.present, now + INTERVAL);
            emit(EventDetail::SubscriptionCount { topic: topic.clone(), count: self.present });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers that a call reports.
    fn reported(call: impl FnOnce(&mut dyn FnMut(EventDetail))) -> Vec<usize> {
        let mut counts = Vec::new();
        call(&mut |detail| match detail {
            EventDetail::SubscriptionCount { count, .. } => counts.push(count),
            other => panic!("{other:?}"),
        });
        counts
    }

    #[test]
    fn each_change_is_reported_up_to_a_number_and_then_at_an_interval() {
        let (mut counts, begin, topic) = (SubscriberCounts::default(), Instant::now(), Arc::from("a"));
        let apply = |counts: &mut SubscriberCounts, second, count| {
            let now = begin + Duration::from_secs(second);
            reported(|mut emit| counts.apply(&topic, count, true, now, &mut emit))
        };
        let expire = |counts: &mut SubscriberCounts, second| {
            let now = begin + Duration::from_secs(second);
            reported(|mut emit| {
                counts.expire(now, &mut emit);
            })
        };
        for count in [1, 2, EACH_MAX, 1] {
            assert_eq!(apply(&mut counts, 0, count), [count]);
        }
        assert!(apply(&mut counts, 0, 1).is_empty());
        assert!(apply(&mut counts, 1, 200).is_empty() && apply(&mut counts, 2, 300).is_empty());
        assert!(expire(&mut counts, 4).is_empty());
        assert_eq!(expire(&mut counts, 5), [300]);
        assert!(apply(&mut counts, 6, 301).is_empty() && apply(&mut counts, 7, 300).is_empty());
        assert!(expire(&mut counts, 10).is_empty(), "the number is the same again");
        assert_eq!(apply(&mut counts, 11, 400), [400], "a quiet topic is reported at once");
        assert!(apply(&mut counts, 12, 500).is_empty());
        assert_eq!(apply(&mut counts, 13, 0), [0], "small numbers are reported at once");
        assert!(expire(&mut counts, 16).is_empty());
        assert!(counts.topics.is_empty() && counts.due.is_empty());
        // A subscriber for a moment.
        assert_eq!(apply(&mut counts, 17, 0), [1, 0]);
        let looked_at = reported(|mut emit| counts.apply(&topic, 0, false, begin, &mut emit));
        assert!(looked_at.is_empty() && counts.topics.is_empty());
    }
}
