//! The topics and patterns that this node subscribes to at the broker: those with subscribers, and those with a
//! history.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::outbox::Outbox;
use crate::topics::subscribed::TopicObserver;

/// This node's subscriptions at the broker.
#[derive(Debug)]
pub(super) struct Interest {
    outbox: Arc<Outbox>,
    /// Patterns with a permanent subscription, each once.
    retained: BTreeSet<Box<str>>,
    state: Mutex<InterestState>,
    /// Rejected subscriptions. Subscribers read it without the lock.
    rejected: AtomicUsize,
}

#[derive(Debug, Default)]
struct InterestState {
    /// Names are chosen by clients, so their hash is keyed.
    names: HashMap<Arc<str>, Interested>,
    /// Id of the last subscription.
    last: u64,
    /// Subscription names, by their ids.
    by_id: HashMap<u64, Arc<str>>,
    /// Ids of subscriptions that were not sent since the login.
    unsent: VecDeque<u64>,
    /// Id of the last subscription in a batch without an answer.
    batch_end: Option<u64>,
}

/// Maximum topics and patterns in a batch after a login: some tens of KiB of commands, which delay other messages by
/// less than a millisecond at the broker.
const BATCH_MAX: usize = 512;

/// Subscription to a topic or pattern.
#[derive(Debug)]
struct Interested {
    /// Encodings with subscribers, as a bit each; and the bit for a permanent subscription.
    encodings: u8,
    id: u64,
    /// The broker rejects the subscription.
    is_rejected: bool,
}

/// A subscription that the broker rejects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RejectedSubscription {
    pub(super) name: Arc<str>,
    /// It lasts as long as the node runs: this node retains these topics' messages.
    pub(super) is_permanent: bool,
}

/// The bit for a subscription that never ends.
const PERMANENT: u8 = 1 << 7;

impl Interest {
    /// Subscribes to these patterns for as long as the node runs: topics whose messages it retains.
    pub(super) fn new(outbox: Arc<Outbox>, retained: &[String]) -> Self {
        let retained: BTreeSet<Box<str>> = retained.iter().map(|pattern| pattern.as_str().into()).collect();
        let interest = Self { outbox, retained, state: Mutex::default(), rejected: AtomicUsize::new(0) };
        interest.retained.iter().for_each(|pattern| interest.add(pattern, PERMANENT));
        interest
    }

    /// Writes the first batch of subscriptions, and opens the outbox: no subscription is missed in between.
    /// [`subscribe_batch`](Self::subscribe_batch) writes the other batches.
    pub(super) fn resume(&self, max_payload: usize, more: &[(&str, u64)]) {
        let mut state = self.lock();
        for (subject, id) in more {
            self.outbox.subscribe(subject, false, *id);
        }
        self.rejected.store(0, Ordering::Release);
        let mut ids: Vec<(bool, u64)> = Vec::with_capacity(state.names.len());
        for known in state.names.values_mut() {
            // The rights may have changed.
            known.is_rejected = false;
            ids.push((known.encodings & PERMANENT == 0, known.id));
        }
        // Topics with a history precede topics that only have subscribers.
        ids.sort_unstable();
        state.unsent = ids.into_iter().map(|(_, id)| id).collect();
        self.send_batch(&mut state);
        self.outbox.open(max_payload);
    }

    /// Writes the next batch of subscriptions after a login.
    pub(super) fn subscribe_batch(&self) {
        if self.outbox.is_open() {
            self.send_batch(&mut self.lock());
        }
    }

    fn send_batch(&self, state: &mut InterestState) {
        state.batch_end = None;
        let mut sent = 0;
        while sent < BATCH_MAX
            && let Some(id) = state.unsent.pop_front()
        {
            // Some have ended meanwhile.
            let Some(name) = state.by_id.get(&id) else { continue };
            let (subject, is_pattern) = self.outbox.subjects.for_subscription(name);
            self.outbox.subscribe(&subject, is_pattern, id);
            state.batch_end = Some(id);
            sent += 1;
        }
    }

    /// Returns whether the broker has answered the last batch with this subscription's result, and another batch is
    /// due.
    pub(super) fn ends_batch(&self, id: u64) -> bool {
        let mut state = self.lock();
        let is_end = state.batch_end == Some(id);
        if is_end {
            state.batch_end = None;
        }
        is_end && !state.unsent.is_empty()
    }

    /// Returns whether the broker has all subscriptions since the login, as far as it answers.
    pub(super) fn is_resumed(&self) -> bool {
        let state = self.lock();
        state.unsent.is_empty() && state.batch_end.is_none()
    }

