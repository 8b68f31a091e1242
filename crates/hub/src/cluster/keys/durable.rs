//! Durable keys: owners after the end of all nodes, and acknowledgements of stored writes.
//!
//! A topic without an owner is claimed by the node with the latest keys. So each node that has keys of such a topic
//! announces their claim and sequence every second.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sinews_server::{KeyWritten, Position};

use super::claim::{topic_hash, weight};
use super::replicator::{KeyReplicator, ReplicaState, SharedTopic, WAITING_MAX};
use super::shared::UnstoredWrite;
use super::transfer::{KeySender, KeyTarget};
use super::wire::{EarlierKeys, KeyDecoder, KeyEncoder};
use super::writes::WRITE_TIMEOUT;
use crate::cluster::connection::OutputOffsets;
use crate::cluster::log_limit::LACKED_KEYS;
use crate::cluster::message::{MessageKind, NodeId};
use crate::cluster::times::RETURN_TIME;
use crate::model::brief::brief;
use crate::model::problem::{Problem, code, problem};
use crate::topics::key_faults::FaultCause;
use crate::topics::shared_keys::Claim;

/// Time for which a node that starts waits for the nodes that it has last seen: they may have later keys.
const RESTORE_WAIT: Duration = Duration::from_secs(60);

/// Time in which all nodes announce their copies of a topic without an owner.
const POSITIONS_WAIT: Duration = Duration::from_secs(3);

/// Announcement interval.
const POSITIONS_INTERVAL: Duration = Duration::from_secs(1);

/// Copies of the nodes of durable topics without an owner.
#[derive(Debug, Default)]
pub(super) struct AnnouncedPositions {
    by_topic: BTreeMap<Arc<str>, BTreeMap<u128, (Claim, u64)>>,
    /// When this node announces again.
    due: Option<Instant>,
    round: Option<AnnouncementRound>,
    /// Start of the last complete round: the topics that had no owner then are announced.
    announced: Option<Instant>,
}

/// Announcements of all topics without an owner, which are sent while the broker accepts them.
#[derive(Debug)]
struct AnnouncementRound {
    began: Instant,
    /// The last topic that was announced.
    last: Option<Arc<str>>,
}

impl AnnouncedPositions {
    /// The topic has an owner.
    pub(super) fn forget(&mut self, topic: &str) {
        self.by_topic.remove(topic);
    }

    /// There are other topics without an owner.
    pub(super) fn announce_soon(&mut self) {
        self.due = None;
    }

    /// Whether announcements wait until the broker has accepted others.
    pub(super) fn has_output(&self) -> bool {
        self.round.is_some()
    }

    /// Ends a round that is not complete: the broker is unreachable.
    pub(super) fn stop(&mut self) {
        self.round = None;
    }
}

impl KeyReplicator {
    pub(super) fn is_durable(&self, topic: &str) -> bool {
        self.shared.store_of(topic).is_some()
    }

    /// Whether a topic is never released: its stream has its position.
    pub(super) fn is_retained(&self, topic: &str) -> bool {
        let position = self.publisher.keyed_position(topic);
        self.is_durable(topic) && position.is_some_and(|position| position.sequence > 0)
    }

    /// Takes over the topics that were read from the disk: their owner has gone.
    pub(super) fn take_restored(&mut self, now: Instant) {
        let Some(restored) = self.shared.store().map(|store| store.take_restored()) else { return };
        for (topic, claim) in restored {
            if self.topics.contains_key(&*topic) {
                continue;
            }
            let topic: Arc<str> = topic.into();
            self.insert(&topic, claim, ReplicaState::Current, 0);
            self.orphans.insert(topic, now);
            // The other nodes request the catalogue before they are in sync.
            self.positions.announce_soon();
        }
    }

    /// Notes that all nodes are here which this node has seen before its start, or that it does not wait any longer.
    /// From then on, stores the nodes that it sees.
    pub(super) fn update_members(&mut self) {
        if self.restored.is_some() && !std::mem::take(&mut self.has_new_nodes) {
            return;
        }
        let Some(store) = self.shared.store() else { return };
        let (Some(own), Some(connected)) = (store.node(), self.first_connected) else { return };
        let here = self.nodes.keys().filter_map(|node| self.stores.get(node).copied());
        let here: BTreeSet<u64> = here.chain([own]).collect();
        if self.restored.is_none() {
            let is_complete = store.members().iter().all(|member| here.contains(member));
            let is_late = self.now >= connected + RESTORE_WAIT;
            if !is_complete && !is_late {
                return;
            }
            if !is_complete {
                tracing::warn!(
                    seconds = RESTORE_WAIT.as_secs(),
                    "nodes that this node had seen have not returned: keys that only they have are lost"
                );
            }
            self.restored = Some(self.now);
        }
        let here: Vec<u64> = here.into_iter().collect();
        if here != self.members {
            store.set_members(here.clone());
            self.members = here;
        }
    }

