//! Counters of a loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counters of one loop since its creation. Plain numbers, read by value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Turns. Each turn waited for the kernel once.
    pub turns: u64,
    /// System calls that entered the ring; 0 with the readiness backend, which makes one call per turn, per
    /// receive and per send.
    pub enters: u64,
    /// Wake-ups by other threads for mail.
    pub wakes: u64,
    /// Connections accepted.
    pub accepts: u64,
    /// Connections made by [`Io::connect`](crate::Io::connect).
    pub connects: u64,
    /// Periods without accepting, for lack of descriptors or memory.
    pub accept_stalls: u64,
    /// Connections closed.
    pub closes: u64,
    /// Receive operations, including those that returned an end, an error or no bytes.
    pub receives: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Send operations, including rejected ones.
    pub sends: u64,
    /// Bytes that the kernel took.
    pub sent_bytes: u64,
    /// Timed turns, one in sixteen, by duration: one bucket for each of [`TURN_BOUNDS`](Self::TURN_BOUNDS),
    /// not cumulative, and one for longer turns. A turn spans from one wait for the kernel to the next.
    pub timed_turns: [u64; TURN_BUCKETS],
    /// Total duration of the timed turns.
    pub timed_took: Duration,
    /// The timed turns' total duration, plus the CPU time in the system calls right after them: with a ring, sending
    /// and receiving. Its ratio to the sum with [`timed_waiting`](Self::timed_waiting) is the loop's load.
    pub timed_busy: Duration,
    /// Total sleep right after the timed turns.
    pub timed_waiting: Duration,
    /// CPU time of the loop's thread, including kernel time, read less than 10 ms before the loop went to
    /// sleep. Its growth per second is the loop's share of a CPU, for any backend. `None` where the system
    /// does not provide it.
    pub cpu: Option<Duration>,
}

impl Stats {
    /// Upper bounds of [`timed_turns`](Self::timed_turns).
    pub const TURN_BOUNDS: [Duration; TURN_BUCKETS - 1] = [
        Duration::from_micros(100),
        Duration::from_micros(300),
        Duration::from_millis(1),
        Duration::from_millis(3),
        Duration::from_millis(10),
        Duration::from_millis(30),
        Duration::from_millis(100),
        Duration::from_millis(300),
        Duration::from_secs(1),
    ];
}

const TURN_BUCKETS: usize = 10;

/// Reads the counters of a loop from any thread, while it runs and after its end. Clones are cheap, and
/// reads do not slow down the loop.
#[derive(Clone, Debug)]
pub struct StatsReader(Arc<EngineCounters>);

impl StatsReader {
    pub(crate) fn new(counters: &Arc<EngineCounters>) -> Self {
        Self(Arc::clone(counters))
    }

    /// The current counters. Each is consistent by itself; the loop may be in the middle of a turn.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.0.read()
    }
}

/// The counters as the loop writes them.
#[derive(Debug, Default)]
pub(crate) struct EngineCounters {
    pub(crate) turns: Counter,
    pub(crate) enters: Counter,
    pub(crate) wakes: Counter,
    pub(crate) accepts: Counter,
    pub(crate) connects: Counter,
    pub(crate) accept_stalls: Counter,
    pub(crate) closes: Counter,
    pub(crate) receives: Counter,
    pub(crate) received_bytes: Counter,
    pub(crate) sends: Counter,
    pub(crate) sent_bytes: Counter,
    timed_turns: [Counter; TURN_BUCKETS],
    timed_took_ns: Counter,
    /// CPU time in the calls after the timed turns.
    timed_calls_ns: Counter,
    timed_waiting_ns: Counter,
    /// CPU time plus one; 0 means unknown.
    cpu_ns: Counter,
}

impl EngineCounters {
    pub(crate) fn turn_timed(&self, took: Duration) {
        let bucket = Stats::TURN_BOUNDS.iter().take_while(|bound| **bound < took).count();
        self.timed_turns[bucket].add(1);
        self.timed_took_ns.add(nanos(took));
    }

    /// Records the call after a timed turn, with `worked` CPU time of the thread.
    pub(crate) fn wait_timed(&self, took: Duration, worked: Duration) {
        let worked = worked.min(took);
        self.timed_calls_ns.add(nanos(worked));
        self.timed_waiting_ns.add(nanos(took - worked));
    }

    pub(crate) fn set_cpu(&self, cpu: Duration) {
        self.cpu_ns.set(nanos(cpu).saturating_add(1));
    }

    pub(crate) fn read(&self) -> Stats {
        Stats {
            turns: self.turns.get(),
            enters: self.enters.get(),
            wakes: self.wakes.get(),
            accepts: self.accepts.get(),
            connects: self.connects.get(),
            accept_stalls: self.accept_stalls.get(),
            closes: self.closes.get(),
            receives: self.receives.get(),
            received_bytes: self.received_bytes.get(),
            sends: self.sends.get(),
            sent_bytes: self.sent_bytes.get(),
            timed_turns: self.timed_turns.each_ref().map(Counter::get),
            timed_took: Duration::from_nanos(self.timed_took_ns.get()),
            timed_busy: Duration::from_nanos(self.timed_took_ns.get() + self.timed_calls_ns.get()),
            timed_waiting: Duration::from_nanos(self.timed_waiting_ns.get()),
            cpu: self.cpu_ns.get().checked_sub(1).map(Duration::from_nanos),
        }
    }
}

/// Five centuries of nanoseconds are enough.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A counter with one writer thread and any number of readers: adding is a load and a store, without a
/// locked operation. (Two writers would lose increments.)
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds, wrapping around.
    #[inline]
    pub fn add(&self, count: u64) {
        self.set(self.get().wrapping_add(count));
    }

    /// Sets it.
    #[inline]
    pub fn set(&self, to: u64) {
        self.0.store(to, Ordering::Relaxed);
    }

    /// Reads it, on any thread.
    #[inline]
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