    /// Returns how many topics and patterns have subscribers.
    pub(super) fn len(&self) -> usize {
        let state = self.lock();
        let retained = self.retained.iter().filter_map(|pattern| state.names.get(&**pattern));
        state.names.len() - retained.filter(|known| known.encodings == PERMANENT).count()
    }

    /// Returns how many subscriptions the broker rejects.
    pub(super) fn rejected(&self) -> usize {
        self.rejected.load(Ordering::Acquire)
    }

    /// Notes that the broker rejects a subscription. `None`: it has ended.
    pub(super) fn reject(&self, id: u64) -> Option<RejectedSubscription> {
        let mut state = self.lock();
        let name = state.by_id.get(&id)?.clone();
        let known = state.names.get_mut(&name)?;
        let is_permanent = known.encodings & PERMANENT != 0;
        let is_new = !std::mem::replace(&mut known.is_rejected, true);
        self.rejected.fetch_add(usize::from(is_new), Ordering::AcqRel);
        Some(RejectedSubscription { name, is_permanent })
    }

    /// Subscribes again if the broker has rejected the subscription.
    pub(super) fn retry_rejected(&self, name: &str) {
        if self.rejected() == 0 {
            return;
        }
        let mut state = self.lock();
        let Some(known) = state.names.get_mut(name).filter(|known| known.is_rejected) else { return };
        known.is_rejected = false;
        let id = known.id;
        self.rejected.fetch_sub(1, Ordering::AcqRel);
        self.subscribe(name, id);
    }

    fn add(&self, name: &str, encodings: u8) {
        let mut state = self.lock();
        if let Some(known) = state.names.get_mut(name) {
            known.encodings |= encodings;
            return;
        }
        state.last += 1;
        let id = FIRST + state.last;
        let shared: Arc<str> = name.into();
        state.names.insert(Arc::clone(&shared), Interested { encodings, id, is_rejected: false });
        state.by_id.insert(id, shared);
        self.subscribe(name, id);
    }

    fn subscribe(&self, name: &str, id: u64) {
        if self.outbox.is_open() {
            let (subject, is_pattern) = self.outbox.subjects.for_subscription(name);
            self.outbox.subscribe(&subject, is_pattern, id);
        }
    }

    fn remove(&self, name: &str, encodings: u8) {
        let mut state = self.lock();
        let Some(known) = state.names.get_mut(name) else { return };
        known.encodings &= !encodings;
        if known.encodings != 0 {
            return;
        }
        let (id, is_rejected) = (known.id, known.is_rejected);
        state.names.remove(name);
        state.by_id.remove(&id);
        self.rejected.fetch_sub(usize::from(is_rejected), Ordering::AcqRel);
        if self.outbox.is_open() {
            let (subject, is_pattern) = self.outbox.subjects.for_subscription(name);
            self.outbox.unsubscribe(&subject, is_pattern, id);
        }
    }

    fn lock(&self) -> MutexGuard<'_, InterestState> {
        self.state.lock()
    }
}

/// Ids of the subscriptions to the subjects for all nodes and for this node, without which it is no cluster node.
pub(super) const ALL_NODES: u64 = 1;
pub(super) const THIS_NODE: u64 = 2;

/// Ids up to this one are for the node's subjects.
const FIRST: u64 = 16;

impl TopicObserver for Interest {
    fn subscribed(&self, name: &str, encoding: u8) {
        self.add(name, encoding);
    }

