//! Key writes at their owner: this node's writes, and other nodes' writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sinews_server::{KeyError, KeyWritten, Position, TopicName};

use super::durable::not_stored;
use super::replicator::{KeyReplicator, ReplicaState};
use super::shared::{SubmittedWrite, broker_away, is_storable};
use super::transfer::{KeySender, KeyTarget};
use super::wire::{WriteResult, decode_result, decode_write, encode_result, encode_write};
use super::write_order::{RetriedWrites, SentWrites};
use crate::cluster::message::{MessageKind, NodeId};
use crate::model::brief::brief;
use crate::model::problem::{Problem, code, problem};
use crate::topics::key_faults::FaultCause;
use crate::topics::keys::key_problem;

/// Time limit for a write at another node.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(3);

/// Delay before a write is tried again that no node has accepted.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// KeyWrites on their way.
#[derive(Default)]
pub(super) struct KeyWrites {
    last: u64,
    pending: BTreeMap<u64, ForwardedWrite>,
    /// KeyWrites that are not sent, and when they are tried again.
    held: BTreeMap<u64, Instant>,
    /// KeyWrites that are applied at the owner and not here.
    applied: BTreeSet<u64>,
    sent: SentWrites,
    /// Results for other nodes, which follow the changes.
    results: Vec<HeldResult>,
    retried: RetriedWrites,
}

/// The result of another node's write.
struct HeldResult {
    node: NodeId,
    topic: Arc<str>,
    /// The disk has to have this position first, until this time.
    unstored: Option<(Position, Instant)>,
    id: u64,
    result: WriteResult,
}

struct ForwardedWrite {
    submitted: SubmittedWrite,
    deadline: Instant,
    progress: WriteProgress,
}

enum WriteProgress {
    Held,
    Sent(NodeId),
    Applied(KeyWritten),
}

/// Where a write has to go.
enum WriteRoute {
    Here,
    Node(NodeId),
    /// No node owns the topic yet.
    Nowhere,
}

/// The error for a write whose client would not read it at this node.
fn not_seen(topic: &str) -> Problem {
    let text = format!("the key of {} is written, but this node has not received the change", brief(topic));
    problem(code::STORE, text)
}

impl KeyWrites {
    pub(super) fn next_due(&self) -> Option<Instant> {
        let held = self.held.values().min().copied();
        // In the order of their numbers, writes have ascending deadlines.
        let deadline = self.pending.values().next().map(|write| write.deadline);
        [held, deadline].into_iter().flatten().min()
    }
}

impl KeyReplicator {
    /// Accepts a write from this node's client.
    pub(super) fn accept_write(&mut self, submitted: SubmittedWrite, now: Instant) {
        if self.connected.is_none() {
            let problem = broker_away(&submitted.topic);
            return self.shared.finish(submitted, Err(problem));
        }
        self.writes.last += 1;
        let id = self.writes.last;
        let deadline = now + WRITE_TIMEOUT;
        self.writes.pending.insert(id, ForwardedWrite { submitted, deadline, progress: WriteProgress::Held });
        self.writes.held.insert(id, now);
    }

    /// Ends all writes: the broker is unreachable.
    pub(super) fn fail_writes(&mut self) {
        let writes = std::mem::take(&mut self.writes);
        self.writes.last = writes.last;
        for write in writes.pending.into_values() {
            let topic = Arc::clone(&write.submitted.topic);
            let result = match write.progress {
                WriteProgress::Held => Err(broker_away(&topic)),
                WriteProgress::Sent(node) => Err(self.unanswered(&topic, node)),
                WriteProgress::Applied(_) => Err(not_seen(&topic)),
            };
            self.shared.finish(write.submitted, result);
        }
    }

    fn unanswered(&self, topic: &str, node: NodeId) -> Problem {
        let text = format!(
            "node {node}, which owns the keys of {}, has not answered within {} s: the key may have been written",
            brief(topic),
            WRITE_TIMEOUT.as_secs()
        );
        problem(code::STORE, text)
    }

    /// Sends writes, ends those whose time is over, and those that this node has seen.
    pub(super) fn run_writes(&mut self, sender: &dyn KeySender, now: Instant) {
        self.expire_writes(now);
        self.writes.retried.expire(now);
        // A write waits for an earlier one to the same topic.
        let mut blocked: BTreeSet<Arc<str>> = BTreeSet::new();
        let held: Vec<(u64, Instant)> = self.writes.held.iter().map(|(id, at)| (*id, *at)).collect();
        for (id, at) in held {
            let Some(write) = self.writes.pending.get(&id) else { continue };
            let topic = Arc::clone(&write.submitted.topic);
            if blocked.contains(&topic) {
                continue;
            }
            if at > now {
                blocked.insert(topic);
            } else if !self.start_write(id, &topic, sender) {
                blocked.insert(topic);
                self.writes.held.insert(id, now + RETRY_DELAY);
            }
        }
        let applied: Vec<u64> = self.writes.applied.iter().copied().collect();
        applied.into_iter().for_each(|id| self.end_if_seen(id));
    }

