//! Tracks the records that this node's readers can see: records outside are not acknowledged.
//!
//! An emptied broker assigns offsets again that this node has already seen. Its records would precede the end of this
//! node's copy, where no reader looks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use sinews_stream::{AppendError, Partition, StartPosition};

use crate::lock::lock;

/// The followed partitions, by stream and number.
#[derive(Default)]
pub(crate) struct FollowedPartitions(Mutex<HashMap<String, HashMap<u32, LocalCopy>>>);

struct LocalCopy {
    copy: Partition,
    /// Offset at which following began, while the copy is empty.
    begins: u64,
    /// Reason why the partition is no longer followed.
    stopped: Option<Arc<str>>,
}

impl FollowedPartitions {
    /// Registers a partition that is followed from this position on.
    pub(crate) fn add(&self, stream: &str, partition: u32, from: StartPosition, copy: &Partition) {
        let begins = if let StartPosition::Offset(offset) = from { offset } else { 0 };
        let followed = LocalCopy { copy: copy.clone(), begins, stopped: None };
        lock(&self.0).entry(stream.to_owned()).or_default().entry(partition).or_insert(followed);
    }

    /// Records that the partition is no longer followed, until the process is restarted.
    pub(crate) fn stop(&self, stream: &str, partition: u32, reason: &str) {
        if let Some(followed) = lock(&self.0).get_mut(stream).and_then(|all| all.get_mut(&partition)) {
            followed.stopped.get_or_insert_with(|| reason.into());
        }
    }

    /// The minimum offset of a record that is published from now on.
    ///
    /// # Errors
    /// The reason why this node's readers would not see it.
    pub(crate) fn min_offset(&self, stream: &str, partition: u32) -> Result<u64, AppendError> {
        let all = lock(&self.0);
        let Some(followed) = all.get(stream).and_then(|all| all.get(&partition)) else { return Ok(0) };
        match &followed.stopped {
            Some(reason) => {
                Err(AppendError::Broker(format!("{stream}/{partition} is not followed: {reason}").into()))
            }
            None => Ok(followed.begins.max(followed.copy.offsets().next)),
        }
    }
}

/// Reason not to follow a partition that ends at the broker before this node's copy does.
pub(crate) fn ends_before(broker: &str, end: u64, next: u64) -> String {
    format!(
        "{broker} ends at offset {end}, but this node's copy at {next}: the stream was recreated or has lost records. \
         Remove this node's copy of the stream to read it again"
    )
}

/// Reason not to follow a partition whose record at the copy's last offset differs.
pub(crate) fn another_record(offset: u64) -> String {
    format!(
        "offset {offset} holds another record than this node's copy: the stream was recreated. Remove this node's \
         copy of the stream to read it again"
    )
}

/// Reason not to acknowledge a record that the broker has stored before the end of this node's copy.
pub(crate) fn recreated(offset: u64, min_offset: u64) -> String {
    format!(
        "the broker stored the records at offset {offset}, but this node's copy ends at {min_offset}: the stream was \
         recreated or has lost records, and readers of this node do not see them. Remove this node's copy of the stream \
         to read it again"
    )
}
