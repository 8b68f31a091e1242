use sinews_proto::handshake::{ClientRequest, ServerOptions, accept};
use sinews_proto::http::{HeadLimits, HeaderSlots, RequestHead};
use sinews_proto::{Negotiated, Time};
use sinews_session::{Chain, Resources, Session};

use super::*;
use crate::topics::rule::TopicRule;

/// Session of a peer that reads nothing, and its backlog.
struct SlowSession {
    session: Session,
    resources: Resources,
    in_flight: Option<Box<Chain>>,
    backlog: Backlog,
    rules: TopicRules,
    counters: TopicCounters,
}

fn negotiated() -> Negotiated {
    let mut request = Vec::new();
    ClientRequest::new("a", "/").unwrap().start([7; 16]).write_request(&mut request);
    let mut slots = HeaderSlots::new();
    let head = RequestHead::parse(&request, &HeadLimits::new(), &mut slots).unwrap();
    accept(&head, &ServerOptions::new()).unwrap().negotiated()
}

impl SlowSession {
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
            rules: TopicRules::new(rules),
            counters: TopicCounters::default(),
        };
        let _ = slow.session.tx(&mut slow.resources, Time::ZERO).send_binary(&[0; 200]).unwrap();
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

    fn sends(&mut self, text: &str) {
        let mut tx = self.session.tx(&mut self.resources, Time::ZERO);
        self.backlog.flush_before_send(&mut tx, &self.rules, &mut self.counters);
        let _ = tx.send_text(text).unwrap();
    }

    fn reports(&mut self) -> Vec<(Option<String>, u64)> {
        let unreported = self.backlog.take_unreported(true);
        unreported.into_iter().map(|report| (report.topic().map(str::to_owned), report.messages())).collect()
    }

    /// Lets the peer read everything; returns its messages, send by send.
    fn drain(&mut self) -> Vec<Vec<String>> {
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
    TopicRule::new(pattern).with_slow_consumer(slow).with_max_queued_messages(3)
}

#[test]
fn newest_messages_are_dropped_one_by_one() {
    let mut slow = SlowSession::new(vec![rule(">", SlowConsumer::DropNewest)]);
    for number in 0..10 {
        slow.offer(["a", "b"][number % 2], &number.to_string());
    }
    assert_eq!(slow.reports(), [(Some("b".into()), 4), (Some("a".into()), 3)]);
    assert_eq!(slow.drain().concat(), ["0", "1", "2"]);
    assert_eq!((slow.counters.dropped_newest, slow.counters.delivered), (7, 3));
    assert!(slow.backlog.is_done());
}

#[test]
fn first_dropped_sequence_is_reported_for_topics_with_history() {
    let mut slow = SlowSession::new(vec![rule(">", SlowConsumer::DropNewest)]);
    for sequence in 11..20 {
        slow.offer_at("a", "x", sequence);
    }
    (0..2).for_each(|_| slow.offer("b", "x"));
    let report = slow.backlog.take_unreported(true);
    let firsts: Vec<_> =
        report.iter().map(|report| (report.topic().unwrap(), report.first_sequence())).collect();
    assert_eq!(firsts, [("a", Some(14)), ("b", None)]);
}

#[test]
fn oldest_messages_are_dropped_by_count_and_by_size() {
    let by_number = rule(">", SlowConsumer::DropOldest);
    let by_size = by_number.clone().with_max_queued_messages(100).with_max_queued_bytes(7);
    for (rule, left) in [(by_number, &["17", "18", "19"]), (by_size, &["17", "18", "19"])] {
        let mut slow = SlowSession::new(vec![rule]);
        (10..20).for_each(|number| slow.offer("a", &number.to_string()));
        assert_eq!(slow.drain().concat(), left);
        assert_eq!((slow.counters.dropped_oldest, slow.reports()), (7, vec![(Some("a".into()), 7)]));
    }
    // A message larger than the limit is queued alone.
    let mut slow = SlowSession::new(vec![rule("a", SlowConsumer::DropOldest).with_max_queued_bytes(5)]);
    ["1", "2", "a large one"].iter().for_each(|text| slow.offer("a", text));
    assert_eq!(slow.drain().concat(), ["a large one"]);
}

