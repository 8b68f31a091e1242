//! Loads whose connections stay open between measurements.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::app::LoadCommand;
use super::threads::LoadThreads;
use super::tracker::RunWindow;
use crate::args::{BenchArgs, load_plan};
use crate::plan::LoadPlan;

/// A load with open connections, for programs that measure several servers in turns: between two windows the
/// connections are idle, and the load takes no CPU time.
///
/// The URL and the load are those of `sinews bench`, see [`BenchArgs::parse`]. Duration, count and output are not
/// used. Dropping it closes the connections.
pub struct OpenLoad {
    plan: Arc<LoadPlan>,
    /// `None` after a failure.
    threads: Option<LoadThreads>,
    epoch: Instant,
}

/// The work of one window.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WindowResult {
    /// Answered messages or requests, or deliveries.
    pub messages: u64,
    /// Time from the start of the window to the last answer.
    pub elapsed: Duration,
}

impl OpenLoad {
    /// Opens all connections.
    ///
    /// # Errors
    ///
    /// Returns an error if options conflict, or if a connection cannot be opened within `--timeout`.
    pub fn open(args: &BenchArgs) -> Result<Self, String> {
        let url = args.url.as_deref().ok_or("URL is missing")?;
        let plan = Arc::new(load_plan(url, &args.load)?);
        let epoch = Instant::now();
        let threads = LoadThreads::start(&plan, epoch)?;
        let mut load = Self { plan, threads: Some(threads), epoch };
        let all = load.plan.connections as u64;
        let deadline = epoch + load.plan.ramp_up + load.plan.timeout;
        load.wait(|threads| threads.sum(|live| live.settled.get()) >= all, deadline)?;
        if load.sum(|threads| threads.sum(|live| live.open.get())) < all {
            return Err(load.failure("not all connections are open"));
        }
        Ok(load)
    }

    /// Sends messages for this time, and waits until all of them are answered. Each connection keeps `--in-flight`
    /// messages unanswered.
    ///
    /// # Errors
    ///
    /// Returns an error if an answer is wrong, missing after `--timeout`, or a connection has closed.
    pub fn run(&mut self, window: Duration) -> Result<WindowResult, String> {
        let begin = Instant::now();
        let until = begin + window;
        self.work(LoadCommand::Begin(RunWindow { begin, from: begin, until: Some(until) }), begin, until)
    }

    /// Sends `--in-flight` messages on each connection, or on each publisher, and waits for the answers or deliveries.
    /// At most `together` connections of a thread do so at a time.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_once(&mut self, together: usize) -> Result<WindowResult, String> {
        let mut sum = WindowResult { messages: 0, elapsed: Duration::ZERO };
        let share = if self.plan.is_fan_out() {
            self.plan.fan_out.publishers
        } else {
            self.plan.connections.div_ceil(self.plan.threads)
        };
        for first in (0..share).step_by(together.max(1)) {
            let now = Instant::now();
            let done = self.work(LoadCommand::Batch { first, count: together }, now, now)?;
            sum.messages += done.messages;
            sum.elapsed += done.elapsed;
        }
        Ok(sum)
    }

    /// Closes the connections. Returns the quantiles, 0 to 1, of the latency of all messages in windows.
    ///
    /// # Errors
    ///
    /// Returns an error if a thread has failed.
    pub fn latencies(mut self, quantiles: &[f64]) -> Result<Vec<Duration>, String> {
        let threads = self.threads.take().ok_or("the load has failed")?;
        let latency = threads.end()?.0.latency;
        Ok(quantiles.iter().map(|at| Duration::from_nanos(latency.value_at_quantile(*at))).collect())
    }

    fn work(&mut self, command: LoadCommand, begin: Instant, until: Instant) -> Result<WindowResult, String> {
        let messages = |threads: &LoadThreads| threads.sum(|live| live.messages.get());
        let before = self.sum(messages);
        if let Some(threads) = &self.threads {
            threads.broadcast(command);
        }
        thread::sleep(until.saturating_duration_since(Instant::now()));
        let fan_out = self.plan.is_fan_out();
        let delivered =
            |threads: &LoadThreads| !fan_out || messages(threads) >= threads.sum(|live| live.expected.get());
        self.wait(|threads| threads.all_done() && delivered(threads), until + self.plan.timeout)?;
        let seen = Instant::now();
        if self.sum(|threads| threads.sum(|live| live.errors.get())) > 0 {
            return Err(self.failure("the load has failed"));
        }
        let ended = self.threads.as_ref().map_or(0, LoadThreads::ended);
        // Without --burst no thread waits for the deliveries, so none knows the last of them.
        let end = if fan_out && !self.plan.bursts { seen } else { self.epoch + Duration::from_nanos(ended) };
        let elapsed = end.saturating_duration_since(begin);
        Ok(WindowResult { messages: self.sum(messages) - before, elapsed })
    }

    fn sum(&self, what: impl Fn(&LoadThreads) -> u64) -> u64 {
        self.threads.as_ref().map_or(0, what)
    }

    fn wait(&mut self, holds: impl Fn(&LoadThreads) -> bool, deadline: Instant) -> Result<(), String> {
        while !self.threads.as_ref().is_some_and(&holds) {
            if Instant::now() >= deadline {
                return Err(self.failure("timed out"));
            }
            thread::sleep(STEP);
        }
        Ok(())
    }

    /// Ends the threads and describes their first failure.
    fn failure(&mut self, otherwise: &str) -> String {
        let figures = self.threads.take().map(LoadThreads::end);
        let example = figures.and_then(Result::ok).and_then(|(figures, _)| {
            let first = figures.examples.into_iter().next();
            first.map(|(kind, text)| format!("{}: {text}", kind.name()))
        });
        example.unwrap_or_else(|| otherwise.to_owned())
    }
}

