//! Reports topic states: once, by one node of a cluster.
//!
//! Each node computes all changes, because it knows the presence of all nodes. Only a topic's owner reports its
//! changes. The others retain them for a while: if the owner dies meanwhile, the next owner reports them.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sinews_server::{Member, Publisher, TopicPresence, Topics};

use super::filter::EventFilter;
use super::options::WebhookTarget;
use super::states::TopicStates;
use crate::model::events::EventDetail;
use crate::model::nodes::{OtherNodes, ReportRole, ReportingNodes};

/// Maximum members that are taken at once from presence, which is locked meanwhile.
const CHANGES_PER_STEP: usize = 1_000;

/// Interval at which the nodes are looked at.
const NODES_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum changes that are retained for other nodes; the oldest ones make room.
const RETAINED_MAX: usize = 10_000;

/// Time for which a change is retained, in case its owner has died: longer than the time until this is known.
const RETAINED_TIME: Duration = Duration::from_secs(10);

/// The same in case the owner has changed otherwise: nodes do not see topic and node changes at the same time.
const OWNER_SKEW: Duration = Duration::from_millis(1_500);

/// Time for which the others report the topics of a reporter that was dead and is here again: longer than the presence
/// exchange.
const RETURN_TIME: Duration = Duration::from_secs(10);

/// Maximum dead nodes that are remembered; the oldest ones make room.
const DEAD_MAX: usize = 256;

/// Time for which a node follows the others' reports before it takes its part: longer than the skew.
const JOIN_TIME: Duration = Duration::from_secs(2);

/// Computes topic changes, and which changes this node reports.
#[derive(Debug, Default)]
pub(super) struct StateReporter {
    states: GraceStates,
    nodes: NodeChoice,
    /// The state of all topics is to be taken as reported.
    adopts: bool,
    /// The state of all topics has to be read.
    rescans: bool,
}

/// The states for each grace, with the filters of the webhooks that have it.
#[derive(Debug, Default)]
struct GraceStates(Vec<(TopicStates, Vec<EventFilter>)>);

/// The choice of the reporting node.
#[derive(Debug, Default)]
struct NodeChoice {
    /// `None` without a cluster: this node reports all.
    view: Option<ReportingNodes>,
    role: ReportRole,
    /// When this node began to follow the others' reports.
    followed: Option<Instant>,
    /// Nodes that have died, and when they were reporters again: they do not know the others' reports.
    returned: VecDeque<(u128, Option<Instant>)>,
    retained: VecDeque<RetainedChange>,
}

#[derive(Debug)]
struct RetainedChange {
    at: Instant,
    owner: u128,
    grace: Duration,
    detail: EventDetail,
}

/// A topic's present state.
#[derive(Clone, Copy, Debug)]
struct TopicView<'a> {
    topic: &'a Arc<str>,
    connections: usize,
    /// Members that may have changed, and their connections.
    members: &'a [(Member, usize)],
    /// Presence has reported a change: a topic that is not known had a subscriber, perhaps for a moment.
    has_changed: bool,
}

impl<'a> TopicView<'a> {
    fn changed(presence: &'a TopicPresence) -> Self {
        let TopicPresence { topic, connections, members, .. } = presence;
        Self { topic, connections: *connections, members, has_changed: true }
    }
}

/// Reports a change to the webhooks with this grace.
type EmitState<'a> = dyn FnMut(Duration, EventDetail) + 'a;

impl StateReporter {
    /// Reports changes since the last call. Returns when to call again without a change.
    pub(super) fn step(
        &mut self,
        publisher: &Publisher,
        nodes: Option<&dyn OtherNodes>,
        targets: impl Iterator<Item = Arc<WebhookTarget>>,
        now: Instant,
        emit: &mut EmitState<'_>,
    ) -> Option<Instant> {
        let next = self.step_with(publisher, nodes.map(OtherNodes::reporting), targets, now, emit);
        if let Some(nodes) = nodes {
            nodes.set_report_role(self.nodes.role);
        }
        next
    }

