//! Logs of topics, against a model.

use std::collections::BTreeMap;
use std::time::Duration;

use sinews_store::{
    ChainLink, LogAppend, LogEntry, LogStart, Position, Retention, StoreError, TopicChain, TopicPart,
};
use sinews_testkit::Rng;

use super::{RETENTION, StoreNode, message, prefix, wait};
use crate::broker::until;

/// A topic as it should be.
#[derive(Default)]
struct ModelTopic {
    epoch: u64,
    /// Sequence, predecessor and payload of each message.
    messages: Vec<(u64, u64, String)>,
    /// Messages before this one were cleared.
    cleared: usize,
    once: BTreeMap<String, usize>,
}

impl ModelTopic {
    fn top(&self) -> u64 {
        self.messages[self.cleared..].last().map_or(0, |last| last.0)
    }

    fn retained(&self) -> &[(u64, u64, String)] {
        let first = self.messages.len().saturating_sub(RETENTION.messages as usize).max(self.cleared);
        &self.messages[first..]
    }
}

struct ModelRun {
    random: Rng,
    nodes: [StoreNode; 2],
    topics: BTreeMap<&'static str, ModelTopic>,
    count: u32,
}

const TOPICS: [&str; 4] = ["chat.room", "a b.ü*", "\u{1}presence", "other"];

impl ModelRun {
    fn pick(&mut self, most: usize) -> usize {
        self.random.below(most)
    }

    fn step(&mut self) {
        let (topic, node) = (TOPICS[self.pick(TOPICS.len())], self.pick(2));
        match self.pick(20) {
            0 => {
                let part = TopicPart::log(topic);
                wait(self.nodes[node].store.clear(&part)).expect("NATS answers");
                let model = self.topics.entry(topic).or_default();
                model.cleared = model.messages.len();
            }
            1..=11 => self.append(topic, node),
            12..=15 => self.read(topic, node),
            _ => self.tops(node),
        }
    }

    fn append(&mut self, topic: &'static str, node: usize) {
        self.count += 1;
        let (kind, payload) = (self.pick(6), format!("{topic} {}", self.count));
        let id = format!("id\r\n{}", self.pick(3));
        let stale = self.pick(2) == 0;
        let model = self.topics.entry(topic).or_default();
        let top = Position { epoch: model.epoch, sequence: model.top() };
        let mut append = message(topic, &payload);
        match kind {
            0 => append.once = Some(id.clone().into()),
            1 if stale => append.if_top = Some(Position { sequence: top.sequence + 1, ..top }),
            1 => append.if_top = Some(top),
            _ => {}
        }
        let answer = self.nodes[node].append(append.clone());
        if append.if_top.is_some_and(|expected| expected != top) {
            assert_eq!(answer, Err(StoreError::OtherTop));
            return;
        }
        let appended = answer.expect("NATS takes it");
        let position = appended.position;
        if let Some(first) = append.once.as_ref().and_then(|_| model.once.get(&id)) {
            assert_eq!((position.sequence, appended.repeated), (model.messages[*first].0, true));
            return;
        }
        assert!(!appended.repeated);
        assert!(position.sequence > model.messages.last().map_or(0, |last| last.0));
        let is_exact = appended.prev == top.sequence;
        assert!(is_exact || appended.prev == position.sequence - 1, "{appended:?}, {top:?}");
        // Node 0 follows all topics.
        assert!(is_exact || node != 0 || top.sequence == 0, "{appended:?}, {top:?}");
        if append.once.is_some() {
            model.once.insert(id, model.messages.len());
        }
        model.epoch = position.epoch;
        model.messages.push((position.sequence, top.sequence, payload));
    }

