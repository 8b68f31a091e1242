//! Reads this node's keys from its streams when they are open.

use std::sync::atomic::Ordering;

use sinews_server::{KeyedSnapshot, Publisher};
use sinews_stream::{Partition, Stream, Streams};

use super::batches::remove_leftovers;
use super::membership::NodeMembership;
use super::{KeyReplicas, REPLICA_PREFIX, StorageFault, StoredReplica, load};
use crate::streams::durable_keys::{self, STREAM_PREFIX};
use crate::streams::durable_topics::single_partition;
use crate::topics::key_faults::{FaultCause, StorageError};
use crate::topics::shared_keys::{Claim, ReplicaStore as _};

impl KeyReplicas {
    /// Reads the replicas of all existing streams into memory. Waits for the disk.
    pub(crate) fn load(&self, streams: &Streams) {
        let Some(publisher) = self.publisher.get().filter(|_| !self.is_loaded.load(Ordering::Acquire)) else {
            return;
        };
        self.read_streams(streams, REPLICA_PREFIX, |topic, _, partition| {
            self.load_topic(topic, partition, publisher)
        });
        self.read_streams(streams, STREAM_PREFIX, |topic, stream, partition| {
            // A replica without a complete generation has no keys yet.
            let has_replica = self.lock().get(topic).is_some_and(StoredReplica::has_keys);
            if has_replica { Ok(()) } else { self.import_topic(topic, stream, partition, publisher) }
        });
        match NodeMembership::open(streams, &self.config) {
            Ok(opened) => *self.lock_membership() = Some(opened),
            Err(StorageError { text: reason, .. }) => {
                tracing::error!(reason, "the nodes of the cluster that this node has seen are unknown")
            }
        }
        let _ = self.streams.set(streams.clone());
        self.is_loaded.store(true, Ordering::Release);
        self.wake();
    }

    /// Reads the streams of topics with durable keys whose name begins with this prefix.
    fn read_streams(
        &self,
        streams: &Streams,
        prefix: &str,
        read: impl Fn(&str, &Stream, &Partition) -> Result<(), StorageError>,
    ) {
        for info in streams.describe_all() {
            let Some(topic) = info.name.strip_prefix(prefix).filter(|topic| self.stores(topic)) else {
                continue;
            };
            let found = streams.find(&info.name).map_err(StorageError::from);
            let result = found.and_then(|stream| {
                let Some(stream) = stream else { return Ok(()) };
                read(topic, &stream, &single_partition(&stream)?)
            });
            if let Err(error) = result {
                let reason = &*error.text;
                tracing::error!(topic, stream = &*info.name, reason, "the keys of a topic cannot be read");
                self.lock().entry(topic.into()).or_default().fault =
                    Some(StorageFault { error, retry: None });
            }
        }
    }

    fn load_topic(
        &self,
        topic: &str,
        partition: &Partition,
        publisher: &Publisher,
    ) -> Result<(), StorageError> {
        let loaded = load::read(partition)?;
        let mut topics = self.lock();
        let replica = topics.entry(topic.into()).or_default();
        replica.partition = Some(partition.clone());
        replica.last_generation = loaded.last_generation;
        replica.state = loaded.state;
        replica.has_leftovers = loaded.leftovers().next().is_some();
        if loaded.is_damaged() && loaded.state.is_none() {
            let text = "the record with the owner and the position of the keys is damaged".to_owned();
            return Err(StorageError { cause: FaultCause::Unreadable, text });
        }
        if loaded.is_damaged() {
            tracing::error!(
                topic,
                "records of durable keys are damaged: other nodes are asked for the keys first"
            );
            if let Some(state) = &mut replica.state {
                // Any other replica is better, and the stream is written again.
                state.claim.term = 0;
            }
        }
        let claim = replica.state.map(|state| state.claim);
        let removes_leftovers = replica.has_leftovers && !loaded.is_damaged();
        drop(topics);
        if removes_leftovers {
            match remove_leftovers(partition, &loaded) {
                Ok(()) => self.note_leftovers(topic, false),
                // The next generation removes them first.
                Err(error) => {
                    tracing::warn!(topic, reason = error.text, "incomplete keys of a topic cannot be removed")
                }
            }
        }
        match (claim, loaded.into_snapshot(topic)) {
            (Some(claim), Some(snapshot)) => self.restore(claim, snapshot, publisher),
            _ => Ok(()),
        }
    }

    /// Reads the keys that this server has stored without a cluster.
    fn import_topic(
        &self,
        topic: &str,
        stream: &Stream,
        partition: &Partition,
        publisher: &Publisher,
    ) -> Result<(), StorageError> {
        let mut snapshot = durable_keys::load::read(topic, stream.created(), partition)?;
        snapshot.keys.retain(|key| key.value.is_some());
        snapshot.forgotten = snapshot.position.sequence;
        if snapshot.position.sequence == 0 {
            return Ok(());
        }
        let claim = Claim { term: 1, epoch: snapshot.position.epoch, owner: 0 };
        self.restore(claim, snapshot, publisher)
    }

    fn restore(
        &self,
        claim: Claim,
        snapshot: KeyedSnapshot,
        publisher: &Publisher,
    ) -> Result<(), StorageError> {
        let topic = snapshot.topic.clone();
        if publisher.keyed_position(&topic).is_some_and(|position| position.sequence > 0) {
            // A predecessor process has passed the keys on.
            return Ok(());
        }
        publisher.install_keyed_topic(snapshot).map_err(|error| {
            let text = format!("the keys do not fit into the server (limits.max_keyed_memory): {error:?}");
            StorageError { cause: FaultCause::Unreadable, text }
        })?;
        self.restored.lock().push((topic, claim));
        Ok(())
    }
}
