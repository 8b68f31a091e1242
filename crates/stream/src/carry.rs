//! Writing through a [`Carrier`], such as an event loop that appends to files beside its connections, instead of the
//! log's own threads.
//!
//! A carrier gets only writes that need no sync: an io_uring ring passes a sync to a kernel thread, which costs more
//! than a writer thread of the log.

use std::cell::Cell;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use sinews_file::AppendFile;

use crate::partition::{Core, Write};

/// Executes the writes of a log's partitions in place of its threads; see
/// [`Streams::carried_by`](crate::Streams::carried_by).
pub trait Carrier: Send + Sync {
    /// Accepts a partition that has records to write. Called on the appending thread, which it must not block. A
    /// dropped task goes to the log's threads.
    fn carry(&self, task: Task);
}

thread_local! {
    /// Whether this thread is reporting the result of a carried write to its waiters.
    static TELLING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller runs inside a waker that a carrier calls: it must not wait for that carrier.
pub(crate) fn is_telling() -> bool {
    TELLING.get()
}

/// A partition with pending work. A partition does one thing at a time, so at most one task exists for it.
pub struct Task {
    core: Option<Arc<Core>>,
}

impl Task {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core: Some(core) }
    }

    /// Starts the next write. `None`: there is nothing to do, or the work is reserved to the log's threads, such as
    /// creating a segment; they have it now.
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

/// A write of a partition: [`pieces`](Self::pieces) are appended to [`file`](Self::file). Dropping it without
/// [`finish`](Self::finish) fails the partition, since the content of its file is then unknown.
pub struct Carried {
    core: Arc<Core>,
    file: Arc<AppendFile>,
    write: Option<Write>,
}

impl Carried {
    /// The file to append to.
    #[must_use]
    pub fn file(&self) -> &Arc<AppendFile> {
        &self.file
    }

    /// The buffers to append, in order.
    #[must_use]
    pub fn pieces(&self) -> &[Bytes] {
        self.write.as_ref().map_or(&[], |write| &write.pieces)
    }

    /// Reports the result of the write: the number of bytes in the file, and the error if one followed. Wakes the
    /// waiters. `None`: the carrier has nothing more to do.
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
            let gone = io::Error::other("the carrier dropped the write");
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
