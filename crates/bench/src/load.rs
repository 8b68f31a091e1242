//! Running a plan: one thread with an event loop per share, and a watching thread.

mod app;
mod http;
mod lane;
mod pace;
mod tcp;
mod tls;
mod websocket;
mod wire;

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sinews_engine::{BackendChoice, Config, Engine, Post};

use self::app::{Load, Order};
use self::lane::Window;
use super::args::Mode;
use super::interrupt::Interrupt;
use super::plan::Plan;
use super::process::{self, Usage};
use super::result::{Outcome, Own, Sample, Server};
use super::tally::{Failure, Live, Tally};

/// Progress of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Now {
    pub(crate) phase: Phase,
    /// Completed fraction of the run, 0 to 1.
    pub(crate) part: f64,
    pub(crate) open: u64,
    /// Messages per second since the previous sample.
    pub(crate) rate: f64,
    pub(crate) messages: u64,
    pub(crate) errors: u64,
    pub(crate) memory: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
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
    plan: Arc<Plan>,
    watched: (&[u32], bool),
    interrupt: &Interrupt,
    mut show: impl FnMut(Now),
) -> Result<Outcome, String> {
    let before = usage(watched)?;
    let epoch = Instant::now();
    let crew = Crew::start(&plan, epoch)?;
    let mut watch = Watch {
        crew: &crew,
        plan: &plan,
        watched,
        interrupt,
        last: (epoch, 0),
        samples: Vec::new(),
        show: &mut show,
    };
    watch.until_open(epoch);
    let open_memory = usage(watched)?;
    let begin = Instant::now();
    let from = begin + plan.warm_up;
    let mut window = Window { begin, from, until: plan.count.is_none().then_some(from + plan.duration) };
    crew.tell(Order::Begin(window));
    let server = watch.measure(&mut window)?;
    let ended = Instant::now();
    let (samples, missing) = (std::mem::take(&mut watch.samples), watch.missing());
    let open = crew.sum(|live| live.open.get());
    let backend = crew.backend;
    let (mut tally, own) = crew.end()?;
    if missing > 0 {
        tally.fail(Failure::NotDelivered, missing, || {
            "subscribers did not receive all published messages".to_owned()
        });
    }
    // A run with --count ends with its last answer, not when the watcher notices it.
    let end = window.until.or(tally.last).unwrap_or(ended);
    let elapsed = end.saturating_duration_since(from);
    Ok(Outcome {
        tally,
        elapsed,
        open,
        own: Own { busiest: own, elapsed },
        server: server.map(|(first, last)| Server {
            busy: last.busy.saturating_sub(first.busy),
            threads: last.threads,
            memory: last.memory,
            memory_before: before.map_or(0, |before| before.memory),
            memory_open: open_memory.map_or(0, |open| open.memory),
            system_calls: None,
        }),
        samples,
        interrupted: interrupt.came(),
        backend: if backend == BackendChoice::Uring { "uring" } else { "poll" },
    })
}

fn usage((pids, children): (&[u32], bool)) -> Result<Option<Usage>, String> {
    if pids.is_empty() { Ok(None) } else { process::usage(pids, children).map(Some) }
}

/// Result of a thread: its figures, and its CPU time in the window.
type Share = Result<(Tally, Option<Duration>), String>;

struct Crew {
    threads: Vec<JoinHandle<Share>>,
    posts: Vec<Post<Order>>,
    lives: Vec<Arc<Live>>,
    backend: BackendChoice,
}

impl Crew {
    fn start(plan: &Arc<Plan>, epoch: Instant) -> Result<Self, String> {
        let mut crew =
            Self { threads: Vec::new(), posts: Vec::new(), lives: Vec::new(), backend: plan.backend };
        let failed = |error: std::io::Error| error.to_string();
        for number in 0..plan.threads {
            let config = Config::default().backend(plan.backend);
            let mut engine = Engine::<Load>::new(config, Vec::new()).map_err(failed)?;
            let live = Arc::new(Live::default());
            crew.backend = engine.backend();
            crew.posts.push(engine.post());
            crew.lives.push(live.clone());
            let mut load = Load::new(plan.clone(), number, live, epoch);
            let run = move || {
                engine.run(&mut load).map_err(|error| error.to_string())?;
                let used = match load.used {
                    [Some(from), Some(until)] => Some(until.busy.saturating_sub(from.busy)),
                    [Some(from), None] => {
                        process::of_this_thread().map(|now| now.busy.saturating_sub(from.busy))
                    }
                    _ => None,
                };
                Ok((load.into_tally(), used))
            };
            let thread = thread::Builder::new().name(format!("load {number}")).spawn(run).map_err(failed)?;
            crew.threads.push(thread);
        }
        Ok(crew)
    }

    fn tell(&self, order: Order) {
        for post in &self.posts {
            // A loop that has ended needs no orders.
            let _ = post.send(order);
        }
    }

    fn sum(&self, what: impl Fn(&Live) -> u64) -> u64 {
        self.lives.iter().map(|live| what(live)).sum()
    }

    fn all_done(&self) -> bool {
        self.lives.iter().all(|live| live.is_done())
    }