    fn read(&mut self, topic: &'static str, node: usize) {
        self.tops(node);
        let (count, is_last) = (1 + self.pick(7), self.pick(2) == 0);
        let picked = self.pick(12);
        let model = self.topics.entry(topic).or_default();
        let retained = model.retained();
        let top = (model.top() > 0).then(|| Position { epoch: model.epoch, sequence: model.top() });
        // A position of a message, the beginning, or one that the topic never had.
        let known = model.messages.iter().rev().nth(picked).map_or(0, |message| message.0);
        let after = if picked == 11 { model.top() + 1_000 } else { known };
        let start = if is_last { LogStart::Last(count as u32) } else { LogStart::After(after) };
        let page = self.nodes[node].read(topic, start, count as u32);
        let expected: Vec<_> = match is_last {
            true => retained.iter().skip(retained.len().saturating_sub(count)).collect(),
            false => retained.iter().filter(|message| message.0 > after).take(count).collect(),
        };
        assert_eq!(page.top, top, "{topic:?} {start:?}");
        let texts = |entries: &[LogEntry]| {
            let text =
                |entry: &LogEntry| (entry.sequence, String::from_utf8_lossy(&entry.payload).into_owned());
            entries.iter().map(text).collect::<Vec<_>>()
        };
        let wanted: Vec<_> = expected.iter().map(|message| (message.0, message.2.clone())).collect();
        assert_eq!(texts(&page.entries), wanted, "{topic:?} {start:?}");
        for (number, (entry, message)) in page.entries.iter().zip(&expected).enumerate() {
            let is_unknown = number == 0 && entry.prev == entry.sequence - 1;
            assert!(entry.prev == message.1 || is_unknown, "{entry:?}, {message:?}");
        }
        if is_last {
            return;
        }
        let is_last_page = expected.last().map_or_else(|| model.top() <= after, |last| last.0 == model.top());
        assert_eq!(page.more, !is_last_page && !expected.is_empty(), "{topic:?} {start:?} {page:?}");
        // Complete if, and only if, the reader misses nothing.
        let is_position = after == 0 || model.messages.iter().any(|message| message.0 == after);
        let next = model.messages.iter().find(|message| message.0 > after);
        let is_complete = match expected.first() {
            Some(first) => is_position && next.is_some_and(|next| next.0 == first.0) && first.1 == after,
            None => after == model.top(),
        };
        let page_complete = page.follows(Position { epoch: model.epoch, sequence: after });
        assert!(!page_complete || is_complete, "{topic:?} {start:?} {page:?}");
        // A reader from the beginning of a topic that was cleared may be told that it misses some.
        assert!(
            page_complete || !is_complete || after == 0,
            "{topic:?} {start:?} {page:?} {:?}",
            model.messages
        );
    }

    fn tops(&self, node: usize) {
        let expected = TOPICS.map(|topic| {
            let model = self.topics.get(topic)?;
            (model.top() > 0).then(|| Position { epoch: model.epoch, sequence: model.top() })
        });
        // A server may be behind the one that has acknowledged the other node's message.
        until(&format!("the tops are {expected:?}"), || {
            let tops = self.nodes[node].store.tops(TOPICS.map(TopicPart::log).to_vec());
            wait(tops).expect("NATS answers") == expected.map(Ok)
        });
    }
}

#[test]
#[ignore = "needs a broker: cargo xtask brokers --only nats"]
fn logs_agree_with_a_model() {
    let settings = prefix("model");
    let nodes = [StoreNode::new(&settings), StoreNode::new(&settings)];
    TOPICS.iter().for_each(|topic| nodes[0].follow(&TopicPart::log(topic)));
    let mut run = ModelRun { random: Rng::new(7), nodes, topics: BTreeMap::new(), count: 0 };
    (0..3_000).for_each(|_| run.step());
    for (topic, model) in &run.topics {
        let last = model.messages.last().map(|message| message.0);
        let entries = run.nodes[0].sink.until("all are announced", |all| {
            let entries = all.entries.get(*topic)?;
            (entries.last().map(|(_, entry)| entry.sequence) == last).then(|| entries.clone())
        });
        let announced: Vec<_> = entries.iter().map(|(_, entry)| (entry.sequence, entry.prev)).collect();
        let expected: Vec<_> = model.messages.iter().map(|message| (message.0, message.1)).collect();
        assert_eq!(announced, expected, "{topic}");
    }
}

#[test]
#[ignore = "needs a broker: cargo xtask brokers --only nats"]
fn new_topic_is_read_completely_from_its_beginning() {
    let settings = prefix("new");
    let (one, two) = (StoreNode::new(&settings), StoreNode::new(&settings));
    assert_eq!(two.read("t", LogStart::After(0), 10).top, None);
    for (number, node) in [&one, &two, &two, &one, &two].into_iter().enumerate() {
        node.append(message("t", &number.to_string())).expect("NATS takes it");
        node.append(message("u", &number.to_string())).expect("NATS takes it");
        let page = two.read("t", LogStart::After(0), 10);
        assert_eq!(page.entries.len(), number + 1);
        assert!(page.follows(Position::default()), "{page:?}");
    }
    // The sixth and seventh one remove the first two.
    for node in [&one, &two] {
        node.append(message("t", "more")).expect("NATS takes it");
    }
    let page = one.read("t", LogStart::After(0), 10);
    assert_eq!(page.entries.len(), 5);
    assert!(!page.follows(Position::default()), "{page:?}");
}

