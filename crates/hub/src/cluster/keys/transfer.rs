//! Catalogues of owned topics, and the states of topics, for nodes that have missed changes.
//!
//! A node numbers its messages with changes. A node that misses a number, or joins, requests the other one's catalogue:
//! the topics that it owns, with their positions. Where they differ, it requests the changes since its position, or all
//! keys. Requests are bounded, and answers wait while changes wait for the broker.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sinews_server::{KeySnapshot, KeyedSnapshot, Position};

use super::replicator::{ABSENCE_MAX, KeyReplicator, ReplicaState, WAITING_MAX};
use super::settling::KeysHeartbeat;
use super::shared::LoadFailure;
use super::wire::{EarlierKeys, KeyDecoder, KeyEncoder, KeyStateRequest, Part, StatePart};
use crate::cluster::log_limit::LACKED_KEYS;
use crate::cluster::message::{MessageKind, NodeId};
use crate::cluster::times::RETURN_TIME;
use crate::topics::shared_keys::Claim;

/// Interval between requests for the same catalogue or state.
const REQUEST_INTERVAL: Duration = Duration::from_secs(3);

/// Delay before a topic is requested again whose state could not be applied.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Delay before a topic is requested again that this node continues without.
const REFUSED_DELAY: Duration = Duration::from_secs(10);

/// Maximum requested states: their parts are in memory until the last one.
const REQUESTS_MAX: usize = 8;

/// Unanswered requests after which a node continues without a topic's keys.
const UNANSWERED_MAX: u32 = 3;

/// Nodes from which on an answer is sent to all nodes once.
const BROADCAST_MIN: usize = 3;

/// Maximum bytes in a catalogue part before its entries.
const CATALOGUE_HEAD: usize = 16;

/// Receiver of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyTarget {
    All,
    Node(NodeId),
}

/// Sends messages to other nodes.
pub(crate) trait KeySender {
    fn send(&self, to: KeyTarget, kind: MessageKind, body: &[u8]);

    /// Bytes that wait for the broker.
    fn waiting(&self) -> usize;

    /// Largest message in bytes.
    fn max_payload(&self) -> usize;
}

/// Another node's messages with changes.
#[derive(Debug, Default)]
pub(super) struct RemoteKeys {
    /// Number of the last message.
    applied: u64,
    /// All messages up to it have arrived.
    is_complete: bool,
    /// The number was compared since the last login.
    is_confirmed: bool,
    requested: Option<Instant>,
    catalogue: Option<IncomingCatalogue>,
}

/// A catalogue, while its parts arrive.
#[derive(Debug)]
struct IncomingCatalogue {
    next_part: u32,
    /// Topics of the node that it has not named yet.
    unnamed: BTreeSet<Arc<str>>,
}

impl RemoteKeys {
    /// Notes a message with changes.
    pub(super) fn note(&mut self, number: u64) {
        self.is_complete |= number == 1 && self.applied == 0;
        self.is_complete &= self.applied.checked_add(1) == Some(number);
        self.applied = self.applied.max(number);
    }

    pub(super) fn unconfirm(&mut self) {
        self.is_confirmed = false;
        self.requested = None;
        self.catalogue = None;
    }

    pub(super) fn is_confirmed(&self) -> bool {
        self.is_confirmed && self.is_complete
    }

    /// Compares with the number in a heartbeat.
    fn compare(&mut self, number: u64) {
        self.is_complete = self.applied == number && (self.is_complete || number == 0);
        self.is_confirmed |= self.is_complete;
    }
}

/// States of topics on their way in both directions.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    /// Topics to request, and when at the earliest.
    needed: BTreeMap<Arc<str>, Instant>,
    /// Requested topics, with the time of the last part.
    requested: BTreeMap<Arc<str>, (Instant, IncomingState)>,
    /// Requests without an answer.
    unanswered: BTreeMap<Arc<str>, u32>,
    /// The time of the last part of any topic.
    part_at: Option<Instant>,
    /// Other nodes' requests.
    catalogue_for: Vec<NodeId>,
    states_for: VecDeque<(Arc<str>, Position, Vec<NodeId>)>,
    /// Answers that are being sent.
    catalogue: Option<(Vec<NodeId>, VecDeque<Arc<str>>, u32)>,
    state: Option<OutgoingState>,
}

