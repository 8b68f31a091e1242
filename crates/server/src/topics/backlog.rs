//! Queue of publications for a slow subscriber: bounded by the rule of each topic, in publication order.
//!
//! ```text
//!   publication ─▶ subscriber below its high-water mark ─▶ session ─▶ loop
//!                  │ above                                  ▲
//!                  ▼                                        │ below again, or the connection itself sends
//!               backlog: a lane for each rule ──────────────┘
//!                  │ limit of the rule
//!                  └─▶ dropped, conflated, or the connection closes
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use sinews_proto::{CloseCode, Config, Overflow};
use sinews_session::{Prepared, Tx};

use super::counters::TopicCounters;
use super::resume::Replay;
use super::rule::{Limits, RuleId, Rules, SlowConsumer};

/// Publications queued for one subscriber. Only slow subscribers have a backlog.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    lanes: Vec<Lane>,
    /// Order number of the next message.
    order: u64,
    /// Drops to report to the handler.
    untold: Vec<Missed>,
    /// Active replays of histories.
    pub(super) replays: Vec<Replay>,
    /// Rule by which the connection has to close.
    overflown: Option<RuleId>,
}

/// Queue for the topics of one rule.
#[derive(Debug)]
struct Lane {
    rule: RuleId,
    waiting: VecDeque<Waiting>,
    bytes: usize,
    /// Number of messages that have left the queue.
    gone: u64,
    /// Position of each topic's value, counted from the first message ever queued: for conflation only.
    places: HashMap<Arc<str>, u64>,
}

#[derive(Debug)]
struct Waiting {
    order: u64,
    topic: Arc<str>,
    message: Prepared,
    /// Its sequence in a topic with history; otherwise 0.
    sequence: u64,
}

/// Report of dropped messages: the connection was subscribed to them and too slow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missed {
    topic: Option<Arc<str>>,
    why: DropReason,
    messages: u64,
    first: u64,
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
    /// Messages expired before the replay for a late subscriber reached them ([`History`](crate::History)).
    Forgotten,
}

impl Missed {
    /// Returns the topic; `None` for messages of several topics: of more than a handful at once, or dropped for a
    /// message of the connection itself.
    #[must_use]
    pub fn topic(&self) -> Option<&str> {
        self.topic.as_deref()
    }

    /// Returns the reason.
    #[must_use]
    pub fn why(&self) -> DropReason {
        self.why
    }

    /// Returns the number of dropped messages.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Returns the sequence of the first dropped message, if the topic has history ([`Position`](crate::Position)).
    /// Earlier messages are delivered, so a handler that can read from here on elsewhere leaves no gap: see
    /// [`Context::subscribe_later`](crate::Context::subscribe_later).
    #[must_use]
    pub fn first(&self) -> Option<u64> {
        Some(self.first).filter(|first| *first > 0)
    }
}

