//! Which records the readers of this node can see: what they cannot see is not acknowledged.
//!
//! A broker that was emptied gives offsets again that this node has seen. Its records would stand before the end of this
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
    /// Where following began, while the copy is empty.
    begins: u64,
    /// Why the partition is not followed any more.
    ended: Option<Arc<str>>,
}

impl Visible {
    /// A partition is followed from there on.
    pub(super) fn follow(&self, stream: &str, partition: u32, from: Start, copy: &Partition) {
        let begins = if let Start::Offset(offset) = from { offset } else { 0 };
        let followed = Followed { copy: copy.clone(), begins, ended: None };
        lock(&self.0).entry(stream.to_owned()).or_default().entry(partition).or_insert(followed);
    }

    /// The partition is not followed any more, until the process is started again.
    pub(super) fn end(&self, stream: &str, partition: u32, why: &str) {
        if let Some(followed) = lock(&self.0).get_mut(stream).and_then(|all| all.get_mut(&partition)) {
            followed.ended.get_or_insert_with(|| why.into());
        }
    }

    /// The least offset that a record published from now on can have.
    ///
    /// # Errors
    /// Why readers of this node would not see it.
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

/// Why a partition is not followed whose stream at the broker ends before what this node has seen.
pub(super) fn ends_before(broker: &str, end: u64, next: u64) -> String {
    format!(
        "{broker} has offsets up to {end} only, and this node up to {next}: the stream was made anew, or has lost records. \
         Remove this node's copy of it to read it again"
    )
}

/// Why a partition is not followed that has another record in the place of the last one that this node has seen.
pub(super) fn another_record(offset: u64) -> String {
    format!(
        "the record at offset {offset} is another one than this node has seen: the stream was made anew. Remove this node's \
         copy of it to read it again"
    )
}

/// Why a record is not acknowledged that the broker has placed before what this node has seen.
pub(super) fn made_anew(offset: u64, least: u64) -> String {
    format!(
        "the broker stored the records at offset {offset}, and this node has seen everything up to {least}: the stream was \
         made anew, or has lost records, and readers of this node do not see them. Remove this node's copy of the stream \
         to read it again"
    )
}