#[derive(Debug, Default)]
struct IncomingState {
    next_part: u32,
    keys: Vec<KeySnapshot>,
}

#[derive(Debug)]
struct OutgoingState {
    to: Vec<NodeId>,
    part: StatePart,
    keys: VecDeque<KeySnapshot>,
}

impl Transfers {
    /// Requests a topic soon.
    pub(super) fn need(&mut self, topic: &Arc<str>, now: Instant) {
        let at = if self.requested.remove(topic).is_some() { now + RETRY_DELAY } else { now };
        self.needed.entry(Arc::clone(topic)).or_insert(at);
    }

    pub(super) fn retry_refused(&mut self, topic: &Arc<str>, now: Instant) {
        self.requested.remove(topic);
        self.needed.insert(Arc::clone(topic), now + REFUSED_DELAY);
    }

    /// The topic needs no request.
    pub(super) fn forget(&mut self, topic: &Arc<str>) {
        self.needed.remove(topic);
        self.requested.remove(topic);
        self.unanswered.remove(topic);
    }

    /// Ends a request whose time is over. Returns whether the topic has had no answer too often. The answers to other
    /// requests come first.
    fn expire(&mut self, topic: &Arc<str>, now: Instant) -> bool {
        let requested = self.requested.remove(topic);
        self.needed.insert(Arc::clone(topic), now);
        if requested.is_some_and(|(since, _)| self.part_at.is_some_and(|at| at > since)) {
            return false;
        }
        let count = self.unanswered.entry(Arc::clone(topic)).or_default();
        *count = count.saturating_add(1);
        *count >= UNANSWERED_MAX
    }

    /// The broker is unreachable: what was requested is requested again.
    pub(super) fn clear(&mut self) {
        for (topic, (since, _)) in std::mem::take(&mut self.requested) {
            self.needed.entry(topic).or_insert(since);
        }
        self.catalogue_for.clear();
        self.states_for.clear();
        (self.catalogue, self.state) = (None, None);
    }

    pub(super) fn has_output(&self) -> bool {
        self.catalogue.is_some()
            || self.state.is_some()
            || !self.catalogue_for.is_empty()
            || !self.states_for.is_empty()
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        let needed = self.needed.values().min().copied().filter(|_| self.requested.len() < REQUESTS_MAX);
        let requested = self.requested.values().map(|(since, _)| *since + REQUEST_INTERVAL).min();
        [needed, requested].into_iter().flatten().min()
    }
}

impl KeyReplicator {
    /// Handles a node's heartbeat.
    pub(crate) fn beat(
        &mut self,
        node: NodeId,
        heartbeat: &KeysHeartbeat,
        sender: &dyn KeySender,
        now: Instant,
    ) {
        if !self.is_serving || self.connected.is_none() {
            return;
        }
        self.now = now;
        self.settling.note(node, heartbeat, now);
        let connected = Duration::from_millis(heartbeat.connected);
        if let Some(store) = heartbeat.store {
            self.has_new_nodes |= self.stores.insert(node.id, store) != Some(store);
        }
        // The broker was reachable for the other nodes: no owner is about to return.
        self.starts_in_outage &= connected < RETURN_TIME;
        let absence = self.absence.filter(|absence| *absence >= ABSENCE_MAX);
        if absence.is_some_and(|absence| connected > absence + self.connected_for(now)) {
            self.absence = None;
            self.discard();
        }
        self.remotes.entry(node).or_default().compare(heartbeat.number);
        self.request_catalogue(node, sender, now);
    }

    /// Requests the catalogue from a node whose messages have not all arrived.
    pub(super) fn request_catalogue(&mut self, node: NodeId, sender: &dyn KeySender, now: Instant) {
        let remote = self.remotes.entry(node).or_default();
        let is_recent = |at: Instant| now.saturating_duration_since(at) < REQUEST_INTERVAL;
        let is_complete = remote.is_complete && remote.catalogue.is_none();
        if is_complete || remote.requested.is_some_and(is_recent) {
            return;
        }
        // Perhaps it was heard before its first heartbeat: then the number of changes is not known yet.
        remote.requested = Some(now);
        remote.catalogue = None;
        sender.send(KeyTarget::Node(node), MessageKind::KeyRequest, &KeyStateRequest::Catalogue.encode());
    }

