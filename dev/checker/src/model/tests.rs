use std::sync::Arc;

use sinews_store::{KeyCommand, KeyCondition, KeyLimits, KeyOutcome, LogStart, Retention, StoredKey};

use super::*;

const SECOND: u64 = 1_000_000;

fn append(payload: &str, once: Option<&str>, if_top: Option<Position>) -> LogAppend {
    LogAppend {
        topic: "a".into(),
        payload: Bytes::copy_from_slice(payload.as_bytes()),
        retention: Retention {
            messages: 3,
            bytes: 6,
            age: Some(Duration::from_secs(10)),
            unused: Duration::from_secs(20),
        },
        once: once.map(Into::into),
        if_top,
    }
}

fn read(start: LogStart, max_messages: u32, max_bytes: u64) -> ReadLog {
    ReadLog { topic: "a".into(), start, max_messages, max_bytes }
}

fn links(page: &LogPage) -> Vec<(u64, u64)> {
    page.entries.iter().map(|entry| (entry.prev, entry.sequence)).collect()
}

fn command(key: &str, value: Option<&str>, condition: Option<KeyCondition>) -> KeyCommand {
    let value = value.map(|value| Bytes::copy_from_slice(value.as_bytes()));
    KeyCommand { key: key.into(), value, ttl: None, condition, once: None }
}

fn write(model: &mut Model, now: u64, writes: Vec<KeyCommand>) -> (KeysWritten, Vec<Notice>) {
    let limits = KeyLimits { keys: 2, bytes: 12 };
    model.write_keys(now, &KeyCommands { topic: "a".into(), writes, limits })
}

/// Writes one key.
fn outcome(model: &mut Model, now: u64, command: KeyCommand) -> KeyOutcome {
    write(model, now, vec![command]).0.outcomes[0]
}

#[test]
fn log_is_trimmed_by_messages_bytes_and_age() {
    let mut model = Model::new(1, Rules::default());
    for (second, payload) in ["1", "2", "3", "4", "55555"].into_iter().enumerate() {
        model.append(second as u64 * SECOND, &append(payload, None, None)).unwrap();
        let count = model.read_log(second as u64 * SECOND, &read(LogStart::Last(9), 9, 99)).entries.len();
        assert_eq!(count, [1, 2, 3, 3, 2][second], "{payload}");
    }
    assert_eq!(links(&model.read_log(5 * SECOND, &read(LogStart::After(0), 9, 99))), [(3, 4), (4, 5)]);
    let first = model.read_log(5 * SECOND, &read(LogStart::After(0), 9, 1));
    assert_eq!((links(&first), first.more), (vec![(3, 4)], true));
    assert_eq!(links(&model.read_log(5 * SECOND, &read(LogStart::Last(9), 1, 99))), [(4, 5)]);
    let old = model.read_log(14 * SECOND, &read(LogStart::After(4), 9, 99));
    assert_eq!((links(&old), old.top.unwrap().sequence), (vec![], 5));
    let epoch = old.top.unwrap().epoch;
    assert_eq!(model.top(24 * SECOND, &TopicPart::log("a")), None, "unused");
    let (again, _) = model.append(25 * SECOND, &append("1", None, None)).unwrap();
    assert!(again.position.epoch != epoch && again.position.sequence == 1);
}

#[test]
fn repetition_has_the_first_answer_and_conditions_need_the_top() {
    let mut model = Model::new(1, Rules { once_window: Duration::from_secs(2), ..Rules::default() });
    let (first, _) = model.append(0, &append("1", Some("x"), Some(Position::default()))).unwrap();
    let (again, notice) = model.append(SECOND, &append("1", Some("x"), Some(Position::default()))).unwrap();
    assert_eq!((again, notice), (LogAppended { repeated: true, ..first }, None));
    let other = model.append(SECOND, &append("2", None, Some(Position { sequence: 9, ..first.position })));
    assert_eq!(other.unwrap_err(), StoreError::OtherTop);
    let (second, _) = model.append(3 * SECOND, &append("2", Some("x"), Some(first.position))).unwrap();
    assert_eq!((second.prev, second.position.sequence, second.repeated), (1, 2, false), "behind the window");
}

#[test]
fn first_write_behind_a_failover_skips_sequences() {
    let mut model = Model::new(1, Rules { jump: Jump::Fixed, ..Rules::default() });
    model.append(0, &append("1", None, None)).unwrap();
    outcome(&mut model, 0, command("k", Some("1"), None));
    let replica = model.clone();
    model.append(0, &append("2", None, None)).unwrap();
    outcome(&mut model, 0, command("k", Some("2"), None));
    let lost = model.top(0, &TopicPart::keys("a")).unwrap();
    model = replica;
    model.fail_over(2);
    assert_eq!(model.key_changes("a", lost), KeyChanges::Unknown);
    let (jumped, _) = model.append(0, &append("3", None, None)).unwrap();
    assert_eq!((jumped.prev, jumped.position.sequence), (1, 1 + SKIPPED));
    assert_eq!(model.append(0, &append("4", None, None)).unwrap().0.position.sequence, 2 + SKIPPED);
    assert_eq!(outcome(&mut model, 0, command("k", Some("3"), None)), KeyOutcome::Changed(1 + SKIPPED));
    assert_eq!(model.key_changes("a", lost), KeyChanges::Unknown);
    let KeyChanges::Since(update) = model.key_changes("a", Position { sequence: 1, ..lost }) else {
        panic!("a position that survived")
    };
    assert!(update.skipped && update.prev == 1 && update.changes.len() == 1);
    for jump in 0..keys::JUMPS_MAX {
        model.fail_over(3 + jump as u64);
        outcome(&mut model, 0, command("k", Some("4"), None));
    }
    let survived = model.key_changes("a", Position { sequence: 1, ..lost });
    assert_eq!(survived, KeyChanges::Unknown, "the first jump is forgotten");
}