    fn unsubscribed(&self, name: &str, encoding: u8) {
        self.remove(name, encoding);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::message::NodeId;
    use crate::cluster::options::BrokerKind;
    use crate::cluster::outbox::PingPurpose;
    use crate::cluster::subject::Subjects;

    #[test]
    fn broker_subscriptions_follow_the_subscribers_in_all_encodings() {
        let (kind, node) = (BrokerKind::Nats, NodeId { id: 1, start: 1 });
        let outbox = Arc::new(Outbox::new(kind, node, Subjects::new(kind, "p")));
        let interest = Interest::new(Arc::clone(&outbox), &["kept.>".to_owned()]);
        let taken = || {
            let mut out = Vec::new();
            outbox.take(&mut out, 0);
            String::from_utf8(out).unwrap()
        };
        interest.subscribed("a", 1);
        assert_eq!(taken(), "", "the broker is away");
        interest.resume(100, &[("p.all", 1)]);
        let resumed = taken();
        let lines: BTreeSet<&str> = resumed.lines().filter(|line| *line != "PING").collect();
        assert_eq!(
            lines.into_iter().collect::<Vec<_>>(),
            ["SUB p.all 1", "SUB p.t.a 18", "SUB p.t.kept.> 17"]
        );
        for (name, encoding) in [("a", 2), ("b.*", 1), ("kept.>", 1)] {
            interest.subscribed(name, encoding);
        }
        assert_eq!(taken(), "SUB p.t.b.* 19\r\nPING\r\n");
        for name in ["a", "a", "b.*", "kept.>", "unknown"] {
            interest.unsubscribed(name, 1);
        }
        assert_eq!(taken(), "UNSUB 19\r\n");
        assert_eq!(interest.len(), 1);
        interest.unsubscribed("a", 2);
        assert_eq!((taken(), interest.len()), ("UNSUB 18\r\n".to_owned(), 0), "nothing is only retained");
        interest.subscribed("kept.>", 1);
        assert_eq!(interest.len(), 1);
    }

    #[test]
    fn subscriptions_are_resumed_in_batches_with_histories_first() {
        let (kind, node) = (BrokerKind::Nats, NodeId { id: 1, start: 1 });
        let outbox = Arc::new(Outbox::new(kind, node, Subjects::new(kind, "p")));
        let interest = Interest::new(Arc::clone(&outbox), &["kept.>".to_owned()]);
        let taken = || {
            let mut out = Vec::new();
            outbox.take(&mut out, 0);
            let text = String::from_utf8(out).unwrap();
            text.lines().filter(|line| *line != "PING").map(str::to_owned).collect::<Vec<_>>()
        };
        let last_id = |lines: &[String]| lines.last().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
        (0..3 * BATCH_MAX - 1).for_each(|at| interest.subscribed(&format!("t{at}"), 1));
        interest.resume(100, &[]);
        let first = taken();
        assert_eq!((first.len(), &*first[0]), (BATCH_MAX, "SUB p.t.kept.> 17"));
        let end: u64 = last_id(&first);
        assert!(!interest.is_resumed() && !interest.ends_batch(end - 1) && interest.ends_batch(end));
        // A new topic needs no batch, and a topic that has ended is not resumed.
        interest.subscribed("new", 1);
        assert_eq!(taken().len(), 1);
        interest.unsubscribed(&format!("t{}", 3 * BATCH_MAX - 2), 1);
        taken();
        interest.subscribe_batch();
        let second = taken();
        assert_eq!(second.len(), BATCH_MAX);
        assert!(interest.ends_batch(last_id(&second)));
        interest.subscribe_batch();
        let third = taken();
        assert_eq!(third.len(), BATCH_MAX - 1);
        assert!(!interest.is_resumed(), "the broker has not answered");
        assert!(!interest.ends_batch(last_id(&third)) && interest.is_resumed(), "no further batch is due");
        let mut all: Vec<_> = [first, second, third].concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 3 * BATCH_MAX - 1, "each once");
        // The connection is lost between two batches.
        interest.resume(100, &[]);
        taken();
        outbox.close();
        interest.subscribe_batch();
        assert!(taken().is_empty());
        interest.resume(100, &[]);
        assert_eq!(taken().len(), BATCH_MAX);
    }

    #[test]
    fn rejected_subscription_is_tried_again_for_each_new_subscriber() {
        let (kind, node) = (BrokerKind::Nats, NodeId { id: 1, start: 1 });
        let outbox = Arc::new(Outbox::new(kind, node, Subjects::new(kind, "p")));
        let interest = Interest::new(Arc::clone(&outbox), &["kept.>".to_owned()]);
        outbox.open(100);
        let taken = || {
            let mut out = Vec::new();
            outbox.take(&mut out, 0);
            String::from_utf8(out).unwrap()
        };
        interest.subscribed("a", 1);
        assert_eq!(taken(), "SUB p.t.a 18\r\nPING\r\n");
        assert_eq!(outbox.take_pings(None), [PingPurpose::Subscription(18)]);
        let rejected =
            |name: &str, is_permanent| Some(RejectedSubscription { name: name.into(), is_permanent });
        assert_eq!(interest.reject(18), rejected("a", false));
        assert_eq!((interest.reject(17), interest.rejected()), (rejected("kept.>", true), 2));
        interest.subscribed("a", 2);
        ["a", "b", "a"].into_iter().for_each(|name| interest.retry_rejected(name));
        assert_eq!((taken(), interest.rejected()), ("SUB p.t.a 18\r\nPING\r\n".to_owned(), 1));
        assert_eq!(interest.reject(18), rejected("a", false));
        for encoding in [1, 2] {
            interest.unsubscribed("a", encoding);
        }
        assert_eq!((interest.rejected(), interest.reject(18)), (1, None), "it has ended");
        interest.resume(100, &[]);
        assert_eq!(interest.rejected(), 0, "each login tries all again");
    }
}