    fn step_with(
        &mut self,
        publisher: &Publisher,
        view: Option<ReportingNodes>,
        targets: impl Iterator<Item = Arc<WebhookTarget>>,
        now: Instant,
        emit: &mut EmitState<'_>,
    ) -> Option<Instant> {
        if view.as_ref().is_some_and(|view| view.is_cut_off) && self.nodes.is_following() {
            // Members on the other nodes have not left: the state is compared with the reports when it is known again.
            self.rescans = true;
            return Some(now + NODES_INTERVAL);
        }
        self.configure(targets, publisher, now, emit);
        if let Some(view) = view {
            let is_wanted = !self.states.0.is_empty();
            let is_following = self.nodes.update(view, is_wanted, now, emit, &mut self.adopts);
            if !is_following {
                // This node does not know all topics yet.
                self.rescans = true;
                return is_wanted.then_some(now + NODES_INTERVAL);
            }
        }
        if self.adopts {
            self.adopt_all(publisher, now);
        }
        let Self { states, nodes, .. } = self;
        let mut report = |grace, detail| nodes.report(grace, detail, now, emit);
        let changes = publisher.take_presence_changes(CHANGES_PER_STEP);
        if std::mem::take(&mut self.rescans) || changes.overflowed {
            states.scan(publisher, now, &mut report);
        } else {
            for changed in &changes.topics {
                states.apply(TopicView::changed(changed), now, &mut report);
            }
        }
        let mut next = states.expire(now, &mut report);
        if self.nodes.view.is_some() {
            let look = now + NODES_INTERVAL;
            next = Some(next.map_or(look, |at| at.min(look)));
        }
        if changes.more { Some(now) } else { next }
    }

    /// Takes the present state of all topics as reported.
    pub(super) fn adopt(
        &mut self,
        publisher: &Publisher,
        targets: impl Iterator<Item = Arc<WebhookTarget>>,
        now: Instant,
    ) {
        self.configure(targets, publisher, now, &mut |_, _| {});
        self.adopt_all(publisher, now);
    }

    fn adopt_all(&mut self, publisher: &Publisher, now: Instant) {
        (self.adopts, self.rescans) = (false, false);
        // The reporter has seen the moments before.
        let _ = publisher.take_presence_changes(usize::MAX);
        self.states.apply_all(publisher, |_| true, now, &mut |_, _| {});
    }

    /// Returns the number of nodes that report topics; `None` without a cluster.
    pub(super) fn reporters(&self) -> Option<usize> {
        self.nodes.view.as_ref().map(|view| view.reporters.len())
    }

    /// Reports all absences now.
    pub(super) fn flush(&mut self, emit: &mut EmitState<'_>) {
        let Self { states, nodes, .. } = self;
        for (states, _) in &mut states.0 {
            let grace = states.grace();
            states.flush(&mut |detail| nodes.report(grace, detail, Instant::now(), emit));
        }
    }

    /// Follows a reload: a grace or a filter that is new begins with the present state.
    fn configure(
        &mut self,
        targets: impl Iterator<Item = Arc<WebhookTarget>>,
        publisher: &Publisher,
        now: Instant,
        emit: &mut EmitState<'_>,
    ) {
        let mut wanted: Vec<(Duration, Vec<EventFilter>)> = Vec::new();
        for target in targets.filter(|target| target.filter.has_states()) {
            match wanted.iter_mut().find(|(grace, _)| *grace == target.grace) {
                Some((_, filters)) => filters.push(target.filter.clone()),
                None => wanted.push((target.grace, vec![target.filter.clone()])),
            }
        }
        let Self { states, nodes, .. } = self;
        let is_same =
            states.0.len() == wanted.len()
                && states.0.iter().zip(&wanted).all(|((states, filters), (grace, wanted))| {
                    states.grace() == *grace && filters == wanted
                });
        if is_same {
            return;
        }
        let mut report = |grace, detail| nodes.report(grace, detail, now, emit);
        for changed in &publisher.take_presence_changes(usize::MAX).topics {
            states.apply(TopicView::changed(changed), now, &mut report);
        }
        self.flush(emit);
        let new = wanted.into_iter().map(|(grace, filters)| (TopicStates::new(grace), filters));
        let former = std::mem::replace(&mut self.states, GraceStates(new.collect()));
        self.states.inherit(&former);
        // Of topics that no webhook wanted, nothing was reported.
        let unreported = |topic: &str| !former.wants(topic);
        self.states.apply_all(publisher, unreported, now, &mut |_, _| {});
    }
}