#[test]
fn jump_to_the_time_differs_if_the_first_jump_was_lost() {
    let second_jump = |jump| {
        let mut model = Model::new(1, Rules { jump, ..Rules::default() });
        model.append(0, &append("1", None, None)).unwrap();
        let jumps = [2, 3].map(|replication| {
            let mut primary = model.clone();
            primary.fail_over(replication);
            primary.append(replication * SECOND, &append("2", None, None)).unwrap().0.position.sequence
        });
        jumps[0] < jumps[1]
    };
    assert!(second_jump(Jump::ToTime) && !second_jump(Jump::Fixed));
}

#[test]
fn conditions_and_limits_decide_about_writes() {
    use KeyCondition::{At, IfExists, IfNew, Version};
    let mut model = Model::new(1, Rules::default());
    let (missing, notices) = write(&mut model, 0, vec![command("k", Some("1"), Some(IfExists))]);
    assert_eq!((missing.position, notices.len()), (Position::default(), 0), "no topic");
    for (key, value, condition, expected) in [
        ("k", None, None, KeyOutcome::Unchanged),
        ("k", Some("1"), Some(IfNew), KeyOutcome::Changed(1)),
        ("k", Some("2"), Some(IfNew), KeyOutcome::Exists(1)),
        ("k", Some("2"), Some(IfExists), KeyOutcome::Changed(2)),
        ("k", Some("3"), Some(Version(1)), KeyOutcome::OtherVersion(2)),
        ("k", Some("3"), Some(At(Position { epoch: 0, sequence: 2 })), KeyOutcome::OtherVersion(2)),
        ("k", Some("3"), Some(Version(2)), KeyOutcome::Changed(3)),
        ("m", None, Some(Version(2)), KeyOutcome::Missing),
        ("m", Some("123456789"), None, KeyOutcome::Changed(4)),
        ("k", Some("1234"), None, KeyOutcome::TopicFull),
        ("n", Some(""), None, KeyOutcome::TooManyKeys),
        ("k", None, Some(Version(3)), KeyOutcome::Changed(5)),
    ] {
        assert_eq!(outcome(&mut model, 0, command(key, value, condition)), expected, "{key} {value:?}");
    }
    let unconditional = Rules { if_new: false, ..Rules::default() };
    let mut model = Model::new(1, unconditional);
    for version in [1, 2] {
        let created = outcome(&mut model, 0, command("k", Some("1"), Some(IfNew)));
        assert_eq!(created, KeyOutcome::Changed(version));
    }
}

#[test]
fn expired_key_is_none_before_its_removal() {
    let mut model = Model::new(1, Rules::default());
    let ttl = Some(Duration::from_secs(1));
    let brief = |value| KeyCommand { ttl, once: Some("x".into()), ..command("k", Some(value), None) };
    write(&mut model, 0, vec![brief("1"), command("m", Some("1"), None)]);
    assert_eq!(outcome(&mut model, 1, brief("1")), KeyOutcome::Repeated(Some(1)));
    let all = ReadKeys { topic: "a".into(), cursor: None, limit: 1 };
    let page = model.read_keys(SECOND, &all);
    assert_eq!((page.keys.len(), page.cursor.as_deref()), (0, Some(&b"k"[..])));
    let rest = model.read_keys(SECOND, &ReadKeys { cursor: page.cursor, ..all });
    assert_eq!((rest.keys.len(), rest.cursor), (1, None));
    let (written, notices) =
        write(&mut model, SECOND, vec![command("k", Some("2"), Some(KeyCondition::IfNew))]);
    assert_eq!((written.prev, written.outcomes[0]), (3, KeyOutcome::Changed(4)));
    let Notice::Changed { update, .. } = &notices[0] else { panic!("two updates") };
    let removed = StoredKey { key: Arc::from("k"), version: 3, value: None, expiry: None };
    assert_eq!((update.prev, &update.changes[..]), (2, &[removed][..]));
    assert_eq!(model.expire(SECOND), []);
    let after = Position { sequence: 2, ..written.position };
    let KeyChanges::Since(update) = model.key_changes("a", after) else { panic!("it is known") };
    assert_eq!(update.changes.len(), 1, "each key once");
    outcome(&mut model, 2 * SECOND, command("m", None, None));
    outcome(&mut model, 63 * SECOND, command("k", None, None));
    assert_eq!(model.key_changes("a", after), KeyChanges::Unknown, "forgotten");
}

#[test]
fn first_values_and_budgets_end() {
    let mut model = Model::new(1, Rules::default());
    let once = |value: &'static [u8]| OnceRequest {
        name: "n".into(),
        value: Bytes::from_static(value),
        window: Duration::from_secs(1),
    };
    assert_eq!(model.once(0, &once(b"1")), FirstValue::First);
    assert_eq!(model.once(1, &once(b"2")), FirstValue::Value(Bytes::from_static(b"1")));
    assert_eq!(model.once(SECOND, &once(b"2")), FirstValue::First);
    let take = TakeRequest { name: "n".into(), permits: 3, rate: 2.0, burst: 4 };
    assert_eq!([model.take(0, &take), model.take(0, &take), model.take(SECOND, &take)], [3, 1, 2]);
}
