//! Files that the server's threads append to, beside serving connections.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use sinews_engine::{Append, AppendFile, Io, Post};
use slab::Slab;

use crate::mail::Mail;

/// Somebody who appends to a file, one write after the other.
pub trait AppendJob: Send {
    /// What is to be written next: the file, what to put at its end, and whether to sync it then. `None`: nothing, and
    /// the job is over. Called on a thread of the server, which it must not block.
    fn next(&mut self) -> Option<(Arc<AppendFile>, Vec<Bytes>, bool)>;

    /// How it went: so many bytes are in the file, and what went wrong then.
    fn done(&mut self, written: u64, result: io::Result<()>);
}

/// Gives the threads of a server something to append, see [`BoundServer::appender`](crate::BoundServer::appender).
#[derive(Clone)]
pub struct Appender {
    queues: Arc<[Arc<Queue>]>,
}

/// Jobs that a thread has not begun. Each comes from somebody who has one at a time, so there are no more than those.
pub(crate) struct Queue {
    jobs: Mutex<Vec<Box<dyn AppendJob>>>,
    /// Looked at without the lock.
    any: AtomicBool,
    post: Post<Mail>,
}

thread_local! {
    /// Which of the threads this is.
    static HERE: Cell<Option<usize>> = const { Cell::new(None) };
}

impl Appender {
    pub(crate) fn new(queues: impl Iterator<Item = Arc<Queue>>) -> Self {
        Self { queues: queues.collect() }
    }

    /// Has a job carried out: by the calling thread, if it is one of the server's, and otherwise by the one that the
    /// key falls on. If that thread ends before it begins, the job is dropped.
    pub fn run(&self, key: usize, job: Box<dyn AppendJob>) {
        let at = HERE.get().filter(|at| *at < self.queues.len()).unwrap_or(key % self.queues.len());
        let queue = &self.queues[at];
        let mut jobs = queue.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.push(job);
        queue.any.store(true, Ordering::SeqCst);
        drop(jobs);
        // A thread that is awake is told without a system call.
        queue.post.wake();
    }
}

impl fmt::Debug for Appender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Appender").field("threads", &self.queues.len()).finish()
    }
}

impl Queue {
    pub(crate) fn new(post: Post<Mail>) -> Arc<Self> {
        Arc::new(Self { jobs: Mutex::default(), any: AtomicBool::new(false), post })
    }

    fn take(&self) -> Vec<Box<dyn AppendJob>> {
        if !self.any.load(Ordering::SeqCst) {
            return Vec::new();
        }
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        self.any.store(false, Ordering::SeqCst);
        std::mem::take(&mut *jobs)
    }
}

impl Drop for Appends {
    /// What nobody begins any more goes back to who wants it written.
    fn drop(&mut self) {
        HERE.set(None);
        drop(self.queue.take());
    }
}

/// What one thread appends.
pub(crate) struct Appends {
    queue: Arc<Queue>,
    /// Of which something is with the loop.
    jobs: Slab<Box<dyn AppendJob>>,
}

impl Appends {
    pub(crate) fn new(queue: Arc<Queue>) -> Self {
        Self { queue, jobs: Slab::new() }
    }

    /// This thread is the one of that number from now on.
    pub(crate) fn begin(&self, at: usize) {
        HERE.set(Some(at));
    }

    /// Begins what has come.
    pub(crate) fn take_new(&mut self, io: &mut Io) {
        for job in self.queue.take() {
            let place = self.jobs.insert(job);
            self.step(io, place);
        }
    }

    /// One is back from the loop.
    pub(crate) fn appended(&mut self, io: &mut Io, append: &Append, result: io::Result<()>) {
        let place = append.tag() as usize;
        let Some(job) = self.jobs.get_mut(place) else { return };
        job.done(append.written(), result);
        self.step(io, place);
    }

    fn step(&mut self, io: &mut Io, place: usize) {
        let Some(job) = self.jobs.get_mut(place) else { return };
        let Some((file, pieces, sync)) = job.next() else {
            self.jobs.remove(place);
            return;
        };
        if io.append(Append::new(file, pieces, sync, place as u64)).is_err() {
            // There is an `Appender` only where all threads have a ring.
            self.jobs.remove(place);
        }
    }
}
