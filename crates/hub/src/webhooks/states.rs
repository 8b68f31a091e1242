//! Topic states as the application knows them, and their changes: a short absence is none.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sinews_server::Member;

use super::counts::SubscriberCounts;
use crate::model::events::EventDetail;
use crate::model::user_id::has_number_id;

/// The reported topic states, with one grace for absences.
#[derive(Debug)]
pub(super) struct TopicStates {
    grace: Duration,
    topics: HashMap<Arc<str>, ReportedTopic>,
    /// Absences and when their grace ends; members before topics.
    due: BinaryHeap<Reverse<DueAbsence>>,
    pub(super) counts: SubscriberCounts,
}

/// End of the grace, whether it is the topic's own absence, the topic, and the member.
type DueAbsence = (Instant, bool, Arc<str>, Option<Arc<str>>);

#[derive(Debug, Default)]
struct ReportedTopic {
    is_occupied: bool,
    absence: Absence,
    members: HashMap<Arc<str>, ReportedMember>,
}

#[derive(Debug, Default)]
struct ReportedMember {
    has_number_id: bool,
    absence: Absence,
}

/// The absence of a topic's subscribers, or of a member.
#[derive(Debug, Default)]
struct Absence {
    /// When its grace ends.
    until: Option<Instant>,
    /// An entry waits for its end, or for that of a former absence.
    is_queued: bool,
}

impl TopicStates {
    pub(super) fn new(grace: Duration) -> Self {
        let counts = SubscriberCounts::default();
        Self { grace, topics: HashMap::new(), due: BinaryHeap::new(), counts }
    }

    pub(super) fn grace(&self) -> Duration {
        self.grace
    }

    /// Returns the reported topics' names.
    pub(super) fn names(&self) -> Vec<Arc<str>> {
        self.topics.keys().cloned().collect()
    }

    /// Returns a topic's reported members that are not in a list.
    pub(super) fn members_beside(&self, topic: &str, present: &HashSet<Arc<str>>) -> Vec<Arc<str>> {
        let members = self.topics.get(topic).into_iter().flat_map(|known| known.members.keys());
        members.filter(|id| !present.contains(*id)).cloned().collect()
    }

    /// Takes the topics that are meant, and their members, as reported.
    pub(super) fn inherit(&mut self, former: &Self, is_meant: impl Fn(&str) -> bool) {
        for (topic, reported) in former.topics.iter().filter(|(topic, _)| is_meant(topic)) {
            let known = self.topics.entry(topic.clone()).or_default();
            known.is_occupied |= reported.is_occupied;
            let members = reported.members.iter().map(|(id, member)| {
                let has_number_id = member.has_number_id;
                (id.clone(), ReportedMember { has_number_id, absence: Absence::default() })
            });
            known.members.extend(members);
        }
    }

    /// Applies the present numbers of a topic and of some members, which have changed: an unknown topic without
    /// connections, and an unknown member without them, were present for a moment. Both are reported, and their
    /// absences begin.
    pub(super) fn apply(
        &mut self,
        topic: &Arc<str>,
        connections: usize,
        members: &[(Member, usize)],
        now: Instant,
        emit: &mut impl FnMut(EventDetail),
    ) {
        let is_new = !self.topics.contains_key(topic);
        let known = self.topics.entry(topic.clone()).or_default();
        let until = now + self.grace;
        if connections > 0 {
            known.absence.until = None;
        }
        // A topic's last members may follow its end.
        if (connections > 0 || is_new) && !std::mem::replace(&mut known.is_occupied, true) {
            emit(EventDetail::TopicOccupied { topic: topic.clone() });
        }
        for (member, connections) in members {
            let id = member.shared_id();
            let reported = known.members.entry(id.clone()).or_insert_with(|| {
                emit(EventDetail::MemberJoined { topic: topic.clone(), member: member.clone() });
                ReportedMember { has_number_id: has_number_id(member.info()), absence: Absence::default() }
            });
            match connections {
                0 if reported.absence.begin(until) => {
                    self.due.push(Reverse((until, false, topic.clone(), Some(id))));
                }
                0 => {}
                _ => {
                    reported.has_number_id = has_number_id(member.info());
                    reported.absence.until = None;
                }
            }
        }
        if connections == 0 && known.is_occupied && known.absence.begin(until) {
            self.due.push(Reverse((until, true, topic.clone(), None)));
        }
    }

    /// Reports absences whose grace is over; returns when the next one is.
    pub(super) fn expire(&mut self, now: Instant, emit: &mut impl FnMut(EventDetail)) -> Option<Instant> {
        loop {
            let Reverse((at, ..)) = self.due.peek()?;
            if *at > now {
                return Some(*at);
            }
            let Reverse((_, is_topic, topic, id)) = self.due.pop()?;
            let Some(known) = self.topics.get_mut(&topic) else { continue };
            let absence = match &id {
                Some(id) => known.members.get_mut(id).map(|member| &mut member.absence),
                None => Some(&mut known.absence),
            };
            let Some(absence) = absence else { continue };
            absence.is_queued = false;
            match absence.until {
                // The subscriber or the member is present again.
                None => continue,
                Some(until) if until > now => {
                    // It has been present in between.
                    absence.is_queued = true;
                    self.due.push(Reverse((until, is_topic, topic, id)));
                    continue;
                }
                Some(_) => absence.until = None,
            }
            match id {
                Some(id) => {
                    let has_number_id = known.members.remove(&id).is_some_and(|member| member.has_number_id);
                    emit(EventDetail::MemberLeft { topic: topic.clone(), id, has_number_id });
                }
                None => {
                    known.is_occupied = false;
                    emit(EventDetail::TopicVacated { topic: topic.clone() });
                }
            }
            if !known.is_occupied && known.members.is_empty() {
                self.topics.remove(&topic);
            }
        }
    }

