//! Streams that block, time out, are interrupted or do not block at all: what every part does with them.

use std::cell::Cell;
use std::io::{self, ErrorKind, Read};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use sinews_proto::Time;

use crate::resources::BLOCK;

/// How long a handshake waits before it asks a stream again that had nothing, or took nothing: nothing beside a
/// timeout of the stream, and enough to leave the processor to others where the stream does not block.
const NAP: Duration = Duration::from_millis(1);

thread_local! {
    /// What reads go into, since they need memory that is initialised: clearing a block each time would cost more than
    /// copying the few bytes that mostly come. Taken out for the length of a read, which may lead to another one.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Reads once, at most so many bytes, behind what is there.
pub(super) fn read_into(io: &mut impl Read, into: &mut Vec<u8>, most: usize) -> io::Result<usize> {
    let mut scratch = SCRATCH.take();
    scratch.resize(BLOCK, 0);
    let room = &mut scratch[..most.min(BLOCK)];
    // A stream that claims to have filled more than there was is not to be believed.
    let read = uninterrupted(|| io.read(room)).map(|count| count.min(room.len()));
    into.extend_from_slice(&room[..read.as_ref().copied().unwrap_or(0)]);
    SCRATCH.set(scratch);
    read
}

/// The same where much is expected: it is cleared first, which costs less than copying it, and is in the cache then.
pub(super) fn read_much_into(io: &mut impl Read, into: &mut Vec<u8>, most: usize) -> io::Result<usize> {
    let len = into.len();
    into.resize(len + most, 0);
    let room = &mut into[len..];
    let read = uninterrupted(|| io.read(room)).map(|count| count.min(most));
    into.truncate(len + read.as_ref().copied().unwrap_or(0));
    read
}

/// Asks again after a signal.
pub(super) fn uninterrupted<T>(mut work: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match work() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Whether a stream only says that it has nothing, or takes nothing, for now.
pub(super) fn is_wait(error: &io::Error) -> bool {
    match error.kind() {
        ErrorKind::WouldBlock => true,
        // A timeout that was set is `EAGAIN` on Unix; there, `ETIMEDOUT` is the end of a connection whose peer does
        // not answer any more.
        ErrorKind::TimedOut => !cfg!(unix) || error.raw_os_error().is_none(),
        _ => false,
    }
}

/// Why an operation within a time was not done.
#[derive(Debug)]
pub(super) enum Halt {
    TimedOut,
    Io(io::Error),
}

/// An operation that is tried until it is done or the time is over. `bound` tells the stream how long it may block,
/// where there is a way to.
pub(super) fn within<S, T>(
    io: &mut S,
    until: Option<Instant>,
    bound: fn(&mut S, Option<Duration>) -> io::Result<()>,
    mut work: impl FnMut(&mut S) -> io::Result<T>,
) -> Result<T, Halt> {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Err(Halt::TimedOut);
        }
        bound(io, left).map_err(Halt::Io)?;
        match uninterrupted(|| work(io)) {
            Err(error) if is_wait(&error) => std::thread::sleep(NAP),
            done => return done.map_err(Halt::Io),
        }
    }
}

/// A stream that cannot be told how long it may block.
#[allow(clippy::unnecessary_wraps, reason = "beside one that can fail")]
pub(super) fn unbounded<S>(_: &mut S, _: Option<Duration>) -> io::Result<()> {
    Ok(())
}

/// The time of the system's monotonic clock.
pub(super) fn now() -> Time {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    let since = EPOCH.get_or_init(Instant::now).elapsed();
    Time::from_micros(since.as_secs() * 1_000_000 + u64::from(since.subsec_micros()))
}
