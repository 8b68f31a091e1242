//! Random operations on logs, compared with a model.

use std::collections::HashMap;
use std::time::Duration;

use sinews_store::{ChainLink, TopicChain};
use sinews_testkit::Rng;

use super::*;

/// The log of a topic as it should be.
#[derive(Default)]
struct LogModel {
    top: Option<Position>,
    entries: Vec<LogEntry>,
    first_answers: HashMap<usize, (Position, u64)>,
}

impl LogModel {
    fn append(&mut self, append: &LogAppend, once: Option<usize>, answer: &Result<LogAppended, StoreError>) {
        if let Some(&(position, prev)) = once.and_then(|id| self.first_answers.get(&id)) {
            let repeated = LogAppended { position, prev, repeated: true };
            return assert_eq!(*answer, Ok(repeated));
        }
        let last = self.top.map_or(0, |top| top.sequence);
        if append.if_top.is_some_and(|top| top != self.top.unwrap_or_default()) {
            return assert_eq!(*answer, Err(StoreError::OtherTop));
        }
        let appended = *answer.as_ref().expect("it is appended");
        let epoch = self.top.map_or(appended.position.epoch, |top| top.epoch);
        let position = Position { epoch, sequence: last + 1 };
        assert_eq!(appended, LogAppended { position, prev: last, repeated: false });
        self.top = Some(position);
        let entry = LogEntry { sequence: last + 1, prev: last, time: 0, payload: append.payload.clone() };
        self.entries.push(entry);
        let retention = append.retention;
        let bytes =
            |entries: &[LogEntry]| entries.iter().map(|entry| entry.payload.len() as u64).sum::<u64>();
        while self.entries.len() > 1
            && (self.entries.len() > retention.messages as usize || bytes(&self.entries) > retention.bytes)
        {
            self.entries.remove(0);
        }
        if let Some(id) = once {
            self.first_answers.insert(id, (position, last));
        }
    }

    fn read(&self, read: &ReadLog) -> LogPage {
        if self.top.is_none() {
            return LogPage::default();
        }
        let is_over = |entries: &[LogEntry]| {
            let bytes: usize = entries.iter().map(|entry| entry.payload.len()).sum();
            entries.len() >= read.max_messages as usize || bytes as u64 >= read.max_bytes
        };
        let mut page = Vec::new();
        match read.start {
            LogStart::Last(count) => {
                let recent = self.entries.iter().rev().take(count as usize);
                recent.for_each(|entry| {
                    if !is_over(&page) {
                        page.push(entry.clone())
                    }
                });
                page.reverse();
                LogPage { top: self.top, entries: page, more: false }
            }
            LogStart::After(sequence) => {
                let behind = self.entries.iter().filter(|entry| entry.sequence > sequence);
                let count = behind.clone().count();
                behind.for_each(|entry| {
                    if !is_over(&page) {
                        page.push(entry.clone())
                    }
                });
                let more = page.len() < count;
                LogPage { top: self.top, entries: page, more }
            }
        }
    }
}

/// Payloads that imitate fields, and others.
fn payload(rng: &mut Rng) -> Bytes {
    let texts: [&[u8]; 5] = [b"", b"9 8 7 x", b"1", b"\r\n$5\r\n", b"\xff\x00 1 2 "];
    let text = texts[rng.below(texts.len())].to_vec();
    let noise = rng.below(40);
    [text, rng.bytes(noise)].concat().into()
}

struct LogRun<'a> {
    node: &'a StoreNode,
    rng: Rng,
    models: Vec<LogModel>,
    appended: Vec<Vec<u64>>,
    retentions: [Retention; 3],
}