    /// Handles a part of a node's catalogue.
    pub(super) fn receive_catalogue(&mut self, node: NodeId, body: &[u8], now: Instant) {
        let mut body = KeyDecoder(body);
        let (Some(number), Some(part)) = (body.long(), body.part()) else { return };
        let is_of_node =
            |topic: &Arc<str>| self.topics.get(topic).is_some_and(|known| known.claim.owner == node.id);
        let remote = self.remotes.entry(node).or_default();
        remote.requested = Some(now);
        if part.number == 0 {
            let unnamed = self.topics.keys().filter(|topic| is_of_node(topic)).cloned().collect();
            remote.catalogue = Some(IncomingCatalogue { next_part: 0, unnamed });
            // Later messages with changes must not be missed. A higher number was from another program, or the node's
            // numbers begin again.
            remote.applied = number;
            remote.is_complete = true;
        }
        let Some(catalogue) = remote.catalogue.as_mut().filter(|known| known.next_part == part.number) else {
            remote.catalogue = None;
            remote.is_complete = false;
            return;
        };
        catalogue.next_part += 1;
        let mut named = Vec::new();
        while let Some((topic, claim, sequence)) = body.catalogue_entry() {
            catalogue.unnamed.remove(topic);
            named.push((topic, claim, sequence));
        }
        let ended = if part.is_last { remote.catalogue.take() } else { None };
        if ended.is_some() {
            remote.is_confirmed = true;
            remote.requested = None;
        }
        for (topic, claim, sequence) in named {
            if claim.owner == node.id {
                self.compare_topic(topic, claim, sequence, now);
            }
        }
        for topic in ended.into_iter().flat_map(|catalogue| catalogue.unnamed) {
            if self.topics.get(&topic).is_none_or(|known| known.claim.owner != node.id) {
                continue;
            }
            if self.is_retained(&topic) {
                self.orphan(&topic, now);
            } else {
                self.disown(&topic);
            }
        }
    }

    fn compare_topic(&mut self, topic: &str, claim: Claim, sequence: u64, now: Instant) {
        if !self.follow(topic, claim, EarlierKeys::Unknown, 0, now) {
            return;
        }
        let Some((topic, known)) = self.topics.get_key_value(topic) else { return };
        let position = self.publisher.keyed_position(topic);
        if known.replica == ReplicaState::Current
            && position.is_none_or(|position| position.sequence < sequence || position.epoch != claim.epoch)
        {
            let topic = Arc::clone(topic);
            if let Some(known) = self.topics.get_mut(&topic) {
                let is_same = position.is_some_and(|position| position.epoch == claim.epoch);
                known.replica = ReplicaState::Stale { needs_all: !is_same };
            }
            self.transfers.need(&topic, now);
        }
    }

    /// Handles another node's request.
    pub(super) fn receive_request(&mut self, node: NodeId, body: &[u8]) {
        match KeyStateRequest::decode(body) {
            Some(KeyStateRequest::Catalogue) => {
                // Once, if it repeats its request.
                self.transfers.catalogue_for.retain(|known| *known != node);
                self.transfers.catalogue_for.push(node);
            }
            Some(KeyStateRequest::State { topic, from }) => {
                let waiting = &mut self.transfers.states_for;
                if let Some((_, known, to)) = waiting.iter_mut().find(|(known, ..)| **known == *topic) {
                    if *known != from {
                        // All keys, unless a position fits both nodes.
                        let is_same = known.epoch == from.epoch;
                        let sequence = known.sequence.min(from.sequence);
                        *known = Position { epoch: if is_same { from.epoch } else { 0 }, sequence };
                    }
                    if !to.contains(&node) {
                        to.push(node);
                    }
                } else if self.topics.get(&*topic).is_some_and(|known| known.claim.owner == self.own) {
                    waiting.push_back((topic.into(), from, vec![node]));
                }
            }
            None => {}
        }
    }

    /// Requests what is needed, and answers other nodes' requests.
    pub(super) fn run_transfers(&mut self, sender: &dyn KeySender, now: Instant) {
        self.request_states(sender, now);
        while sender.waiting() <= WAITING_MAX && self.transfers.has_output() {
            // Changes before the answer are sent before it.
            self.flush(sender);
            if !self.send_part(sender) {
                return;
            }
        }
    }

