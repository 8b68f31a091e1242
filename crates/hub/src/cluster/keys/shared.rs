//! This node's keys in a cluster, as all threads see them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use futures_channel::oneshot;
use parking_lot::{Mutex, MutexGuard};
use sinews_server::{KeyError, KeyReplication, KeyWrite, KeyWritten};

use crate::cluster::outbox::Outbox;
use crate::model::brief::brief;
use crate::model::problem::{Problem, code, problem};
use crate::topics::key_faults::FaultCause;
use crate::topics::keys::key_problem;
use crate::topics::shared_keys::{Claim, KeyWriteOutcome, LoadingKeys, ReplicaStore, SharedKeys};

/// Maximum writes by this node that wait for other nodes.
const WRITES_MAX: usize = 1_024;

/// Maximum size of their values together in bytes.
const WRITES_BYTES_MAX: usize = 16 << 20;

/// Bytes in a message beside a write's names and value.
const WRITE_HEAD: usize = 1_024;

/// This node's keys in a cluster, as all threads see them.
pub(crate) struct ClusterKeys {
    outbox: Arc<Outbox>,
    state: Mutex<SubmittedWork>,
    /// Writes that have not ended; read without the lock.
    waiting: AtomicU64,
    /// The keys of the other nodes are in memory.
    is_loaded: AtomicBool,
    /// Since a later login, this node does not know all topics yet.
    is_rejoining: AtomicBool,
    /// Stores the durable keys.
    store: OnceLock<Arc<dyn ReplicaStore>>,
    pub(crate) counters: KeyCounters,
}

/// Work for the link's thread.
#[derive(Default)]
pub(super) struct SubmittedWork {
    pub(super) writes: Vec<SubmittedWrite>,
    /// Writes that have not ended, by topic.
    waiting: HashMap<Arc<str>, usize>,
    waiting_bytes: usize,
    pub(super) changed: Vec<Arc<str>>,
    pub(super) emptied: Vec<Arc<str>>,
    /// Durable-key writes that this node has applied, and not stored.
    pub(super) unstored: Vec<UnstoredWrite>,
    /// Topics without a replica on this node.
    pub(super) refused: HashMap<Arc<str>, LoadFailure>,
    /// Topics that this node has learned since its login, before it knows all: their keys are perhaps not here.
    pub(super) learned: HashSet<Arc<str>>,
    /// The owners of a predecessor process.
    pub(super) inherited: Vec<(String, Claim)>,
    /// Dropped when the keys of the other nodes are loaded, or cannot be.
    loading: Vec<oneshot::Sender<()>>,
    /// The owners, for a successor process.
    pub(super) claims: BTreeMap<Arc<str>, Claim>,
}

/// Why a node continues without a topic's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadFailure {
    /// They exceed the memory limit.
    Memory,
    /// Their owner does not send them.
    Unanswered,
}

/// Counters for the keys of all nodes.
#[derive(Debug, Default)]
pub(crate) struct KeyCounters {
    /// Topics that this node owns.
    pub(crate) owned: AtomicU64,
    /// Replicas that do not fit into the memory limit, or are not loaded from their owner.
    pub(crate) refused: AtomicU64,
    /// Writes passed to owners, and writes that have ended with 503.
    pub(crate) forwarded: AtomicU64,
    pub(crate) unanswered: AtomicU64,
    /// Changes received from owners.
    pub(crate) changes: AtomicU64,
    /// Replicas that were loaded from their owner.
    pub(crate) loads: AtomicU64,
    /// Topics that this node has claimed.
    pub(crate) claims: AtomicU64,
}

/// A write that the link's thread executes.
pub(super) struct SubmittedWrite {
    pub(super) topic: Arc<str>,
    pub(super) write: KeyWrite,
    done: oneshot::Sender<Result<KeyWritten, Problem>>,
}

