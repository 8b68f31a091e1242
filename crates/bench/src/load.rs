//! Running a plan: one thread with an event loop per share, and a watching thread.

mod app;
mod chain;
mod connection;
mod failure;
mod http;
mod http2;
mod http3;
mod protocol;
mod quic;
mod random;
mod requests;
mod role;
mod schedule;
mod stream_socket;
mod tcp;
mod threads;
mod tls;
mod tracker;
mod traffic;
mod websocket;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sinews_engine::BackendChoice;

pub(crate) use self::app::LoadCommand;
pub(crate) use self::threads::LoadThreads;
pub(crate) use self::tls::{HTTP2, HTTP3};
use super::interrupt::Interrupt;
use super::plan::{LoadMode, LoadPlan};
use super::process::{self, ProcessUsage};
use super::result::{GeneratorUsage, LoadResult, Sample, ServerUsage};
use super::tally::{FailureKind, RunWindow};

/// A run's progress.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RunProgress {
    pub(crate) phase: RunPhase,
    /// The run's completed fraction, 0 to 1.
    pub(crate) fraction: f64,
    pub(crate) open: u64,
    /// Messages per second since the previous sample.
    pub(crate) rate: f64,
    pub(crate) messages: u64,
    pub(crate) errors: u64,
    pub(crate) memory: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunPhase {
    Connecting,
    WarmUp,
    Measuring,
    /// Waiting for the last answers.
    Draining,
}

/// Runs a plan.
///
/// # Errors
///
/// Returns an error if threads or event loops cannot be created, if `pids` contains an unknown process, or if the run
/// is interrupted before the measurement.
pub(crate) fn run(
    plan: Arc<LoadPlan>,
    watched: WatchedProcesses<'_>,
    interrupt: &Interrupt,
    mut show: impl FnMut(RunProgress),
) -> Result<LoadResult, String> {
    let before = watched.usage()?;
    let epoch = Instant::now();
    let load_threads = LoadThreads::start(&plan, epoch)?;
    let mut watch = RunMonitor {
        load_threads: &load_threads,
        plan: &plan,
        watched,
        interrupt,
        last: MessageCount { at: epoch, messages: 0 },
        samples: Vec::new(),
        show: &mut show,
    };
    watch.until_open(epoch);
    let open_memory = watched.usage()?;
    let begin = Instant::now();
    let from = begin + plan.warm_up;
    let mut window = RunWindow { begin, from, until: plan.count.is_none().then_some(from + plan.duration) };
    load_threads.begin(window);
    let server = watch.measure(&mut window)?;
    let ended = Instant::now();
    watch.settle();
    let settled_memory =
        if plan.settle.is_zero() { None } else { watched.usage()?.map(|usage| usage.memory) };
    let (samples, missing) = (std::mem::take(&mut watch.samples), watch.missing());
    let open = load_threads.sum(|live| live.open.get());
    let backend = load_threads.backend;
    let (mut tally, own) = load_threads.end()?;
    if missing > 0 {
        tally.fail(FailureKind::NotDelivered, missing, || {
            "subscribers did not receive all published messages".to_owned()
        });
    }
    // A run with --count ends with its last answer, not when the watcher notices it.
    let end = window.until.or(tally.last).unwrap_or(ended);
    let elapsed = end.saturating_duration_since(from);
    Ok(LoadResult {
        tally,
        elapsed,
        open,
        generator: GeneratorUsage { busiest: own, elapsed },
        server: server.map(|(first, last)| ServerUsage {
            busy: last.busy.saturating_sub(first.busy),
            threads: last.threads,
            memory: settled_memory.unwrap_or(last.memory),
            memory_before: before.map_or(0, |before| before.memory),
            memory_open: settled_memory.unwrap_or_else(|| open_memory.map_or(0, |open| open.memory)),
        }),
        system_calls: None,
        samples,
        interrupted: interrupt.is_interrupted(),
        backend: if backend == BackendChoice::Uring { "uring" } else { "poll" },
    })
}

/// The server's processes, whose usage a run measures. Without any, nothing is measured.
#[derive(Clone, Copy, Default)]
pub(crate) struct WatchedProcesses<'a> {
    pub(crate) pids: &'a [u32],
    /// Whether their child processes are measured too.
    pub(crate) children: bool,
}

impl WatchedProcesses<'_> {
    fn usage(self) -> Result<Option<ProcessUsage>, String> {
        if self.pids.is_empty() { Ok(None) } else { process::usage(self.pids, self.children).map(Some) }
    }
}

/// Messages at a time.
struct MessageCount {
    at: Instant,
    messages: u64,
}

struct RunMonitor<'a, S> {
    load_threads: &'a LoadThreads,
    plan: &'a LoadPlan,
    watched: WatchedProcesses<'a>,
    interrupt: &'a Interrupt,
    /// The count in the last sample.
    last: MessageCount,
    samples: Vec<Sample>,
    show: &'a mut S,
}

/// The server's usage at the start and end of the window.
type WindowUsage = Option<(ProcessUsage, ProcessUsage)>;

