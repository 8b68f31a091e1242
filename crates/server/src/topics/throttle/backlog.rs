//! Queue of publications for a slow subscriber: bounded by each topic's rule, in publication order.
//!
//! ```text
//!   publication ─▶ subscriber below its high-water mark ─▶ session ─▶ loop
//!                  │ above                                  ▲
//!                  ▼                                        │ below again, or the connection itself sends
//!               backlog: a queue for each rule ─────────────┘
//!                  │ limit of the rule
//!                  └─▶ dropped, conflated, or the connection closes
//! ```

pub(crate) mod datagrams;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use sinews_proto::{CloseCode, Config, Overflow};
use sinews_session::{Prepared, Tx};

use self::datagrams::DatagramQueue;
use crate::topics::counters::TopicCounters;
use crate::topics::history::progress::Replay;
use crate::topics::keyed::reader::KeyedReader;
use crate::topics::name;
use crate::topics::rule::{QueueLimits, RuleId, SlowConsumer, TopicRules};

/// Publications queued for one subscriber. Only slow subscribers have a backlog.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    queues: Vec<RuleQueue>,
    /// The next message's order number.
    order: u64,
    /// Drops to report to the handler.
    unreported: Vec<UnreportedDrop>,
    /// The connection's own sends go before the queue: the handler is handling drops.
    is_reporting: bool,
    /// Active history replays.
    pub(crate) replays: Vec<Replay>,
    /// Readers of keyed topics, each with its subscriber group.
    pub(crate) keyed: Vec<(usize, KeyedReader)>,
    /// Publications that leave as datagrams, for a subscriber that wants them.
    pub(crate) datagrams: Option<Box<DatagramQueue>>,
    /// Rule by which the connection has to close.
    overflowed: Option<RuleId>,
}

/// Queue for one rule's topics.
#[derive(Debug)]
struct RuleQueue {
    rule: RuleId,
    waiting: VecDeque<QueuedMessage>,
    bytes: usize,
    /// Messages that have left the queue.
    removed: u64,
    /// Position of each topic's value, counted from the first message ever queued: for conflation only.
    positions: HashMap<Arc<str>, u64>,
}

#[derive(Debug)]
struct QueuedMessage {
    order: u64,
    topic: Arc<str>,
    message: Prepared,
    /// Its sequence in a topic with history; otherwise 0.
    sequence: u64,
}

/// Report about dropped messages: the connection was subscribed to them and too slow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedMessages {
    topic: Option<Arc<str>>,
    reason: DropReason,
    messages: u64,
    first: u64,
}

/// Drops that the handler has not handled.
#[derive(Debug)]
struct UnreportedDrop {
    report: DroppedMessages,
    /// The handler has asked for the report when its queue has capacity.
    is_postponed: bool,
}

/// Reason why messages were dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DropReason {
    /// The newest messages were dropped: [`SlowConsumer::DropNewest`], or [`Overflow::DropNewest`].
    Newest,
    /// The oldest messages were dropped: [`SlowConsumer::DropOldest`], [`SlowConsumer::Conflate`] without capacity
    /// for another topic, or [`Overflow::DropOldest`].
    Oldest,
    /// Messages expired before the replay for a late subscriber reached them ([`HistoryPolicy`](crate::HistoryPolicy)).
    Expired,
}

impl DroppedMessages {
    /// Returns the topic; `None` for messages from several topics: from more than a handful at once, or dropped for the
    /// connection's own message.
    #[must_use]
    pub fn topic(&self) -> Option<&str> {
        let topic = self.topic.as_deref()?;
        Some(name::watched_topic(topic).unwrap_or(topic))
    }

    /// Returns whether the messages are presence updates of the topic
    /// ([`Context::watch_presence`](crate::Context::watch_presence)).
    #[must_use]
    pub fn is_presence(&self) -> bool {
        self.topic.as_deref().and_then(name::watched_topic).is_some()
    }

    /// Returns the reason.
    #[must_use]
    pub fn reason(&self) -> DropReason {
        self.reason
    }

