//! Threads for slow operations that open, create and remove streams: started on demand, and ended when idle.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::writer::{WorkUnit, WriterPool};

/// Maximum threads that open and create streams. A stream with a long recovery occupies one thread.
pub(super) const OPENERS_MAX: usize = 16;

/// Maximum threads that remove and compact streams, for which no request waits.
pub(super) const REMOVERS_MAX: usize = 1;

/// Time after which an idle thread ends.
const IDLE: Duration = Duration::from_secs(10);

pub(super) type OpenerJob = Box<dyn FnOnce() + Send>;

pub(super) struct Openers {
    /// Without writers, the caller's own loop runs the jobs.
    pool: Option<Arc<WriterPool>>,
    threads_max: usize,
    queue: Mutex<JobQueue>,
    wake: Condvar,
}

#[derive(Default)]
struct JobQueue {
    jobs: VecDeque<OpenerJob>,
    threads: usize,
    idle: usize,
    stopped: bool,
}

impl Openers {
    pub(super) fn new(pool: &Arc<WriterPool>, threads_max: usize) -> Arc<Self> {
        let pool = (pool.limits.writers == 0).then(|| pool.clone());
        Arc::new(Self { pool, threads_max, queue: Mutex::default(), wake: Condvar::new() })
    }

    pub(super) fn push(self: &Arc<Self>, job: OpenerJob) {
        if let Some(pool) = &self.pool {
            return pool.push(Arc::new(OneShotJob(Mutex::new(Some(job)))));
        }
        let mut queue = self.queue();
        if queue.stopped {
            return;
        }
        queue.jobs.push_back(job);
        if queue.idle == 0 && queue.threads < self.threads_max {
            let this = self.clone();
            let started = thread::Builder::new().name("stream-opener".into()).spawn(move || this.run());
            match started {
                Ok(_) => queue.threads += 1,
                Err(error) => {
                    tracing::error!(%error, "no thread can be started to open, create or remove streams")
                }
            }
        }
        drop(queue);
        self.wake.notify_one();
    }

    /// Drops the jobs that no thread has begun, and rejects further jobs.
    pub(super) fn stop(&self) {
        let mut queue = self.queue();
        queue.stopped = true;
        let jobs = std::mem::take(&mut queue.jobs);
        drop(queue);
        drop(jobs);
        self.wake.notify_all();
    }

    fn run(&self) {
        let mut queue = self.queue();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                job();
                queue = self.queue();
                continue;
            }
            if queue.stopped {
                break;
            }
            queue.idle += 1;
            let (next, waited) = self.wake.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
            queue = next;
            queue.idle -= 1;
            if waited.timed_out() && queue.jobs.is_empty() {
                break;
            }
        }
        queue.threads -= 1;
    }

    /// No code panics while holding the lock.
    fn queue(&self) -> MutexGuard<'_, JobQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A job as a unit of the pool's queue.
struct OneShotJob(Mutex<Option<OpenerJob>>);

impl WorkUnit for OneShotJob {
    fn work(self: Arc<Self>) -> bool {
        let job = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(job) = job {
            job();
        }
        false
    }

    fn tick(&self, _: u64) -> bool {
        false
    }

    fn release_unused(&self) {}
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::disk::simulated::SimulatedDisk;
    use crate::{StreamConfig, Streams, StreamsConfig};

    #[test]
    fn slow_jobs_occupy_no_more_threads_than_the_limit() {
        let clock = Arc::new(|| 1);
        let config = StreamsConfig::default().with_writers(1);
        let pool = Arc::new(WriterPool::new(Arc::new(SimulatedDisk::new(1)), config, clock));
        let removers = Openers::new(&pool, REMOVERS_MAX);
        let (release, waits) = mpsc::channel::<()>();
        let (begun, is_begun) = mpsc::channel();
        let (done, is_done) = mpsc::channel();
        removers.push(Box::new(move || {
            begun.send(()).unwrap();
            // Until the sender is dropped.
            let _ = waits.recv();
        }));
        is_begun.recv().unwrap();
        removers.push(Box::new(move || done.send(()).unwrap()));
        let queue = removers.queue();
        assert_eq!((queue.threads, queue.jobs.len()), (1, 1));
        drop(queue);
        drop(release);
        is_done.recv().unwrap();
        removers.stop();
    }

    /// Many deletions do not delay the opening of streams, nor the other way around.
    #[test]
    fn deleted_streams_are_removed_by_a_thread_of_their_own() {
        let directory = tempfile::tempdir().unwrap();
        let (streams, _) = Streams::open(directory.path(), StreamsConfig::default()).unwrap();
        streams.create("s", &StreamConfig::default()).unwrap();
        let (release, waits) = mpsc::channel::<()>();
        let waits = Arc::new(Mutex::new(waits));
        for _ in 0..OPENERS_MAX {
            let waits = waits.clone();
            streams.inner.openers.push(Box::new(move || {
                // Until the sender is dropped.
                let _ = waits.lock().unwrap().recv();
            }));
        }
        assert!(streams.delete("s").unwrap());
        let (done, is_done) = mpsc::channel();
        streams.inner.removers.push(Box::new(move || done.send(()).unwrap()));
        is_done.recv().unwrap();
        let left = std::fs::read_dir(directory.path().join("streams")).unwrap().count();
        drop(release);
        assert_eq!(left, 0, "the files of the deleted stream");
        streams.close();
    }
}
