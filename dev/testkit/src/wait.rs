//! Waits for what other threads and processes do.

use std::fmt::{Debug, Display};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than any step takes on a busy machine; reached only after a failure.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// The shortest and the longest pause between two checks. A check in a debug build takes a millisecond.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(30)];

/// Pauses between two checks. The pauses grow with the wait: a change is seen after a tenth of the wait at most, and a wait of
/// ten seconds takes a few hundred checks.
fn pause(begin: Instant) {
    let [shortest, longest] = PAUSES;
    thread::park_timeout((begin.elapsed() / 10).clamp(shortest, longest));
}

/// Polls until a condition holds.
///
/// # Panics
/// The condition does not hold within [`TIMEOUT`].
#[track_caller]
pub fn until(what: impl Display, mut condition: impl FnMut() -> bool) {
    until_some(what, || condition().then_some(()));
}

/// Polls until there is a value, and returns it.
///
/// # Panics
/// There is none within [`TIMEOUT`].
#[track_caller]
pub fn until_some<T>(what: impl Display, mut value: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(value) = value() {
            return value;
        }
        assert!(begin.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        pause(begin);
    }
}

/// Polls until a value is the expected one.
///
/// # Panics
/// It is another one after [`TIMEOUT`].
#[track_caller]
pub fn until_equal<T: PartialEq<U> + Debug, U: Debug>(
    what: impl Display,
    expected: U,
    mut value: impl FnMut() -> T,
) {
    let begin = Instant::now();
    loop {
        let value = value();
        if value == expected {
            return;
        }
        assert!(begin.elapsed() < TIMEOUT, "{what}: {value:?} instead of {expected:?}");
        pause(begin);
    }
}
