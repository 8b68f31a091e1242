//! The part of the link's thread for the keys of topics, without I/O: owners, changes and replicas.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sinews_server::{KeyedSnapshot, Position, Publisher, ReplicaError, TopicName};

use super::durable::AnnouncedPositions;
use super::settling::{SYNC_MIN, Settling};
use super::shared::{ClusterKeys, LoadFailure};
use super::transfer::{KeySender, KeyTarget, RemoteKeys, Transfers};
use super::wire::{ChangeItem, EarlierKeys, KeyDecoder, KeyEncoder};
use super::writes::KeyWrites;
use crate::cluster::log_limit::log_excess_keys;
use crate::cluster::message::{MessageKind, NodeId};
use crate::topics::shared_keys::Claim;

/// The processes that share keys, without this one, by their node's id.
pub(crate) type KeyNodes = BTreeMap<u128, NodeId>;

/// Size of a message with the changes of several topics, in bytes.
const BATCH_BYTES: usize = 32 << 10;

/// Bytes that wait for the broker, above which changes wait, too: then each key is sent once, with its last value.
pub(super) const WAITING_MAX: usize = 256 << 10;

/// Interval of the search for topics to claim.
const CLAIM_INTERVAL: Duration = Duration::from_millis(100);

/// Time without the broker after which this node discards its keys if another node was connected meanwhile: removals
/// may be forgotten there.
pub(super) const ABSENCE_MAX: Duration = Duration::from_secs(60);

/// State of the keys of all nodes, as this node knows it.
pub(crate) struct KeyReplicator {
    pub(super) own: u128,
    pub(super) publisher: Publisher,
    pub(super) shared: Arc<ClusterKeys>,
    pub(super) nodes: KeyNodes,
    pub(super) topics: BTreeMap<Arc<str>, SharedTopic>,
    pub(super) remotes: BTreeMap<NodeId, RemoteKeys>,
    pub(super) transfers: Transfers,
    pub(super) writes: KeyWrites,
    /// Number of the last message with changes.
    pub(super) number: u64,
    /// Owned topics with changes to send, in order.
    pub(super) dirty: VecDeque<Arc<str>>,
    pub(super) is_dirty: BTreeSet<Arc<str>>,
    pub(super) emptied: BTreeSet<Arc<str>>,
    pub(super) orphans: BTreeMap<Arc<str>, Instant>,
    pub(super) positions: AnnouncedPositions,
    claims_at: Instant,
    /// The time of the last call.
    pub(super) now: Instant,
    pub(super) connected: Option<Instant>,
    pub(super) first_connected: Option<Instant>,
    /// An attempt to connect has failed before the first login, and perhaps owners have not returned yet.
    pub(super) starts_in_outage: bool,
    /// When all nodes were here that this node had seen before its start.
    pub(super) restored: Option<Instant>,
    /// The ids of the directories of other nodes.
    pub(super) stores: BTreeMap<u128, u64>,
    /// Nodes, or the ids of their directories, have changed.
    pub(super) has_new_nodes: bool,
    /// The ids of the nodes that were stored last.
    pub(super) members: Vec<u64>,
    /// Since when the broker has been unreachable; before the first login `None`.
    pub(super) away: Option<Instant>,
    /// How long the broker was unreachable before the last login.
    pub(super) absence: Option<Duration>,
    /// The topics of all nodes that this node sees are known.
    pub(super) is_synced: bool,
    pub(super) settling: Settling,
    /// A handover from a predecessor process, if there is one, is complete.
    pub(super) is_serving: bool,
    pub(super) last_epoch: u64,
}

/// A topic with an owner.
#[derive(Debug)]
pub(super) struct SharedTopic {
    pub(super) claim: Claim,
    pub(super) replica: ReplicaState,
    /// The claim that this node's keys belong to; `None`: it has none.
    pub(super) keys_of: Option<Claim>,
    /// Owned topics: the changes up to here have been sent.
    pub(super) published: u64,
    /// Owned topics: what the others need to know before the next changes.
    pub(super) precursor: EarlierKeys,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplicaState {
    /// This node owns the topic.
    Owned,
    /// All changes that are known are applied.
    Current,
    /// Changes are missing: they are requested, or all keys.
    Stale { needs_all: bool },
    /// The node continues without the keys: they do not fit into the memory limit, or do not arrive.
    Refused,
}

impl KeyReplicator {
    pub(crate) fn new(own: u128, publisher: Publisher, shared: Arc<ClusterKeys>) -> Self {
        Self {
            own,
            publisher,
            shared,
            nodes: KeyNodes::new(),
            topics: BTreeMap::new(),
            remotes: BTreeMap::new(),
            transfers: Transfers::default(),
            writes: KeyWrites::default(),
            number: 0,
            dirty: VecDeque::new(),
            is_dirty: BTreeSet::new(),
            emptied: BTreeSet::new(),
            orphans: BTreeMap::new(),
            positions: AnnouncedPositions::default(),
            claims_at: Instant::now(),
            now: Instant::now(),
            connected: None,
            first_connected: None,
            starts_in_outage: false,
            restored: None,
            stores: BTreeMap::new(),
            has_new_nodes: true,
            members: Vec::new(),
            away: None,
            absence: None,
            is_synced: false,
            settling: Settling::default(),
            is_serving: false,
            last_epoch: 0,
        }
    }

