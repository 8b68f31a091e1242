//! Reader of a topic's keys for one subscriber that is behind.

use sinews_session::Prepared;

use super::snapshot::{Discarded, SnapshotReader};
use super::topic::{EncodeKeys, KeyedTopic, SnapshotStart};

/// Size of one update to a subscriber that is behind: small, so that values are read late and are new when they are
/// sent.
const UPDATE_BYTES: usize = 8 << 10;

/// Position of a subscriber in the log of last changes. It is all that a slow subscriber costs, whatever changes.
#[derive(Debug)]
pub(crate) struct KeyedReader {
    /// Cursor: the subscriber has the changes up to here; `None` if it needs a snapshot.
    after: Option<u64>,
    /// The snapshot that is being sent.
    snapshot: Option<SnapshotReader>,
    /// The snapshot before was discarded.
    is_restarted: bool,
}

/// Next step of a reader.
#[derive(Debug)]
pub(super) enum ReaderStep {
    /// To send.
    Message(Prepared),
    /// Nothing to send in some changes.
    Skipped,
    /// The subscriber has all changes up to the end: exactly, or some more.
    AtEnd { is_exact: bool },
}

impl KeyedReader {
    /// Creates a reader after a cursor; `None` begins with a snapshot.
    pub(super) fn new(after: Option<u64>) -> Self {
        Self { after, snapshot: None, is_restarted: false }
    }

    /// Returns the next message, with changes up to the cursor `end`.
    pub(super) fn next(
        &mut self,
        topic: &KeyedTopic,
        filter: Option<&str>,
        end: u64,
        encode: &EncodeKeys,
    ) -> ReaderStep {
        loop {
            if let Some(snapshot) = &mut self.snapshot {
                match snapshot.next(&topic.name, filter, encode) {
                    Ok((part, is_last)) => {
                        if is_last {
                            self.after = Some(snapshot.cursor());
                            self.snapshot = None;
                            self.is_restarted = false;
                        }
                        return ReaderStep::Message(part);
                    }
                    // It begins again with the first part of a newer one.
                    Err(Discarded) => {
                        self.snapshot = None;
                        self.is_restarted = true;
                    }
                }
            }
            if let Some(after) = self.after {
                if after >= end {
                    return ReaderStep::AtEnd { is_exact: after == end };
                }
                if let Ok((cursor, message)) = topic.encode_changes(after, end, filter, UPDATE_BYTES, encode)
                {
                    self.after = Some(cursor);
                    return message.map_or(ReaderStep::Skipped, ReaderStep::Message);
                }
            }
            self.after = None;
            match topic.begin_snapshot(filter, encode) {
                SnapshotStart::Parts(mut reader) => {
                    if self.is_restarted {
                        reader.restart();
                    }
                    self.snapshot = Some(reader);
                }
                SnapshotStart::Whole(cursor, part) => {
                    self.after = Some(cursor);
                    return ReaderStep::Message(part);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