impl LogRun<'_> {
    fn append(&mut self, topic: usize) {
        let rng = &mut self.rng;
        let model = &mut self.models[topic];
        let once = (rng.below(4) == 0).then(|| rng.below(20));
        let top = model.top.unwrap_or_default();
        let if_top = match rng.below(6) {
            0 => Some(top),
            1 => Some(Position { sequence: top.sequence + 1, ..top }),
            2 if top.sequence > 0 => Some(Position { epoch: top.epoch ^ 1, ..top }),
            _ => None,
        };
        if rng.below(50) == 0 {
            self.retentions[topic] = Retention {
                messages: [1, 8, 20, 40][rng.below(4)],
                bytes: [0, 900, 100_000, 100_000][rng.below(4)],
                age: (rng.below(2) == 0).then_some(Duration::from_secs(600)),
                unused: Duration::from_secs(3600),
            };
        }
        let retention = self.retentions[topic];
        let once_name = once.map(|id| format!("id {id}").into());
        let append =
            LogAppend { topic: name(topic), payload: payload(rng), retention, once: once_name, if_top };
        let answer = wait(self.node.store.append(append.clone()));
        model.append(&append, once, &answer);
        if let Ok(LogAppended { position, repeated: false, .. }) = answer {
            self.appended[topic].push(position.sequence);
        }
    }

    fn read(&mut self, topic: usize) {
        let rng = &mut self.rng;
        let top = self.models[topic].top.unwrap_or_default().sequence;
        let start = match rng.below(3) {
            0 => LogStart::Last(u32::try_from(rng.below(100)).expect("small")),
            1 => LogStart::After(top.saturating_sub(rng.below(4) as u64)),
            _ => LogStart::After(rng.below(usize::try_from(top).expect("small") + 3) as u64),
        };
        let (max_messages, max_bytes) = ([0, 1, 5, 70, 1000][rng.below(5)], [1, 100, 1 << 20][rng.below(3)]);
        let read = ReadLog { topic: name(topic), start, max_messages, max_bytes };
        let mut page = wait(self.node.store.read_log(read.clone())).expect("it answers");
        page.entries.iter_mut().for_each(|entry| {
            assert!(entry.time > 1_700_000_000_000);
            entry.time = 0;
        });
        assert_eq!(page, self.models[topic].read(&read), "{read:?}");
    }

    fn clear(&mut self, topic: usize) {
        assert_eq!(wait(self.node.store.clear(&TopicPart::log(&name(topic)))), Ok(()));
        let first_answers = std::mem::take(&mut self.models[topic].first_answers);
        self.models[topic] = LogModel { first_answers, ..LogModel::default() };
    }
}

fn name(topic: usize) -> Box<str> {
    format!("a.{topic}").into()
}

#[test]
fn logs_are_as_their_model() {
    let server = start_server!();
    let node = StoreNode::up(&server.url());
    (0..3).for_each(|topic| node.follow(&TopicPart::log(&name(topic))));
    let models = (0..3).map(|_| LogModel::default()).collect();
    let mut run = LogRun {
        node: &node,
        rng: Rng::new(7),
        models,
        appended: vec![Vec::new(); 3],
        retentions: [RETENTION; 3],
    };
    for _ in 0..6000 {
        let topic = run.rng.below(3);
        match run.rng.below(1000) {
            0 => run.clear(topic),
            1..600 => run.append(topic),
            _ => run.read(topic),
        }
    }
    for topic in 0..3 {
        let expected = &run.appended[topic];
        until("all are announced", || node.announced(&name(topic)).len() >= expected.len());
        let announced: Vec<_> = node.announced(&name(topic)).iter().map(|entry| entry.sequence).collect();
        assert_eq!(announced, *expected);
    }
    let parts =
        [TopicPart::log("a.1"), TopicPart::keys("a.1"), TopicPart::log("none"), TopicPart::log("a.2")];
    let tops = wait(node.store.tops(parts.to_vec())).expect("it answers");
    assert_eq!(tops, [run.models[1].top, None, None, run.models[2].top].map(Ok));
    // No read has written, and everything expires.
    let keys: Vec<String> = server.run("KEYS *");
    for key in keys {
        let ttl: i64 = server.try_run_words(&["PTTL", &key]).expect("it exists");
        assert!(ttl >= 0, "{key}: {ttl}");
    }
}