    /// Returns how many messages are dropped.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Returns the first dropped message's sequence, if the topic has history ([`Position`](crate::Position)). Earlier
    /// messages are delivered, so a handler that can read from here on elsewhere leaves no gap: see
    /// [`Context::subscribe_paused`](crate::Context::subscribe_paused).
    #[must_use]
    pub fn first_sequence(&self) -> Option<u64> {
        Some(self.first).filter(|first| *first > 0)
    }
}

/// Maximum topics that are reported separately; beyond that a sum is reported.
const UNREPORTED_MAX: usize = 16;

/// Message for one subscriber.
#[derive(Clone, Copy)]
pub(crate) struct Delivery<'a> {
    pub(crate) rule: RuleId,
    pub(crate) topic: &'a Arc<str>,
    pub(crate) message: &'a Prepared,
    /// Its sequence in a topic with history; otherwise 0.
    pub(crate) sequence: u64,
}

/// Returns whether a subscriber without a backlog gets a publication at once; otherwise it is queued.
#[inline]
pub(crate) fn is_ready(tx: &Tx<'_>, rule: RuleId) -> bool {
    let config = tx.config();
    if rule == RuleId::NONE && config.overflow() != Overflow::DropOldest {
        tx.waiting() < config.max_outbound()
    } else {
        tx.waiting() <= config.high_water()
    }
}

impl Backlog {
    /// Queues a publication for a slow subscriber, or applies the policy.
    pub(crate) fn offer(
        &mut self,
        tx: &Tx<'_>,
        delivery: Delivery<'_>,
        rules: &TopicRules,
        counters: &mut TopicCounters,
    ) {
        // A closing connection gets no more messages.
        if self.overflowed.is_some() || !tx.is_open() {
            return;
        }
        let Delivery { rule, topic, message, sequence } = delivery;
        let route_policy = route_policy(tx.config());
        let limits = rules.limits(rule).unwrap_or_else(|| QueueLimits {
            slow: &route_policy,
            messages: usize::MAX,
            bytes: tx.config().max_outbound().saturating_sub(tx.waiting()),
        });
        let index = self.queues.iter().position(|queue| queue.rule == rule).unwrap_or_else(|| {
            self.queues.push(RuleQueue::new(rule));
            self.queues.len() - 1
        });
        let queue = &mut self.queues[index];
        let conflates = *limits.slow == SlowConsumer::Conflate;
        let is_replaced = conflates && queue.replace(topic, message, sequence);
        counters.conflated += u64::from(is_replaced);
        if !is_replaced && !queue.has_capacity(&limits, message) {
            match limits.slow {
                SlowConsumer::DropNewest => {
                    counters.dropped_newest += 1;
                    return self.note_drop(Some(topic.clone()), DropReason::Newest, 1, sequence);
                }
                SlowConsumer::Close(..) => {
                    counters.closed_slow += 1;
                    self.overflowed = Some(rule);
                    return;
                }
                SlowConsumer::DropOldest | SlowConsumer::Conflate => {}
            }
        }
        if !is_replaced {
            queue.push(self.order, topic, message, sequence, conflates);
            self.order += 1;
        }
        while let Some(oldest) = self.queues[index].pop_excess(&limits) {
            counters.dropped_oldest += 1;
            self.note_drop(Some(oldest.topic), DropReason::Oldest, 1, oldest.sequence);
        }
    }

    /// Notes a drop to report to the handler: the message count, and the first message's sequence.
    pub(crate) fn note_drop(
        &mut self,
        topic: Option<Arc<str>>,
        reason: DropReason,
        messages: u64,
        first: u64,
    ) {
        self.add_unreported(DroppedMessages { topic, reason, messages, first }, false);
    }

    /// Takes a report back until the queue has capacity.
    pub(crate) fn postpone(&mut self, report: DroppedMessages) {
        self.add_unreported(report, true);
    }

