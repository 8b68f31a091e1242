use std::time::Duration;

use super::*;
use crate::topics::history::log::POSITION_TTL;
use crate::topics::history::policy::{HistoryPolicy, RetainedMessage};
use crate::topics::history::store::{TOPIC_COST, topic_cost};
use crate::topics::rule::{TopicRule, TopicRules};

fn directory(history: HistoryPolicy, bytes: usize) -> Arc<Directory> {
    with_position_ttl(history, bytes, POSITION_TTL)
}

fn with_position_ttl(history: HistoryPolicy, bytes: usize, position_ttl: Duration) -> Arc<Directory> {
    let rules = TopicRules::new(vec![TopicRule::new("kept.*").with_history(history)]);
    Arc::new(Directory::with_position_ttl(2, rules, bytes, position_ttl))
}

fn leave(directory: &Directory, entry: &Arc<TopicEntry>) {
    entry.set_subscribers(0, 0);
    directory.release(entry);
}

fn messages(directory: &Directory, name: &str) -> usize {
    directory.find(name).map_or(0, |entry| entry.history().unwrap().lock().from(0).count())
}

fn publish(directory: &Directory, name: &str, size: usize) -> Position {
    let mut at = None;
    let make = |position| {
        at = Some(position);
        Prepared::binary(vec![0; size])
    };
    directory.append(name, &[], make, PublishOrigin { posts: &[], except: None });
    at.expect("the topic has history")
}

fn cost(directory: &Directory) -> usize {
    directory.history_store.bytes.load(Ordering::Relaxed)
}

#[test]
fn histories_of_many_topics_share_a_memory_limit() {
    let most = 100_000;
    let directory = directory(HistoryPolicy::new(100), most);
    for number in 0..5_000 {
        publish(&directory, &format!("kept.{}", number % 700), number % 5_000);
        assert!(cost(&directory) <= most);
    }
    assert!(cost(&directory) > most / 2);
    let entries = directory.history_store.lock().entries().count();
    assert!((10..400).contains(&entries), "{entries}");
    // The accounted memory is exact, and no removed topic is left over.
    let taken = |entry: &Arc<TopicEntry>| topic_cost(entry) + entry.history().unwrap().lock().cost();
    let kept: usize = directory.history_store.lock().entries().map(taken).sum();
    assert_eq!(cost(&directory), kept);
    let found = (0..700).filter(|number| directory.find(&format!("kept.{number}")).is_some()).count();
    assert_eq!(found, entries);
    assert!(
        directory
            .append("other", &[], |_| unreachable!(), PublishOrigin { posts: &[], except: None })
            .is_none()
    );
}

#[test]
fn topic_removed_with_messages_gets_another_epoch() {
    let directory = directory(HistoryPolicy::new(10), 3_000);
    let first = publish(&directory, "kept.a", 10);
    assert_eq!(publish(&directory, "kept.a", 10), Position { sequence: 2, ..first });
    assert_eq!(first.sequence, 1);
    publish(&directory, "kept.b", 1_900);
    let again = publish(&directory, "kept.a", 10);
    assert_eq!(again.sequence, 1);
    assert_ne!(again.epoch, first.epoch);
}

#[test]
fn subscribed_topic_keeps_counting_after_its_messages_are_evicted() {
    let directory = directory(HistoryPolicy::new(10), 3_000);
    let entry = directory.subscribe("kept.a", 0).unwrap();
    directory.subscribe("kept.b", 0).unwrap();
    let first = publish(&directory, "kept.a", 10);
    publish(&directory, "kept.b", 1_900);
    assert!(entry.history().unwrap().lock().is_empty());
    assert_eq!(publish(&directory, "kept.a", 10), Position { sequence: 2, ..first });
}

#[test]
fn history_outlives_its_subscribers() {
    let directory = directory(HistoryPolicy::new(10), 2_000);
    let entry = directory.subscribe("kept.a", 0).unwrap();
    publish(&directory, "kept.a", 10);
    leave(&directory, &entry);
    assert!(directory.find("kept.a").is_some());
    let empty = directory.subscribe("kept.b", 0).unwrap();
    leave(&directory, &empty);
    assert!(directory.find("kept.b").is_none() && empty.history().unwrap().lock().removed);
}