/// A durable-key write that this node has applied, and not stored.
pub(super) struct UnstoredWrite {
    pub(super) topic: Arc<str>,
    pub(super) written: KeyWritten,
    /// Set when the link's thread looks at it first.
    pub(super) deadline: Option<Instant>,
    /// Offset in the output of the connection to the broker behind the change; `None`: it is not there yet.
    pub(super) output_end: Option<u64>,
    pub(super) done: oneshot::Sender<Result<KeyWritten, Problem>>,
}

impl fmt::Debug for ClusterKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterKeys").field("counters", &self.counters).finish_non_exhaustive()
    }
}

impl ClusterKeys {
    pub(in super::super) fn new(outbox: Arc<Outbox>) -> Self {
        Self {
            outbox,
            state: Mutex::default(),
            waiting: AtomicU64::new(0),
            is_loaded: AtomicBool::new(false),
            is_rejoining: AtomicBool::new(false),
            store: OnceLock::new(),
            counters: KeyCounters::default(),
        }
    }

    /// Sets the durable-key store. Called once, before the link starts.
    pub(crate) fn set_store(&self, store: Arc<dyn ReplicaStore>) {
        let _ = self.store.set(store);
    }

    /// Returns the store for a topic's keys, if they are durable.
    pub(super) fn store_of(&self, topic: &str) -> Option<&dyn ReplicaStore> {
        self.store.get().map(|store| &**store).filter(|store| store.stores(topic))
    }

    /// Returns the durable-key store.
    pub(super) fn store(&self) -> Option<&dyn ReplicaStore> {
        self.store.get().map(|store| &**store)
    }

    /// Checks whether this node accepts a durable-key write that it owns.
    pub(super) fn check_storable(&self, topic: &str) -> Result<(), Problem> {
        let Some(store) = self.store_of(topic) else { return Ok(()) };
        if let Some(problem) = store.reject_write(topic) {
            return Err(problem);
        }
        let waiting = self.lock().unstored.len();
        if waiting >= WRITES_MAX {
            store.count_rejected(FaultCause::QueueFull);
            let text = format!("writes of keys wait for the disk: {waiting} of {WRITES_MAX}; retry");
            return Err(problem(code::STORE, text));
        }
        Ok(())
    }

    fn owns(&self, topic: &str) -> bool {
        self.claim(topic).is_some_and(|claim| claim.owner == self.outbox.node().id)
    }

    /// Ends a write at this node, which waits for the disk if the key is durable.
    fn finish_here(&self, topic: &str, written: KeyWritten) -> KeyWriteOutcome {
        let Some(store) = self.store_of(topic).filter(|_| is_storable(&written)) else {
            return KeyWriteOutcome::Done(Ok(written));
        };
        let (done, result) = oneshot::channel();
        let topic: Arc<str> = topic.into();
        let write =
            UnstoredWrite { topic: Arc::clone(&topic), written, deadline: None, output_end: None, done };
        self.lock().unstored.push(write);
        store.changed(&topic);
        // A repeated write is perhaps stored already.
        self.outbox.wake();
        later(result)
    }

    fn check_size(&self, topic: &str, write: &KeyWrite) -> Result<(), Problem> {
        let size = WRITE_HEAD + write.value().map_or(0, bytes::Bytes::len);
        let max = self.outbox.max_payload();
        if size > max {
            let text = format!(
                "value of {size} bytes in {} exceeds the largest message of the cluster's broker ({max})",
                brief(topic)
            );
            return Err(problem(code::TOO_LARGE, text));
        }
        Ok(())
    }

    fn has_waiting(&self, topic: &str) -> bool {
        self.waiting.load(Ordering::Acquire) > 0 && self.lock().waiting.contains_key(topic)
    }