    fn add_unreported(&mut self, mut report: DroppedMessages, is_postponed: bool) {
        let known = self
            .unreported
            .iter_mut()
            .find(|known| known.report.reason == report.reason && known.report.topic == report.topic);
        if let Some(known) = known {
            known.report.messages += report.messages;
            if report.first > 0 {
                known.report.first = known.report.first.min(report.first);
            }
            known.is_postponed |= is_postponed;
        } else if self.unreported.len() < UNREPORTED_MAX || report.topic.is_none() {
            if report.topic.is_none() {
                report.first = 0;
            }
            self.unreported.push(UnreportedDrop { report, is_postponed });
        } else {
            self.add_unreported(DroppedMessages { topic: None, ..report }, is_postponed);
        }
    }

    /// Passes messages to the session up to its high-water mark.
    pub(crate) fn refill(&mut self, tx: &mut Tx<'_>, counters: &mut TopicCounters) {
        while tx.waiting() <= tx.config().high_water() && self.pass_next(tx, counters, |_| true) {}
    }

    /// Flushes the queue before the connection's own send, which must not overtake it. Conflated values stay, since
    /// only the last value counts. Up to the rule's limit may be queued in the session once more. Beyond that, because
    /// the connection sends all the time, the policy applies to everything.
    #[cold]
    pub(crate) fn flush_before_send(
        &mut self,
        tx: &mut Tx<'_>,
        rules: &TopicRules,
        counters: &mut TopicCounters,
    ) {
        if self.is_reporting {
            return;
        }
        for index in 0..self.queues.len() {
            let queue = &mut self.queues[index];
            let Some(limits) = rules.limits(queue.rule) else { continue };
            if tx.exempt() + queue.bytes <= tx.config().high_water() + limits.bytes {
                continue;
            }
            let (reason, count) = match limits.slow {
                SlowConsumer::Conflate => continue,
                SlowConsumer::Close(..) => {
                    counters.closed_slow += u64::from(self.overflowed.is_none());
                    self.overflowed = self.overflowed.or(Some(queue.rule));
                    continue;
                }
                SlowConsumer::DropNewest => (DropReason::Newest, &mut counters.dropped_newest),
                SlowConsumer::DropOldest => (DropReason::Oldest, &mut counters.dropped_oldest),
            };
            while let Some(removed) = self.queues[index].pop() {
                *count += 1;
                self.note_drop(Some(removed.topic), reason, 1, removed.sequence);
            }
        }
        let conflates =
            |rule| rules.limits(rule).is_some_and(|limits| *limits.slow == SlowConsumer::Conflate);
        while self.pass_next(tx, counters, |rule| !conflates(rule)) {}
    }

    /// Passes all messages to the session, since it closes.
    pub(crate) fn flush(&mut self, tx: &mut Tx<'_>, counters: &mut TopicCounters) {
        while self.pass_next(tx, counters, |_| true) {}
    }

    /// Passes the next message under matching rules to the session; `false` if there is none.
    fn pass_next(
        &mut self,
        tx: &mut Tx<'_>,
        counters: &mut TopicCounters,
        matches: impl Fn(RuleId) -> bool,
    ) -> bool {
        let first = |queue: &&mut RuleQueue| queue.waiting.front().map_or(u64::MAX, |first| first.order);
        let queues = self.queues.iter_mut().filter(|queue| matches(queue.rule));
        let Some(queue) = queues.min_by_key(first) else { return false };
        let Some(next) = queue.pop() else { return false };
        if tx.queue_prepared(&next.message, queue.rule != RuleId::NONE).is_err() {
            // A Close is queued: nothing follows it.
            self.queues.clear();
            return false;
        }
        counters.delivered += 1;
        true
    }

    /// Returns the code and reason to close the connection with, if it has to close.
    pub(crate) fn take_overflowed(&mut self, rules: &TopicRules) -> Option<(CloseCode, String)> {
        let rule = self.overflowed.take()?;
        match rules.limits(rule).map(|limits| limits.slow) {
            Some(SlowConsumer::Close(code, reason)) => Some((*code, reason.clone())),
            _ => Some((CloseCode::POLICY, "too slow".to_owned())),
        }
    }

