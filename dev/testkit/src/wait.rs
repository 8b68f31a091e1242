//! Waits for what other threads and processes do.

use std::fmt::{Debug, Display};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than any step takes on a busy machine; reached only after a failure.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Short compared with the awaited changes, long compared with the cost of a check.
const PAUSE: Duration = Duration::from_millis(5);

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
        thread::park_timeout(PAUSE);
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
        thread::park_timeout(PAUSE);
    }
}