    fn submit(
        &self,
        topic: &str,
        write: KeyWrite,
    ) -> Result<oneshot::Receiver<Result<KeyWritten, Problem>>, Problem> {
        if !self.outbox.is_open() {
            return Err(broker_away(topic));
        }
        let bytes = write.value().map_or(0, bytes::Bytes::len);
        let mut state = self.lock();
        let waiting: usize = usize::try_from(self.waiting.load(Ordering::Acquire)).unwrap_or(usize::MAX);
        if waiting >= WRITES_MAX || state.waiting_bytes + bytes > WRITES_BYTES_MAX {
            let text = format!(
                "writes of keys wait for other nodes: {waiting} of {WRITES_MAX}, {} of {WRITES_BYTES_MAX} bytes; retry",
                state.waiting_bytes
            );
            return Err(problem(code::STORE, text));
        }
        let (done, result) = oneshot::channel();
        let topic: Arc<str> = topic.into();
        self.waiting.fetch_add(1, Ordering::AcqRel);
        *state.waiting.entry(Arc::clone(&topic)).or_default() += 1;
        state.waiting_bytes += bytes;
        state.writes.push(SubmittedWrite { topic, write, done });
        drop(state);
        self.outbox.wake();
        Ok(result)
    }

    /// Ends a write that this node has applied, when it is stored.
    pub(super) fn finish_when_stored(&self, write: SubmittedWrite, written: KeyWritten, deadline: Instant) {
        let mut state = self.lock();
        self.release(&mut state, &write);
        let SubmittedWrite { topic, done, .. } = write;
        let (deadline, output_end) = (Some(deadline), None);
        state.unstored.push(UnstoredWrite { topic, written, deadline, output_end, done });
    }

    /// Ends a write.
    pub(super) fn finish(&self, write: SubmittedWrite, result: Result<KeyWritten, Problem>) {
        self.release(&mut self.lock(), &write);
        if result.as_ref().is_err_and(|problem| problem.code == code::STORE) {
            self.counters.unanswered.fetch_add(1, Ordering::Relaxed);
        }
        // The client may have gone.
        let _ = write.done.send(result);
    }

