//! Writing by somebody else than the log's own threads: a loop that appends to files beside its connections.
//!
//! Only what need not be synced is: a ring gives a sync to a thread of the kernel, which costs more than a thread of ours.

use std::cell::Cell;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use sinews_file::AppendFile;

use crate::partition::{Core, Write};

/// Carries out the writes of a log's partitions in place of its threads, see [`Streams::carried_by`](crate::Streams::carried_by).
pub trait Carrier: Send + Sync {
    /// A partition has something to write. Called on the thread that has appended it, which it must not block. A task
    /// that is dropped goes to the log's threads.
    fn carry(&self, task: Task);
}

thread_local! {
    /// This thread is telling those who wait for what it has carried.
    static TELLING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller comes from a waker that a carrier calls: it cannot wait for that carrier.
pub(crate) fn is_telling() -> bool {
    TELLING.get()
}

/// A partition that has something to do. It does one thing at a time, so there is one of these for it at most.
pub struct Task {
    core: Option<Arc<Core>>,
}

impl Task {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core: Some(core) }
    }

    /// What is to be written next. `None`: nothing, or something that only the log's threads do, such as beginning a
    /// segment; they have it now.
    #[must_use]
    pub fn begin(mut self) -> Option<Carried> {
        let core = self.core.take()?;
        let (write, file) = core.begin_carried()?;
        Some(Carried { core, file, write: Some(write) })
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(core) = self.core.take() {
            core.give_back();
        }
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task").finish_non_exhaustive()
    }
}

/// A write of a partition: [`pieces`](Self::pieces) to the end of [`file`](Self::file). If it is dropped in place of [`finish`](Self::finish), the partition fails, since nobody
/// knows what is in its file.
pub struct Carried {
    core: Arc<Core>,
    file: Arc<AppendFile>,
    write: Option<Write>,
}

impl Carried {
    /// To append to.
    #[must_use]
    pub fn file(&self) -> &Arc<AppendFile> {
        &self.file
    }

    /// What to append, one behind the other.
    #[must_use]
    pub fn pieces(&self) -> &[Bytes] {
        self.write.as_ref().map_or(&[], |write| &write.pieces)
    }

    /// How it went: so many bytes are in the file, and what went wrong then. Whoever waits is told. `None`: there is
    /// nothing more to do for the carrier.
    #[must_use]
    pub fn finish(mut self, written: u64, result: io::Result<()>) -> Option<Task> {
        let write = self.write.take()?;
        self.told(write, written, result).then(|| Task::new(self.core.clone()))
    }

    fn told(&self, write: Write, written: u64, result: io::Result<()>) -> bool {
        TELLING.set(true);
        let goes_on = self.core.finish_carried(write, written, result);
        TELLING.set(false);
        goes_on
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        if let Some(write) = self.write.take() {
            let gone = io::Error::other("whoever wrote it has gone");
            if self.told(write, 0, Err(gone)) {
                self.core.give_back();
            }
        }
    }
}

impl std::fmt::Debug for Carried {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Carried").field("pieces", &self.pieces().len()).finish_non_exhaustive()
    }
}
