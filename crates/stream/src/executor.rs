//! Writing through a [`WriteExecutor`], such as an event loop that appends to files beside its connections, instead of the
//! log's own threads.
//!
//! An executor gets only writes that need no sync: an io_uring ring passes a sync to a kernel thread, which costs more
//! than a writer thread of the log.

use std::cell::Cell;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use sinews_file::AppendFile;

use crate::partition::job::BatchWrite;

/// Executes a log's partition writes in place of its threads; see
/// [`Streams::set_write_executor`](crate::Streams::set_write_executor).
pub trait WriteExecutor: Send + Sync {
    /// Accepts a partition that has records to write. Called on the appending thread, which it must not block. A
    /// dropped task goes to the log's threads.
    fn execute(&self, task: WriteTask);
}

/// A partition, as an executor uses it.
pub(crate) trait ExternalWriter: Send + Sync {
    /// Begins a write. Blocking operations, syncs in particular, are left to the threads. None: there is nothing to do,
    /// or the threads have the partition now.
    fn begin_external(self: Arc<Self>) -> Option<(BatchWrite, Arc<AppendFile>)>;
    /// Applies the result of a write. Returns whether the executor may have more to do.
    fn finish_external(self: Arc<Self>, write: BatchWrite, written: u64, result: io::Result<()>) -> bool;
    /// Returns the partition to the log's threads.
    fn return_to_threads(self: Arc<Self>);
}

thread_local! {
    /// Whether this thread is reporting the result of an external write to its waiters.
    static IS_COMPLETING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller runs inside a waker that an executor calls: it must not wait for that executor.
pub(crate) fn is_completing() -> bool {
    IS_COMPLETING.get()
}

/// A partition with pending work. A partition does one thing at a time, so at most one task exists for it.
pub struct WriteTask {
    core: Option<Arc<dyn ExternalWriter>>,
}

impl WriteTask {
    pub(crate) fn new(core: Arc<dyn ExternalWriter>) -> Self {
        Self { core: Some(core) }
    }

    /// Starts the next write. `None`: there is nothing to do, or the work is reserved to the log's threads, such as
    /// creating a segment; they have it now.
    #[must_use]
    pub fn begin(mut self) -> Option<ExternalWrite> {
        let core = self.core.take()?;
        let (write, file) = core.clone().begin_external()?;
        Some(ExternalWrite { core, file, write: Some(write) })
    }
}

impl Drop for WriteTask {
    fn drop(&mut self) {
        if let Some(core) = self.core.take() {
            core.return_to_threads();
        }
    }
}

impl std::fmt::Debug for WriteTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteTask").finish_non_exhaustive()
    }
}

/// A write of a partition: [`buffers`](Self::buffers) are appended to [`file`](Self::file). Dropping it without
/// [`finish`](Self::finish) fails the partition, since the content of its file is then unknown.
pub struct ExternalWrite {
    core: Arc<dyn ExternalWriter>,
    file: Arc<AppendFile>,
    write: Option<BatchWrite>,
}

impl ExternalWrite {
    /// The file to append to.
    #[must_use]
    pub fn file(&self) -> &Arc<AppendFile> {
        &self.file
    }

    /// The buffers to append, in order.
    #[must_use]
    pub fn buffers(&self) -> &[Bytes] {
        self.write.as_ref().map_or(&[], |write| &write.pieces)
    }

    /// Reports the result of the write: the number of bytes in the file, and the error if one followed. Wakes the
    /// waiters. `None`: the executor has nothing more to do.
    #[must_use]
    pub fn finish(mut self, written: u64, result: io::Result<()>) -> Option<WriteTask> {
        let write = self.write.take()?;
        self.complete(write, written, result).then(|| WriteTask::new(self.core.clone()))
    }

    fn complete(&self, write: BatchWrite, written: u64, result: io::Result<()>) -> bool {
        IS_COMPLETING.set(true);
        let has_more = self.core.clone().finish_external(write, written, result);
        IS_COMPLETING.set(false);
        has_more
    }
}

impl Drop for ExternalWrite {
    fn drop(&mut self) {
        if let Some(write) = self.write.take() {
            let dropped = io::Error::other("the executor dropped the write");
            if self.complete(write, 0, Err(dropped)) {
                self.core.clone().return_to_threads();
            }
        }
    }
}

impl std::fmt::Debug for ExternalWrite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExternalWrite").field("buffers", &self.buffers().len()).finish_non_exhaustive()
    }
}
