//! Files that the server's threads append to, beside serving connections.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use sinews_engine::{Append, Io, Post};
use sinews_file::AppendFile;
use slab::Slab;

use crate::mail::Mail;

/// Somebody who appends to a file, one write after the other.
pub trait AppendJob: Send {
    /// What is to be written next: the file, and what to put at its end. `None`: nothing, and the job is over. Called on
    /// a thread of the server, which it must not block.
    fn next(&mut self) -> Option<(Arc<AppendFile>, Vec<Bytes>)>;

    /// How it went: so many bytes are in the file, and what went wrong then. When the thread is to end, the
    /// job is asked nothing more, and dropped.
    fn done(&mut self, written: u64, result: io::Result<()>);
}

/// Gives the threads of a server something to append, see [`BoundServer::appender`](crate::BoundServer::appender).
#[derive(Clone)]
pub struct Appender {
    queues: Arc<[Arc<Queue>]>,
    /// Whose turn it is.
    next: Arc<AtomicUsize>,
}

/// Jobs that a thread has not begun. Each comes from somebody who has one at a time, so there are no more than those.
pub(crate) struct Queue {
    jobs: Mutex<Jobs>,
    /// Looked at without the lock.
    any: AtomicBool,
    post: Post<Mail>,
}

#[derive(Default)]
struct Jobs {
    waiting: Vec<Box<dyn AppendJob>>,
    /// The thread has ended.
    ended: bool,
}

thread_local! {
    /// Which of the threads this is.
    static HERE: Cell<Option<usize>> = const { Cell::new(None) };
}

impl Appender {
    pub(crate) fn new(queues: impl Iterator<Item = Arc<Queue>>) -> Self {
        Self { queues: queues.collect(), next: Arc::default() }
    }

    /// Has a job carried out: by the calling thread, if it is one of the server's, and otherwise by any of them. If that
    /// thread ends before it begins, the job is dropped.
    pub fn run(&self, job: Box<dyn AppendJob>) {
        let in_turn = || self.next.fetch_add(1, Ordering::Relaxed) % self.queues.len();
        let at = HERE.get().filter(|at| *at < self.queues.len()).unwrap_or_else(in_turn);
        let queue = &self.queues[at];
        let mut jobs = queue.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.ended {
            // Dropping it may lead here again.
            drop(jobs);
            drop(job);
            return;
        }
        jobs.waiting.push(job);
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
        std::mem::take(&mut jobs.waiting)
    }

    fn end(&self) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.ended = true;
        let left = std::mem::take(&mut jobs.waiting);
        drop(jobs);
        drop(left);
    }
}

/// What one thread appends.
pub(crate) struct Appends {
    queue: Arc<Queue>,
    /// Of which something is with the loop.
    jobs: Slab<Box<dyn AppendJob>>,
}

impl Drop for Appends {
    /// What nobody begins any more goes back to who wants it written.
    fn drop(&mut self) {
        HERE.set(None);
        self.queue.end();
    }
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
        if io.is_ending() {
            // There may be no end to what comes next, and the loop would wait for it.
            self.jobs.remove(place);
            return;
        }
        let Some(job) = self.jobs.get_mut(place) else { return };
        let Some((file, pieces)) = job.next() else {
            self.jobs.remove(place);
            return;
        };
        if io.append(Append::new(file, pieces, false, place as u64)).is_err() {
            // There is an `Appender` only where all threads have a ring.
            self.jobs.remove(place);
        }
    }
}
