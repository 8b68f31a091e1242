//! Circuit breakers: an application that fails is left alone for a time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The circuit of one URL.
#[derive(Debug)]
pub(super) struct Circuit {
    failures_max: u32,
    time: Duration,
    state: Mutex<CircuitState>,
}

#[derive(Debug, Default)]
struct CircuitState {
    /// Failures since the last success.
    failures: u32,
    /// When the next request is tried; set while the circuit is open.
    open_until: Option<Instant>,
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

    pub(super) fn record(&self, succeeded: bool, now: Instant) -> CircuitChange {
        let mut state = self.lock();
        if succeeded {
            let was_open = std::mem::take(&mut *state).open_until.is_some();
            return if was_open { CircuitChange::Closed } else { CircuitChange::None };
        }
        state.failures = state.failures.saturating_add(1);
        if state.failures >= self.failures_max {
            let was_open = state.open_until.replace(now + self.time).is_some();
            return if was_open { CircuitChange::None } else { CircuitChange::Opened };
        }
        if state.failures == 1 { CircuitChange::FirstFailure } else { CircuitChange::None }
    }

    pub(super) fn is_open(&self) -> bool {
        self.lock().open_until.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, CircuitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circuit_opens_after_failures_in_a_row_and_tries_one_request() {
        let (time, begin) = (Duration::from_secs(10), Instant::now());
        let circuit = Circuit::new(3, time);
        assert_eq!(circuit.record(false, begin), CircuitChange::FirstFailure);
        assert_eq!(circuit.record(true, begin), CircuitChange::None);
        let changes = [(); 3].map(|()| circuit.record(false, begin));
        assert_eq!(changes, [CircuitChange::FirstFailure, CircuitChange::None, CircuitChange::Opened]);
        assert!(circuit.is_open() && !circuit.permits(begin + time / 2));
        let later = begin + time;
        assert!(circuit.permits(later), "one request is tried");
        assert!(!circuit.permits(later), "and no second one");
        assert_eq!(circuit.record(false, later), CircuitChange::None);
        assert!(!circuit.permits(later + time / 2) && circuit.permits(later + time));
        assert_eq!(circuit.record(true, later + time), CircuitChange::Closed);
        assert!(!circuit.is_open() && circuit.permits(later + time));
    }
}
