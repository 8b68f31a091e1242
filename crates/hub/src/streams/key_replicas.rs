//! Durable keys that a cluster's nodes share: each node stores its replicas in compacted streams.
//!
//! ```text
//!   owner    write ─▶ memory ─┬─▶ other nodes ─▶ memory ─▶ stream of each node
//!                             └─▶ stream ─▶ acknowledged
//! ```
//!
//! One thread copies the changes in memory since the last copy, each key once, and then the claim and the sequence, in
//! one batch. Another owner's keys are written as a new generation, whose last batch replaces the generation before. So
//! a stream always has one claim's keys at one sequence.

mod batches;
mod load;
mod membership;
mod record;
mod restore;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use sinews_server::{Position, Publisher, TopicName};
use sinews_stream::{Durability, Partition, Pending, StreamConfig, Streams};

use self::batches::{BATCH_BYTES, append, encode, remove_all_leftovers, split_batch};
use self::membership::NodeMembership;
use self::record::StoredClaim;
use super::durable_keys;
use super::durable_topics::single_partition;
use crate::access::namespaces::order::PatternSet;
use crate::model::problem::Problem;
use crate::topics::key_faults::{FaultCause, FaultCounts, RejectedWrites, StorageError};
use crate::topics::shared_keys::{Claim, ReplicaStore, SharedKeys};

/// Name of the stream with the node, and name prefix for streams with a replica. No stream name from a client begins
/// with it, since `*` is a wildcard there.
pub(super) const REPLICAS_NAME: &str = "*.replicas";
const REPLICA_PREFIX: &str = "*.replicas.";

/// Topics that are written again, up to 16 MiB each, before the next changes of other topics are stored.
const REWRITES_PER_PASS: usize = 1;

/// Time until a topic is stored again that could not be.
const RETRY: Duration = Duration::from_secs(1);

/// The replicas of durable keys on this node's disk.
pub(crate) struct KeyReplicas {
    patterns: PatternSet,
    config: StreamConfig,
    streams: OnceLock<Streams>,
    publisher: OnceLock<Publisher>,
    owners: OnceLock<Weak<dyn SharedKeys>>,
    membership: Mutex<Option<NodeMembership>>,
    /// The members to store next.
    new_members: Mutex<Option<Vec<u64>>>,
    topics: Mutex<BTreeMap<Arc<str>, StoredReplica>>,
    /// Topics with keys to store.
    changed: Mutex<BTreeSet<Arc<str>>>,
    /// Topics that were read, with the claims of their keys.
    restored: Mutex<Vec<(String, Claim)>>,
    is_loaded: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The thread, for wakeups without a lock.
    waker: OnceLock<Thread>,
    closing: AtomicBool,
    rejected: Arc<RejectedWrites>,
}

/// A topic and its stream.
#[derive(Default)]
struct StoredReplica {
    /// The stream's state; `None`: it is empty.
    state: Option<StoredClaim>,
    last_generation: u32,
    partition: Option<Partition>,
    /// The stream perhaps has keys of incomplete generations.
    has_leftovers: bool,
    fault: Option<StorageFault>,
}

impl StoredReplica {
    /// Whether the stream has keys, also if they cannot be read.
    fn has_keys(&self) -> bool {
        self.state.is_some() || self.fault.is_some()
    }
}

struct StorageFault {
    error: StorageError,
    /// `None`: the stream cannot be read, and is not written.
    retry: Option<Instant>,
}

/// A topic's next batch.
enum TopicBatch {
    Nothing,
    Started(Pending, StoredClaim),
    /// All keys of this claim are written again.
    Rewrite(Claim),
}

/// A batch on its way to the disk, after which the stream has this state.
type StartedBatch = (Arc<str>, Pending, StoredClaim);

impl KeyReplicas {
    pub(crate) fn new(patterns: PatternSet, config: &StreamConfig, rejected: Arc<RejectedWrites>) -> Self {
        Self {
            patterns,
            config: durable_keys::stream_config(config),
            streams: OnceLock::new(),
            publisher: OnceLock::new(),
            owners: OnceLock::new(),
            membership: Mutex::default(),
            new_members: Mutex::default(),
            topics: Mutex::default(),
            changed: Mutex::default(),
            restored: Mutex::default(),
            is_loaded: AtomicBool::new(false),
            thread: Mutex::default(),
            waker: OnceLock::new(),
            closing: AtomicBool::new(false),
            rejected,
        }
    }

    /// Returns whether any topic has durable keys.
    pub(crate) fn is_enabled(&self) -> bool {
        !self.patterns.is_empty()
    }

