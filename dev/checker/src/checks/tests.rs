//! Histories by hand: for each check, good and bad histories.

use super::*;
use crate::history::{Call, Condition, Entry, EpochSequence, KeyState, KeyWrite, Loss, Outcome, Part, Run};

const SECOND: u64 = 1_000_000;
const LOG: Part = Part { kind: sinews_store::PartKind::Log, topic: 0 };
const KEYS: Part = Part { kind: sinews_store::PartKind::Keys, topic: 1 };

/// Builds a history; each operation takes 10 µs, and begins 100 µs behind the last one.
struct Build {
    history: History,
    now: u64,
    next: u32,
}

fn at(sequence: u64) -> EpochSequence {
    EpochSequence { epoch: 7, sequence }
}

fn entry(prev: u64, sequence: u64, value: u64) -> Entry {
    Entry { sequence, prev, value }
}

fn key(key: u16, version: u64, value: u64) -> KeyState {
    KeyState { key, version, value: Some(value) }
}

fn set(key: u16, value: u64) -> KeyWrite {
    KeyWrite { key, value: Some(value), ttl: None, condition: None, once: None }
}

fn remove(key: u16) -> KeyWrite {
    KeyWrite { value: None, ..set(key, 0) }
}

fn only_if(condition: Condition, write: KeyWrite) -> KeyWrite {
    KeyWrite { condition: Some(condition), ..write }
}

fn build() -> Build {
    let run = Run {
        deadline: 3 * SECOND,
        ttl_resolution: 100_000,
        once_window: 300 * SECOND,
        retained: vec![100],
        lock_topic: Some(1),
        ..Run::default()
    };
    Build { history: History { run, events: vec![] }, now: 0, next: 0 }
}

impl Build {
    fn event(mut self, kind: EventKind) -> Self {
        self.history.push(self.now, kind);
        self.now += 1;
        self
    }

    fn wait(mut self, time: u64) -> Self {
        self.now += time;
        self
    }

    fn call(mut self, client: u16, call: Call) -> Self {
        self.next += 1;
        let id = self.next;
        self.wait(100).event(EventKind::Call { id, node: 0, client, call })
    }

    /// Answers the last operation but `ago`.
    fn answer(self, ago: u32, answer: Answer) -> Self {
        let id = self.next - ago;
        self.wait(10).event(EventKind::Return { id, answer })
    }

    fn append(self, value: u64, prev: u64, sequence: u64) -> Self {
        let appended = Answer::Appended { position: at(sequence), prev, repeated: false };
        self.call(1, Call::Append { topic: 0, value, once: None, if_top: None }).answer(0, appended)
    }

    fn write(self, write: KeyWrite, outcome: Outcome) -> Self {
        self.write_by(1, write, outcome)
    }

    fn write_by(self, client: u16, write: KeyWrite, outcome: Outcome) -> Self {
        let sequence = match outcome {
            Outcome::Changed(version) => version,
            _ => 0,
        };
        let call = Call::WriteKeys { topic: 1, writes: vec![write] };
        let (position, prev) = (at(sequence), sequence.saturating_sub(1));
        self.call(client, call).answer(0, Answer::Written { position, prev, outcomes: vec![outcome] })
    }

    fn unknown(self, write: KeyWrite) -> Self {
        self.call(1, Call::WriteKeys { topic: 1, writes: vec![write] }).answer(0, Answer::Unknown)
    }

    fn read(self, sequence: u64, keys: &[KeyState]) -> Self {
        let keys = Answer::Keys { position: Some(at(sequence)), keys: keys.to_vec() };
        self.call(2, Call::ReadKeys { topic: 1 }).answer(0, keys)
    }

    fn fault(self, loses: Loss) -> Self {
        self.wait(100).event(EventKind::Fault { text: "test".into(), loses: Some(loses) }).wait(100)
    }

    fn subscribe(self, part: Part, after: Option<u64>, complete: bool, sequence: u64) -> Self {
        let (after, position) = (after.map(at), at(sequence));
        self.event(EventKind::Subscribed {
            client: 5,
            node: 0,
            part,
            after,
            complete,
            position,
            keys: vec![],
        })
    }

    fn deliver(self, entry: Entry) -> Self {
        self.event(EventKind::Delivered { client: 5, topic: 0, epoch: 7, entry })
    }

