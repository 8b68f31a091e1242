//! Threads for blocking work.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use futures_channel::oneshot;
use parking_lot::{Condvar, Mutex, MutexGuard};

/// Capacity of the pool for blocking work. [`Server::bind`](crate::Server::bind) rejects a pool without threads.
#[derive(Clone, Copy, Debug)]
pub struct BlockingConfig {
    pub(crate) threads: usize,
    pub(crate) queue: usize,
}

impl Default for BlockingConfig {
    fn default() -> Self {
        Self { threads: 16, queue: 1_024 }
    }
}

impl BlockingConfig {
    /// Maximum number of threads for the whole server. Threads start on demand and end after 10 s without work.
    /// Default 16: disks and databases are seldom faster with more concurrency.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Maximum number of queued jobs while all threads are busy. Further jobs are rejected, and the client is asked
    /// to retry later: a longer queue would only add latency. Default 1,024.
    #[must_use]
    pub fn with_queue(mut self, jobs: usize) -> Self {
        self.queue = jobs;
        self
    }

    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.threads == 0 { Err("threads must be at least 1") } else { Ok(()) }
    }
}

/// Thread pool of the server for blocking work, also for use in futures ([`Request::pool`](crate::Request::pool)).
/// Clones are the same pool.
///
/// ```
/// use sinews_server::{Answer, Response, Router};
///
/// let router = Router::new().get("/size", |request| {
///     let pool = request.pool().clone();
///     Answer::later(async move {
///         match pool.run(|| std::fs::metadata("/etc/hostname").map(|file| file.len())).await {
///             Ok(Ok(bytes)) => Response::text(format!("{bytes}\n")),
///             Ok(Err(_)) => Response::new(404),
///             Err(rejected) => rejected.response(),
///         }
///     })
/// });
/// # drop(router);
/// ```
#[derive(Clone)]
pub struct BlockingPool {
    shared: Arc<PoolShared>,
}

struct PoolShared {
    state: Mutex<State>,
    /// Signals new work, or that the pool is closed.
    changed: Condvar,
    config: BlockingConfig,
}

#[derive(Default)]
struct State {
    queue: VecDeque<BlockingJob>,
    threads: usize,
    /// Threads that wait for work.
    idle: usize,
    closed: bool,
}

type BlockingJob = Box<dyn FnOnce() + Send>;

/// Error of a job that was not run: all threads were busy and the queue was full, or the server has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobRejected;

impl fmt::Display for JobRejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("blocking pool queue is full, or the pool is closed")
    }
}

impl std::error::Error for JobRejected {}

impl BlockingPool {
    pub(crate) fn new(config: BlockingConfig) -> Self {
        Self { shared: Arc::new(PoolShared { state: Mutex::default(), changed: Condvar::new(), config }) }
    }

    /// Runs work on one of the threads, starting at once; the future is its result and may be awaited on any thread.
    /// Work whose future is dropped before it has begun does not run.
    ///
    /// # Errors
    /// [`JobRejected`].
    ///
    /// # Panics
    /// The future panics if the work panicked.
    pub fn run<T, F>(&self, work: F) -> impl Future<Output = Result<T, JobRejected>> + Send + use<T, F>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let job = move || {
            if sender.is_canceled() {
                return;
            }
            let result = catch_unwind(AssertUnwindSafe(work));
            if let Err(Err(panic)) = sender.send(result) {
                tracing::error!(
                    panic = message(&*panic),
                    "blocking work panicked after its future was dropped"
                );
            }
        };
        let taken = self.push(Box::new(job));
        async move {
            taken?;
            // The job was dropped when the server stopped.
            let done = receiver.await.map_err(|_| JobRejected)?;
            Ok(done.unwrap_or_else(|panic| resume_unwind(panic)))
        }
    }

    /// Queues work, if there is capacity. Its completion is not reported.
    pub(crate) fn start(&self, work: impl FnOnce() + Send + 'static) -> Result<(), JobRejected> {
        self.push(Box::new(work))
    }

    /// Closes the pool: threads end after their current job, and queued jobs are dropped.
    pub(crate) fn close(&self) {
        let mut state = self.shared.lock();
        state.closed = true;
        let undone = std::mem::take(&mut state.queue);
        drop(state);
        self.shared.changed.notify_all();
        drop(undone);
    }

    fn push(&self, job: BlockingJob) -> Result<(), JobRejected> {
        let mut state = self.shared.lock();
        let may_start = state.threads < self.shared.config.threads;
        // Idle threads are signaled for as many queued jobs, and take those jobs first.
        let is_full = state.queue.len() >= self.shared.config.queue.saturating_add(state.idle);
        if state.closed || is_full && !may_start {
            return Err(JobRejected);
        }
        if state.idle <= state.queue.len() && may_start {
            match self.start_thread(state.threads) {
                Ok(()) => state.threads += 1,
                Err(error) => {
                    tracing::warn!(%error, threads = state.threads, "cannot start a thread for blocking work");
                    if state.threads == 0 || is_full {
                        return Err(JobRejected);
                    }
                }
            }
        }
        state.queue.push_back(job);
        drop(state);
        self.shared.changed.notify_one();
        Ok(())
    }

    fn start_thread(&self, number: usize) -> std::io::Result<()> {
        let shared = Arc::clone(&self.shared);
        thread::Builder::new().name(format!("sinews-work-{number}")).spawn(move || shared.work()).map(drop)
    }
}