    /// Whether a topic that no node knows may be claimed.
    pub(super) fn may_claim_unknown(&self, topic: &str) -> bool {
        if !self.knows_owners() {
            return false;
        }
        // After an outage, its owner perhaps returns later than this node, which has just started.
        if self.starts_in_outage && self.first_connected.is_none_or(|at| self.now < at + RETURN_TIME) {
            return false;
        }
        let Some(store) = self.shared.store_of(topic) else { return true };
        let is_restored = self.restored.is_some_and(|at| at + POSITIONS_INTERVAL <= self.now);
        is_restored && store.fault(topic).is_none()
    }

    /// Whether a durable topic without an owner may be claimed.
    fn is_durable_claim_due(&self, since: Instant) -> bool {
        self.restored.is_some_and(|at| self.now >= at.max(since) + POSITIONS_WAIT)
    }

    /// Returns whether this node has announced a topic's keys since the topic has no owner.
    fn is_announced(&self, topic: &str) -> bool {
        let since = self.orphans.get(topic);
        since.is_some_and(|since| self.positions.announced.is_some_and(|announced| announced >= *since))
    }

    /// Whether this node claims a durable topic without an owner.
    pub(super) fn claims_durable(&self, topic: &str, since: Instant) -> bool {
        let known = self.topics.get(topic);
        self.is_durable_claim_due(since)
            && self.is_announced(topic)
            && known.is_some_and(|known| self.has_latest(topic, known))
    }

    /// Returns whether no other node has later keys for a durable topic.
    fn has_latest(&self, topic: &str, known: &SharedTopic) -> bool {
        let Some(own) = self.own_position(topic, known) else { return false };
        let hash = topic_hash(topic);
        let is_later = |(node, other): (&u128, &(Claim, u64))| {
            if own.0 == other.0 {
                (other.1, weight(*node, hash)) > (own.1, weight(self.own, hash))
            } else {
                other.0.beats(&own.0)
            }
        };
        let others = self.positions.by_topic.get(topic).into_iter().flatten();
        !others.filter(|(node, _)| self.nodes.contains_key(node)).any(is_later)
    }

    /// Returns the claim and sequence of this node's keys for a topic; `None` if it has none, or never stores them:
    /// then another node owns the topic.
    fn own_position(&self, topic: &str, known: &SharedTopic) -> Option<(Claim, u64)> {
        let claim =
            known.keys_of.filter(|_| self.shared.store().is_none_or(|store| !store.is_unreadable(topic)))?;
        let position = self.publisher.keyed_position(topic)?;
        (position.epoch == claim.epoch).then_some((claim, position.sequence))
    }

    /// Announces this node's copies of durable topics without an owner, as far as the broker accepts them.
    pub(super) fn announce_positions(&mut self, sender: &dyn KeySender) {
        let Some(mut round) = self.positions.round.take().or_else(|| self.begin_round()) else { return };
        let bytes_max = Self::batch_bytes(sender);
        let mut out = KeyEncoder(Vec::new());
        loop {
            if sender.waiting() > WAITING_MAX {
                self.positions.round = Some(round);
                return;
            }
            let last = self.encode_positions(&round, bytes_max, &mut out);
            if !out.0.is_empty() {
                sender.send(KeyTarget::All, MessageKind::KeyPositions, &out.0);
                out.0.clear();
            }
            if last.is_none() {
                break;
            }
            round.last = last;
        }
        self.positions.announced = Some(round.began);
    }

    /// Begins to announce all topics, if it is time.
    fn begin_round(&mut self) -> Option<AnnouncementRound> {
        if self.orphans.is_empty() || self.positions.due.is_some_and(|due| self.now < due) {
            return None;
        }
        self.positions.due = Some(self.now + POSITIONS_INTERVAL);
        Some(AnnouncementRound { began: self.now, last: None })
    }

    /// Encodes one message's positions. Returns its last topic; `None` if no topic follows.
    fn encode_positions(
        &self,
        round: &AnnouncementRound,
        bytes_max: usize,
        out: &mut KeyEncoder,
    ) -> Option<Arc<str>> {
        let after = round.last.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let mut last = None;
        for topic in self.orphans.range((after, Bound::Unbounded)).map(|(topic, _)| topic) {
            let known = self.topics.get(topic).filter(|_| self.is_durable(topic));
            let Some((claim, sequence)) = known.and_then(|known| self.own_position(topic, known)) else {
                continue;
            };
            let end = out.0.len();
            out.catalogue_entry(topic, &claim, sequence);
            if end > 0 && out.0.len() > bytes_max {
                out.0.truncate(end);
                return last;
            }
            last = Some(Arc::clone(topic));
        }
        None
    }