    /// Returns the drops to report now: with capacity in the connection's queue, all.
    pub(crate) fn take_unreported(&mut self, has_capacity: bool) -> Vec<DroppedMessages> {
        let due = self.unreported.extract_if(.., |drop| has_capacity || !drop.is_postponed);
        due.map(|drop| drop.report).collect()
    }

    /// Sets whether the handler is handling drops. Its sends then go before the queue, which may exceed the session's
    /// capacity, and displace no message.
    pub(crate) fn set_reporting(&mut self, is_reporting: bool) {
        self.is_reporting = is_reporting;
    }

    /// Returns whether the backlog is finished.
    pub(crate) fn is_done(&self) -> bool {
        self.replays.is_empty()
            && self.keyed.is_empty()
            && self.unreported.is_empty()
            && self.overflowed.is_none()
            && self.datagrams.is_none()
            && self.is_empty()
    }

    /// Returns the queued payload in bytes; subscribers share it in memory.
    pub(crate) fn bytes(&self) -> usize {
        let datagrams = self.datagrams.as_ref().map_or(0, |datagrams| datagrams.bytes());
        datagrams + self.queues.iter().map(|queue| queue.bytes).sum::<usize>()
    }

    /// Returns whether no publication is queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.iter().all(|queue| queue.waiting.is_empty())
    }
}

/// Returns the policy of a connection's route.
fn route_policy(config: &Config) -> SlowConsumer {
    match config.overflow() {
        Overflow::Close => SlowConsumer::Close(CloseCode::POLICY, String::new()),
        Overflow::DropNewest => SlowConsumer::DropNewest,
        Overflow::DropOldest => SlowConsumer::DropOldest,
    }
}

impl RuleQueue {
    fn new(rule: RuleId) -> Self {
        Self { rule, waiting: VecDeque::new(), bytes: 0, removed: 0, positions: HashMap::new() }
    }

    fn has_capacity(&self, limits: &QueueLimits<'_>, message: &Prepared) -> bool {
        let fits = match self.rule {
            // As everywhere with a route's limit, one message may exceed it.
            RuleId::NONE => self.bytes < limits.bytes,
            _ => self.bytes + message.payload().len() <= limits.bytes || self.waiting.is_empty(),
        };
        fits && self.waiting.len() < limits.messages
    }

    fn push(&mut self, order: u64, topic: &Arc<str>, message: &Prepared, sequence: u64, conflates: bool) {
        if conflates {
            self.positions.insert(topic.clone(), self.removed + self.waiting.len() as u64);
        }
        self.bytes += message.payload().len();
        let (topic, message) = (topic.clone(), message.clone());
        self.waiting.push_back(QueuedMessage { order, topic, message, sequence });
    }

    /// Replaces a topic's queued value; `false` if there is none.
    fn replace(&mut self, topic: &Arc<str>, message: &Prepared, sequence: u64) -> bool {
        let Some(index) = self.positions.get(topic) else { return false };
        let Some(waiting) = self.waiting.get_mut((index - self.removed) as usize) else { return false };
        self.bytes += message.payload().len();
        self.bytes -= waiting.message.payload().len();
        waiting.message = message.clone();
        waiting.sequence = sequence;
        true
    }

    fn pop(&mut self) -> Option<QueuedMessage> {
        let first = self.waiting.pop_front()?;
        self.bytes -= first.message.payload().len();
        self.removed += 1;
        self.positions.remove(&first.topic);
        Some(first)
    }

    /// Removes the oldest message if the queue exceeds its limits; the last one always stays.
    fn pop_excess(&mut self, limits: &QueueLimits<'_>) -> Option<QueuedMessage> {
        let exceeds = self.waiting.len() > limits.messages || self.bytes > limits.bytes;
        if exceeds && self.waiting.len() > 1 { self.pop() } else { None }
    }
}

#[cfg(test)]
mod tests;
