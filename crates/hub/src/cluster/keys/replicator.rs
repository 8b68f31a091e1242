//! The part of the link's thread for the keys of topics, without I/O: owners, changes and replicas.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sinews_server::{KeyedSnapshot, Position, Publisher, ReplicaError};

use super::ClusterKeys;
use super::claim::{topic_hash, weight};
use super::transfer::{KeySender, KeyTarget, RemoteKeys, Transfers};
use super::wire::{ChangeItem, Decoder, Encoder, Precursor};
use super::writes::Writes;
use crate::cluster::message::{MessageKind, NodeId};
use crate::topics::shared_keys::Claim;

/// The processes that share keys, without this one, by the id of their node.
pub(in crate::cluster) type KeyNodes = BTreeMap<u128, NodeId>;

/// Size of a message with the changes of several topics, in bytes.
const BATCH_BYTES: usize = 32 << 10;

/// Bytes that wait for the broker, above which changes wait, too: then each key is sent once, with its last value.
pub(super) const WAITING_MAX: usize = 256 << 10;

/// Time after a login in which each living node sends a heartbeat.
pub(super) const SYNC_MIN: Duration = Duration::from_millis(1_200);

/// Time after the return of the broker in which other nodes return, too: the longest delay of an attempt, and the time
/// after which a node without heartbeats is dead.
const RETURN_GRACE: Duration = Duration::from_secs(10);

/// Delay between the claims of the nodes that may succeed an owner: the first one claims at once.
const CLAIM_DELAY: Duration = Duration::from_secs(1);

/// Additional delay of nodes with an older replica, and of nodes with none.
const STALE_DELAY: Duration = Duration::from_secs(3);
const EMPTY_DELAY: Duration = Duration::from_secs(6);

/// Interval of the search for topics to claim.
const CLAIM_INTERVAL: Duration = Duration::from_millis(100);

/// Time without the broker after which this node discards its keys if another node was connected meanwhile: removals may
/// be forgotten there.
pub(super) const ABSENCE_MAX: Duration = Duration::from_secs(60);

/// State of the keys of all nodes, as this node knows it.
pub(in crate::cluster) struct KeyReplicator {
    pub(super) own: u128,
    pub(super) publisher: Publisher,
    pub(super) shared: Arc<ClusterKeys>,
    pub(super) nodes: KeyNodes,
    pub(super) topics: BTreeMap<Arc<str>, SharedTopic>,
    pub(super) remotes: BTreeMap<NodeId, RemoteKeys>,
    pub(super) transfers: Transfers,
    pub(super) writes: Writes,
    /// Number of the last message with changes.
    pub(super) number: u64,
    /// Owned topics with changes to send, in order.
    pub(super) dirty: VecDeque<Arc<str>>,
    pub(super) is_dirty: BTreeSet<Arc<str>>,
    emptied: BTreeSet<Arc<str>>,
    orphans: BTreeMap<Arc<str>, Instant>,
    claims_at: Instant,
    pub(super) connected: Option<Instant>,
    /// Since when the broker has been away; before the first login `None`.
    pub(super) away: Option<Instant>,
    /// How long the broker was away before the last login.
    pub(super) absence: Option<Duration>,
    /// All owners are known.
    pub(super) is_synced: bool,
    /// A handover from a predecessor process, if there is one, is complete.
    pub(super) is_serving: bool,
    last_epoch: u64,
}

