//! Runs: a turn's publications, encoded once for all subscribers that get the same ones.
//!
//! A group of publications has the same subscribers. A subscriber in several groups gets a run that continues its
//! earlier groups' run: subscribers with the same groups share it.
//!
//! ```text
//!   group 1: a, b   of A, B, C          run 1: a, b          of A
//!   group 2: c      of B, C, D    ─▶    run 2: run 1, c      of B, C
//!                                       run 3: c             of D
//! ```

use std::ops::Range;

use bytes::Bytes;
use sinews_engine::ConnId;

use crate::topics::{QueuedPublication, RuleId};

/// Maximum bytes in a run: about as much as a connection may have queued by default.
pub(super) const RUN_MAX: usize = 60 << 10;

/// Maximum runs in a turn. Each is encoded separately, so many runs with few subscribers each save nothing.
const RUNS_MAX: usize = 64;

/// A turn's runs.
#[derive(Default)]
pub(super) struct Runs {
    /// The turn's publications, in order.
    publications: Vec<(QueuedPublication, RuleId)>,
    list: Vec<Run>,
    /// Subscribers, ordered by their first publication.
    subscribers: Vec<ConnId>,
    /// Some subscribers have got their runs, and others wait for a further step.
    is_split: bool,
    /// By connection index: its run's number, from 1 on. Unused while there is one group.
    places: Vec<u32>,
    /// The same, by the slot of a socket on a stream.
    stream_places: Vec<u32>,
    has_places: bool,
    /// The current group, and its encoding.
    group: (Range<usize>, Bytes),
    /// By run number: the run that continues it with the current group.
    continued: Vec<u32>,
    /// Deliveries past their subscribers' queues so far.
    #[cfg(test)]
    pub(super) direct: u64,
}

/// Publications for the same subscribers.
pub(super) struct Run {
    /// Its publications, by group.
    groups: Vec<Range<usize>>,
    /// The encoding of all its publications.
    pub(super) bytes: Bytes,
    /// Subscribers that get it past their queues.
    pub(super) subscribers: Vec<ConnId>,
}

impl Runs {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds a group with its encoding. The first group's subscribers are added at once; returns whether the group's
    /// subscribers must be [added](Self::add).
    pub(super) fn add_group(
        &mut self,
        publications: Vec<(QueuedPublication, RuleId)>,
        bytes: Bytes,
        subscribers: impl Iterator<Item = ConnId>,
    ) -> bool {
        let begin = self.publications.len();
        self.publications.extend(publications);
        self.group = (begin..self.publications.len(), bytes);
        if self.list.is_empty() {
            self.subscribers.extend(subscribers);
            self.continue_run(0);
            return false;
        }
        self.set_places();
        self.continued.clear();
        self.continued.resize(self.list.len() + 1, 0);
        true
    }

    /// Adds a subscriber to the current group. Returns `false` if its run would be too long, or one too many.
    #[inline]
    pub(super) fn add(&mut self, conn: ConnId) -> bool {
        let place = *self.place_mut(conn);
        let mut run = self.continued[place as usize];
        if run == 0 {
            let Some(added) = self.continue_run(place) else { return false };
            self.continued[place as usize] = added;
            run = added;
        }
        if place == 0 {
            self.subscribers.push(conn);
        }
        *self.place_mut(conn) = run;
        true
    }

    /// Removes a connection from its run. Returns the run's number.
    pub(super) fn leave(&mut self, conn: ConnId) -> Option<u32> {
        if self.list.is_empty() {
            return None;
        }
        self.set_places();
        self.take_place(conn)
    }

    /// Subscriber count, including those that have left.
    pub(super) fn subscribers(&self) -> usize {
        self.subscribers.len()
    }

    /// Whether some subscribers have got their runs, and others wait.
    pub(super) fn is_split(&self) -> bool {
        self.is_split
    }