    /// Joins the threads. Returns the sum of their figures, and the CPU time of the busiest thread.
    fn end(mut self) -> Result<(Tally, Option<Duration>), String> {
        self.tell(Order::End);
        let (mut all, mut busiest) = (Tally::new(), None);
        for thread in std::mem::take(&mut self.threads) {
            let share = thread.join().map_err(|_| "load thread panicked".to_owned())?;
            let (tally, used) = share?;
            all.merge(&tally);
            busiest = busiest.max(used);
        }
        Ok((all, busiest))
    }
}

impl Drop for Crew {
    /// Ends all threads, also after an error.
    fn drop(&mut self) {
        self.tell(Order::End);
    }
}

struct Watch<'a, S> {
    crew: &'a Crew,
    plan: &'a Plan,
    watched: (&'a [u32], bool),
    interrupt: &'a Interrupt,
    /// Time of the last sample, and the message count at that time.
    last: (Instant, u64),
    samples: Vec<Sample>,
    show: &'a mut S,
}

/// The server's usage at the start and end of the window.
type Ends = Option<(Usage, Usage)>;

impl<S: FnMut(Now)> Watch<'_, S> {
    /// Waits until all connections are open or have failed.
    fn until_open(&mut self, epoch: Instant) {
        let all = self.plan.connections as u64;
        let deadline = epoch + self.plan.ramp_up + self.plan.timeout + SLACK;
        let mut shown = Instant::now();
        let waits = || !self.interrupt.came() && Instant::now() < deadline;
        while self.crew.sum(|live| live.settled.get()) < all && waits() {
            thread::sleep(STEP);
            if shown.elapsed() >= SHOWN {
                shown = Instant::now();
                self.look(Phase::Connecting, None);
            }
        }
    }

    /// Waits until the window has ended and all answers have arrived or timed out. Ctrl-C ends the window.
    fn measure(&mut self, window: &mut Window) -> Result<Ends, String> {
        while Instant::now() < window.from && !self.interrupt.came() {
            self.step(Phase::WarmUp, *window);
            thread::sleep(SHOWN.min(window.from.saturating_duration_since(Instant::now())));
        }
        if self.interrupt.came() {
            return Err("interrupted before anything was measured".to_owned());
        }
        let first = usage(self.watched)?;
        let mut progress = (Instant::now(), 0);
        loop {
            let now = Instant::now();
            if self.interrupt.came() {
                window.until = Some(window.until.map_or(now, |until| until.min(now)));
                self.crew.tell(Order::Stop(now));
            }
            let over = window.until.is_some_and(|until| now >= until);
            if over || self.crew.all_done() || window.until.is_none() && self.is_stuck(&mut progress) {
                break;
            }
            self.step(Phase::Measuring, *window);
            thread::sleep(
                SHOWN.min(window.until.map_or(STEP * 5, |until| until.saturating_duration_since(now))),
            );
        }
        let last = usage(self.watched)?;
        self.look(Phase::Measuring, Some(*window));
        let given_up = window.until.map(|until| until + self.plan.timeout);
        while given_up.is_some_and(|given_up| Instant::now() < given_up) && !self.all_answered() {
            self.step(Phase::Draining, *window);
            thread::sleep(STEP);
        }
        Ok(first.zip(last))
    }

    /// Whether no answer has arrived for so long that none will: otherwise a run with --count would not end.
    fn is_stuck(&self, progress: &mut (Instant, u64)) -> bool {
        let messages = self.crew.sum(|live| live.messages.get());
        if messages != progress.1 {
            *progress = (Instant::now(), messages);
        }
        progress.0.elapsed() >= self.plan.timeout
    }

    fn all_answered(&self) -> bool {
        if self.plan.mode != Mode::FanOut {
            return self.crew.all_done() || matches!(self.plan.mode, Mode::Idle | Mode::Storm);
        }
        self.crew.all_done() && self.missing() == 0
    }

    /// Number of outstanding deliveries.
    fn missing(&self) -> u64 {
        let expected = self.crew.sum(|live| live.expected.get());
        if self.plan.is_fan_out() {
            expected.saturating_sub(self.crew.sum(|live| live.messages.get()))
        } else {
            0
        }
    }

    fn step(&mut self, phase: Phase, window: Window) {
        if self.last.0.elapsed() >= SHOWN {
            self.look(phase, Some(window));
        }
    }

    /// Takes a sample, and shows it.
    fn look(&mut self, phase: Phase, window: Option<Window>) {
        let now = Instant::now();
        let messages = self.crew.sum(|live| live.messages.get());
        let took = now.saturating_duration_since(self.last.0).as_secs_f64();
        let rate = messages.saturating_sub(self.last.1) as f64 / took.max(1e-3);
        self.last = (now, messages);
        let memory = usage(self.watched).ok().flatten().map(|usage| usage.memory);
        let part = match window {
            Some(Window { begin, until: Some(until), .. }) => {
                let whole = until.saturating_duration_since(begin).as_secs_f64();
                now.saturating_duration_since(begin).as_secs_f64() / whole.max(1e-3)
            }
            Some(_) => messages as f64 / self.plan.count.unwrap_or(1).max(1) as f64,
            None => 0.0,
        };
        let seen = Now {
            phase,
            part: part.min(1.0),
            open: self.crew.sum(|live| live.open.get()),
            rate,
            messages,
            errors: self.crew.sum(|live| live.errors.get()),
            memory,
        };
        if let (Phase::Measuring, Some(window)) = (phase, window) {
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