/// A topic with an owner.
#[derive(Debug)]
pub(super) struct SharedTopic {
    pub(super) claim: Claim,
    pub(super) replica: ReplicaState,
    /// Owned topics: the changes up to here have been sent.
    published: u64,
    /// Owned topics: what the others need to know before the next changes.
    precursor: Precursor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplicaState {
    /// This node owns the topic.
    Owned,
    /// All changes that are known are applied.
    Current,
    /// Changes are missing: they are requested, or all keys.
    Stale { needs_all: bool },
    /// The replica does not fit into the memory limit.
    Refused,
}

impl KeyReplicator {
    pub(in crate::cluster) fn new(own: u128, publisher: Publisher, shared: Arc<ClusterKeys>) -> Self {
        Self {
            own,
            publisher,
            shared,
            nodes: KeyNodes::new(),
            topics: BTreeMap::new(),
            remotes: BTreeMap::new(),
            transfers: Transfers::default(),
            writes: Writes::default(),
            number: 0,
            dirty: VecDeque::new(),
            is_dirty: BTreeSet::new(),
            emptied: BTreeSet::new(),
            orphans: BTreeMap::new(),
            claims_at: Instant::now(),
            connected: None,
            away: None,
            absence: None,
            is_synced: false,
            is_serving: false,
            last_epoch: 0,
        }
    }

    /// Number of the last message with changes, for the heartbeat.
    pub(in crate::cluster) fn number(&self) -> u64 {
        self.number
    }