    fn expire_writes(&mut self, now: Instant) {
        while let Some((id, write)) = self.writes.pending.first_key_value()
            && write.deadline <= now
        {
            let id = *id;
            let topic = Arc::clone(&write.submitted.topic);
            let error = match write.progress {
                WriteProgress::Sent(node) => self.unanswered(&topic, node),
                WriteProgress::Held => {
                    let text = format!("no node owns the keys of {} yet; retry", brief(&topic));
                    problem(code::STORE, text)
                }
                WriteProgress::Applied(_) => not_seen(&topic),
            };
            self.end_write(id, Err(error));
        }
    }

    fn end_write(&mut self, id: u64, result: Result<KeyWritten, Problem>) {
        self.writes.held.remove(&id);
        self.writes.applied.remove(&id);
        if let Some(write) = self.writes.pending.remove(&id) {
            if let WriteProgress::Sent(node) = write.progress {
                self.writes.sent.remove(&write.submitted.topic, node);
            }
            self.shared.finish(write.submitted, result);
        }
    }

    /// Returns whether a topic's earlier writes are at another node than the next one would be, and may come back.
    fn would_overtake(&self, topic: &str, target: Option<NodeId>) -> bool {
        let is_alive = |node: &NodeId| self.nodes.get(&node.id) == Some(node);
        self.writes.sent.node(topic).is_some_and(|node| target != Some(node) && is_alive(&node))
    }

    /// Executes or sends a write. Returns whether it no longer waits.
    fn start_write(&mut self, id: u64, topic: &Arc<str>, sender: &dyn KeySender) -> bool {
        let route = self.route(topic);
        let target = if let WriteRoute::Node(node) = route { Some(node) } else { None };
        if self.would_overtake(topic, target) {
            return false;
        }
        match route {
            WriteRoute::Nowhere => false,
            WriteRoute::Node(node) => {
                let Some(write) = self.writes.pending.get_mut(&id) else { return true };
                write.progress = WriteProgress::Sent(node);
                let body = encode_write(id, topic, &write.submitted.write);
                self.writes.held.remove(&id);
                self.writes.sent.add(topic, node);
                self.shared.counters.forwarded.fetch_add(1, Ordering::Relaxed);
                sender.send(KeyTarget::Node(node), MessageKind::KeyWrite, &body);
                true
            }
            WriteRoute::Here => {
                let Some(write) = self.writes.pending.get(&id) else { return true };
                if let Err(problem) = self.shared.check_storable(topic) {
                    self.end_write(id, Err(problem));
                    return true;
                }
                match self.publisher.write_key(topic, &write.submitted.write) {
                    Err(KeyError::NotOwner | KeyError::HandedOver) => false,
                    Ok(written) => {
                        self.end_when_stored(id, written);
                        true
                    }
                    Err(error) => {
                        self.end_write(id, Err(key_problem(error)));
                        true
                    }
                }
            }
        }
    }

    /// Returns a topic's owner. Claims a topic that has none, if it is this node's part.
    fn route(&mut self, topic: &Arc<str>) -> WriteRoute {
        if let Some(known) = self.topics.get(topic) {
            if known.replica == ReplicaState::Owned {
                return WriteRoute::Here;
            }
            return match self.nodes.get(&known.claim.owner) {
                Some(node) => WriteRoute::Node(*node),
                // A node claims it as soon as it has seen the owner's end.
                None => WriteRoute::Nowhere,
            };
        }
        if !self.may_claim_unknown(topic) {
            return WriteRoute::Nowhere;
        }
        let first = self.first_owner(topic);
        match self.nodes.get(&first).copied() {
            Some(node) => WriteRoute::Node(node),
            None if self.claim(topic) => WriteRoute::Here,
            None => WriteRoute::Nowhere,
        }
    }

    /// Executes another node's write.
    pub(super) fn receive_write(&mut self, node: NodeId, body: &[u8], now: Instant) {
        let Some((id, topic, write)) = decode_write(body) else { return };
        if TopicName::parse(topic).is_err() {
            return;
        }
        let topic: Arc<str> = topic.into();
        let until = now + WRITE_TIMEOUT;
        if self.writes.retried.is_early(node, &topic, id) {
            self.writes.retried.add(node, &topic, id, until);
            let result = WriteResult::Retry;
            return self.writes.results.push(HeldResult { node, topic, unstored: None, id, result });
        }
        let owns = match self.topics.get(&topic) {
            Some(known) => known.replica == ReplicaState::Owned,
            // The other node has chosen this one.
            None => self.may_claim_unknown(&topic) && self.claim(&topic),
        };
        let mut unstored = None;
        let result = if !owns {
            self.announce_again(&topic);
            WriteResult::Retry
        } else if let Err(problem) = self.shared.check_storable(&topic) {
            WriteResult::Failed(problem)
        } else {
            match self.publisher.write_key(&topic, &write) {
                Ok(written) => {
                    let is_durable = is_storable(&written) && self.is_durable(&topic);
                    unstored = is_durable.then_some((written.position, until));
                    self.note_durable(&topic);
                    WriteResult::Done(written)
                }
                Err(KeyError::NotOwner | KeyError::HandedOver) => WriteResult::Retry,
                Err(error) => WriteResult::Failed(key_problem(error)),
            }
        };
        if result == WriteResult::Retry {
            self.writes.retried.add(node, &topic, id, until);
        }
        self.writes.results.push(HeldResult { node, topic, unstored, id, result });
    }