impl PoolShared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn work(&self) {
        let mut state = self.lock();
        while !state.closed {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                job();
                state = self.lock();
                continue;
            }
            state.idle += 1;
            let timeout = self.changed.wait_for(&mut state, IDLE_MAX);
            state.idle -= 1;
            if timeout.timed_out() && state.queue.is_empty() {
                break;
            }
        }
        state.threads -= 1;
    }
}

/// How long a thread stays without work.
const IDLE_MAX: Duration = Duration::from_secs(10);

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("of another type")
}

impl fmt::Debug for BlockingPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingPool").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::mpsc::channel;
    use std::task::{Context, Poll, Wake, Waker};

    use super::*;

    struct ThreadWaker(thread::Thread);

    impl Wake for ThreadWaker {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    fn wait<T>(future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        let waker = Waker::from(Arc::new(ThreadWaker(thread::current())));
        loop {
            if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return done;
            }
            thread::park();
        }
    }

    fn pool(threads: usize, queue: usize) -> BlockingPool {
        BlockingPool::new(BlockingConfig::default().with_threads(threads).with_queue(queue))
    }

    #[test]
    fn jobs_run_on_at_most_the_configured_threads() {
        let pool = pool(3, 0);
        let together = Arc::new(Barrier::new(3));
        for _ in 0..100 {
            let jobs: Vec<_> = (0..3)
                .map(|_| {
                    let together = Arc::clone(&together);
                    pool.run(move || together.wait().is_leader())
                })
                .collect();
            let leaders = jobs.into_iter().map(wait).filter(|led| *led == Ok(true)).count();
            assert_eq!(leaders, 1);
            // All threads have to be idle before the next three jobs, or the queue would reject a job.
            while pool.shared.lock().idle < 3 {
                thread::yield_now();
            }
            assert_eq!(pool.shared.lock().threads, 3);
        }
    }

    #[test]
    fn job_beyond_the_queue_is_not_run() {
        let pool = pool(1, 2);
        let (go, gate) = channel::<()>();
        let (started, starts) = channel();
        let first = pool.run(move || {
            started.send(()).unwrap();
            gate.recv().is_ok()
        });
        starts.recv().unwrap();
        let second = pool.run(|| 2);
        let dropped = pool.run(|| -> () { panic!("its future was dropped") });
        assert_eq!(wait(pool.run(|| 4)), Err(JobRejected));
        drop(dropped);
        go.send(()).unwrap();
        assert_eq!((wait(first), wait(second)), (Ok(true), Ok(2)));
        assert_eq!(wait(pool.run(|| 5)), Ok(5));
    }

    #[test]
    fn panic_is_propagated_to_the_awaiting_future() {
        let pool = pool(1, 8);
        let job = pool.run(|| panic!("on purpose"));
        let caught = catch_unwind(AssertUnwindSafe(|| wait::<Result<(), _>>(job))).unwrap_err();
        assert_eq!(message(&*caught), "on purpose");
        assert_eq!(wait(pool.run(|| 1)), Ok(1), "its thread goes on");
    }

    #[test]
    fn closed_pool_runs_no_job() {
        let pool = pool(1, 8);
        let (go, gate) = channel::<()>();
        let (started, starts) = channel();
        let first = pool.run(move || {
            started.send(()).unwrap();
            gate.recv().is_ok()
        });
        starts.recv().unwrap();
        let waiting = pool.run(|| ());
        pool.close();
        assert_eq!(wait(waiting), Err(JobRejected));
        assert_eq!(wait(pool.run(|| ())), Err(JobRejected));
        go.send(()).unwrap();
        assert_eq!(wait(first), Ok(true), "running jobs finish");
        while pool.shared.lock().threads > 0 {
            thread::yield_now();
        }
    }
}
