//! Writes of the log on the server's workers, if these use io_uring. The worker submits a write with its regular system
//! call, and no other thread has to be woken. The log's threads perform the syncs.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use sinews_file::AppendFile;
use sinews_server::{AppendJob, Appender};
use sinews_stream::{Carried, Carrier, Task};

pub(crate) struct Loops(Appender);

impl Loops {
    pub(crate) fn new(appender: Appender) -> Arc<Self> {
        Arc::new(Self(appender))
    }
}

impl Carrier for Loops {
    fn carry(&self, task: Task) {
        self.0.run(Box::new(Job { task: Some(task), carried: None }));
    }
}

/// One partition while it has records to write.
struct Job {
    task: Option<Task>,
    carried: Option<Carried>,
}

impl AppendJob for Job {
    fn next(&mut self) -> Option<(Arc<AppendFile>, Vec<Bytes>)> {
        let carried = self.carried.insert(self.task.take()?.begin()?);
        Some((carried.file().clone(), carried.pieces().to_vec()))
    }

    fn done(&mut self, written: u64, result: io::Result<()>) {
        self.task = self.carried.take().and_then(|carried| carried.finish(written, result));
    }
}