/// Maximum number of topics that are reported separately; beyond that a sum is reported.
const UNTOLD_MAX: usize = 16;

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
        rules: &Rules,
        counters: &mut TopicCounters,
    ) {
        // A closing connection gets no more messages.
        if self.overflown.is_some() || !tx.is_open() {
            return;
        }
        let Delivery { rule, topic, message, sequence } = delivery;
        let of_route = of_route(tx.config());
        let limits = rules.limits(rule).unwrap_or_else(|| Limits {
            slow: &of_route,
            messages: usize::MAX,
            bytes: tx.config().max_outbound().saturating_sub(tx.waiting()),
        });
        let place = self.lanes.iter().position(|lane| lane.rule == rule).unwrap_or_else(|| {
            self.lanes.push(Lane::new(rule));
            self.lanes.len() - 1
        });
        let lane = &mut self.lanes[place];
        let conflates = *limits.slow == SlowConsumer::Conflate;
        let is_replaced = conflates && lane.replace(topic, message, sequence);
        counters.conflated += u64::from(is_replaced);
        if !is_replaced && !lane.has_room(&limits, message) {
            match limits.slow {
                SlowConsumer::DropNewest => {
                    counters.dropped_newest += 1;
                    return self.note(Some(topic.clone()), DropReason::Newest, (1, sequence));
                }
                SlowConsumer::Close(..) => {
                    counters.closed_slow += 1;
                    self.overflown = Some(rule);
                    return;
                }
                SlowConsumer::DropOldest | SlowConsumer::Conflate => {}
            }
        }
        if !is_replaced {
            lane.push(self.order, (topic, message, sequence), conflates);
            self.order += 1;
        }
        while let Some(oldest) = self.lanes[place].pop_excess(&limits) {
            counters.dropped_oldest += 1;
            self.note(Some(oldest.topic), DropReason::Oldest, (1, oldest.sequence));
        }
    }

    /// Notes a drop to report to the handler: the number of messages, and the sequence of the first.
    pub(crate) fn note(&mut self, topic: Option<Arc<str>>, why: DropReason, (messages, first): (u64, u64)) {
        let known = self.untold.iter_mut().find(|told| told.why == why && told.topic == topic);
        if let Some(known) = known {
            known.messages += messages;
        } else if self.untold.len() < UNTOLD_MAX || topic.is_none() {
            let first = if topic.is_some() { first } else { 0 };
            self.untold.push(Missed { topic, why, messages, first });
        } else {
            self.note(None, why, (messages, 0));
        }
    }

    /// Passes messages to the session up to its high-water mark.
    pub(crate) fn refill(&mut self, tx: &mut Tx<'_>, counters: &mut TopicCounters) {
        while tx.waiting() <= tx.config().high_water() && self.hand_over(tx, counters, |_| true) {}
    }

    /// Flushes the queue before a send of the connection itself, which must not overtake it. Conflated values stay,
    /// since only the last value counts. Up to the rule's limit may be queued in the session once more. Beyond that,
    /// because the connection sends all the time, the policy applies to all of it.
    #[cold]
    pub(crate) fn make_way(&mut self, tx: &mut Tx<'_>, rules: &Rules, counters: &mut TopicCounters) {
        for place in 0..self.lanes.len() {
            let lane = &mut self.lanes[place];
            let Some(limits) = rules.limits(lane.rule) else { continue };
            if tx.apart() + lane.bytes <= tx.config().high_water() + limits.bytes {
                continue;
            }
            let (why, count) = match limits.slow {
                SlowConsumer::Conflate => continue,
                SlowConsumer::Close(..) => {
                    counters.closed_slow += u64::from(self.overflown.is_none());
                    self.overflown = self.overflown.or(Some(lane.rule));
                    continue;
                }
                SlowConsumer::DropNewest => (DropReason::Newest, &mut counters.dropped_newest),
                SlowConsumer::DropOldest => (DropReason::Oldest, &mut counters.dropped_oldest),
            };
            while let Some(gone) = self.lanes[place].pop() {
                *count += 1;
                self.note(Some(gone.topic), why, (1, gone.sequence));
            }
        }
        let conflates =
            |rule| rules.limits(rule).is_some_and(|limits| *limits.slow == SlowConsumer::Conflate);
        while self.hand_over(tx, counters, |rule| !conflates(rule)) {}
    }

    /// Passes all messages to the session, since it closes.
    pub(crate) fn flush(&mut self, tx: &mut Tx<'_>, counters: &mut TopicCounters) {
        while self.hand_over(tx, counters, |_| true) {}
    }

    /// Passes the next message of matching rules to the session; `false` if there is none.
    fn hand_over(
        &mut self,
        tx: &mut Tx<'_>,
        counters: &mut TopicCounters,
        such: impl Fn(RuleId) -> bool,
    ) -> bool {
        let first = |lane: &&mut Lane| lane.waiting.front().map_or(u64::MAX, |first| first.order);
        let lanes = self.lanes.iter_mut().filter(|lane| such(lane.rule));
        let Some(lane) = lanes.min_by_key(first) else { return false };
        let Some(next) = lane.pop() else { return false };
        if tx.queue_prepared(&next.message, lane.rule != RuleId::NONE).is_err() {
            // A Close is queued: nothing follows it.
            self.lanes.clear();
            return false;
        }
        counters.delivered += 1;
        true
    }

    /// Returns the code and reason to close the connection with, if it has to close.
    pub(crate) fn take_overflown(&mut self, rules: &Rules) -> Option<(CloseCode, String)> {
        let rule = self.overflown.take()?;
        match rules.limits(rule).map(|limits| limits.slow) {
            Some(SlowConsumer::Close(code, reason)) => Some((*code, reason.clone())),
            _ => Some((CloseCode::POLICY, "too slow".to_owned())),
        }
    }

    pub(crate) fn take_untold(&mut self) -> Vec<Missed> {
        std::mem::take(&mut self.untold)
    }

    /// Returns whether the backlog is finished.
    pub(crate) fn is_done(&self) -> bool {
        self.replays.is_empty() && self.untold.is_empty() && self.overflown.is_none() && self.is_empty()
    }

    /// Returns the queued payload in bytes; subscribers share it in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.lanes.iter().map(|lane| lane.bytes).sum()
    }

    /// Returns whether no publication is queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.iter().all(|lane| lane.waiting.is_empty())
    }
}