    /// Reports all absences now.
    pub(super) fn flush(&mut self, emit: &mut impl FnMut(EventDetail)) {
        let last = self.due.iter().map(|Reverse((at, ..))| *at).max();
        if let Some(last) = last {
            self.expire(last + self.grace, emit);
        }
    }
}

impl Absence {
    /// Begins an absence, unless it has begun. Returns whether an entry has to be queued.
    fn begin(&mut self, until: Instant) -> bool {
        if self.until.is_some() {
            return false;
        }
        self.until = Some(until);
        !std::mem::replace(&mut self.is_queued, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(3);

    struct Observed {
        states: TopicStates,
        events: Vec<String>,
        begin: Instant,
    }

    impl Observed {
        fn new() -> Self {
            Self { states: TopicStates::new(GRACE), events: Vec::new(), begin: Instant::now() }
        }

        /// Applies numbers at a second.
        fn apply(&mut self, second: u64, connections: usize, members: &[(&str, usize)]) -> Vec<String> {
            let members: Vec<_> =
                members.iter().map(|(id, connections)| (Member::new(*id), *connections)).collect();
            let (now, events) = (self.begin + Duration::from_secs(second), &mut self.events);
            self.states
                .apply(&"t".into(), connections, &members, now, &mut |detail| events.push(text(&detail)));
            std::mem::take(&mut self.events)
        }

        fn expire(&mut self, second: u64) -> Vec<String> {
            let (now, events) = (self.begin + Duration::from_secs(second), &mut self.events);
            self.states.expire(now, &mut |detail| events.push(text(&detail)));
            std::mem::take(&mut self.events)
        }
    }

    fn text(detail: &EventDetail) -> String {
        match detail {
            EventDetail::MemberJoined { member, .. } => format!("joined {}", member.id()),
            EventDetail::MemberLeft { id, .. } => format!("left {id}"),
            other => other.kind().name().to_owned(),
        }
    }

    #[test]
    fn first_and_last_connection_are_reported_once() {
        let mut observed = Observed::new();
        assert_eq!(observed.apply(0, 1, &[("a", 1)]), ["topic_occupied", "joined a"]);
        assert!(observed.apply(0, 3, &[("a", 2)]).is_empty());
        assert_eq!(observed.apply(1, 3, &[("b", 1)]), ["joined b"]);
        assert!(observed.apply(2, 0, &[("a", 0), ("b", 0)]).is_empty(), "the grace has begun");
        assert!(observed.expire(4).is_empty());
        assert_eq!(observed.expire(5), ["left a", "left b", "topic_vacated"]);
        assert!(observed.expire(99).is_empty() && observed.states.names().is_empty());
    }

    #[test]
    fn moment_between_two_looks_is_reported_as_both_changes() {
        let mut observed = Observed::new();
        assert_eq!(observed.apply(0, 0, &[("a", 0)]), ["topic_occupied", "joined a"]);
        assert_eq!(observed.apply(1, 1, &[("b", 0), ("c", 1)]), ["joined b", "joined c"]);
        assert_eq!(observed.expire(3), ["left a"]);
        assert_eq!(observed.expire(4), ["left b"]);
        observed.apply(5, 0, &[("c", 0)]);
        assert_eq!(observed.expire(8), ["left c", "topic_vacated"]);
        assert!(observed.states.names().is_empty());
    }

    #[test]
    fn short_absence_is_not_reported() {
        let mut observed = Observed::new();
        observed.apply(0, 1, &[("a", 1)]);
        assert!(observed.apply(1, 0, &[("a", 0)]).is_empty());
        assert!(observed.apply(3, 1, &[("a", 1)]).is_empty());
        assert!(observed.expire(10).is_empty());
        // The last absence's grace counts.
        observed.apply(11, 0, &[("a", 0)]);
        observed.apply(12, 1, &[("a", 1)]);
        observed.apply(13, 0, &[("a", 0)]);
        assert!(observed.expire(15).is_empty());
        assert_eq!(observed.expire(16), ["left a", "topic_vacated"]);
        // A client that flaps needs no memory.
        for second in 20..40 {
            observed.apply(second, (second % 2) as usize, &[("a", (second % 2) as usize)]);
        }
        assert!(observed.states.due.len() <= 2);
    }

    #[test]
    fn inherited_state_is_not_reported_again_and_its_end_is() {
        let mut former = Observed::new();
        former.apply(0, 1, &[("a", 1)]);
        let mut observed = Observed::new();
        observed.states.inherit(&former.states, |topic| topic != "t");
        assert!(observed.states.names().is_empty());
        observed.states.inherit(&former.states, |topic| topic == "t");
        assert_eq!(observed.apply(1, 2, &[("a", 1), ("b", 1)]), ["joined b"]);
        observed.apply(2, 0, &[("a", 0), ("b", 0)]);
        assert_eq!(observed.expire(5), ["left a", "left b", "topic_vacated"]);
    }

    #[test]
    fn flush_reports_absences_at_once() {
        let mut observed = Observed::new();
        observed.apply(0, 2, &[("a", 1), ("b", 1)]);
        observed.apply(1, 1, &[("a", 0)]);
        let events = &mut observed.events;
        observed.states.flush(&mut |detail| events.push(text(&detail)));
        assert_eq!(*events, ["left a"], "what is present remains");
        assert_eq!(observed.states.members_beside("t", &HashSet::new()), ["b".into()]);
    }
}