    fn request_states(&mut self, sender: &dyn KeySender, now: Instant) {
        let late = |since: Instant| now.saturating_duration_since(since) >= REQUEST_INTERVAL;
        let expired: Vec<Arc<str>> = self
            .transfers
            .requested
            .iter()
            .filter(|(_, (since, _))| late(*since))
            .map(|(topic, _)| Arc::clone(topic))
            .collect();
        for topic in expired {
            if self.transfers.expire(&topic, now) {
                self.refuse_unanswered(&topic, now);
            }
        }
        let mut due: Vec<Arc<str>> = Vec::new();
        for (topic, at) in &self.transfers.needed {
            if self.transfers.requested.len() + due.len() >= REQUESTS_MAX {
                break;
            }
            if *at <= now {
                due.push(Arc::clone(topic));
            }
        }
        for topic in due {
            let Some(known) = self.topics.get(&topic) else {
                self.transfers.needed.remove(&topic);
                continue;
            };
            let Some(owner) = self.nodes.get(&known.claim.owner).copied() else {
                // It has gone: another node claims the topic.
                self.transfers.needed.insert(topic, now + RETRY_DELAY);
                continue;
            };
            let needs_all = known.replica != ReplicaState::Stale { needs_all: false };
            let from = self.publisher.keyed_position(&topic).filter(|_| !needs_all);
            let from = from.unwrap_or(Position { epoch: 0, sequence: 0 });
            let request = KeyStateRequest::State { topic: topic.to_string(), from };
            sender.send(KeyTarget::Node(owner), MessageKind::KeyRequest, &request.encode());
            self.transfers.needed.remove(&topic);
            self.transfers.requested.insert(topic, (now, IncomingState::default()));
        }
    }

    /// Continues without a topic's keys that do not arrive: perhaps a value exceeds the broker's largest message.
    fn refuse_unanswered(&mut self, topic: &Arc<str>, now: Instant) {
        let Some(known) = self.topics.get_mut(topic) else { return };
        if known.replica != ReplicaState::Refused
            && let Some(omitted) = LACKED_KEYS.permit(now)
        {
            tracing::error!(
                topic = &**topic,
                owner = %format!("{:032x}", known.claim.owner),
                omitted,
                "the owner of the keys of a topic does not send them, perhaps because a value exceeds the largest message \
                 of the broker: this node has none of them"
            );
        }
        known.replica = ReplicaState::Refused;
        self.set_refused(topic, Some(LoadFailure::Unanswered));
        self.transfers.retry_refused(topic, now);
    }

    /// Sends the next part of an answer. Returns whether there was one.
    fn send_part(&mut self, sender: &dyn KeySender) -> bool {
        if let Some(state) = self.transfers.state.take() {
            self.transfers.state = send_state_part(state, Self::part_bytes(sender), sender);
            return true;
        }
        if self.transfers.catalogue.is_some() {
            self.send_catalogue_part(sender);
            return true;
        }
        if !self.transfers.catalogue_for.is_empty() {
            let to = std::mem::take(&mut self.transfers.catalogue_for);
            let owned = self.topics.iter().filter(|(_, known)| known.replica == ReplicaState::Owned);
            let owned = owned.map(|(topic, _)| Arc::clone(topic)).collect();
            self.transfers.catalogue = Some((to, owned, 0));
            // At once: a topic that is claimed before the first part is missing in the catalogue.
            self.send_catalogue_part(sender);
            return true;
        }
        let Some((topic, from, to)) = self.transfers.states_for.pop_front() else { return false };
        if let Some(known) = self.topics.get(&topic).filter(|known| known.replica == ReplicaState::Owned) {
            let claim = known.claim;
            let changes = (from.epoch == claim.epoch)
                .then(|| self.publisher.owned_key_changes(&topic, from.sequence, usize::MAX))
                .flatten();
            let after = changes.as_ref().map(|_| from.sequence);
            let Some(state) = changes.or_else(|| self.publisher.shared_keyed_topic(&topic)) else {
                return true;
            };
            self.transfers.state = Some(OutgoingState {
                to,
                part: StatePart {
                    topic: topic.to_string(),
                    claim,
                    after,
                    end: state.position.sequence,
                    forgotten: state.forgotten,
                    part: Part { number: 0, is_last: false },
                    keys: Vec::new(),
                },
                keys: state.keys.into(),
            });
        }
        true
    }