#[test]
fn expired_messages_are_freed_by_later_publications() {
    let history = HistoryPolicy::new(10).with_max_age(Duration::from_millis(1));
    let directory = with_position_ttl(history, usize::MAX, Duration::ZERO);
    publish(&directory, "kept.a", 10);
    while directory.find("kept.a").is_some() {
        publish(&directory, "kept.b", 10);
    }
}

#[test]
fn topics_with_subscribers_are_evicted_last() {
    let directory = directory(HistoryPolicy::new(10), 100_000);
    let subscribed: Vec<_> =
        (0..20).map(|number| directory.subscribe(&format!("kept.s{number}"), 0).unwrap()).collect();
    let first: Vec<Position> = subscribed.iter().map(|entry| publish(&directory, &entry.name, 10)).collect();
    publish(&directory, "kept.unsubscribed", 10);
    for number in 0..2_000 {
        publish(&directory, &format!("kept.{number}"), 10);
        assert!(cost(&directory) <= 100_000);
    }
    assert_eq!(messages(&directory, "kept.unsubscribed"), 0);
    for (entry, first) in subscribed.iter().zip(first) {
        assert_eq!(publish(&directory, &entry.name, 10), Position { sequence: 2, ..first });
        assert_eq!(messages(&directory, &entry.name), 2);
    }
    let usage = directory.history_store.usage();
    assert!(usage.evicted > 1_800 && usage.evicted_subscribed == 0, "{usage:?}");
    // Their subscribers leave: of these topics, the one with the oldest last publication is the first.
    for entry in &subscribed[..5] {
        leave(&directory, entry);
    }
    publish(&directory, "kept.s0", 10);
    for number in 0..150 {
        publish(&directory, &format!("kept.{number}"), 10);
    }
    assert!(subscribed[1..5].iter().all(|entry| messages(&directory, &entry.name) == 0));
    assert!(subscribed[5..].iter().all(|entry| messages(&directory, &entry.name) == 2));
    // No other topic is left to evict.
    for number in 0..20 {
        publish(&directory, &format!("kept.s{number}"), 9_000);
    }
    let usage = directory.history_store.usage();
    assert!(usage.evicted_subscribed > 5 && usage.bytes <= 100_000, "{usage:?}");
}

#[test]
fn topic_without_messages_needs_no_memory_and_keeps_its_position() {
    let (first, second) =
        (directory(HistoryPolicy::new(10), usize::MAX), directory(HistoryPolicy::new(10), usize::MAX));
    let position = |directory: &Directory, name: &str| {
        let entry = directory.subscribe(name, 0).unwrap();
        let position = entry.history().unwrap().lock().position();
        leave(directory, &entry);
        position
    };
    let at = position(&first, "kept.a");
    assert!(first.find("kept.a").is_none() && cost(&first) == 0);
    assert_eq!(position(&first, "kept.a"), at);
    assert_ne!(position(&second, "kept.a"), at);
    // A successor restores it, and epochs of removed topics.
    let tight = directory(HistoryPolicy::new(10), 3_000);
    let evicted = publish(&tight, "kept.b", 10);
    publish(&tight, "kept.c", 2_400);
    let (a, b) = (position(&tight, "kept.a"), position(&tight, "kept.b"));
    assert_ne!(b.epoch, evicted.epoch);
    assert!(second.epochs.restore(&tight.epochs.export()));
    assert_eq!((position(&second, "kept.a"), position(&second, "kept.b")), (a, b));
}

#[test]
fn topic_keeps_its_position_until_its_subscribers_had_time_to_return() {
    let age = Duration::from_millis(1);
    let expired = |directory: &Directory| {
        let entry = directory.subscribe("kept.a", 0).unwrap();
        let last = publish(directory, "kept.a", 10);
        while messages(directory, "kept.a") > 0 {
            drop(directory.lock_trimmed(entry.history().unwrap()));
        }
        leave(directory, &entry);
        last
    };
    let history = HistoryPolicy::new(10).with_max_age(age);
    let patient = directory(history, usize::MAX);
    let last = expired(&patient);
    for _ in 0..100 {
        publish(&patient, "kept.b", 10);
    }
    assert_eq!(publish(&patient, "kept.a", 10), Position { sequence: 2, ..last });
    let hasty = with_position_ttl(history, usize::MAX, Duration::ZERO);
    let last = expired(&hasty);
    assert!(hasty.find("kept.a").is_none());
    let again = publish(&hasty, "kept.a", 10);
    assert!(again.sequence == 1 && again.epoch != last.epoch);
    // A topic without subscribers is evicted when others need memory.
    let tight = directory(history, 1_500);
    expired(&tight);
    publish(&tight, "kept.b", 700);
    assert!(tight.find("kept.a").is_none() && tight.history_store.usage().evicted == 0);
}