    /// The topics that cannot be stored or read now.
    pub(super) fn faults(&self) -> FaultCounts {
        let mut counts = FaultCounts::default();
        for fault in self.lock().values().filter_map(|replica| replica.fault.as_ref()) {
            counts[fault.error.cause as usize] += 1;
        }
        counts
    }

    /// Starts the thread that stores the keys, if any topic has durable keys.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn start(
        self: &Arc<Self>,
        publisher: Publisher,
        owners: Weak<dyn SharedKeys>,
    ) -> io::Result<()> {
        if !self.is_enabled() {
            return Ok(());
        }
        self.attach(publisher, owners);
        let replicas = Arc::clone(self);
        let thread = thread::Builder::new().name("keys".to_owned()).spawn(move || replicas.run())?;
        let _ = self.waker.set(thread.thread().clone());
        *self.lock_thread() = Some(thread);
        // A change before this call has not woken it.
        self.wake();
        Ok(())
    }

    /// Sets the keys in memory and their owners. Called once.
    pub(crate) fn attach(&self, publisher: Publisher, owners: Weak<dyn SharedKeys>) {
        let _ = self.publisher.set(publisher);
        let _ = self.owners.set(owners);
    }

    /// Stores the remaining changes, and ends the thread: the streams are about to be closed.
    pub(super) fn finish(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.wake();
        // Not locked while this thread waits.
        let thread = self.lock_thread().take();
        if let Some(thread) = thread {
            // A thread that has panicked stores no more.
            let _ = thread.join();
        }
    }

    fn run(&self) {
        loop {
            let closing = self.closing.load(Ordering::SeqCst);
            let has_stored = self.store_changes(Instant::now());
            if closing && !has_stored {
                return;
            }
            if has_stored {
                continue;
            }
            match self.next_retry() {
                Some(due) => thread::park_timeout(due.saturating_duration_since(Instant::now())),
                None => thread::park(),
            }
        }
    }

    fn next_retry(&self) -> Option<Instant> {
        let (changed, topics) = (self.lock_changed(), self.lock());
        changed.iter().filter_map(|topic| topics.get(topic)?.fault.as_ref()?.retry).min()
    }

    /// Copies a batch for each changed topic to its stream, and waits until the batches are stored. Returns whether
    /// there were any.
    pub(crate) fn store_changes(&self, now: Instant) -> bool {
        if !self.is_loaded.load(Ordering::Acquire) {
            return false;
        }
        self.store_members();
        let changed = self.take_due(now);
        let rewrites = self.store_batches(&changed, now);
        self.rewrite_some(&rewrites, now);
        !changed.is_empty()
    }

    /// The topics with keys to store now. Those that could not be stored wait; those that cannot be read are forgotten.
    fn take_due(&self, now: Instant) -> Vec<Arc<str>> {
        let mut changed = self.lock_changed();
        let topics = self.lock();
        let mut due = Vec::new();
        changed.retain(|topic| match topics.get(topic).and_then(|replica| replica.fault.as_ref()) {
            Some(StorageFault { retry, .. }) if retry.is_some_and(|retry| retry > now) => true,
            Some(StorageFault { retry: None, .. }) => false,
            _ => {
                due.push(Arc::clone(topic));
                false
            }
        });
        due
    }

    /// Appends a batch for each topic, and waits until the batches are stored. Returns the topics to rewrite, with
    /// their claims.
    fn store_batches(&self, changed: &[Arc<str>], now: Instant) -> Vec<(Arc<str>, Claim)> {
        let mut rewrites = Vec::new();
        let mut started: Vec<StartedBatch> = Vec::new();
        for topic in changed {
            match self.start_batch(topic) {
                Ok(TopicBatch::Started(pending, state)) => started.push((Arc::clone(topic), pending, state)),
                Ok(TopicBatch::Rewrite(claim)) => rewrites.push((Arc::clone(topic), claim)),
                Ok(TopicBatch::Nothing) => self.clear_fault(topic),
                Err(error) => self.note_fault(topic, error, now),
            }
        }
        for (topic, mut pending, state) in started {
            match pending.block(Durability::Disk) {
                Ok(_) => self.note_stored(&topic, state),
                Err(error) => self.note_fault(&topic, error.into(), now),
            }
        }
        if !changed.is_empty() {
            self.wake_owners();
        }
        rewrites
    }

    /// Rewrites the first of these topics. The other ones follow the next batches, which do not wait for all rewrites.
    fn rewrite_some(&self, rewrites: &[(Arc<str>, Claim)], now: Instant) {
        let (first, others) = rewrites.split_at(rewrites.len().min(REWRITES_PER_PASS));
        for (topic, claim) in first {
            match self.rewrite(topic, *claim) {
                Ok(()) => self.clear_fault(topic),
                Err(error) => self.note_fault(topic, error, now),
            }
        }
        others.iter().for_each(|(topic, _)| self.changed(topic));
        if !first.is_empty() {
            self.wake_owners();
        }
    }

    fn store_members(&self) {
        let Some(members) = self.new_members.lock().take() else {
            return;
        };
        let mut membership = self.lock_membership();
        let Some(membership) = membership.as_mut().filter(|known| known.members != members) else { return };
        if let Err(error) = membership.set_members(members) {
            tracing::error!(
                reason = error.text,
                "the nodes of the cluster that this node sees cannot be stored"
            );
        }
    }

    fn owners(&self) -> Option<Arc<dyn SharedKeys>> {
        self.owners.get()?.upgrade()
    }

    /// Writes that wait for the disk have perhaps ended.
    fn wake_owners(&self) {
        if let Some(owners) = self.owners() {
            owners.wake();
        }
    }

    fn clear_fault(&self, topic: &Arc<str>) {
        if let Some(replica) = self.lock().get_mut(topic) {
            replica.fault = None;
        }
    }

    fn note_stored(&self, topic: &Arc<str>, state: StoredClaim) {
        let mut topics = self.lock();
        let replica = topics.entry(Arc::clone(topic)).or_default();
        replica.state = Some(state);
        replica.last_generation = replica.last_generation.max(state.generation);
        replica.fault = None;
    }

    fn note_leftovers(&self, topic: &str, has_leftovers: bool) {
        if let Some(replica) = self.lock().get_mut(topic) {
            replica.has_leftovers = has_leftovers;
        }
    }

    fn note_fault(&self, topic: &Arc<str>, error: StorageError, now: Instant) {
        let mut topics = self.lock();
        let replica = topics.entry(Arc::clone(topic)).or_default();
        if replica.fault.is_none() {
            tracing::error!(topic = &**topic, reason = error.text, "the keys of a topic cannot be stored");
        }
        replica.fault = Some(StorageFault { error, retry: Some(now + RETRY) });
        drop(topics);
        self.lock_changed().insert(Arc::clone(topic));
    }

    /// Starts to append a topic's changes since the last batch.
    fn start_batch(&self, topic: &Arc<str>) -> Result<TopicBatch, StorageError> {
        let (Some(publisher), Some(owners)) = (self.publisher.get(), self.owners()) else {
            return Ok(TopicBatch::Nothing);
        };
        let (Some(claim), Some(position)) = (owners.claim(topic), publisher.keyed_position(topic)) else {
            return Ok(TopicBatch::Nothing);
        };
        let known = self.lock().get(topic).and_then(|replica| replica.state);
        // The claim belongs to other keys: they are on their way. A replica that does not fit has no sequence.
        if position.epoch != claim.epoch || position.sequence == 0 {
            return Ok(TopicBatch::Nothing);
        }
        let Some(state) = known.filter(|state| state.claim == claim) else {
            return Ok(TopicBatch::Rewrite(claim));
        };
        if state.sequence >= position.sequence {
            return Ok(TopicBatch::Nothing);
        }
        let Some(changes) = publisher.keyed_changes(topic, state.position(), BATCH_BYTES) else {
            return Ok(TopicBatch::Rewrite(claim));
        };
        let sequence = changes.position.sequence;
        let state = StoredClaim { sequence, ..state };
        let records = encode(&changes.keys, state.generation, Some(state))?;
        let pending = self.partition(topic)?.append(records)?;
        if sequence < position.sequence {
            self.changed(topic);
        }
        Ok(TopicBatch::Started(pending, state))
    }

    /// Writes all keys of a topic as a new generation, and removes those before.
    fn rewrite(&self, topic: &Arc<str>, claim: Claim) -> Result<(), StorageError> {
        let all = self.publisher.get().and_then(|publisher| publisher.shared_keyed_topic(topic));
        let Some(all) = all.filter(|all| all.position.epoch == claim.epoch && all.position.sequence > 0)
        else {
            return Ok(());
        };
        let partition = self.partition(topic)?;
        if self.lock().get(topic).is_some_and(|replica| replica.has_leftovers) {
            // A retry adds no further generation to incomplete ones.
            remove_all_leftovers(&partition)?;
        }
        let generation = {
            let mut topics = self.lock();
            let replica = topics.entry(Arc::clone(topic)).or_default();
            replica.has_leftovers = true;
            replica.last_generation += 1;
            replica.last_generation
        };
        let state = StoredClaim { claim, sequence: all.position.sequence, generation };
        let mut keys = all.keys;
        keys.retain(|key| key.value.is_some());
        let mut rest = &keys[..];
        loop {
            let (batch, others) = split_batch(rest);
            let is_last = others.is_empty();
            append(&partition, encode(batch, generation, is_last.then_some(state))?)?;
            if is_last {
                break;
            }
            rest = others;
        }
        let is_first = self.lock().get(topic).is_none_or(|replica| replica.state.is_none());
        self.note_stored(topic, state);
        if !is_first {
            remove_all_leftovers(&partition)?;
        }
        self.note_leftovers(topic, false);
        Ok(())
    }

    /// Returns a topic's stream, and creates it if there is none.
    fn partition(&self, topic: &Arc<str>) -> Result<Partition, StorageError> {
        if let Some(partition) = self.lock().get(topic).and_then(|replica| replica.partition.clone()) {
            return Ok(partition);
        }
        let streams = self.streams.get().ok_or("the streams are not open yet")?;
        let partition = open_or_create(streams, &Self::stream_name(topic), &self.config)?;
        self.lock().entry(Arc::clone(topic)).or_default().partition = Some(partition.clone());
        Ok(partition)
    }

    /// Returns the name of a topic's stream.
    pub(super) fn stream_name(topic: &str) -> String {
        format!("{REPLICA_PREFIX}{topic}")
    }

    /// Whether the topic has a stream, or is about to have one.
    pub(super) fn has_keys(&self, topic: &str) -> bool {
        self.lock_changed().contains(topic)
            || self.lock().get(topic).is_some_and(|replica| replica.partition.is_some())
    }

    fn wake(&self) {
        if let Some(thread) = self.waker.get() {
            thread.unpark();
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, StoredReplica>> {
        self.topics.lock()
    }

    /// Locked before the topics where both are.
    fn lock_changed(&self) -> MutexGuard<'_, BTreeSet<Arc<str>>> {
        self.changed.lock()
    }

    fn lock_membership(&self) -> MutexGuard<'_, Option<NodeMembership>> {
        self.membership.lock()
    }

    fn lock_thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock()
    }
}