#[test]
fn conflated_value_takes_the_queue_position_of_the_first() {
    let mut slow = SlowSession::new(vec![rule("*", SlowConsumer::Conflate).with_max_queued_bytes(8)]);
    for (topic, value) in [("a", "a1"), ("b", "b1"), ("a", "a2"), ("c", "c1"), ("a", "a3"), ("b", "b2")] {
        slow.offer(topic, value);
    }
    assert_eq!((slow.counters.conflated, slow.reports()), (3, vec![]));
    // A fourth topic, and then a value that exceeds the limit together with the others.
    slow.offer("d", "d1");
    assert_eq!(slow.reports(), [(Some("a".into()), 1)]);
    slow.offer("c", "large");
    assert_eq!(slow.reports(), [(Some("b".into()), 1)]);
    assert_eq!(slow.drain().concat(), ["large", "d1"]);
    // A value that has left the queue is not replaced.
    let mut slow = SlowSession::new(vec![rule("*", SlowConsumer::Conflate)]);
    let long = "x".repeat(101);
    slow.offer("a", &long);
    slow.offer("b", "b1");
    let chain = slow.in_flight.take().unwrap();
    slow.session.finish_send(chain, &mut slow.resources, Time::ZERO);
    slow.backlog.refill(&mut slow.session.tx(&mut slow.resources, Time::ZERO), &mut slow.counters);
    slow.offer("a", "a2");
    slow.offer("b", "b2");
    assert_eq!(slow.drain().concat(), [&long, "b2", "a2"]);
}

#[test]
fn rule_with_close_closes_once_and_takes_no_more_messages() {
    let code = CloseCode::new(4_001).unwrap();
    let mut slow = SlowSession::new(vec![rule("a", SlowConsumer::Close(code, "lags".into()))]);
    (0..10).for_each(|number| slow.offer("a", &number.to_string()));
    assert!(!slow.backlog.is_done());
    assert_eq!(slow.backlog.take_overflowed(&slow.rules), Some((code, "lags".into())));
    assert_eq!(slow.counters.closed_slow, 1);
    assert_eq!(slow.drain().concat(), ["0", "1", "2"]);
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
        let mut slow = SlowSession::with_config(vec![rule("b", SlowConsumer::Conflate)], config);
        for number in 10..20 {
            if number < 13 && overflow != Overflow::DropOldest {
                // Not slow yet, by this policy.
                let mut tx = slow.session.tx(&mut slow.resources, Time::ZERO);
                assert!(is_ready(&tx, RuleId::NONE) == (number < 12));
                let _ = tx.queue_prepared(&Prepared::text(number.to_string()), false).unwrap();
            } else {
                slow.offer("a", &number.to_string());
            }
        }
        assert_eq!(slow.drain().concat(), left, "{overflow:?}");
        let closed = slow.backlog.take_overflowed(&slow.rules).map(|(code, _)| code);
        assert_eq!(closed, (overflow == Overflow::Close).then_some(CloseCode::POLICY));
    }
}

#[test]
fn topics_of_all_rules_leave_in_publication_order() {
    let mut slow =
        SlowSession::new(vec![rule("a", SlowConsumer::DropOldest), rule("b", SlowConsumer::DropNewest)]);
    for (topic, text) in [("a", "1"), ("b", "2"), ("a", "3"), ("b", "4"), ("b", "5"), ("a", "6"), ("a", "7")]
    {
        slow.offer(topic, text);
    }
    assert_eq!(slow.drain().concat(), ["2", "3", "4", "5", "6", "7"]);
}

#[test]
fn refill_stops_at_the_high_water_mark() {
    let mut slow = SlowSession::new(vec![rule(">", SlowConsumer::DropOldest).with_max_queued_messages(100)]);
    let texts: Vec<String> = (10..30).map(|number| format!("{number} {}", "x".repeat(37))).collect();
    texts.iter().for_each(|text| slow.offer("a", text));
    let sends = slow.drain();
    assert_eq!(sends.concat(), texts);
    assert!(sends.iter().all(|send| send.len() <= 3), "{sends:?}");
}

#[test]
fn own_sends_overtake_only_conflated_values() {
    let rules = vec![rule("a", SlowConsumer::DropOldest), rule("b", SlowConsumer::Conflate)];
    let mut slow = SlowSession::new(rules);
    slow.offer("a", "published");
    slow.offer("b", "old");
    slow.sends("said");
    slow.offer("a", "later");
    slow.offer("b", "new");
    assert_eq!(slow.drain().concat(), ["published", "said", "new", "later"]);
}