/// Returns the policy of a connection's route.
fn of_route(config: &Config) -> SlowConsumer {
    match config.overflow() {
        Overflow::Close => SlowConsumer::Close(CloseCode::POLICY, String::new()),
        Overflow::DropNewest => SlowConsumer::DropNewest,
        Overflow::DropOldest => SlowConsumer::DropOldest,
    }
}

impl Lane {
    fn new(rule: RuleId) -> Self {
        Self { rule, waiting: VecDeque::new(), bytes: 0, gone: 0, places: HashMap::new() }
    }

    fn has_room(&self, limits: &Limits<'_>, message: &Prepared) -> bool {
        let fits = match self.rule {
            // As everywhere with the limit of a route, one message may exceed it.
            RuleId::NONE => self.bytes < limits.bytes,
            _ => self.bytes + message.payload().len() <= limits.bytes || self.waiting.is_empty(),
        };
        fits && self.waiting.len() < limits.messages
    }

    fn push(&mut self, order: u64, (topic, message, sequence): (&Arc<str>, &Prepared, u64), conflates: bool) {
        if conflates {
            self.places.insert(topic.clone(), self.gone + self.waiting.len() as u64);
        }
        self.bytes += message.payload().len();
        let (topic, message) = (topic.clone(), message.clone());
        self.waiting.push_back(Waiting { order, topic, message, sequence });
    }

    /// Replaces the queued value of a topic; `false` if there is none.
    fn replace(&mut self, topic: &Arc<str>, message: &Prepared, sequence: u64) -> bool {
        let Some(place) = self.places.get(topic) else { return false };
        let Some(waiting) = self.waiting.get_mut((place - self.gone) as usize) else { return false };
        self.bytes += message.payload().len();
        self.bytes -= waiting.message.payload().len();
        waiting.message = message.clone();
        waiting.sequence = sequence;
        true
    }

    fn pop(&mut self) -> Option<Waiting> {
        let first = self.waiting.pop_front()?;
        self.bytes -= first.message.payload().len();
        self.gone += 1;
        self.places.remove(&first.topic);
        Some(first)
    }

