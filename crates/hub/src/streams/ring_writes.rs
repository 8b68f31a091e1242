//! Log writes on the server's workers, if these use io_uring. The worker submits a write with its regular system call,
//! and no other thread has to be woken. The log's threads perform the syncs.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use sinews_file::AppendFile;
use sinews_server::{AppendJob, Appender};
use sinews_stream::{ExternalWrite, WriteExecutor, WriteTask};

pub(crate) struct RingWriteExecutor(Appender);

impl RingWriteExecutor {
    pub(crate) fn new(appender: Appender) -> Arc<Self> {
        Arc::new(Self(appender))
    }
}

impl WriteExecutor for RingWriteExecutor {
    fn execute(&self, task: WriteTask) {
        self.0.run(Box::new(PartitionWrite { task: Some(task), write: None }));
    }
}

/// One partition while it has records to write.
struct PartitionWrite {
    task: Option<WriteTask>,
    write: Option<ExternalWrite>,
}

impl AppendJob for PartitionWrite {
    fn next(&mut self) -> Option<(Arc<AppendFile>, Vec<Bytes>)> {
        let write = self.write.insert(self.task.take()?.begin()?);
        Some((write.file().clone(), write.buffers().to_vec()))
    }

    fn done(&mut self, written: u64, result: io::Result<()>) {
        self.task = self.write.take().and_then(|write| write.finish(written, result));
    }
}
