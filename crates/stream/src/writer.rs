//! The writer threads, and the clock that schedules periodic work.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use crate::disk::Disk;
use crate::{Carrier, StreamsConfig};

/// Microseconds since 1970.
pub(crate) type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// A unit of work for the writers: a partition, or the offsets of a stream's groups. It tracks whether it is queued and
/// is in the queue once at most; so the queue is no longer than the number of units.
pub(crate) trait Work: Send + Sync {
    /// Does one step. Returns whether more work may remain; if not, the unit is no longer queued.
    fn work(self: Arc<Self>) -> bool;
    /// Checks for work that is due. Returns whether the unit must be queued now and was not queued before.
    fn tick(&self, now: u64) -> bool;
    /// Releases resources not used since the last call.
    fn rest(&self);
}

/// The queue and the state shared by all writers.
pub(crate) struct Pool {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) limits: StreamsConfig,
    pub(crate) clock: Clock,
    line: Mutex<Line>,
    wake: Condvar,
    /// Checks that the directory is still the one that was opened.
    guard: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Writes in place of the threads.
    carrier: RwLock<Option<Arc<dyn Carrier>>>,
}

struct Line {
    ready: VecDeque<Arc<dyn Work>>,
    members: Members,
    threads: Vec<JoinHandle<()>>,
    stopped: bool,
    /// No thread reads the queue any more.
    ended: bool,
    tick: Duration,
    next_tick: Instant,
    next_rest: Instant,
    next_guard: Instant,
}

/// The units that the clock visits.
#[derive(Default)]
struct Members {
    list: Vec<Arc<dyn Work>>,
    /// Index of each unit in the list, by its address.
    places: HashMap<usize, usize>,
}

impl Members {
    fn add(&mut self, member: Arc<dyn Work>) {
        self.places.insert(address(&member), self.list.len());
        self.list.push(member);
    }

    fn remove(&mut self, member: &Arc<dyn Work>) -> Option<Arc<dyn Work>> {
        let place = self.places.remove(&address(member))?;
        let removed = self.list.swap_remove(place);
        if let Some(moved) = self.list.get(place) {
            self.places.insert(address(moved), place);
        }
        Some(removed)
    }
}

fn address(member: &Arc<dyn Work>) -> usize {
    Arc::as_ptr(member).cast::<()>().addr()
}

/// Period of the clock if no stream requires a shorter one.
const TICK: Duration = Duration::from_secs(1);

/// Minimum period of the clock.
const TICK_LEAST: Duration = Duration::from_millis(5);

/// Polling period of [`Pool::settle`].
const SETTLE: Duration = Duration::from_millis(1);

/// Period of the directory check while records are written.
const GUARD: Duration = Duration::from_millis(100);

/// Time after which an unused segment is closed.
const REST: Duration = Duration::from_secs(60);

impl Pool {
    pub(crate) fn new(disk: Arc<dyn Disk>, limits: StreamsConfig, clock: Clock) -> Self {
        let now = Instant::now();
        let line = Line {
            ready: VecDeque::new(),
            members: Members::default(),
            threads: Vec::new(),
            stopped: false,
            ended: false,
            tick: TICK,
            next_tick: now + TICK,
            next_rest: now + REST,
            next_guard: now,
        };
        Self {
            disk,
            limits,
            clock,
            line: Mutex::new(line),
            wake: Condvar::new(),
            guard: OnceLock::new(),
            carrier: RwLock::new(None),
        }
    }

    /// Starts the writer threads.
    pub(crate) fn start(self: &Arc<Self>) -> std::io::Result<()> {
        for number in 0..self.limits.writers {
            let pool = self.clone();
            let thread =
                thread::Builder::new().name(format!("stream-writer-{number}")).spawn(move || pool.run())?;
            self.line().threads.push(thread);
        }
        Ok(())
    }

    /// Sets the directory check, which the threads call every [`TICK`], and every [`GUARD`] while they write.
    pub(crate) fn guard(&self, guard: impl Fn() + Send + Sync + 'static) {
        // Called once.
        let _ = self.guard.set(Box::new(guard));
    }

    /// Adds a unit to the clock.
    pub(crate) fn add(&self, member: Arc<dyn Work>) {
        self.line().members.add(member);
    }

    /// Removes units from the clock.
    pub(crate) fn remove(&self, members: &[Arc<dyn Work>]) {
        let mut line = self.line();
        let gone: Vec<_> = members.iter().filter_map(|member| line.members.remove(member)).collect();
        drop(line);
        // Dropping the last handle may be expensive.
        drop(gone);
    }

    /// Requests that the clock ticks at least this often.
    pub(crate) fn tick_within(&self, period: Duration) {
        let mut line = self.line();
        line.tick = line.tick.min(period).max(TICK_LEAST);
        line.next_tick = line.next_tick.min(Instant::now() + line.tick);
        drop(line);
        self.wake.notify_one();
    }

    /// Sets the carrier that partitions with pending writes are passed to; `None`: the threads write.
    pub(crate) fn set_carrier(&self, carrier: Option<Arc<dyn Carrier>>) {
        *self.carrier.write().unwrap_or_else(PoisonError::into_inner) = carrier;
    }