impl GraceStates {
    /// Whether a webhook wants a topic's state.
    fn wants(&self, topic: &str) -> bool {
        self.0.iter().flat_map(|(_, filters)| filters).any(|filter| filter.matches_topic(topic))
    }

    /// Begins with what was reported before. A change that comes now differs from it.
    fn inherit(&mut self, former: &Self) {
        for (states, filters) in &mut self.0 {
            let is_meant = |topic: &str| filters.iter().any(|filter| filter.matches_topic(topic));
            former.0.iter().for_each(|(former, _)| states.inherit(former, is_meant));
        }
    }

    fn apply(&mut self, view: TopicView<'_>, now: Instant, report: &mut EmitState<'_>) {
        for (states, filters) in &mut self.0 {
            Self::apply_to(states, filters, view, now, report);
        }
    }

    fn apply_to(
        states: &mut TopicStates,
        filters: &[EventFilter],
        view: TopicView<'_>,
        now: Instant,
        report: &mut EmitState<'_>,
    ) {
        let TopicView { topic, connections, members, has_changed } = view;
        if !filters.iter().any(|filter| filter.matches_topic(topic)) {
            return;
        }
        let grace = states.grace();
        let mut emit = |detail| report(grace, detail);
        states.apply(topic, connections, members, now, &mut emit);
        if filters.iter().any(|filter| filter.counts(topic)) {
            states.counts.apply(topic, connections, has_changed, now, &mut emit);
        }
    }

    /// Compares the state of all topics with what was reported.
    fn scan(&mut self, publisher: &Publisher, now: Instant, report: &mut EmitState<'_>) {
        // Each grace has reported other topics.
        for (states, filters) in &mut self.0 {
            for topic in states.names() {
                let present: HashSet<Arc<str>> =
                    present(publisher, &topic).map(|member| member.shared_id()).collect();
                let beside = states.members_beside(&topic, &present).into_iter();
                let gone: Vec<(Member, usize)> = beside.map(|id| (Member::new(id), 0)).collect();
                let connections = publisher.presence_count(&topic).connections;
                let view = TopicView { topic: &topic, connections, members: &gone, has_changed: false };
                Self::apply_to(states, filters, view, now, report);
            }
        }
        self.apply_all(publisher, |_| true, now, report);
    }

    /// Applies the present state of the selected topics.
    fn apply_all(
        &mut self,
        publisher: &Publisher,
        is_meant: impl Fn(&str) -> bool,
        now: Instant,
        report: &mut EmitState<'_>,
    ) {
        for topic in publisher.presence_topics().into_iter().filter(|topic| is_meant(topic)) {
            let connections = publisher.presence_count(&topic).connections;
            if connections == 0 {
                // Its end is a change of its own.
                continue;
            }
            let members: Vec<(Member, usize)> =
                present(publisher, &topic).map(|member| (member, 1)).collect();
            let view = TopicView { topic: &topic, connections, members: &members, has_changed: false };
            self.apply(view, now, report);
        }
    }

    /// Reports absences whose grace is over, and numbers whose interval is; returns when the next one is.
    fn expire(&mut self, now: Instant, report: &mut EmitState<'_>) -> Option<Instant> {
        let next = self.0.iter_mut().filter_map(|(states, _)| {
            let grace = states.grace();
            let mut emit = |detail| report(grace, detail);
            let ends = [states.expire(now, &mut emit), states.counts.expire(now, &mut emit)];
            ends.into_iter().flatten().min()
        });
        next.min()
    }
}

