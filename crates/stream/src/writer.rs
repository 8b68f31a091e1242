//! The writer threads, and the clock that schedules periodic work.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use crate::disk::Disk;
use crate::{StreamsConfig, WriteExecutor};

/// Microseconds since 1970.
pub(crate) type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// A unit of work for the writers: a partition, or a stream's group offsets. It tracks whether it is queued and is in
/// the queue once at most; so the queue is no longer than the number of units.
pub(crate) trait WorkUnit: Send + Sync {
    /// Does one step. Returns whether more work may remain; if not, the unit is no longer queued.
    fn work(self: Arc<Self>) -> bool;
    /// Checks for work that is due. Returns whether the unit must be queued now and was not queued before.
    fn tick(&self, now: u64) -> bool;
    /// Releases resources not used since the last call.
    fn release_unused(&self);
}

/// The queue and the state shared by all writers.
pub(crate) struct WriterPool {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) limits: StreamsConfig,
    pub(crate) clock: Clock,
    state: Mutex<PoolState>,
    wake: Condvar,
    /// Checks that the directory is still the one that was opened.
    directory_check: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Writes in place of the threads.
    executor: RwLock<Option<Arc<dyn WriteExecutor>>>,
}

struct PoolState {
    ready: VecDeque<Arc<dyn WorkUnit>>,
    /// Units that are checked at `next_deferred`; none is more than a few times among them.
    deferred: Vec<Arc<dyn WorkUnit>>,
    next_deferred: Instant,
    units: Units,
    threads: Vec<JoinHandle<()>>,
    stopped: bool,
    /// No thread reads the queue any more.
    ended: bool,
    tick: Duration,
    next_tick: Instant,
    next_release: Instant,
    next_directory_check: Instant,
}

impl PoolState {
    /// The time at which a thread has to be awake.
    fn next_wakeup(&self) -> Instant {
        if self.deferred.is_empty() { self.next_tick } else { self.next_tick.min(self.next_deferred) }
    }
}

/// The units that the clock visits.
#[derive(Default)]
struct Units {
    list: Vec<Arc<dyn WorkUnit>>,
    /// Index of each unit in the list, by its address.
    positions: HashMap<usize, usize>,
}

impl Units {
    fn add(&mut self, unit: Arc<dyn WorkUnit>) {
        self.positions.insert(address(&unit), self.list.len());
        self.list.push(unit);
    }

    fn remove(&mut self, unit: &Arc<dyn WorkUnit>) -> Option<Arc<dyn WorkUnit>> {
        let position = self.positions.remove(&address(unit))?;
        let removed = self.list.swap_remove(position);
        if let Some(moved) = self.list.get(position) {
            self.positions.insert(address(moved), position);
        }
        Some(removed)
    }
}

fn address(unit: &Arc<dyn WorkUnit>) -> usize {
    Arc::as_ptr(unit).cast::<()>().addr()
}

/// Clock period if no stream requires a shorter one.
const TICK: Duration = Duration::from_secs(1);

/// Minimum clock period.
const TICK_MIN: Duration = Duration::from_millis(5);

/// Delay of a deferred write, which a reader that waits for the records ends.
pub(crate) const DEFERRAL: Duration = Duration::from_millis(50);

/// Polling period of [`WriterPool::work_until`].
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Directory check period while records are written.
const DIRECTORY_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Time after which an unused segment is closed.
const RELEASE_INTERVAL: Duration = Duration::from_secs(60);

impl WriterPool {
    pub(crate) fn new(disk: Arc<dyn Disk>, limits: StreamsConfig, clock: Clock) -> Self {
        let now = Instant::now();
        let state = PoolState {
            ready: VecDeque::new(),
            deferred: Vec::new(),
            next_deferred: now,
            units: Units::default(),
            threads: Vec::new(),
            stopped: false,
            ended: false,
            tick: TICK,
            next_tick: now + TICK,
            next_release: now + RELEASE_INTERVAL,
            next_directory_check: now,
        };
        Self {
            disk,
            limits,
            clock,
            state: Mutex::new(state),
            wake: Condvar::new(),
            directory_check: OnceLock::new(),
            executor: RwLock::new(None),
        }
    }

    /// Starts the writer threads.
    pub(crate) fn start(self: &Arc<Self>) -> std::io::Result<()> {
        for number in 0..self.limits.writers {
            let pool = self.clone();
            let thread =
                thread::Builder::new().name(format!("stream-writer-{number}")).spawn(move || pool.run())?;
            self.state().threads.push(thread);
        }
        Ok(())
    }