#[test]
#[ignore = "needs a broker: cargo xtask brokers --only nats"]
fn appends_of_a_node_keep_their_order() {
    let settings = prefix("order");
    let (one, two) = (StoreNode::new(&settings), StoreNode::new(&settings));
    two.store.follow_pattern("rooms.*");
    two.follow(&TopicPart::log("other"));
    let retention = Retention { messages: 2_000, ..RETENTION };
    let append = |number: u32| LogAppend { retention, ..message("rooms.1", &number.to_string()) };
    let pending: Vec<_> = (0..1_000).map(|number| one.store.append(append(number))).collect();
    let positions: Vec<_> =
        pending.into_iter().map(|pending| wait(pending).expect("NATS takes it").position).collect();
    assert!(positions.is_sorted_by(|one, two| one.sequence < two.sequence && one.epoch == two.epoch));
    let mut chain = TopicChain { last: Position::default() };
    let entries = two.sink.until("all are announced", |all| {
        all.entries.get("rooms.1").filter(|entries| entries.len() == 1_000).cloned()
    });
    for (number, (epoch, entry)) in entries.iter().enumerate() {
        let position = Position { epoch: *epoch, sequence: entry.sequence };
        assert_eq!(chain.link(position, entry.prev), ChainLink::Next);
        assert_eq!(entry.payload, number.to_string());
        chain.last = position;
    }
    // Pages of a long topic are linked.
    let (mut after, mut read) = (0, 0);
    loop {
        let page = one.read("rooms.1", LogStart::After(after), 300);
        assert!(page.follows(Position { epoch: positions[0].epoch, sequence: after }));
        read += page.entries.len();
        after = page.entries.last().expect("one message").sequence;
        if !page.more {
            break;
        }
    }
    assert_eq!(read, 1_000);
    assert_eq!(one.read("rooms.1", LogStart::Last(700), 700).entries.len(), 700);
}

#[test]
#[ignore = "needs a broker: cargo xtask brokers --only nats"]
fn message_expires_at_its_age_and_its_position_remains() {
    let node = StoreNode::new(&prefix("age"));
    let age = Some(Duration::from_millis(300));
    let append = LogAppend { retention: Retention { age, ..RETENTION }, ..message("t", "short") };
    let position = node.append(append).expect("NATS takes it").position;
    let page = loop {
        let page = node.read("t", LogStart::After(0), 10);
        if page.entries.is_empty() {
            break page;
        }
    };
    assert_eq!(page.top, Some(position));
    assert!(page.follows(position) && !page.follows(Position::default()));
}

#[test]
#[ignore = "needs a broker: cargo xtask brokers --only nats"]
fn topics_with_other_limits_have_another_stream() {
    let settings = prefix("classes");
    let (one, two) = (StoreNode::new(&settings), StoreNode::new(&settings));
    one.follow(&TopicPart::log("t"));
    let wide = LogAppend { retention: Retention { messages: 50, ..RETENTION }, ..message("t", "wide") };
    let first = one.append(message("t", "narrow")).expect("NATS takes it").position;
    assert_eq!(two.read("t", LogStart::After(0), 10).top, Some(first));
    let second = two.append(wide).expect("NATS takes it").position;
    assert_ne!(first.epoch, second.epoch);
    let entries = one.sink.until("both", |all| all.entries.get("t").filter(|all| all.len() == 2).cloned());
    assert_eq!(entries.iter().map(|(epoch, _)| *epoch).collect::<Vec<_>>(), [first.epoch, second.epoch]);
    let page = StoreNode::new(&settings).read("t", LogStart::After(first.sequence), 10);
    assert_eq!(page.top, Some(second));
    assert!(!page.follows(first), "the topic's limits changed");
}

#[test]
#[ignore = "needs a broker: cargo xtask brokers --only nats"]
fn oversized_payload_is_rejected() {
    let node = StoreNode::new(&prefix("large"));
    let max = node.store.capabilities().max_value;
    let large = message("t", &"x".repeat(max as usize + 1));
    assert_eq!(node.append(large), Err(StoreError::TooLarge { bytes: max + 1, max }));
    let fits = LogAppend {
        once: Some("k".repeat(256).into()),
        ..message(&"=".repeat(256), &"x".repeat(max as usize))
    };
    node.append(fits).expect("NATS takes it");
    let page = node.read(&"=".repeat(256), LogStart::Last(1), 1);
    assert_eq!(page.entries[0].payload.len() as u64, max);
}