/// Returns all members of a topic, in pages.
fn present(publisher: &Publisher, topic: &str) -> impl Iterator<Item = Member> {
    let topic = topic.to_owned();
    let mut after: Option<String> = None;
    let mut is_done = false;
    std::iter::from_fn(move || {
        if is_done {
            return None;
        }
        let page = publisher.members(&topic, after.as_deref(), Topics::MEMBERS_MAX);
        is_done = page.len() < Topics::MEMBERS_MAX;
        after = page.last().map(|(member, _)| member.id().to_owned());
        Some(page)
    })
    .flatten()
    .map(|(member, _)| member)
}

impl NodeChoice {
    /// Follows the cluster's nodes. Returns whether this node follows topic states.
    fn update(
        &mut self,
        mut view: ReportingNodes,
        is_wanted: bool,
        now: Instant,
        emit: &mut EmitState<'_>,
        adopts: &mut bool,
    ) -> bool {
        if !is_wanted {
            *self = Self { view: Some(view), ..Self::default() };
            return false;
        }
        if self.role != ReportRole::Reporter {
            self.role = ReportRole::Candidate;
            if self.may_report(&view, now, adopts) {
                self.role = ReportRole::Reporter;
                view.reporters.push(view.own);
            }
        }
        self.exclude_returned(&mut view, now);
        let age = |change: &RetainedChange| now.saturating_duration_since(change.at);
        while self.retained.front().is_some_and(|change| age(change) > RETAINED_TIME) {
            self.retained.pop_front();
        }
        for mut change in std::mem::take(&mut self.retained) {
            let Some(owner) = change.detail.topic().and_then(|topic| view.owner(topic)) else { continue };
            let former = std::mem::replace(&mut change.owner, owner);
            let time = if view.dead.contains(&former) { RETAINED_TIME } else { OWNER_SKEW };
            if owner != view.own {
                self.retained.push_back(change);
            } else if age(&change) <= time {
                emit(change.grace, change.detail);
            }
        }
        self.view = Some(view);
        self.is_following()
    }

    /// Excludes reporters that were dead: they do not report the return of their own members, which others have
    /// reported as left. They report their changes all the same, so that some are reported twice.
    fn exclude_returned(&mut self, view: &mut ReportingNodes, now: Instant) {
        for dead in &view.dead {
            self.returned.retain(|(id, _)| id != dead);
            self.returned.push_back((*dead, None));
        }
        while self.returned.len() > DEAD_MAX {
            self.returned.pop_front();
        }
        let mut excluded = HashSet::new();
        self.returned.retain_mut(|(id, since)| {
            if !view.reporters.contains(id) {
                return true;
            }
            let is_recent = now.saturating_duration_since(*since.get_or_insert(now)) < RETURN_TIME;
            is_recent && excluded.insert(*id)
        });
        if view.reporters.iter().any(|id| !excluded.contains(id)) {
            view.reporters.retain(|id| !excluded.contains(id));
        }
    }

    /// Whether this node knows what was reported.
    fn is_following(&self) -> bool {
        self.role == ReportRole::Reporter || self.followed.is_some()
    }

    /// Whether this node takes its part in the reports. The first reporter reports the whole state; the others begin
    /// with the state that was reported.
    fn may_report(&mut self, view: &ReportingNodes, now: Instant, adopts: &mut bool) -> bool {
        if !view.is_settled {
            return false;
        }
        match self.followed {
            _ if view.reporters.is_empty() => self.followed.is_some() || !view.has_older_candidate,
            Some(since) => now.saturating_duration_since(since) >= JOIN_TIME,
            None => {
                self.followed = Some(now);
                *adopts = true;
                false
            }
        }
    }

    /// Reports a change if this node owns the topic; retains it otherwise.
    fn report(&mut self, grace: Duration, detail: EventDetail, now: Instant, emit: &mut EmitState<'_>) {
        let Some(view) = &self.view else { return emit(grace, detail) };
        let Some(owner) = detail.topic().and_then(|topic| view.owner(topic)) else { return };
        if owner == view.own {
            return emit(grace, detail);
        }
        if self.retained.len() >= RETAINED_MAX {
            self.retained.pop_front();
        }
        self.retained.push_back(RetainedChange { at: now, owner, grace, detail });
    }
}

