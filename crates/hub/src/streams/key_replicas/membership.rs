//! The nodes that stored keys together with this node, so that a start waits for them.

use ring::rand::{SecureRandom as _, SystemRandom};
use sinews_stream::record::{RecordBuilder, RecordError, ValueKind};
use sinews_stream::{Partition, StreamConfig, Streams};

use super::{REPLICAS_NAME, append, open_or_create};
use crate::model::problem::Problem;
use crate::streams::records_from::read_all;
use crate::streams::request::now;
use crate::topics::key_faults::StorageError;

/// Record keys: the node's id, and the ids of the nodes that it has last seen.
const NODE_KEY: &[u8] = b"node";
const MEMBERS_KEY: &[u8] = b"members";

/// The id of this node's directory, and the directory ids of the nodes that it has last seen, its own included.
#[derive(Debug)]
pub(super) struct NodeMembership {
    partition: Partition,
    pub(super) node: u64,
    pub(super) members: Vec<u64>,
}

impl NodeMembership {
    /// Reads a directory's membership. A directory without an id gets one.
    pub(super) fn open(streams: &Streams, config: &StreamConfig) -> Result<Self, StorageError> {
        let partition = open_or_create(streams, REPLICAS_NAME, config)?;
        let (node, members) = read(&partition)?;
        let mut membership = Self { partition, node: node.unwrap_or(0), members };
        if node.is_none() {
            let mut id = [0; 8];
            SystemRandom::new().fill(&mut id).map_err(|_| "the system has no random numbers")?;
            membership.node = u64::from_le_bytes(id);
            membership.append(NODE_KEY, &id)?;
            let own = vec![membership.node];
            membership.set_members(own)?;
        }
        Ok(membership)
    }

    /// Stores the nodes that this node sees now.
    pub(super) fn set_members(&mut self, members: Vec<u64>) -> Result<(), StorageError> {
        let value: Vec<u8> = members.iter().flat_map(|id| id.to_le_bytes()).collect();
        self.append(MEMBERS_KEY, &value)?;
        self.members = members;
        Ok(())
    }

    fn append(&self, key: &[u8], value: &[u8]) -> Result<(), StorageError> {
        let mut records = RecordBuilder::new();
        records.push(now(), key, value, ValueKind::Bytes)?;
        append(&self.partition, records.finish().ok_or(RecordError::Empty)?)
    }
}

fn read(partition: &Partition) -> Result<(Option<u64>, Vec<u64>), Problem> {
    let (mut node, mut members) = (None, Vec::new());
    read_all(partition, |record| {
        let Some((record, _)) = record else { return Ok(()) };
        let mut ids =
            record.value.chunks_exact(8).filter_map(|id| Some(u64::from_le_bytes(id.try_into().ok()?)));
        match record.key {
            NODE_KEY => node = ids.next(),
            MEMBERS_KEY => members = ids.collect(),
            _ => {}
        }
        Ok(())
    })?;
    Ok((node, members))
}