    /// The write does not wait for other nodes any more.
    fn release(&self, state: &mut SubmittedWork, write: &SubmittedWrite) {
        if let Some(count) = state.waiting.get_mut(&write.topic) {
            *count -= 1;
            if *count == 0 {
                state.waiting.remove(&write.topic);
            }
        }
        state.waiting_bytes -= write.write.value().map_or(0, bytes::Bytes::len);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns whether the keys of the other nodes have been loaded.
    pub(crate) fn is_loaded(&self) -> bool {
        self.is_loaded.load(Ordering::Acquire)
    }

    /// Whether they are, and this node knows all topics since its last login.
    pub(super) fn is_complete(&self) -> bool {
        self.is_loaded() && !self.is_rejoining.load(Ordering::Acquire)
    }

    /// A login: until [`finish_loading`](Self::finish_loading), other nodes may have topics that this node does not
    /// know.
    pub(super) fn rejoin(&self) {
        self.is_rejoining.store(true, Ordering::Release);
    }

    /// Notes that the keys of the other nodes are loaded.
    pub(super) fn finish_loading(&self) {
        self.is_loaded.store(true, Ordering::Release);
        self.end_loading();
    }

    /// Returns whether another node may have keys for a topic that are not here.
    fn is_unknown(&self, topic: &str) -> bool {
        if self.is_complete() {
            return false;
        }
        let state = self.lock();
        !self.is_loaded() || !state.claims.contains_key(topic) || state.learned.contains(topic)
    }

    /// Ends what waits for the keys of the other nodes.
    pub(super) fn end_loading(&self) {
        let mut state = self.lock();
        self.is_rejoining.store(false, Ordering::Release);
        state.learned.clear();
        let loading = std::mem::take(&mut state.loading);
        drop(state);
        // Completes the waiting tasks.
        drop(loading);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SubmittedWork> {
        self.state.lock()
    }
}

impl SharedKeys for ClusterKeys {
    fn write(
        &self,
        topic: &str,
        write: KeyWrite,
        write_here: &mut dyn FnMut(&KeyWrite) -> Result<KeyWritten, KeyError>,
    ) -> KeyWriteOutcome {
        if let Err(problem) = self.check_size(topic, &write) {
            return KeyWriteOutcome::Done(Err(problem));
        }
        if !self.has_waiting(topic) {
            // Only durable keys have a store, which may reject a write.
            if self.store_of(topic).is_some()
                && self.owns(topic)
                && let Err(problem) = self.check_storable(topic)
            {
                return KeyWriteOutcome::Done(Err(problem));
            }
            match write_here(&write) {
                Err(KeyError::NotOwner) => {}
                Ok(written) => return self.finish_here(topic, written),
                Err(error) => return KeyWriteOutcome::Done(Err(key_problem(error))),
            }
        }
        match self.submit(topic, write) {
            Ok(result) => later(result),
            Err(problem) => KeyWriteOutcome::Done(Err(problem)),
        }
    }

    fn check_ready(&self, topic: &str) -> Result<(), Problem> {
        if self.is_unknown(topic) {
            let text = format!("the keys of {} are not loaded from the other nodes yet; retry", brief(topic));
            return Err(problem(code::STORE, text));
        }
        let fault = self.store_of(topic).and_then(|store| store.fault(topic));
        if let Some(problem) = fault.filter(|_| self.claim(topic).is_none()) {
            // Its keys are on this disk, and on no other one.
            return Err(problem);
        }
        if self.counters.refused.load(Ordering::Relaxed) > 0
            && let Some(refusal) = self.lock().refused.get(topic)
        {
            return Err(problem(code::STORE, refusal.text(topic)));
        }
        Ok(())
    }

    fn loading(&self, topic: &str) -> Option<LoadingKeys> {
        if !self.outbox.is_open() || !self.is_unknown(topic) {
            return None;
        }
        let (done, loaded) = oneshot::channel();
        self.lock().loading.push(done);
        if self.is_complete() {
            // The sender was perhaps added too late.
            return None;
        }
        Some(Box::pin(async {
            let _: Result<(), oneshot::Canceled> = loaded.await;
            Ok(())
        }))
    }

    fn inherit(&self, topic: String, claim: Claim) {
        self.lock().inherited.push((topic, claim));
    }

    fn claim(&self, topic: &str) -> Option<Claim> {
        self.lock().claims.get(topic).copied()
    }

    fn wake(&self) {
        self.outbox.wake();
    }
}

impl KeyReplication for ClusterKeys {
    fn changed(&self, topic: &Arc<str>) {
        if let Some(store) = self.store_of(topic) {
            store.changed(topic);
        }
        self.lock().changed.push(Arc::clone(topic));
        self.outbox.wake();
    }

    fn emptied(&self, topic: &Arc<str>) {
        self.lock().emptied.push(Arc::clone(topic));
        self.outbox.wake();
    }
}

/// Whether a topic has changes, and not only a write without effect.
pub(super) fn is_storable(written: &KeyWritten) -> bool {
    written.position.sequence > 0
}

fn later(result: oneshot::Receiver<Result<KeyWritten, Problem>>) -> KeyWriteOutcome {
    KeyWriteOutcome::Later(Box::pin(async {
        // The link's thread has ended.
        let is_over = |_| Err(problem(code::STORE, "the server shuts down; retry"));
        result.await.unwrap_or_else(is_over)
    }))
}

pub(super) fn broker_away(topic: &str) -> Problem {
    let text = format!(
        "the broker of the cluster is unreachable, and this node does not own the keys of {}; retry",
        brief(topic)
    );
    problem(code::STORE, text)
}

impl LoadFailure {
    /// The error for a topic.
    fn text(self, topic: &str) -> String {
        let topic = brief(topic);
        match self {
            Self::Memory => format!("the keys of {topic} exceed limits.max_keyed_memory of this node"),
            Self::Unanswered => format!(
                "the keys of {topic} are not loaded: their owner does not send them, perhaps because a value exceeds the \
                 largest message of the cluster's broker"
            ),
        }
    }
}