    /// Sets the directory check, which the threads call every [`TICK`], and every [`DIRECTORY_CHECK_INTERVAL`] while they write.
    pub(crate) fn set_directory_check(&self, directory_check: impl Fn() + Send + Sync + 'static) {
        // Called once.
        let _ = self.directory_check.set(Box::new(directory_check));
    }

    /// Adds a unit to the clock.
    pub(crate) fn add(&self, unit: Arc<dyn WorkUnit>) {
        self.state().units.add(unit);
    }

    /// Removes units from the clock.
    pub(crate) fn remove(&self, units: &[Arc<dyn WorkUnit>]) {
        let mut state = self.state();
        let removed: Vec<_> = units.iter().filter_map(|unit| state.units.remove(unit)).collect();
        drop(state);
        // Dropping the last handle may be expensive.
        drop(removed);
    }

    /// Requests that the clock ticks at least this often.
    pub(crate) fn tick_within(&self, period: Duration) {
        let mut state = self.state();
        state.tick = state.tick.min(period).max(TICK_MIN);
        state.next_tick = state.next_tick.min(Instant::now() + state.tick);
        drop(state);
        self.wake.notify_one();
    }

    /// Sets the executor that partitions with pending writes are passed to; `None`: the threads write.
    pub(crate) fn set_executor(&self, executor: Option<Arc<dyn WriteExecutor>>) {
        *self.executor.write().unwrap_or_else(PoisonError::into_inner) = executor;
    }

