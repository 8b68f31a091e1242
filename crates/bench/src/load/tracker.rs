//! One connection's messages: sent, answered and counted.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use sinews_proto::Time;

use super::super::plan::LoadPlan;
use super::super::tally::{FailureKind, LiveCounters, LoadFigures, RunWindow};

/// State that all connections on a thread share, except their sessions' memory.
#[derive(Debug)]
pub(crate) struct ThreadState {
    pub(crate) plan: Arc<LoadPlan>,
    pub(crate) tally: LoadFigures,
    pub(crate) live: Arc<LiveCounters>,
    /// All threads' deliveries.
    lives: Arc<[Arc<LiveCounters>]>,
    /// Time of the current chunk or turn, set by [`at`](Self::at).
    pub(crate) now: Instant,
    pub(crate) epoch: Instant,
    /// `now`, in nanoseconds since the run's epoch.
    pub(crate) since: Nanos,
    /// The window, before which no message is sent.
    window: Option<RunWindow>,
    /// The window's measured part; empty until the window is known.
    measured: Range<Nanos>,
    /// Messages left to send, with --count.
    pub(crate) budget: Option<u64>,
    /// Sending has stopped.
    pub(crate) stopped: bool,
    /// Messages that are unanswered, or due and unsent.
    pub(crate) outstanding: u64,
}

/// Nanoseconds since the run's epoch. Each message compares and subtracts these, which costs a fraction of `Instant`
/// arithmetic.
pub(crate) type Nanos = u64;

impl ThreadState {
    pub(crate) fn new(
        plan: Arc<LoadPlan>,
        lives: Arc<[Arc<LiveCounters>]>,
        thread: usize,
        epoch: Instant,
        budget: Option<u64>,
    ) -> Self {
        Self {
            plan,
            tally: LoadFigures::new(),
            live: lives[thread].clone(),
            lives,
            now: epoch,
            epoch,
            since: 0,
            window: None,
            measured: 0..0,
            budget,
            stopped: false,
            outstanding: 0,
        }
    }

    /// Sets the time of the following events.
    #[inline]
    pub(crate) fn at(&mut self, now: Instant) {
        self.now = now;
        self.since = self.nanos(now);
        self.stopped |= self.window.is_some() && self.since >= self.measured.end;
    }

    /// Returns the time of the current chunk or turn, since the run's epoch.
    pub(crate) fn time(&self) -> Time {
        Time::from_micros(self.now.saturating_duration_since(self.epoch).as_micros() as u64)
    }

    /// Starts sending.
    pub(crate) fn begin(&mut self, window: RunWindow, now: Instant) {
        self.stopped = false;
        self.set_window(window);
        self.at(now);
    }

    /// Ends a window that has begun at this time at the latest.
    pub(crate) fn end_window(&mut self, at: Instant) {
        if let Some(window) = self.window {
            let until = Some(window.until.map_or(at, |until| until.min(at)));
            self.set_window(RunWindow { until, ..window });
        }
    }

    fn set_window(&mut self, window: RunWindow) {
        self.window = Some(window);
        self.measure(window);
    }

    fn measure(&mut self, window: RunWindow) {
        self.measured = self.nanos(window.from)..window.until.map_or(Nanos::MAX, |until| self.nanos(until));
    }

    pub(crate) fn window(&self) -> Option<RunWindow> {
        self.window
    }

    /// Whether events at the current time are measured.
    #[inline]
    pub(crate) fn measures_now(&self) -> bool {
        self.measured.contains(&self.since)
    }

    /// Whether a message due at this time is measured.
    pub(crate) fn measures(&self, due: Instant) -> bool {
        self.measured.contains(&self.nanos(due))
    }

    #[inline]
    fn nanos(&self, at: Instant) -> Nanos {
        at.saturating_duration_since(self.epoch).as_nanos() as Nanos
    }

    /// Counts a due item as done or abandoned.
    #[inline]
    fn record_wait(&mut self, due: Nanos) {
        if self.measured.contains(&due) {
            self.tally.latency.saturating_record(self.since.saturating_sub(due).max(1));
        }
    }