    /// Removes the oldest message if the queue exceeds its limits; the last one always stays.
    fn pop_excess(&mut self, limits: &Limits<'_>) -> Option<Waiting> {
        let exceeds = self.waiting.len() > limits.messages || self.bytes > limits.bytes;
        if exceeds && self.waiting.len() > 1 { self.pop() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use sinews_proto::handshake::{ClientRequest, ServerOptions, accept};
    use sinews_proto::http::{HeadLimits, HeaderSlots, RequestHead};
    use sinews_proto::{Negotiated, Time};
    use sinews_session::{Chain, Resources, Session};

    use super::super::rule::TopicRule;
    use super::*;

    /// Session of a peer that reads nothing, and its backlog.
    struct Slow {
        session: Session,
        resources: Resources,
        in_flight: Option<Box<Chain>>,
        backlog: Backlog,
        rules: Rules,
        counters: TopicCounters,
    }

    fn negotiated() -> Negotiated {
        let mut request = Vec::new();
        ClientRequest::new("a", "/").unwrap().start([7; 16]).write_request(&mut request);
        let mut slots = HeaderSlots::new();
        let head = RequestHead::parse(&request, &HeadLimits::new(), &mut slots).unwrap();
        accept(&head, &ServerOptions::new()).unwrap().negotiated()
    }

    impl Slow {
        /// Queues more than the high-water mark of 100 bytes.
        fn new(rules: Vec<TopicRule>) -> Self {
            Self::with_config(rules, Config::default())
        }

        fn with_config(rules: Vec<TopicRule>, config: Config) -> Self {
            let session = Session::new(negotiated(), Arc::new(config.with_high_water(100)), Time::ZERO);
            let mut slow = Self {
                session,
                resources: Resources::with_masks(|| [0; 4]),
                in_flight: None,
                backlog: Backlog::default(),
                rules: Rules::new(rules),
                counters: TopicCounters::default(),
            };
            slow.session.tx(&mut slow.resources, Time::ZERO).send_binary(&[0; 200]).unwrap();
            slow.in_flight = slow.session.start_send();
            slow
        }

        fn offer(&mut self, topic: &str, text: &str) {
            self.offer_at(topic, text, 0);
        }

        fn offer_at(&mut self, topic: &str, text: &str, sequence: u64) {
            let delivery = Delivery {
                rule: self.rules.slow(topic),
                topic: &topic.into(),
                message: &Prepared::text(text),
                sequence,
            };
            let tx = self.session.tx(&mut self.resources, Time::ZERO);
            assert!(!is_ready(&tx, delivery.rule));
            self.backlog.offer(&tx, delivery, &self.rules, &mut self.counters);
        }

        fn says(&mut self, text: &str) {
            let mut tx = self.session.tx(&mut self.resources, Time::ZERO);
            self.backlog.make_way(&mut tx, &self.rules, &mut self.counters);
            tx.send_text(text).unwrap();
        }

        fn told(&mut self) -> Vec<(Option<String>, u64)> {
            let untold = self.backlog.take_untold();
            untold.into_iter().map(|told| (told.topic().map(str::to_owned), told.messages())).collect()
        }

        /// Lets the peer read everything; returns its messages, send by send.
        fn drains(&mut self) -> Vec<Vec<String>> {
            let mut sends = Vec::new();
            let mut chain = self.in_flight.take();
            loop {
                if let Some(chain) = chain {
                    self.session.finish_send(chain, &mut self.resources, Time::ZERO);
                }
                let mut tx = self.session.tx(&mut self.resources, Time::ZERO);
                self.backlog.refill(&mut tx, &mut self.counters);
                chain = self.session.start_send();
                let Some(sent) = &chain else { return sends };
                let mut bytes = &sent.pieces().collect::<Vec<_>>().concat()[..];
                let mut texts = Vec::new();
                while let [0x81, len, rest @ ..] = bytes {
                    let (text, behind) = rest.split_at(usize::from(*len));
                    texts.push(String::from_utf8(text.to_vec()).unwrap());
                    bytes = behind;
                }
                assert!(bytes.is_empty());
                sends.push(texts);
            }
        }
    }

    fn rule(pattern: &str, slow: SlowConsumer) -> TopicRule {
        TopicRule::new(pattern).with_slow_consumer(slow).with_max_waiting_messages(3)
    }

    #[test]
    fn newest_messages_are_dropped_one_by_one() {
        let mut slow = Slow::new(vec![rule(">", SlowConsumer::DropNewest)]);
        for number in 0..10 {
            slow.offer(["a", "b"][number % 2], &number.to_string());
        }
        assert_eq!(slow.told(), [(Some("b".into()), 4), (Some("a".into()), 3)]);
        assert_eq!(slow.drains().concat(), ["0", "1", "2"]);
        assert_eq!((slow.counters.dropped_newest, slow.counters.delivered), (7, 3));
        assert!(slow.backlog.is_done());
    }

    #[test]
    fn first_dropped_sequence_is_reported_for_topics_with_history() {
        let mut slow = Slow::new(vec![rule(">", SlowConsumer::DropNewest)]);
        for sequence in 11..20 {
            slow.offer_at("a", "x", sequence);
        }
        (0..2).for_each(|_| slow.offer("b", "x"));
        let told = slow.backlog.take_untold();
        let firsts: Vec<_> = told.iter().map(|told| (told.topic().unwrap(), told.first())).collect();
        assert_eq!(firsts, [("a", Some(14)), ("b", None)]);
    }

    #[test]
    fn oldest_messages_are_dropped_by_count_and_by_size() {
        let by_number = rule(">", SlowConsumer::DropOldest);
        let by_size = by_number.clone().with_max_waiting_messages(100).with_max_waiting_bytes(7);
        for (rule, left) in [(by_number, &["17", "18", "19"]), (by_size, &["17", "18", "19"])] {
            let mut slow = Slow::new(vec![rule]);
            (10..20).for_each(|number| slow.offer("a", &number.to_string()));
            assert_eq!(slow.drains().concat(), left);
            assert_eq!((slow.counters.dropped_oldest, slow.told()), (7, vec![(Some("a".into()), 7)]));
        }
        // A message larger than the limit is queued alone.
        let mut slow = Slow::new(vec![rule("a", SlowConsumer::DropOldest).with_max_waiting_bytes(5)]);
        ["1", "2", "a large one"].iter().for_each(|text| slow.offer("a", text));
        assert_eq!(slow.drains().concat(), ["a large one"]);
    }

    #[test]
    fn conflated_value_takes_the_queue_position_of_the_first() {
        let mut slow = Slow::new(vec![rule("*", SlowConsumer::Conflate).with_max_waiting_bytes(8)]);
        for (topic, value) in [("a", "a1"), ("b", "b1"), ("a", "a2"), ("c", "c1"), ("a", "a3"), ("b", "b2")] {
            slow.offer(topic, value);
        }
        assert_eq!((slow.counters.conflated, slow.told()), (3, vec![]));
        // A fourth topic, and then a value that exceeds the limit together with the others.
        slow.offer("d", "d1");
        assert_eq!(slow.told(), [(Some("a".into()), 1)]);
        slow.offer("c", "large");
        assert_eq!(slow.told(), [(Some("b".into()), 1)]);
        assert_eq!(slow.drains().concat(), ["large", "d1"]);
        // A value that has left the queue is not replaced.
        let mut slow = Slow::new(vec![rule("*", SlowConsumer::Conflate)]);
        let long = "x".repeat(101);
        slow.offer("a", &long);
        slow.offer("b", "b1");
        let chain = slow.in_flight.take().unwrap();
        slow.session.finish_send(chain, &mut slow.resources, Time::ZERO);
        slow.backlog.refill(&mut slow.session.tx(&mut slow.resources, Time::ZERO), &mut slow.counters);
        slow.offer("a", "a2");
        slow.offer("b", "b2");
        assert_eq!(slow.drains().concat(), [&long, "b2", "a2"]);
    }

    #[test]
    fn rule_with_close_closes_once_and_takes_no_more_messages() {
        let code = CloseCode::new(4_001).unwrap();
        let mut slow = Slow::new(vec![rule("a", SlowConsumer::Close(code, "lags".into()))]);
        (0..10).for_each(|number| slow.offer("a", &number.to_string()));
        assert!(!slow.backlog.is_done());
        assert_eq!(slow.backlog.take_overflown(&slow.rules), Some((code, "lags".into())));
        assert_eq!(slow.counters.closed_slow, 1);
        assert_eq!(slow.drains().concat(), ["0", "1", "2"]);
    }

    #[test]
    fn route_policy_applies_without_a_rule() {
        for (overflow, left) in [
            (Overflow::DropNewest, &["10", "11", "12"][..]),
            (Overflow::DropOldest, &["17", "18", "19"]),
            (Overflow::Close, &["10", "11", "12"]),
        ] {
            // 204 bytes are in flight; six more are allowed, and one message exceeds the limit.
            let config = Config::default().with_overflow(overflow).with_max_outbound(210);
            let mut slow = Slow::with_config(vec![rule("b", SlowConsumer::Conflate)], config);
            for number in 10..20 {
                if number < 13 && overflow != Overflow::DropOldest {
                    // Not slow yet, by this policy.
                    let mut tx = slow.session.tx(&mut slow.resources, Time::ZERO);
                    assert!(is_ready(&tx, RuleId::NONE) == (number < 12));
                    tx.queue_prepared(&Prepared::text(number.to_string()), false).unwrap();
                } else {
                    slow.offer("a", &number.to_string());
                }
            }
            assert_eq!(slow.drains().concat(), left, "{overflow:?}");
            let closed = slow.backlog.take_overflown(&slow.rules).map(|(code, _)| code);
            assert_eq!(closed, (overflow == Overflow::Close).then_some(CloseCode::POLICY));
        }
    }

    #[test]
    fn topics_of_all_rules_leave_in_publication_order() {
        let mut slow =
            Slow::new(vec![rule("a", SlowConsumer::DropOldest), rule("b", SlowConsumer::DropNewest)]);
        for (topic, text) in
            [("a", "1"), ("b", "2"), ("a", "3"), ("b", "4"), ("b", "5"), ("a", "6"), ("a", "7")]
        {
            slow.offer(topic, text);
        }
        assert_eq!(slow.drains().concat(), ["2", "3", "4", "5", "6", "7"]);
    }

    #[test]
    fn refill_stops_at_the_high_water_mark() {
        let mut slow = Slow::new(vec![rule(">", SlowConsumer::DropOldest).with_max_waiting_messages(100)]);
        let texts: Vec<String> = (10..30).map(|number| format!("{number} {}", "x".repeat(37))).collect();
        texts.iter().for_each(|text| slow.offer("a", text));
        let sends = slow.drains();
        assert_eq!(sends.concat(), texts);
        assert!(sends.iter().all(|send| send.len() <= 3), "{sends:?}");
    }

    #[test]
    fn own_sends_overtake_only_conflated_values() {
        let rules = vec![rule("a", SlowConsumer::DropOldest), rule("b", SlowConsumer::Conflate)];
        let mut slow = Slow::new(rules);
        slow.offer("a", "published");
        slow.offer("b", "old");
        slow.says("said");
        slow.offer("a", "later");
        slow.offer("b", "new");
        assert_eq!(slow.drains().concat(), ["published", "said", "new", "later"]);
    }

    /// Otherwise a connection that answers each drop would get all messages.
    #[test]
    fn connection_that_keeps_sending_is_still_limited() {
        for policy in [SlowConsumer::DropOldest, SlowConsumer::DropNewest] {
            let bytes = 10_000;
            let rule = rule(">", policy).with_max_waiting_bytes(bytes).with_max_waiting_messages(100_000);
            let mut slow = Slow::new(vec![rule]);
            let text = "x".repeat(100);
            for _ in 0..2_000 {
                (0..10).for_each(|_| slow.offer("a", &text));
                slow.says("!");
                let most = 204 + 100 + bytes * 11 / 10 + 2_000 * 3;
                let waiting = slow.session.buffered();
                assert!(waiting <= most, "{waiting} wait");
            }
            let counters = slow.counters;
            let dropped = counters.dropped_oldest + counters.dropped_newest;
            assert!(counters.delivered >= 90, "{counters:?}");
            let left: usize = slow.backlog.lanes.iter().map(|lane| lane.waiting.len()).sum();
            assert_eq!(counters.delivered + dropped + left as u64, 20_000);
            assert_eq!(slow.told().iter().map(|(_, messages)| messages).sum::<u64>(), dropped);
        }
        let rule = rule(">", SlowConsumer::Close(CloseCode::POLICY, String::new()));
        let mut slow = Slow::new(vec![rule.with_max_waiting_bytes(200)]);
        for _ in 0..3 {
            slow.offer("a", &"x".repeat(100));
            slow.says("!");
        }
        assert!(slow.backlog.take_overflown(&slow.rules).is_some());
    }

    #[test]
    fn drops_of_many_topics_are_reported_together() {
        let mut slow = Slow::new(vec![rule(">", SlowConsumer::DropNewest)]);
        (0..100).for_each(|number| slow.offer(&number.to_string(), "x"));
        let told = slow.told();
        assert_eq!((told.len(), told.last()), (UNTOLD_MAX + 1, Some(&(None, 97 - UNTOLD_MAX as u64))));
    }

    #[test]
    fn closing_connection_has_no_backlog() {
        let mut slow = Slow::new(vec![rule(">", SlowConsumer::DropNewest)]);
        slow.offer("a", "before");
        let mut tx = slow.session.tx(&mut slow.resources, Time::ZERO);
        tx.close(CloseCode::NORMAL, "").unwrap();
        slow.offer("a", "behind");
        slow.backlog.flush(&mut slow.session.tx(&mut slow.resources, Time::ZERO), &mut slow.counters);
        assert!(slow.backlog.is_done());
        assert_eq!(slow.counters.delivered, 0);
    }
}