#[cfg(test)]
mod tests {
    use sinews_server::{Router, Server};

    use super::*;
    use crate::webhooks::options::WebhookOptions;

    const GRACE: Duration = Duration::from_secs(3);

    fn view(own: u128, reporters: &[u128], dead: &[u128]) -> ReportingNodes {
        let (reporters, dead) = (reporters.to_vec(), dead.to_vec());
        ReportingNodes {
            own,
            reporters,
            is_settled: true,
            has_older_candidate: false,
            is_cut_off: false,
            dead,
        }
    }

    /// A node that reports beside another one.
    fn joined(own: u128, begin: Instant) -> NodeChoice {
        let (mut nodes, mut adopts) = (NodeChoice::default(), false);
        let mut update =
            |now| nodes.update(view(own, &[3 - own], &[]), true, now, &mut |_, _| {}, &mut adopts);
        assert!(update(begin - JOIN_TIME) && update(begin) && adopts);
        assert_eq!(nodes.role, ReportRole::Reporter);
        nodes
    }

    fn name(detail: &EventDetail) -> String {
        detail.topic().unwrap().to_string()
    }

    fn vacate(nodes: &mut NodeChoice, now: Instant) -> Vec<String> {
        let mut reported = Vec::new();
        for topic in 0..20 {
            let detail = EventDetail::TopicVacated { topic: format!("t{topic}").into() };
            nodes.report(GRACE, detail, now, &mut |_, detail| reported.push(name(&detail)));
        }
        reported
    }

    /// Topics that a node has to report, after 20 topics and the nodes have changed.
    fn reported(own: u128, seconds: u64, reporters: &[u128], dead: &[u128]) -> (Vec<String>, Vec<String>) {
        let begin = Instant::now() + JOIN_TIME;
        let mut nodes = joined(own, begin);
        let (first, mut second) = (vacate(&mut nodes, begin), Vec::new());
        let now = begin + Duration::from_secs(seconds);
        let emit = &mut |_, detail: EventDetail| second.push(name(&detail));
        nodes.update(view(own, reporters, dead), true, now, emit, &mut false);
        (first, second)
    }

    #[test]
    fn each_change_is_reported_by_one_node() {
        let (one, two) = (reported(1, 1, &[1, 2], &[]), reported(2, 1, &[1, 2], &[]));
        assert!(one.1.is_empty() && two.1.is_empty());
        let both: HashSet<String> = one.0.iter().chain(&two.0).cloned().collect();
        assert_eq!((both.len(), one.0.len() + two.0.len()), (20, 20));
    }

    #[test]
    fn changes_of_a_dead_node_are_reported_by_the_next_one() {
        let (own, of_dead) = reported(1, 9, &[1], &[2]);
        assert_eq!(own.len() + of_dead.len(), 20);
        assert!(reported(1, 11, &[1], &[2]).1.is_empty(), "they are retained for a limited time");
        assert!(reported(1, 9, &[1], &[]).1.is_empty(), "a node that leaves has reported them");
        assert!(!reported(1, 1, &[1], &[]).1.is_empty(), "except for the last ones");
        let third = reported(1, 9, &[1, 3], &[2]).1;
        assert!(third.len() < of_dead.len() && third.iter().all(|topic| of_dead.contains(topic)));
    }

    #[test]
    fn node_that_joins_reports_the_last_changes_of_its_topics() {
        let (begin, mut adopts) = (Instant::now(), false);
        let mut nodes = NodeChoice::default();
        let other = view(1, &[2], &[]);
        assert!(nodes.update(other.clone(), true, begin, &mut |_, _| {}, &mut adopts) && adopts);
        let mut changes = |seconds| vacate(&mut nodes, begin + Duration::from_secs(seconds));
        assert!(changes(0).is_empty() && changes(1).is_empty(), "the other one reports them");
        let mut reported = Vec::new();
        let emit = &mut |_, detail: EventDetail| reported.push(name(&detail));
        nodes.update(other, true, begin + JOIN_TIME, emit, &mut adopts);
        let own: HashSet<String> = vacate(&mut nodes, begin + JOIN_TIME).into_iter().collect();
        assert_eq!(reported.len(), own.len(), "once, although they were changed twice");
        assert!(reported.iter().all(|topic| own.contains(topic)));
    }