    /// Whether a closed loop may send another message now.
    fn reserve_message(&mut self) -> bool {
        if self.stopped || self.window.is_none() || self.plan.rate.is_some() {
            return false;
        }
        match &mut self.budget {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }

    /// Whether nothing more will be sent and all messages are answered.
    #[inline]
    pub(crate) fn is_spent(&self) -> bool {
        self.outstanding == 0 && (self.stopped || self.budget == Some(0))
    }

    /// Whether all deliveries of the publications so far have arrived at the subscribers of all threads.
    pub(crate) fn all_delivered(&self) -> bool {
        let sum = |what: fn(&LiveCounters) -> u64| self.lives.iter().map(|live| what(live)).sum::<u64>();
        !self.plan.is_fan_out() || sum(|live| live.messages.get()) >= sum(|live| live.expected.get())
    }

    pub(crate) fn fail(&mut self, failure: FailureKind, count: u64, example: impl FnOnce() -> String) {
        self.live.errors.add(count);
        self.tally.fail(failure, count, example);
    }

    #[inline]
    fn count_answer(&mut self, due: Nanos, bytes: usize) {
        self.live.messages.add(1);
        if self.measures_now() {
            self.tally.messages += 1;
            self.tally.last = Some(self.now);
            self.tally.bytes_received += bytes as u64;
        }
        self.record_wait(due);
    }
}

/// A connection's messages. Numbers identify sent messages and expected answers.
#[derive(Debug)]
pub(crate) struct MessageTracker {
    /// Number of the next message, and of the next answer.
    next: u64,
    expected: u64,
    /// Due or send times of the messages between these numbers.
    sent: VecDeque<Nanos>,
    /// Due messages, delayed by the limit for unanswered messages.
    waiting: VecDeque<Nanos>,
    /// With --burst: a burst has begun, and more messages in it are to be sent.
    in_burst: bool,
}

impl MessageTracker {
    pub(crate) fn new(ordinal: usize) -> Self {
        let first = (ordinal as u64) << 36;
        Self {
            next: first,
            expected: first,
            sent: VecDeque::new(),
            waiting: VecDeque::new(),
            in_burst: false,
        }
    }

    /// Adds the due messages from the connection that this one replaces.
    pub(crate) fn take_over(&mut self, waiting: VecDeque<Nanos>) {
        self.waiting.extend(waiting);
    }

    /// Takes the unanswered messages, for a replacement connection.
    pub(crate) fn take_unanswered(&mut self) -> VecDeque<Nanos> {
        self.sent.drain(..).chain(self.waiting.drain(..)).collect()
    }

    /// Returns the number of the next message to send, if sending is allowed: a due message, or a closed loop's next
    /// message.
    pub(crate) fn take(&mut self, thread_state: &mut ThreadState) -> Option<u64> {
        if thread_state.plan.bursts && self.sent.is_empty() {
            self.in_burst = true;
        }
        if self.sent.len() >= thread_state.plan.in_flight {
            self.in_burst = false;
            return None;
        }
        if thread_state.plan.bursts && !self.in_burst {
            return None;
        }
        let due = match self.waiting.pop_front() {
            Some(due) => due,
            None if thread_state.reserve_message() => {
                thread_state.outstanding += 1;
                thread_state.since
            }
            None => return None,
        };
        self.sent.push_back(due);
        self.next += 1;
        Some(self.next - 1)
    }

    pub(crate) fn sent_bytes(&self, thread_state: &mut ThreadState, bytes: usize) {
        if thread_state.measures_now() {
            thread_state.tally.bytes_sent += bytes as u64;
        }
    }

    /// Queues a message that is due independent of answers.
    pub(crate) fn due(&mut self, at: Instant, thread_state: &mut ThreadState) {
        thread_state.outstanding += 1;
        self.waiting.push_back(thread_state.nanos(at));
    }

    /// Returns the number of the message that the next answer belongs to; `None` without unanswered messages.
    pub(crate) fn expects(&self) -> Option<u64> {
        (!self.sent.is_empty()).then_some(self.expected)
    }

    /// Counts a complete and correct answer.
    pub(crate) fn answered(&mut self, thread_state: &mut ThreadState, bytes: usize) {
        let Some(due) = self.sent.pop_front() else { return };
        self.expected += 1;
        thread_state.outstanding -= 1;
        thread_state.count_answer(due, bytes);
    }