impl std::fmt::Debug for OpenLoad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenLoad").field("plan", &self.plan).finish_non_exhaustive()
    }
}

const STEP: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// A server for one connection that answers each four bytes with `answer`, or closes if it is empty.
    fn open(answer: &'static [u8], options: &[&str]) -> Result<OpenLoad, String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("tcp://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut bytes = [0; 4];
            while stream.read_exact(&mut bytes).is_ok() {
                let answer = if answer == ECHO { &bytes[..] } else { answer };
                if answer.is_empty() || stream.write_all(answer).is_err() {
                    return;
                }
            }
        });
        let fixed = [&*url, "-c", "1", "-s", "4", "--timeout", "60s", "--backend", "poll"];
        OpenLoad::open(&BenchArgs::parse([&fixed[..], options].concat())?)
    }

    const ECHO: &[u8] = b"echo";

    /// The result of a window with messages. A thread that stalls for a whole window sends none: then another one.
    fn run_window(load: &mut OpenLoad) -> Result<WindowResult, String> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            match load.run(Duration::from_millis(30)) {
                Ok(done) if done.messages == 0 => assert!(Instant::now() < end, "no message is sent"),
                outcome => return outcome,
            }
        }
    }

    #[test]
    fn windows_count_all_answers_and_leave_the_connection_open() {
        for options in [&["-i", "2"][..], &["-i", "2", "--burst"], &["--busy-poll"]] {
            let mut load = open(ECHO, options).unwrap();
            for _ in 0..2 {
                let done = run_window(&mut load).unwrap();
                // Half of the timeout: no answer is missing.
                assert!(done.elapsed < Duration::from_secs(30), "{options:?}: {done:?}");
            }
            let in_flight = if options[0] == "-i" { 2 } else { 1 };
            assert_eq!(load.run_once(1).unwrap().messages, in_flight, "{options:?}");
            assert!(load.latencies(&[0.5]).unwrap()[0] > Duration::ZERO);
        }
    }

    #[test]
    fn wrong_and_missing_answers_are_errors() {
        let error = |answer| {
            let mut load = open(answer, &[]).unwrap();
            run_window(&mut load).unwrap_err()
        };
        assert!(error(b"pong").contains("wrong_bytes"));
        assert!(error(b"").contains("closed_by_server"));
    }

    #[test]
    fn options_of_the_command_line_are_checked() {
        let parsed = BenchArgs::parse(["tcp://127.0.0.1:1", "--burst", "--rate", "5"]);
        assert!(parsed.unwrap_err().contains("--rate"));
        let parsed = BenchArgs::parse(["ws://127.0.0.1:1", "-m", "fan-out", "--burst", "-t", "2"]);
        assert!(OpenLoad::open(&parsed.unwrap()).unwrap_err().contains("one thread"));
    }
}