    /// Handles another node's announcement.
    pub(super) fn receive_positions(&mut self, node: NodeId, body: &[u8], now: Instant) {
        let mut body = KeyDecoder(body);
        while let Some((topic, claim, sequence)) = body.catalogue_entry() {
            if !self.is_durable(topic) {
                continue;
            }
            let owned = self.topics.get(topic).map(|known| (known.replica, known.claim));
            match owned {
                Some((ReplicaState::Owned, own)) if claim.beats(&own) => self.claim_above(topic, claim),
                Some((ReplicaState::Owned, _)) => self.announce_again(topic),
                Some(_) => {}
                // The topic's node is about to claim it.
                None => {
                    self.follow(topic, claim, EarlierKeys::Unknown, 0, now);
                }
            }
            if let Some((topic, _)) = self.topics.get_key_value(topic) {
                let known = self.positions.by_topic.entry(Arc::clone(topic)).or_default();
                known.insert(node.id, (claim, sequence));
            }
        }
    }

    /// A node has returned with a higher claim, which no living node knew: the topic has an owner, which remains.
    fn claim_above(&mut self, topic: &str, claim: Claim) {
        let Some((topic, _)) = self.topics.get_key_value(topic) else { return };
        let topic = Arc::clone(topic);
        if let Some(omitted) = LACKED_KEYS.permit(self.now) {
            tracing::warn!(topic = &*topic, owner = %format!("{:032x}", claim.owner), omitted,
                "a node has returned with keys of a topic that the cluster has replaced meanwhile: they are lost");
        }
        if let Some(known) = self.topics.get_mut(&topic) {
            known.claim.term = known.claim.term.max(claim.term);
            known.claim.epoch = known.claim.epoch.max(claim.epoch);
        }
        self.claim(&topic);
    }

    /// Warns about an earlier owner's changes that only this node has.
    pub(super) fn warn_of_lost_changes(&self, topic: &str, from: Position) {
        let known = self.topics.get(topic).filter(|_| self.is_durable(topic));
        let Some((claim, sequence)) = known.and_then(|known| self.own_position(topic, known)) else { return };
        if claim.epoch == from.epoch
            && sequence > from.sequence
            && let Some(omitted) = LACKED_KEYS.permit(self.now)
        {
            tracing::warn!(
                topic,
                changes = sequence - from.sequence,
                omitted,
                "another node owns the keys of a topic, and had not received the last changes: they are lost"
            );
        }
    }

    /// The owner does not own a durable topic any more: the node with the latest keys claims it.
    pub(super) fn orphan(&mut self, topic: &Arc<str>, now: Instant) {
        if let Some(known) = self.topics.get_mut(topic) {
            // No node has this id.
            known.claim.owner = 0;
            let claim = known.claim;
            self.shared.lock().claims.insert(Arc::clone(topic), claim);
            self.orphans.entry(Arc::clone(topic)).or_insert(now);
            self.positions.announce_soon();
        }
    }

    /// Handles a change in a topic's keys, or their owner: the disk follows.
    pub(super) fn note_durable(&self, topic: &Arc<str>) {
        if let Some(store) = self.shared.store_of(topic) {
            store.changed(topic);
        }
    }

    /// Ends writes by this node's clients that are stored here, and whose changes the kernel has. The connection's
    /// output has all changes that were flushed.
    pub(crate) fn finish_stored(&self, output: OutputOffsets, now: Instant) {
        let Some(store) = self.shared.store() else { return };
        let waiting = std::mem::take(&mut self.shared.lock().unstored);
        if waiting.is_empty() {
            return;
        }
        let mut left = Vec::new();
        for mut write in waiting {
            let deadline = *write.deadline.get_or_insert(now + WRITE_TIMEOUT);
            let position = write.written.position;
            if write.output_end.is_none() && self.is_published(&write.topic, position) {
                write.output_end = Some(output.end);
            }
            let is_sent = write.output_end.is_some_and(|end| end <= output.sent);
            let is_published = self.connected.is_none() || is_sent;
            let is_stored = store.is_stored(&write.topic, position);
            let result = if is_stored && is_published {
                Ok(write.written)
            } else if !is_stored && let Some(problem) = store.reject_write(&write.topic) {
                Err(not_stored(&write.topic, &problem.text))
            } else if deadline <= now {
                store.count_rejected(FaultCause::TimedOut);
                Err(not_stored(&write.topic, "the disk or the broker has not answered in time"))
            } else {
                left.push(write);
                continue;
            };
            // The client may have gone.
            let UnstoredWrite { done, .. } = write;
            let _: Result<(), Result<KeyWritten, Problem>> = done.send(result);
        }
        let mut work = self.shared.lock();
        left.append(&mut work.unstored);
        work.unstored = left;
    }

    /// Forgets a connection's output, which is lost.
    pub(super) fn forget_output(&self) {
        self.shared.lock().unstored.iter_mut().for_each(|write| write.output_end = None);
    }

    fn is_published(&self, topic: &str, position: Position) -> bool {
        self.topics
            .get(topic)
            .is_some_and(|known| known.claim.epoch == position.epoch && known.published >= position.sequence)
    }
}

/// The error for a write that is applied, and not stored.
pub(super) fn not_stored(topic: &str, reason: &str) -> Problem {
    let text = format!("the key of {} is written in memory, and not stored: {reason}", brief(topic));
    problem(code::STORE, text)
}