    fn send_catalogue_part(&mut self, sender: &dyn KeySender) {
        let Some((to, mut topics, number)) = self.transfers.catalogue.take() else { return };
        let mut out = KeyEncoder(self.number.to_le_bytes().to_vec());
        let mut entries = KeyEncoder(Vec::new());
        let bytes_max = Self::batch_bytes(sender);
        while let Some(topic) = topics.pop_front() {
            let Some(known) = self.topics.get(&topic) else { continue };
            let sequence = self.publisher.keyed_position(&topic).map_or(0, |position| position.sequence);
            if known.replica == ReplicaState::Owned {
                let end = entries.0.len();
                entries.catalogue_entry(&topic, &known.claim, sequence);
                if end > 0 && CATALOGUE_HEAD + entries.0.len() > bytes_max {
                    entries.0.truncate(end);
                    topics.push_front(topic);
                    break;
                }
            }
        }
        let is_last = topics.is_empty();
        out.part(Part { number, is_last });
        out.0.extend_from_slice(&entries.0);
        send_to(&to, MessageKind::KeyCatalogue, &out.0, sender);
        if !is_last {
            self.transfers.catalogue = Some((to, topics, number + 1));
        }
    }

    /// Handles a part of a topic's state.
    pub(super) fn receive_state(&mut self, node: NodeId, body: &[u8], now: Instant) {
        let Some(state) = StatePart::decode(body) else { return };
        let Some((topic, known)) = self.topics.get_key_value(&*state.topic) else { return };
        if known.claim != state.claim || state.claim.owner != node.id {
            return;
        }
        let topic = Arc::clone(topic);
        let Some((since, incoming)) = self.transfers.requested.get_mut(&topic) else { return };
        if state.part.number == 0 {
            *incoming = IncomingState::default();
        }
        if state.part.number != incoming.next_part {
            // A part is missing: it is requested again later.
            return;
        }
        (*since, incoming.next_part) = (now, incoming.next_part + 1);
        self.transfers.part_at = Some(now);
        incoming.keys.extend(state.keys);
        if !state.part.is_last {
            return;
        }
        let keys = std::mem::take(&mut incoming.keys);
        let position = Position { epoch: state.claim.epoch, sequence: state.end };
        let snapshot = KeyedSnapshot {
            topic: state.topic,
            position,
            forgotten: state.forgotten,
            keys,
            recent: Vec::new(),
        };
        let applied = match state.after {
            Some(after) => self.publisher.apply_key_changes(after, snapshot),
            None => self.publisher.install_keyed_topic(snapshot),
        };
        self.shared.counters.loads.fetch_add(1, Ordering::Relaxed);
        self.note_applied(&topic, applied, now);
    }
}

/// Sends a part of a state. Returns the rest.
fn send_state_part(
    mut state: OutgoingState,
    bytes_max: usize,
    sender: &dyn KeySender,
) -> Option<OutgoingState> {
    let mut bytes = 0;
    state.part.keys.clear();
    while let Some(key) = state.keys.pop_front() {
        bytes += key.key.len() + key.value.as_ref().map_or(0, bytes::Bytes::len) + 32;
        if bytes > bytes_max && !state.part.keys.is_empty() {
            state.keys.push_front(key);
            break;
        }
        state.part.keys.push(key);
    }
    state.part.part.is_last = state.keys.is_empty();
    send_to(&state.to, MessageKind::KeyState, &state.part.encode(), sender);
    state.part.part.number += 1;
    (!state.part.part.is_last).then_some(state)
}

/// Sends an answer to the nodes that have requested it: to all nodes once if they are many, which ignore it.
fn send_to(nodes: &[NodeId], kind: MessageKind, body: &[u8], sender: &dyn KeySender) {
    if nodes.len() >= BROADCAST_MIN {
        return sender.send(KeyTarget::All, kind, body);
    }
    nodes.iter().for_each(|node| sender.send(KeyTarget::Node(*node), kind, body));
}
