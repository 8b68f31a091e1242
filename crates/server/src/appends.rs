//! Appends to files on the server's threads, beside their connections.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use sinews_engine::{Append, Io, Post};
use sinews_file::AppendFile;
use slab::Slab;

use crate::topics::mail::Mail;

/// Writer that appends to a file, one write at a time.
pub trait AppendJob: Send {
    /// Returns the next write: the file and the buffers to append. `None`: the job is done. Runs on a thread of the
    /// server and must not block it.
    fn next(&mut self) -> Option<(Arc<AppendFile>, Vec<Bytes>)>;

    /// Takes the result of a write: the number of bytes in the file, and the error that stopped it, if any. When the
    /// thread ends, the job is dropped without further calls.
    fn done(&mut self, written: u64, result: io::Result<()>);
}

/// Passes append jobs to the threads of a server, see [`BoundServer::appender`](crate::BoundServer::appender).
#[derive(Clone)]
pub struct Appender {
    queues: Arc<[Arc<AppendQueue>]>,
    /// Thread that gets the next job.
    next: Arc<AtomicUsize>,
}

/// Jobs that a thread has not begun. Each caller has one job at a time, which bounds the queue.
pub(crate) struct AppendQueue {
    jobs: Mutex<PendingJobs>,
    /// Checked without the lock.
    any: AtomicBool,
    post: Post<Mail>,
}

#[derive(Default)]
struct PendingJobs {
    waiting: Vec<Box<dyn AppendJob>>,
    /// The thread has ended.
    ended: bool,
}

thread_local! {
    /// Number of the server thread that runs here.
    static HERE: Cell<Option<usize>> = const { Cell::new(None) };
}

impl Appender {
    pub(crate) fn new(queues: impl Iterator<Item = Arc<AppendQueue>>) -> Self {
        Self { queues: queues.collect(), next: Arc::default() }
    }

    /// Runs a job on the calling thread, if it is one of the server's, and otherwise on any of them. If that thread
    /// ends before the job begins, the job is dropped.
    pub fn run(&self, job: Box<dyn AppendJob>) {
        let in_turn = || self.next.fetch_add(1, Ordering::Relaxed) % self.queues.len();
        let at = HERE.get().filter(|at| *at < self.queues.len()).unwrap_or_else(in_turn);
        let queue = &self.queues[at];
        let mut jobs = queue.jobs.lock();
        if jobs.ended {
            // Dropping it may lead here again.
            drop(jobs);
            drop(job);
            return;
        }
        jobs.waiting.push(job);
        queue.any.store(true, Ordering::SeqCst);
        drop(jobs);
        // A wakeup of a thread that is awake takes no system call.
        queue.post.wake();
    }
}

impl fmt::Debug for Appender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Appender").field("threads", &self.queues.len()).finish()
    }
}

impl AppendQueue {
    pub(crate) fn new(post: Post<Mail>) -> Arc<Self> {
        Arc::new(Self { jobs: Mutex::default(), any: AtomicBool::new(false), post })
    }

    fn take(&self) -> Vec<Box<dyn AppendJob>> {
        if !self.any.load(Ordering::SeqCst) {
            return Vec::new();
        }
        let mut jobs = self.jobs.lock();
        self.any.store(false, Ordering::SeqCst);
        std::mem::take(&mut jobs.waiting)
    }

    fn end(&self) {
        let mut jobs = self.jobs.lock();
        jobs.ended = true;
        let left = std::mem::take(&mut jobs.waiting);
        drop(jobs);
        drop(left);
    }
}

/// Appends of one thread.
pub(crate) struct Appends {
    queue: Arc<AppendQueue>,
    /// Jobs with a write in flight.
    jobs: Slab<Box<dyn AppendJob>>,
}

impl Drop for Appends {
    /// Drops jobs that have not begun; their callers see the drop.
    fn drop(&mut self) {
        HERE.set(None);
        self.queue.end();
    }
}

impl Appends {
    pub(crate) fn new(queue: Arc<AppendQueue>) -> Self {
        Self { queue, jobs: Slab::new() }
    }

    /// Sets the number of the calling thread.
    pub(crate) fn begin(&self, at: usize) {
        HERE.set(Some(at));
    }

    /// Begins queued jobs.
    pub(crate) fn start_queued(&mut self, io: &mut Io) {
        for job in self.queue.take() {
            let slot = self.jobs.insert(job);
            self.step(io, slot);
        }
    }

    /// Handles the completion of a write.
    pub(crate) fn appended(&mut self, io: &mut Io, append: &Append, result: io::Result<()>) {
        let slot = append.tag() as usize;
        let Some(job) = self.jobs.get_mut(slot) else { return };
        job.done(append.written(), result);
        self.step(io, slot);
    }

    fn step(&mut self, io: &mut Io, slot: usize) {
        if io.is_ending() {
            // A job may return writes without end, and the loop would wait for them.
            self.jobs.remove(slot);
            return;
        }
        let Some(job) = self.jobs.get_mut(slot) else { return };
        let Some((file, pieces)) = job.next() else {
            self.jobs.remove(slot);
            return;
        };
        if io.append(Append::new(file, pieces, false, slot as u64)).is_err() {
            // An `Appender` exists only if all threads have a ring.
            self.jobs.remove(slot);
        }
    }
}