    /// Sends results, each behind its topic's changes.
    pub(super) fn send_results(&mut self, sender: &dyn KeySender) {
        if self.writes.results.is_empty() {
            return;
        }
        let results = std::mem::take(&mut self.writes.results);
        // A write has noted its change before its result.
        let changed = std::mem::take(&mut self.shared.lock().changed);
        changed.into_iter().for_each(|topic| self.mark_dirty(&topic));
        self.flush(sender);
        for held in results {
            if self.is_dirty.contains(&held.topic) {
                self.writes.results.push(held);
                continue;
            }
            let fault = match (held.unstored, self.shared.store_of(&held.topic)) {
                (Some((position, deadline)), Some(store)) if !store.is_stored(&held.topic, position) => {
                    match store.reject_write(&held.topic) {
                        Some(problem) => Some(not_stored(&held.topic, &problem.text)),
                        // The other node has given up.
                        None if deadline <= self.now => {
                            store.count_rejected(FaultCause::TimedOut);
                            continue;
                        }
                        None => {
                            self.writes.results.push(held);
                            continue;
                        }
                    }
                }
                _ => None,
            };
            let result = fault.map_or(held.result, WriteResult::Failed);
            let body = encode_result(held.id, &result);
            sender.send(KeyTarget::Node(held.node), MessageKind::KeyResult, &body);
        }
    }

    /// Ends a write that this node has applied, as soon as it is stored if the key is durable.
    fn end_when_stored(&mut self, id: u64, written: KeyWritten) {
        let pending = self.writes.pending.get(&id).filter(|_| is_storable(&written));
        let is_durable = pending.is_some_and(|write| self.is_durable(&write.submitted.topic));
        if !is_durable {
            return self.end_write(id, Ok(written));
        }
        self.writes.held.remove(&id);
        if let Some(write) = self.writes.pending.remove(&id) {
            self.note_durable(&write.submitted.topic);
            self.shared.finish_when_stored(write.submitted, written, write.deadline);
        }
    }

    /// Handles the result of a write at another node.
    pub(super) fn receive_result(&mut self, node: NodeId, body: &[u8], now: Instant) {
        let Some((id, result)) = decode_result(body) else { return };
        let Some(write) = self.writes.pending.get_mut(&id) else { return };
        if !matches!(write.progress, WriteProgress::Sent(owner) if owner.id == node.id) {
            return;
        }
        if let WriteProgress::Sent(sent_to) = write.progress
            && !matches!(result, WriteResult::Failed(_))
        {
            self.writes.sent.remove(&write.submitted.topic, sent_to);
        }
        match result {
            WriteResult::Retry => {
                write.progress = WriteProgress::Held;
                self.writes.held.insert(id, now + RETRY_DELAY);
            }
            WriteResult::Failed(problem) => self.end_write(id, Err(problem)),
            WriteResult::Done(written) => {
                write.progress = WriteProgress::Applied(written);
                self.writes.applied.insert(id);
                self.end_if_seen(id);
            }
        }
    }

    /// Ends a write whose change has arrived at this node: its client reads its own write.
    fn end_if_seen(&mut self, id: u64) {
        let Some(write) = self.writes.pending.get(&id) else { return };
        let WriteProgress::Applied(written) = write.progress else { return };
        let topic = Arc::clone(&write.submitted.topic);
        let Position { epoch, sequence } = written.position;
        let here = self.publisher.keyed_position(&topic);
        let is_seen = match self.topics.get(&topic) {
            // The owner has released the topic since.
            None if !written.changed => true,
            // A node without the replica has nothing to read.
            Some(known) if known.replica == ReplicaState::Refused => true,
            // A later owner has the topic; an earlier owner's claim is on its way.
            Some(known) if known.claim.epoch != epoch => {
                known.claim.epoch > epoch
                    && matches!(known.replica, ReplicaState::Current | ReplicaState::Owned)
            }
            _ => here.is_some_and(|here| here.epoch == epoch && here.sequence >= sequence),
        };
        if is_seen {
            self.end_write(id, Ok(written));
        }
    }
}
