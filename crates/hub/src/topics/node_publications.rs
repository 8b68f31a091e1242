//! Other nodes' publications to topics with a history, during a hot restart.
//!
//! Both processes receive them from the broker, and one process has to publish each. The predecessor publishes each
//! that it has received before it passed its histories on, and reports each process's last publication. The successor
//! queues all from its login on, and publishes the others once it has the histories. The predecessor queues the others
//! as well, until the successor serves: it publishes them if the handover fails.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::model::nodes::NodePublicationId;
use crate::model::publication::{PublicationOrigin, WaitingPublication};
use crate::wire::{HandoverDelivered, QUEUE_BYTES_MAX, QUEUE_FRAMES_MAX};

/// Number of processes whose last publications are known without a time limit: more than a cluster has nodes.
const PROCESSES_MAX: usize = 1_024;

/// Above [`PROCESSES_MAX`], the last publications of this time are known. A successor logs in less long before.
const KNOWN_TIME: Duration = Duration::from_secs(120);

/// Other nodes' publications to topics with a history.
#[derive(Debug, Default)]
pub(super) struct NodePublications(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The last publication of each process, by its id and start, that this one has delivered, and when.
    delivered: BTreeMap<(u128, u64), (u64, u64, Instant)>,
    /// The last publication of each process that the predecessor has delivered.
    inherited: BTreeMap<(u128, u64), (u64, u64)>,
    /// Present while publications wait.
    queue: Option<PublicationQueue>,
}

/// Publications that wait. Above a limit, the oldest ones are dropped.
#[derive(Debug, Default)]
struct PublicationQueue {
    publications: VecDeque<WaitingPublication>,
    bytes: usize,
    has_dropped: bool,
}

impl NodePublications {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Queues publications from now on.
    pub(super) fn start_queue(&self) {
        self.lock().queue.get_or_insert_default();
    }

    /// How many publications wait.
    pub(super) fn queued(&self) -> usize {
        self.lock().queue.as_ref().map_or(0, |queue| queue.publications.len())
    }

    /// Whether to deliver a publication now: nothing waits, this process has no successor, and the predecessor has not
    /// delivered it.
    pub(super) fn admit(
        &self,
        origin: NodePublicationId,
        has_successor: bool,
        publication: impl FnOnce() -> WaitingPublication,
    ) -> bool {
        let mut state = self.lock();
        if state.is_inherited(origin) {
            return false;
        }
        if let Some(queue) = &mut state.queue {
            queue.push(publication());
            return false;
        }
        if !has_successor {
            state.note(origin);
        }
        !has_successor
    }

    /// Notes the publications that the predecessor has delivered. An earlier version does not report them: it has
    /// delivered this many of the publications that wait.
    pub(super) fn inherit(&self, delivered: Option<&[HandoverDelivered]>, of_earlier_version: usize) {
        let mut state = self.lock();
        let Some(delivered) = delivered else {
            return (0..of_earlier_version)
                .for_each(|_| _ = state.queue.as_mut().and_then(PublicationQueue::pop));
        };
        let now = Instant::now();
        for HandoverDelivered { node, start, number, index } in delivered {
            let Ok(node) = u128::from_str_radix(node, 16) else { continue };
            state.inherited.insert((node, *start), (*number, *index));
            state.delivered.insert((node, *start), (*number, *index, now));
        }
    }

    /// The next publication that waits. After the last one, the queue ends.
    pub(super) fn next_queued(&self) -> Option<WaitingPublication> {
        let mut state = self.lock();
        while let Some(publication) = state.queue.as_mut()?.pop() {
            let PublicationOrigin::Node(id) = publication.origin else { continue };
            if !state.is_inherited(id) {
                state.note(id);
                return Some(publication);
            }
        }
        state.queue = None;
        None
    }

    /// The successor publishes the queue.
    pub(super) fn discard_queue(&self) {
        self.lock().queue = None;
    }

    /// The last publication of each process that this one has delivered.
    pub(super) fn delivered(&self) -> Vec<HandoverDelivered> {
        let state = self.lock();
        let delivered = state.delivered.iter().map(|(&(node, start), &(number, index, _))| {
            HandoverDelivered { node: format!("{node:032x}"), start, number, index }
        });
        delivered.collect()
    }
}

impl State {
    fn is_inherited(&self, NodePublicationId { node, start, number, index }: NodePublicationId) -> bool {
        self.inherited.get(&(node, start)).is_some_and(|last| (number, index) <= *last)
    }