fn sequences(directory: &Directory, name: &str) -> (Position, Vec<u64>) {
    let entry = directory.find(name).unwrap();
    let ring = entry.history().unwrap().lock();
    (ring.position(), ring.from(0).map(|(sequence, ..)| sequence).collect())
}

#[test]
fn another_directory_continues_at_the_exported_positions() {
    let first = directory(HistoryPolicy::new(3), usize::MAX);
    let last = [(); 5].map(|()| publish(&first, "kept.a", 10))[4];
    let empty = first.subscribe("kept.b", 0).unwrap();
    let at = empty.history().unwrap().lock().position();
    let exported = first.export();
    assert_eq!(exported.len(), 2);
    let second = directory(HistoryPolicy::new(2), usize::MAX);
    for topic in exported.clone() {
        assert!(second.restore(topic));
    }
    assert_eq!(sequences(&second, "kept.a"), (last, vec![4, 5]));
    assert_eq!(sequences(&second, "kept.b"), (at, vec![]));
    let messages: usize = second.export().iter().map(|topic| topic.messages.len()).sum();
    assert_eq!(cost(&second), messages * 266 + 2 * (TOPIC_COST + "kept.a".len()));
    assert_eq!(publish(&second, "kept.a", 10), Position { sequence: 6, ..last });
    assert_eq!(publish(&second, "kept.b", 10), Position { sequence: 1, ..at }, "it was waited for");
    // A topic with publications is not restored, and neither is a topic without history.
    assert!(exported.into_iter().all(|topic| !second.restore(topic)));
    let other = TopicSnapshot { name: "other".to_owned(), position: at, messages: Vec::new() };
    assert!(!second.restore(other));
    // More messages than the sequence allows.
    let message = RetainedMessage { message: Prepared::text("x"), age: Duration::ZERO };
    let position = Position { epoch: 5, sequence: 1 };
    assert!(second.restore(TopicSnapshot {
        name: "kept.c".to_owned(),
        position,
        messages: vec![message; 3]
    }));
    assert_eq!(sequences(&second, "kept.c"), (position, vec![1]));
}

#[test]
fn publication_of_another_server_keeps_its_position() {
    let directory = directory(HistoryPolicy::new(10), usize::MAX);
    let first = publish(&directory, "kept.a", 10);
    let at = |sequence, epoch| {
        let message = Prepared::text("x");
        let from = PublishOrigin { posts: &[], except: None };
        directory.append_at(
            "kept.a",
            &[],
            HistoryPlace { position: Position { epoch, sequence }, prev: sequence - 1 },
            &message,
            from,
        )
    };
    assert!(at(2, first.epoch).is_ok() && at(3, first.epoch).is_ok());
    assert!(at(2, first.epoch).is_ok(), "it is there already");
    assert_eq!(sequences(&directory, "kept.a").1, [1, 2, 3]);
    assert!(at(9, first.epoch).is_ok());
    assert_eq!(sequences(&directory, "kept.a").1, [9], "the history restarts after a gap");
    assert_eq!(at(10, first.epoch ^ 1), Err(EpochMismatch));
    let message = Prepared::text("x");
    let position = Position { epoch: 5, sequence: 1 };
    let from = PublishOrigin { posts: &[], except: None };
    assert!(
        directory
            .append_at("kept.b", &[], HistoryPlace { position, prev: position.sequence - 1 }, &message, from)
            .is_ok()
    );
    assert_eq!(sequences(&directory, "kept.b"), (position, vec![1]), "it had not begun here");
    assert_eq!(publish(&directory, "kept.a", 10).sequence, 10);
}