    /// Returns the id of this node's directory, for the heartbeat.
    pub(super) fn store_id(&self) -> Option<u64> {
        self.shared.store()?.node()
    }

    /// Time since the login at the broker.
    pub(super) fn connected_for(&self, now: Instant) -> Duration {
        self.connected.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Begins to share keys, with the owners that a predecessor process knew.
    pub(crate) fn serve(&mut self, now: Instant) {
        if std::mem::replace(&mut self.is_serving, true) {
            return;
        }
        let inherited = std::mem::take(&mut self.shared.lock().inherited);
        if !inherited.is_empty() {
            // Perhaps the broker has just returned, and owners return later than this process.
            self.absence.get_or_insert(Duration::ZERO);
        }
        for (topic, claim) in inherited {
            let position = self.publisher.keyed_position(&topic);
            let is_restored = position.is_some_and(|position| position.epoch == claim.epoch);
            let topic: Arc<str> = topic.into();
            let is_own = claim.owner == self.own && is_restored;
            if is_own && self.publisher.own_keyed_topic(&topic, claim.epoch).is_ok() {
                let published = position.map_or(0, |position| position.sequence);
                self.insert(&topic, claim, ReplicaState::Owned, published);
                continue;
            }
            self.publisher.follow_keyed_topic(&topic);
            if is_restored {
                self.insert(&topic, claim, ReplicaState::Current, 0);
            } else {
                self.insert(&topic, claim, ReplicaState::Stale { needs_all: true }, 0);
                self.transfers.need(&topic, now);
            }
        }
        self.count_owned();
        // The other nodes compare this process's topics with those of its predecessor.
        self.number += 1;
        self.connected = self.connected.map(|_| now);
        // The nodes that were there before the handover do not notify this one when an owner ends.
        self.find_orphans(now);
    }

    pub(super) fn insert(&mut self, topic: &Arc<str>, claim: Claim, replica: ReplicaState, published: u64) {
        let has_keys = matches!(replica, ReplicaState::Current | ReplicaState::Owned);
        let before = self.topics.get(topic).and_then(|known| known.keys_of);
        let keys_of = if has_keys { Some(claim) } else { before };
        let known = SharedTopic { claim, replica, keys_of, published, precursor: EarlierKeys::Same };
        self.topics.insert(Arc::clone(topic), known);
        let is_learned = keys_of.is_none() && !self.shared.is_complete();
        let mut work = self.shared.lock();
        work.claims.insert(Arc::clone(topic), claim);
        if is_learned {
            work.learned.insert(Arc::clone(topic));
        }
        drop(work);
        if has_keys {
            self.positions.forget(topic);
            self.note_durable(topic);
        }
    }

    /// The broker has accepted the login.
    pub(crate) fn connected(&mut self, now: Instant) {
        self.connected = Some(now);
        self.first_connected.get_or_insert(now);
        let absence = self.away.take().map(|since| now.saturating_duration_since(since));
        self.absence = absence.or(self.absence);
        self.settling.log_in(absence, now);
        if self.shared.is_loaded() {
            self.shared.rejoin();
        }
        self.remotes.values_mut().for_each(RemoteKeys::unconfirm);
        self.find_orphans(now);
    }

    /// The broker is unreachable, and was last heard at this time: a process that was stopped notices it later.
    pub(crate) fn disconnected(&mut self, heard: Instant) {
        self.starts_in_outage |= self.first_connected.is_none();
        if self.connected.take().is_some() {
            self.away = Some(heard);
        }
        self.is_synced = false;
        self.transfers.clear();
        self.orphans.clear();
        self.positions.stop();
        self.forget_output();
        self.shared.end_loading();
        self.fail_writes();
    }

    /// Notes the living nodes. While the broker is unreachable, owners remain.
    pub(crate) fn set_nodes(&mut self, nodes: KeyNodes, now: Instant) {
        if self.connected.is_none() || self.nodes == nodes {
            return;
        }
        self.remotes.retain(|node, _| nodes.get(&node.id) == Some(node));
        self.stores.retain(|node, _| nodes.contains_key(node));
        self.settling.retain(|node| nodes.contains_key(&node));
        self.has_new_nodes = true;
        self.nodes = nodes;
        self.find_orphans(now);
    }

    /// Notes the topics whose owner has gone.
    fn find_orphans(&mut self, now: Instant) {
        let mut orphans = std::mem::take(&mut self.orphans);
        orphans.retain(|topic, _| self.topics.contains_key(topic));
        for (topic, known) in &self.topics {
            if self.is_alive(known.claim.owner) {
                orphans.remove(topic);
            } else {
                orphans.entry(Arc::clone(topic)).or_insert(now);
            }
        }
        self.orphans = orphans;
        self.positions.announce_soon();
    }

    /// Does all that is due.
    pub(crate) fn run(&mut self, sender: &dyn KeySender, now: Instant) {
        if !self.is_serving {
            return;
        }
        self.now = now;
        self.take_restored(now);
        self.take_submitted(now);
        if self.connected.is_none() {
            return;
        }
        self.announce_positions(sender);
        self.update_sync(sender, now);
        self.update_settled(now);
        self.update_loaded();
        if self.is_synced {
            self.update_members();
        }
        if self.is_synced && !self.orphans.is_empty() && now >= self.claims_at {
            self.claims_at = now + CLAIM_INTERVAL;
            self.claim_orphans(now);
        }
        self.run_writes(sender, now);
        self.release_emptied(sender);
        self.flush(sender);
        self.run_transfers(sender, now);
        self.send_results(sender);
    }

    fn take_submitted(&mut self, now: Instant) {
        let mut work = self.shared.lock();
        let changed = std::mem::take(&mut work.changed);
        let emptied = std::mem::take(&mut work.emptied);
        let submitted = std::mem::take(&mut work.writes);
        drop(work);
        changed.into_iter().for_each(|topic| self.mark_dirty(&topic));
        self.emptied.extend(emptied);
        for write in submitted {
            self.accept_write(write, now);
        }
    }

    pub(super) fn mark_dirty(&mut self, topic: &Arc<str>) {
        if self.is_dirty.insert(Arc::clone(topic)) {
            self.dirty.push_back(Arc::clone(topic));
        }
    }

    /// When [`run`](Self::run) has something to do next without an event, besides changes that wait for the broker.
    pub(crate) fn next_due(&self, now: Instant) -> Option<Instant> {
        if !self.is_serving || self.connected.is_none() {
            return None;
        }
        let sync = (!self.is_synced || !self.settling.is_settled()).then_some(now + CLAIM_INTERVAL / 2);
        let claims = (self.is_synced && !self.orphans.is_empty()).then_some(self.claims_at);
        [sync, claims, self.writes.next_due(), self.transfers.next_due()].into_iter().flatten().min()
    }

    /// Whether changes or parts wait until the broker has accepted others.
    pub(crate) fn has_output(&self) -> bool {
        let has_output = !self.dirty.is_empty() || self.transfers.has_output() || self.positions.has_output();
        self.connected.is_some() && has_output
    }

    fn update_sync(&mut self, sender: &dyn KeySender, now: Instant) {
        // Until then, nodes are found that own topics.
        let is_final = self.settling.is_settled() && self.shared.is_complete();
        if self.is_synced && is_final || self.connected_for(now) < SYNC_MIN {
            return;
        }
        let unconfirmed: Vec<NodeId> = self
            .nodes
            .values()
            .filter(|node| !self.remotes.get(node).is_some_and(RemoteKeys::is_confirmed))
            .copied()
            .collect();
        for node in &unconfirmed {
            self.request_catalogue(*node, sender, now);
        }
        self.is_synced = unconfirmed.is_empty();
    }

    /// Ends what waits for the keys of the other nodes, once they are here.
    fn update_loaded(&self) {
        if self.shared.is_complete() || !self.is_synced || !self.settling.is_settled() {
            return;
        }
        // Another node claims a dead owner's topic, and may have its keys. A durable one may wait long for its latest
        // copy.
        let is_claimed_soon = |topic: &Arc<str>| self.orphans.contains_key(topic) && !self.is_durable(topic);
        let is_missing = |(name, topic): (&Arc<str>, &SharedTopic)| {
            matches!(topic.replica, ReplicaState::Stale { .. })
                && (self.is_alive(topic.claim.owner) || is_claimed_soon(name))
        };
        if !self.topics.iter().any(is_missing) {
            self.shared.finish_loading();
        }
    }

    pub(super) fn set_refused(&self, topic: &Arc<str>, refusal: Option<LoadFailure>) {
        let mut work = self.shared.lock();
        match refusal {
            Some(refusal) => work.refused.insert(Arc::clone(topic), refusal),
            None => work.refused.remove(topic),
        };
        self.shared.counters.refused.store(work.refused.len() as u64, Ordering::Relaxed);
    }

    pub(super) fn forget(&mut self, topic: &Arc<str>) {
        self.topics.remove(topic);
        self.orphans.remove(topic);
        self.transfers.forget(topic);
        self.shared.lock().claims.remove(topic);
        self.set_refused(topic, None);
    }

    pub(super) fn begin_changes(&mut self) -> KeyEncoder {
        self.number += 1;
        KeyEncoder(self.number.to_le_bytes().to_vec())
    }

    /// Returns the maximum size of the keys in one message, in bytes.
    pub(super) fn part_bytes(sender: &dyn KeySender) -> usize {
        (sender.max_payload() / 4).clamp(1_024, 256 << 10)
    }

    /// Size in bytes that a message with several entries does not exceed.
    pub(super) fn batch_bytes(sender: &dyn KeySender) -> usize {
        BATCH_BYTES.min(sender.max_payload())
    }

    /// Sends the changes of owned topics.
    pub(super) fn flush(&mut self, sender: &dyn KeySender) {
        let mut out: Option<KeyEncoder> = None;
        let bytes_max = Self::batch_bytes(sender);
        while sender.waiting() <= WAITING_MAX {
            let Some(topic) = self.dirty.pop_front() else { break };
            self.is_dirty.remove(&topic);
            let Some((claim, item)) = self.take_changes(&topic, Self::part_bytes(sender)) else { continue };
            let mut entry = KeyEncoder(Vec::new());
            entry.item(&topic, &claim, &item);
            if let Some(full) = out.take_if(|body| body.0.len() + entry.0.len() > bytes_max) {
                sender.send(KeyTarget::All, MessageKind::KeyChanges, &full.0);
            }
            out.get_or_insert_with(|| self.begin_changes()).0.append(&mut entry.0);
        }
        if let Some(body) = out {
            sender.send(KeyTarget::All, MessageKind::KeyChanges, &body.0);
        }
    }

    fn take_changes(&mut self, topic: &Arc<str>, bytes_max: usize) -> Option<(Claim, ChangeItem)> {
        self.note_durable(topic);
        let known = self.topics.get_mut(topic).filter(|known| known.replica == ReplicaState::Owned)?;
        let after = known.published;
        let precursor = std::mem::replace(&mut known.precursor, EarlierKeys::Same);
        let Some(changes) = self.publisher.owned_key_changes(topic, after, bytes_max) else {
            // Removals are forgotten: the replicas request all keys.
            let end = self.publisher.keyed_position(topic)?.sequence;
            known.published = end;
            let (precursor, keys) = (EarlierKeys::Same, Vec::new());
            return Some((known.claim, ChangeItem::Changes { precursor, after: end, end, keys }));
        };
        let end = changes.position.sequence;
        known.published = end;
        let claim = known.claim;
        if self.publisher.keyed_position(topic).is_some_and(|position| position.sequence > end) {
            self.mark_dirty(topic);
        }
        Some((claim, ChangeItem::Changes { precursor, after, end, keys: changes.keys }))
    }

    /// Applies another node's changes.
    fn receive_changes(&mut self, node: NodeId, body: &[u8], sender: &dyn KeySender, now: Instant) {
        let mut body = KeyDecoder(body);
        let Some(number) = body.long() else { return };
        self.remotes.entry(node).or_default().note(number);
        while let Some((topic, claim, item)) = body.item() {
            if claim.owner != node.id {
                continue;
            }
            match item {
                ChangeItem::Release => self.released(topic, claim),
                ChangeItem::Changes { precursor, after, end, keys } => {
                    self.shared.counters.changes.fetch_add(keys.len() as u64, Ordering::Relaxed);
                    let position = Position { epoch: claim.epoch, sequence: end };
                    let changes = KeyedSnapshot {
                        topic: topic.to_owned(),
                        position,
                        forgotten: 0,
                        keys,
                        recent: Vec::new(),
                    };
                    if self.follow(topic, claim, precursor, after, now) {
                        self.apply(topic, after, changes, now);
                    }
                }
            }
        }
        self.request_catalogue(node, sender, now);
    }

    /// Compares a claim with the known one, and follows the better one. Returns whether it is the claim that is
    /// followed.
    pub(super) fn follow(
        &mut self,
        topic: &str,
        claim: Claim,
        precursor: EarlierKeys,
        after: u64,
        now: Instant,
    ) -> bool {
        let known = self.topics.get(topic).map(|known| known.claim);
        if known == Some(claim) {
            return true;
        }
        if TopicName::parse(topic).is_err() {
            return false;
        }
        if let Some(known) = known
            && !claim.beats(&known)
        {
            if known.owner == self.own {
                self.announce_again(topic);
            }
            return false;
        }
        if known.is_none_or(|known| known.owner == self.own) {
            self.publisher.follow_keyed_topic(topic);
        }
        if let EarlierKeys::At(from) = precursor {
            self.warn_of_lost_changes(topic, from);
        }
        let continued = match precursor {
            EarlierKeys::At(from) => self.publisher.adopt_keyed_topic(topic, from, claim.epoch),
            EarlierKeys::Nothing => self.publisher.install_keyed_topic(KeyedSnapshot {
                topic: topic.to_owned(),
                position: Position { epoch: claim.epoch, sequence: after },
                forgotten: after,
                keys: Vec::new(),
                recent: Vec::new(),
            }),
            EarlierKeys::Same | EarlierKeys::Unknown => Err(ReplicaError::Gap),
        };
        let topic: Arc<str> = topic.into();
        let is_current = continued.is_ok();
        let replica =
            if is_current { ReplicaState::Current } else { ReplicaState::Stale { needs_all: true } };
        self.insert(&topic, claim, replica, 0);
        self.set_refused(&topic, None);
        self.transfers.forget(&topic);
        if self.is_alive(claim.owner) {
            self.orphans.remove(&topic);
        } else {
            self.orphans.entry(Arc::clone(&topic)).or_insert(now);
        }
        if !is_current {
            self.transfers.need(&topic, now);
        }
        self.count_owned();
        true
    }

    fn apply(&mut self, topic: &str, after: u64, changes: KeyedSnapshot, now: Instant) {
        let Some((topic, known)) = self.topics.get_key_value(topic) else { return };
        let topic = Arc::clone(topic);
        match known.replica {
            ReplicaState::Owned | ReplicaState::Refused | ReplicaState::Stale { needs_all: true } => {}
            ReplicaState::Current => {
                let applied = self.publisher.apply_key_changes(after, changes);
                self.note_applied(&topic, applied, now);
            }
            ReplicaState::Stale { needs_all: false } => {
                // The missing changes are on their way.
                if self.publisher.apply_key_changes(after, changes).is_ok() {
                    self.note_applied(&topic, Ok(()), now);
                }
            }
        }
    }

    /// Notes the result of a change of a replica.
    pub(super) fn note_applied(&mut self, topic: &Arc<str>, applied: Result<(), ReplicaError>, now: Instant) {
        let Some(known) = self.topics.get_mut(topic) else { return };
        match applied {
            Ok(()) => {
                known.keys_of = Some(known.claim);
                if known.replica != ReplicaState::Current {
                    known.replica = ReplicaState::Current;
                    self.transfers.forget(topic);
                    self.set_refused(topic, None);
                }
                self.note_durable(topic);
            }
            Err(ReplicaError::ServerFull) => {
                known.keys_of = None;
                if known.replica != ReplicaState::Refused {
                    log_excess_keys(topic, now);
                }
                known.replica = ReplicaState::Refused;
                self.set_refused(topic, Some(LoadFailure::Memory));
                self.transfers.retry_refused(topic, now);
            }
            Err(error) => {
                let needs_all =
                    error != ReplicaError::Gap || known.replica == ReplicaState::Stale { needs_all: true };
                known.replica = ReplicaState::Stale { needs_all };
                self.transfers.need(topic, now);
            }
        }
    }

    /// Handles another node's message.
    pub(crate) fn receive(
        &mut self,
        node: NodeId,
        kind: MessageKind,
        body: &[u8],
        sender: &dyn KeySender,
        now: Instant,
    ) {
        if !self.is_serving || self.connected.is_none() {
            return;
        }
        self.now = now;
        match kind {
            MessageKind::KeyPositions => self.receive_positions(node, body, now),
            MessageKind::KeyChanges => self.receive_changes(node, body, sender, now),
            MessageKind::KeyCatalogue => self.receive_catalogue(node, body, now),
            MessageKind::KeyRequest => self.receive_request(node, body),
            MessageKind::KeyState => self.receive_state(node, body, now),
            MessageKind::KeyWrite => self.receive_write(node, body, now),
            MessageKind::KeyResult => self.receive_result(node, body, now),
            _ => {}
        }
    }
}