    fn note(&mut self, NodePublicationId { node, start, number, index }: NodePublicationId) {
        let now = Instant::now();
        let last = self.delivered.entry((node, start)).or_insert((number, index, now));
        *last = (*last).max((number, index, now));
        if self.delivered.len() > PROCESSES_MAX {
            self.delivered.retain(|_, (.., at)| now.saturating_duration_since(*at) < KNOWN_TIME);
        }
    }
}

impl PublicationQueue {
    fn push(&mut self, publication: WaitingPublication) {
        self.bytes += publication.content.len();
        self.publications.push_back(publication);
        while self.publications.len() > QUEUE_FRAMES_MAX || self.bytes > QUEUE_BYTES_MAX {
            let Some(dropped) = self.pop() else { return };
            if !std::mem::replace(&mut self.has_dropped, true) {
                let topic = dropped.topic;
                tracing::error!(
                    topic,
                    "queue of a hot restart is full: publications of other nodes are lost"
                );
            }
        }
    }

    fn pop(&mut self) -> Option<WaitingPublication> {
        let publication = self.publications.pop_front()?;
        self.bytes -= publication.content.len();
        Some(publication)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::MessageContent;
    use crate::model::publication::PublicationSender;

    fn publication(start: u64, number: u64, index: u64) -> WaitingPublication {
        let content = MessageContent::Text(vec![b'x'; 1 << 20].into());
        let origin = NodePublicationId { node: 1 << 127, start, number, index };
        let (topic, origin) = ("t".to_owned(), PublicationOrigin::Node(origin));
        WaitingPublication {
            topic,
            content,
            origin,
            sender: PublicationSender::default(),
            verified: None,
            time: None,
        }
    }

    fn node_id(publication: &WaitingPublication) -> NodePublicationId {
        let PublicationOrigin::Node(id) = publication.origin else { panic!("{publication:?}") };
        id
    }

    fn admit(publications: &NodePublications, id: (u64, u64, u64), has_successor: bool) -> bool {
        let publication = publication(id.0, id.1, id.2);
        publications.admit(node_id(&publication), has_successor, || publication)
    }

    fn drain(publications: &NodePublications) -> Vec<(u64, u64, u64)> {
        let next = || publications.next_queued();
        let origin = |publication| {
            let NodePublicationId { start, number, index, .. } = node_id(&publication);
            (start, number, index)
        };
        std::iter::from_fn(next).map(origin).collect()
    }

    #[test]
    fn successor_publishes_what_the_predecessor_has_not_delivered() {
        let [old, new] = [(); 2].map(|()| NodePublications::default());
        new.start_queue();
        for (number, index) in [(1, 0), (3, 0), (3, 1)] {
            assert!(admit(&old, (7, number, index), false));
        }
        old.start_queue();
        for (number, index) in [(3, 2), (4, 0)] {
            assert!(!admit(&old, (7, number, index), true));
        }
        // Its login is later than the first one, and the last two arrive there later.
        assert!(!admit(&new, (7, 3, 0), false) && !admit(&new, (8, 1, 0), false));
        new.inherit(Some(&old.delivered()), 2);
        assert_eq!(drain(&new), [(8, 1, 0)]);
        let late = [(3, 1), (3, 2), (4, 0)].map(|(number, index)| admit(&new, (7, number, index), false));
        assert_eq!(late, [false, true, true]);
        // The handover fails, or succeeds.
        assert_eq!(drain(&old), [(7, 3, 2), (7, 4, 0)]);
        assert!(admit(&old, (7, 5, 0), false));
        old.start_queue();
        assert!(!admit(&old, (7, 6, 0), true));
        old.discard_queue();
        assert!(!admit(&old, (7, 7, 0), true) && drain(&old).is_empty());
    }

    #[test]
    fn earlier_version_has_delivered_what_arrived_before_bound() {
        let new = NodePublications::default();
        new.start_queue();
        (1..=2).for_each(|number| _ = admit(&new, (7, number, 0), false));
        let before_bound = new.queued();
        admit(&new, (7, 3, 0), false);
        new.inherit(None, before_bound);
        assert_eq!(drain(&new), [(7, 3, 0)]);
    }

    #[test]
    fn oldest_publications_are_dropped_from_a_full_queue() {
        let publications = NodePublications::default();
        publications.start_queue();
        let count = (QUEUE_BYTES_MAX >> 20) as u64;
        (0..count + 2).for_each(|number| _ = admit(&publications, (1, number, 0), false));
        assert_eq!(drain(&publications), (2..count + 2).map(|number| (1, number, 0)).collect::<Vec<_>>());
    }
}