    /// Time since the login at the broker.
    pub(in crate::cluster) fn connected_for(&self, now: Instant) -> Duration {
        self.connected.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    /// Begins to share keys, with the owners that a predecessor process knew.
    pub(in crate::cluster) fn serve(&mut self, now: Instant) {
        if std::mem::replace(&mut self.is_serving, true) {
            return;
        }
        let inherited = std::mem::take(&mut self.shared.lock().inherited);
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
        // The other nodes compare the topics of this process with those of its predecessor.
        self.number += 1;
        self.connected = self.connected.map(|_| now);
    }

    fn insert(&mut self, topic: &Arc<str>, claim: Claim, replica: ReplicaState, published: u64) {
        let known = SharedTopic { claim, replica, published, precursor: Precursor::Same };
        self.topics.insert(Arc::clone(topic), known);
        self.shared.lock().claims.insert(Arc::clone(topic), claim);
    }

    /// The broker has accepted the login.
    pub(in crate::cluster) fn connected(&mut self, now: Instant) {
        self.connected = Some(now);
        self.absence = self.away.take().map(|since| now.saturating_duration_since(since));
        self.remotes.values_mut().for_each(RemoteKeys::unconfirm);
    }

    pub(in crate::cluster) fn disconnected(&mut self, now: Instant) {
        if self.connected.take().is_some() {
            self.away = Some(now);
        }
        self.is_synced = false;
        self.transfers.clear();
        self.orphans.clear();
        self.shared.end_loading();
        self.fail_writes();
    }

    /// Notes the living nodes. While the broker is away, owners remain.
    pub(in crate::cluster) fn set_nodes(&mut self, nodes: KeyNodes, now: Instant) {
        if self.connected.is_none() || self.nodes == nodes {
            return;
        }
        self.remotes.retain(|node, _| nodes.get(&node.id) == Some(node));
        self.nodes = nodes;
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
    }

    pub(super) fn is_alive(&self, node: u128) -> bool {
        node == self.own || self.nodes.contains_key(&node)
    }

    /// The position of this node among the nodes that may claim a topic, and the first of them.
    pub(super) fn rank(&self, topic: &str) -> (u32, u128) {
        let hash = topic_hash(topic);
        let (own, mut first, mut rank) = (weight(self.own, hash), weight(self.own, hash), 0);
        for node in self.nodes.keys() {
            let other = weight(*node, hash);
            rank += u32::from(other > own);
            first = first.max(other);
        }
        (rank, first.1)
    }

    /// Does all that is due.
    pub(in crate::cluster) fn run(&mut self, sender: &dyn KeySender, now: Instant) {
        if !self.is_serving {
            return;
        }
        self.take_submitted(now);
        if self.connected.is_none() {
            return;
        }
        self.update_sync(sender, now);
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
    pub(in crate::cluster) fn next_due(&self, now: Instant) -> Option<Instant> {
        if !self.is_serving || self.connected.is_none() {
            return None;
        }
        let sync = (!self.is_synced).then_some(now + CLAIM_INTERVAL / 2);
        let claims = (!self.orphans.is_empty()).then_some(self.claims_at);
        [sync, claims, self.writes.next_due(), self.transfers.next_due()].into_iter().flatten().min()
    }

    /// Whether changes or parts wait until the broker has accepted others.
    pub(in crate::cluster) fn has_output(&self) -> bool {
        self.connected.is_some() && (!self.dirty.is_empty() || self.transfers.has_output())
    }

    fn update_sync(&mut self, sender: &dyn KeySender, now: Instant) {
        if self.is_synced && self.shared.is_loaded() {
            return;
        }
        if self.connected_for(now) < SYNC_MIN {
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
        let is_missing = |topic: &SharedTopic| {
            matches!(topic.replica, ReplicaState::Stale { .. }) && self.is_alive(topic.claim.owner)
        };
        if self.is_synced && !self.shared.is_loaded() && !self.topics.values().any(is_missing) {
            self.shared.finish_loading();
        }
    }

    fn claim_orphans(&mut self, now: Instant) {
        let Some(connected) = self.connected else { return };
        let grace = self.absence.map_or(connected, |_| connected + RETURN_GRACE);
        let orphans: Vec<(Arc<str>, Instant)> =
            self.orphans.iter().map(|(topic, since)| (Arc::clone(topic), *since)).collect();
        for (topic, since) in orphans {
            let Some(known) = self.topics.get(&topic) else { continue };
            let delay = match known.replica {
                ReplicaState::Current | ReplicaState::Owned => Duration::ZERO,
                ReplicaState::Stale { needs_all: false } => STALE_DELAY,
                _ => EMPTY_DELAY,
            };
            let due = since.max(grace) + CLAIM_DELAY * self.rank(&topic).0 + delay;
            if now >= due {
                self.claim(&topic);
            }
        }
    }

    /// Owns a topic from now on. Returns whether it does.
    pub(super) fn claim(&mut self, topic: &Arc<str>) -> bool {
        let known = self.topics.get(topic).map(|known| (known.claim, known.replica));
        let epoch = self.new_epoch(known.map_or(0, |(claim, _)| claim.epoch));
        let Ok(before) = self.publisher.own_keyed_topic(topic, epoch) else { return false };
        let is_empty = || {
            let keys = self.publisher.shared_keyed_topic(topic);
            keys.is_none_or(|keys| keys.keys.is_empty())
        };
        let precursor = match known {
            Some((_, ReplicaState::Current | ReplicaState::Owned)) => Precursor::At(before),
            None if is_empty() => Precursor::Nothing,
            _ => Precursor::Unknown,
        };
        if let Some((claim, replica)) = known
            && precursor == Precursor::Unknown
        {
            tracing::warn!(topic = &**topic, owner = %format!("{:032x}", claim.owner), ?replica,
                "the owner of the keys of a topic has gone, and no node has its last changes");
        }
        let term = known.map_or(0, |(claim, _)| claim.term).saturating_add(1);
        let claim = Claim { term, epoch, owner: self.own };
        self.insert(topic, claim, ReplicaState::Owned, before.sequence);
        if let Some(known) = self.topics.get_mut(topic) {
            known.precursor = precursor;
        }
        self.set_refused(topic, false);
        self.orphans.remove(topic);
        self.transfers.forget(topic);
        self.shared.counters.claims.fetch_add(1, Ordering::Relaxed);
        self.mark_dirty(topic);
        self.count_owned();
        true
    }

    fn count_owned(&self) {
        let owned = self.topics.values().filter(|topic| topic.replica == ReplicaState::Owned).count();
        self.shared.counters.owned.store(owned as u64, Ordering::Relaxed);
    }

    pub(super) fn set_refused(&self, topic: &Arc<str>, is_refused: bool) {
        let mut work = self.shared.lock();
        if is_refused {
            work.refused.insert(Arc::clone(topic));
        } else {
            work.refused.remove(topic);
        }
        self.shared.counters.refused.store(work.refused.len() as u64, Ordering::Relaxed);
    }

    /// An epoch after that of the last owner: the time in microseconds, which no epoch of an earlier run of the cluster
    /// has. Below 2^53 until the year 2255.
    fn new_epoch(&mut self, known: u64) -> u64 {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = u64::try_from(time.as_micros()).unwrap_or(0) & ((1 << 53) - 1);
        self.last_epoch = time.max(self.last_epoch + 1).max(known + 1);
        self.last_epoch
    }

    /// Ends the ownership of topics of which nothing is left.
    fn release_emptied(&mut self, sender: &dyn KeySender) {
        if !self.is_synced {
            return;
        }
        for topic in std::mem::take(&mut self.emptied) {
            let Some(claim) = self.topics.get(&topic).map(|known| known.claim) else { continue };
            if claim.owner != self.own || !self.publisher.release_keyed_topic(&topic) {
                continue;
            }
            self.forget(&topic);
            let mut out = self.begin_changes();
            out.item(&topic, &claim, &ChangeItem::Release);
            sender.send(KeyTarget::All, MessageKind::KeyChanges, &out.0);
            self.count_owned();
        }
    }

    fn forget(&mut self, topic: &Arc<str>) {
        self.topics.remove(topic);
        self.orphans.remove(topic);
        self.transfers.forget(topic);
        self.shared.lock().claims.remove(topic);
        self.set_refused(topic, false);
    }

    fn begin_changes(&mut self) -> Encoder {
        self.number += 1;
        Encoder(self.number.to_le_bytes().to_vec())
    }

    /// Largest size of the keys in one message, in bytes.
    pub(super) fn part_bytes(sender: &dyn KeySender) -> usize {
        (sender.max_payload() / 4).clamp(1_024, 256 << 10)
    }

    /// Sends the changes of owned topics.
    pub(super) fn flush(&mut self, sender: &dyn KeySender) {
        let mut out: Option<Encoder> = None;
        while sender.waiting() <= WAITING_MAX {
            let Some(topic) = self.dirty.pop_front() else { break };
            self.is_dirty.remove(&topic);
            let Some((claim, item)) = self.take_changes(&topic, Self::part_bytes(sender)) else { continue };
            let mut body = out.take().unwrap_or_else(|| self.begin_changes());
            body.item(&topic, &claim, &item);
            if body.0.len() >= BATCH_BYTES {
                sender.send(KeyTarget::All, MessageKind::KeyChanges, &body.0);
            } else {
                out = Some(body);
            }
        }
        if let Some(body) = out {
            sender.send(KeyTarget::All, MessageKind::KeyChanges, &body.0);
        }
    }

    fn take_changes(&mut self, topic: &Arc<str>, bytes_max: usize) -> Option<(Claim, ChangeItem)> {
        let known = self.topics.get_mut(topic).filter(|known| known.replica == ReplicaState::Owned)?;
        let after = known.published;
        let precursor = std::mem::replace(&mut known.precursor, Precursor::Same);
        let Some(changes) = self.publisher.owned_key_changes(topic, after, bytes_max) else {
            // Removals are forgotten: the replicas request all keys.
            let end = self.publisher.keyed_position(topic)?.sequence;
            known.published = end;
            let (precursor, keys) = (Precursor::Same, Vec::new());
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

    /// Announces the claim to an owned topic again, since another node does not know it.
    pub(super) fn announce_again(&mut self, topic: &str) {
        if let Some((topic, known)) = self.topics.get_key_value(topic)
            && known.replica == ReplicaState::Owned
        {
            let topic = Arc::clone(topic);
            self.mark_dirty(&topic);
        }
    }

    /// Applies changes of another node.
    pub(super) fn receive_changes(
        &mut self,
        node: NodeId,
        body: &[u8],
        sender: &dyn KeySender,
        now: Instant,
    ) {
        let mut body = Decoder(body);
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
                    let changes = KeyedSnapshot { topic: topic.to_owned(), position, forgotten: 0, keys };
                    if self.follow(topic, claim, (precursor, after), now) {
                        self.apply(topic, after, changes, now);
                    }
                }
            }
        }
        self.request_catalogue(node, sender, now);
    }

    fn released(&mut self, topic: &str, claim: Claim) {
        let Some((topic, known)) = self.topics.get_key_value(topic) else { return };
        if known.claim == claim {
            let topic = Arc::clone(topic);
            self.disown(&topic);
        }
    }

    /// Removes a topic that its owner has released.
    pub(super) fn disown(&mut self, topic: &Arc<str>) {
        self.forget(topic);
        // Its name was valid when it was inserted.
        let _ = self.publisher.disown_keyed_topic(topic);
    }

    /// Compares a claim with the known one, and follows the better one. Returns whether it is the claim that is followed.
    pub(super) fn follow(
        &mut self,
        topic: &str,
        claim: Claim,
        (precursor, after): (Precursor, u64),
        now: Instant,
    ) -> bool {
        let known = self.topics.get(topic).map(|known| known.claim);
        if known == Some(claim) {
            return true;
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
        let continued = match precursor {
            Precursor::At(from) => self.publisher.adopt_keyed_topic(topic, from, claim.epoch),
            Precursor::Nothing => self.publisher.install_keyed_topic(KeyedSnapshot {
                topic: topic.to_owned(),
                position: Position { epoch: claim.epoch, sequence: after },
                forgotten: after,
                keys: Vec::new(),
            }),
            Precursor::Same | Precursor::Unknown => Err(ReplicaError::Gap),
        };
        let topic: Arc<str> = topic.into();
        let is_current = continued.is_ok();
        let replica =
            if is_current { ReplicaState::Current } else { ReplicaState::Stale { needs_all: true } };
        self.insert(&topic, claim, replica, 0);
        self.set_refused(&topic, false);
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
                if known.replica != ReplicaState::Current {
                    known.replica = ReplicaState::Current;
                    self.transfers.forget(topic);
                    self.set_refused(topic, false);
                }
            }
            Err(ReplicaError::ServerFull) => {
                if known.replica != ReplicaState::Refused {
                    tracing::error!(
                        topic = &**topic,
                        "the keys of a topic exceed limits.max_keyed_memory of this node: it has none of them"
                    );
                }
                known.replica = ReplicaState::Refused;
                self.set_refused(topic, true);
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

    /// Another node was connected while this node was not, for so long that it may have forgotten removals.
    pub(super) fn discard(&mut self) {
        tracing::warn!("this node was away from the cluster for long: it takes the keys of the other nodes");
        let topics: Vec<Arc<str>> = self.topics.keys().cloned().collect();
        topics.iter().for_each(|topic| self.disown(topic));
        self.remotes.clear();
        // The other nodes notice that it owns nothing.
        self.number += 1;
        self.count_owned();
    }
}

impl KeyReplicator {
    /// Handles a message of another node.
    pub(in crate::cluster) fn receive(
        &mut self,
        node: NodeId,
        kind: MessageKind,
        body: &[u8],
        (sender, now): (&dyn KeySender, Instant),
    ) {
        if !self.is_serving || self.connected.is_none() {
            return;
        }
        match kind {
            MessageKind::KeyChanges => self.receive_changes(node, body, sender, now),
            MessageKind::KeyCatalogue => self.receive_catalogue(node, body, now),
            MessageKind::KeyRequest => self.receive_request(node, body),
            MessageKind::KeyState => self.receive_state(node, body, now),
            MessageKind::KeyWrite => self.receive_write(node, body),
            MessageKind::KeyResult => self.receive_result(node, body, now),
            _ => {}
        }
    }
}