/// Returns a stream's partition, and creates the stream if it does not exist.
fn open_or_create(streams: &Streams, name: &str, config: &StreamConfig) -> Result<Partition, StorageError> {
    let stream = match streams.find(name)? {
        Some(stream) => stream,
        None => streams.create(name, config)?,
    };
    Ok(single_partition(&stream)?)
}

impl ReplicaStore for KeyReplicas {
    fn stores(&self, topic: &str) -> bool {
        self.patterns.is_on(topic) && TopicName::parse(topic).is_ok()
    }

    fn take_restored(&self) -> Vec<(String, Claim)> {
        std::mem::take(&mut *self.restored.lock())
    }

    fn changed(&self, topic: &Arc<str>) {
        self.lock_changed().insert(Arc::clone(topic));
        self.wake();
    }

    fn is_stored(&self, topic: &str, position: Position) -> bool {
        self.lock()
            .get(topic)
            .and_then(|replica| replica.state)
            .is_some_and(|state| state.claim.epoch == position.epoch && state.sequence >= position.sequence)
    }

    fn node(&self) -> Option<u64> {
        self.lock_membership().as_ref().map(|known| known.node)
    }

    fn members(&self) -> Vec<u64> {
        self.lock_membership().as_ref().map(|known| known.members.clone()).unwrap_or_default()
    }

    fn set_members(&self, members: Vec<u64>) {
        *self.new_members.lock() = Some(members);
        self.wake();
    }

    fn fault(&self, topic: &str) -> Option<Problem> {
        Some(self.lock().get(topic)?.fault.as_ref()?.error.problem(topic))
    }

    fn reject_write(&self, topic: &str) -> Option<Problem> {
        let topics = self.lock();
        let error = &topics.get(topic)?.fault.as_ref()?.error;
        self.count_rejected(error.cause);
        Some(error.problem(topic))
    }

    fn count_rejected(&self, cause: FaultCause) {
        self.rejected.count(cause);
    }

    fn is_unreadable(&self, topic: &str) -> bool {
        let topics = self.lock();
        topics
            .get(topic)
            .and_then(|replica| replica.fault.as_ref())
            .is_some_and(|fault| fault.retry.is_none())
    }
}

#[cfg(test)]
mod tests;