    fn reset(self, part: Part, sequence: u64) -> Self {
        self.event(EventKind::Reset { client: 5, part, position: at(sequence), keys: vec![] })
    }

    fn leave(self, part: Part) -> Self {
        self.event(EventKind::Unsubscribed { client: 5, part })
    }

    fn final_log(self, top: u64, entries: &[Entry]) -> Self {
        self.event(EventKind::FinalLog { topic: 0, top: Some(at(top)), entries: entries.to_vec() })
    }

    fn final_keys(self, top: u64, keys: &[KeyState]) -> Self {
        self.event(EventKind::FinalKeys { topic: 1, top: Some(at(top)), keys: keys.to_vec() })
    }

    fn cached(self, sequence: u64, keys: &[KeyState]) -> Self {
        let keys = keys.to_vec();
        self.event(EventKind::Cached { node: 0, client: 5, topic: 1, position: at(sequence), keys })
    }

    fn use_resource(self, client: u16, token: u64) -> Self {
        self.event(EventKind::Resource { client, key: 1, token: at(token), accepted: true })
    }

    /// The checks that find something, each once.
    fn found(self) -> Vec<Check> {
        let mut found: Vec<Check> =
            check(&self.history).violations.into_iter().map(|violation| violation.check).collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

#[test]
fn run_with_all_kinds_of_events_is_good() {
    let lock = only_if(Condition::IfNew, KeyWrite { ttl: Some(SECOND), ..set(1, 50) });
    let good = build()
        .subscribe(LOG, None, false, 0)
        .append(1, 0, 1)
        .append(2, 1, 2)
        .deliver(entry(0, 1, 1))
        .leave(LOG)
        .subscribe(LOG, Some(1), true, 1)
        .deliver(entry(1, 2, 2))
        .write(lock, Outcome::Changed(1))
        .use_resource(1, 1)
        .write(set(2, 51), Outcome::Changed(2))
        .read(2, &[key(1, 1, 50), key(2, 2, 51)])
        .cached(2, &[key(1, 1, 50), key(2, 2, 51)])
        .final_log(2, &[entry(0, 1, 1), entry(1, 2, 2)])
        .final_keys(2, &[key(1, 1, 50), key(2, 2, 51)]);
    let found = check(&good.history);
    assert_eq!(found.violations, []);
    assert_eq!((found.counts.operations, found.counts.delivered, found.counts.resumed), (5, 2, 1));
}

#[test]
fn sequences_have_one_message_and_grow() {
    assert_eq!(build().append(1, 0, 2).append(2, 0, 1).found(), [Check::Sequences], "not later");
    let two = build().append(1, 0, 1).subscribe(LOG, None, false, 0).append(2, 0, 2).deliver(entry(0, 1, 2));
    assert!(two.found().contains(&Check::Sequences), "two messages");
    let never_sent = build().subscribe(LOG, None, false, 0).deliver(entry(0, 1, 9));
    assert_eq!(never_sent.found(), [Check::Sequences]);
    let versions = build().write(set(1, 1), Outcome::Changed(5)).write(set(2, 2), Outcome::Changed(4));
    assert_eq!(versions.found(), [Check::Sequences]);
    // Two operations at the same time have any order.
    let appended = |sequence, prev| Answer::Appended { position: at(sequence), prev, repeated: false };
    let append = |value| Call::Append { topic: 0, value, once: None, if_top: None };
    let both =
        build().call(1, append(1)).call(2, append(2)).answer(1, appended(2, 1)).answer(0, appended(1, 0));
    assert_eq!(both.found(), []);
}

#[test]
fn client_receives_a_chain() {
    let start = || build().append(1, 0, 1).append(2, 1, 2).append(3, 2, 3).subscribe(LOG, None, false, 0);
    let good =
        start().deliver(entry(0, 1, 1)).leave(LOG).subscribe(LOG, Some(1), true, 1).deliver(entry(1, 2, 2));
    assert_eq!(good.found(), []);
    assert_eq!(start().deliver(entry(0, 1, 1)).deliver(entry(2, 3, 3)).found(), [Check::Resume], "missing");
    assert_eq!(start().deliver(entry(0, 1, 1)).deliver(entry(0, 1, 1)).found(), [Check::Resume], "twice");
    let other = start().deliver(entry(0, 1, 1)).leave(LOG).subscribe(LOG, Some(2), true, 2);
    assert_eq!(other.found(), [Check::Resume], "another position than the last one");
    let skips = start().deliver(entry(0, 1, 1)).leave(LOG).subscribe(LOG, Some(1), true, 2);
    assert_eq!(skips.found(), [Check::Resume], "complete, and not from the position");
    assert_eq!(start().leave(LOG).subscribe(LOG, Some(0), false, 3).found(), [Check::Needless]);
    assert_eq!(start().reset(LOG, 3).found(), [Check::Needless]);
    let changed = |prev, sequence| EventKind::Changed {
        client: 5,
        topic: 1,
        position: at(sequence),
        prev,
        changes: vec![key(1, sequence, sequence)],
    };
    let keys = || build().write(set(1, 1), Outcome::Changed(1)).write(set(1, 2), Outcome::Changed(2));
    let keys = || keys().subscribe(KEYS, None, false, 0);
    assert_eq!(keys().event(changed(0, 1)).event(changed(1, 2)).found(), []);
    assert_eq!(keys().event(changed(1, 2)).found(), [Check::Resume]);
}

#[test]
fn loss_needs_a_fault_and_each_client_a_reset() {
    let entries = [entry(0, 1, 1), entry(1, 9, 3)];
    let start = || build().subscribe(LOG, None, false, 0).append(1, 0, 1).append(2, 1, 2);
    let seen = || start().deliver(entry(0, 1, 1)).deliver(entry(1, 2, 2));
    let told = seen().fault(Loss::Suffix).append(3, 1, 9).reset(LOG, 1).deliver(entry(1, 9, 3));
    assert_eq!(told.found_at(&entries), []);
    let late = seen().fault(Loss::Suffix).append(3, 1, 9);
    assert_eq!(late.found_at(&entries), [Check::Loss, Check::Convergence], "no reset");
    // The client has seen only the surviving message.
    let free = start().deliver(entry(0, 1, 1)).fault(Loss::Suffix).append(3, 1, 9).deliver(entry(1, 9, 3));
    assert_eq!(free.found_at(&entries), []);
    assert_eq!(start().append(3, 1, 9).leave(LOG).found_at(&entries), [Check::Loss], "no fault");
    // Another message has the lost one's sequence.
    let reused = seen().fault(Loss::Suffix).append(3, 1, 2).found_at(&[entry(0, 1, 1), entry(1, 2, 3)]);
    assert_eq!(reused, [Check::Sequences, Check::Loss]);
    let empty =
        seen().fault(Loss::Everything).event(EventKind::FinalLog { topic: 0, top: None, entries: vec![] });
    assert_eq!(empty.found(), [Check::Loss, Check::Convergence]);
    let version = build().write(set(1, 1), Outcome::Changed(1)).write(set(1, 2), Outcome::Changed(2));
    assert_eq!(version.final_keys(1, &[key(1, 1, 1)]).found(), [Check::Loss]);
}

impl Build {
    /// As `found`, after a final log.
    fn found_at(self, entries: &[Entry]) -> Vec<Check> {
        let top = entries.last().map_or(0, |entry| entry.sequence);
        self.final_log(top, entries).found()
    }
}

#[test]
fn write_has_one_effect_and_one_answer() {
    let append = |value, once| Call::Append { topic: 0, value, once, if_top: None };
    let appended = |sequence, prev, repeated| Answer::Appended { position: at(sequence), prev, repeated };
    let named =
        || build().call(1, append(1, Some(1))).answer(0, appended(1, 0, false)).call(1, append(1, Some(1)));
    assert_eq!(named().answer(0, appended(1, 0, true)).found(), []);
    let without_prev = build().append(1, 0, 1).call(1, append(2, Some(1))).answer(0, appended(2, 1, false));
    let without_prev =
        without_prev.append(3, 2, 3).call(1, append(2, Some(1))).answer(0, appended(2, 0, true));
    assert_eq!(without_prev.found(), [], "a repetition need not know its predecessor");
    assert_eq!(named().answer(0, appended(2, 1, false)).found(), [Check::Once]);
    let twice = build().call(1, append(1, None)).answer(0, Answer::Unknown);
    let twice = twice.subscribe(LOG, None, false, 0).deliver(entry(0, 1, 1)).deliver(entry(1, 2, 1));
    assert_eq!(twice.found(), [Check::Once]);
    let once = |value| KeyWrite { once: Some(3), ..set(1, value) };
    let first = || build().write(once(1), Outcome::Changed(1));
    assert_eq!(first().write(once(1), Outcome::Repeated(Some(1))).found(), []);
    assert_eq!(first().write(once(1), Outcome::Repeated(None)).found(), [Check::Once]);
}

#[test]
fn keys_are_registers_with_conditions() {
    use Condition::{At, IfExists, IfNew, Version};
    let start = || build().write(set(1, 1), Outcome::Changed(1));
    let other = At(EpochSequence { epoch: 8, sequence: 1 });
    for (write, outcome, is_good) in [
        (set(1, 2), Outcome::Changed(2), true),
        (remove(1), Outcome::Changed(2), true),
        (remove(1), Outcome::Unchanged, false),
        (remove(2), Outcome::Unchanged, true),
        (only_if(IfNew, set(1, 2)), Outcome::Exists(1), true),
        (only_if(IfNew, set(1, 2)), Outcome::Exists(2), false),
        (only_if(IfNew, set(1, 2)), Outcome::Changed(2), false),
        (only_if(IfNew, set(2, 2)), Outcome::Changed(2), true),
        (only_if(IfNew, set(2, 2)), Outcome::Exists(1), false),
        (only_if(IfExists, set(1, 2)), Outcome::Changed(2), true),
        (only_if(IfExists, set(1, 2)), Outcome::Missing, false),
        (only_if(IfExists, set(2, 2)), Outcome::Missing, true),
        (only_if(Version(1), set(1, 2)), Outcome::Changed(2), true),
        (only_if(Version(1), set(1, 2)), Outcome::OtherVersion(1), false),
        (only_if(Version(4), set(1, 2)), Outcome::OtherVersion(1), true),
        (only_if(Version(4), set(1, 2)), Outcome::Changed(2), false),
        (only_if(At(at(1)), set(1, 2)), Outcome::Changed(2), true),
        (only_if(other, set(1, 2)), Outcome::OtherVersion(1), true),
        (only_if(other, set(1, 2)), Outcome::Changed(2), false),
    ] {
        let expected: &[Check] = if is_good { &[] } else { &[Check::Linearizable] };
        assert_eq!(start().write(write, outcome).found(), expected, "{write:?} {outcome:?}");
    }
    assert_eq!(start().read(1, &[key(1, 1, 1)]).found(), []);
    assert_eq!(start().read(1, &[]).found(), [Check::Linearizable]);
    let old = start().write(set(1, 2), Outcome::Changed(2)).read(2, &[key(1, 1, 1)]);
    assert_eq!(old.found(), [Check::Linearizable], "a stale read");
}

#[test]
fn unknown_writes_take_effect_later_or_never() {
    let start = || build().write(set(1, 1), Outcome::Changed(1)).unknown(set(1, 2));
    assert_eq!(start().read(1, &[key(1, 1, 1)]).read(2, &[key(1, 2, 2)]).found(), []);
    let gone = start().read(2, &[key(1, 2, 2)]).read(1, &[key(1, 1, 1)]);
    assert_eq!(gone.found(), [Check::Linearizable], "a value that comes back");
    let removed = build().write(set(1, 1), Outcome::Changed(1)).unknown(remove(1));
    assert_eq!(removed.write(only_if(Condition::IfNew, set(1, 2)), Outcome::Changed(3)).found(), []);
    // Two clients with overlapping calls.
    let call = |value| Call::WriteKeys { topic: 1, writes: vec![only_if(Condition::IfNew, set(1, value))] };
    let written = |outcome| Answer::Written { position: at(1), prev: 0, outcomes: vec![outcome] };
    let both = |second| {
        let first = written(Outcome::Changed(1));
        build().call(1, call(1)).call(2, call(2)).answer(0, written(second)).answer(1, first).found()
    };
    assert_eq!(both(Outcome::Exists(1)), []);
    assert!(both(Outcome::Changed(2)).contains(&Check::Linearizable));
}

#[test]
fn search_with_too_many_orders_is_counted() {
    // Unknown writes that need a value; with a time to live, none is like another one.
    let found = |ttl: fn(u64) -> Option<u64>| {
        let begin = build().write(set(1, 100), Outcome::Changed(1));
        let unknown = (1..30).fold(begin, |build, value| {
            build.unknown(KeyWrite { ttl: ttl(value), ..only_if(Condition::IfExists, set(1, value)) })
        });
        let found = check(&unknown.read(60, &[key(2, 60, 60)]).read(61, &[key(1, 61, 100)]).history);
        (found.counts.undecided, found.has(Check::Linearizable))
    };
    assert_eq!(found(|_| None), (0, true));
    assert_eq!(found(|value| Some(value * SECOND)), (1, false));
}

#[test]
fn fault_cuts_the_history_of_keys() {
    let start = || build().write(set(1, 1), Outcome::Changed(1)).write(set(1, 2), Outcome::Changed(2));
    assert_eq!(start().fault(Loss::Suffix).read(1, &[key(1, 1, 1)]).found(), []);
    assert_eq!(start().fault(Loss::Suffix).read(1, &[]).found(), []);
    assert_eq!(
        start().fault(Loss::Part(Part::keys(9))).read(1, &[key(1, 1, 1)]).found(),
        [Check::Linearizable]
    );
    assert_eq!(start().fault(Loss::Everything).read(1, &[key(1, 1, 1)]).found(), [Check::Linearizable]);
    let after = start().fault(Loss::Suffix).read(1, &[key(1, 1, 1)]).read(2, &[key(1, 2, 2)]);
    assert_eq!(after.found(), [Check::Linearizable], "it was lost");
}

#[test]
fn keys_expire_in_time_and_not_earlier() {
    let brief = KeyWrite { ttl: Some(SECOND), ..set(1, 1) };
    let start = || build().write(brief, Outcome::Changed(1));
    assert_eq!(start().read(1, &[]).found(), [Check::Linearizable], "too early at the engine");
    assert_eq!(start().wait(2 * SECOND).read(1, &[key(1, 1, 1)]).found(), [Check::Linearizable], "too late");
    let renewed = start().wait(SECOND).write(only_if(Condition::IfNew, set(1, 2)), Outcome::Changed(2));
    assert_eq!(renewed.found(), []);
    let early = start().write(only_if(Condition::IfNew, set(1, 2)), Outcome::Changed(2));
    assert_eq!(early.found(), [Check::Linearizable]);
    assert_eq!(start().wait(2 * SECOND).cached(1, &[key(1, 1, 1)]).found(), []);
    assert_eq!(
        start().wait(3 * SECOND).cached(1, &[key(1, 1, 1)]).found(),
        [Check::Ttl],
        "too late at a node"
    );
    assert_eq!(start().cached(1, &[]).found(), [Check::Ttl], "too early at a node");
    assert_eq!(start().cached(0, &[]).found(), [Check::Sequences], "the node acknowledged the write");
    let back = start().write(set(2, 2), Outcome::Changed(2)).cached(2, &[key(1, 1, 1), key(2, 2, 2)]);
    assert_eq!(back.cached(1, &[key(1, 1, 1)]).found(), [Check::Sequences], "the copy goes back");
}

#[test]
fn nodes_and_clients_converge() {
    let start = || build().write(set(1, 1), Outcome::Changed(1)).subscribe(KEYS, None, false, 0);
    let changed = |value| EventKind::Changed {
        client: 5,
        topic: 1,
        position: at(1),
        prev: 0,
        changes: vec![KeyState { value, ..key(1, 1, 1) }],
    };
    let end = |history: Build| history.final_keys(1, &[key(1, 1, 1)]);
    let copy = |keys: &[KeyState], sequence| EventKind::FinalCopy {
        node: 2,
        part: KEYS,
        position: at(sequence),
        keys: keys.to_vec(),
    };
    let good = start().event(changed(Some(1)));
    assert_eq!(end(good).event(copy(&[key(1, 1, 1)], 1)).found(), []);
    assert_eq!(end(start()).found(), [Check::Convergence], "a client that missed it");
    assert_eq!(end(start().leave(KEYS)).found(), []);
    let node = |keys: &[KeyState], sequence| end(start().leave(KEYS)).event(copy(keys, sequence)).found();
    assert_eq!(node(&[], 0), [Check::Convergence]);
    assert_eq!(node(&[], 1), [Check::Convergence]);
}

#[test]
fn lock_has_one_holder() {
    let lock = |value| only_if(Condition::IfNew, KeyWrite { ttl: Some(SECOND), ..set(1, value) });
    let unlock = |token| only_if(Condition::Version(token), remove(1));
    let start = || build().write_by(1, lock(1), Outcome::Changed(1));
    let released =
        start().write_by(1, unlock(1), Outcome::Changed(2)).write_by(2, lock(2), Outcome::Changed(3));
    assert_eq!(released.found(), []);
    let both = start().write_by(2, lock(2), Outcome::Changed(2));
    assert_eq!(both.found(), [Check::Linearizable, Check::Exclusion]);
    let expired = start().wait(SECOND).write_by(2, lock(2), Outcome::Changed(2));
    assert_eq!(expired.found(), []);
    let lost = start().fault(Loss::Suffix).write_by(2, lock(2), Outcome::Changed(9));
    assert_eq!(lost.found(), [], "the token tells");
    let reused = start().fault(Loss::Suffix).write_by(2, lock(2), Outcome::Changed(1));
    assert!(reused.found().contains(&Check::Exclusion));
    assert_eq!(build().use_resource(1, 1).use_resource(2, 3).found(), []);
    assert_eq!(build().use_resource(1, 3).use_resource(2, 1).found(), [Check::Exclusion]);
}

#[test]
fn answers_come_before_the_deadline() {
    let call = || build().call(1, Call::ReadKeys { topic: 1 });
    let failed = || Answer::Failed { reason: "away".into() };
    assert_eq!(call().wait(4 * SECOND - 20).answer(0, failed()).found(), []);
    assert_eq!(call().wait(4 * SECOND).answer(0, failed()).found(), [Check::Bounds]);
    assert_eq!(call().found(), []);
    assert_eq!(call().wait(5 * SECOND).event(EventKind::Healed).found(), [Check::Bounds], "never");
}

#[test]
fn expired_key_may_have_no_value_before_its_removal_has_a_version() {
    let gone = KeyState { key: 1, version: 1, value: None };
    let seen = |ttl, wait, changes: KeyState| {
        let changes = vec![changes];
        let changed = EventKind::Changed { client: 5, topic: 1, position: at(1), prev: 0, changes };
        let written = build().write(KeyWrite { ttl, ..set(1, 50) }, Outcome::Changed(1));
        let subscribed = written.wait(wait).subscribe(KEYS, None, false, 0).event(changed);
        subscribed.final_keys(1, &[]).found()
    };
    assert_eq!(seen(Some(SECOND), SECOND, gone), []);
    assert_eq!(seen(Some(SECOND), 10, gone), [Check::Sequences], "too early");
    assert!(seen(None, SECOND, gone).contains(&Check::Sequences), "it never expires");
    let other = KeyState { key: 2, ..gone };
    assert!(seen(Some(SECOND), SECOND, other).contains(&Check::Sequences), "another key");
}

#[test]
fn stream_of_keys_may_drop_replaced_changes_and_store_removals_twice() {
    let run = |keys_are_stream: bool, build: Build| {
        let mut history = build.history;
        history.run.keys_are_stream = keys_are_stream;
        Build { history, ..build }.found()
    };
    // The change with the sequence 1 is not known to have a successor.
    let written = |value, sequence, prev| {
        let outcomes = vec![Outcome::Changed(sequence)];
        (set(1, value), Answer::Written { position: at(sequence), prev, outcomes })
    };
    let replaced = || {
        [written(50, 1, 0), written(51, 2, 0)].into_iter().fold(build(), |build, (write, answer)| {
            build.call(1, Call::WriteKeys { topic: 1, writes: vec![write] }).answer(0, answer)
        })
    };
    assert_eq!(run(true, replaced().final_keys(2, &[key(1, 2, 51)])), []);
    assert_eq!(run(false, replaced().final_keys(2, &[key(1, 2, 51)])), [Check::Loss]);
    let twice = || {
        let set = build().write(set(1, 50), Outcome::Changed(1));
        set.write(remove(1), Outcome::Changed(2)).write(remove(1), Outcome::Changed(3))
    };
    assert_eq!(run(true, twice()), []);
    assert_eq!(run(false, twice()), [Check::Linearizable]);
}

#[test]
fn answer_without_a_predecessor_ends_no_chain() {
    let writes = vec![set(1, 51), set(2, 52)];
    let outcomes = vec![Outcome::Changed(2), Outcome::Changed(3)];
    let both = Answer::Written { position: at(3), prev: 3, outcomes };
    let before = build().write(set(1, 50), Outcome::Changed(1));
    let written = before.call(1, Call::WriteKeys { topic: 1, writes }).answer(0, both);
    assert_eq!(written.final_keys(3, &[key(1, 2, 51), key(2, 3, 52)]).found(), []);
}