#[test]
fn messages_past_their_age_are_not_read_nor_retained() {
    let server = start_server!();
    let node = StoreNode::up(&server.url());
    let (age, unused) = (Some(Duration::from_millis(100)), Duration::from_secs(40));
    let retention = Retention { age, unused, ..RETENTION };
    let append = |payload| wait(node.store.append(LogAppend { retention, ..message("t", payload) }));
    let first = append("a").expect("it is appended");
    // The first one expires while the log has a later one.
    until("one expires", || {
        append("b").expect("it is appended");
        let sequences: Vec<u64> =
            node.read_after("t", 0).entries.iter().map(|entry| entry.sequence).collect();
        !sequences.contains(&first.position.sequence)
    });
    until("all expire", || node.read_after("t", 0).entries.is_empty());
    let last = ReadLog { topic: "t".into(), start: LogStart::Last(9), max_messages: 9, max_bytes: 999 };
    assert!(wait(node.store.read_log(last)).expect("it answers").entries.is_empty());
    assert_ne!(server.run::<Vec<String>>("KEYS *:log:*").len(), 0, "the list has them");
    let page = node.read_after("t", 0);
    assert!(page.top.is_some() && !page.follows(first.position));
    assert!(page.follows(page.top.expect("the topic remains")));
    // The list expires as a whole.
    until("the list expires", || server.run::<Vec<String>>("KEYS *:log:*").is_empty());
    let top = page.top.expect("the topic remains");
    let next = append("c").expect("it is appended");
    assert_eq!((next.position.epoch, next.prev), (top.epoch, top.sequence));
}

#[test]
fn unused_topic_loses_its_epoch() {
    let server = start_server!();
    let node = StoreNode::up(&server.url());
    let retention = Retention { unused: Duration::from_millis(50), ..RETENTION };
    let first =
        wait(node.store.append(LogAppend { retention, ..message("t", "a") })).expect("it is appended");
    until("it is unused", || node.top(&TopicPart::log("t")).is_none());
    assert_eq!(node.read_after("t", 0), LogPage::default());
    assert!(server.run::<Vec<String>>("KEYS *log*").is_empty());
    let again = node.append("t", "b").expect("it is appended");
    assert_ne!(again.position.epoch, first.position.epoch);
    let chain = TopicChain { last: first.position };
    assert_eq!(chain.link(again.position, again.prev), ChainLink::Lost);
}

#[test]
fn queued_appends_are_executed_in_their_order() {
    let server = start_server!();
    let node = StoreNode::up(&server.url());
    let append = |number: usize| node.store.append(message("t", &number.to_string()));
    let pending: Vec<_> = (0..1000).map(append).collect();
    let sequences: Vec<u64> =
        pending.into_iter().map(|pending| wait(pending).expect("it is appended").position.sequence).collect();
    assert_eq!(sequences, (1..=1000).collect::<Vec<_>>());
    let payloads: Vec<_> = node.read_after("t", 0).entries.into_iter().map(|entry| entry.payload).collect();
    let expected: Vec<_> = (0..1000).map(|number| Bytes::from(number.to_string())).collect();
    assert_eq!(payloads, expected);
    // They were in batches.
    let calls = server.info("cmdstat_evalsha");
    let calls = calls.trim_start_matches("calls=").split(',').next().and_then(|calls| calls.parse().ok());
    assert!(calls.is_some_and(|calls: usize| calls < 200), "{calls:?}");
}

#[test]
fn messages_beyond_a_former_limit_stay_expired() {
    let server = start_server!();
    let node = StoreNode::up(&server.url());
    let append = |messages| {
        let retention = Retention { messages, ..RETENTION };
        assert!(wait(node.store.append(LogAppend { retention, ..message("t", "a") })).is_ok());
    };
    (0..9).for_each(|_| append(8));
    // The list has one more, which is removed together with a later one.
    let part = TopicPart::log("t");
    assert_eq!(server.run::<i64>(&format!("LLEN {}", node.store.shared.names.channel(&part))), 9);
    assert_eq!(node.read_after("t", 0).entries.len(), 8);
    append(20);
    assert_eq!(node.read_after("t", 0).entries.len(), 9);
}
