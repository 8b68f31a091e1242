//! A hub's work beside the event loops: named tasks on one thread, and their shutdown.
//!
//! ```text
//!   hooks · webhooks · key sets · discovery · revocations · dashboard · expiry ──▶ thread "sinews-background" (Tokio)
//!                                                      files, lookups of names ──▶ its pool, at most BLOCKING_MAX threads
//! ```
//!
//! A task never blocks its thread: what waits for a file, or computes for long, goes to the pool. `ARCHITECTURE.md`
//! lists the threads that are no tasks, with their reasons.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use std::{fmt, io, mem, thread};

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Name lookups at a time: a resolver may take many seconds for a name whose servers do not answer.
pub(crate) const LOOKUPS_MAX: usize = 64;

/// Pool jobs that are no lookups: 16 stream deletions, two directory takeovers, and one job at a time for each further
/// task with files.
const JOBS_MAX: usize = 32;

/// Threads of the pool: work with files never waits for lookups.
const BLOCKING_MAX: usize = LOOKUPS_MAX + JOBS_MAX;

/// Time that a shutdown waits for one task. A task with its own limit, such as the webhooks' last deliveries, ends
/// before.
const TASK_END_MAX: Duration = Duration::from_secs(30);

/// Time that a shutdown waits for the thread: only a task that blocks it takes that long.
const SHUTDOWN_MAX: Duration = Duration::from_secs(5);

/// The thread for a hub's tasks, which starts with the first task. Clones share it. It ends with the last clone or with
/// [`shut_down`](Self::shut_down), and drops the tasks that have not ended.
#[derive(Clone, Default)]
pub(crate) struct Background(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    tasks: TaskCounts,
}

/// The tasks that have not ended, by name.
#[derive(Clone, Default)]
struct TaskCounts(Arc<Mutex<BTreeMap<&'static str, usize>>>);

#[derive(Default)]
enum State {
    #[default]
    Idle,
    Running {
        runtime: Handle,
        /// The thread ends when it is dropped.
        _stop: oneshot::Sender<Infallible>,
        ended: Receiver<Infallible>,
    },
    ShutDown,
}

impl Background {
    /// Starts the thread, unless it runs.
    ///
    /// # Errors
    /// The thread cannot be started, or the hub has shut down.
    pub(crate) fn start(&self) -> io::Result<Handle> {
        let mut state = self.0.state.lock();
        match &*state {
            State::Running { runtime, .. } => return Ok(runtime.clone()),
            State::ShutDown => return Err(io::Error::other("the hub has shut down")),
            State::Idle => {}
        }
        let mut builder = Builder::new_current_thread();
        builder.enable_io().enable_time().max_blocking_threads(BLOCKING_MAX).thread_name("sinews-blocking");
        let runtime = builder.build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let (end, ended) = channel();
        thread::Builder::new().name("sinews-background".to_owned()).spawn(move || {
            let _end: Sender<Infallible> = end;
            // Nothing is sent: the sender is dropped.
            let _ = runtime.block_on(stopped);
            // A lookup may take long still, and nobody waits for it.
            runtime.shutdown_background();
        })?;
        *state = State::Running { runtime: handle.clone(), _stop: stop, ended };
        Ok(handle)
    }

    /// Starts a task. Dropping the result does not end it.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(crate) fn spawn(
        &self,
        name: &'static str,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<Task> {
        let runtime = self.start()?;
        let (end, ended) = channel();
        let guard = TaskGuard { name, counts: self.0.tasks.clone(), _end: end };
        *guard.counts.0.lock().entry(name).or_default() += 1;
        runtime.spawn(async move {
            let _guard = guard;
            work.await;
        });
        Ok(Task { name, ended: Mutex::new(ended) })
    }

    /// Starts a task that does one job on the pool.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(crate) fn spawn_blocking(
        &self,
        name: &'static str,
        job: impl FnOnce() + Send + 'static,
    ) -> io::Result<Task> {
        self.spawn(name, async move {
            // A job that has panicked has ended as well.
            let _ = spawn_blocking(job).await;
        })
    }

    /// Does a job on the pool at an interval if it is due, first after one interval.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(crate) fn every(
        &self,
        name: &'static str,
        interval: Duration,
        is_due: impl Fn() -> bool + Send + 'static,
        mut job: impl FnMut() + Send + 'static,
    ) -> io::Result<Periodic> {
        let (stop, mut stopped) = oneshot::channel::<Infallible>();
        let task = self.spawn(name, async move {
            while timeout(interval, &mut stopped).await.is_err() {
                if !is_due() {
                    continue;
                }
                let done = spawn_blocking(move || {
                    job();
                    job
                });
                // It has panicked.
                let Ok(returned) = done.await else { return };
                job = returned;
            }
        })?;
        Ok(Periodic { stop: Some(stop), task: Some(task) })
    }

    /// Ends the thread, and drops the tasks that have not ended: their owners have waited for those that must end.
    /// Waits at most [`SHUTDOWN_MAX`].
    pub(crate) fn shut_down(&self) {
        let state = mem::replace(&mut *self.0.state.lock(), State::ShutDown);
        let State::Running { _stop, ended, .. } = state else { return };
        drop(_stop);
        if ended.recv_timeout(SHUTDOWN_MAX) == Err(RecvTimeoutError::Timeout) {
            tracing::error!(tasks = ?self, "a task blocks its thread for more than {SHUTDOWN_MAX:?}");
        }
    }
}

impl fmt::Debug for Background {
    /// Lists the tasks that have not ended, by name with their number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&*self.0.tasks.0.lock()).finish()
    }
}