    #[test]
    fn members_of_nodes_that_an_outage_has_cut_off_are_reported_when_they_are_known_to_have_left() {
        let server = Server::new(Router::new()).threads(1).listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
        let publisher = server.publisher();
        publisher.observe_presence(|| ());
        let options = WebhookOptions::new("w", "http://127.0.0.1/", [b'x'; 32]).with_grace(Duration::ZERO);
        let target = Arc::new(options.target().unwrap());
        let adjust = |change: isize, members: &[&str]| {
            let members: Vec<_> = members.iter().map(|id| (Member::new(*id), change)).collect();
            publisher.adjust_presence("a", change * members.len() as isize, &members);
        };
        let mut reporter = StateReporter::default();
        let begin = Instant::now();
        let mut step = |seconds, reporters: &[u128], is_cut_off| {
            let view = ReportingNodes { is_cut_off, ..view(1, reporters, &[]) };
            let mut reported = Vec::new();
            let emit = &mut |_, detail: EventDetail| {
                let id = match &detail {
                    EventDetail::MemberJoined { member, .. } => member.id(),
                    EventDetail::MemberLeft { id, .. } => id,
                    _ => return,
                };
                reported.push(format!("{} {id}", detail.kind().name()));
            };
            let now = begin + Duration::from_secs(seconds);
            reporter.step_with(&publisher, Some(view), [Arc::clone(&target)].into_iter(), now, emit);
            reported
        };
        adjust(1, &["own", "stays", "leaves"]);
        step(0, &[], false);
        step(1, &[1], false);
        // An outage: the other node's members are removed, and most are back afterwards.
        adjust(-1, &["stays", "leaves"]);
        adjust(1, &["new"]);
        assert!(step(61, &[1], true).is_empty() && step(90, &[1], true).is_empty());
        adjust(1, &["stays"]);
        let mut reported = step(120, &[1], false);
        reported.sort();
        assert_eq!(reported, ["member_joined new", "member_left leaves"]);
        assert!(step(121, &[1], false).is_empty());
    }

    #[test]
    fn the_oldest_node_reports_first_and_the_others_adopt_its_reports() {
        let now = Instant::now();
        let update = |nodes: &mut NodeChoice, view: ReportingNodes| {
            let mut adopts = false;
            let follows = nodes.update(view, true, now, &mut |_, _| {}, &mut adopts);
            (follows, adopts, nodes.role)
        };
        let young = || ReportingNodes { is_settled: false, ..view(1, &[], &[]) };
        let second = || ReportingNodes { has_older_candidate: true, ..view(1, &[], &[]) };
        let mut nodes = NodeChoice::default();
        assert_eq!(update(&mut nodes, young()), (false, false, ReportRole::Candidate));
        assert_eq!(update(&mut nodes, second()), (false, false, ReportRole::Candidate));
        // The older one is gone.
        assert_eq!(update(&mut nodes, view(1, &[], &[])), (true, false, ReportRole::Reporter));
        assert_eq!(update(&mut nodes, view(1, &[1, 2], &[])), (true, false, ReportRole::Reporter));
        let mut nodes = NodeChoice::default();
        let with_reporter = ReportingNodes { reporters: vec![2], ..second() };
        assert_eq!(update(&mut nodes, with_reporter), (true, true, ReportRole::Candidate));
        // The reporter has gone while this node followed it.
        assert_eq!(update(&mut nodes, second()), (true, false, ReportRole::Reporter));
        assert!(!nodes.update(view(1, &[1, 2], &[]), false, now, &mut |_, _| {}, &mut false));
        assert_eq!(nodes.role, ReportRole::None, "without webhooks");
    }