    pub(crate) fn executor(&self) -> Option<Arc<dyn WriteExecutor>> {
        self.executor.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Queues a unit. After the threads have ended, the caller does the work itself.
    pub(crate) fn push(&self, work: Arc<dyn WorkUnit>) {
        let mut state = self.state();
        if state.ended {
            drop(state);
            while work.clone().work() {}
            return;
        }
        state.ready.push_back(work);
        drop(state);
        self.wake.notify_one();
    }

    /// Checks a unit for due work after [`DEFERRAL`]. The unit's pending work is done before, if it is queued meanwhile or
    /// closed.
    pub(crate) fn push_later(&self, unit: Arc<dyn WorkUnit>) {
        let mut state = self.state();
        if state.ended {
            return;
        }
        let is_first = state.deferred.is_empty();
        state.deferred.push(unit);
        if is_first {
            state.next_deferred = Instant::now() + DEFERRAL;
        }
        drop(state);
        if is_first {
            self.wake.notify_one();
        }
    }

    /// Does one step of the first unit in the queue, on this thread. Returns whether there was one.
    pub(crate) fn work(&self) -> bool {
        self.run_timers();
        let work = self.state().ready.pop_front();
        let Some(work) = work else { return false };
        if work.clone().work() {
            self.push(work);
        }
        true
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.state().stopped
    }

    /// Waits until the condition holds, and works on the queue meanwhile.
    pub(crate) fn work_until(&self, condition: impl Fn() -> bool) {
        while !condition() {
            if !self.work() {
                thread::sleep(POLL_INTERVAL);
            }
        }
    }

    /// Finishes all queued work and ends the threads.
    pub(crate) fn stop(&self) {
        let mut state = self.state();
        state.stopped = true;
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.wake.notify_all();
        for thread in threads {
            // A waker that drops the last handle runs on a writer thread.
            if thread.thread().id() != thread::current().id() {
                // A panicked thread is ignored: its message is in the log.
                let _ = thread.join();
            }
        }
        loop {
            while self.work() {}
            let mut state = self.state();
            if state.ready.is_empty() {
                state.ended = true;
                // Members and pool refer to each other.
                let units = std::mem::take(&mut state.units);
                let deferred = std::mem::take(&mut state.deferred);
                drop(state);
                drop((units, deferred));
                return;
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn units(&self) -> usize {
        self.state().units.list.len()
    }

    #[cfg(test)]
    pub(crate) fn has_ready(&self) -> bool {
        !self.state().ready.is_empty()
    }

    /// Takes the queued work, as if it had not been queued.
    #[cfg(test)]
    pub(crate) fn take_ready(&self) -> VecDeque<Arc<dyn WorkUnit>> {
        std::mem::take(&mut self.state().ready)
    }

    fn run(&self) {
        loop {
            self.run_timers();
            let mut state = self.state();
            let Some(work) = state.ready.pop_front() else {
                if state.stopped {
                    return;
                }
                let left = state.next_wakeup().saturating_duration_since(Instant::now());
                drop(self.wake.wait_timeout(state, left));
                continue;
            };
            drop(state);
            if work.clone().work() {
                self.push_again(work);
            }
        }
    }

    /// Queues a unit at the end. The current writer is awake, so it wakes another one only if more units are queued.
    fn push_again(&self, work: Arc<dyn WorkUnit>) {
        let mut state = self.state();
        state.ready.push_back(work);
        if state.ready.len() > 1 {
            self.wake.notify_one();
        }
    }

    fn run_timers(&self) {
        let mut state = self.state();
        let now = Instant::now();
        if now >= state.next_directory_check {
            state.next_directory_check = now + DIRECTORY_CHECK_INTERVAL;
            drop(state);
            if let Some(directory_check) = self.directory_check.get() {
                directory_check();
            }
            state = self.state();
        }
        if now >= state.next_deferred && !state.deferred.is_empty() {
            let deferred = std::mem::take(&mut state.deferred);
            drop(state);
            let due = (self.clock)();
            deferred.into_iter().filter(|unit| unit.tick(due)).for_each(|unit| self.push_again(unit));
            state = self.state();
        }
        if now < state.next_tick {
            return;
        }
        state.next_tick = now + state.tick;
        let releases_unused = now >= state.next_release;
        if releases_unused {
            state.next_release = now + RELEASE_INTERVAL;
        }
        let units = state.units.list.clone();
        drop(state);
        if releases_unused {
            units.iter().for_each(|unit| unit.release_unused());
        }
        self.tick_units(units);
    }

    fn tick_units(&self, units: Vec<Arc<dyn WorkUnit>>) {
        let now = (self.clock)();
        for unit in units {
            if unit.tick(now) {
                self.push(unit);
            }
        }
    }

    /// Makes all members release unused resources.
    #[cfg(test)]
    pub(crate) fn release_unused(&self) {
        let units = self.state().units.list.clone();
        units.iter().for_each(|unit| unit.release_unused());
    }

    /// Ticks all members now.
    #[cfg(test)]
    pub(crate) fn tick(&self) {
        if let Some(directory_check) = self.directory_check.get() {
            directory_check();
        }
        let units = self.state().units.list.clone();
        self.tick_units(units);
    }

    /// No code panics while holding the lock.
    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The system's clock, which may be set while the process runs.
pub(crate) fn system_clock() -> Clock {
    let begun = Instant::now();
    let wall = || {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    };
    steady_clock(wall, move || u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX))
}

/// Time in microseconds for which a clock change must persist before it is followed. Until then time continues as
/// before: batches appended meanwhile have the right time, and retention removes nothing.
const JUMP_CONFIRMATION: u64 = 60_000_000;

/// A larger difference is a clock that was set; a smaller one is followed immediately.
const JUMP_MIN: u64 = 5_000_000;

/// Wall-clock time without jumps. `counter` has an arbitrary origin and never jumps.
pub(crate) fn steady_clock(
    wall: impl Fn() -> u64 + Send + Sync + 'static,
    counter: impl Fn() -> u64 + Send + Sync + 'static,
) -> Clock {
    // Accepted lead of the wall clock over the counter. `jumped` holds the lead seen at a jump and the counter at that
    // time.
    let lead = AtomicU64::new(wall().wrapping_sub(counter()));
    let jumped = Mutex::new(None::<(u64, u64)>);
    let has_jumped = AtomicBool::new(false);
    Arc::new(move || {
        let (now, count) = (wall(), counter());
        let expected = count.wrapping_add(lead.load(Ordering::Relaxed));
        let seen = now.wrapping_sub(count);
        if now.abs_diff(expected) <= JUMP_MIN {
            lead.store(seen, Ordering::Relaxed);
            if has_jumped.load(Ordering::Relaxed) && has_jumped.swap(false, Ordering::Relaxed) {
                *jumped.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
            return now;
        }
        let mut jumped = jumped.lock().unwrap_or_else(PoisonError::into_inner);
        has_jumped.store(true, Ordering::Relaxed);
        match *jumped {
            Some((lead, _)) if now.abs_diff(count.wrapping_add(lead)) > JUMP_MIN => {
                *jumped = Some((seen, count));
            }
            Some((_, since)) if count.saturating_sub(since) >= JUMP_CONFIRMATION => {
                lead.store(seen, Ordering::Relaxed);
                *jumped = None;
                return now;
            }
            Some(_) => {}
            None => *jumped = Some((seen, count)),
        }
        expected
    })
}
