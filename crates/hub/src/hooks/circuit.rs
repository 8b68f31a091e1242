//! Circuit breakers: an application that fails is left alone for a time.

use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// One URL's circuit.
#[derive(Debug)]
pub(super) struct Circuit {
    failures_max: u32,
    time: Duration,
    state: Mutex<CircuitState>,
}

#[derive(Debug, Default)]
struct CircuitState {
    /// Failures since the last answer.
    failures: u32,
    /// When the next request is tried; set while the circuit is open.
    open_until: Option<Instant>,
    answered: Option<Instant>,
    /// When the log last had an answer that is an error.
    logged: Option<Instant>,
}

/// A change of the circuit, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CircuitChange {
    None,
    FirstFailure,
    Opened,
    Closed,
}

impl Circuit {
    pub(super) fn new(failures_max: u32, time: Duration) -> Self {
        Self { failures_max, time, state: Mutex::default() }
    }

    /// Whether a request may be sent now. While the circuit is open, one request is tried in each interval.
    pub(super) fn permits(&self, now: Instant) -> bool {
        let mut state = self.lock();
        match state.open_until {
            Some(until) if now < until => false,
            Some(_) => {
                state.open_until = Some(now + self.time);
                true
            }
            None => true,
        }
    }

    /// Records that the application has answered, even if it has rejected the request.
    pub(super) fn record_answer(&self, now: Instant) -> CircuitChange {
        let mut state = self.lock();
        (state.failures, state.answered) = (0, Some(now));
        if state.open_until.take().is_some() { CircuitChange::Closed } else { CircuitChange::None }
    }

    pub(super) fn record_failure(&self, now: Instant) -> CircuitChange {
        let mut state = self.lock();
        state.failures = state.failures.saturating_add(1);
        if state.failures >= self.failures_max {
            let was_open = state.open_until.replace(now + self.time).is_some();
            return if was_open { CircuitChange::None } else { CircuitChange::Opened };
        }
        if state.failures == 1 { CircuitChange::FirstFailure } else { CircuitChange::None }
    }

    /// Records a request without an answer in time. The application has not failed if an answer has arrived since the
    /// request began: the application works, and the request has waited in the queue, or takes long.
    pub(super) fn record_timeout(&self, begin: Instant, now: Instant) -> CircuitChange {
        if self.lock().answered.is_some_and(|at| at >= begin) {
            return CircuitChange::None;
        }
        self.record_failure(now)
    }

    /// Whether the log has an answer that is an error: one in each interval, since clients can cause them.
    pub(super) fn logs_error(&self, now: Instant) -> bool {
        let mut state = self.lock();
        let is_due = state.logged.is_none_or(|at| now >= at + self.time);
        if is_due {
            state.logged = Some(now);
        }
        is_due
    }

    pub(super) fn is_open(&self) -> bool {
        self.lock().open_until.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, CircuitState> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circuit_opens_after_failures_in_a_row_and_tries_one_request() {
        let (time, begin) = (Duration::from_secs(10), Instant::now());
        let circuit = Circuit::new(3, time);
        assert_eq!(circuit.record_failure(begin), CircuitChange::FirstFailure);
        assert_eq!(circuit.record_answer(begin), CircuitChange::None);
        let changes = [(); 3].map(|()| circuit.record_failure(begin));
        assert_eq!(changes, [CircuitChange::FirstFailure, CircuitChange::None, CircuitChange::Opened]);
        assert!(circuit.is_open() && !circuit.permits(begin + time / 2));
        let later = begin + time;
        assert!(circuit.permits(later), "one request is tried");
        assert!(!circuit.permits(later), "and no second one");
        assert_eq!(circuit.record_failure(later), CircuitChange::None);
        assert!(!circuit.permits(later + time / 2) && circuit.permits(later + time));
        assert_eq!(circuit.record_answer(later + time), CircuitChange::Closed);
        assert!(!circuit.is_open() && circuit.permits(later + time));
    }

    #[test]
    fn timeout_counts_unless_the_application_has_answered_meanwhile() {
        let (second, begin) = (Duration::from_secs(1), Instant::now());
        let circuit = Circuit::new(2, second);
        circuit.record_answer(begin + second);
        for _ in 0..3 {
            assert_eq!(circuit.record_timeout(begin, begin + 5 * second), CircuitChange::None);
        }
        let later = begin + 2 * second;
        assert_eq!(circuit.record_timeout(later, begin + 7 * second), CircuitChange::FirstFailure);
        assert_eq!(circuit.record_timeout(later, begin + 7 * second), CircuitChange::Opened);
    }

    #[test]
    fn errors_are_logged_once_in_an_interval() {
        let (time, begin) = (Duration::from_secs(10), Instant::now());
        let circuit = Circuit::new(3, time);
        let logged = [begin, begin, begin + time / 2, begin + time].map(|now| circuit.logs_error(now));
        assert_eq!(logged, [true, false, false, true]);
    }
}