    #[test]
    fn reporter_that_was_dead_counts_again_after_ten_seconds() {
        let begin = Instant::now() + JOIN_TIME;
        let mut nodes = joined(1, begin);
        let mut reporters = |seconds: u64, reporters: &[u128], dead: &[u128]| {
            let now = begin + Duration::from_secs(seconds);
            nodes.update(view(1, reporters, dead), true, now, &mut |_, _| {}, &mut false);
            nodes.view.as_ref().map(|view| view.reporters.clone()).unwrap_or_default()
        };
        assert_eq!(reporters(1, &[1, 3], &[2]), [1, 3]);
        assert_eq!(reporters(60, &[1, 2, 3], &[]), [1, 3], "it returns");
        assert_eq!(reporters(69, &[1, 2, 3], &[]), [1, 3]);
        assert_eq!(reporters(70, &[1, 2, 3], &[]), [1, 2, 3]);
        // Without another reporter, it is the reporter.
        reporters(71, &[1], &[2]);
        assert_eq!(reporters(72, &[2], &[]), [2]);
        // A node that has died long ago makes room for others.
        let dead: Vec<u128> = (10..10 + DEAD_MAX as u128 + 1).collect();
        reporters(100, &[1], &dead);
        assert_eq!(reporters(101, &[1, 10, 11], &[]), [1, 10]);
    }

    #[test]
    fn members_of_a_node_that_was_cut_off_alone_are_reported_when_it_returns() {
        let options = WebhookOptions::new("w", "http://127.0.0.1/", [b'x'; 32]).with_grace(GRACE);
        let target = Arc::new(options.target().unwrap());
        let begin = Instant::now() + JOIN_TIME;
        let servers = [(); 2].map(|()| {
            Server::new(Router::new()).threads(1).listen(([127, 0, 0, 1], 0).into()).bind().unwrap()
        });
        let publishers = servers.each_ref().map(|server| server.publisher());
        publishers.iter().for_each(|publisher| publisher.observe_presence(|| ()));
        let mut reporters =
            [1, 2].map(|own| StateReporter { nodes: joined(own, begin), ..StateReporter::default() });
        let topics: Vec<String> = (0..20).map(|topic| format!("t{topic}")).collect();
        let adjust = |node: usize, change: isize| {
            for topic in &topics {
                let left_out = publishers[node].adjust_presence(topic, change, &[(Member::new("m"), change)]);
                assert_eq!(left_out, 0);
            }
        };
        // The topics with the member, as the application knows them.
        let mut known: HashSet<String> = HashSet::new();
        let mut step = |node: usize, milliseconds: u64, others: &[u128], dead: &[u128]| {
            let now = begin + Duration::from_millis(milliseconds);
            let view = view(node as u128 + 1, others, dead);
            let emit = &mut |_, detail: EventDetail| match &detail {
                EventDetail::MemberJoined { topic, .. } => _ = known.insert(topic.to_string()),
                EventDetail::MemberLeft { topic, .. } => _ = known.remove(&**topic),
                _ => {}
            };
            let targets = [Arc::clone(&target)].into_iter();
            reporters[node].step_with(&publishers[node], Some(view), targets, now, emit);
            known.len()
        };
        let both = [1, 2];
        step(0, 0, &both, &[]);
        step(1, 0, &both, &[]);
        // A client on node 1 joins.
        adjust(0, 1);
        adjust(1, 1);
        step(0, 100, &both, &[]);
        step(1, 100, &both, &[]);
        assert_eq!(step(1, 200, &both, &[]), 20);
        // Node 1 is cut off for 12 s; after 5 s node 2 removes it.
        adjust(1, -1);
        for second in 5..=9 {
            step(0, second * 1_000, &both, &[]);
            step(1, second * 1_000, &[2], if second == 5 { &[1] } else { &[] });
        }
        assert_eq!(step(1, 9_500, &[2], &[]), 0, "reported by node 2, after the grace");
        // Node 1 returns: its heartbeat first, then its presence.
        step(1, 12_000, &both, &[]);
        adjust(1, 1);
        for second in 12..120 {
            step(0, second * 1_000 + 100, &both, &[]);
            step(1, second * 1_000 + 100, &both, &[]);
        }
        assert_eq!(step(1, 121_000, &both, &[]), 20, "topics in which the application knows the member");
    }
}
