//! The topics and patterns that this node subscribes to at the broker: those with subscribers, and those with a history.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sinews_server::SubscriptionObserver;

use super::outbox::Outbox;
use crate::topics::subscribed::public_form;

/// The subscriptions of this node at the broker.
#[derive(Debug)]
pub(super) struct Interest {
    outbox: Arc<Outbox>,
    /// Patterns with a permanent subscription, each once.
    retained: BTreeSet<Box<str>>,
    state: Mutex<InterestState>,
}

#[derive(Debug, Default)]
struct InterestState {
    /// Names are chosen by clients, so their hash is keyed.
    names: HashMap<Box<str>, Interested>,
    /// Id of the last subscription.
    last: u64,
}

/// Subscription to a topic or pattern.
#[derive(Debug)]
struct Interested {
    /// Forms with subscribers, as a bit each; and the bit of a permanent subscription.
    forms: u8,
    id: u64,
}

/// The bit of a subscription that never ends.
const PERMANENT: u8 = 1 << 7;

impl Interest {
    /// Subscribes to these patterns for as long as the node runs: topics whose messages it retains.
    pub(super) fn new(outbox: Arc<Outbox>, retained: &[String]) -> Self {
        let retained: BTreeSet<Box<str>> = retained.iter().map(|pattern| pattern.as_str().into()).collect();
        let interest = Self { outbox, retained, state: Mutex::default() };
        interest.retained.iter().for_each(|pattern| interest.add(pattern, PERMANENT));
        interest
    }

    /// Writes all subscriptions, and opens the outbox: no subscription is missed in between.
    pub(super) fn resume(&self, max_payload: usize, more: &[(&str, u64)]) {
        let state = self.lock();
        self.outbox.command(|kind, out| {
            for (subject, id) in more {
                kind.subscribe(out, (subject, false), *id);
            }
            for (name, known) in &state.names {
                let (subject, is_pattern) = self.outbox.subjects.of_subscription(name);
                kind.subscribe(out, (&subject, is_pattern), known.id);
            }
        });
        self.outbox.open(max_payload);
    }

    /// Number of topics and patterns with subscribers.
    pub(super) fn len(&self) -> usize {
        let state = self.lock();
        let retained = self.retained.iter().filter_map(|pattern| state.names.get(&**pattern));
        state.names.len() - retained.filter(|known| known.forms == PERMANENT).count()
    }

    fn add(&self, name: &str, form: u8) {
        let mut state = self.lock();
        if let Some(known) = state.names.get_mut(name) {
            known.forms |= form;
            return;
        }
        state.last += 1;
        let id = FIRST + state.last;
        state.names.insert(name.into(), Interested { forms: form, id });
        if self.outbox.is_open() {
            let (subject, is_pattern) = self.outbox.subjects.of_subscription(name);
            self.outbox.command(|kind, out| kind.subscribe(out, (&subject, is_pattern), id));
        }
    }

    fn remove(&self, name: &str, form: u8) {
        let mut state = self.lock();
        let Some(known) = state.names.get_mut(name) else { return };
        known.forms &= !form;
        if known.forms != 0 {
            return;
        }
        let id = known.id;
        state.names.remove(name);
        if self.outbox.is_open() {
            let (subject, is_pattern) = self.outbox.subjects.of_subscription(name);
            self.outbox.command(|kind, out| kind.unsubscribe(out, (&subject, is_pattern), id));
        }
    }

    fn lock(&self) -> MutexGuard<'_, InterestState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ids up to this one are for the subjects of the node.
const FIRST: u64 = 16;

impl SubscriptionObserver for Interest {
    fn subscribed(&self, name: &Arc<str>) {
        if let Some((name, form)) = public_form(name) {
            self.add(name, form);
        }
    }

    fn unsubscribed(&self, name: &Arc<str>) {
        if let Some((name, form)) = public_form(name) {
            self.remove(name, form);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::message::NodeId;
    use crate::cluster::options::BrokerKind;
    use crate::cluster::subject::Subjects;

    #[test]
    fn broker_subscriptions_follow_the_subscribers_of_both_forms() {
        let (kind, node) = (BrokerKind::Nats, NodeId { id: 1, start: 1 });
        let outbox = Arc::new(Outbox::new(kind, node, Subjects::new(kind, "p")));
        let interest = Interest::new(Arc::clone(&outbox), &["kept.>".to_owned()]);
        let taken = || {
            let mut out = Vec::new();
            outbox.take(&mut out, 0);
            String::from_utf8(out).unwrap()
        };
        interest.subscribed(&"j.a".into());
        assert_eq!(taken(), "", "the broker is away");
        interest.resume(100, &[("p.all", 1)]);
        let resumed = taken();
        let lines: BTreeSet<&str> = resumed.lines().collect();
        assert_eq!(
            lines.into_iter().collect::<Vec<_>>(),
            ["SUB p.all 1", "SUB p.t.a 18", "SUB p.t.kept.> 17"]
        );
        for name in ["r.a", "j.b.*", "m.feed", "j.kept.>"] {
            interest.subscribed(&name.into());
        }
        assert_eq!(taken(), "SUB p.t.b.* 19\r\n");
        for name in ["j.a", "j.a", "j.b.*", "j.kept.>", "j.unknown"] {
            interest.unsubscribed(&name.into());
        }
        assert_eq!(taken(), "UNSUB 19\r\n");
        assert_eq!(interest.len(), 1);
        interest.unsubscribed(&"r.a".into());
        assert_eq!((taken(), interest.len()), ("UNSUB 18\r\n".to_owned(), 0), "nothing is only retained");
        interest.subscribed(&"j.kept.>".into());
        assert_eq!(interest.len(), 1);
    }
}
