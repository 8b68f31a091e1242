//! Owners of the keys of topics: claims, and their end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::claim::{topic_hash, weight};
use super::replicator::{KeyReplicator, ReplicaState};
use super::transfer::{KeySender, KeyTarget};
use super::wire::{ChangeItem, EarlierKeys};
use crate::cluster::log_limit::LACKED_KEYS;
use crate::cluster::message::MessageKind;
use crate::cluster::times::RETURN_TIME;
use crate::topics::shared_keys::Claim;

/// Delay between the claims of the nodes that may succeed an owner: the first one claims at once.
const CLAIM_DELAY: Duration = Duration::from_secs(1);

/// Additional delay for nodes with an older replica, and for nodes with none.
const STALE_DELAY: Duration = Duration::from_secs(3);
const EMPTY_DELAY: Duration = Duration::from_secs(6);

impl KeyReplicator {
    pub(super) fn is_alive(&self, node: u128) -> bool {
        node == self.own || self.nodes.contains_key(&node)
    }

    /// Returns this node's position among the nodes that may succeed a topic's owner.
    fn rank(&self, topic: &str) -> u32 {
        let hash = topic_hash(topic);
        let own = weight(self.own, hash);
        self.nodes.keys().map(|node| u32::from(weight(*node, hash) > own)).sum()
    }

    pub(super) fn claim_orphans(&mut self, now: Instant) {
        let Some(connected) = self.connected else { return };
        let grace = self.absence.map_or(connected, |_| connected + RETURN_TIME);
        let orphans: Vec<(Arc<str>, Instant)> =
            self.orphans.iter().map(|(topic, since)| (Arc::clone(topic), *since)).collect();
        for (topic, since) in orphans {
            let Some(known) = self.topics.get(&topic) else { continue };
            let delay = match known.replica {
                ReplicaState::Current | ReplicaState::Owned => Duration::ZERO,
                ReplicaState::Stale { needs_all: false } => STALE_DELAY,
                ReplicaState::Refused if known.keys_of.is_some() => STALE_DELAY,
                _ => EMPTY_DELAY,
            };
            let since = since.max(grace);
            let is_due = if self.is_durable(&topic) {
                self.claims_durable(&topic, since)
            } else {
                now >= since + CLAIM_DELAY * self.rank(&topic) + delay
            };
            if is_due {
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
            Some((_, ReplicaState::Current | ReplicaState::Owned)) => EarlierKeys::At(before),
            None if is_empty() => EarlierKeys::Nothing,
            _ => EarlierKeys::Unknown,
        };
        if let Some((claim, replica)) = known
            && precursor == EarlierKeys::Unknown
            && let Some(omitted) = LACKED_KEYS.permit(self.now)
        {
            tracing::warn!(topic = &**topic, owner = %format!("{:032x}", claim.owner), ?replica, omitted,
                "the owner of the keys of a topic has gone, and no node has its last changes");
        }
        let term = known.map_or(0, |(claim, _)| claim.term).saturating_add(1);
        let claim = Claim { term, epoch, owner: self.own };
        self.insert(topic, claim, ReplicaState::Owned, before.sequence);
        if let Some(known) = self.topics.get_mut(topic) {
            known.precursor = precursor;
        }
        self.set_refused(topic, None);
        self.orphans.remove(topic);
        self.transfers.forget(topic);
        self.shared.counters.claims.fetch_add(1, Ordering::Relaxed);
        self.mark_dirty(topic);
        self.count_owned();
        true
    }

    pub(super) fn count_owned(&self) {
        let owned = self.topics.values().filter(|topic| topic.replica == ReplicaState::Owned).count();
        self.shared.counters.owned.store(owned as u64, Ordering::Relaxed);
    }

    /// Returns an epoch after the last owner's: the time in microseconds, which no epoch in an earlier cluster run has.
    /// Below 2^53 until the year 2255.
    fn new_epoch(&mut self, known: u64) -> u64 {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = u64::try_from(time.as_micros()).unwrap_or(0) & ((1 << 53) - 1);
        self.last_epoch = time.max(self.last_epoch + 1).max(known + 1);
        self.last_epoch
    }

    /// Ends the ownership of topics with nothing left.
    pub(super) fn release_emptied(&mut self, sender: &dyn KeySender) {
        if !self.is_synced {
            return;
        }
        for topic in std::mem::take(&mut self.emptied) {
            let Some(claim) = self.topics.get(&topic).map(|known| known.claim) else { continue };
            let is_retained = self.is_retained(&topic);
            if is_retained || claim.owner != self.own || !self.publisher.release_keyed_topic(&topic) {
                continue;
            }
            self.forget(&topic);
            let mut out = self.begin_changes();
            out.item(&topic, &claim, &ChangeItem::Release);
            sender.send(KeyTarget::All, MessageKind::KeyChanges, &out.0);
            self.count_owned();
        }
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

    pub(super) fn released(&mut self, topic: &str, claim: Claim) {
        let Some((topic, known)) = self.topics.get_key_value(topic) else { return };
        if known.claim == claim && !self.is_retained(topic) {
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

    /// Another node was connected while this node was not, for so long that it may have forgotten removals.
    pub(super) fn discard(&mut self) {
        tracing::warn!("this node was away from the cluster for long: it takes the keys of the other nodes");
        let topics: Vec<Arc<str>> =
            self.topics.keys().filter(|topic| !self.is_retained(topic)).cloned().collect();
        topics.iter().for_each(|topic| self.disown(topic));
        self.remotes.clear();
        // The other nodes notice that it owns nothing.
        self.number += 1;
        self.count_owned();
    }
}