/// A task's count, and what its owner waits for, as long as the task has not ended.
struct TaskGuard {
    name: &'static str,
    counts: TaskCounts,
    _end: Sender<Infallible>,
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        let mut counts = self.counts.0.lock();
        if let Some(count) = counts.get_mut(self.name) {
            *count -= 1;
        }
        counts.retain(|_, count| *count > 0);
    }
}

/// A task that was started.
#[derive(Debug)]
pub(crate) struct Task {
    name: &'static str,
    /// Locked by nobody: `RunningHub` is `Sync`.
    ended: Mutex<Receiver<Infallible>>,
}

impl Task {
    /// Waits until the task has ended, at most [`TASK_END_MAX`]. Not to be called by a task.
    pub(crate) fn wait(self) {
        if self.ended.into_inner().recv_timeout(TASK_END_MAX) == Err(RecvTimeoutError::Timeout) {
            tracing::error!(task = self.name, "a task has not ended within {TASK_END_MAX:?}");
        }
    }
}

/// A periodic task. Dropping it waits until a job in progress is done.
#[derive(Debug)]
pub(crate) struct Periodic {
    stop: Option<oneshot::Sender<Infallible>>,
    task: Option<Task>,
}

impl Drop for Periodic {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(task) = self.task.take() {
            task.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A stall, not a measure.
    const STALL: Duration = Duration::from_secs(60);

    #[test]
    fn tasks_of_all_clones_share_a_thread_that_starts_with_the_first() {
        let background = Background::default();
        assert!(matches!(*background.0.state.lock(), State::Idle));
        let (tell, told) = channel();
        for _ in 0..2 {
            let tell = tell.clone();
            let report = async move {
                tell.send((thread::current().id(), thread::current().name().map(str::to_owned))).unwrap()
            };
            background.clone().spawn("report", report).unwrap().wait();
        }
        let (first, second) = (told.recv().unwrap(), told.recv().unwrap());
        assert_eq!(first, second);
        assert_eq!(first.1.as_deref(), Some("sinews-background"));
    }

    #[test]
    fn tasks_are_listed_by_name_until_they_end() {
        let background = Background::default();
        let (end, ended) = oneshot::channel::<Infallible>();
        for _ in 0..2 {
            drop(background.spawn("endless", pending()).unwrap());
        }
        let ends = background.spawn("ends", async { drop(ended.await) }).unwrap();
        assert_eq!(format!("{background:?}"), r#"{"endless": 2, "ends": 1}"#);
        drop(end);
        ends.wait();
        assert_eq!(format!("{background:?}"), r#"{"endless": 2}"#);
        background.shut_down();
        assert_eq!(format!("{background:?}"), "{}");
    }

    #[test]
    fn shutdown_drops_tasks_and_rejects_new_ones() {
        let background = Background::default();
        let (held, dropped) = channel::<Infallible>();
        let (begin, begun) = channel();
        let task = background
            .spawn("endless", async move {
                begin.send(()).unwrap();
                pending::<()>().await;
                drop(held);
            })
            .unwrap();
        begun.recv_timeout(STALL).unwrap();
        background.shut_down();
        assert_eq!(dropped.recv_timeout(STALL), Err(RecvTimeoutError::Disconnected));
        task.wait();
        let rejected = background.spawn("late", async {}).unwrap_err();
        assert_eq!(rejected.to_string(), "the hub has shut down");
        // A second shutdown does nothing.
        background.shut_down();
    }

    #[test]
    fn last_clone_ends_the_thread() {
        let background = Background::default();
        let (held, dropped) = channel::<Infallible>();
        let endless = async move {
            pending::<()>().await;
            drop(held);
        };
        drop(background.clone().spawn("endless", endless).unwrap());
        drop(background);
        assert_eq!(dropped.recv_timeout(STALL), Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn panic_of_a_task_ends_no_other() {
        let background = Background::default();
        background.spawn("panics", async { panic!("of a test") }).unwrap().wait();
        background.spawn_blocking("panics", || panic!("of a test")).unwrap().wait();
        let (tell, told) = channel();
        background.spawn_blocking("lives", move || tell.send(()).unwrap()).unwrap().wait();
        assert_eq!(told.try_recv(), Ok(()));
    }

    #[test]
    fn blocking_jobs_of_all_lookups_delay_no_file() {
        let background = Background::default();
        let (end, ended) = channel::<Infallible>();
        let ended = Arc::new(Mutex::new(ended));
        for _ in 0..LOOKUPS_MAX {
            let ended = Arc::clone(&ended);
            drop(background.spawn_blocking("lookup", move || assert!(ended.lock().recv().is_err())).unwrap());
        }
        background.spawn_blocking("file", || {}).unwrap().wait();
        assert_eq!(format!("{background:?}"), format!(r#"{{"lookup": {LOOKUPS_MAX}}}"#));
        drop(end);
    }

    #[test]
    fn job_repeats_while_it_is_due_until_it_is_dropped() {
        let background = Background::default();
        let (ran, has_run) = channel();
        let checks = Arc::new(AtomicUsize::new(0));
        let checked = Arc::clone(&checks);
        // Every second time.
        let is_due = move || checks.fetch_add(1, Ordering::SeqCst) % 2 == 1;
        let job = move || {
            let name = thread::current().name().map(str::to_owned);
            ran.send((checked.load(Ordering::SeqCst) % 2, name)).unwrap();
        };
        let periodic = background.every("test", Duration::from_millis(1), is_due, job).unwrap();
        for _ in 0..5 {
            let (check, name) = has_run.recv_timeout(STALL).unwrap();
            assert_eq!((check, name.as_deref()), (0, Some("sinews-blocking")));
        }
        drop(periodic);
        while has_run.try_recv().is_ok() {}
        assert!(has_run.recv().is_err(), "the task has ended and dropped its sender");
    }
}
