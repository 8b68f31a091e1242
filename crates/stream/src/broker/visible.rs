//! Tracks the records that readers of this node can see: records outside are not acknowledged.
//!
//! An emptied broker assigns offsets again that this node has already seen. Its records would precede the end of this
//! node's copy, where no reader looks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::status::lock;
use crate::{AppendError, Partition, Start};

/// The followed partitions, by stream and number.
#[derive(Default)]
pub(super) struct Visible(Mutex<HashMap<String, HashMap<u32, Followed>>>);

struct Followed {
    copy: Partition,
    /// Offset at which following began, while the copy is empty.
    begins: u64,
    /// Reason why the partition is no longer followed.
    ended: Option<Arc<str>>,
}

impl Visible {
    /// Registers a partition that is followed from this position on.
    pub(super) fn follow(&self, stream: &str, partition: u32, from: Start, copy: &Partition) {
        let begins = if let Start::Offset(offset) = from { offset } else { 0 };
        let followed = Followed { copy: copy.clone(), begins, ended: None };
        lock(&self.0).entry(stream.to_owned()).or_default().entry(partition).or_insert(followed);
    }

    /// Records that the partition is no longer followed, until the process is restarted.
    pub(super) fn end(&self, stream: &str, partition: u32, why: &str) {
        if let Some(followed) = lock(&self.0).get_mut(stream).and_then(|all| all.get_mut(&partition)) {
            followed.ended.get_or_insert_with(|| why.into());
        }
    }

    /// The minimum offset of a record that is published from now on.
    ///
    /// # Errors
    /// The reason why readers of this node would not see it.
    pub(super) fn least_offset(&self, stream: &str, partition: u32) -> Result<u64, AppendError> {
        let all = lock(&self.0);
        let Some(followed) = all.get(stream).and_then(|all| all.get(&partition)) else { return Ok(0) };
        match &followed.ended {
            Some(why) => {
                Err(AppendError::Broker(format!("{stream}/{partition} is not followed: {why}").into()))
            }
            None => Ok(followed.begins.max(followed.copy.ends().next)),
        }
    }
}

/// Reason not to follow a partition that ends at the broker before this node's copy does.
pub(super) fn ends_before(broker: &str, end: u64, next: u64) -> String {
    format!(
        "{broker} ends at offset {end}, but this node's copy at {next}: the stream was recreated or has lost records. \
         Remove this node's copy of the stream to read it again"
    )
}

/// Reason not to follow a partition whose record at the copy's last offset differs.
pub(super) fn another_record(offset: u64) -> String {
    format!(
        "offset {offset} holds another record than this node's copy: the stream was recreated. Remove this node's \
         copy of the stream to read it again"
    )
}

/// Reason not to acknowledge a record that the broker has stored before the end of this node's copy.
pub(super) fn made_anew(offset: u64, least: u64) -> String {
    format!(
        "the broker stored the records at offset {offset}, but this node's copy ends at {least}: the stream was \
         recreated or has lost records, and readers of this node do not see them. Remove this node's copy of the stream \
         to read it again"
    )
}