/// Otherwise a connection that answers each drop would get all messages.
#[test]
fn connection_that_keeps_sending_is_still_limited() {
    for policy in [SlowConsumer::DropOldest, SlowConsumer::DropNewest] {
        let bytes = 10_000;
        let rule = rule(">", policy).with_max_queued_bytes(bytes).with_max_queued_messages(100_000);
        let mut slow = SlowSession::new(vec![rule]);
        let text = "x".repeat(100);
        for _ in 0..2_000 {
            (0..10).for_each(|_| slow.offer("a", &text));
            slow.sends("!");
            let most = 204 + 100 + bytes * 11 / 10 + 2_000 * 3;
            let waiting = slow.session.buffered();
            assert!(waiting <= most, "{waiting} wait");
        }
        let counters = slow.counters;
        let dropped = counters.dropped_oldest + counters.dropped_newest;
        assert!(counters.delivered >= 90, "{counters:?}");
        let left: usize = slow.backlog.queues.iter().map(|queue| queue.waiting.len()).sum();
        assert_eq!(counters.delivered + dropped + left as u64, 20_000);
        assert_eq!(slow.reports().iter().map(|(_, messages)| messages).sum::<u64>(), dropped);
    }
    let rule = rule(">", SlowConsumer::Close(CloseCode::POLICY, String::new()));
    let mut slow = SlowSession::new(vec![rule.with_max_queued_bytes(200)]);
    for _ in 0..3 {
        slow.offer("a", &"x".repeat(100));
        slow.sends("!");
    }
    assert!(slow.backlog.take_overflowed(&slow.rules).is_some());
}

#[test]
fn drops_of_many_topics_are_reported_together() {
    let mut slow = SlowSession::new(vec![rule(">", SlowConsumer::DropNewest)]);
    (0..100).for_each(|number| slow.offer(&number.to_string(), "x"));
    let report = slow.reports();
    assert_eq!(
        (report.len(), report.last()),
        (UNREPORTED_MAX + 1, Some(&(None, 97 - UNREPORTED_MAX as u64)))
    );
}

#[test]
fn postponed_report_waits_for_capacity_and_sums_later_drops() {
    let mut slow = SlowSession::new(vec![rule(">", SlowConsumer::DropNewest)]);
    (0..5).for_each(|sequence| slow.offer_at("a", "x", 10 + sequence));
    let mut reports = slow.backlog.take_unreported(false);
    assert_eq!((reports.len(), reports[0].messages()), (1, 2));
    slow.offer_at("a", "x", 15);
    slow.backlog.postpone(reports.remove(0));
    slow.offer_at("a", "x", 16);
    slow.offer("b", "x");
    assert!(!slow.backlog.is_done());
    let reports = slow.backlog.take_unreported(false);
    assert_eq!((reports.len(), reports[0].topic()), (1, Some("b")));
    let reports = slow.backlog.take_unreported(true);
    assert_eq!((reports.len(), reports[0].messages(), reports[0].first_sequence()), (1, 4, Some(13)));
    assert!(slow.backlog.take_unreported(true).is_empty());
}

#[test]
fn sends_while_reporting_go_before_the_queue() {
    let mut slow = SlowSession::new(vec![rule(">", SlowConsumer::DropOldest)]);
    slow.offer("a", "published");
    slow.backlog.set_reporting(true);
    slow.sends("notice");
    slow.backlog.set_reporting(false);
    assert_eq!(slow.drain().concat(), ["notice", "published"]);
}

#[test]
fn closing_connection_has_no_backlog() {
    let mut slow = SlowSession::new(vec![rule(">", SlowConsumer::DropNewest)]);
    slow.offer("a", "before");
    let mut tx = slow.session.tx(&mut slow.resources, Time::ZERO);
    tx.close(CloseCode::NORMAL, "").unwrap();
    slow.offer("a", "behind");
    slow.backlog.flush(&mut slow.session.tx(&mut slow.resources, Time::ZERO), &mut slow.counters);
    assert!(slow.backlog.is_done());
    assert_eq!(slow.counters.delivered, 0);
}