    /// Takes the first subscribers of all runs, and all sockets on streams: their connection's input is not theirs. The
    /// others wait. Return the list to [`finish`](Self::finish).
    pub(super) fn take_subscribers(&mut self, most: usize) -> Vec<ConnId> {
        self.is_split = self.subscribers.len() > most;
        if !self.is_split {
            return std::mem::take(&mut self.subscribers);
        }
        self.set_places();
        let waiting = self.subscribers.split_off(most);
        let mut taken = std::mem::replace(&mut self.subscribers, waiting);
        self.subscribers.retain(|conn| {
            let waits = conn.stream_slot().is_none();
            if !waits {
                taken.push(*conn);
            }
            waits
        });
        taken
    }

    /// Removes a closed connection: its index may be another connection's before the next step.
    #[cold]
    pub(super) fn remove(&mut self, conn: ConnId) {
        self.leave(conn);
        self.subscribers.retain(|subscriber| *subscriber != conn);
    }

    /// Removes a subscriber that [`take_subscribers`](Self::take_subscribers) has returned from its run, unless it has
    /// left. Returns the run's number.
    #[inline]
    pub(super) fn take_place(&mut self, conn: ConnId) -> Option<u32> {
        if !self.has_places {
            return Some(1);
        }
        let place = match conn.stream_slot() {
            None => self.places.get_mut(conn.index()),
            Some(slot) => self.stream_places.get_mut(slot),
        };
        let place = place.map(std::mem::take)?;
        (place > 0).then_some(place)
    }

    /// Returns a run by its number.
    #[inline]
    pub(super) fn get_mut(&mut self, number: u32) -> &mut Run {
        &mut self.list[number as usize - 1]
    }

    /// Returns the publications in a run, or in the current group (0), in order.
    pub(super) fn publications(&self, number: u32) -> impl Iterator<Item = &(QueuedPublication, RuleId)> {
        let groups = match number {
            0 => std::slice::from_ref(&self.group.0),
            _ => &self.list[number as usize - 1].groups[..],
        };
        groups.iter().flat_map(move |group| &self.publications[group.clone()])
    }

    /// Run count.
    pub(super) fn len(&self) -> u32 {
        self.list.len() as u32
    }

    /// Removes all runs if no subscriber waits. Returns the publications.
    pub(super) fn finish(&mut self, mut subscribers: Vec<ConnId>) -> Vec<(QueuedPublication, RuleId)> {
        if self.is_split {
            return Vec::new();
        }
        subscribers.clear();
        self.subscribers = subscribers;
        self.has_places = false;
        self.list.clear();
        self.group = Default::default();
        std::mem::take(&mut self.publications)
    }

    /// Frees unused memory.
    pub(super) fn release(&mut self) {
        if self.list.is_empty() {
            (self.places, self.stream_places, self.subscribers) = Default::default();
        }
    }

    /// Adds a run that continues another one with the current group. Returns its number.
    fn continue_run(&mut self, before: u32) -> Option<u32> {
        if self.list.len() == RUNS_MAX {
            return None;
        }
        let (group, bytes) = &self.group;
        let (groups, bytes) = match self.list.get((before as usize).wrapping_sub(1)) {
            Some(earlier) if earlier.bytes.len() + bytes.len() > RUN_MAX => return None,
            Some(earlier) => (
                earlier.groups.iter().chain([group]).cloned().collect(),
                [&earlier.bytes[..], &bytes[..]].concat().into(),
            ),
            None => (vec![group.clone()], bytes.clone()),
        };
        self.list.push(Run { groups, bytes, subscribers: Vec::new() });
        // At most `RUNS_MAX`.
        Some(self.list.len() as u32)
    }

    /// Sets the places of the first group's subscribers.
    fn set_places(&mut self) {
        if std::mem::replace(&mut self.has_places, true) {
            return;
        }
        for at in 0..self.subscribers.len() {
            *self.place_mut(self.subscribers[at]) = 1;
        }
    }

    #[inline]
    fn place_mut(&mut self, conn: ConnId) -> &mut u32 {
        let (places, index) = match conn.stream_slot() {
            None => (&mut self.places, conn.index()),
            Some(slot) => (&mut self.stream_places, slot),
        };
        if places.len() <= index {
            places.resize(index + 1, 0);
        }
        &mut places[index]
    }
}
