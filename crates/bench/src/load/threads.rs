//! A load's threads, each with an event loop.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sinews_engine::{BackendChoice, Engine, EngineConfig, Post};

use super::app::{LoadApp, LoadCommand};
use super::quic::LoadEndpoints;
use crate::plan::LoadPlan;
use crate::process;
use crate::tally::{LiveCounters, LoadFigures, RunWindow};

/// A thread's result: its figures, and its CPU time in the window.
type ThreadResult = Result<(LoadFigures, Option<Duration>), String>;

pub(crate) struct LoadThreads {
    threads: Vec<JoinHandle<ThreadResult>>,
    posts: Vec<Post<LoadCommand>>,
    lives: Arc<[Arc<LiveCounters>]>,
    pub(crate) backend: BackendChoice,
}

impl LoadThreads {
    pub(crate) fn start(plan: &Arc<LoadPlan>, epoch: Instant) -> Result<Self, String> {
        let mut load_threads = Self {
            threads: Vec::new(),
            posts: Vec::new(),
            lives: (0..plan.threads).map(|_| Arc::default()).collect(),
            backend: plan.backend,
        };
        let failed = |error: std::io::Error| error.to_string();
        for number in 0..plan.threads {
            let config = EngineConfig::default().with_backend(plan.backend);
            let mut engine = Engine::<LoadApp>::new(config, Vec::new()).map_err(failed)?;
            load_threads.backend = engine.backend();
            load_threads.posts.push(engine.post());
            let mut endpoints = None;
            if plan.http3 {
                let (bound, sockets) = LoadEndpoints::bind(plan, plan.ordinals(number).count())?;
                for socket in sockets {
                    engine.add_datagrams(socket).map_err(failed)?;
                }
                endpoints = Some(bound);
            }
            let load = LoadApp::new(plan.clone(), number, load_threads.lives.clone(), epoch);
            let mut load = load.with_endpoints(endpoints);
            let run = move || {
                drive(&mut engine, &mut load).map_err(|error| error.to_string())?;
                let used = match load.used {
                    [Some(from), Some(until)] => Some(until.busy.saturating_sub(from.busy)),
                    [Some(from), None] => {
                        process::this_thread().map(|now| now.busy.saturating_sub(from.busy))
                    }
                    _ => None,
                };
                Ok((load.into_tally(), used))
            };
            let thread = thread::Builder::new().name(format!("load {number}")).spawn(run).map_err(failed)?;
            load_threads.threads.push(thread);
        }
        Ok(load_threads)
    }

    /// Gives all threads the window before any thread sends: its deliveries may reach a thread before the command.
    pub(super) fn begin(&self, window: RunWindow) {
        for live in self.lives.iter() {
            let _ = live.window.set(window);
        }
        self.broadcast(LoadCommand::Begin);
    }

    pub(crate) fn broadcast(&self, command: LoadCommand) {
        for post in &self.posts {
            // A loop that has ended needs no orders.
            let _ = post.send(command);
        }
    }

    pub(crate) fn sum(&self, what: impl Fn(&LiveCounters) -> u64) -> u64 {
        self.lives.iter().map(|live| what(live)).sum()
    }

    pub(super) fn all_done(&self) -> bool {
        self.lives.iter().all(|live| live.is_done())
    }

    /// Joins the threads. Returns the sum of their figures, and the busiest thread's CPU time.
    pub(crate) fn end(mut self) -> Result<(LoadFigures, Option<Duration>), String> {
        self.broadcast(LoadCommand::Shutdown);
        let (mut all, mut busiest) = (LoadFigures::new(), None);
        for thread in std::mem::take(&mut self.threads) {
            let share = thread.join().map_err(|_| "load thread panicked".to_owned())?;
            let (tally, used) = share?;
            all.merge(&tally);
            busiest = busiest.max(used);
        }
        Ok((all, busiest))
    }
}

/// Runs a thread's loop until it is stopped.
fn drive(engine: &mut Engine<LoadApp>, load: &mut LoadApp) -> std::io::Result<()> {
    if !load.polls() {
        return engine.run(load);
    }
    // The server pays for waking a thread that sleeps, so this one does not sleep while it has work.
    while engine.turn(load, load.is_working().then_some(Duration::ZERO))? {}
    Ok(())
}

impl Drop for LoadThreads {
    /// Ends all threads, also after an error.
    fn drop(&mut self) {
        self.broadcast(LoadCommand::Shutdown);
    }
}
