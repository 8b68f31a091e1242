//! Subscriptions of one thread's connections to keys, in groups that receive the same updates.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use sinews_engine::ConnId;
use sinews_session::Prepared;
use slab::Slab;

use super::topic::KeyedTopic;

/// Subscriptions to keys, and scheduled updates.
#[derive(Debug, Default)]
pub(crate) struct LocalKeyed {
    pub(super) groups: Slab<KeyedGroup>,
    /// Groups of each topic. Names are chosen by clients, so their hash is keyed.
    pub(super) by_topic: HashMap<Arc<str>, Vec<usize>>,
    pub(super) conns: FxHashMap<ConnId, Vec<KeyedMember>>,
    /// Groups with an update to send.
    pub(super) due: VecDeque<usize>,
    /// Groups whose keys have changed during their delivery: due in the next turn, so that other work gets its turn.
    pub(super) due_next_turn: Vec<usize>,
    /// An update interrupted by the budget of the turn.
    pub(super) partial: Option<KeyedDelivery>,
    timers: BinaryHeap<Reverse<Timer>>,
    /// When the loop's timer fires.
    armed: Option<Instant>,
    /// Connections with their first subscription, since the worker took them.
    pub(super) joined: Vec<ConnId>,
    /// Subscriber list of the last delivery, for reuse.
    pub(super) scratch: Vec<ConnId>,
}

/// Subscribers of a topic with the same filter and interval.
#[derive(Debug)]
pub(super) struct KeyedGroup {
    pub(super) topic: Arc<KeyedTopic>,
    pub(super) filter: Option<Box<str>>,
    pub(super) interval: Option<Duration>,
    /// Cursor: subscribers without a reader of their own have the changes up to here.
    pub(super) cursor: u64,
    /// Cursor at the end of the update that is being sent.
    pub(super) target: u64,
    /// When the next update may be sent.
    pub(super) next: Instant,
    /// It is in `due`, in `timers` or in `partial`: its index must not be reused.
    pub(super) is_scheduled: bool,
    pub(super) subscribers: Vec<ConnId>,
}

/// Subscription of a connection.
#[derive(Debug)]
pub(super) struct KeyedMember {
    pub(super) group: usize,
    /// Index among the group's subscribers.
    pub(super) at: usize,
    /// Cursor of the topic when it subscribed.
    pub(super) joined: u64,
}

/// Update on its way to the subscribers of a group.
#[derive(Debug)]
pub(crate) struct KeyedDelivery {
    pub(crate) group: usize,
    /// Cursor: the subscribers have the changes up to here.
    pub(crate) after: u64,
    /// `None`: they need a snapshot.
    pub(crate) message: Option<Prepared>,
    pub(crate) subscribers: Vec<ConnId>,
    /// Index of the next subscriber.
    pub(crate) next: usize,
    /// The delivery has taken more than one turn.
    pub(crate) split: bool,
}

#[derive(Debug)]
pub(super) struct Timer {
    due: Instant,
    pub(super) of: TimerOf,
}

#[derive(Clone, Debug)]
pub(super) enum TimerOf {
    Group(usize),
    /// Expired keys.
    Topic(Arc<KeyedTopic>),
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.due.cmp(&other.due)
    }
}

impl LocalKeyed {
    /// Schedules the next update of a group.
    pub(super) fn schedule(&mut self, group: usize, now: Instant) {
        let Some(found) = self.groups.get_mut(group) else { return };
        if std::mem::replace(&mut found.is_scheduled, true) {
            return;
        }
        if found.interval.is_some() && found.next > now {
            let due = found.next;
            self.set_timer(due, TimerOf::Group(group));
        } else {
            self.due.push_back(group);
        }
    }

    /// Schedules a group whose keys have changed during its delivery.
    pub(super) fn schedule_next_turn(&mut self, group: usize) {
        let Some(found) = self.groups.get_mut(group) else { return };
        found.is_scheduled = true;
        if found.interval.is_some() {
            let due = found.next;
            self.set_timer(due, TimerOf::Group(group));
        } else {
            self.due_next_turn.push(group);
        }
    }

    pub(super) fn set_timer(&mut self, due: Instant, of: TimerOf) {
        self.timers.push(Reverse(Timer { due, of }));
    }

    /// Returns the next timer that is due.
    pub(super) fn pop_timer(&mut self, now: Instant) -> Option<(Instant, TimerOf)> {
        let Reverse(first) = self.timers.peek()?;
        if first.due > now {
            return None;
        }
        self.timers.pop().map(|Reverse(timer)| (timer.due, timer.of))
    }

    /// Returns whether updates are due, or the loop's timer is to be set earlier.
    #[inline]
    pub(super) fn needs_call(&self, now: Instant) -> bool {
        if !self.due.is_empty() || self.partial.is_some() {
            return true;
        }
        let Some(Reverse(first)) = self.timers.peek() else { return false };
        first.due <= now || self.armed.is_none_or(|armed| armed > first.due)
    }

    /// Returns when to set the loop's timer.
    pub(super) fn arm(&mut self) -> Option<Instant> {
        self.armed = self.timers.peek().map(|Reverse(first)| first.due);
        self.armed
    }

    /// Returns the groups of a topic.
    pub(super) fn groups_of(&self, topic: &str) -> &[usize] {
        self.by_topic.get(topic).map_or(&[], |groups| &**groups)
    }

    /// Returns a connection's subscription to a topic, as an index of its list.
    pub(super) fn find(&self, conn: ConnId, topic: &str) -> Option<usize> {
        let list = self.conns.get(&conn)?;
        list.iter().position(|member| &*self.groups[member.group].topic.name == topic)
    }

    pub(super) fn member(&self, conn: ConnId, group: usize) -> Option<&KeyedMember> {
        self.conns.get(&conn)?.iter().find(|member| member.group == group)
    }

    /// Adds a subscriber to a group.
    pub(super) fn add(&mut self, group: usize, conn: ConnId, joined: u64) {
        let subscribers = &mut self.groups[group].subscribers;
        self.conns.entry(conn).or_default().push(KeyedMember { group, at: subscribers.len(), joined });
        subscribers.push(conn);
    }

    /// Removes a subscriber from its group. Returns the topic.
    pub(super) fn remove(&mut self, conn: ConnId, index: usize) -> Option<Arc<KeyedTopic>> {
        let list = self.conns.get_mut(&conn)?;
        let KeyedMember { group, at, .. } = list.swap_remove(index);
        if list.is_empty() {
            self.conns.remove(&conn);
        }
        let found = &mut self.groups[group];
        found.subscribers.swap_remove(at);
        if let Some(moved) = found.subscribers.get(at) {
            let members = self.conns.get_mut(moved).into_iter().flatten();
            members.filter(|member| member.group == group).for_each(|member| member.at = at);
        }
        let topic = Arc::clone(&found.topic);
        self.prune(group);
        Some(topic)
    }

    /// Removes a group without subscribers, unless it is scheduled.
    pub(super) fn prune(&mut self, group: usize) {
        if !self.groups.get(group).is_some_and(|group| group.subscribers.is_empty() && !group.is_scheduled) {
            return;
        }
        let topic = self.groups.remove(group).topic;
        if let Some(groups) = self.by_topic.get_mut(&topic.name) {
            groups.retain(|known| *known != group);
            if groups.is_empty() {
                self.by_topic.remove(&topic.name);
            }
        }
    }
}
