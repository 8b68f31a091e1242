//! Common handling of streams that block, time out, are interrupted or do not block.

use std::cell::Cell;
use std::io::{self, ErrorKind, Read};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use sinews_proto::Time;

use crate::client::exchange::WaitError;
use crate::resources::BLOCK;

/// Delay before a handshake retries a stream that would block: short compared with a timeout of the stream, and long
/// enough to yield the processor where the stream is nonblocking.
const NAP: Duration = Duration::from_millis(1);

thread_local! {
    /// Buffer of reads, since they need initialized memory: clearing a block each time would cost more than copying
    /// the few bytes of a typical read. Taken out during a read, which may cause another read.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Reads once, at most `most` bytes, and appends them.
pub(super) fn read_into(io: &mut impl Read, into: &mut Vec<u8>, most: usize) -> io::Result<usize> {
    let mut scratch = SCRATCH.take();
    scratch.resize(BLOCK, 0);
    let room = &mut scratch[..most.min(BLOCK)];
    // A stream that reports more bytes than the buffer holds is not trusted.
    let read = uninterrupted(|| io.read(room)).map(|count| count.min(room.len()));
    into.extend_from_slice(&room[..read.as_ref().copied().unwrap_or(0)]);
    SCRATCH.set(scratch);
    read
}

/// The same for large reads: the memory is cleared first, which costs less than a copy, and then is in the cache.
pub(super) fn read_much_into(io: &mut impl Read, into: &mut Vec<u8>, most: usize) -> io::Result<usize> {
    let len = into.len();
    into.resize(len + most, 0);
    let room = &mut into[len..];
    let read = uninterrupted(|| io.read(room)).map(|count| count.min(most));
    into.truncate(len + read.as_ref().copied().unwrap_or(0));
    read
}

/// Retries after a signal.
pub(super) fn uninterrupted<T>(mut work: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match work() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Whether a stream only reports that it would block.
pub(super) fn is_wait(error: &io::Error) -> bool {
    match error.kind() {
        ErrorKind::WouldBlock => true,
        // An expired timeout is `EAGAIN` on Unix; there, `ETIMEDOUT` is the end of a connection whose peer no longer
        // responds.
        ErrorKind::TimedOut => !cfg!(unix) || error.raw_os_error().is_none(),
        _ => false,
    }
}

/// Retries an operation until it is completed or the time has passed. `bound` sets the time for which the stream may
/// block, if it can be set.
pub(super) fn within<S, T>(
    io: &mut S,
    until: Option<Instant>,
    bound: fn(&mut S, Option<Duration>) -> io::Result<()>,
    mut work: impl FnMut(&mut S) -> io::Result<T>,
) -> Result<T, WaitError> {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(WaitError::TimedOut);
        }
        bound(io, left).map_err(WaitError::Io)?;
        match uninterrupted(|| work(io)) {
            Err(error) if is_wait(&error) => std::thread::sleep(NAP),
            done => return done.map_err(WaitError::Io),
        }
    }
}

/// For a stream whose blocking time cannot be set.
#[allow(clippy::unnecessary_wraps, reason = "same signature as the fallible variant")]
pub(super) fn unbounded<S>(_: &mut S, _: Option<Duration>) -> io::Result<()> {
    Ok(())
}

/// The time of the system's monotonic clock.
pub(super) fn now() -> Time {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    let since = EPOCH.get_or_init(Instant::now).elapsed();
    Time::from_micros(since.as_secs() * 1_000_000 + u64::from(since.subsec_micros()))
}