    /// Counts a wrong answer: its message is neither resent nor counted as unanswered.
    pub(crate) fn answered_wrongly(&mut self, thread_state: &mut ThreadState) {
        if self.sent.pop_front().is_some() {
            thread_state.outstanding -= 1;
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.sent.is_empty() && self.waiting.is_empty()
    }

    /// Abandons unanswered messages when the connection closes or the time expires; their latency is at least the
    /// time until now.
    pub(crate) fn abandon(&mut self, thread_state: &mut ThreadState) {
        let lost = self.sent.len() + self.waiting.len();
        for due in self.sent.drain(..).chain(self.waiting.drain(..)) {
            thread_state.record_wait(due);
        }
        thread_state.outstanding -= lost as u64;
        if lost > 0 {
            thread_state
                .fail(FailureKind::NoAnswer, lost as u64, || "messages were not answered in time".to_owned());
        }
    }

    /// Builds a publication: a marker, the time, a number and padding.
    pub(crate) fn publication(&mut self, topic: usize, thread_state: &mut ThreadState) -> Option<String> {
        let due = self.waiting.pop_front()?;
        thread_state.outstanding -= 1;
        let number = self.next & u64::from(u32::MAX);
        self.next += 1;
        let fill = String::from_utf8_lossy(thread_state.plan.corpus.message(number)).into_owned();
        let fill = &fill[..fill.len().saturating_sub(STAMP)];
        if thread_state.measured.contains(&due) {
            thread_state.tally.published += 1;
        }
        thread_state.live.expected.add(thread_state.plan.subscribers(topic));
        Some(format!("{MARK}{due:016x}{number:08x}{fill}."))
    }
}

/// Reads a publisher's stamp from a delivery in any server format.
pub(crate) fn delivered(message: &[u8], thread_state: &mut ThreadState) -> Result<(), String> {
    let mut bytes = message.len();
    // Messages without a marker are the server's own, not deliveries. A server may join several deliveries.
    for at in memchr::memmem::find_iter(message, MARK) {
        let rest = &message[at + MARK.len()..];
        let hex = |range: Range<usize>| {
            let text = rest.get(range).and_then(|bytes| std::str::from_utf8(bytes).ok());
            text.and_then(|text| u64::from_str_radix(text, 16).ok()).ok_or("delivery has no valid time")
        };
        let (due, number) = (hex(0..16)?, hex(16..24)?);
        let fill = thread_state.plan.corpus.message(number);
        let fill = &fill[..fill.len().saturating_sub(STAMP)];
        let body = &rest[24..];
        if !body.starts_with(fill) || body.get(fill.len()) != Some(&b'.') {
            return Err("delivery differs from the published message".to_owned());
        }
        if thread_state.window.is_none()
            && let Some(&window) = thread_state.live.window.get()
        {
            // Another thread has begun before this one.
            thread_state.measure(window);
        }
        thread_state.count_answer(due, std::mem::take(&mut bytes));
    }
    Ok(())
}

/// Marker at a publication's start.
const MARK: &str = "~sb~";

/// A publication's bytes without its padding.
const STAMP: usize = MARK.len() + 16 + 8 + 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{BenchArgs, load_plan};

    fn sent_after_one_answer(options: &[&str]) -> usize {
        let args = BenchArgs::parse([&["tcp://127.0.0.1:1", "-i", "3"], options].concat()).unwrap();
        let plan = load_plan("tcp://127.0.0.1:1", &args.load).unwrap();
        let epoch = Instant::now();
        let mut state = ThreadState::new(Arc::new(plan), [Arc::default()].into(), 0, epoch, None);
        state.begin(RunWindow { begin: epoch, from: epoch, until: None }, epoch);
        let mut tracker = MessageTracker::new(0);
        assert_eq!(std::iter::from_fn(|| tracker.take(&mut state)).count(), 3);
        tracker.answered(&mut state, 1);
        std::iter::from_fn(|| tracker.take(&mut state)).count()
    }

    #[test]
    fn burst_follows_when_all_messages_are_answered() {
        assert_eq!(sent_after_one_answer(&[]), 1, "each answer triggers a message");
        assert_eq!(sent_after_one_answer(&["--burst"]), 0);
    }

    #[test]
    fn deliveries_count_before_their_thread_begins() {
        let options = ["ws://127.0.0.1:1/", "-m", "fan-out", "-c", "2"];
        let plan = Arc::new(load_plan(options[0], &BenchArgs::parse(options).unwrap().load).unwrap());
        let lives: Arc<[Arc<LiveCounters>]> = [Arc::default(), Arc::default()].into();
        let epoch = Instant::now();
        let mut states =
            [0, 1].map(|thread| ThreadState::new(plan.clone(), lives.clone(), thread, epoch, None));
        let window = RunWindow { begin: epoch, from: epoch, until: None };
        lives.iter().for_each(|live| live.window.set(window).unwrap());
        let [publisher, subscriber] = &mut states;
        publisher.begin(window, epoch);
        let mut tracker = MessageTracker::new(0);
        tracker.due(epoch, publisher);
        let publication = tracker.publication(0, publisher).unwrap();
        delivered(publication.as_bytes(), subscriber).unwrap();
        assert_eq!((subscriber.tally.messages, subscriber.tally.latency.len()), (1, 1));
    }
}