impl<S: FnMut(RunProgress)> RunMonitor<'_, S> {
    /// Waits until all connections are open or have failed.
    fn until_open(&mut self, epoch: Instant) {
        let all = self.plan.connections as u64;
        let deadline = epoch + self.plan.ramp_up + self.plan.timeout + SLACK;
        let mut shown = Instant::now();
        let waits = || !self.interrupt.is_interrupted() && Instant::now() < deadline;
        while self.load_threads.sum(|live| live.settled.get()) < all && waits() {
            thread::sleep(STEP);
            if shown.elapsed() >= SHOWN {
                shown = Instant::now();
                self.sample(RunPhase::Connecting, None);
            }
        }
    }

    /// Waits until the window has ended and all answers have arrived or timed out. Ctrl-C ends the window.
    fn measure(&mut self, window: &mut RunWindow) -> Result<WindowUsage, String> {
        while Instant::now() < window.from && !self.interrupt.is_interrupted() {
            self.sample_if_due(RunPhase::WarmUp, *window);
            thread::sleep(SHOWN.min(window.from.saturating_duration_since(Instant::now())));
        }
        if self.interrupt.is_interrupted() {
            return Err("interrupted before anything was measured".to_owned());
        }
        let first = self.watched.usage()?;
        let mut progress = MessageCount { at: Instant::now(), messages: 0 };
        loop {
            let now = Instant::now();
            if self.interrupt.is_interrupted() {
                window.until = Some(window.until.map_or(now, |until| until.min(now)));
                self.load_threads.broadcast(LoadCommand::Stop(now));
            }
            let over = window.until.is_some_and(|until| now >= until);
            if over || self.load_threads.all_done() || window.until.is_none() && self.is_stuck(&mut progress)
            {
                break;
            }
            self.sample_if_due(RunPhase::Measuring, *window);
            thread::sleep(
                SHOWN.min(window.until.map_or(STEP * 5, |until| until.saturating_duration_since(now))),
            );
        }
        let last = self.watched.usage()?;
        self.sample(RunPhase::Measuring, Some(*window));
        let drain_deadline = window.until.map(|until| until + self.plan.timeout);
        while drain_deadline.is_some_and(|drain_deadline| Instant::now() < drain_deadline)
            && !self.all_answered()
        {
            self.sample_if_due(RunPhase::Draining, *window);
            thread::sleep(STEP);
        }
        Ok(first.zip(last))
    }

    /// Leaves the connections open without traffic for a time.
    fn settle(&self) {
        let end = Instant::now() + self.plan.settle;
        while !self.interrupt.is_interrupted() && Instant::now() < end {
            thread::sleep(SHOWN.min(end.saturating_duration_since(Instant::now())));
        }
    }

    /// Whether no answer has arrived for so long that none will: otherwise a run with --count would not end.
    fn is_stuck(&self, progress: &mut MessageCount) -> bool {
        let messages = self.load_threads.sum(|live| live.messages.get());
        if messages != progress.messages {
            *progress = MessageCount { at: Instant::now(), messages };
        }
        progress.at.elapsed() >= self.plan.timeout
    }

    fn all_answered(&self) -> bool {
        if self.plan.mode != LoadMode::FanOut {
            return self.load_threads.all_done()
                || matches!(self.plan.mode, LoadMode::Idle | LoadMode::Storm);
        }
        self.load_threads.all_done() && self.missing() == 0
    }

    /// Number of outstanding deliveries.
    fn missing(&self) -> u64 {
        let expected = self.load_threads.sum(|live| live.expected.get());
        if self.plan.is_fan_out() {
            expected.saturating_sub(self.load_threads.sum(|live| live.messages.get()))
        } else {
            0
        }
    }

    fn sample_if_due(&mut self, phase: RunPhase, window: RunWindow) {
        if self.last.at.elapsed() >= SHOWN {
            self.sample(phase, Some(window));
        }
    }

    /// Takes a sample, and shows it.
    fn sample(&mut self, phase: RunPhase, window: Option<RunWindow>) {
        let now = Instant::now();
        let messages = self.load_threads.sum(|live| live.messages.get());
        let took = now.saturating_duration_since(self.last.at).as_secs_f64();
        let rate = messages.saturating_sub(self.last.messages) as f64 / took.max(1e-3);
        self.last = MessageCount { at: now, messages };
        let memory = self.watched.usage().ok().flatten().map(|usage| usage.memory);
        let fraction = match window {
            Some(RunWindow { begin, until: Some(until), .. }) => {
                let whole = until.saturating_duration_since(begin).as_secs_f64();
                now.saturating_duration_since(begin).as_secs_f64() / whole.max(1e-3)
            }
            Some(_) => messages as f64 / self.plan.count.unwrap_or(1).max(1) as f64,
            None => 0.0,
        };
        let seen = RunProgress {
            phase,
            fraction: fraction.min(1.0),
            open: self.load_threads.sum(|live| live.open.get()),
            rate,
            messages,
            errors: self.load_threads.sum(|live| live.errors.get()),
            memory,
        };
        if let (RunPhase::Measuring, Some(window)) = (phase, window) {
            self.samples.push(Sample { at: now.saturating_duration_since(window.from), rate, memory });
        }
        (self.show)(seen);
    }
}

/// Interval between progress samples.
const SHOWN: Duration = Duration::from_millis(200);

const STEP: Duration = Duration::from_millis(2);

/// Extra time for connections to report their own timeouts.
const SLACK: Duration = Duration::from_secs(1);