    pub(crate) fn carrier(&self) -> Option<Arc<dyn Carrier>> {
        self.carrier.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Queues a unit. After the threads have ended, the caller does the work itself.
    pub(crate) fn push(&self, work: Arc<dyn Work>) {
        let mut line = self.line();
        if line.ended {
            drop(line);
            while work.clone().work() {}
            return;
        }
        line.ready.push_back(work);
        drop(line);
        self.wake.notify_one();
    }

    /// Does one step of the first unit in the queue, on this thread. Returns whether there was one.
    pub(crate) fn work(&self) -> bool {
        self.look_at_clock();
        let work = self.line().ready.pop_front();
        let Some(work) = work else { return false };
        if work.clone().work() {
            self.push(work);
        }
        true
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.line().stopped
    }

    /// Waits until the condition holds, and works on the queue meanwhile.
    pub(crate) fn settle(&self, is_so: impl Fn() -> bool) {
        while !is_so() {
            if !self.work() {
                thread::sleep(SETTLE);
            }
        }
    }

    /// Finishes all queued work and ends the threads.
    pub(crate) fn stop(&self) {
        let mut line = self.line();
        line.stopped = true;
        let threads = std::mem::take(&mut line.threads);
        drop(line);
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
            let mut line = self.line();
            if line.ready.is_empty() {
                line.ended = true;
                // Members and pool refer to each other.
                let members = std::mem::take(&mut line.members);
                drop(line);
                drop(members);
                return;
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn members(&self) -> usize {
        self.line().members.list.len()
    }

    /// Takes the queued work, as if it had not been queued.
    #[cfg(test)]
    pub(crate) fn take_line(&self) -> VecDeque<Arc<dyn Work>> {
        std::mem::take(&mut self.line().ready)
    }

    fn run(&self) {
        loop {
            self.look_at_clock();
            let mut line = self.line();
            let Some(work) = line.ready.pop_front() else {
                if line.stopped {
                    return;
                }
                let left = line.next_tick.saturating_duration_since(Instant::now());
                drop(self.wake.wait_timeout(line, left));
                continue;
            };
            drop(line);
            if work.clone().work() {
                self.push_again(work);
            }
        }
    }

    /// Queues a unit at the end. The current writer is awake, so it wakes another one only if more units are queued.
    fn push_again(&self, work: Arc<dyn Work>) {
        let mut line = self.line();
        line.ready.push_back(work);
        if line.ready.len() > 1 {
            self.wake.notify_one();
        }
    }

    fn look_at_clock(&self) {
        let mut line = self.line();
        let now = Instant::now();
        if now >= line.next_guard {
            line.next_guard = now + GUARD;
            drop(line);
            if let Some(guard) = self.guard.get() {
                guard();
            }
            line = self.line();
        }
        if now < line.next_tick {
            return;
        }
        line.next_tick = now + line.tick;
        let rests = now >= line.next_rest;
        if rests {
            line.next_rest = now + REST;
        }
        let members = line.members.list.clone();
        drop(line);
        if rests {
            members.iter().for_each(|member| member.rest());
        }
        self.tick_members(members);
    }

    fn tick_members(&self, members: Vec<Arc<dyn Work>>) {
        let now = (self.clock)();
        for member in members {
            if member.tick(now) {
                self.push(member);
            }
        }
    }

    /// Makes all members release unused resources.
    #[cfg(test)]
    pub(crate) fn rest(&self) {
        let members = self.line().members.list.clone();
        members.iter().for_each(|member| member.rest());
    }

    /// Ticks all members now.
    #[cfg(test)]
    pub(crate) fn tick(&self) {
        if let Some(guard) = self.guard.get() {
            guard();
        }
        let members = self.line().members.list.clone();
        self.tick_members(members);
    }

    /// No code panics while holding the lock.
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The system's clock, which may be set while the process runs.
pub(crate) fn system_clock() -> Clock {
    let begun = Instant::now();
    let wall = || {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    };
    steady(wall, move || u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX))
}

/// Time in microseconds for which a clock change must persist before it is followed. Until then time continues as
/// before: batches appended meanwhile have the right time, and retention removes nothing.
const CLOCK_SETTLE: u64 = 60_000_000;

/// A larger difference is a clock that was set; a smaller one is followed immediately.
const STEP_LEAST: u64 = 5_000_000;

/// Wall-clock time without jumps. `counter` has an arbitrary origin and never jumps.
pub(crate) fn steady(
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
        if now.abs_diff(expected) <= STEP_LEAST {
            lead.store(seen, Ordering::Relaxed);
            if has_jumped.load(Ordering::Relaxed) && has_jumped.swap(false, Ordering::Relaxed) {
                *jumped.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
            return now;
        }
        let mut jumped = jumped.lock().unwrap_or_else(PoisonError::into_inner);
        has_jumped.store(true, Ordering::Relaxed);
        match *jumped {
            Some((lead, _)) if now.abs_diff(count.wrapping_add(lead)) > STEP_LEAST => {
                *jumped = Some((seen, count));
            }
            Some((_, since)) if count.saturating_sub(since) >= CLOCK_SETTLE => {
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
