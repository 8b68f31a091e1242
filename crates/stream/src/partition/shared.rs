//! The state that all handles to a partition share.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;

use super::state::State;
use crate::StreamsConfig;
use crate::copy_observer::CopyObserver;
use crate::disk::Disk;
use crate::writer::{Clock, WriterPool};

/// State shared by all clones.
pub(crate) struct PartitionCore {
    pub(super) stream: Arc<str>,
    pub(super) number: u32,
    pub(super) dir: PathBuf,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) pool: Arc<WriterPool>,
    pub(super) limits: StreamsConfig,
    pub(super) clock: Clock,
    pub(super) state: Mutex<State>,
    /// Last shared window at the end of the log, since many readers want the same bytes.
    pub(super) window: Mutex<Option<SharedWindow>>,
    pub(super) read_records: AtomicU64,
    pub(super) read_bytes: AtomicU64,
    /// Time of the last read, in microseconds since 1970; 0 before the first.
    pub(super) last_read: AtomicU64,
    /// Whether the stream was deleted: reads and appends fail.
    pub(super) deleted: AtomicBool,
    /// Reason why appends are rejected until the log is opened again, even after a disk failure is repaired.
    pub(super) permanent_failure: OnceLock<Arc<str>>,
    /// Notified when an executor has returned the partition.
    pub(super) executor_changed: Condvar,
    pub(super) copy_observer: OnceLock<Arc<dyn CopyObserver>>,
}

impl PartitionCore {
    pub(super) fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Acquire)
    }

    /// No code panics while holding the lock, except where a comment gives the reason why it cannot.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A shared part of a segment.
pub(super) struct SharedWindow {
    /// Base of the segment.
    pub(super) base: u64,
    pub(super) start: u64,
    pub(super) bytes: Bytes,
}

impl SharedWindow {
    pub(super) fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}
